"""Which steps of a schedule may overlap within its memory.

A chain, in which each step waits for the one before it, keeps the peak of the schedule, but prevents every overlap of kernels. It is enough
that a step waits for the steps that leave it the bytes that it needs.

So the free bytes of the budget are passed along the schedule, those that have been free for longest first. A step takes as many as its
outputs and workspace need, and waits for their last holders: the step whose workspace they were, or the producer and all readers of a
version of a buffer. No two steps hold the same byte at the same time, so no order of the executor exceeds the budget. In the order of the
schedule there are always enough; if an output has to overwrite an input for that, the step waits for all other readers of the input. Each
step waits for earlier ones only, so there is no deadlock.
"""

from collections import deque
from collections.abc import Iterator

from graphwright.plan.model import CostGraph, Schedule, Waits
from graphwright.plan.simulate import Version, executed, taken_over, versions


def relax(graph: CostGraph, schedule: Schedule, budget_bytes: int) -> tuple[Waits, ...]:
    """Return per step the groups of steps that must finish before it starts, besides producers of its inputs, to keep the budget.

    A step that overwrites a variable also waits for its earlier readers, and a repeat waits for what its first execution waited for.
    """
    buffers = graph.buffers
    ending: dict[int, list[Version]] = {}
    lives = versions(graph, schedule).versions
    for version in lives:
        ending.setdefault(version.end, []).append(version)
    free = _Free(budget_bytes - graph.resident_bytes - sum(buffers[version.buffer].nbytes for version in lives if version.start < 0))
    waits: list[Waits] = []
    for k, (task, after) in enumerate(zip(executed(graph, schedule.steps), _dependencies(graph, schedule), strict=True)):
        needed = task.workspace_bytes + sum(buffers[b].nbytes for b in task.outputs)
        over: dict[int, int] = {}  # the inputs that outputs are written over, and the bytes of these
        last = {version.buffer: version for version in ending.get(k, ()) if version.start < k}
        for source, output in taken_over(graph, task, last):
            if needed > free.nbytes:
                over[source] = buffers[output].nbytes
                needed -= buffers[output].nbytes
        others = [tuple(r for r in last[source].reads if r != k) for source in over]
        waits.append(tuple(dict.fromkeys(group for group in (*after, *others, *free.take(needed)) if group)))
        free.give(task.workspace_bytes, (k,))
        for version in ending.get(k, ()):
            left = buffers[version.buffer].nbytes - (over.get(version.buffer, 0) if version.start < k else 0)
            free.give(left, version.reads or (version.start,))
    return tuple(waits)


class _Free:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._queue: deque[tuple[int, tuple[int, ...]]] = deque([(nbytes, ())])

    def give(self, nbytes: int, held_by: tuple[int, ...]) -> None:
        if nbytes:
            self.nbytes += nbytes
            self._queue.append((nbytes, held_by))

    def take(self, nbytes: int) -> Iterator[tuple[int, ...]]:
        self.nbytes -= nbytes
        while nbytes > 0:
            there, held_by = self._queue.popleft()
            yield held_by
            if there > nbytes:
                self._queue.appendleft((there - nbytes, held_by))
            nbytes -= there


def _dependencies(graph: CostGraph, schedule: Schedule) -> list[Waits]:
    begun: dict[int, int] = {}
    uses: dict[int, list[int]] = {}
    killed: dict[int, list[int]] = {}
    for b, buffer in enumerate(graph.buffers):
        if buffer.killed_by is not None:
            uses[b] = []
            killed.setdefault(buffer.killed_by, []).append(b)
    dependencies: list[Waits] = []
    for k, (t, task) in enumerate(zip(schedule.steps, executed(graph, schedule.steps), strict=True)):
        waits = [tuple(uses[b]) for b in killed.get(t, ())]
        if t in begun:
            waits += [(begun[a],) for a in task.after]
        begun.setdefault(t, k)
        for b in (*task.inputs, *task.outputs):
            if b in uses:
                uses[b].append(k)
        dependencies.append(tuple(waits))
    return dependencies
