"""The way down to a small peak."""

from __future__ import annotations

from bench import training_graphs as nets
from graphwright.plan.bound import lower_bound
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solvers.descent import descend
from graphwright.plan.solvers.draft import Draft
from graphwright.plan.solvers.portfolio import Portfolio, canonical

FOREVER = float("inf")


def test_the_way_down_comes_near_the_bound() -> None:
    """Each plan keeps the rules and needs less than the one before; strides that are too small end before, at 15 % above the bound."""
    graph = canonical(nets.resnet(blocks=(2, 2, 2, 2)))
    low = lower_bound(graph).nbytes
    portfolio = Portfolio(graph, low)
    start = Draft(portfolio.problem, portfolio.orders[0], 0)
    with portfolio.problem.limited(60_000):
        plans = list(descend(start, low, max_time=FOREVER, until=FOREVER, improving_until=FOREVER, seed=0))
    found = [plan.peak for plan in plans]
    assert [simulate(graph, Schedule(tuple(plan.steps()))).peak_bytes for plan in plans] == found
    assert found == sorted(set(found), reverse=True)
    assert found[-1] < 1.1 * low
