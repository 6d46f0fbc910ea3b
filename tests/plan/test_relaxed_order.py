"""Steps that overlap keep the budget in every order in which an executor may run them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from graphwright.plan.model import Buffer, CostGraph, Schedule, Task, Waits
from graphwright.plan.relaxed_order import relax
from graphwright.plan.simulate import simulate, versions
from tests.plan.plan_graphs import cost_graphs, reference_is_valid


def most_bytes(graph: CostGraph, schedule: Schedule, waits: Sequence[Waits], rng: random.Random) -> int:
    """The most that one interleaving holds: steps start in any order that `waits` and their inputs allow, several at once.

    A version is held from the start of its maker to the end of the last step that reads it; kept ones stay. An output takes over the
    storage of an input that nobody else will read, as TensorFlow's kernels do.
    """
    found = versions(graph, schedule)
    count = len(schedule.steps)
    readers = {(v.buffer, v.start): set(v.reads) for v in found.versions}
    stay = {(v.buffer, v.start) for v in found.versions if graph.buffers[v.buffer].kept and v.end == count - 1}
    stay -= {(b, s) for b, s in stay if any(o == b and later > s for o, later in readers)}
    held = {key for key in readers if key[1] < 0}
    waiting, running, finished = set(range(count)), dict[int, int](), set[int]()
    most = graph.resident_bytes

    def ready(k: int) -> bool:
        made = all(source < 0 or source in finished for source in found.sources[k])
        return made and all(finished.issuperset(group) for group in waits[k])

    def taken_over(k: int) -> int:
        """The bytes of the outputs that are written over inputs."""
        task, nbytes, taken = graph.tasks[schedule.steps[k]], 0, set[int]()
        for source, output in task.in_place:
            buffer = graph.buffers[source]
            others = readers[source, found.sources[k][task.inputs.index(source)]] - {k}
            fits = buffer.nbytes >= graph.buffers[output].nbytes and taken.isdisjoint((source, output))
            if fits and others <= finished and not buffer.kept and buffer.producer is not None:
                taken |= {source, output}
                nbytes += graph.buffers[output].nbytes
        return nbytes

    while waiting or running:
        able = [k for k in waiting if ready(k)]
        if able and (not running or rng.random() < 0.7):
            k = rng.choice(able)
            waiting.remove(k)
            running[k] = taken_over(k)
            held |= {(b, k) for b in graph.tasks[schedule.steps[k]].outputs if (b, k) in readers}
        else:
            k = rng.choice(sorted(running))
            del running[k]
            finished.add(k)
            held -= {key for key, reads in readers.items() if key not in stay and reads <= finished and key[1] in finished | {-1}}
        now = graph.resident_bytes + sum(graph.buffers[b].nbytes for b, _ in held)
        now += sum(graph.tasks[schedule.steps[k]].workspace_bytes - taken for k, taken in running.items())
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
    waits = relax(graph, schedule, budget)
    assert all(0 <= other < k for k, groups in enumerate(waits) for group in groups for other in group)
    assert max(most_bytes(graph, schedule, waits, rng) for _ in range(10)) <= budget


def test_without_the_waits_the_budget_breaks() -> None:
    """The negative control: two makers of 8 bytes with a reader each, in 9 bytes."""
    tasks = (Task("a", 1, (), (0,)), Task("b", 1, (0,), ()), Task("c", 1, (), (1,)), Task("d", 1, (1,), ()))
    graph = CostGraph(tasks, (Buffer("x", 8, 0), Buffer("y", 8, 1 + 1)), (0, 1, 2, 3))
    schedule = Schedule((0, 1, 2, 3))
    waits = relax(graph, schedule, 9)
    assert waits == ((), (), ((1,),), ())
    assert max(most_bytes(graph, schedule, waits, random.Random(k)) for k in range(20)) == 8
    assert max(most_bytes(graph, schedule, ((), (), (), ()), random.Random(k)) for k in range(20)) == 16


def test_who_needs_room_waits_for_those_that_leave_it_and_nobody_else() -> None:
    """Two lanes side by side in room for both: b takes the room of x, and the last one is written over y, behind all who read y."""
    tasks = (
        Task("a", 1, (), (0,)),
        Task("c", 1, (), (1,)),
        Task("free x", 1, (0,), ()),
        Task("read y", 1, (1,), ()),
        Task("b", 1, (), (2,)),
        Task("over y", 1, (1,), (3,), in_place=((1, 3),)),
    )
    buffers = (Buffer("x", 8, 0), Buffer("y", 8, 1), Buffer("z", 8, 4, kept=True), Buffer("w", 8, 5, kept=True))
    graph = CostGraph(tasks, buffers, (0, 1, 2, 3, 4, 5))
    assert relax(graph, Schedule(graph.order), 16) == ((), (), (), (), ((2,),), ((3,),))
    assert relax(graph, Schedule(graph.order), 24) == ((), (), (), (), (), ((2,),))


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
    assert relax(graph, Schedule((0, 1, 2, 3, 4, 3, 4)), 1000) == ((), (), ((0, 1),), (), (), ((2,),), ())


def test_steps_wait_for_few_others() -> None:
    """A thousand steps of random size, freed at once, in a hundred bytes: what is waited for stays as much as there are steps."""
    rng = random.Random(0)
    tasks = tuple(Task(f"t{k}", 1, (), (k,)) for k in range(1000))
    graph = CostGraph(tasks, tuple(Buffer(f"b{k}", rng.randint(1, 50), k) for k in range(1000)), tuple(range(1000)))
    waits = relax(graph, Schedule(graph.order), 100)
    assert sum(len(groups) for groups in waits) <= 2000
    assert all(k - other < 100 for k, groups in enumerate(waits) for group in groups for other in group)
