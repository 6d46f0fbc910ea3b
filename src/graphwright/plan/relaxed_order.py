"""How far the steps of a schedule may overlap without needing more memory than was planned.

A chain, in which each step waits for the one before it, has the peak of the schedule, and costs the time in which a thread hands over
to the next step and every overlap of kernels. Most steps are far below the peak: there, steps may run side by side.

Step k may *start* once all steps before `starts[k]` have finished. Let m be the first step that has not finished. Then no step k with
`starts[k] > m` has started, so the memory in use is at most what is live when step m starts, plus the outputs and the workspace of all
steps from m to the last k with `starts[k] <= m`. Nothing that those steps free is counted, nor that an output may take over
the storage of an input. So where, for each k and each m from `starts[k]` to k,

    live(m) + sum over j from m to k of (outputs(j) + workspace(j)) <= budget

every order in which the executor may run the steps keeps the budget. A step that is too large for that waits for all before it, and all
behind it for that step; then it needs what the simulator says. What the budget asks for never decreases from step to step, so one pass
with a queue finds it. A step may wait for more than that: what starts later only leaves fewer orders. Since each wait costs time, steps
that follow each other wait for the same where that leaves them half of what they may overlap with.
"""

from collections import deque
from collections.abc import Sequence

from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import entry_bytes, executed


def relax(graph: CostGraph, schedule: Schedule, budget_bytes: int) -> tuple[int, ...]:
    """Per step, how many of the first steps must have finished before it starts, so that the budget is kept.

    A step that overwrites a variable also waits for all that reads it as it was before, and one that is repeated for what its first
    execution had to wait for.

    Args:
        schedule: an allowed one.
        budget_bytes: at least the peak of the schedule, or no order keeps it.

    >>> from graphwright.plan.model import Buffer, Task
    >>> tasks = (Task("a", 1, (), (0,)), Task("b", 1, (), (1,)), Task("c", 1, (0, 1), (2,)))
    >>> graph = CostGraph(tasks, (Buffer("x", 4, 0), Buffer("y", 4, 1), Buffer("z", 4, 2, kept=True)), (0, 1, 2))
    >>> relax(graph, Schedule((0, 1, 2)), 12), relax(graph, Schedule((0, 1, 2)), 4)
    ((0, 0, 0), (0, 1, 2))
    """
    entries = entry_bytes(graph, schedule.steps)
    starts: list[int] = []
    made = 0  # bytes that the steps so far make and work in, nothing freed
    # Pairs of m and live(m) less what is made before m, the second falling: no other m can be the last one above the budget.
    waiting: deque[tuple[int, int]] = deque()
    first = 0
    for k, task in enumerate(executed(graph, schedule.steps)):
        excess = entries[k] - made
        while waiting and waiting[-1][1] <= excess:
            waiting.pop()
        waiting.append((k, excess))
        made += task.workspace_bytes + sum(graph.buffers[b].nbytes for b in task.outputs)
        while waiting and waiting[0][1] + made > budget_bytes:
            first = waiting.popleft()[0] + 1
        starts.append(min(first, k))
    return tuple(map(max, _together(starts), _dependencies(graph, schedule)))


def _together(starts: Sequence[int]) -> list[int]:
    """Later starts, fewer different ones; of the steps that a step may overlap with, half are left at least."""
    found: list[int] = []
    for k, start in enumerate(starts):
        found.append(start if not start else found[-1] if start <= found[-1] else (start + k) // 2)
    return found


def _dependencies(graph: CostGraph, schedule: Schedule) -> list[int]:
    """Per step, how many of the first steps have to come first for what it means, beyond what it reads."""
    begun: dict[int, int] = {}
    last_use = [0] * len(graph.buffers)  # one behind the last step that made or read the buffer
    killed: dict[int, list[int]] = {}
    for b, buffer in enumerate(graph.buffers):
        if buffer.killed_by is not None:
            killed.setdefault(buffer.killed_by, []).append(b)
    found: list[int] = []
    for k, (t, task) in enumerate(zip(schedule.steps, executed(graph, schedule.steps), strict=True)):
        waits = [last_use[b] for b in killed.get(t, ())]
        if t in begun:
            waits += [begun[a] + 1 for a in task.after]
        begun.setdefault(t, k)
        for b in (*task.inputs, *task.outputs):
            last_use[b] = k + 1
        found.append(max(waits, default=0))
    return found
