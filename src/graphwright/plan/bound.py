"""What no schedule can go below."""

from __future__ import annotations

from graphwright.plan.model import CostGraph, LowerBound


def lower_bound(graph: CostGraph) -> LowerBound:
    """The largest of what single tasks need, in bytes, resident bytes included.

    While a task runs, its inputs, its outputs and its workspace are live, and so are all kept
    buffers that are there from the start. A kept output of an earlier task is live too where
    that task can run only once and must come first (it is an ancestor). In-place pairs are
    credited as if every input died here, so the bound holds for every schedule.

    >>> from graphwright.plan.model import Buffer, Task
    >>> graph = CostGraph((Task("a", 1, (), (0,)), Task("b", 2, (0,), (1,))), (Buffer("x", 4, 0), Buffer("y", 2, 1)), (0, 1))
    >>> lower_bound(graph).nbytes
    6
    """
    tasks, buffers = graph.tasks, graph.buffers
    always = graph.resident_bytes + sum(buffer.nbytes for buffer in buffers if buffer.kept and buffer.producer is None)
    best, best_task = always, -1
    for index, task in enumerate(tasks):
        here = always + task.workspace_bytes
        for number in (*task.inputs, *task.outputs):
            if not (buffers[number].kept and buffers[number].producer is None):
                here += buffers[number].nbytes
        taken: set[int] = set()
        for number, output in task.in_place:
            source = buffers[number]
            if number in taken or output in taken or source.kept or source.producer is None or source.nbytes < buffers[output].nbytes:
                continue
            taken |= {number, output}
            here -= buffers[output].nbytes
        if here > best:
            best, best_task = here, index
    end = graph.resident_bytes + sum(buffer.nbytes for buffer in buffers if buffer.kept)
    if end > best:
        last = graph.order[-1] if graph.order else -1
        return LowerBound(end, last, "the values kept to the end alone need this much")
    if best_task < 0:
        return LowerBound(best, graph.order[0] if graph.order else -1, "what is resident from start to end alone needs this much")
    return LowerBound(best, best_task, f"task {tasks[best_task].name} alone needs this much")
