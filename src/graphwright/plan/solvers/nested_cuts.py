"""Minimum cuts of schedules that minimum cuts have made, until nothing is above the budget.

A minimum cut is exact for the peak of its schedule, but ignores the memory of recomputed values: in a residual network early blocks, remade
at once, wait for their gradients together. So the next cut starts from that schedule, at its peak, where recomputed versions may be dropped
again (a chain gets the levels of Griewank & Walther 2000). Each level takes the cut with the least time per halving of the overflow;
repeats that no longer serve are taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.draft import Draft
from graphwright.plan.solvers.improve import fill
from graphwright.plan.solvers.minimum_cut import minimum_cuts
from graphwright.plan.solvers.problem import Problem

LEVELS = 24
OFFERS = 32  # schedules of one level that are looked at
FREE = 1e-4  # share of the whole time below which one is as cheap as another


def nested_cuts(problem: Problem, firsts: Iterable[Sequence[list[int]]], budget: int, deadline: float) -> list[list[int]]:
    """Return schedules, one for each first set of cuts, nearest to the budget first; the cheapest so far is continued."""
    drafts: list[Draft] = []
    levels: dict[int, Iterator[bool]] = {}
    for k, cuts in enumerate(firsts):
        drafts.append(Draft(problem, problem.graph.order, budget))
        levels[k] = _levels(drafts[k], cuts, deadline)
    while levels and not problem.stop(deadline):
        cheapest = min(levels, key=lambda k: drafts[k].time)
        if drafts[cheapest].time >= min((draft.time for draft in drafts if draft.overflow() == 0), default=math.inf):
            break
        if not next(levels[cheapest], False):
            del levels[cheapest]
    drafts.sort(key=lambda draft: (draft.overflow(), draft.time))
    return [draft.steps() for draft in drafts]


def _levels(draft: Draft, cuts: Sequence[list[int]], deadline: float) -> Iterator[bool]:
    """Load one level after another into the draft, as long as a cut lowers its overflow."""
    for level in range(LEVELS):
        if level:
            cuts = minimum_cuts(draft.problem, draft.steps(), draft.budget, deadline)
        steps = _cheapest_way(draft, cuts)
        if steps is None:
            return
        draft.load(steps)
        fill(draft, deadline)
        yield True


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
