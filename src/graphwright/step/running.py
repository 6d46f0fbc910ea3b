"""`measure`, `measure_many` and `verify` for all targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from graphwright.analyze.measurement import Measurement
from graphwright.errors import ArgumentError
from graphwright.report.progress import tell
from graphwright.run import measure as measuring
from graphwright.run import verify as verifying
from graphwright.run.measure import Timing
from graphwright.run.traced_step import TracedStep, first_batch, resolve
from graphwright.run.verify import Verification
from graphwright.step.example_inputs import MADE_UP, example_inputs, runnable
from graphwright.step.feeds import Feed, ask_each
from graphwright.step.keras_step import is_keras_model, mode_of
from graphwright.step.targets import Mode, about_a_step, read_target, trace


@about_a_step
def measure(
    target: Any,
    inputs: Any = None,
    feeds: Mapping[str, Feed] | None = None,
    *,
    mode: Mode = "auto",
    batch: int | None = None,
    steps: int = 3,
    warmup: int = 1,
    time: bool = True,
    inter_op_threads: int | None = None,
    grappler: bool = True,
    executor: str = "",
    timeout_s: float | None = None,
    graphs: list[bytes] | None = None,
) -> Measurement:
    """Peak memory and time of a step, in processes of their own, on the inputs or on made-up ones.

    What `optimize_memory` gave, a step or a model, is measured as it is optimized. A file must be trusted (`trust`).

    Args:
        steps: how many steps are measured; the median counts.
        warmup: how many steps run before, to fill caches.
        time: whether time is measured too, in a second process.
        inter_op_threads: how many nodes may run at once; `None` for the setting of this process. The peak of a step
            whose order is left to the executor depends on it.
        grappler: whether Grappler rewrites the graph, as it does by default in TensorFlow. Off also where the owner of
            the step runs it without.
        executor: name of TensorFlow's executor; only without Grappler.
        timeout_s: give up after this many seconds.
        graphs: is filled with TensorFlow's records of the graphs that ran in the process that the peak comes from (see
            `graphwright.run.executed_graph`): their order differs a little from process to process, and the peak with it.

    Returns:
        The measurement; `how` says under which conditions.

    Raises:
        MeasurementError: the process died (killed for memory, for one), or its figures cannot be trusted.
        UnsupportedError: the step cannot be taken to another process.
        ArgumentError, UnknownShapeError, FileFormatError: the target cannot be traced or read, or inputs do not fit it.
    """
    measuring.check_counts(steps, warmup)
    step, made_up = _step(target, inputs, feeds, mode, batch, planned=True)
    tell("measuring the step in processes of its own")
    measurement = measuring.measure(
        step,
        None,
        steps=steps,
        warmup=warmup,
        time=time,
        inter_op_threads=inter_op_threads,
        grappler=grappler,
        executor=executor,
        timeout_s=timeout_s,
        graphs=graphs,
    )
    return replace(measurement, how=f"{measurement.how}; inputs {MADE_UP}") if made_up else measurement


def measure_many(
    functions: Mapping[str, Any],
    inputs: Any = None,
    feeds: Mapping[str, Feed] | None = None,
    *,
    mode: Mode = "auto",
    batch: int | None = None,
    steps: int = 5,
    warmup: int = 1,
    inter_op_threads: int | None = None,
    grappler: bool = True,
    timeout_s: float | None = None,
) -> dict[str, Timing]:
    """Times of several steps side by side: one process, in which they take turns (A B C A B C ...).

    Machines are noisy, so ratios are formed within a round; compare times of different calls only when you must. Steps
    that capture the same variables share them there too.

    Args:
        functions: targets by name; see `measure`. The first is what the others are compared with.
        inputs: the same for all, as are feeds, mode and batch; see `measure`.
        feeds: values of placeholders.
        mode: of Keras models.
        batch: the size of unknown dimensions of the inputs.
        steps: how many rounds.
        warmup: how many steps of each run before.
        inter_op_threads: how many nodes may run at once; `None` for the setting of this process.
        grappler: whether Grappler rewrites the graphs; off also where the owner of a step runs it without.
        timeout_s: give up after this many seconds.

    Raises:
        MeasurementError, UnsupportedError, ArgumentError, UnknownShapeError, FileFormatError: see `measure`.
    """
    next_inputs = _for_each(inputs)
    ready = {name: _step(function, next_inputs(), feeds, mode, batch, planned=True) for name, function in functions.items()}
    options: dict[str, Any] = {"inter_op_threads": inter_op_threads, "grappler": grappler, "timeout_s": timeout_s}
    timings = measuring.measure_many({name: step for name, (step, _) in ready.items()}, None, steps=steps, warmup=warmup, **options)
    return {name: replace(one, how=f"{one.how}; inputs {MADE_UP}") if ready[name][1] else one for name, one in timings.items()}


def verify(
    original: Any,
    rewritten: Any,
    inputs: Any = None,
    feeds: Mapping[str, Feed] | None = None,
    *,
    mode: Mode = "auto",
    batch: int | None = None,
    steps: int = 1,
    rtol: float | None = None,
    atol: float | None = None,
    grappler: bool = False,
    other_sums: bool = False,
) -> Verification:
    """Run two steps from the same variables on the same inputs, compare all they leave, and put the variables back.

    Two files, or two Keras models, have variables of their own: each runs from its own values then, and compared are the outputs and what
    the steps change in variables that both have by name; roundings may differ, as of a model that was edited. That is how a model is held
    against what an edit made of it. Of a Keras model that `optimize_memory` changed, `original` is the step that Keras makes and
    `rewritten` the planned one: `verify(model, model, (x, y))`.

    Args:
        original: a target as `measure` takes it.
        rewritten: another one that should compute the same; a function must capture the same variables, by identity.
        inputs: the arguments of one call: a tuple of positional ones, a mapping of keyword ones, or one tensor; or a `tf.data.Dataset`, a
            generator, or a `PyDataset`, whose first batch they are. Without them they are made up.
        feeds: instead of inputs, shapes by argument name; of two files a feed may name an input that only one of them has.
        mode: of a Keras model, its training step ("train") or its inference ("infer"); "auto": the former where it is compiled.
        batch: batch size, where the inputs leave it open.
        steps: how many steps in a row both run on the inputs.
        rtol: relative tolerance. Without it and `atol`, bitwise equality is asked for where both run the same kernels
            (without Grappler, on the CPU, not compiled by XLA), and a tolerance by dtype elsewhere. When the original does not
            agree bit for bit with *itself*, or holds sums of three and more terms (`AddN`, whose kernel adds first what it may
            overwrite), the tolerance by dtype holds too, or else the measure of `other_sums`.
        atol: absolute tolerance.
        grappler: whether Grappler rewrites both graphs. Its fusions differ between the two, so results do too, slightly. Where the
            rewritten step was made of what Grappler makes of the original, it rewrites the original, and that alone, in any case.
        other_sums: whether the rewritten step may add in another order, as one in parts of its batch does. Then the roundings of the
            original are the measure: it also runs from variables that are moved by one rounding each, twice, and where results move by
            `d` then, they may differ by 16 `d` besides the tolerance by dtype; a variable, as a whole, by 5 % of its change, since a
            rounding decides on which side of a kink (ReLU, max pooling) an element falls, and so over what it adds to a gradient.

    Returns:
        What was found. Numbers count as equal when both are NaN, or the same infinity, at the same place.

    Raises:
        UnsupportedError: a step captures state that cannot be put back.
        ArgumentError, UnknownShapeError, FileFormatError: no step, inputs that do not fit, `steps` below 1, a variable without a value, or
            a file that is not trusted (`trust`).
        Exception: what a step raises; the variables are put back before.

    >>> import tensorflow as tf
    >>> total = tf.Variable(0.0)
    >>> once, twice = tf.function(lambda x: total.assign_add(x)), tf.function(lambda x: total.assign_add(2 * x))
    >>> print(verify(once, twice, tf.constant(1.0)).first_difference)
    output (step 1) differs by 1 (relative 0.5)
    >>> float(total)
    0.0
    """
    next_inputs = _for_each(inputs)
    first, second = (read_target(target, runs=True) for target in (original, rewritten))
    (left, made_up), (right, _) = ask_each(
        [
            lambda own: _step(first, next_inputs(), own, mode, batch, planned=False),
            lambda own: _step(second, next_inputs(), own, mode, batch, planned=True),
        ],
        feeds,
    )
    if made_up:
        right = _called_with(left, right)
    # What was read or made here, and a model, has variables of its own.
    owned = (read is not target or is_keras_model(read) for read, target in ((first, original), (second, rewritten)))
    apart = first is not second and any(owned)
    tell("running both steps")
    verification = verifying.verify(
        left, right, None, steps=steps, rtol=rtol, atol=atol, grappler=grappler, other_sums=other_sums, apart=apart
    )
    return replace(verification, how=f"{verification.how}, inputs {MADE_UP}") if made_up else verification


def _for_each(inputs: Any) -> Callable[[], Any]:
    """The inputs for one step after another: a generator gives its first batch once."""
    if not isinstance(inputs, Iterator):
        return lambda: inputs
    batch = first_batch(inputs)
    return lambda: iter((batch,))


def _step(
    target: Any, inputs: Any, feeds: Mapping[str, Feed] | None, mode: Mode, batch: int | None, *, planned: bool
) -> tuple[TracedStep, bool]:
    """A step with the tensors to call it with, and whether they are made up.

    Args:
        planned: whether of a model that `optimize_memory` changed the step is meant that it runs now.
    """
    target = read_target(target, runs=True)
    if hasattr(target, "original"):  # an optimized step: its functions are made when it is called
        if inputs is not None:
            return resolve(target, first_batch(inputs)), False
        return resolve(target, example_inputs(trace(target.original, feeds=feeds, batch=batch))), True
    traced = trace(target, feeds=feeds, inputs=inputs, mode=mode, batch=batch, runs=True)
    ready = runnable(traced)
    optimized = getattr(target, "optimized_step", None) if planned and is_keras_model(target) else None
    if optimized is not None and mode_of(target, mode) == "train":
        return resolve(optimized, example_inputs(ready)), ready is not traced
    return ready, ready is not traced


def _called_with(left: TracedStep, right: TracedStep) -> TracedStep:
    """The right step, called with the left one's tensors: by the names of the arguments, or where these are others in their order.

    Raises:
        ArgumentError: they do not fit.
    """
    named = dict(zip(left.names, left.arguments, strict=True))
    arguments = tuple(named[name] for name in right.names) if set(named) == set(right.names) else left.arguments
    wanted = [(argument.dtype, tuple(argument.shape)) for argument in right.arguments]
    if [(argument.dtype, tuple(argument.shape)) for argument in arguments] != wanted:
        raise ArgumentError(
            f"the steps take other inputs: {left.feeds} and {right.feeds}",
            argument="inputs",
            remedy="give targets with equal inputs, or batch= or feeds= with equal shapes; "
            "a compiled model stands for its training step unless mode is infer",
        )
    return replace(right, arguments=arguments)
