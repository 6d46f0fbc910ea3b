"""A cost graph as flat lists, the form in which the solvers read it.

Plain lists of integers are several times faster to read than frozen dataclasses.
"""

import time as clock
from collections.abc import Generator
from contextlib import contextmanager

from graphwright.plan.model import CostGraph

UNIT_S = 1e-5
"""Seconds that a unit of work takes, about."""


def now() -> float:
    """Return the processor time of this thread in seconds, so that other load on the machine delays an answer but does not worsen it."""
    return clock.thread_time()


class Problem:
    """Flat view of a `CostGraph`. Lists are indexed by task or by buffer and never change.

    Attributes:
        work: units of work done so far (about ten microseconds each). Results that must not depend on the machine are limited by work.
        work_limit: the value of `work` at which solvers stop.
        last: the value of `now()` at which all solvers stop.
    """

    def __init__(self, graph: CostGraph) -> None:
        self.graph = graph
        self.work: int = 0
        self.work_limit: int = 1 << 62
        self.last = float("inf")
        tasks, buffers = graph.tasks, graph.buffers
        self.task_count = len(tasks)
        self.buffer_count = len(buffers)
        self.time = [task.time for task in tasks]
        self.inputs = [task.inputs for task in tasks]
        self.outputs = [task.outputs for task in tasks]
        self.workspace = [task.workspace_bytes for task in tasks]
        self.nbytes = [buffer.nbytes for buffer in buffers]
        self.kept = [buffer.kept for buffer in buffers]
        self.producer = [-1 if buffer.producer is None else buffer.producer for buffer in buffers]
        self.consumers: list[list[int]] = [[] for _ in buffers]
        for index, task in enumerate(tasks):
            for number in task.inputs:
                self.consumers[number].append(index)
        # Only pairs that can ever apply: the simulator's static conditions are settled here.
        self.in_place = [
            tuple(
                (number, output)
                for number, output in task.in_place
                if not buffers[number].kept and buffers[number].producer is not None and buffers[number].nbytes >= buffers[output].nbytes
            )
            for task in tasks
        ]
        self.born = [sum(self.nbytes[number] for number in task.outputs) for task in tasks]
        # Tasks that must not run again once any of these has run.
        killers = [{buffers[number].killed_by for number in (*task.inputs, *task.outputs)} for task in tasks]
        self.killers = [tuple(sorted(killer for killer in some if killer is not None)) for some in killers]
        self.recomputable = [task.recomputable and index not in self.killers[index] for index, task in enumerate(tasks)]
        # Tasks whose `after` names the task.
        self.before: list[list[int]] = [[] for _ in tasks]
        for index, task in enumerate(tasks):
            for earlier in task.after:
                self.before[earlier].append(index)
        self.base_time = sum(self.time)
        # Stands in for the time of free tasks, so that "bytes per time" is defined.
        self.tiny_time = max(self.base_time, 1e-30) * 1e-7 / max(1, self.task_count)

    def stop(self, deadline: float) -> bool:
        return self.work > self.work_limit or now() > min(deadline, self.last)

    @contextmanager
    def limited(self, work: int) -> Generator[None]:
        before = self.work_limit
        self.work_limit = min(before, self.work + work)
        try:
            yield
        finally:
            self.work_limit = before

    def precedence(self) -> tuple[list[list[int]], list[list[int]]]:
        successors: list[set[int]] = [set() for _ in range(self.task_count)]
        for index in range(self.task_count):
            for number in self.inputs[index]:
                if self.producer[number] >= 0:
                    successors[self.producer[number]].add(index)
            for earlier in self.graph.tasks[index].after:
                successors[earlier].add(index)
            for killer in self.killers[index]:
                if killer != index:
                    successors[index].add(killer)
        predecessors: list[list[int]] = [[] for _ in successors]
        for index, following in enumerate(successors):
            for later in following:
                predecessors[later].append(index)
        return [sorted(following) for following in successors], predecessors
