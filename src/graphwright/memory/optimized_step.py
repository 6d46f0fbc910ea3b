"""A step that plans itself at its first call, proves its plans, and runs them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from traceback import walk_tb
from typing import Any

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
from graphwright.memory.offload import failed_copy
from graphwright.memory.plan_step import Planned, plan_step, refused_steps
from graphwright.memory.request import OnFailure, Request
from graphwright.memory.verbs import refuse_for_xla
from graphwright.memory.xla.planning import plan_xla_step
from graphwright.memory.xla.verification import verify_compiled
from graphwright.report.memory_plan import MemoryPlan
from graphwright.report.progress import shown
from graphwright.report.units import format_bytes
from graphwright.run.call_options import grappler_disabled
from graphwright.run.free_memory import free_bytes
from graphwright.run.traced_step import Call, TracedStep, bind
from graphwright.run.verify import verify as verify_steps
from graphwright.source.concrete_function import meets_other_processes
from graphwright.source.rebuild import is_jit_compiled
from graphwright.source.session_step import add_step
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.signatures import signature_of, signature_of_shapes
from graphwright.step.targets import trace

_MOST_REFUSED = 4
"""Refused plans after which the search gives up."""


class OptimizedStep:
    """A step that keeps a budget: call it like the original.

    A plan is made once per input signature, like a `tf.function`'s graph, at the first call with it. A call with other shapes follows the
    earlier plan of a `tf.function` if it fits.

    Threads may call it as they may call a `tf.function`: one of them plans a new signature while the others wait, and planned steps run
    side by side. With `verify="run"` calls take turns, since the proof runs steps and restores the variables; nothing else may change the
    variables meanwhile.
    """

    grappler_disabled = True
    """Its functions run without Grappler's rewrites, which would undo the plan."""
    fetches: Sequence[Any] = ()
    """Of a TensorFlow 1 graph: the tensors that a session runs for the planned step, in the order of `outputs`."""

    def __init__(self, step: Any, request: Request, *, by_running: bool = False, on_failure: OnFailure = "raise") -> None:
        self._step, self._request, self._on_failure = step, request, on_failure
        self._by_running = by_running
        self._lock = threading.RLock()  # held while planning, and during calls that restore variables
        self._planned: dict[Any, Planned | None] = {}  # None: the original runs
        self._unproved: set[Any] = set()  # signatures to be proved by running at their first call
        self._latest: Planned | None = None
        self.__name__ = str(getattr(step, "__name__", None) or "step")
        self.original = step

    def __repr__(self) -> str:
        return f"<OptimizedStep {self.__name__!r}, {f'planned: {self.plan.verdict}' if self.plans else 'not planned yet'}>"

    @property
    def plan(self) -> MemoryPlan:
        """The plan; if there are several (one per input signature), the one with the largest unmodified peak.

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
        """Return `plan`, under the name that models use."""
        return self.plan

    @property
    def plans(self) -> tuple[MemoryPlan, ...]:
        """All plans, one per input signature, in the order in which they were made."""
        return tuple(p.plan for p in list(self._planned.values()) if p is not None)  # other threads may add plans meanwhile

    @import_tensorflow().autograph.experimental.do_not_convert  # this package's own code is not part of the graph
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step; a new signature is planned and proved first."""
        if self.fetches:
            raise ArgumentError("a graph runs in a session", where=f"step {self.__name__!r}", remedy="session.run(step.fetches)")
        call = bind(self._step, args, kwargs)
        key = signature_of(call.args, call.kwargs)
        with self._lock if self._by_running else nullcontext():
            planned = self._planned_for(call, key, call if _runs_now() else None)
            if key in self._unproved and _runs_now():
                self._prove_by_running(key, call)
                planned = self._planned[key]
            if planned is None or planned.function is None:
                return self._step(*call.args, **call.kwargs)
            with grappler_disabled():
                try:
                    return planned.function(*call.args, **call.kwargs)
                except import_tensorflow().errors.OpError as error:
                    offload = self._request.offload
                    failed = None if offload is None else failed_copy(error, offload)
                    if failed is None:
                        raise
                    raise failed from error

    def concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function that a call with these arguments runs. A new signature is planned, and nothing runs."""
        call = bind(self._step, args, kwargs)
        planned = self._planned_for(call, signature_of(call.args, call.kwargs), None)
        if planned is None or planned.function is None:
            return trace(self._step, inputs=call).function
        return planned.function

    def add_to(self, graph: Any, traced: TracedStep, outputs: Sequence[str]) -> None:
        """Add the planned step to the `tf.Graph` from which the step was read; `fetches` then runs it."""
        planned = self._latest if self._latest is not None and self._latest.function is not None else None
        with nullcontext() if planned is None else grappler_disabled():
            own = traced.function
            self.fetches = add_step(graph, own if planned is None else planned.function, own, traced.shapes, outputs)

    def prepare(self, target: TracedStep, key: Any = None, *, example: Call | None) -> None:
        """Plan for one signature and prove the plan by structure; with example arguments also by running, if that is asked for.

        If other processes take part, only the first plan is proved by running: a later signature may be new to this process only, and the
        others would not run the extra steps.

        Raises:
            InfeasibleError, UnsupportedError, UnknownShapeError: see `optimize_memory`.
        """
        with self._lock:
            if key is None:
                key = signature_of_shapes(target)
            planned = self._plan(target)
            can_run_both = self._by_running and not (self._planned and meets_other_processes(target.function))
            if planned is not None and planned.function is not None and can_run_both:
                _check_room_for_original(planned.plan)
                self._unproved.add(key)
            self._planned[key] = planned
            if planned is not None:
                self._latest = planned
            if key in self._unproved and example is not None:
                self._prove_by_running(key, example)

    def _planned_for(self, call: Call, key: Any, example: Call | None) -> Planned | None:
        if key not in self._planned:
            with self._lock:
                if key not in self._planned:
                    self.prepare(self._traced(call), key, example=example)
        return self._planned[key]

    def _traced(self, call: Call) -> TracedStep:
        try:
            return trace(self._step, inputs=call, device=self._request.device)
        except RuntimeError as error:
            merges = import_tensorflow().distribute.ReplicaContext.merge_call.__code__
            if all(frame.f_code is not merges for frame, _ in walk_tb(error.__traceback__)):
                raise
            raise ArgumentError(
                "the step combines results of the replicas, and strategy.run calls it",
                where=f"step {self.__name__!r}",
                cause="applying gradients and reducing over replicas cannot be traced as a function of one replica",
                remedy="optimize the step around it: optimize_memory(tf.function(lambda x: strategy.run(step, args=(x,))), budget)",
            ) from error

    @garbage_collection_paused()
    def _plan(self, target: TracedStep) -> Planned | None:
        """Return the best plan that can be built and proved by structure; None, with a warning, if the original has to run.

        Raises:
            VerificationError: there is no such plan, and the original must not run.
        """
        request, refused = self._request, dict[str, str]()
        if self._planned:
            request = replace(request, saved=None)  # calls with other shapes are not what was saved
        with shown(request.progress, title="planning") as progress:
            try:
                while len(refused) < (1 if target.is_compiled else _MOST_REFUSED):
                    planned = self._candidate(target, replace(request, progress=progress), refused)
                    if planned.proof is None:
                        return planned
                    if planned.proof.equal:
                        return replace(planned, plan=replace(planned.plan, verification=str(planned.proof)))
                    refused[planned.plan.rewritten] = str(planned.proof)
                    request = replace(request, saved=planned.plan)
            except Exception as error:  # TensorFlow may refuse a rewritten graph by any error
                is_own = isinstance(error, GraphwrightError) and not isinstance(error, GraphError)
                if error is progress.raised or (is_own and not refused):
                    raise
                refused.setdefault("", in_words(error))
        self._fail(f"no plan can be built and proved: {refused_steps(refused)}")
        return None

    def _candidate(self, target: TracedStep, request: Request, refused: Mapping[str, str]) -> Planned:
        if target.is_compiled:
            refuse_for_xla(request.allow, f"step {target.name!r}")
            return plan_xla_step(target, request, earlier=self._latest)
        return plan_step(target, request, earlier=self._latest, refused=refused)

    def _prove_by_running(self, key: Any, call: Call) -> None:
        """Run the original and the plan, and keep the plan if both leave the same outputs and variables."""
        planned = self._planned[key]
        assert planned is not None
        try:
            original = trace(self._step, inputs=call).function
            if is_jit_compiled(planned.function):
                proof, difference = verify_compiled(original, planned.function, call, other_sums=not planned.equal_bits)
            else:
                result = verify_steps(original, planned.function, call, other_sums=not planned.equal_bits)
                proof, difference = str(result), result.first_difference
            trouble = f"the rewritten step differs from the original: {difference}" if difference else ""
        except Exception as error:  # noqa: BLE001 - any error means that nothing is proved, and the user's training must go on
            proof, trouble = "", f"the proof by running failed: {in_words(error)}; verify='structure' needs no run"
        words = f"{proof}; {planned.plan.verification}"
        self._planned[key] = None if trouble else replace(planned, plan=replace(planned.plan, verification=words))
        self._unproved.discard(key)
        if trouble:
            if self._on_failure == "raise":
                del self._planned[key]
            self._fail(trouble)

    def _fail(self, why: str) -> None:
        """Warn that the original runs, or raise `VerificationError` if it must not."""
        if self._on_failure == "raise":
            raise VerificationError(
                why,
                where=f"step {self.__name__!r}",
                cause="the rewrite or its proof does not support an operation of the step",
                remedy='give another budget, or other verbs in allow; or on_failure="original", which runs the step with its own peak',
            )
        warnings.warn(f"{self.__name__}: the original step runs, with its own peak. {why}", VerificationWarning, stacklevel=5)


def _check_room_for_original(plan: MemoryPlan) -> None:
    free, needed = free_bytes(), plan.original_peak_bytes - plan.resident_bytes
    if free is not None and needed > free:
        raise UnsupportedError(
            f"the proof by running needs {format_bytes(needed)} for the original step; {format_bytes(free)} are free",
            argument="verify",
            cause="verify='run' runs one step of the original, with its own peak",
            remedy="use verify='structure', the default, which runs nothing; or prove the plan on a smaller batch",
        )


def _runs_now() -> bool:
    """Whether a call runs the step; while another `tf.function` is being traced it does not."""
    return bool(import_tensorflow().executing_eagerly())
