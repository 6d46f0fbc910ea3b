"""The descent to a small peak, each plan made from the one before.

A plan for a slightly larger budget is a better start than an order. If a step down fails, the plan is made cheaper in its present memory
(`improve`), which leaves time for the next step.
"""

import random
from collections.abc import Iterator

from graphwright.plan.solvers.draft import Draft
from graphwright.plan.solvers.improve import fill, ruin_and_recreate
from graphwright.plan.solvers.intervals import reduce_overflow

STRIDE, STRIDE_LEAST = 0.12, 0.004  # of what is not resident
FAILURES = 5
STEP = 60_000  # units of work for one step down
IMPROVING, IMPROVING_TASK = 60_000, 300  # the same at most after a failure, and for each task


def descend(start: Draft, low: int, *, max_time: float, until: float, improving_until: float, seed: int) -> Iterator[Draft]:
    """Yield plans with ever smaller peaks that take at most `max_time`, the start first.

    Args:
        low: lower bound on the peak.
        until: value of `now()` at which to stop.
        improving_until: value of `now()` from which no plan is made cheaper.
    """
    problem, source = start.problem, random.Random(seed)
    floor = problem.graph.resident_bytes
    best, stride, failures = start, STRIDE, 0
    yield best
    while failures < FAILURES and stride > STRIDE_LEAST and best.peak > low and not problem.stop(until):
        plan = best.copy()
        plan.budget = max(low, floor + int((best.peak - floor) * (1 - stride)))
        noise = [source.lognormvariate(0.0, 0.4) for _ in range(problem.buffer_count)] if failures else None
        with problem.limited(STEP):
            fits = reduce_overflow(plan, until, noise=noise, time_cap=max_time)
        if fits:
            fill(plan, until)
        if plan.time <= max_time and plan.peak < best.peak:
            best, failures = plan, 0
            yield best
            continue
        failures += 1
        stride /= 2
        best.budget = best.peak
        with problem.limited(min(IMPROVING, IMPROVING_TASK * problem.task_count)):
            best = ruin_and_recreate(best, improving_until, seed=seed + failures)
