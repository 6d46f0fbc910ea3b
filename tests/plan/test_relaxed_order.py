"""Steps that overlap keep the budget in every order in which an executor may run them."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from graphwright.plan.model import Buffer, CostGraph, Schedule, Task
from graphwright.plan.relaxed_order import relax
from graphwright.plan.simulate import simulate, versions
from tests.plan.plan_graphs import cost_graphs, reference_is_valid


def most_bytes(graph: CostGraph, schedule: Schedule, starts: tuple[int, ...], rng: random.Random) -> int:
    """The most that one interleaving holds: steps start in any order that `starts` and their inputs allow, several at once.

    A version is held from the start of its maker to the end of the last step that reads it; kept ones stay. Outputs take over the storage
    of an input only in a step that runs alone, as the model says.
    """
    found = versions(graph, schedule)
    count = len(schedule.steps)
    readers = {(v.buffer, v.start): set(v.reads) for v in found.versions}
    stay = {
        (v.buffer, v.start) for v in found.versions if graph.buffers[v.buffer].kept and v.end == count - 1 and (v.start, v.end) != (-2, -2)
    }
    stay -= {(b, s) for b, s in stay if any(o == b and later > s for o, later in readers)}
    held = {key for key in readers if key[1] < 0}
    waiting, running, finished = set(range(count)), set[int](), set[int]()
    alone = simulate(graph, schedule).step_bytes
    most = graph.resident_bytes

    def ready(k: int) -> bool:
        made = all(source < 0 or source in finished for source in found.sources[k])
        return made and finished.issuperset(range(starts[k]))

    while waiting or running:
        able = [k for k in waiting if ready(k)]
        if able and (not running or rng.random() < 0.7):
            k = rng.choice(able)
            waiting.remove(k)
            running.add(k)
            held |= {(b, k) for b in graph.tasks[schedule.steps[k]].outputs if (b, k) in readers}
        else:
            k = rng.choice(sorted(running))
            running.remove(k)
            finished.add(k)
            held -= {key for key, reads in readers.items() if key not in stay and reads <= finished and key[1] in finished | {-1}}
        now = graph.resident_bytes + sum(graph.buffers[b].nbytes for b, _ in held)
        now += sum(graph.tasks[schedule.steps[k]].workspace_bytes for k in running)
        if len(running) == 1 and finished == set(range(min(running))):
            now = min(now, alone[min(running)])
        most = max(most, now)
    return most


@settings(max_examples=300, deadline=None)
@given(cost_graphs(), st.integers(0, 2**32), st.integers(0, 40))
def test_every_interleaving_keeps_the_budget(graph: CostGraph, seed: int, more: int) -> None:
    rng = random.Random(seed)
    steps = list(graph.order)
    for _ in range(rng.randint(0, 6)):
        steps.insert(rng.randint(0, len(steps)), rng.randrange(len(graph.tasks)))
    schedule = Schedule(tuple(steps if reference_is_valid(graph, steps) else graph.order))
    budget = simulate(graph, schedule).peak_bytes + more
    starts = relax(graph, schedule, budget)
    assert all(0 <= start <= k for k, start in enumerate(starts))
    assert max(most_bytes(graph, schedule, starts, rng) for _ in range(10)) <= budget


def test_without_the_waits_the_budget_breaks() -> None:
    """The negative control: two makers of 8 bytes with a reader each, in 9 bytes."""
    tasks = (Task("a", 1, (), (0,)), Task("b", 1, (0,), ()), Task("c", 1, (), (1,)), Task("d", 1, (1,), ()))
    graph = CostGraph(tasks, (Buffer("x", 8, 0), Buffer("y", 8, 1 + 1)), (0, 1, 2, 3))
    schedule = Schedule((0, 1, 2, 3))
    starts = relax(graph, schedule, 9)
    assert starts == (0, 0, 2, 2)
    assert max(most_bytes(graph, schedule, starts, random.Random(k)) for k in range(20)) == 8
    assert max(most_bytes(graph, schedule, (0, 0, 0, 0), random.Random(k)) for k in range(20)) == 16


def test_a_write_waits_for_those_that_read_before_it() -> None:
    """`write` overwrites what `read` is a view of; `again` repeats a task that had to come behind `first`."""
    tasks = (
        Task("read", 1, (), (0,)),
        Task("use", 1, (0,), (1,)),
        Task("write", 1, (), (), recomputable=False),
        Task("behind", 1, (), (2,), after=(2,)),
        Task("last", 1, (2,), ()),
    )
    graph = CostGraph(tasks, (Buffer("w", 1, 0, killed_by=2), Buffer("y", 1, 1), Buffer("z", 1, 3)), (0, 1, 2, 3, 4))
    assert relax(graph, Schedule((0, 1, 2, 3, 4, 3, 4)), 1000) == (0, 0, 2, 0, 0, 3, 0)


def test_steps_wait_for_the_same_where_they_have_room() -> None:
    """A thousand steps of one byte each, freed at once, in a hundred bytes: few different waits, and room for 49 steps at least."""
    tasks = tuple(Task(f"t{k}", 1, (), (k,)) for k in range(1000))
    graph = CostGraph(tasks, tuple(Buffer(f"b{k}", 1, k) for k in range(1000)), tuple(range(1000)))
    starts = relax(graph, Schedule(graph.order), 100)
    assert len(set(starts)) <= 21
    assert all(k - 100 < start <= max(k - 49, 0) for k, start in enumerate(starts))
