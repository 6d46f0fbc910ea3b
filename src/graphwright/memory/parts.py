"""The planning model of a step on several devices: one model per device, and schedules joined again.

Each device has its own memory and executor, and so its own plan. One rule prevents plans from contradicting or deadlocking each other:

    Tasks that other devices wait for, or that wait for other devices, keep one order on all devices.

These *meeting* tasks are collectives, and the producers and readers of tensors that cross devices. Their order is a topological order of
the whole step in which the members of a collective count as one task. Tasks between two meeting tasks are free to move and to be
recomputed.

A tensor that crosses counts on its producer's device until the step ends, and on the receiving device from the start of the step to its
last use there, since nothing says when TensorFlow's copy arrives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.storages import SMALL_BYTES
from graphwright.errors import UnsupportedError
from graphwright.ir.graph import Value
from graphwright.ir.traits.effects import is_collective
from graphwright.ir.traits.variables import is_read
from graphwright.ir.walk import in_order
from graphwright.memory.devices import Placement
from graphwright.plan.model import Buffer, CostGraph, Schedule, Task


@dataclass(frozen=True, slots=True)
class Part:
    """The work of one device.

    Attributes:
        device: its name, such as "GPU:1"; "" if the step has one device only.
        budgeted: whether it keeps the budget; the host of accelerators does not.
        tasks: the planning model of this device.
        whole: per task, its number in the model of the whole step.
        meeting: rank of the meeting tasks, by their number here.
    """

    device: str
    budgeted: bool
    tasks: TaskMap
    whole: tuple[int, ...]
    meeting: Mapping[int, int]


def split(tasks: TaskMap, placement: Placement | None) -> tuple[Part, ...]:
    """Return one part per device that has tasks.

    Collectives keep their order even on one device. Raises `UnsupportedError` if the devices do not take part in the same collectives.
    """
    count = len(tasks.costs.tasks)
    device_of = [0] * count if placement is None else [placement.of_node[nodes[0]] for nodes in tasks.nodes]
    collectives = [t for t in range(count) if any(is_collective(node) for node in tasks.nodes[t])]
    if placement is None and not collectives:
        return (Part("", True, tasks, tuple(range(count)), {}),)
    edges = _edges(tasks.costs)
    rank = _ranks(tasks, edges, _partners(tasks, collectives, device_of))
    meets = set(collectives) | {t for edge in edges if device_of[edge[0]] != device_of[edge[1]] for t in edge}
    devices = ("",) if placement is None else placement.devices
    parts: list[Part] = []
    for k, device in enumerate(devices):
        mine = sorted((t for t in range(count) if device_of[t] == k), key=rank.__getitem__)
        if mine:
            resident = _resident(tasks, placement, k)
            budgeted = placement is None or k < placement.budgeted
            parts.append(_part(tasks, device, budgeted, mine, device_of, {t: rank[t] for t in mine if t in meets}, resident))
    return tuple(parts)


def join(parts: Sequence[Part], schedules: Sequence[Schedule]) -> Schedule:
    """Return one schedule of the whole step that keeps the order of each device."""
    if len(parts) == 1:
        return Schedule(tuple(parts[0].whole[t] for t in schedules[0].steps))
    waiting = [list(reversed(schedule.steps)) for schedule in schedules]
    joined: list[int] = []
    while any(waiting):
        ready: list[tuple[int, int]] = []
        for k, (part, steps) in enumerate(zip(parts, waiting, strict=True)):
            while steps and steps[-1] not in part.meeting:
                joined.append(part.whole[steps.pop()])
            if steps:
                ready.append((part.meeting[steps[-1]], k))
        if ready:
            _, k = min(ready)
            joined.append(parts[k].whole[waiting[k].pop()])
    return Schedule(tuple(joined))


def lanes(parts: Sequence[Part]) -> list[int]:
    part_of = {t: k for k, part in enumerate(parts) for t in part.whole}
    return [part_of[t] for t in range(len(part_of))]


def same_work(one: Part, other: Part) -> bool:
    """Whether two devices do the same, task by task, so that they can share a schedule."""

    def shape_of(part: Part) -> object:
        costs = part.tasks.costs
        return (
            [replace(task, name="") for task in costs.tasks],
            [replace(buffer, name="") for buffer in costs.buffers],
            costs.resident_bytes,
        )

    return shape_of(one) == shape_of(other)


def _edges(costs: CostGraph) -> list[tuple[int, int]]:
    edges: list[tuple[int, int]] = []
    for t, task in enumerate(costs.tasks):
        for b in task.inputs:
            buffer = costs.buffers[b]
            if buffer.producer is not None:
                edges.append((buffer.producer, t))
            if buffer.killed_by is not None and buffer.killed_by != t:
                edges.append((t, buffer.killed_by))
        edges += [(before, t) for before in task.after]
    return edges


def _partners(tasks: TaskMap, collectives: Sequence[int], device_of: Sequence[int]) -> dict[int, int]:
    """Return task -> first member of its collective.

    The k-th collectives of all devices belong together, since each device counts its own (`CollectiveKeys.get_instance_key`).
    """
    place = {t: k for k, t in enumerate(tasks.costs.order)}
    by_device: dict[int, list[int]] = {}
    for t in sorted(collectives, key=place.__getitem__):
        by_device.setdefault(device_of[t], []).append(t)
    first, *others = by_device.values() or [[]]
    partner: dict[int, int] = {}
    for other in others:
        kinds = [[(tasks.nodes[t][0].op_type, tasks.nodes[t][0].inputs[0].dtype) for t in members] for members in (first, other)]
        if kinds[0] != kinds[1]:
            raise UnsupportedError(
                f"the devices take part in different collectives: {len(first)} and {len(other)}",
                where=f"node {tasks.nodes[(first or other)[0]][0].name!r}",
                cause="the replicas do not run the same step",
            )
        partner.update(zip(other, first, strict=True))
    return partner


def _ranks(tasks: TaskMap, edges: Sequence[tuple[int, int]], partner: Mapping[int, int]) -> list[int]:
    """Return the place of each task in a topological order in which the members of a collective are one."""
    costs = tasks.costs
    place = {t: k for k, t in enumerate(costs.order)}
    members: dict[int, list[int]] = {}
    for t in range(len(costs.tasks)):
        members.setdefault(partner.get(t, t), []).append(t)
    needs: dict[int, set[int]] = {group: set() for group in members}
    for before, after in edges:
        source, target = partner.get(before, before), partner.get(after, after)
        if source != target:
            needs[target].add(source)
    order = in_order(sorted(members, key=place.__getitem__), needs.__getitem__)
    if len(order) < len(members):
        raise UnsupportedError(
            "the collectives of the devices wait for each other in a cycle",
            where=f"step {tasks.graph.name!r}",
            cause="the replicas do not run the same step",
        )
    rank = [-1] * len(costs.tasks)
    for k, t in enumerate(t for group in order for t in members[group]):
        rank[t] = k
    return rank


def _resident(tasks: TaskMap, placement: Placement | None, device: int) -> dict[Value, int]:
    """Return the variables, inputs and constants that the device holds, including copies of those it reads from another."""
    if placement is None:
        return dict(tasks.resident)
    readers: dict[Value, set[int]] = {value: set() for value in tasks.resident}
    for node in tasks.graph.nodes:
        for value in node.inputs:
            root = tasks.root_of.get(value, value)
            if is_read(root.producer):
                root = tasks.root_of.get(root.producer.inputs[0], root)
            if root in readers and node in tasks.task_of:
                readers[root].add(placement.of_node[node])
    resident: dict[Value, int] = {}
    for value, nbytes in tasks.resident.items():
        home = placement.of_input.get(value)
        places = set(readers[value])
        if home is not None:
            places.add(home)
        if device in (places or {placement.of_node[value.producer]}):
            resident[value] = nbytes
    return resident


def _part(
    tasks: TaskMap,
    device: str,
    budgeted: bool,
    mine: Sequence[int],
    device_of: Sequence[int],
    meeting: Mapping[int, int],
    resident: Mapping[Value, int],
) -> Part:
    costs = tasks.costs
    here = device_of[mine[0]]
    local = {t: k for k, t in enumerate(mine)}
    read_here = {b for t in mine for b in costs.tasks[t].inputs}
    sent = {b for t, task in enumerate(costs.tasks) if device_of[t] != here for b in task.inputs}
    buffers: list[Buffer] = []
    values: list[Value] = []
    number: dict[int, int] = {}
    for b, buffer in enumerate(costs.buffers):
        home = buffer.producer if buffer.producer is not None else buffer.killed_by
        if home is not None and device_of[home] == here:
            kept = buffer.kept or (b in sent and buffer.nbytes >= SMALL_BYTES)
            moved = replace(
                buffer,
                producer=None if buffer.producer is None else local[buffer.producer],
                killed_by=None if buffer.killed_by is None else local.get(buffer.killed_by),
                kept=kept,
            )
        elif buffer.killed_by is None and b in read_here:
            moved = Buffer(buffer.name, buffer.nbytes, None)  # received; nothing says when, so from the start
        else:
            continue
        number[b] = len(buffers)
        buffers.append(moved)
        values.append(tasks.values[b])
    local_tasks: list[Task] = []
    previous: int | None = None
    for k, t in enumerate(mine):
        task = costs.tasks[t]
        after = {local[a] for a in task.after if a in local}
        if t in meeting:
            after |= {previous} if previous is not None else set()
            previous = k
        outside = any(b not in number for b in task.inputs)  # it reads a variable of another device, which is about to change
        shared = any(b in sent for b in task.outputs)
        moved_task = replace(
            task,
            inputs=tuple(number[b] for b in task.inputs if b in number),
            outputs=tuple(number[b] for b in task.outputs),
            after=tuple(sorted(after)),
            recomputable=task.recomputable and not outside and not shared,
            in_place=tuple((number[i], number[o]) for i, o in task.in_place if i in number and buffers[number[i]].producer is not None),
        )
        local_tasks.append(moved_task)
    name = f"{costs.name} on {device}" if device else costs.name
    model = CostGraph(tuple(local_tasks), tuple(buffers), tuple(range(len(mine))), sum(resident.values()), costs.time_unit, name)
    task_map = TaskMap(
        tasks.graph,
        model,
        tuple(tasks.nodes[t] for t in mine),
        tuple(values),
        {node: local[t] for node, t in tasks.task_of.items() if t in local},
        {value: number[b] for value, b in tasks.buffer_of.items() if b in number},
        tasks.root_of,
        resident,
    )
    return Part(device, budgeted, task_map, tuple(mine), {local[t]: r for t, r in meeting.items()})
