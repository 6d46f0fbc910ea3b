"""The solvers' parts put together: what is tried, in which order, and what is kept."""

from __future__ import annotations

import time as clock
from collections.abc import Callable

from graphwright.plan.model import CostGraph
from graphwright.plan.solvers.improve import drop_recomputations
from graphwright.plan.solvers.intervals import reduce_overflow
from graphwright.plan.solvers.problem import Problem
from graphwright.plan.solvers.reorder import reorder
from graphwright.plan.solvers.sequence import Sequence


class Portfolio:
    """Solvers on one graph; orders are found once and serve every budget.

    Attributes:
        how: in words, what found the last answer.
    """

    def __init__(self, graph: CostGraph, progress: Callable[[float, str], None] | None = None) -> None:
        self.problem = Problem(graph)
        self.progress = progress
        self.how = ""
        self.say(0.0, "reordering")
        self.orders = reorder(self.problem)

    def say(self, share: float, text: str) -> None:
        """Tell the caller how far it is."""
        if self.progress is not None:
            self.progress(share, text)

    def cheapest(self, budget: int, deadline: float) -> tuple[list[int] | None, bool]:
        """A cheap schedule within the budget, or None; and whether it is proved to be the cheapest."""
        order = self.orders[0]
        sequence = Sequence(self.problem, order, budget)
        if sequence.overflow() == 0:
            self.how = "original order" if tuple(order) == self.problem.graph.order else "reorder"
            return order, True
        self.say(0.1, "recomputing")
        if not reduce_overflow(sequence, deadline):
            return None, False
        self.say(0.5, "dropping recomputations")
        drop_recomputations(sequence, deadline)
        self.how = "intervals"
        return sequence.steps(), False

    def smallest(self, low: int, deadline: float) -> list[int]:
        """The schedule with the smallest peak found; nothing below `low` is looked for."""
        best = self.orders[0]
        self.how = "original order" if tuple(best) == self.problem.graph.order else "reorder"
        high = Sequence(self.problem, best, 0).peak
        started = clock.perf_counter()
        while high - low > max(1, high // 500):
            now = clock.perf_counter()
            if now > deadline:
                break
            self.say(min(0.95, (now - started) / max(deadline - started, 1e-9)), "looking for the smallest peak")
            middle = (low + high) // 2
            sequence = Sequence(self.problem, self.orders[0], middle)
            reduce_overflow(sequence, min(deadline, now + (deadline - now) / 2))
            if sequence.peak < high:
                drop_recomputations(sequence, deadline)
                best, high = sequence.steps(), sequence.peak
                self.how = "intervals"
            if sequence.peak > middle:
                low = middle + 1
        return best
