"""Memory over a step as TensorFlow's executor runs it, by role and layer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.executor_memory import Holding, PeakState
from graphwright.analyze.storages import SMALL_BYTES
from graphwright.ir.graph import Node
from graphwright.ir.traits.control_flow import FORWARDS_IN_TF1
from graphwright.ir.traits.values import GIVEN
from graphwright.ir.traits.views import is_view
from graphwright.report.timeline import ROLES, BufferLifetime, LiveBuffer, Role, Timeline
from graphwright.source.tracebacks import scopes
from graphwright.step.summary import Roles, live_buffer, resident_buffers


def executor_timeline(state: PeakState, tasks: TaskMap, roles: Roles) -> Timeline:
    """Return memory over one execution, with a step for each kernel that makes or updates 4 KiB or more, and one for the peak.

    Scratch of kernels and rounding of sizes count as temporaries.

    Args:
        tasks: of the flat graph. TensorFlow executes another graph: functions are inlined, loops lowered, operations fused. An operation
            that the flat graph lacks belongs to the loop or scope around it.
        roles: of the flat graph.
    """
    shown = [k for k, start in enumerate(state.starts) if k == state.peak or _makes_much(start.node)]
    starts = [state.starts[k] for k in shown]
    direction_of = {node.name: direction for node, direction in roles.directions.items()}
    direction = [_direction(start.node.name, direction_of) for start in starts]
    role_of = _role_finder(tasks, roles, direction_of)
    ticks = [start.tick for start in starts]
    series = {role: np.zeros(len(starts) + 1, dtype=np.int64) for role in ROLES}
    for value, nbytes in tasks.resident.items():
        series[roles.resident[value]][0] += nbytes
    lifetimes: list[BufferLifetime] = []
    for holding in state.holdings:
        first, end = (bisect_left(ticks, tick) for tick in (holding.first, holding.end))
        role = role_of(holding)
        series[role][first] += holding.nbytes
        series[role][end] -= holding.nbytes
        if first < end:
            lifetimes.append(BufferLifetime(live_buffer(holding.value, role, holding.nbytes, roles), first, end - 1))
    for holding in state.freed:
        series[roles.resident.get(holding.value, "weights")][bisect_left(ticks, holding.end)] -= holding.nbytes
    live = {role: np.cumsum(row)[: len(starts)] for role, row in series.items()}
    total = np.array([start.total_bytes for start in starts], dtype=np.int64)
    live["temporaries"] = live["temporaries"] + total - sum(live.values())
    residents = resident_buffers(tasks, roles)
    lifetimes += [BufferLifetime(buffer, 0, len(starts) - 1) for buffer in residents if buffer.nbytes]
    held = [live_buffer(holding.value, role_of(holding), holding.nbytes, roles) for holding in state.live]
    peak = shown.index(state.peak) if shown else 0
    freed = {holding.value for holding in state.freed if shown and holding.end <= starts[peak].tick}
    held += [buffer for value, buffer in zip(tasks.resident, residents, strict=True) if value not in freed]
    if (rest := state.peak_bytes - sum(buffer.nbytes for buffer in held)) > 0 and shown:
        node = starts[peak].node
        name = f"{node.name} (workspace and rounding)"
        held.append(LiveBuffer(name, node.op_type, roles.layers.of(node.name), "temporaries", rest))
    return Timeline(
        labels=tuple(start.node.name for start in starts),
        bytes_by_role={role: tuple(map(int, live[role])) for role in ROLES},
        total_bytes=tuple(map(int, total)),
        is_recomputation=(False,) * len(starts),
        is_backward=tuple(of != "forward" for of in direction),
        is_optimizer=tuple(of == "optimizer" for of in direction),
        peak_step=peak,
        peak_bytes=state.peak_bytes,
        live_at_peak=tuple(sorted(held, key=lambda buffer: (-buffer.nbytes, buffer.name))),
        lifetimes=tuple(lifetimes),
        layers=tuple(roles.layers.of(start.node.name) for start in starts),
    )


def _makes_much(node: Node) -> bool:
    if node.op_type in FORWARDS_IN_TF1 or node.op_type in GIVEN or is_view(node):
        return False
    touched = node.outputs or node.inputs  # an update of a variable has no outputs
    return any((value.nbytes or 0) >= SMALL_BYTES for value in touched)


def _direction(name: str, direction_of: dict[str, str]) -> str:
    return next((direction_of[scope] for scope in scopes(name) if scope in direction_of), "forward")


def _role_finder(tasks: TaskMap, roles: Roles, direction_of: dict[str, str]) -> Callable[[Holding], Role]:
    """Return a function from a holding to its role. A value that the flat graph lacks is a gradient if its operation is backward, a
    residual if a backward operation reads it last, and a temporary otherwise.
    """
    known: dict[str, Role] = {value.name: roles.buffers[b] for b, value in enumerate(tasks.values)}

    def role_of(holding: Holding) -> Role:
        name = holding.value.name
        if name in known:
            return known[name]
        if _direction(holding.value.producer.name, direction_of) != "forward":
            return "gradients"
        reader = holding.last_reader
        return "residuals" if reader is not None and _direction(reader.name, direction_of) != "forward" else "temporaries"

    return role_of
