"""`sweep`: the peak of a step by batch size, as it is and with memory-saving plans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from graphwright.analyze.device_models import HERE
from graphwright.costs.peak import check_order
from graphwright.costs.sized_step import Feeds, SizedStep
from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.memory.planning import HOW_PEAK, solve_with_room
from graphwright.plan.budget import Budget
from graphwright.plan.solve import lower_bound
from graphwright.report.peak_prediction import Order
from graphwright.report.sweep import SweepPoint, SweepResult
from graphwright.report.units import format_percent
from graphwright.step.targets import Mode, about_a_step


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
    """Predict the peak of a step at several batch sizes, and the largest of them that fits a budget.

    A batch fits if the upper end of the predicted range does, see `predict_peak`.
    The step is traced at each size. `max_batch` finds the largest batch without a list of sizes.

    Args:
        feeds: a function from the batch size to feeds; or feeds with None for the batch size; or feeds whose first dimensions are replaced
            by it. Not needed for a Keras model.
        budget: bytes or text such as "8GiB".
        optimized: a budget of memory-saving plans for each size: bytes, text, or a share of that size's own peak. The peaks with these
            plans are in `others`.
        time_limit_s: seconds of the search for each plan.
        order: "executor" for peaks as TensorFlow runs the step; "traced" for the order in which it was traced, which is predicted faster.

    Raises:
        ArgumentError: no batch size, or a budget that is a share.
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
    if goal is not None and sized.traced(sizes[0]).is_compiled:
        raise UnsupportedError(
            "the step is compiled by XLA, which would have to compile several plans for each size",
            argument="optimized",
            remedy="leave it out, and call optimize_memory for the size that matters",
        )
    points: list[SweepPoint] = []
    planned: list[SweepPoint] = []
    how: dict[str, list[int]] = {}
    for size in sizes:
        peak = sized.peak(size, order)
        how.setdefault(peak.how, []).append(size)
        # The resident bytes are the only bound for a program of XLA.
        bound_bytes = peak.resident_bytes if sized.first.is_compiled else lower_bound(sized.tasks(size).costs).nbytes
        fits = 0 < budget_bytes >= peak.high_bytes
        points.append(SweepPoint(size, peak.nbytes, peak.resident_bytes, bound_bytes, fits, peak.high_bytes))
        if goal is not None:
            tasks = sized.tasks(size)
            solution = solve_with_room(tasks.costs, len(tasks.graph), goal.of(peak.nbytes), time_limit_s, None)
            fits = 0 < budget_bytes >= solution.peak_bytes
            planned.append(SweepPoint(size, solution.peak_bytes, peak.resident_bytes, bound_bytes, fits, solution.peak_bytes))
    words = [how_it_is if len(how) == 1 else f"at batch size {', '.join(map(str, at))}: {how_it_is}" for how_it_is, at in how.items()]
    result = _result(points, budget_bytes, "; ".join(words) + sized.of_examples, sized.first.name)
    if optimized is None:
        return result
    goal_text = format_percent(optimized) if isinstance(optimized, float) else str(optimized)
    how_planned = f"{HOW_PEAK}; with a plan for {goal_text} each, or as little as was found"
    return result.beside(**{f"planned for {goal_text}": _result(planned, budget_bytes, how_planned, sized.first.name)})


def _result(points: list[SweepPoint], budget_bytes: int, how: str, name: str) -> SweepResult:
    return SweepResult(tuple(points), budget_bytes, max((p.batch for p in points if p.fits), default=None), how, name)
