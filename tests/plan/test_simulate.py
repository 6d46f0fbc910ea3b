"""The judge against a slow simulator that follows the model's text, and rule by rule."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphwright.errors import ArgumentError, GraphError
from graphwright.plan.model import Buffer, CostGraph, Schedule, Task
from graphwright.plan.simulate import ScheduleError, check, check_graph, live_at, simulate, versions
from tests.plan.plan_graphs import cost_graphs, reference_is_valid, reference_step_bytes


def with_repeats(graph: CostGraph, rng: random.Random) -> list[int]:
    """The graph's order with recomputations at random places (not always allowed)."""
    steps = list(graph.order)
    for _ in range(rng.randint(0, 6)):
        steps.insert(rng.randint(0, len(steps)), rng.randrange(len(graph.tasks)))
    return steps


@settings(max_examples=400, deadline=None)
@given(cost_graphs(), st.integers(0, 2**32))
def test_agrees_with_the_reference(graph: CostGraph, seed: int) -> None:
    check_graph(graph)
    steps = with_repeats(graph, random.Random(seed))
    if not reference_is_valid(graph, steps):
        with pytest.raises(ScheduleError):
            check(graph, Schedule(tuple(steps)))
        return
    trace = simulate(graph, Schedule(tuple(steps)))
    expected = reference_step_bytes(graph, steps)
    assert list(trace.step_bytes) == expected
    assert trace.peak_bytes == max(expected)
    assert trace.peak_step == expected.index(max(expected))
    assert trace.time == sum(graph.tasks[index].time for index in steps)


@settings(max_examples=200, deadline=None)
@given(cost_graphs(), st.integers(0, 2**32))
def test_live_buffers_add_up(graph: CostGraph, seed: int) -> None:
    steps = with_repeats(graph, random.Random(seed))
    if not reference_is_valid(graph, steps):
        return
    schedule = Schedule(tuple(steps))
    trace = simulate(graph, schedule)
    for step, index in enumerate(steps):
        live = sum(nbytes for _, nbytes in live_at(graph, schedule, step))
        assert trace.step_bytes[step] == live + graph.tasks[index].workspace_bytes + graph.resident_bytes


def chain() -> CostGraph:
    """a -> x -> b -> y -> c, and c reads x too."""
    tasks = (Task("a", 1, (), (0,)), Task("b", 2, (0,), (1,)), Task("c", 4, (0, 1), (2,)))
    return CostGraph(tasks, (Buffer("x", 8, 0), Buffer("y", 3, 1), Buffer("z", 1, 2)), (0, 1, 2))


def test_a_use_reads_the_latest_version() -> None:
    """a b a c: x is dropped between b and the second a, so only y waits there."""
    schedule = Schedule((0, 1, 0, 2))
    assert simulate(chain(), schedule).step_bytes == (8, 11, 11, 12)
    found = versions(chain(), schedule)
    assert found.sources == ((), (0,), (), (2, 1))
    assert [(v.start, v.end) for v in found.versions if v.buffer == 0] == [(0, 1), (2, 3)]


def test_an_unread_version_is_freed_at_once() -> None:
    assert simulate(chain(), Schedule((0, 0, 1, 2))).step_bytes == (8, 8, 11, 12)


def test_kept_buffers_stay_to_the_end() -> None:
    """in (kept, given) and w (kept, made by a) stay; the first of two versions of w does not."""
    tasks = (Task("a", 1, (0,), (1,)), Task("b", 1, (), (2,)))
    graph = CostGraph(tasks, (Buffer("in", 5, None, kept=True), Buffer("w", 7, 0, kept=True), Buffer("t", 2, 1)), (0, 1))
    assert simulate(graph, Schedule((0, 1))).step_bytes == (12, 14)
    assert simulate(graph, Schedule((0, 1, 0))).step_bytes == (12, 7, 12)


def test_in_place_needs_the_last_use() -> None:
    """relu takes over x only where nothing reads x later."""
    tasks = (Task("a", 1, (), (0,)), Task("relu", 1, (0,), (1,), in_place=((0, 1),)), Task("c", 1, (1,), ()), Task("d", 1, (0,), ()))
    buffers = (Buffer("x", 8, 0), Buffer("y", 8, 1))
    assert simulate(CostGraph(tasks, buffers, (0, 1, 2, 3)), Schedule((0, 3, 1, 2))).step_bytes == (8, 8, 8, 8)
    assert simulate(CostGraph(tasks, buffers, (0, 1, 2, 3)), Schedule((0, 1, 2, 3))).step_bytes == (8, 16, 16, 8)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((1, 0, 2), "before it is made"),
        ((0, 1), "never run"),
        ((0, 1, 2, 2), "not recomputable"),
        ((0, 1, 2, 7), "does not exist"),
    ],
)
def test_broken_schedules_are_named(steps: tuple[int, ...], message: str) -> None:
    graph = chain()
    once = CostGraph((*graph.tasks[:2], Task("c", 4, (0, 1), (2,), recomputable=False)), graph.buffers, graph.order)
    with pytest.raises(ScheduleError, match=message):
        check(once, Schedule(steps))


def test_killed_buffers_are_not_read_after_their_killer() -> None:
    """read -> v -> conv; assign kills v: conv may run again before assign, not after it."""
    tasks = (Task("read", 1, (), (0,)), Task("conv", 1, (0,), (1,)), Task("assign", 1, (1, 0), (), recomputable=False))
    graph = CostGraph(tasks, (Buffer("v", 4, 0, killed_by=2), Buffer("y", 4, 1)), (0, 1, 2))
    check(graph, Schedule((0, 1, 1, 2)))
    for steps in ((0, 1, 2, 1), (0, 1, 2, 0)):
        with pytest.raises(ScheduleError, match="has killed"):
            check(graph, Schedule(steps))


def test_after_orders_first_runs() -> None:
    tasks = (Task("a", 1, (), ()), Task("b", 1, (), (), after=(0,)))
    graph = CostGraph(tasks, (), (0, 1))
    check(graph, Schedule((0, 1, 0)))
    with pytest.raises(ScheduleError, match="must come first"):
        check(graph, Schedule((1, 0)))


def test_a_step_that_does_not_exist() -> None:
    with pytest.raises(ArgumentError, match="step 3"):
        live_at(chain(), Schedule((0, 1, 2)), 3)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (CostGraph((Task("a", 1, (3,), ()),), (), (0,)), "buffer 3 does not exist"),
        (CostGraph((Task("a", 1, (), (0,)),), (Buffer("x", 1, None),), (0,)), "another producer"),
        (CostGraph((Task("a", -1, (), ()),), (), (0,)), "time -1"),
        (CostGraph((Task("a", 1, (), ()),), (), (0, 0)), "2 steps for 1 tasks"),
        (CostGraph((Task("a", 1, (), ()),), (Buffer("x", -1, None),), (0,)), "-1 bytes"),
    ],
)
def test_graphs_that_do_not_fit_together(graph: CostGraph, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check_graph(graph)
