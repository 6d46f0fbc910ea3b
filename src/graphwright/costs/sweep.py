"""`sweep`: the peak of a step against its batch size, as it is and with memory-saving plans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from graphwright.analyze.device_models import HERE
from graphwright.costs.peak import check_order
from graphwright.costs.sized_step import Feeds, SizedStep
from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.memory.planning import HOW_PEAK, HOW_PEAK_TRACED, map_tasks, solve_with_room
from graphwright.plan.budget import Budget
from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import lower_bound
from graphwright.report.peak_prediction import Order
from graphwright.report.sweep import SweepPoint, SweepResult
from graphwright.report.units import format_percent
from graphwright.step.executor_peak import HOW_EXECUTOR
from graphwright.step.targets import Mode, about_a_step

_TRACED_EACH = 4  # so few sizes are traced: formulas of the shapes take as many traces


@about_a_step
def sweep(
    target: Any,
    feeds: Feeds = None,
    batches: Iterable[int] = (1, 2, 4, 8, 16, 32),
    budget: int | float | str | None = None,
    *,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    mode: Mode = "auto",
    optimized: int | float | str | None = None,
    time_limit_s: float = 10.0,
    order: Order = "executor",
    device: str = HERE,
) -> SweepResult:
    """The predicted peak of a step at several batch sizes, and the largest of them that fits a budget.

    The step is traced at each size. In the traced order, shapes of more than a few sizes follow from formulas, which are checked.
    `max_batch` gives the largest batch of all without listing sizes.

    Args:
        feeds: a function from the batch size to feeds; or feeds in which None stands for the batch size; or feeds whose first
            dimensions are replaced by it. Not needed for a Keras model.
        batches: batch sizes to look at.
        budget: bytes or text such as "8GiB".
        optimized: a budget of memory-saving plans, one for each size: bytes, text, or a share of that size's own peak.
            The peaks with these plans are in `others`.
        time_limit_s: seconds to look for each plan.
        order: "executor" for peaks as TensorFlow runs the step, "traced" for the order in which it was traced, which takes less time.

    Raises:
        ArgumentError: no batch size, or a budget that is a share (there is no one peak that it could be a share of).
        GraphwrightError: the step cannot be traced at a size, which the message names.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda x: tf.reduce_sum(tf.nn.relu(x)))
    >>> sweep(step, {"x": (1, 1024, 64)}, batches=(1, 2, 4), budget="1.5MiB", order="traced").largest_batch
    2
    """
    check_order(order)
    sizes = sorted(set(batches)) if isinstance(cast("object", batches), Iterable) else []
    if not sizes or sizes[0] < 1:
        raise ArgumentError(f"batches={batches!r} was given", argument="batches", remedy="give several whole numbers from 1 on: (1, 2, 4)")
    budget_bytes = 0 if budget is None else Budget.read(budget).nbytes
    goal = None if optimized is None else Budget.read(optimized, "optimized")
    sized = SizedStep(target, feeds, mode, inputs=inputs, outputs=outputs, device=device)
    if sized.is_compiled:
        if goal is not None:
            raise UnsupportedError(
                "the step is compiled by XLA, which would have to compile several plans for each size",
                argument="optimized",
                remedy="leave it out, and call optimize_memory for the size that matters",
            )
        # For a size compiled by XLA, what stays is the only bound.
        found = [(size, sized.own_peak(size)) for size in sizes]
        peaks = [(size, peak) for size, (peak, _) in found if peak is not None]
        points = [SweepPoint(n, p.peak_bytes, p.resident_bytes, p.resident_bytes, 0 < budget_bytes >= p.peak_bytes) for n, p in peaks]
        return _result(points, budget_bytes, found[0][1].how, sized.name)
    is_bound = len(sizes) > _TRACED_EACH and order == "traced"
    if is_bound:
        sized.open_feeds()
        sized.is_confirmed(sizes[-1])
    elif len(sizes) > 1 and sized.traced(sizes[0]).shapes == sized.traced(sizes[-1]).shapes:
        sized.open_feeds()  # which says that none is open
    points: list[SweepPoint] = []
    planned: list[SweepPoint] = []
    unknown: dict[int, str] = {}
    for size in sizes:
        tasks = sized.tasks(size) if is_bound else map_tasks(sized.flattened(size))
        costs = tasks.costs
        peak = simulate(costs, Schedule(costs.order)).peak_bytes
        if order == "executor":
            prediction, reason = sized.own_peak(size)
            peak = peak if prediction is None else prediction.peak_bytes
            if prediction is None:
                unknown[size] = reason
        points.append(_point(size, costs, peak, budget_bytes))
        if goal is not None:
            solution = solve_with_room(costs, len(tasks.graph), goal.of(peak), time_limit_s, None)
            planned.append(_point(size, costs, solution.peak_bytes, budget_bytes))
    how = f"{HOW_PEAK_TRACED}; {sized.how}" if is_bound else HOW_EXECUTOR if order == "executor" else HOW_PEAK_TRACED
    if unknown:
        how += (
            f"; at batch size {', '.join(map(str, unknown))}, {HOW_PEAK_TRACED}: TensorFlow's own order is {next(iter(unknown.values()))}"
        )
    result = _result(points, budget_bytes, how if is_bound else how + sized.of_examples, sized.name)
    if optimized is None:
        return result
    words = format_percent(optimized) if isinstance(optimized, float) else str(optimized)
    how = f"{HOW_PEAK}; with a plan for {words} each, or as little as was found"
    return result.beside(**{f"planned for {words}": _result(planned, budget_bytes, how, sized.name)})


def _point(size: int, costs: CostGraph, peak: int, budget_bytes: int) -> SweepPoint:
    return SweepPoint(size, peak, costs.resident_bytes, lower_bound(costs).nbytes, 0 < budget_bytes >= peak)


def _result(points: list[SweepPoint], budget_bytes: int, how: str, name: str) -> SweepResult:
    return SweepResult(tuple(points), budget_bytes, max((p.batch for p in points if p.fits), default=None), how, name)
