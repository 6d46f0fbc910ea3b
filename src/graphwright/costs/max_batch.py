"""`max_batch`: the largest batch that fits a budget, predicted at a few sizes, and confirmed by measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from graphwright.analyze.device_models import HERE, find_device
from graphwright.costs.peak import check_order
from graphwright.costs.sized_step import Feeds, SizedStep, at_size
from graphwright.errors import ArgumentError, ErrorCode, MeasurementError
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.memory.planning import HOW_PEAK_TRACED
from graphwright.plan.budget import Budget
from graphwright.report.batch_results import MaxBatch, MeasuredBatch
from graphwright.report.obtained import Obtained
from graphwright.report.peak_prediction import Order
from graphwright.run.measure import measure as measure_step
from graphwright.step.example_inputs import runnable
from graphwright.step.targets import Mode, about_a_step

_LAST, _LAST_TRACED = 512, 64  # where the search starts; the smaller size where each size is traced
_TRIES = 12


@garbage_collection_paused()
@about_a_step
def max_batch(
    target: Any,
    budget: int | str,
    feeds: Feeds = None,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    *,
    mode: Mode = "auto",
    measure: bool = False,
    order: Order = "executor",
    device: str = HERE,
) -> MaxBatch:
    """The largest batch whose peak memory fits a budget.

    The peak is predicted at a few sizes, each nearer to the budget; the answer is checked at that batch and the next one.

    Args:
        budget: bytes, or text such as "8GiB".
        feeds: shape (or `tf.TensorSpec`) by argument name, None where the batch size goes; without a None, it takes the place of all
            first dimensions. Or a function from the batch size to feeds. Not needed where the target says what is open.
        measure: whether to run the step on made-up inputs, each batch size in a fresh process, to confirm that this batch fits
            and that one more does not. Where it is otherwise, further sizes are measured and the answer is corrected.
        order: the order of execution that the prediction is for: "executor", that of TensorFlow's executor, which is simulated at the sizes
            around the answer; or "traced", the one in which the step was traced, which takes less time.
            A step that XLA compiles has an order of its own, whatever is given: it is compiled at the sizes around the answer.

    Returns:
        A `MaxBatch`, which prints itself.

    Raises:
        ArgumentError: a budget that is a share (of which peak?), no dimension of the inputs is open, or the feeds do not fit.
        UnknownShapeError: a dimension other than the batch size is not known.
        MeasurementError: a measurement failed for another reason than memory.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda x: tf.reduce_sum(tf.exp(tf.sin(x)) * tf.cos(x)))
    >>> max_batch(step, "100MiB", {"x": (None, 1024, 256)}, order="traced").batch
    33
    """
    check_order(order)
    if measure and find_device(device) is not None:
        raise ArgumentError(f"device={device!r} was given beside measure", argument="device", remedy="measure where that device is")
    budget_bytes = Budget.read(budget).nbytes
    sized = SizedStep(target, feeds, mode, inputs=inputs, outputs=outputs, runs=measure, device=device)
    shapes = sized.open_feeds()
    start = _start(sized, budget_bytes)
    how = {"predicted peak": HOW_PEAK_TRACED, "shapes": sized.how}
    if start is None:
        peak = sized.peak_bytes(1)
        return MaxBatch(sized.name, shapes, budget_bytes, None, None, peak, peak, "traced", {1: peak}, (), how)
    predicted = largest(lambda size: sized.peak_bytes(size) <= budget_bytes, start)

    predict = cache(sized.own_peak)

    def peak_at(size: int) -> int:
        prediction = None if order == "traced" else predict(size).found
        return sized.peak_bytes(size) if prediction is None else prediction.peak_bytes

    if sized.is_compiled:
        order = "xla"
    if order != "traced":
        size = max(predicted, 1)
        base = sized.tasks(size).costs.resident_bytes  # about what a batch of no examples takes
        start = size_near_budget(lambda size: peak_at(size) if size else base, size, budget_bytes, before=0)
        predicted = largest(lambda size: peak_at(size) <= budget_bytes, start)
        prediction, reason = predict(predicted + 1)
        how["predicted peak"] = prediction.how["peak"] if prediction else f"{HOW_PEAK_TRACED}; TensorFlow's own order is {reason}"
    measured: dict[int, Obtained[MeasuredBatch]] = {}
    batch = predicted
    if measure:

        def fits(size: int) -> bool:
            measured[size] = _measure(sized, size, budget_bytes)
            return measured[size].found.fits

        batch = largest(fits, predicted)
    how["shapes"] = sized.how
    if measured_how := [found.how for found in measured.values() if found.how]:
        how["measured peak"] = measured_how[-1]
    return MaxBatch(
        name=sized.name,
        feeds=shapes,
        budget_bytes=budget_bytes,
        batch=batch,
        predicted_batch=predicted,
        peak_bytes=peak_at(batch) if batch else 0,
        next_peak_bytes=peak_at(batch + 1),
        order=order,
        predicted={size: peak_at(size) for size in sorted({*measured, batch, batch + 1} - {0})},
        measured=tuple(measured[size].found for size in sorted(measured)),
        how=how,
    )


def largest(fits: Callable[[int], bool], start: int) -> int:
    """The largest size that fits, near `start`: each size is asked for once, and the answer's and the next one always are.

    Args:
        fits: whether a size from 1 on fits; what fits does so for all smaller sizes.

    >>> asked = []
    >>> largest(lambda size: asked.append(size) or size <= 7, 5), asked
    (7, [5, 6, 8, 7])
    """
    low, high = 0, None  # 0 fits; nothing is known to be too large
    size, step = max(start, 1), 1
    while high is None or high - low > 1:
        if fits(size):
            low = size
        else:
            high = size
        if high is None:
            size, step = low + step, 2 * step
        elif low == 0 and high - step >= 1:
            size, step = high - step, 2 * step
        else:
            size = (low + high) // 2
    return low


def _start(sized: SizedStep, budget_bytes: int) -> int | None:
    """A size near the largest that fits in the traced order; None where every size fits."""
    last = _LAST if sized.is_bound(_LAST_TRACED) and sized.is_bound(_LAST) else _LAST_TRACED
    peak = sized.peak_bytes(last)
    grows = sized.peak_bytes(last // 2) < peak or peak > budget_bytes
    start = size_near_budget(sized.peak_bytes, last, budget_bytes, before=last // 2) if grows else None
    return start if sized.is_confirmed(last if start is None else start + 1) else _start(sized, budget_bytes)


def size_near_budget(
    peak_at: Callable[[int], int], size: int, budget_bytes: int, *, before: int, tries: int = _TRIES, enough: float = 1.0
) -> int:
    """A size near the largest that fits: each next size is where the line through the last two peaks meets the budget.

    Args:
        peak_at: the peak at a size; it is asked again and again for the same sizes.
        size, before: the sizes for the first line, the larger one first.
        tries: the largest number of lines.
        enough: the share of the budget from which on a peak is near enough.

    >>> size_near_budget(lambda size: max(100 + size, 40 + 5 * size), 512, 139, before=256)
    19
    """
    fitting, too_large = 0, 1 << 62
    for _ in range(tries):
        for known in (before, size):
            if peak_at(known) <= budget_bytes:
                fitting = max(fitting, known)
            else:
                too_large = min(too_large, known)
        growth = (peak_at(size) - peak_at(before)) / (size - before)
        if growth <= 0 or enough * budget_bytes <= peak_at(size) <= budget_bytes:
            break
        nearer = max(int(size + (budget_bytes - peak_at(size)) / growth), 1)
        before, size = size, min(max(nearer, fitting), too_large)
        if size in (fitting, too_large):
            break
    return size


def _measure(sized: SizedStep, size: int, budget_bytes: int) -> Obtained[MeasuredBatch]:
    """The peak of one batch size; a process that is killed for memory does not fit."""
    traced = sized.traced(size)
    try:
        with at_size(size):
            found = measure_step(runnable(traced), None, time=False)
    except MeasurementError as error:
        if error.code is not ErrorCode.OUT_OF_MEMORY:
            raise
        return Obtained(MeasuredBatch(size, None, False), "")
    how = found.how if sized.is_compiled else f"{found.how}; the order of operations is the executor's own"
    return Obtained(MeasuredBatch(size, found.peak_bytes, found.peak_bytes <= budget_bytes), how)
