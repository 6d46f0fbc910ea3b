"""`optimize_memory`: a training step, or a compiled Keras model, that keeps a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, Unpack, overload

from graphwright.analyze.device_models import HERE
from graphwright.errors import ArgumentError
from graphwright.memory.optimized_step import OptimizedStep
from graphwright.memory.request import TIME_LIMIT_S, OnFailure, Options, Verify, read_request
from graphwright.memory.verbs import BIT_FOR_BIT, Allow
from graphwright.report.memory_plan import CopyEngine, MemoryPlan
from graphwright.report.progress import Progress, shown
from graphwright.run.traced_step import Call, bind, check_step, first_batch, split_inputs
from graphwright.source.load import made_by
from graphwright.source.session_step import session_graph
from graphwright.source.trust import check_trusted
from graphwright.step.fetches import function_of_graph, is_graph, output_names
from graphwright.step.keras_step import is_keras_model, keras_data, keras_step, train_with
from graphwright.step.signatures import signature_of
from graphwright.step.targets import Feed, eagerly, fed_names, read_target, trace


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
    time_limit_s: float = TIME_LIMIT_S,
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

    The graph of the step, forward and backward together, is reordered and rematerialized until its simulated peak keeps the budget.
    Control edges fix its order, so that the measured peak is the simulated one. No random number is drawn again, and no stateful
    operation runs twice.

    If XLA compiles the step (`jit_compile=True`), XLA chooses the order. A few plans are then compiled, and XLA's own buffer assignment
    gives their peaks.

    Args:
        step: a `tf.function`, a `ConcreteFunction`, or a compiled Keras model; the path of a trusted file that holds one; or a function
            without arguments that makes one. Or a graph that a session runs: a `tf.Graph`, or a `.pb` or `.meta` file.
        budget: memory that the step may hold on the device at any time, resident variables included: bytes (int), a share of the
            unmodified peak (float below 1), or text such as "2.5GiB" or "60%". If the step runs on several devices, the budget holds for
            each. The unmodified peak is simulated in the order of TensorFlow's executor; if that is unknown, in the order in which the
            step was traced (`plan.how` says so); under XLA it is XLA's. If the unmodified step keeps the budget and no fixed order does,
            the step runs as it is, and `plan.how["plan"]` says so. "smallest" asks for the smallest peak within `max_overhead`.
        inputs: example arguments of one call; the plan is then made now instead of at the first call.
        outputs: of a graph, what a step fetches, such as the train op and the loss: names, tensors or operations.
        feeds: shapes by argument name, instead of inputs; the plan is then made now.
        batch: batch size, if feeds and step leave it open; the plan is then made now.
        verify: how a new plan is proved to compute the same as the original. "structure" (or True) compares the two graphs
            (`graphwright.transform.proof`) and runs nothing. "run" also runs one step both ways, compares all outputs and variables, and
            restores the variables; it needs the memory of the original. False proves nothing.
        time_limit_s: seconds of processor time for the search; twice as many, or 5 s, until a first plan is found. "split" gets as much
            again, so that the default verbs find the same with and without it. Reading the step, rewriting it, simulating it and
            compiling it with XLA come on top.
        cache_dir: folder that keeps plans between runs; "default" is `$GRAPHWRIGHT_CACHE_DIR` or the user's cache folder, None keeps none.
        progress: called with the share done and a few words; by default a progress bar appears. An error that it raises ends the planning
            and reaches the caller; the next call plans again.
        curve_points: how many budgets between the unmodified peak and the plan's to solve as well, for the curve in the report; costs up
            to `time_limit_s` more. Under XLA the plans that were compiled on the way make the curve.
        allow: what a plan may do besides reordering. `"recompute"` runs an operation again. `"segment"` keeps the values of a loop (an
            LSTM, `tf.while_loop`) only every few iterations, and runs the iterations between them again for their gradient; it is tried
            if recomputing does not keep the budget or costs more than 3 %. Both are bit for bit the same, and are the default.
            `"split"` runs the step in 2, 4, 8, ... parts of its batch, one after another, with one update at the end, or only the
            operations around its largest values, by rows, columns or channels. Dropout masks and batch statistics are those of the whole
            batch; results are equal up to the order of sums over the parts. `"all"` is all three; the fastest plan is chosen, the default
            plan among them, and `plan.how["plan"]` says which. Under XLA only "recompute" and "split" apply, on several devices only
            "recompute". `"offload"`, bit for bit the same, copies tensors to disk or to another device and reads them back, if that is
            faster than making them again. It needs a place, so `"all"` does not include it. A verb that is named where it cannot apply
            raises an error.
        plan: instead of a budget, a plan that was made for this step and these shapes, or the path of one that `plan.save(path)` wrote.
            It is followed without a search, under its own budget and verbs, and proved again.
        max_overhead: with the budget "smallest", the extra time that the plan may take by the planner's estimate, as a share of the
            unmodified step's time; 0.1 by default.
        device: a GPU that the budget is for, present or not ("h100", "h200", "b200", "a100", "l4", "t4"): XLA compiles the step for it
            and judges the plans. "cpu" for the devices of this process. Needs the extra `gpu-target`.
        offload_to: a folder for copies, or a device such as "CPU:1"; it implies the verb "offload", which otherwise writes to the system's
            temporary folder. The files are removed with the planned step, or when the process ends. Page cache does not count as memory
            of the process. Copies on a device keep the budget too.
        copy_engine: the speed at which copies are priced; by default the disk is measured for a fraction of a second.
        on_failure: what happens if no plan can be built and proved. The next best plan is tried first, and `plan.how["refused"]` names
            those before it. If none is left, or if running finds a difference, "raise" raises `VerificationError`; "original" runs the
            step as it is, which keeps no budget, with a `VerificationWarning`.

    Returns:
        For a step: an `OptimizedStep` with the same signature and results. For a model: the model itself, whose `fit` and
        `train_on_batch` keep the budget. Both have `memory_plan()`; the `plan` of a step is the same.
        For a graph: an `OptimizedStep` whose `fetches` a session runs instead of the outputs; each of them runs the whole step. They are
        added to the `tf.Graph`, whose variables they use, or to a new graph made of the file.

    Raises:
        InfeasibleError: no plan fits; the error carries `smallest_budget_bytes`.
        UnsupportedError: the step calls back into Python, XLA compiles a part of it, or XLA cannot compile it for the device; a verb is
            named, in `allow` or by `offload_to`, that cannot apply to such a step; or `verify="run"` was asked for, and the original does
            not fit into the free memory.
        VerificationError: no plan can be built and proved, and `on_failure` is "raise".
        UnknownShapeError: a dimension is unknown; the message names the argument.
        ArgumentError: the step cannot be traced, the model is not compiled, the budget cannot be read, or the plan is for another step.
        FileFormatError: the file of a plan cannot be read.
        MissingDependencyError: a device is given, and the compiler for it is not installed.
        OffloadError: at a call: a copy cannot be written to disk, or read back.

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
    if on_failure not in ("raise", "original"):
        raise ArgumentError(f"on_failure={on_failure!r} was given", argument="on_failure", remedy='give "raise" or "original"')
    request = read_request(
        budget,
        plan,
        allow=allow,
        verify=verify,
        time_limit_s=time_limit_s,
        cache_dir=cache_dir,
        progress=progress,
        curve_points=curve_points,
        max_overhead=max_overhead,
        device=device,
        offload_to=offload_to,
        copy_engine=copy_engine,
    )

    def make(step: Any) -> OptimizedStep:
        return OptimizedStep(step, request, by_running=verify == "run", on_failure=on_failure)

    shapes: dict[str, Any] = {"feeds": feeds, "batch": batch, "device": request.device}
    step = made_by(step)
    with shown(progress, title="planning"):
        if outputs is not None or is_graph(step):
            if inputs is not None or verify == "run":
                argument = "inputs" if inputs is not None else "verify"
                raise ArgumentError(
                    "variables of a graph have their values in a session", argument=argument, remedy="leave it out; give feeds"
                )
            return _optimize_graph(step, make, outputs, shapes)
        step, inputs = read_target(step, runs=True), first_batch(inputs)
        if is_keras_model(step):
            return _optimize_model(step, make, inputs, shapes)
        return _optimize_function(step, make, inputs, shapes)


MakeStep = Callable[[Any], OptimizedStep]


def _optimize_function(step: Any, make: MakeStep, inputs: Any, shapes: dict[str, Any]) -> OptimizedStep:
    step = getattr(step, "original", step)  # of one that was optimized before
    check_step(step, "step")
    optimized = make(step)
    if inputs is not None:
        target = trace(step, inputs=inputs, **shapes)
        call = bind(step, *split_inputs(inputs))
        optimized.prepare(target, signature_of(call.args, call.kwargs), example=call if target.is_runnable else None)
    elif _says_shapes(shapes):
        optimized.prepare(trace(step, **shapes), example=None)
    return optimized


def _optimize_graph(target: Any, make: MakeStep, outputs: Any, shapes: dict[str, Any]) -> OptimizedStep:
    check_trusted(target, "optimizing a graph")
    graph = session_graph(target)
    traced = trace(function_of_graph(graph, outputs, fed_names(shapes["feeds"]), runs=True), **shapes)
    optimized = make(traced.function)
    optimized.prepare(traced, example=None)
    fetched = [*traced.function.outputs, *traced.function.graph.control_outputs]
    optimized.add_to(graph, traced, output_names(fetched if outputs is None else outputs))
    return optimized


def _optimize_model(model: Any, make: MakeStep, inputs: Any, shapes: dict[str, Any]) -> Any:
    """Let `fit` and `train_on_batch` of a compiled model run an optimized step."""
    optimized = make(keras_step(model, "train"))
    if inputs is not None:
        target = trace(model, inputs=inputs, mode="train", **shapes)
        data = keras_data(model, "train", inputs, are_specs=False)
        optimized.prepare(target, signature_of(data, {}), example=Call(data, {}))
    elif _says_shapes(shapes):
        optimized.prepare(trace(model, mode="train", **shapes), example=None)
    prepared = [optimized]  # until here the model is unchanged, should the budget be too small

    def make_step() -> OptimizedStep:
        model.optimized_step = prepared.pop() if prepared else make(keras_step(model, "train"))
        return model.optimized_step

    train_with(model, make_step)
    model.memory_plan = lambda: model.optimized_step.plan
    return model


def _says_shapes(shapes: Mapping[str, Any]) -> bool:
    return shapes["feeds"] is not None or shapes["batch"] is not None
