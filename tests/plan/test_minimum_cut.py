"""Minimum cuts: valid schedules, the least cost of all choices, and large networks of blocks that are alike."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import training_graphs as nets
from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import solve
from graphwright.plan.solvers.minimum_cut import Network, minimum_cuts
from graphwright.plan.solvers.portfolio import LARGE, canonical
from graphwright.plan.solvers.problem import Problem
from tests.plan.plan_graphs import cost_graphs, reference_is_valid

FOREVER = float("inf")


def half(graph: CostGraph, share: float = 0.5) -> int:
    """A budget as a share of the activation peak, resident bytes added."""
    return graph.resident_bytes + int(share * (simulate(graph, Schedule(graph.order)).peak_bytes - graph.resident_bytes))


@settings(max_examples=60, deadline=None)
@given(cost_graphs(max_tasks=16), st.floats(0.2, 1.0))
def test_every_schedule_is_valid(graph: CostGraph, share: float) -> None:
    graph = canonical(graph)
    for steps in minimum_cuts(Problem(graph), graph.order, max(1, half(graph, share)), FOREVER):
        assert reference_is_valid(graph, steps)


@settings(max_examples=40, deadline=None)
@given(cost_graphs(max_tasks=12), st.floats(0.01, 100.0))
def test_no_choice_costs_less(graph: CostGraph, price: float) -> None:
    """Against all ways to run some of the steps before the peak again."""
    network = Network(Problem(canonical(graph)), list(range(len(graph.tasks))))
    if not network.lives.residuals or network.peak > 10:
        return
    certain = np.zeros(len(network.nbytes), dtype=bool)

    def cost(again: np.ndarray) -> float:
        may_wait = np.isin(np.arange(len(network.nbytes)), network.waiting)
        return float(network.time[again].sum() + price * network.nbytes[network.saved(again, certain) & may_wait].sum())

    choices = (np.array(bits) for bits in itertools.product((False, True), repeat=network.peak))
    allowed = [again for again in choices if not again[network.barred].any()]
    least = min(map(cost, allowed))
    assert cost(network.cut(price, certain).again) <= least * (1 + 1e-4) + 1e-4


@pytest.mark.parametrize(
    ("graph", "most"),
    [(nets.residual_net_of(3_000), 0.03), (nets.transformer(50), 0.013), (nets.mlp(300), 0.17)],
    ids=["resnet", "gpt", "mlp"],
)
def test_half_of_the_memory_without_any_search(graph: CostGraph, most: float) -> None:
    graph = canonical(graph)
    steps = minimum_cuts(Problem(graph), graph.order, half(graph), FOREVER)[0]
    trace = simulate(graph, Schedule(tuple(steps)))
    assert trace.peak_bytes <= half(graph)
    assert trace.time <= (1 + most) * sum(task.time for task in graph.tasks)


@pytest.mark.slow
def test_a_large_graph_is_planned_in_near_linear_time() -> None:
    graph = nets.residual_net_of(LARGE + 5_000)
    answer = solve(graph, half(graph), time_limit_s=30)
    assert answer.status == "feasible"
    assert answer.overhead <= 0.01
