"""The lower bound against every schedule of small graphs."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings

from graphwright.plan.bound import lower_bound
from graphwright.plan.copies import Copy, together
from graphwright.plan.model import Buffer, CostGraph, Schedule, Task
from graphwright.plan.simulate import simulate
from tests.plan.plan_graphs import cost_graphs, reference_is_valid, reference_step_bytes


def schedules(graph: CostGraph, most_repeats: int) -> Iterator[list[int]]:
    """All schedules with at most so many repeats."""
    count = len(graph.tasks)
    stack: list[list[int]] = [[]]
    while stack:
        steps = stack.pop()
        missing = [task for task in range(count) if task not in steps]
        if not missing:
            yield steps
        repeats = len(steps) + len(missing) - count
        following = range(count) if repeats < most_repeats else missing
        stack += [[*steps, task] for task in following if reference_is_valid(graph, [*steps, task], partial=True)]


@settings(max_examples=100, deadline=None)
@given(cost_graphs(max_tasks=6))
def test_no_schedule_needs_less_than_the_bound(graph: CostGraph) -> None:
    assert lower_bound(graph).nbytes <= min(max(reference_step_bytes(graph, steps)) for steps in schedules(graph, most_repeats=1))


def test_a_copy_that_is_read_back_needs_no_inputs() -> None:
    """
    a (20) -> b (1) ----> join    Both b and d are small, and made from large values. Whichever is made last is made beside the
    c (20) -> d (1) -------^      other, in 22 bytes; with b read back from its copy, in 21.
    """
    tasks = (
        Task("a", 1, (), (0,)),
        Task("b", 1, (0,), (1,)),
        Task("c", 1, (), (2,)),
        Task("d", 1, (2,), (3,)),
        Task("join", 1, (1, 3), ()),
    )
    buffers = (Buffer("a", 20, 0), Buffer("b", 1, 1), Buffer("c", 20, 2), Buffer("d", 1, 3))
    graph = CostGraph(tasks, buffers, (0, 1, 2, 3, 4))
    assert lower_bound(graph).nbytes == 22
    copied, schedule = together(graph, {1: Copy(1, 1)}, Schedule((0, 1, 2, 3, 5, 4)), 21)
    assert lower_bound(copied).nbytes == simulate(copied, schedule).peak_bytes == 21


def test_an_empty_graph_needs_only_its_resident_bytes() -> None:
    graph = CostGraph((), (Buffer("x", 4, None, kept=True),), (), resident_bytes=7)
    assert lower_bound(graph).nbytes == simulate(graph, Schedule(())).peak_bytes == 7
