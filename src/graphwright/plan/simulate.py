"""The only judge of schedules: the bytes of every step, and whether the schedule is allowed.

The rules are those of `graphwright.plan.model`. Everything here takes time linear in the steps of the schedule plus the inputs and outputs
of their tasks. `simulate` gives bytes per step, `versions` the life of every version of every buffer.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from graphwright.errors import ArgumentError, GraphError
from graphwright.plan.model import CostGraph, Schedule, Task, Trace

_AGAIN = attrgetter("again")


class ScheduleError(ArgumentError):
    """A schedule breaks a rule of its graph."""


@dataclass(frozen=True, slots=True)
class Version:
    """The life of one version of a buffer, from step `start` (-1: from the start) to step `end`; `reads` are the steps that read it."""

    buffer: int
    start: int
    end: int
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Versions:
    """All versions under a schedule.

    `sources[k][i]` is the step that made input `i` of step `k` (-1: present from the start).
    """

    versions: tuple[Version, ...]
    sources: tuple[tuple[int, ...], ...]


def executed(graph: CostGraph, steps: Sequence[int]) -> Sequence[Task]:
    """Return the task that each step executes: its own, or `again` for a repeat of a copied one."""
    tasks = graph.tasks
    executed_tasks = [tasks[index] for index in steps]
    if not any(map(_AGAIN, executed_tasks)):  # as in the graphs of all solvers, who ask for this more often than anybody
        return executed_tasks
    first: set[int] = set()
    for step, index in enumerate(steps):
        again = executed_tasks[step].again
        if again is not None and index in first:
            executed_tasks[step] = again
        first.add(index)
    return executed_tasks


def check(graph: CostGraph, schedule: Schedule) -> None:
    """Raise `ScheduleError` unless the schedule is allowed.

    Every task runs at least once; only recomputable tasks run again; inputs are made before they are read; the first runs of `after` come
    first; nothing reads or remakes a killed buffer after its killer.
    """
    tasks, buffers = graph.tasks, graph.buffers
    first: dict[int, int] = {}
    for step, index in enumerate(schedule.steps):
        where = f"step {step} of the schedule"
        if not 0 <= index < len(tasks):
            raise ScheduleError(f"task {index} does not exist, the graph has {len(tasks)}", where=where)
        task = tasks[index]
        if index in first and task.again is not None:
            task = task.again
        if index in first and not task.recomputable:
            raise ScheduleError(f"task '{task.name}' runs again, but it is not recomputable", where=where)
        for number in task.inputs:
            buffer = buffers[number]
            if buffer.producer is not None and buffer.producer not in first:
                raise ScheduleError(f"task '{task.name}' reads buffer '{buffer.name}' before it is made", where=where)
        for number in (*task.inputs, *task.outputs):
            killer = buffers[number].killed_by
            if killer is None or killer not in first:
                continue
            killed, name = buffers[number].name, tasks[killer].name
            if killer == index:
                raise ScheduleError(f"task '{name}' runs again, but it has killed buffer '{killed}'", where=where)
            raise ScheduleError(f"task '{task.name}' uses buffer '{killed}' after task '{name}' has killed it", where=where)
        for earlier in task.after:
            if earlier not in first:
                raise ScheduleError(f"task '{task.name}' runs before task '{tasks[earlier].name}', which must come first", where=where)
        first.setdefault(index, step)
    missing = [task.name for index, task in enumerate(tasks) if index not in first]
    if missing:
        raise ScheduleError(
            f"{len(missing)} tasks never run, the first is '{missing[0]}'", where=f"a schedule of {len(schedule.steps)} steps"
        )


def check_graph(graph: CostGraph) -> None:
    """Raise `GraphError` unless indices, producers and `order` of the graph fit together."""
    tasks, buffers = graph.tasks, graph.buffers
    for index, task in enumerate(tasks):
        where = f"task '{task.name}' (index {index})"
        for number in (*task.inputs, *task.outputs):
            if not 0 <= number < len(buffers):
                raise GraphError(f"buffer {number} does not exist, the graph has {len(buffers)}", where=where)
        if len(set(task.inputs)) != len(task.inputs) or len(set(task.outputs)) != len(task.outputs):
            raise GraphError("a buffer is listed twice", where=where)
        wrong = [number for number in task.outputs if buffers[number].producer != index]
        if wrong:
            raise GraphError(f"output buffer '{buffers[wrong[0]].name}' names another producer", where=where)
        if not task.time >= 0 or task.time == float("inf") or task.workspace_bytes < 0:
            raise GraphError(f"time {task.time} and workspace {task.workspace_bytes} must be finite and not negative", where=where)
        for number, output in task.in_place:
            if number not in task.inputs or output not in task.outputs:
                raise GraphError(f"in-place pair ({number}, {output}) is not an input and an output", where=where)
        if any(not 0 <= earlier < len(tasks) for earlier in task.after):
            raise GraphError(f"`after` names a task that does not exist: {task.after}", where=where)
    for number, buffer in enumerate(buffers):
        where = f"buffer '{buffer.name}' (index {number})"
        if buffer.nbytes < 0:
            raise GraphError(f"{buffer.nbytes} bytes", where=where)
        if buffer.producer is not None and (not 0 <= buffer.producer < len(tasks) or number not in tasks[buffer.producer].outputs):
            raise GraphError(f"producer {buffer.producer} does not list it among its outputs", where=where)
        if buffer.killed_by is not None and not 0 <= buffer.killed_by < len(tasks):
            raise GraphError(f"killed by task {buffer.killed_by}, which does not exist", where=where)
    if len(graph.order) != len(tasks):
        raise GraphError(f"`order` has {len(graph.order)} steps for {len(tasks)} tasks", where=f"cost graph '{graph.name}'")
    check(graph, Schedule(graph.order))


def simulate(graph: CostGraph, schedule: Schedule) -> Trace:
    """Check a schedule (see `check`), and return the bytes of every step, the peak, and the time in `graph.time_unit`.

    An empty schedule has the resident bytes as its peak.

    >>> from graphwright.plan.model import Buffer, Task
    >>> graph = CostGraph((Task("a", 1, (), (0,)), Task("b", 2, (0,), (1,))), (Buffer("x", 4, 0), Buffer("y", 2, 1)), (0, 1))
    >>> simulate(graph, Schedule((0, 1)))
    Trace(step_bytes=(4, 6), peak_step=1, peak_bytes=6, time=3)
    """
    check(graph, schedule)
    step_bytes = simulate_unchecked(graph, schedule.steps)
    peak_bytes = max(step_bytes, default=graph.resident_bytes)
    peak_step = step_bytes.index(peak_bytes) if step_bytes else 0
    return Trace(tuple(step_bytes), peak_step, peak_bytes, sum(task.time for task in executed(graph, schedule.steps)))


def simulate_unchecked(graph: CostGraph, steps: Sequence[int]) -> list[int]:
    """Return the bytes of every step of an allowed schedule."""
    # Backward: whether a version is still needed after a step is then known when the step is met, and so is whether it is its last use.
    tasks, buffers = executed(graph, steps), graph.buffers
    needed = [buffer.kept for buffer in buffers]
    sizes = [buffer.nbytes for buffer in buffers]
    live = graph.resident_bytes + sum(buffer.nbytes for buffer in buffers if buffer.kept)
    step_bytes = [0] * len(steps)
    for step in range(len(steps) - 1, -1, -1):
        task = tasks[step]
        here = live + task.workspace_bytes
        for number in task.outputs:
            if needed[number]:
                needed[number] = False
                live -= sizes[number]
            else:
                here += sizes[number]
        if task.in_place:
            taken: set[int] = set()
            for number, output in task.in_place:
                if needed[number] or number in taken or output in taken:
                    continue
                source = buffers[number]
                if not source.kept and source.producer is not None and source.nbytes >= sizes[output]:
                    taken |= {number, output}
                    here -= sizes[output]
        for number in task.inputs:
            if not needed[number]:
                needed[number] = True
                live += sizes[number]
                here += sizes[number]
        step_bytes[step] = here
    return step_bytes


def versions(graph: CostGraph, schedule: Schedule) -> Versions:
    """Return the life of every version of every buffer, by buffer and then by start; raise `ScheduleError` if the schedule is not allowed.

    A buffer that is present from the start, not kept and never read has no version.
    """
    check(graph, schedule)
    lives: list[list[tuple[int, list[int]]]] = [[] for _ in graph.buffers]
    for number, buffer in enumerate(graph.buffers):
        if buffer.producer is None:
            lives[number].append((-1, []))
    sources: list[tuple[int, ...]] = []
    for step, task in enumerate(executed(graph, schedule.steps)):
        sources.append(tuple(lives[number][-1][0] for number in task.inputs))
        for number in task.inputs:
            lives[number][-1][1].append(step)
        for number in task.outputs:
            lives[number].append((step, []))
    result: list[Version] = []
    for number, buffer in enumerate(graph.buffers):
        for place, (start, reads) in enumerate(lives[number]):
            last = buffer.kept and place == len(lives[number]) - 1
            if start < 0 and not reads and not last:
                continue
            end = len(schedule.steps) - 1 if last else (reads[-1] if reads else start)
            result.append(Version(number, start, end, tuple(reads)))
    return Versions(tuple(result), tuple(sources))


def live_at(graph: CostGraph, schedule: Schedule, step: int, lives: Versions | None = None) -> list[tuple[int, int]]:
    """Return the buffers live at a step with their bytes, largest first; raise `ArgumentError` if there is no such step.

    An output that takes over an input's storage has 0 bytes, so that the sum is the bytes of the step less its workspace and the resident
    bytes.
    """
    if not 0 <= step < len(schedule.steps):
        raise ArgumentError(f"step {step} was asked for, the schedule has {len(schedule.steps)}", argument="step")
    known = lives or versions(graph, schedule)
    live = {version.buffer: graph.buffers[version.buffer].nbytes for version in known.versions if version.start <= step <= version.end}
    ending = {version.buffer for version in known.versions if version.end == step and version.reads and version.reads[-1] == step}
    for _, output in taken_over(graph, executed(graph, schedule.steps)[step], ending):
        live[output] = 0
    return sorted(live.items(), key=lambda item: (-item[1], item[0]))


def taken_over(graph: CostGraph, task: Task, ending: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the in-place pairs (input, output) that apply in a step; `ending` are the buffers that it is the last to read."""
    taken: set[int] = set()
    for number, output in task.in_place:
        source = graph.buffers[number]
        fits = not source.kept and source.producer is not None and source.nbytes >= graph.buffers[output].nbytes
        if fits and number in ending and taken.isdisjoint((number, output)):
            taken |= {number, output}
            yield number, output
