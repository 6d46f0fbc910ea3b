"""The least time within a budget: never more than what a schedule takes, and close to it where blocks are chained."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import training_graphs as nets
from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import minimum
from graphwright.plan.solvers.minimum_cut import minimum_cuts
from graphwright.plan.solvers.problem import Problem
from graphwright.plan.time_bound import least_time
from tests.plan.plan_graphs import cost_graphs, reference_is_valid, reference_step_bytes


def once(graph: CostGraph) -> float:
    return sum(task.time for task in graph.tasks)


@settings(max_examples=40, deadline=None)
@given(cost_graphs(max_tasks=12), st.integers(0, 2**32))
def test_no_schedule_is_quicker(graph: CostGraph, seed: int) -> None:
    """With the peak of a schedule as the budget: of one with tasks thrown in, and of the one with the smallest peak."""
    source = random.Random(seed)
    steps = list(graph.order)
    for _ in range(source.randint(0, 6)):
        longer = steps.copy()
        longer.insert(source.randint(0, len(steps)), source.choice(steps))
        steps = longer if reference_is_valid(graph, longer) else steps
    for schedule in (steps, list(minimum(graph).schedule.steps)):
        peak = max(reference_step_bytes(graph, schedule))
        assert once(graph) <= least_time(graph, peak) <= sum(graph.tasks[task].time for task in schedule) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("graph", "share", "closeness"),
    [(nets.transformer(4), 0.5, 0.5), (nets.mlp(40), 0.4, 0.3)],
    ids=["gpt", "mlp"],
)
def test_it_is_close_to_what_a_cut_finds(graph: CostGraph, share: float, closeness: float) -> None:
    peak = simulate(graph, Schedule(graph.order)).peak_bytes
    budget = graph.resident_bytes + int(share * (peak - graph.resident_bytes))
    cut = minimum_cuts(Problem(graph), graph.order, budget, float("inf"))[0]
    found = simulate(graph, Schedule(tuple(cut)))
    assert found.peak_bytes <= budget
    assert closeness * (found.time - once(graph)) <= least_time(graph, budget) - once(graph) <= found.time - once(graph)


def test_a_budget_that_the_order_keeps_costs_nothing() -> None:
    graph = nets.mlp(10)
    assert least_time(graph, simulate(graph, Schedule(graph.order)).peak_bytes) == pytest.approx(once(graph))
