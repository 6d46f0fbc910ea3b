"""`optimize_memory`: a training step, or a compiled Keras model, that keeps a memory budget."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from graphwright.analyze.device_models import HERE, find_device
from graphwright.errors import (
    ArgumentError,
    GraphError,
    GraphwrightError,
    UnsupportedError,
    VerificationError,
    VerificationWarning,
    in_words,
)
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.memory.offload import Offload, failed_copy
from graphwright.memory.offload import offload_to as find_offload
from graphwright.memory.plan_cache import PlanCache, plan_cache
from graphwright.memory.plan_step import Planned, plan_step, refused_steps
from graphwright.memory.verbs import BIT_FOR_BIT, Allow, read_allow, refuse_for_xla
from graphwright.memory.xla.planning import plan_xla_step
from graphwright.memory.xla.verification import verify_compiled
from graphwright.plan.budget import Budget
from graphwright.report.memory_plan import CopyEngine, MemoryPlan, load_plan
from graphwright.report.progress import Progress, shown
from graphwright.report.units import format_bytes
from graphwright.run.call_options import grappler_disabled
from graphwright.run.free_memory import free_bytes
from graphwright.run.traced_step import TracedStep, bind, check_step, first_batch, split_inputs
from graphwright.run.verify import verify as verify_steps
from graphwright.source.concrete_function import meets_other_processes
from graphwright.source.load import made_by
from graphwright.source.rebuild import is_jit_compiled
from graphwright.source.session_step import add_step, session_graph
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.trust import check_trusted
from graphwright.step.fetches import function_of_graph, is_graph, output_names
from graphwright.step.keras_step import is_keras_model, keras_data, keras_step, train_with
from graphwright.step.signatures import as_inputs, signature_of, signature_of_shapes
from graphwright.step.targets import Feed, eagerly, fed_names, read_target, trace

Verify = Literal["structure", "run"] | bool
OnFailure = Literal["raise", "original"]
Example = tuple[tuple[Any, ...], Mapping[str, Any]]
_TIME_LIMIT_S = 6.0
_MOST_REFUSED = 4  # plans, after which no other one is tried
_MAX_OVERHEAD = 0.1  # of a plan for the smallest peak, as a share of the step's time


class Options(TypedDict, total=False):
    """Options of `optimize_memory`, as type checkers know them."""

    inputs: Any
    outputs: Any
    feeds: Mapping[str, Feed] | None
    verify: Verify
    time_limit_s: float
    cache_dir: str | Path | None
    progress: Progress | None
    curve_points: int
    allow: Allow
    max_overhead: float | None
    plan: MemoryPlan | str | Path | None
    device: str
    offload_to: str | Path | None
    copy_engine: CopyEngine | None
    on_failure: OnFailure


class OptimizedStep:
    """A step that keeps a budget: call it like the original.

    A plan is made once per input signature, like a `tf.function`'s graph, at the first call with it. Where the
    plan is for a `tf.function`, a call with other shapes follows the earlier plan when it fits.

    Threads may call it as they may call a `tf.function`: one of them plans a new signature while the others wait for the plan, and planned
    steps run side by side. With `verify="run"` calls take turns, since the proof runs steps and puts the variables back; nobody else may
    change the variables meanwhile.
    """

    grappler_disabled = True
    """Its functions run without Grappler's rewrites, which know nothing of the plan."""
    fetches: Sequence[Any] = ()
    """Of a graph of TensorFlow 1: what a session runs to run the planned step, in the order of `outputs`."""

    def __init__(
        self,
        step: Any,
        budget: int | float | str,
        *,
        verify: Verify,
        time_limit_s: float,
        cache: PlanCache | None,
        progress: Progress | None,
        curve_points: int = 0,
        allow: Allow = BIT_FOR_BIT,
        max_overhead: float | None = None,
        saved: MemoryPlan | None = None,
        device: str = HERE,
        offload: Offload | None = None,
        on_failure: OnFailure = "raise",
    ) -> None:
        self._step, self._on_failure = step, on_failure
        self._device, self._offload = device, offload
        self._saved = saved
        self._allow = read_allow(allow)
        self._budget, self._max_overhead = _read_budget(budget, max_overhead)
        self._by_structure = verify is not False
        self._by_running = verify == "run"
        self._lock = threading.RLock()  # around planning, and around all of a call where steps are put back
        self._time_limit_s = time_limit_s
        self._cache = cache
        self._progress = progress
        self._curve_points = curve_points
        self._planned: dict[Any, Planned | None] = {}  # None: the original runs
        self._to_run: set[Any] = set()  # planned, and to be proved by running at the first call
        self._latest: Planned | None = None
        self.__name__ = str(getattr(step, "__name__", None) or "step")
        self.original = step

    def __repr__(self) -> str:
        return f"<OptimizedStep {self.__name__!r}, {f'planned: {self.plan.verdict}' if self.plans else 'not planned yet'}>"

    @property
    def plan(self) -> MemoryPlan:
        """The plan; where there are several (one per input signature), the one with the largest unmodified peak.

        Raises:
            ArgumentError: nothing was planned yet.
        """
        if not self.plans:
            raise ArgumentError(
                "nothing was planned yet",
                where=f"step {self.__name__!r}",
                cause="the shapes of the inputs are known at the first call only, or the original step runs (a warning said why)",
                remedy="call the step once, or give inputs=... or feeds=... to optimize_memory",
            )
        return max(self.plans, key=lambda plan: plan.original_peak_bytes)

    def memory_plan(self) -> MemoryPlan:
        """The plan, asked for as a model's is."""
        return self.plan

    @property
    def plans(self) -> tuple[MemoryPlan, ...]:
        """All plans, one per input signature, in the order in which they were made."""
        return tuple(p.plan for p in list(self._planned.values()) if p is not None)  # other threads may plan meanwhile

    @import_tensorflow().autograph.experimental.do_not_convert  # this package's own code is not part of the graph
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step; planned, and proved equal, when the signature is new."""
        if self.fetches:
            raise ArgumentError("a graph runs in a session", where=f"step {self.__name__!r}", remedy="session.run(step.fetches)")
        args, kwargs = split_inputs(bind(self._step, args, kwargs))
        key = signature_of(args, kwargs)
        with self._lock if self._by_running else nullcontext():
            if key not in self._planned:
                with self._lock:
                    if key not in self._planned:
                        self.prepare(self._traced(args, kwargs), key, example=(args, kwargs) if _runs_now() else None)
            if key in self._to_run and _runs_now():
                self._prove_by_running(key, (args, kwargs))
            planned = self._planned[key]
            if planned is None or planned.function is None:
                return self._step(*args, **kwargs)
            with grappler_disabled():
                try:
                    return planned.function(*args, **kwargs)
                except import_tensorflow().errors.OpError as error:
                    failed = None if self._offload is None else failed_copy(error, self._offload)
                    if failed is None:
                        raise
                    raise failed from error

    def concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """The function that a call with these arguments runs; planned first when it is new, without running it."""
        args, kwargs = split_inputs(bind(self._step, args, kwargs))
        key = signature_of(args, kwargs)
        with self._lock:
            if key not in self._planned:
                self.prepare(self._traced(args, kwargs), key, example=None)
        planned = self._planned[key]
        if planned is None or planned.function is None:
            return trace(self._step, inputs=as_inputs(args, kwargs)).function
        return planned.function

    def add_to(self, graph: Any, traced: TracedStep, outputs: Sequence[str]) -> None:
        """Let a `tf.Graph`, from which the step was read, hold the planned step too: what a session runs for it is in `fetches`."""
        planned = self._latest if self._latest is not None and self._latest.function is not None else None
        with nullcontext() if planned is None else grappler_disabled():
            own = traced.function
            self.fetches = add_step(graph, own if planned is None else planned.function, own, traced.shapes, outputs)

    def _traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TracedStep:
        try:
            return trace(self._step, inputs=as_inputs(args, kwargs), device=self._device)
        except RuntimeError as error:
            merges = import_tensorflow().distribute.ReplicaContext.merge_call.__code__
            if all(frame.f_code is not merges for frame, _ in walk_tb(error.__traceback__)):
                raise
            raise ArgumentError(
                "the step combines what the replicas found, and is called by strategy.run",
                where=f"step {self.__name__!r}",
                cause="applying gradients and reducing over replicas cannot be traced as a function of one replica",
                remedy="optimize the step around it: optimize_memory(tf.function(lambda x: strategy.run(step, args=(x,))), budget)",
            ) from error

    def prepare(self, target: TracedStep, key: Any = None, *, example: Example | None) -> None:
        """Plan for one signature, prove the plan by structure, and with example arguments by running too, where that is asked for.

        Where other processes take part, only the first plan is proved by running: a later signature may be new to this one alone, and the
        others would not run the extra steps.

        Raises:
            InfeasibleError, UnsupportedError, UnknownShapeError: see `optimize_memory`.
        """
        with self._lock:
            if key is None:
                key = signature_of_shapes(target)
            planned = self._plan(target)
            if (
                planned is not None
                and planned.function is not None
                and self._by_running
                and not (self._planned and meets_other_processes(target.function))
            ):
                _check_room_for_original(planned.plan)
                self._to_run.add(key)
            self._planned[key] = planned
            if planned is not None:
                self._latest = planned
            if key in self._to_run and example is not None:
                self._prove_by_running(key, example)

    @garbage_collection_paused()
    def _plan(self, target: TracedStep) -> Planned | None:
        """The best plan that can be built and is proved by structure; None, with a warning, where the original has to run instead.

        Raises:
            VerificationError: there is none, and the original must not run.
        """
        refused, saved = dict[str, str](), None if self._planned else self._saved  # calls with other shapes are not what was saved
        with shown(self._progress, title="planning") as progress:
            try:
                while len(refused) < (1 if target.is_compiled else _MOST_REFUSED):
                    planned = self._candidate(target, saved, refused, progress)
                    if planned.proof is None:
                        return planned
                    if planned.proof.equal:
                        return replace(planned, plan=replace(planned.plan, verification=str(planned.proof)))
                    refused[planned.plan.rewritten], saved = str(planned.proof), planned.plan
            except Exception as error:  # TensorFlow may refuse a rewritten graph by any error
                is_own = isinstance(error, GraphwrightError) and not isinstance(error, GraphError)
                if error is progress.raised or (is_own and not refused):
                    raise
                refused.setdefault("", in_words(error))
        self._fail(f"no plan can be built and proved: {refused_steps(refused)}")
        return None

    def _candidate(self, target: TracedStep, saved: MemoryPlan | None, refused: Mapping[str, str], progress: Progress) -> Planned:
        """The best plan of those that were not refused yet."""
        options: dict[str, Any] = {
            "time_limit_s": self._time_limit_s,
            "progress": progress,
            "cache": self._cache,
            "earlier": self._latest,
            "prove": self._by_structure,
            "saved": saved,
            "allow": self._allow,
        }
        if target.is_compiled:
            refuse_for_xla(self._allow, f"step {target.name!r}")
            return plan_xla_step(target, _not_smallest(self._budget, target), **options)
        options |= {"curve_points": self._curve_points, "max_overhead": self._max_overhead, "offload": self._offload, "refused": refused}
        return plan_step(target, self._budget, **options)

    def _prove_by_running(self, key: Any, example: Example) -> None:
        """Run the original and the plan, and keep the plan where both leave the same. The plan stays unproved while that lasts."""
        planned = self._planned[key]
        assert planned is not None
        inputs = as_inputs(*example)
        try:
            original = trace(self._step, inputs=inputs).function
            if is_jit_compiled(planned.function):
                proved, difference = verify_compiled(original, planned.function, inputs, other_sums=not planned.equal_bits)
            else:
                found = verify_steps(original, planned.function, inputs, other_sums=not planned.equal_bits)
                proved, difference = str(found), found.first_difference
            trouble = f"the rewritten step differs from the original: {difference}" if difference else ""
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing is proved, and the user's training must go on
            proved, trouble = "", f"the proof by running did not end: {in_words(error)}; verify='structure' needs no run"
        words = f"{proved}; {planned.plan.verification}"
        self._planned[key] = None if trouble else replace(planned, plan=replace(planned.plan, verification=words))
        self._to_run.discard(key)
        if trouble:
            if self._on_failure == "raise":
                del self._planned[key]
            self._fail(trouble)

    def _fail(self, why: str) -> None:
        """Say that the original has to run, by a warning or an error.

        Raises:
            VerificationError: the original must not run.
        """
        if self._on_failure == "raise":
            raise VerificationError(
                why,
                where=f"step {self.__name__!r}",
                cause="the rewrite, or its proof, does not know something in the step",
                remedy='give another budget, or other verbs in allow; or on_failure="original", which runs the step with its own peak',
            )
        warnings.warn(f"{self.__name__}: the original step runs, with its own peak. {why}", VerificationWarning, stacklevel=5)


class KerasModel(Protocol):
    """A Keras model, as type checkers know it."""

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train."""

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch."""


Model = TypeVar("Model", bound=KerasModel)


@overload
def optimize_memory(step: Model, budget: int | float | str | None = None, **options: Unpack[Options]) -> Model: ...
@overload
def optimize_memory(step: Callable[..., Any], budget: int | float | str | None = None, **options: Unpack[Options]) -> OptimizedStep: ...
@eagerly()
def optimize_memory(
    step: Any,
    budget: int | float | str | None = None,
    *,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    feeds: Mapping[str, Feed] | None = None,
    batch: int | None = None,
    verify: Verify = "structure",
    time_limit_s: float = _TIME_LIMIT_S,
    cache_dir: str | Path | None = "default",
    progress: Progress | None = None,
    curve_points: int = 0,
    allow: Allow = BIT_FOR_BIT,
    max_overhead: float | None = None,
    plan: MemoryPlan | str | Path | None = None,
    device: str = HERE,
    offload_to: str | Path | None = None,
    copy_engine: CopyEngine | None = None,
    on_failure: OnFailure = "raise",
) -> Any:
    """Bring a training step, or a compiled Keras model, into a memory budget.

    The step's graph, forward and backward together, is reordered and rematerialized until its simulated peak keeps the
    budget, and its order is fixed by control edges, so that the measured peak is the simulated one. Nothing random is
    drawn again, nothing stateful runs twice.

    Of a step that XLA compiles (`jit_compile=True`) the order is XLA's. It is rematerialized until the peak that XLA's own buffer
    assignment takes keeps the budget; to know it, a few plans are compiled.

    Args:
        step: a `tf.function`, a `ConcreteFunction`, or a compiled Keras model; a path that is trusted, of a file that holds one; or a
            function without arguments that makes one. Or a graph that a session runs: a `tf.Graph`, or a `.pb` or `.meta` file.
        budget: all that the step may hold on the device at once, resident variables included: bytes (int), a share of the
            unmodified peak (float below 1), or text such as "2.5GiB" or "60%". Where the step runs on several
            devices, it is what each of them may hold. The unmodified peak is the one in the order of TensorFlow's executor, which is
            simulated; where that is not known, in the order in which the step was traced (`plan.how` says so); under XLA, XLA's.
            Where the unmodified peak keeps the budget and no fixed order does, the step runs as it is, and `plan.how["plan"]` says so.
            Or "smallest": as little as is found within `max_overhead`.
        inputs: example arguments of one call; then the plan is made now instead of at the first call.
        outputs: of a graph, what a step fetches, such as the train op and the loss: names, tensors or operations.
        feeds: shapes by argument name, instead of inputs; then the plan is made now.
        batch: batch size, where feeds and step leave it open; then the plan is made now.
        verify: how a new plan is proved to compute what the original does. "structure" (or True) compares the two graphs
            (`graphwright.transform.proof`): nothing runs, so the first call takes no more memory than any other. "run" also runs one step
            both ways, compares all outputs and variables, and puts the variables back; it needs the memory of the original. False
            proves nothing.
        time_limit_s: seconds of processor time that the search for a plan may take; twice as many, or 5 s, where none is found before.
            "split" and "transpose" get as much again at most, so that they never cost what the default finds. Where they find nothing
            either, the step as it is has the longer search of the default. To read the step, rewrite it, simulate it as it is and compile
            it with XLA comes on top.
        cache_dir: folder that keeps plans between runs; "default" is `$GRAPHWRIGHT_CACHE_DIR` or the user's cache folder,
            None keeps none.
        progress: called with the share done and a few words; by default a progress bar shows when planning lasts. What it raises ends
            the planning and reaches the caller; the next call plans again.
        curve_points: how many budgets between the unmodified peak and the plan's to solve as well, for the curve in the
            report; costs up to `time_limit_s` more. Under XLA the plans that were compiled on the way make the curve.
        allow: what a plan may do besides reordering. The default are `"recompute"` and `"segment"`, which are bit for bit the same: to run
            an operation again, and to keep of a loop (an LSTM, `tf.while_loop`) only its values every so many rounds, and to run the rounds
            between them again for their gradient. Segments are planned where recomputing alone does not keep the budget or costs more than
            15 %. `"split"`: to run the step in 2, 4, 8, ... parts of its batch, one after another, with one update at the end, or only
            what its largest values are for, by rows, columns or channels. Dropout masks and statistics of batch normalization are those of
            the whole batch; results are equal but for the order of sums over the parts, some roundings. `"transpose"`: to transpose weights
            once that loops take transposed in every round, which is faster and may round otherwise. `"all"` is all four; what takes less
            time is chosen, the plan of the default among others, and
            `plan.how["plan"]` says which. Under XLA only "recompute" and "split" mean something, on several devices only "recompute".
            `"offload"`, bit for bit the same too: to copy what an operation made to disk or to another device, and to read it back, where
            that takes less time than to make it again. It needs a place, so `"all"` does not mean it. A verb that is named where it means
            nothing is refused.
        plan: instead of a budget, a plan that was made for this step and these shapes, or the path of one that `plan.save(path)` wrote: it
            is followed without a search, under the budget and with the verbs that it was made for, and proved again.
        max_overhead: with the budget "smallest", how much more time the plan may take by the planner's estimate, as a share of the
            unmodified step's; 0.1 unless it is given.
        device: the GPU that the budget is for, which need not be there ("h100", "h200", "b200", "a100", "l4", "t4"): XLA compiles the
            step for it and judges the plans, and compiles the step that comes of it wherever that runs. "cpu" for what this process
            runs on. Needs the extra `gpu-target`.
        offload_to: a folder for copies, or a device such as "CPU:1"; it allows "offload" by itself. Without it that verb writes to the
            system's folder of temporary files. Files are the plan's own, in a folder of their own that goes with the planned step, or with
            the process. Page cache is no memory of the process. On a device, copies keep the budget too.
        copy_engine: what copies are priced by; without it the disk is measured for a fraction of a second.
        on_failure: what happens where a plan cannot be built, or is not proved. By structure the next best plan is tried first, and
            `plan.how["refused"]` names those before it. Where none is left, and where running finds a difference, "raise" raises
            `VerificationError`; "original" runs the step as it is, which keeps no budget, with a `VerificationWarning`.

    Returns:
        For a step: an `OptimizedStep` with the same signature and results. For a model: the model itself, whose `fit` and
        `train_on_batch` keep the budget. Both have `memory_plan()`; of a step `plan` is short for it.
        For a graph: an `OptimizedStep` whose `fetches` a session runs instead of the outputs, each of which runs the whole step. They are
        added to the `tf.Graph`, whose variables they use, or to one that is made of the file; all else in it stays as it is.

    Raises:
        InfeasibleError: no plan fits; the error carries `smallest_budget_bytes`.
        UnsupportedError: the step calls back into Python, a part of it is compiled by XLA, or XLA cannot compile it as it is told to; a
            verb is asked for by name, in `allow` or by `offload_to`, that no plan of such a step uses (under XLA, on several devices); or
            `verify="run"` was asked for, and the original does not fit into the memory that is free.
        VerificationError: no plan that was found can be built and proved, and `on_failure` is "raise".
        UnknownShapeError: a dimension is not known; the message names the argument.
        ArgumentError: the step cannot be traced, the model is not compiled, the budget cannot be read, or the plan is for another step.
        FileFormatError: the file of a plan cannot be read.
        MissingDependencyError: a device is given, and the compiler for it is not installed.
        OffloadError: at a call: a copy cannot be written to disk, or not read back.

    >>> import tensorflow as tf
    >>> w = tf.Variable(tf.ones((64, 64)))
    >>> @tf.function
    ... def step(x):
    ...     with tf.GradientTape() as tape:
    ...         y = x
    ...         for _ in range(8):
    ...             y = tf.tanh(y @ w)
    ...         loss = tf.reduce_mean(y)
    ...     w.assign_sub(tape.gradient(loss, w))
    ...     return loss
    >>> fast = optimize_memory(step, 0.6, inputs=tf.ones((512, 64)), cache_dir=None)
    >>> fast.plan.peak_bytes <= 0.6 * fast.plan.original_peak_bytes
    True
    >>> fast.plan.verification.startswith("equal")
    True
    """
    if verify not in ("structure", "run", True, False):
        raise ArgumentError(f"verify={verify!r} was given", argument="verify", remedy='give "structure", "run" or False')
    if on_failure not in ("raise", "original"):
        raise ArgumentError(f"on_failure={on_failure!r} was given", argument="on_failure", remedy='give "raise" or "original"')
    saved = load_plan(plan) if isinstance(plan, str | Path) else plan
    if (saved is None) == (budget is None):
        raise ArgumentError(
            "neither a budget nor a plan was given" if saved is None else "a budget was given beside a plan",
            argument="budget" if saved is None else "plan",
            remedy="give one of the two; a plan is followed under the budget that it was made for",
        )
    if saved is not None:
        recipe = saved.recipe
        if recipe is None:
            raise ArgumentError("the plan does not say how it is followed", argument="plan", remedy="give one that optimize_memory made")
        beside = {
            "allow": read_allow(allow) not in (frozenset(BIT_FOR_BIT), read_allow(recipe.allow)),
            "time_limit_s": time_limit_s not in (_TIME_LIMIT_S, recipe.time_limit_s),
            "max_overhead": max_overhead not in (None, recipe.max_overhead),
            "offload_to": offload_to is not None and not recipe.offload_to,
            "copy_engine": copy_engine is not None,
            "device": device not in (HERE, recipe.device),
        }
        for argument in (name for name, is_other in beside.items() if is_other):
            raise ArgumentError(
                f"{argument} was given beside a plan that was made without it",
                argument=argument,
                cause="the plan is followed as it was made",
                remedy="leave it out, or give a budget instead of the plan",
            )
        budget, allow, time_limit_s, device = recipe.budget, read_allow(recipe.allow), recipe.time_limit_s, recipe.device
        offload_to, copy_engine = offload_to or recipe.offload_to or None, recipe.copy_engine
        max_overhead = recipe.max_overhead if budget == "smallest" else None
    assert budget is not None
    is_compiled = find_device(device) is not None
    _read_budget(budget, max_overhead)  # one that cannot be read is an error now, not at the first call
    cache = plan_cache(cache_dir)
    verbs = read_allow(allow).union(() if offload_to is None else read_allow(("offload",)))
    if is_compiled:
        refuse_for_xla(verbs, f"device={device!r}")
    if copy_engine is not None and "offload" not in verbs:
        raise ArgumentError(
            "a copy engine was given, and nothing may be copied",
            argument="copy_engine",
            remedy='give offload_to=..., or "offload" in allow, as well',
        )
    options: dict[str, Any] = {
        "verify": verify,
        "time_limit_s": time_limit_s,
        "cache": cache,
        "progress": progress,
        "curve_points": curve_points,
        "allow": verbs,
        "max_overhead": max_overhead,
        "saved": saved,
        "device": device,
        "offload": find_offload(offload_to, copy_engine) if "offload" in verbs else None,
        "on_failure": on_failure,
    }
    step = made_by(step)
    if outputs is not None or is_graph(step):
        if inputs is not None or verify == "run":
            given = "inputs" if inputs is not None else "verify"
            raise ArgumentError("variables of a graph have their values in a session", argument=given, remedy="leave it out; give feeds")
        return _optimize_graph(step, budget, outputs, {"feeds": feeds, "batch": batch}, **options)
    step, inputs = read_target(step, runs=True), first_batch(inputs)
    with shown(progress, title="planning"):
        if is_keras_model(step):
            return _optimize_model(step, budget, inputs, {"feeds": feeds, "batch": batch}, **options)
        return _optimize_function(step, budget, inputs, {"feeds": feeds, "batch": batch}, **options)


def _optimize_function(step: Any, budget: int | float | str, inputs: Any, shapes: dict[str, Any], **options: Any) -> Any:
    step = getattr(step, "original", step)  # of one that was optimized before
    check_step(step, "step")
    optimized = OptimizedStep(step, budget, **options)
    if inputs is not None:
        target = trace(step, inputs=inputs, device=options["device"], **shapes)
        args, kwargs = split_inputs(bind(step, *split_inputs(inputs)))
        optimized.prepare(target, signature_of(args, kwargs), example=(args, kwargs) if target.is_runnable else None)
    elif any(given is not None for given in shapes.values()):
        optimized.prepare(trace(step, device=options["device"], **shapes), example=None)
    return optimized


def _optimize_graph(target: Any, budget: int | float | str, outputs: Any, shapes: dict[str, Any], **options: Any) -> OptimizedStep:
    """Let a graph hold an optimized step beside the one that it has."""
    check_trusted(target, "optimizing a graph")
    graph = session_graph(target)
    traced = trace(function_of_graph(graph, outputs, fed_names(shapes["feeds"]), runs=True), device=options["device"], **shapes)
    optimized = OptimizedStep(traced.function, budget, **options)
    with shown(options["progress"], title="planning"):
        optimized.prepare(traced, example=None)
    own = [*traced.function.outputs, *traced.function.graph.control_outputs]
    optimized.add_to(graph, traced, output_names(own if outputs is None else outputs))
    return optimized


def _optimize_model(model: Any, budget: int | float | str, inputs: Any, shapes: dict[str, Any], **options: Any) -> Any:
    """Let `fit` and `train_on_batch` of a compiled model run an optimized step."""
    optimized = OptimizedStep(keras_step(model, "train"), budget, **options)
    if inputs is not None:
        target = trace(model, inputs=inputs, mode="train", device=options["device"], **shapes)
        data = keras_data(model, "train", inputs, are_specs=False)
        optimized.prepare(target, signature_of(data, {}), example=(data, {}))
    elif any(given is not None for given in shapes.values()):
        optimized.prepare(trace(model, **shapes, mode="train", device=options["device"]), example=None)
    made = [optimized]  # until here the model is as it was, should the budget be too small

    def make_step() -> OptimizedStep:
        model.optimized_step = made.pop() if made else OptimizedStep(keras_step(model, "train"), budget, **options)
        return model.optimized_step

    train_with(model, make_step)
    model.memory_plan = lambda: model.optimized_step.plan
    return model


def _read_budget(budget: int | float | str, max_overhead: float | None) -> tuple[Budget | None, float]:
    """The budget, None for "smallest"; and how much more time that may cost, as a share.

    Raises:
        ArgumentError: the budget cannot be read; or `max_overhead` is negative, not finite, or given beside a budget.
    """
    smallest = isinstance(budget, str) and budget.strip().lower() == "smallest"
    if max_overhead is None:
        max_overhead = _MAX_OVERHEAD
    elif not smallest:
        raise ArgumentError(
            f"max_overhead={max_overhead!r} was given beside the budget {budget!r}",
            argument="max_overhead",
            cause="a plan for a budget takes as little more time as is found, however much that is",
            remedy='give the budget "smallest", or no max_overhead',
        )
    elif not 0 <= max_overhead < float("inf"):
        raise ArgumentError(f"max_overhead={max_overhead!r} was given", argument="max_overhead", remedy="give a share, such as 0.1")
    return None if smallest else Budget.read(budget), float(max_overhead)


def _not_smallest(budget: Budget | None, target: TracedStep) -> Budget:
    if budget is None:
        raise UnsupportedError(
            'the budget "smallest" is not for a step that XLA compiles',
            where=f"step {target.name!r}",
            cause="each plan is compiled to know its peak, and the estimated times are not those of XLA's program",
            remedy="give a budget, such as 0.5",
        )
    return budget


def _check_room_for_original(plan: MemoryPlan) -> None:
    """Refuse to run the original where there is no memory for it, before anything runs.

    Raises:
        UnsupportedError: it needs more than there is.
    """
    free, needed = free_bytes(), plan.original_peak_bytes - plan.resident_bytes
    if free is not None and needed > free:
        raise UnsupportedError(
            f"the proof by running needs {format_bytes(needed)} for the original step; {format_bytes(free)} are free",
            argument="verify",
            cause="verify='run' runs one step of the original, with its own peak",
            remedy="use verify='structure', the default, which runs nothing; or prove the plan on a smaller batch",
        )


def _runs_now() -> bool:
    """Whether a call runs the step; inside another `tf.function` that is being traced, it does not."""
    return bool(import_tensorflow().executing_eagerly())
