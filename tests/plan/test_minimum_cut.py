"""Minimum cuts: valid schedules, the least cost of all choices, and large networks of blocks that are alike."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import training_graphs as nets
from graphwright.plan.model import Buffer, CostGraph, Schedule, Task
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import solve
from graphwright.plan.solvers.minimum_cut import Network, minimum_cuts
from graphwright.plan.solvers.portfolio import LARGE, canonical
from graphwright.plan.solvers.problem import Problem
from tests.plan.plan_graphs import cost_graphs, reference_is_valid, relabel

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


@pytest.mark.parametrize("seed", range(2))
def test_what_is_cheap_to_make_again_does_not_wait(seed: int) -> None:
    """
    x -> dense -> y -> act -> z -> dense ...    y and z are read by the backward pass; z is cheap to make from y.

    All z go first: with room for the y alone, only activations run again.
    """
    tasks, buffers = list[Task](), list[Buffer]()
    for layer in range(30):
        tasks.append(Task(f"dense{layer}", 100, (len(buffers) - 1,) if layer else (), (len(buffers),)))
        tasks.append(Task(f"act{layer}", 1, (len(buffers),), (len(buffers) + 1,)))
        buffers += [Buffer("y", 8, len(tasks) - 2), Buffer("z", 8, len(tasks) - 1)]
    for layer in reversed(range(30)):
        tasks.append(Task(f"back{layer}", 100, (2 * layer, 2 * layer + 1, *((len(buffers) - 1,) if layer < 29 else ())), (len(buffers),)))
        buffers.append(Buffer("d", 8, len(tasks) - 1))
    graph = canonical(relabel(CostGraph(tuple(tasks), tuple(buffers), tuple(range(len(tasks)))), seed))
    budget = 8 * 30 + 8 * 4
    steps = minimum_cuts(Problem(graph), graph.order, budget, FOREVER)[0]
    trace = simulate(graph, Schedule(tuple(steps)))
    assert trace.peak_bytes <= budget
    assert trace.time - sum(task.time for task in graph.tasks) <= 30


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


def chain(count: int) -> CostGraph:
    """f0 -> f1 -> ... -> fn -> bn -> ... -> b1 -> b0, where each b reads its f, and works in place."""
    tasks = [Task("f", 1, (k - 1,) if k else (), (k,)) for k in range(count)]
    tasks += [Task("b", 1, (count + k - 1, count - 1 - k) if k else (count - 1,), (count + k,)) for k in range(count)]
    tasks = [replace(t, in_place=((t.inputs[0], t.outputs[0]),)) if t.name == "b" else t for t in tasks]
    return CostGraph(tuple(tasks), tuple(Buffer("", 10, k) for k in range(2 * count)), tuple(range(2 * count)))


def test_a_schedule_that_makes_all_again_for_each_reader_is_given_up() -> None:
    """
    f0 -> f1 -> f2 -> ... fn       only r waits for the backward pass, and each is made again from f0 on: n n steps,
    |     |     |         |        unless some f, which nobody reads there, wait
    r0    r1    r2        rn -> bn -> ... -> b2 -> b1 -> b0
    """
    count = 40
    tasks = [Task("f", 1, (k - 1,) if k else (), (k,)) for k in range(count)]
    tasks += [Task("r", 1, (k,), (count + k,)) for k in range(count)]
    tasks += [Task("b", 1, (2 * count - 1 - k, *((2 * count + k - 1,) if k else ())), (2 * count + k,)) for k in range(count)]
    buffers = tuple(Buffer("", 1 if k < count else 10, k) for k in range(3 * count))
    forward = [task for k in range(count) for task in (k, count + k)]
    graph = canonical(CostGraph(tuple(tasks), buffers, (*forward, *range(2 * count, 3 * count))))
    made = minimum_cuts(Problem(graph), graph.order, half(graph, 0.1), FOREVER)
    assert made
    assert max(map(len, made)) <= 3 * len(tasks)
