"""The smallest peak for a given time, and repeats that serve nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from graphwright.errors import ArgumentError
from graphwright.plan.model import Buffer, CostGraph, Schedule, Task
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import drop_useless_repeats, minimum_within
from tests.plan.plan_graphs import cost_graphs, reference_is_valid, reference_step_bytes, relabel


def chain(length: int) -> CostGraph:
    """f0 -> f1 -> ... -> f(n-1) -> b(n-1) -> ... -> b0, where b(k) reads f(k) too; all of one byte and one second."""
    forward = [Task(f"f{k}", 1, (k - 1,) if k else (), (k,)) for k in range(length)]
    last = 2 * length - 1  # where b0 is
    backward = [Task(f"b{k}", 1, (k, last - k - 1) if k < length - 1 else (k,), (last - k,)) for k in reversed(range(length))]
    buffers = [Buffer(f"f{k}", 1, k) for k in range(length)] + [Buffer(f"b{k}", 1, last - k) for k in reversed(range(length))]
    return CostGraph((*forward, *backward), tuple(buffers), tuple(range(2 * length)))


@pytest.mark.parametrize(("share", "most"), [(0.0, 51), (0.5, 34), (0.95, 14)])
def test_a_chain_in_the_time_given(share: float, most: int) -> None:
    """With each forward task once more, the square root of twice the length; with no time, what there is."""
    graph = relabel(chain(50), 3)
    solution = minimum_within(graph, 100 + share * 50, time_limit_s=1.0)
    assert reference_is_valid(graph, solution.schedule.steps)
    assert solution.peak_bytes == max(reference_step_bytes(graph, solution.schedule.steps)) <= most
    assert solution.time <= 100 + share * 50


def test_a_long_chain_has_a_plan_though_there_is_no_time_to_look_for_one() -> None:
    """A tenth of the layers is not run again and has to be kept; the others need twice the square root of their number."""
    graph = relabel(chain(2000), 5)
    solution = minimum_within(graph, 4000 + 0.9 * 2000, time_limit_s=1e-3)
    assert solution.peak_bytes <= 200 + 2 * 1800**0.5 + 3
    assert solution.time <= 4000 + 0.9 * 2000


@settings(max_examples=15)
@given(cost_graphs())
def test_any_graph(graph: CostGraph) -> None:
    once = sum(task.time for task in graph.tasks)
    solution = minimum_within(graph, 1.5 * once, time_limit_s=0.1)
    assert reference_is_valid(graph, solution.schedule.steps)
    assert solution.time <= 1.5 * once * (1 + 1e-9)
    assert solution.peak_bytes <= simulate(graph, Schedule(graph.order)).peak_bytes


def test_a_time_that_is_too_short() -> None:
    with pytest.raises(ArgumentError, match="each task once takes 100"):
        minimum_within(chain(50), 99)


def test_repeats_that_serve_nothing_go() -> None:
    graph = relabel(chain(10), 1)
    order = list(graph.order)
    wasteful = Schedule((*order[:10], *order[:10], *order[10:]))
    assert drop_useless_repeats(graph, wasteful).steps == graph.order
    tight = minimum_within(graph, 30, time_limit_s=0.3).schedule
    fewer = drop_useless_repeats(graph, tight)
    assert len(fewer.steps) <= len(tight.steps)
    assert simulate(graph, fewer).peak_bytes <= simulate(graph, tight).peak_bytes
