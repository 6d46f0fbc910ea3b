"""Minimum cuts of schedules that minimum cuts have made, until nothing is above the budget.

A minimum cut is exact for the peak of its schedule, but ignores the memory of recomputed values: in a residual network early blocks, remade
at once, wait for their gradients together. So the next cut starts from that schedule, at its peak, where recomputed versions may be dropped
again (a chain gets the levels of Griewank & Walther 2000). Each level takes the cut with the least time per halving of the overflow;
repeats that no longer serve are taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.draft import Draft
from graphwright.plan.solvers.improve import fill
from graphwright.plan.solvers.minimum_cut import minimum_cuts
from graphwright.plan.solvers.problem import Problem

LEVELS = 24
OFFERS = 32  # schedules of one level that are looked at
FREE = 1e-4  # share of the whole time below which one is as cheap as another


class NestedCuts:
    """One sequence of nested cuts."""

    def __init__(self, problem: Problem, cuts: Sequence[list[int]], budget: int) -> None:
        self.draft = Draft(problem, problem.graph.order, budget)
        self._problem, self._cuts, self._levels = problem, cuts, 0

    @property
    def is_at_its_end(self) -> bool:
        return self._levels == LEVELS or self.draft.overflow() == 0

    def go_on(self, deadline: float) -> None:
        draft = self.draft
        if self._levels:
            self._cuts = minimum_cuts(self._problem, draft.steps(), draft.budget, deadline)
        steps = _cheapest_way(draft, self._cuts)
        self._levels = LEVELS if steps is None else self._levels + 1
        if steps is not None:
            draft.load(steps)
            fill(draft, deadline)


def nested_cuts(problem: Problem, firsts: Iterable[Sequence[list[int]]], budget: int, deadline: float) -> list[list[int]]:
    """Return schedules of several such sequences, nearest to the budget first; the cheapest so far is continued."""
    ways = [NestedCuts(problem, cuts, budget) for cuts in firsts]
    while not problem.stop(deadline):
        cheapest = min(ways, key=lambda way: way.draft.time if not way.is_at_its_end else math.inf, default=None)
        least_time = min((way.draft.time for way in ways if way.draft.overflow() == 0), default=math.inf)
        if cheapest is None or cheapest.is_at_its_end or cheapest.draft.time >= least_time:
            break
        cheapest.go_on(deadline)
    ways.sort(key=lambda way: (way.draft.overflow(), way.draft.time))
    return [way.draft.steps() for way in ways]


def _cheapest_way(start: Draft, offers: Sequence[list[int]]) -> list[int] | None:
    """Return the offer with the least time per halving of the overflow, if any lowers it."""
    problem, overflow = start.problem, start.overflow()
    least, cheapest = math.inf, None
    for steps in offers[:OFFERS]:
        step_bytes = np.array(simulate_unchecked(problem.graph, steps), dtype=np.int64)
        left = int((step_bytes - start.budget).clip(min=0).sum())
        if left < overflow:
            slower = max(sum(problem.time[task] for task in steps) - start.time, 0.0)
            price = (slower + FREE * problem.base_time) / math.log((overflow + 1) / (left + 1))
            least, cheapest = min((least, cheapest), (price, steps), key=lambda pair: pair[0])
    return cheapest
