"""Copies that are written away and read back: what schedules of them mean, by the judge."""

from __future__ import annotations

import pytest

from graphwright.plan.copies import Copy, all_copies, apart, together
from graphwright.plan.model import Buffer, CostGraph, Schedule, Task
from graphwright.plan.relaxed_order import relax
from graphwright.plan.simulate import ScheduleError, check, check_graph, simulate, versions
from graphwright.plan.solve import solve
from graphwright.plan.time_bound import least_time


def chain(layers: int = 8, nbytes: int = 10, time: float = 10.0) -> CostGraph:
    """f0 -> f1 -> ... -> f7 -> b7 -> ... -> b0, where bK reads what fK made, and fK cannot be made without f(K-1)."""
    tasks = [Task(f"f{k}", time, (k - 1,) if k else (), (k,)) for k in range(layers)]
    tasks += [
        Task(f"b{k}", 1.0, (k, 2 * layers - 2 - k) if k < layers - 1 else (k,), (2 * layers - 1 - k,)) for k in reversed(range(layers))
    ]
    buffers = [Buffer(f"x{k}", nbytes, k) for k in range(layers)] + [Buffer(f"g{k}", 1, layers + k) for k in range(layers)]
    graph = CostGraph(tuple(tasks), tuple(buffers), tuple(range(2 * layers)))
    check_graph(graph)
    return graph


def test_what_is_copied_leaves_for_less_time_than_it_takes_to_make_it_again() -> None:
    graph = chain()
    budget, prices = 32, {b: Copy(1.0, 1.0, 1) for b in range(8)}
    recomputed = solve(graph, budget)
    copies = all_copies(graph, prices)
    found = solve(apart(graph, copies), budget)
    copied, schedule = together(graph, copies, found.schedule, budget)
    trace = simulate(copied, schedule)
    assert trace.peak_bytes <= budget
    assert recomputed.status != "infeasible"
    assert trace.time < recomputed.time
    # No schedule that recomputes is as quick, so that it was not for want of searching.
    assert trace.time < least_time(graph, budget)


def test_a_repeat_of_a_copied_task_reads_nothing_and_makes_its_buffer() -> None:
    graph = chain(3)
    tasks = list(graph.tasks)
    tasks[1] = Task("f1", 10, (0,), (1,), again=Task("f1", 1, (), (1,)))
    copied = CostGraph(tuple(tasks), graph.buffers, graph.order)
    schedule = Schedule((0, 1, 2, 3, 1, 4, 5))
    assert simulate(copied, schedule).time == simulate(graph, Schedule(graph.order)).time + 1
    assert versions(copied, schedule).sources[4] == ()
    # Step 3 holds neither x1, which is read back behind it, nor anything for it.
    assert simulate(copied, schedule).step_bytes[3] == simulate(copied, Schedule(graph.order)).step_bytes[3] - 10
    # The copy is read back into the room that x1 left.
    assert relax(copied, schedule, 31)[4] == ((2,),)


def test_a_copy_is_not_read_before_it_was_written() -> None:
    reader = Task("a", 1, (), (0,), again=Task("a", 1, (), (0,)))
    graph = CostGraph((reader, Task("b", 1, (0,), ())), (Buffer("x", 4, 0),), (0, 1))
    check(graph, Schedule((0, 1, 0)))
    with pytest.raises(ScheduleError):
        check(graph, Schedule((1, 0)))


@pytest.mark.parametrize("budget", [25, 32, 44, 61, 90])
def test_the_schedule_put_together_keeps_what_the_solver_kept(budget: int) -> None:
    graph = chain()
    copies = all_copies(graph, {b: Copy(2.0, 1.0, 0) for b in range(8)})
    found = solve(apart(graph, copies), budget)
    copied, schedule = together(graph, copies, found.schedule, budget)
    assert simulate(copied, schedule).peak_bytes <= max(budget, found.peak_bytes)
    # Tasks that are not read back are as they were.
    repeated = {t for t in schedule.steps if schedule.steps.count(t) > 1}
    assert {t for t, task in enumerate(copied.tasks) if task.again is not None} == repeated
