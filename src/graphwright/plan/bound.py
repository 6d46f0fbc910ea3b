"""A lower bound on the peak of every schedule, by two arguments that hold whatever is recomputed:

single task
    While a task runs, its inputs, outputs and workspace are live, and so is every kept buffer that is present from the start.
history
    Take buffers that are live together. When the last of them was made, the others were live already, together with the inputs and outputs
    of its producer. The same holds for those in turn. Which buffer was made last is unknown, so the minimum over all possibilities counts:
    a search for the path with the smallest largest set. It may be stopped at any time: the minimum over all open paths is a valid bound.
"""

import heapq

from graphwright.plan.model import CostGraph, LowerBound, Task
from graphwright.plan.simulate import taken_over

SETS = 2_500  # sets looked at for one task
TASKS = 6  # tasks whose history is searched


def lower_bound(graph: CostGraph) -> LowerBound:
    """Return the bytes that every schedule needs at some step, resident bytes included.

    In-place pairs are credited wherever they could apply.
    """
    tasks, buffers = graph.tasks, graph.buffers
    always = graph.resident_bytes + sum(buffer.nbytes for buffer in buffers if buffer.kept and buffer.producer is None)
    counted = [not (buffer.kept and buffer.producer is None) for buffer in buffers]
    end = graph.resident_bytes + sum(buffer.nbytes for buffer in buffers if buffer.kept)
    if not tasks:
        return LowerBound(graph.resident_bytes, -1, "what is resident from start to end alone needs this much")
    rank = {index: place for place, index in enumerate(graph.order)}
    alone = [(always + _need(graph, task, frozenset(), 0, counted), -rank[index], index) for index, task in enumerate(tasks)]
    best, _, best_task = max(alone)
    reason = f"{tasks[best_task].name} alone needs this much"
    if end > best:
        best, best_task, reason = end, graph.order[-1], "the values kept to the end alone need this much"
    for need, _, index in heapq.nlargest(TASKS, alone):
        history = always + _history(graph, index, need - always, counted)
        if history > best:
            best, best_task = history, index
            reason = f"{tasks[index].name} and the making of its inputs need this much"
    return LowerBound(best, best_task, reason)


def _need(graph: CostGraph, task: Task, others: frozenset[int], held: int, counted: list[bool]) -> int:
    """Return the bytes while a task runs with `others`, of `held` bytes, live throughout, less those that are always live."""
    own = {*task.inputs, *task.outputs} - others
    here = task.workspace_bytes + held + sum(graph.buffers[number].nbytes for number in own if counted[number])
    return here - sum(graph.buffers[output].nbytes for _, output in taken_over(graph, task, own))


def _history(graph: CostGraph, index: int, need: int, counted: list[bool]) -> int:
    """Return a bound from the making of a task's inputs, at least `need`."""
    tasks = graph.tasks
    nbytes = [buffer.nbytes for buffer in graph.buffers]
    start = frozenset(number for number in tasks[index].inputs if counted[number])
    heap: list[tuple[int, int, frozenset[int], int]] = [(need, 0, start, sum(nbytes[number] for number in start))]
    least = {start: need}  # by set, over the paths to it so far
    pushes = 0
    while True:
        so_far, _, live, size = heapq.heappop(heap)
        producers = sorted({producer for number in live if (producer := graph.buffers[number].producer) is not None})
        if not producers or pushes >= SETS:
            return so_far
        for task in (task for producer in producers for task in (tasks[producer], tasks[producer].again) if task is not None):
            outputs = live.intersection(task.outputs)
            others = live - outputs
            before = others.union(number for number in task.inputs if counted[number])
            held = size - sum(nbytes[number] for number in outputs)
            here = max(so_far, _need(graph, task, others, held, counted))
            if here < least.get(before, here + 1):
                least[before] = here
                pushes += 1
                heapq.heappush(heap, (here, pushes, before, held + sum(nbytes[number] for number in before - others)))
