"""The smallest peak for a given time: a descent in which every plan is made from the one before.

Where a budget says what memory there is and asks for the least time, here the time is given and the memory is asked for.
"""

from __future__ import annotations

import random
import time as clock
from collections.abc import Iterator, Sequence

from graphwright.plan.solvers.improve import fill, ruin_and_recreate
from graphwright.plan.solvers.intervals import reduce_overflow
from graphwright.plan.solvers.portfolio import Portfolio
from graphwright.plan.solvers.segments import segment_levels
from graphwright.plan.solvers.sequence import Sequence as Plan

STARTS = 3
STRIDE, STRIDE_LEAST = 0.12, 0.004  # of what is not resident
FAILURES = 5
IMPROVING_S = 0.6  # at most, after a failure, and ...
IMPROVING_TASK_S = 0.003  # ... for each task
WORK_STEP = 60_000  # units of work for one step down
WORK = 900_000  # for all of them


def smallest_within(portfolio: Portfolio, max_time: float, deadline: float) -> list[int]:
    """A schedule with a small peak whose time is at most `max_time`, in the portfolio's own numbering.

    The first way down is always finished, limited by work; the others start while there is time.
    """
    problem = portfolio.problem
    plain = Plan(problem, problem.graph.order, 0)
    starts = [plain, *(Plan(problem, steps, 0) for steps in _starts(portfolio, deadline))]
    starts = [plan for plan in starts if plan.time <= max_time]
    starts.sort(key=lambda plan: (plan.peak, plan.time))
    best = plain
    problem.work_limit = problem.work + WORK
    for place, start in enumerate(starts[:STARTS]):
        if place and (clock.perf_counter() > deadline or problem.stop(float("inf"))):
            break
        portfolio.say(0.2 + 0.8 * place / STARTS, "looking for the smallest peak in the time given")
        found = _fall(portfolio, start, max_time, deadline if place else float("inf"), place)
        best = min(best, found, key=lambda plan: (plan.peak, plan.time))
    problem.work_limit = 1 << 62
    best.budget = best.peak
    fill(best, max(deadline, clock.perf_counter() + 0.5))
    return best.steps()


def _starts(portfolio: Portfolio, deadline: float) -> Iterator[Sequence[int]]:
    for order in portfolio.orders[:2]:
        yield order
        for level in segment_levels(portfolio.problem, order, 0, deadline):
            yield from level
            break


def _fall(portfolio: Portfolio, start: Plan, max_time: float, deadline: float, seed: int) -> Plan:
    """Lower the budget little by little while the time allows."""
    problem = portfolio.problem
    source = random.Random(seed)
    floor = problem.graph.resident_bytes
    best, stride, failures = start, STRIDE, 0
    while failures < FAILURES and stride > STRIDE_LEAST and best.peak > portfolio.low and not problem.stop(deadline):
        plan = best.copy()
        plan.budget = max(portfolio.low, floor + int((best.peak - floor) * (1 - stride)))
        noise = [source.lognormvariate(0.0, 0.4) for _ in range(problem.buffer_count)] if failures else None
        limit, problem.work_limit = problem.work_limit, min(problem.work_limit, problem.work + WORK_STEP)
        fits = reduce_overflow(plan, deadline, noise=noise, time_cap=max_time)
        problem.work_limit = limit
        if fits and plan.time <= max_time and plan.peak < best.peak:
            fill(plan, deadline)
            best, failures = plan, 0
            continue
        failures += 1
        stride /= 2
        best.budget = best.peak
        patience = min(IMPROVING_S, IMPROVING_TASK_S * problem.task_count)
        best = ruin_and_recreate(best, min(deadline, clock.perf_counter() + patience), seed=seed + failures)
    return best
