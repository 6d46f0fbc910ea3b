"""`advise`: ranked remedies for the memory of a training step."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from graphwright.advice.keras_variants import BFLOAT16, leaner_optimizers, mixed_precision, other_optimizer
from graphwright.advice.lint import lint
from graphwright.analyze.cost import TaskMap
from graphwright.analyze.device_models import HERE, device_name
from graphwright.costs.max_batch import size_near_budget
from graphwright.costs.sized_step import PeakAt, SizedStep
from graphwright.costs.xla_peak import xla_peak
from graphwright.errors import ArgumentError, GraphwrightError, UnsupportedError, first_line
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.memory.optimize_memory import optimize_memory
from graphwright.memory.plan_cache import PlanCache, plan_cache
from graphwright.memory.plan_step import Unplanned, plan_step, unplanned
from graphwright.memory.planning import HOW_TIME
from graphwright.memory.request import Request
from graphwright.memory.verbs import BIT_FOR_BIT, Verb, read_allow
from graphwright.memory.xla.planning import plan_xla_step
from graphwright.plan.budget import Budget
from graphwright.report.advice import Advice, Suggestion, SuggestionKind, ranked
from graphwright.report.peak_prediction import BY_UPPER_END
from graphwright.report.progress import Progress, note, shown, tell
from graphwright.report.units import format_bytes, format_percent
from graphwright.run.traced_step import TracedStep
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.example_inputs import example_inputs
from graphwright.step.executor_peak import inter_op_threads
from graphwright.step.fetches import output_names
from graphwright.step.keras_inputs import keras_specs
from graphwright.step.keras_step import is_keras_model
from graphwright.step.summary import find_roles
from graphwright.step.targets import Feed, about_a_step, read_target, trace

_VERBS: Mapping[SuggestionKind, tuple[tuple[Verb, ...], str]] = {
    "plan": (BIT_FOR_BIT, "bit for bit the same results"),
    "plan, all verbs": (tuple(sorted(read_allow("all"))), "the same results but for the order of sums over the batch"),
}
_WORTH = 0.02  # of the peak: what saves less than this is not worth saying, and an optimizer that keeps less is left as it is
_CHEAP = 0.1  # extra time as a share: a plan that takes no more needs no other verb and no change of the training
_NEEDLESS = ("plan, all verbs", "bfloat16", "optimizer")
"""Left out beside a cheap plan with the same results."""
_HOW = {
    "peak of a plan": "simulated in the order of the plan, which is kept when it runs",
    "peak of another step": "the upper end of its predicted range",
    "time": f"{HOW_TIME}; per example of the batch, relative to the step as it is; for bfloat16 it depends on which of its kernels the "
    "processor has, and is not known",
}
_SIZES, _NEAR = 4, 0.98  # batch sizes to look at, and the share of the memory from which on a batch is large enough


@garbage_collection_paused()
@about_a_step
def advise(
    target: Any,
    memory: int | float | str,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    *,
    batch: int | None = None,
    time_limit_s: float = 6.0,
    cache_dir: str | Path | None = "default",
    progress: Progress | None = None,
    device: str = HERE,
) -> Advice:
    """Rank what can be done so that a training step fits into memory, and list likely mistakes in it. Nothing runs.

    The remedies are a plan with the same bits, a plan with all verbs (which may run the batch in parts, or only the readers of the largest
    values, such as the loss), another batch size, and for a Keras model bfloat16 and optimizers that keep less. If a plan with the same
    bits fits at little cost, other plans and changes of the training are left out. Each remedy is one call or one command.

    Args:
        memory: the available memory, as a budget of `optimize_memory`: bytes, text such as "2GiB", or a share of the step's own peak. A
            step in TensorFlow's own order fits if the upper end of its predicted range does.
        time_limit_s: seconds of processor time for the search for each plan.
        cache_dir: the folder of plans, see `optimize_memory`; following the advice does not plan again.
        progress: called with the share done and a few words, and with each result as soon as it is known; by default a bar shows both.

    Raises:
        UnknownShapeError, UnsupportedError, ArgumentError: the step cannot be traced, or its peak is unknown.

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
    >>> advice = advise(step, 0.6, {"x": (512, 64)}, cache_dir=None)
    >>> [suggestion.fits for suggestion in advice.suggestions if suggestion.call == "gw.optimize_memory(step, 0.6)"]
    [True]
    """
    budget = Budget.read(memory, "memory")
    cache = plan_cache(cache_dir)
    with shown(progress, title="advice"):
        names = [] if outputs is None else output_names(outputs)
        target = read_target(target, outputs, feeds) if names else target
        traced = trace(target, feeds=feeds, inputs=inputs, batch=batch, device=device)
        before = unplanned(traced)
        own = _Own(traced, before, _own_peak(traced, before), budget, _arguments_text(traced, feeds, batch), names)
        note(f"the step as it is: {format_bytes(own.peak.nbytes)}, up to {format_bytes(own.peak.high_bytes)}")
        suggestions: list[Suggestion] = []
        left_out: dict[str, str] = {}
        asked: list[tuple[str, Callable[[], list[Suggestion]]]] = [
            *((kind, partial(_plans, own, kind, time_limit_s, cache, cache_dir, suggestions)) for kind in _VERBS),
            ("batch size", lambda: _other_batch(own, target, feeds)),
        ]
        if is_keras_model(traced.owner):
            asked += [("bfloat16", lambda: _bfloat16(own)), ("optimizer", lambda: _optimizers(own))]
        else:
            left_out["bfloat16, optimizer"] = "offered for Keras models only"
        for name, ask in asked:
            cheap = next((s for s in suggestions if s.fits and s.kind == "plan" and s.time - 1 <= _CHEAP), None)
            if cheap is not None and name in _NEEDLESS:
                extra = format_percent(cheap.time - 1)
                left_out[name] = f"not looked at, since a plan with the same results fits for {extra} more time"
                continue
            try:
                answers = ask()
            except GraphwrightError as error:
                left_out[name] = first_line(error)
                note(f"{name}: {left_out[name]}")
                continue
            for suggestion in answers:
                note(f"{suggestion.what}: {format_bytes(suggestion.peak_bytes)}{', which fits' if suggestion.fits else ''}")
                if own.is_worth(suggestion):
                    suggestions.append(suggestion)
                else:
                    left_out[suggestion.kind] = f"{suggestion.what}: {format_bytes(suggestion.peak_bytes)}, about as much as it is now"
        tell("looking for likely mistakes", 1.0)
        mistakes = lint(traced, before.flat)
    peak, how = own.peak, {"peak": f"{own.peak.how}; {BY_UPPER_END}", **_HOW}
    suggested = ranked(suggestions)
    return Advice(traced.name, traced.feeds, own.memory_bytes, peak.nbytes, suggested, mistakes, left_out, how, peak.high_bytes)


@dataclass(frozen=True)
class _Own:
    traced: TracedStep
    before: Unplanned
    peak: PeakAt
    budget: Budget
    arguments: str
    outputs: Sequence[str]

    @property
    def device(self) -> str:
        return device_name(self.traced.device)

    @property
    def options(self) -> tuple[str, str]:
        """What is fetched and the device, as options of commands."""
        return f" --outputs {','.join(self.outputs)}" * bool(self.outputs), f" --device {self.device}" * (self.device != HERE)

    @property
    def memory_bytes(self) -> int:
        return self.budget.of(self.peak.nbytes)

    @property
    def batch(self) -> int:
        first = {shape[0] for shape in self.traced.shapes if shape}
        if len(first) != 1:
            raise ArgumentError("the inputs have no first dimension in common, so which one is the batch is not known")
        return first.pop()

    def time_of(self, tasks: TaskMap, batch: int | None = None) -> float:
        """Return the time of one example in another step, as a share of its time in this one; nan if that is too little."""
        own = _seconds(self.before.tasks)
        if not own:
            return math.nan
        ratio = _seconds(tasks) / own
        return ratio if batch is None else ratio * self.batch / batch

    def is_worth(self, suggestion: Suggestion) -> bool:
        """Whether a suggestion fits when the step itself does not, takes less than it, or is another batch that fits."""
        helps = suggestion.fits and (suggestion.kind == "batch" or self.peak.high_bytes > self.memory_bytes)
        return helps or suggestion.peak_bytes < (1 - _WORTH) * self.peak.high_bytes


def _seconds(tasks: TaskMap) -> float:
    return sum(task.time for task in tasks.costs.tasks)


def _own_peak(traced: TracedStep, before: Unplanned) -> PeakAt:
    prediction, how = (xla_peak(traced, threads=inter_op_threads()), "") if traced.is_compiled else before.executor
    if prediction is None:
        return PeakAt(before.peak_bytes, before.peak_bytes, before.tasks.costs.resident_bytes, how)
    return PeakAt(prediction.peak_bytes, prediction.high_bytes, prediction.resident_bytes, how or prediction.how["peak"])


def _arguments_text(traced: TracedStep, feeds: Mapping[str, Feed] | None, batch: int | None) -> str:
    """Return the options of a command for these input shapes; only the batch size if it implies the rest."""
    if batch is not None and feeds is None:
        return f" --batch {batch}"
    if feeds is None and is_keras_model(traced.owner):
        first = traced.shapes[0][0]
        with suppress(GraphwrightError):
            specs = import_tensorflow().nest.flatten(keras_specs(traced.owner, "train", {}, first))
            if [(spec.name, tuple(spec.shape)) for spec in specs] == list(traced.feeds.items()):
                return f" --batch {first}"
    return _feeds_text(traced)


def _feeds_text(traced: TracedStep, batch: int | None = None) -> str:
    """Return the shapes as feeds, with the word batch for a first dimension of this size."""
    dtypes = [tensor.dtype.name for tensor in traced.function.inputs]
    shapes = [("batch", *s[1:]) if batch is not None and s[:1] == (batch,) else s for s in traced.shapes]
    listed = zip(traced.names, shapes, dtypes, strict=False)
    return "".join(f" --feed {n}={','.join(map(str, s))}{'' if d == 'float32' else f':{d}'}" for n, s, d in listed)


def _plans(
    own: _Own, kind: SuggestionKind, time_limit_s: float, cache: PlanCache | None, cache_dir: Any, earlier: Sequence[Suggestion]
) -> list[Suggestion]:
    """Return the plan of a kind that keeps the memory, unless an earlier one takes no more time."""
    verbs, results = _VERBS[kind]
    tell(f"planning: {kind}")
    request = Request(own.budget, time_limit_s=time_limit_s, cache=cache, allow=frozenset(verbs), prove=False)
    compiled = own.traced.is_compiled
    plan = (plan_xla_step(own.traced, request) if compiled else plan_step(own.traced, request, before=own.before)).plan
    if 1 + plan.overhead > min((s.time for s in earlier), default=math.inf) - _WORTH:
        return []

    def make() -> tuple[Any, Any]:
        inputs = example_inputs(own.traced)
        options: dict[str, Any] = {"allow": tuple(verbs), "time_limit_s": time_limit_s, "cache_dir": cache_dir, "device": own.device}
        return optimize_memory(own.traced.function, own.budget.given, inputs=inputs, **options), inputs

    subject = "model" if is_keras_model(own.traced.owner) else "step"
    allow, option = (', allow="all"', " --allow all") if "split" in verbs else ("", "")
    fetched, device = own.options
    what = f"run it with a plan: {plan.rewritten}" if plan.rewritten else "run it with a plan that fixes the order"
    what += f", and recomputes {100 * plan.recomputed_flops:.2g} % of the FLOPs" * bool(plan.recomputed_count)
    allow += f', device="{own.device}"' * bool(device)
    call = f"gw.optimize_memory({subject}, {json.dumps(own.budget.given)}{f', outputs={own.outputs}' * bool(fetched)}{allow})"
    command = f"graphwright optimize TARGET{fetched}{own.arguments} --budget {own.budget.given}{option}{device}"
    fits = plan.peak_bytes <= own.memory_bytes
    return [Suggestion(kind, what, plan.peak_bytes, 1 + plan.overhead, fits, results, call, command, make)]


def _other_batch(own: _Own, target: Any, feeds: Mapping[str, Feed] | None) -> list[Suggestion]:
    tell("looking for the largest batch")
    keras = is_keras_model(own.traced.owner)
    sized = SizedStep(own.traced.owner if keras else target, feeds or _feeds_of(own.traced), "auto", device=own.device)
    step = own.before.tasks
    variable_bytes = sum(nbytes for value, nbytes in step.resident.items() if value in step.graph.variables)
    highs = {0: variable_bytes, own.batch: own.peak.high_bytes}

    def high_at(size: int) -> int:
        if size not in highs:
            highs[size] = sized.peak(size, "executor").high_bytes
        return highs[size]

    if variable_bytes <= own.memory_bytes:
        size_near_budget(high_at, own.batch, own.memory_bytes, base_bytes=variable_bytes, tries=_SIZES, enough=_NEAR)
    size = max((size for size, high in highs.items() if high <= own.memory_bytes), default=0)
    if size in (0, own.batch):
        raise UnsupportedError(f"no {'other ' if size else ''}batch size fits")
    time = own.time_of(sized.tasks(size), size)
    trains, words = bool(find_roles(own.before.tasks).backward), "results are the same: examples are computed apart"
    if trains:
        words = "a smaller batch trains differently: retune the learning rate" if size < own.batch else "a larger batch trains differently"
    call = f"model.{'fit' if trains else 'predict'}(..., batch_size={size})" if keras else f"a batch of {size} in the data"
    fetched, device = own.options
    shapes = "" if own.arguments.startswith(" --batch") else _feeds_text(own.traced, own.batch)
    memory = own.memory_bytes if own.budget.is_share else own.budget.given
    command = f"graphwright max-batch TARGET{fetched}{shapes} --budget {memory}{device}"
    what = f"a batch of {size} instead of {own.batch}"
    return [Suggestion("batch", what, highs[size], time, True, words, call, command, _as_traced(sized.traced(size)))]


def _feeds_of(traced: TracedStep) -> Mapping[str, Feed]:
    tf = import_tensorflow()
    tensors = zip(traced.names, traced.shapes, traced.function.inputs, strict=False)
    return {name: tf.TensorSpec(shape, tensor.dtype) for name, shape, tensor in tensors}


def _as_traced(traced: TracedStep) -> Callable[[], tuple[Any, Any]]:
    return lambda: (traced.function, example_inputs(traced))


def _bfloat16(own: _Own) -> list[Suggestion]:
    changed, what = mixed_precision(own.traced.owner), "compute in bfloat16, with variables in float32"
    results = "how long it takes depends on the processor's kernels for bfloat16; activations are rounded to 8 significant bits"
    return [_variant(own, changed, "bfloat16", what, results, f'keras.config.set_dtype_policy("{BFLOAT16}")  # before the model is made')]


def _optimizers(own: _Own) -> list[Suggestion]:
    roles, tasks, model = find_roles(own.before.tasks), own.before.tasks, own.traced.owner
    state_bytes = sum(nbytes for value, nbytes in tasks.resident.items() if roles.resident[value] == "optimizer state")
    if state_bytes < _WORTH * own.peak.nbytes:
        raise UnsupportedError(f"the optimizer keeps {format_bytes(state_bytes)}, which is a small part of the peak")
    suggestions: list[Suggestion] = []
    for text, optimizer in leaner_optimizers(model):
        changed, what = other_optimizer(model, optimizer), f"train with {text} instead of {type(model.optimizer).__name__}"
        results, call = "it trains differently: retune the learning rate", f"model.compile(keras.optimizers.{text}, loss=...)"
        suggestions.append(_variant(own, changed, "optimizer", what, results, call, optimizer))
    return suggestions


def _variant(own: _Own, changed: Any, kind: SuggestionKind, what: str, results: str, call: str, *held: Any) -> Suggestion:
    """Suggest the step of a changed model, which is restored. `held` are objects that only the changed step needs."""
    tell(what)
    with changed:
        traced = trace(own.traced.owner, feeds=_feeds_of(own.traced), device=own.device)
        traced = replace(traced, owner=(traced.owner, *held))
    before = unplanned(traced)
    high_bytes = _own_peak(traced, before).high_bytes
    time = math.nan if kind == "bfloat16" else own.time_of(before.tasks)
    return Suggestion(kind, what, high_bytes, time, high_bytes <= own.memory_bytes, results, call, make=_as_traced(traced))
