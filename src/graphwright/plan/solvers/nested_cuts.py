"""Minimum cuts of schedules that minimum cuts have made, until nothing is above the budget.

A minimum cut is exact for the peak of the schedule that it is made from, and knows nothing of what it makes again: a residual network's
early blocks, made again at once, wait for their gradients together. So the next cut is made from that schedule, at its peak, where
versions made again may be dropped once more (a chain gets the levels of Griewank & Walther 2000 that way). Each level takes, of the
schedules that the cuts offer, the one with the least time for each halving of the overflow; repeats that served an earlier level and
serve no more are taken back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.draft import Draft
from graphwright.plan.solvers.improve import fill
from graphwright.plan.solvers.minimum_cut import minimum_cuts
from graphwright.plan.solvers.problem import Problem

LEVELS = 24
OFFERS = 32  # schedules of one level that are looked at
FREE = 1e-4  # share of the whole time below which one is as cheap as another


def nested_cuts(problem: Problem, cuts: Sequence[list[int]], budget: int, deadline: float) -> list[int]:
    """The last schedule on that way, from the cuts of the first level on; it may still be above the budget."""
    best = Draft(problem, problem.graph.order, budget)
    for _ in range(LEVELS):
        steps = _cheapest_way(best, cuts)
        if steps is None:
            break
        best.load(steps)
        fill(best, deadline)
        if best.overflow() == 0 or problem.stop(deadline):
            break
        cuts = minimum_cuts(problem, best.steps(), budget, deadline)
    return best.steps()


def _cheapest_way(start: Draft, offers: Sequence[list[int]]) -> list[int] | None:
    """The offer that takes the least time for each halving of the overflow, if any lowers it."""
    problem, overflow = start.problem, start.overflow()
    least, found = math.inf, None
    for steps in offers[:OFFERS]:
        step_bytes = np.array(simulate_unchecked(problem.graph, steps), dtype=np.int64)
        left = int((step_bytes - start.budget).clip(min=0).sum())
        if left < overflow:
            slower = max(sum(problem.time[task] for task in steps) - start.time, 0.0)
            price = (slower + FREE * problem.base_time) / math.log((overflow + 1) / (left + 1))
            least, found = min((least, found), (price, steps), key=lambda pair: pair[0])
    return found
