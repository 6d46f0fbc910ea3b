"""Cuts of cuts: into a budget where what one cut makes again does not fit."""

from __future__ import annotations

import pytest

from bench import training_graphs as nets
from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solvers.minimum_cut import minimum_cuts
from graphwright.plan.solvers.nested_cuts import nested_cuts
from graphwright.plan.solvers.portfolio import canonical
from graphwright.plan.solvers.problem import Problem
from tests.plan.plan_graphs import reference_is_valid
from tests.plan.test_minimum_cut import chain, half

FOREVER = float("inf")


@pytest.mark.parametrize(
    ("graph", "share", "most"),
    [(chain(60), 0.15, 3.0), (nets.mlp(50), 0.17, 1.0)],
    ids=["chain", "mlp"],
)
def test_a_budget_that_one_cut_does_not_keep(graph: CostGraph, share: float, most: float) -> None:
    graph = canonical(graph)
    budget, problem = half(graph, share), Problem(graph)
    first = minimum_cuts(problem, graph.order, budget, FOREVER)
    assert min(simulate(graph, Schedule(tuple(steps))).peak_bytes for steps in first) > budget
    steps, *others = nested_cuts(problem, [first, first], budget, FOREVER)
    trace = simulate(graph, Schedule(tuple(steps)))
    assert reference_is_valid(graph, steps)
    assert trace.peak_bytes <= budget
    assert trace.time <= (1 + most) * problem.base_time
    assert [len(other) > 0 for other in others] == [True]  # every order's way is given back
