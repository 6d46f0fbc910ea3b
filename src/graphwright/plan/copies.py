"""Copies of buffers on disk or in another device's memory.

A copied buffer may leave the memory after a reader, and is read back before the next one. Solvers only know of recomputation, so they get
another graph (`apart`): a copied task makes a mark without bytes, and a second task, which reads only the mark, makes the buffer. To run
the second task again is to read the copy back, at its cost. The resulting schedule is converted to one of the original graph (`together`),
in which the task itself is repeated (see *copied* in `plan.model`).

`cheaper_than_running_again` decides by price which buffers may be copied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from graphwright.plan.model import Buffer, CostGraph, Schedule, Task
from graphwright.plan.simulate import simulate_unchecked


@dataclass(frozen=True, slots=True)
class Copy:
    """The cost of a copy of one buffer."""

    write_s: float
    read_s: float
    workspace_bytes: int = 0


Copies = Mapping[int, Copy]
"""By buffer. Of a task, one output at most."""
_DROPPED = -1


def cheaper_than_running_again(graph: CostGraph, prices: Copies, *, with_inputs: bool = True) -> dict[int, Copy]:
    """Return the buffers that take longer to recompute than to write and read back.

    Args:
        prices: of all buffers that may be copied.
        with_inputs: whether inputs have to be recomputed, or read back, too; otherwise they are live.

    >>> tasks = (Task("a", 5, (), (0,)), Task("b", 1.5, (0,), (1,)), Task("c", 1, (0, 1), ()))
    >>> graph = CostGraph(tasks, (Buffer("x", 4, 0), Buffer("y", 4, 1)), (0, 1, 2))
    >>> list(cheaper_than_running_again(graph, {0: Copy(1, 1), 1: Copy(1, 1)}))
    [0, 1]
    >>> list(cheaper_than_running_again(graph, {0: Copy(1, 1), 1: Copy(1, 1)}, with_inputs=False))
    [0]
    """
    price = [0.0] * len(graph.buffers)
    copies: dict[int, Copy] = {}
    for t in graph.order:
        task = graph.tasks[t]
        again = task.time + (sum(price[b] for b in task.inputs) if with_inputs else 0.0)
        again = again if task.recomputable else float("inf")
        for b in sorted(task.outputs, key=lambda b: -graph.buffers[b].nbytes):
            price[b] = again
            copy = prices.get(b)
            if copy is None or graph.buffers[b].kept or any(other in copies for other in task.outputs):
                continue
            if copy.write_s + copy.read_s < again:
                copies[b] = copy
                price[b] = copy.read_s
    return copies


def all_copies(graph: CostGraph, prices: Copies) -> dict[int, Copy]:
    """Return all buffers with a price, the largest one of each task."""
    largest: dict[int | None, int] = {}
    for b in sorted(prices, key=lambda b: -graph.buffers[b].nbytes):
        largest.setdefault(graph.buffers[b].producer, b)
    return {b: prices[b] for b in sorted(largest.values())}


def apart(graph: CostGraph, copies: Copies) -> CostGraph:
    """Return the graph for solvers; its first tasks and buffers are those of the given graph."""
    tasks, buffers, order = list(graph.tasks), list(graph.buffers), list(graph.order)
    for b, copy in copies.items():
        buffer = buffers[b]
        maker = buffer.producer
        assert maker is not None
        task, mark, reader = tasks[maker], len(buffers), len(tasks)
        takes_over = any(o == b and all(maker == t or i not in tasks[t].inputs for t in range(len(graph.tasks))) for i, o in task.in_place)
        tasks[maker] = replace(
            task,
            outputs=(*(o for o in task.outputs if o != b), mark),
            workspace_bytes=(0 if takes_over else buffer.nbytes) + max(task.workspace_bytes, copy.workspace_bytes),
            recomputable=False,
            in_place=tuple(pair for pair in task.in_place if pair[1] != b),
        )
        buffers.append(Buffer(f"{buffer.name} (copied)", 0, maker))
        buffers[b] = replace(buffer, producer=reader)
        tasks.append(Task(f"{task.name} (read back)", copy.write_s + copy.read_s, (mark,), (b,)))
        order.insert(order.index(maker) + 1, reader)
    return replace(graph, tasks=tuple(tasks), buffers=tuple(buffers), order=tuple(order))


def together(graph: CostGraph, copies: Copies, schedule: Schedule, budget_bytes: int) -> tuple[CostGraph, Schedule]:
    """Convert a schedule of the graph `apart` to the original graph, without reads that the budget does not need."""
    count = len(graph.tasks)
    of_reader = {count + k: b for k, b in enumerate(copies)}
    steps: list[int] = []
    for k, t in enumerate(schedule.steps):
        if t < count:
            steps.append(t)
            continue
        maker = graph.buffers[of_reader[t]].producer
        assert maker is not None
        if k == 0 or schedule.steps[k - 1] != maker:  # right behind its maker, it is the maker's own result
            steps.append(maker)
    copied = _copied(graph, copies, steps)
    peak = max(simulate_unchecked(copied, steps))
    makers = {graph.buffers[b].producer: copy for b, copy in copies.items()}
    repeats = [k for k, t in enumerate(steps) if t in makers and t in steps[:k]]
    for k in sorted(repeats, key=lambda k: -makers[steps[k]].read_s):
        without = [*steps[:k], _DROPPED, *steps[k + 1 :]]
        if max(simulate_unchecked(copied, [t for t in without if t != _DROPPED])) <= max(budget_bytes, peak):
            steps = without
    steps = [t for t in steps if t != _DROPPED]
    return _copied(graph, copies, steps), Schedule(tuple(steps))


def copied_buffers(graph: CostGraph) -> list[int]:
    """Return the buffers that a graph made by `together` copies."""
    return [task.again.outputs[0] for task in graph.tasks if task.again is not None]


def most_copied_bytes(graph: CostGraph, schedule: Schedule) -> int:
    """Return the largest bytes of copies at any time, each from its write to its last read."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, t in enumerate(schedule.steps):
        first.setdefault(t, k)
        last[t] = k
    change = [0] * (len(schedule.steps) + 1)
    for b in copied_buffers(graph):
        maker = graph.buffers[b].producer
        assert maker is not None
        change[first[maker]] += graph.buffers[b].nbytes
        change[last[maker] + 1] -= graph.buffers[b].nbytes
    return max(accumulate(change))


def _copied(graph: CostGraph, copies: Copies, steps: Sequence[int]) -> CostGraph:
    tasks, seen, repeated = list(graph.tasks), set[int](), set[int]()
    for t in steps:
        (repeated if t in seen else seen).add(t)
    for b, copy in copies.items():
        maker = graph.buffers[b].producer
        if maker in repeated:
            assert maker is not None
            task = tasks[maker]
            tasks[maker] = replace(
                task,
                time=task.time + copy.write_s,
                workspace_bytes=max(task.workspace_bytes, copy.workspace_bytes),
                again=Task(task.name, copy.read_s, (), (b,)),
            )
    return replace(graph, tasks=tuple(tasks))
