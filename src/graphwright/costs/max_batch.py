"""`max_batch`: the largest batch that fits a budget, predicted at a few sizes, and confirmed by measuring."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from graphwright.analyze.device_models import HERE, find_device
from graphwright.costs.peak import check_order
from graphwright.costs.sized_step import Feeds, SizedStep, at_size
from graphwright.errors import ArgumentError, ErrorCode, MeasurementError
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.plan.budget import Budget
from graphwright.report.batch_results import MaxBatch, MeasuredBatch
from graphwright.report.obtained import Obtained
from graphwright.report.peak_prediction import Order
from graphwright.run.measure import measure as measure_step
from graphwright.step.example_inputs import runnable
from graphwright.step.targets import Mode, about_a_step

_FIRST = 8  # where the search starts
_LARGE = 512  # a peak that has not grown up to this size is taken to grow no more
_TRIES = 12
_NO_LIMIT = 1 << 62
_LEAST_POWER = 0.25


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
    """Find the largest batch whose peak memory fits a budget.

    The peak is predicted at a few sizes, each nearer to the budget; the answer is checked at that batch and the next one. A batch fits if
    the upper end of the predicted range does, see `predict_peak`.

    Args:
        budget: bytes, or text such as "8GiB".
        feeds: shape (or `tf.TensorSpec`) by argument name, None for the batch size, else it replaces all first dimensions; or a function
            from the batch size to feeds. Not needed if the target says what is open.
        measure: whether to run the step on made-up inputs in fresh processes, to confirm or correct the answer.
        order: see `predict_peak`; "traced" is predicted faster.

    Raises:
        ArgumentError: the budget is a share, no dimension of the inputs is open, or the feeds do not fit.
        UnknownShapeError: a dimension other than the batch size is unknown.
        MeasurementError: a measurement failed for another reason than memory.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda x: tf.reduce_sum(tf.exp(tf.sin(x)) * tf.cos(x)))
    >>> max_batch(step, "100MiB", {"x": (None, 1024, 256)}, order="traced").batch
    33
    """
    check_order(order)
    if measure and find_device(device) is not None:
        raise ArgumentError(f"device={device!r} was given with measure", argument="device", remedy="measure on a machine with that device")
    budget_bytes = Budget.read(budget).nbytes
    sized = SizedStep(target, feeds, mode, inputs=inputs, outputs=outputs, runs=measure, device=device)
    highs: dict[int, int] = {}

    def high_at(size: int) -> int:
        highs[size] = sized.peak(size, order).high_bytes
        return highs[size]

    base_bytes = sized.peak(_FIRST, order).resident_bytes
    predicted = _largest_predicted(high_at, base_bytes, budget_bytes, highs)
    measured: dict[int, Obtained[MeasuredBatch]] = {}
    batch = predicted
    if measure and predicted is not None:

        def fits(size: int) -> bool:
            measured[size] = _measure(sized, size, budget_bytes)
            return measured[size].found.fits

        batch = largest(fits, predicted)
    shown = {1} if batch is None else {*measured, batch, batch + 1} - {0}
    shown_peaks = {size: sized.peak(size, order).nbytes for size in sorted(shown)}
    first_shown = min(shown)
    how = {"predicted peak": sized.peak(first_shown, order).how, "shapes": sized.how}
    if measured_how := [measurement.how for measurement in measured.values() if measurement.how]:
        how["measured peak"] = measured_how[-1]
    return MaxBatch(
        name=sized.first.name,
        feeds=sized.open_feeds,
        budget_bytes=budget_bytes,
        batch=batch,
        predicted_batch=predicted,
        peak_bytes=shown_peaks[batch or 1] if batch != 0 else 0,
        next_peak_bytes=shown_peaks[1 if batch is None else batch + 1],
        order="xla" if sized.first.is_compiled else order,
        predicted=shown_peaks,
        measured=tuple(measured[size].found for size in sorted(measured)),
        how=how,
        predicted_high={size: high_at(size) for size in shown_peaks},
    )


def _largest_predicted(peak_at: Callable[[int], int], base_bytes: int, budget_bytes: int, peaks: Mapping[int, int]) -> int | None:
    """Return the largest batch that fits; None if every batch does. `peak_at` adds to `peaks`."""
    start = size_near_budget(peak_at, _FIRST, budget_bytes, base_bytes=base_bytes)
    if max(peaks.values()) <= min(budget_bytes, peaks[_FIRST]):
        last = max(_LARGE, 2 * max(peaks))
        if peak_at(last) <= peaks[_FIRST]:
            return None
        start = size_near_budget(peak_at, last, budget_bytes, base_bytes=base_bytes)
    return largest(lambda size: peak_at(size) <= budget_bytes, start)


def largest(fits: Callable[[int], bool], start: int) -> int:
    """Return the largest size that fits, near `start`; the answer and the next size are always asked for, and no size twice.

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


def size_near_budget(
    peak_at: Callable[[int], int], size: int, budget_bytes: int, *, base_bytes: int, tries: int = _TRIES, enough: float = 1.0
) -> int:
    """Return a size near the largest that fits; 0 if none does.

    The part of a peak above `base_bytes`, the peak without examples, is modeled as a power of the size, fitted to the last two sizes. The
    share `enough` of the budget is near enough.

    >>> size_near_budget(lambda size: 40 + 5 * size, 512, 139, base_bytes=40)
    19
    """
    aim_bytes = (1 + enough) / 2 * budget_bytes  # a peak between both ends of what is near enough
    fitting, too_large = 0, _NO_LIMIT
    earlier: tuple[int, int] | None = None
    for _ in range(tries):
        peak_bytes = peak_at(size)
        added_bytes = peak_bytes - base_bytes
        if peak_bytes <= budget_bytes:
            fitting = max(fitting, size)
        else:
            too_large = min(too_large, size)
        if added_bytes <= 0 or enough * budget_bytes <= peak_bytes <= budget_bytes:
            break
        power = 1.0
        if earlier is not None:
            power = math.log(added_bytes / earlier[1]) / math.log(size / earlier[0])
            if power <= 0:
                break
        room = max(aim_bytes - base_bytes, 0) / added_bytes
        nearer = size * room ** (1 / max(power, _LEAST_POWER))
        earlier = size, added_bytes
        size = min(max(round(min(nearer, _NO_LIMIT)), fitting, 1), too_large - 1)
        if size == fitting:
            break
    return size


def _measure(sized: SizedStep, size: int, budget_bytes: int) -> Obtained[MeasuredBatch]:
    """Measure the peak of one batch size; a process that is killed for memory does not fit."""
    traced = sized.traced(size)
    try:
        with at_size(size):
            measurement = measure_step(runnable(traced), None, time=False)
    except MeasurementError as error:
        if error.code is not ErrorCode.OUT_OF_MEMORY:
            raise
        return Obtained(MeasuredBatch(size, None, False), "")
    how = measurement.how if traced.is_compiled else f"{measurement.how}; the order of operations is the executor's own"
    return Obtained(MeasuredBatch(size, measurement.peak_bytes, measurement.peak_bytes <= budget_bytes), how)
