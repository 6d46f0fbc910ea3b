"""Figures for reports: roles, timelines, layers and decisions of a schedule."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from graphwright.analyze.backward import backward_nodes
from graphwright.analyze.cost import TaskMap
from graphwright.analyze.directions import Direction, find_directions
from graphwright.analyze.downsample import mostly
from graphwright.analyze.flop_execution import Execution, execute
from graphwright.analyze.flop_tally import Tally, tally
from graphwright.analyze.layers import Layers, find_layers
from graphwright.analyze.loops import LoopCosts
from graphwright.analyze.optimizer_state import find_optimizer_state
from graphwright.analyze.parameters import WEIGHTS, ParameterKind, ParameterSums, make_parameter, sum_parameters
from graphwright.analyze.variable_access import find_accesses
from graphwright.analyze.variable_updates import effects_outside, is_other_state
from graphwright.ir.dtypes import format_shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import COMPUTES_NOTHING, PART
from graphwright.ir.traits.variables import variable_key
from graphwright.ir.walk import topological_order
from graphwright.ops.flops import node_flops
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import Versions, executed, live_at, simulate_unchecked, versions
from graphwright.report.cost_rows import LayerCost
from graphwright.report.memory_plan import BufferDecision
from graphwright.report.timeline import ROLES, BufferLifetime, LiveBuffer, Role, Timeline
from graphwright.source.attributes import constant_array
from graphwright.source.import_graph import infer_body_shapes

FlopsOf = Callable[[Node], float | None]


@dataclass(frozen=True)
class Roles:
    """The purpose of each part of the memory."""

    backward: frozenset[Node]
    buffers: tuple[Role, ...]  # per buffer of the cost graph
    resident: Mapping[Value, Role]  # variables, inputs and constants
    variables: Mapping[Value, ParameterKind]
    layers: Layers
    graph: Graph
    line: Callable[[str], str]  # by name of an operation, the line of Python that made it or its scope; "" where it is not known

    @cached_property
    def directions(self) -> Mapping[Node, Direction]:
        """Forward, backward or optimizer, per node; slow to compute."""
        return find_directions(self.graph, self.backward)


def find_roles(tasks: TaskMap, line: Callable[[str], str] = lambda _: "") -> Roles:
    """Classify buffers by dataflow.

    A variable that the backward pass writes and the forward pass does not read is optimizer state. A forward value that a backward node
    reads is a residual, unless it is made during the backward pass and only for it. Values of backward nodes are gradients.
    """
    graph, line = tasks.graph, cache(line)
    backward = backward_nodes(graph)
    kinds = variable_kinds(graph, backward)
    resident: dict[Value, Role] = {
        value: "inputs" if value not in kinds else "optimizer state" if kinds[value] == "optimizer state" else "weights"
        for value in tasks.resident
    }
    read_backward: set[int] = set()
    for task, nodes in zip(tasks.costs.tasks, tasks.nodes, strict=True):
        if any(n in backward for n in nodes):
            read_backward.update(task.inputs)
    read_backward -= _made_late(tasks, backward)
    roles: list[Role] = [
        "gradients" if value.producer in backward else "residuals" if b in read_backward else "temporaries"
        for b, value in enumerate(tasks.values)
    ]
    layers = find_layers(graph).with_lines(line, (node.name for node in graph.nodes))
    return Roles(backward, tuple(roles), resident, kinds, layers, graph, line)


def variable_kinds(graph: Graph, backward: frozenset[Node]) -> dict[Value, ParameterKind]:
    keys = {value: variable_key(value) for value in graph.variables}
    trainable = {keys[value] for value, variable in graph.variables.items() if variable.trainable}
    accesses = find_accesses(graph, keys)
    state, effects = find_optimizer_state(graph, accesses, trainable, backward), effects_outside(accesses, backward)
    read = {access.key for access in accesses if access.reads}
    kinds: dict[Value, ParameterKind] = {}
    for value, variable in graph.variables.items():
        kinds[value], key = "trainable" if variable.trainable else "non-trainable", keys[value]
        if key in state:
            kinds[value] = "optimizer state"
        elif not variable.trainable and is_other_state(variable.dtype.name, effects.get(key, ""), key in read):
            kinds[value] = "other state"
    return kinds


def _made_late(tasks: TaskMap, backward: frozenset[Node]) -> set[int]:
    """Return buffers that are made during the backward pass and only for it."""
    costs, fixed = tasks.costs, {value.producer for value in tasks.graph.outputs}
    only_backward = set(backward)
    for node in reversed(topological_order(tasks.graph)):
        readers = [reader for value in node.outputs for reader in value.consumers]
        if readers and node not in fixed and all(reader in only_backward for reader in readers):
            only_backward.add(node)
    kinds = mostly([int(any(n in backward for n in tasks.nodes[t])) for t in costs.order], max(len(costs.order) // 40, 3))
    late = set(costs.order[kinds.index(1) :]) if 1 in kinds else set[int]()
    return {b for b, value in enumerate(tasks.values) if value.producer in only_backward and costs.buffers[b].producer in late}


def flops_rule(loops: LoopCosts) -> FlopsOf:
    """Return a function that counts the FLOPs of one execution of a node, all iterations of a loop included."""
    return lambda node: loops.flops[node] if node in loops.flops else node_flops(node)


def count_parameters(graph: Graph, roles: Roles) -> ParameterSums:
    return sum_parameters([make_parameter(v.name, roles.variables[value], v.dtype, v.shape) for value, v in graph.variables.items()])


def make_timeline(tasks: TaskMap, schedule: Schedule, roles: Roles) -> Timeline:
    costs = tasks.costs
    count = len(schedule.steps)
    change = {role: np.zeros(count + 1, dtype=np.int64) for role in ROLES}
    lifetimes: list[BufferLifetime] = []
    lives = versions(costs, schedule)
    for version in lives.versions:
        nbytes = costs.buffers[version.buffer].nbytes
        change[roles.buffers[version.buffer]][max(version.start, 0)] += nbytes
        change[roles.buffers[version.buffer]][version.end + 1] -= nbytes
        if nbytes:
            live = live_buffer(tasks.values[version.buffer], roles.buffers[version.buffer], nbytes, roles)
            lifetimes.append(BufferLifetime(live, max(version.start, 0), version.end))
    lifetimes += [BufferLifetime(live, 0, count - 1) for live in resident_buffers(tasks, roles) if live.nbytes]
    series = {role: np.cumsum(change[role])[:count] for role in ROLES}
    for value, nbytes in tasks.resident.items():
        series[roles.resident[value]] = series[roles.resident[value]] + nbytes
    steps = executed(costs, schedule.steps)
    series["temporaries"] = series["temporaries"] + np.array([task.workspace_bytes for task in steps], dtype=np.int64)
    total = np.array(simulate_unchecked(costs, schedule.steps), dtype=np.int64)
    # Where an output takes over its input's storage, both versions count above: take the difference from the output.
    twice = np.sum([series[role] for role in ROLES], axis=0) - total
    for k in map(int, np.flatnonzero(twice)):
        role = roles.buffers[steps[k].outputs[0]]
        series[role][k] -= twice[k]
    peak = int(np.argmax(total)) if count else 0
    seen: set[int] = set()
    repeats: list[bool] = []
    for t in schedule.steps:
        repeats.append(t in seen and costs.tasks[t].again is None)
        seen.add(t)
    return Timeline(
        labels=tuple(costs.tasks[t].name for t in schedule.steps),
        bytes_by_role={role: tuple(int(b) for b in series[role]) for role in ROLES},
        total_bytes=tuple(int(b) for b in total),
        is_recomputation=tuple(repeats),
        is_backward=tuple(any(n in roles.backward for n in tasks.nodes[t]) for t in schedule.steps),
        is_optimizer=tuple(any(roles.directions[n] == "optimizer" for n in tasks.nodes[t]) for t in schedule.steps),
        peak_step=peak,
        peak_bytes=int(total[peak]) if count else costs.resident_bytes,
        live_at_peak=_live(tasks, schedule, roles, peak, lives) if count else (),
        lifetimes=tuple(lifetimes) if count else (),
        layers=tuple(roles.layers.of(costs.tasks[t].name) for t in schedule.steps),
    )


def _live(tasks: TaskMap, schedule: Schedule, roles: Roles, step: int, lives: Versions) -> tuple[LiveBuffer, ...]:
    held = live_at(tasks.costs, schedule, step, lives)
    buffers = [live_buffer(tasks.values[b], roles.buffers[b], nbytes, roles) for b, nbytes in held if nbytes > 0]
    buffers += resident_buffers(tasks, roles)
    workspace = executed(tasks.costs, schedule.steps)[step].workspace_bytes
    if workspace:
        node = tasks.nodes[schedule.steps[step]][0]
        buffers.append(LiveBuffer(f"{node.name} (workspace)", node.op_type, roles.layers.of(node.name), "temporaries", workspace))
    return tuple(sorted(buffers, key=lambda live: (-live.nbytes, live.name)))


def resident_buffers(tasks: TaskMap, roles: Roles) -> list[LiveBuffer]:
    buffers: list[LiveBuffer] = []
    for value, nbytes in tasks.resident.items():
        live = replace(live_buffer(value, roles.resident[value], nbytes, roles), source="")  # what reads it first did not make it
        variable = tasks.graph.variables.get(value)
        if variable is not None:
            kind = f"{variable.dtype}{format_shape(variable.shape)}"
            live = replace(live, name=variable.name, type=kind, op_type="Variable", layer=_layer_of_variable(value, tasks.graph, roles))
        buffers.append(live)
    return buffers


def _layer_of_variable(value: Value, graph: Graph, roles: Roles) -> str:
    """Return the layer whose forward pass reads it; for optimizer state, the layer of its update."""
    is_state = roles.resident.get(value) == "optimizer state"
    for reader in value.consumers:
        if is_state or reader not in roles.backward:
            return roles.layers.of(reader.name)
    return graph.variables[value].name.rsplit("/", 1)[0]


def live_buffer(value: Value, role: Role, nbytes: int, roles: Roles) -> LiveBuffer:
    name, kind = value.producer.name, f"{value.dtype}{format_shape(value.shape)}"
    return LiveBuffer(value.name, value.producer.op_type, roles.layers.of(name), role, nbytes, kind, roles.line(name))


def make_layers(
    tasks: TaskMap, roles: Roles, timeline: Timeline, flops: FlopsOf | None, schedule: Schedule | None = None, loops: Collection[str] = ()
) -> tuple[LayerCost, ...]:
    """Return one row per layer, largest residuals first; without FLOPs if `flops` is None."""
    repeated = _repeated(schedule) if schedule is not None else set[int]()
    copied = {t for t, task in enumerate(tasks.costs.tasks) if task.again is not None}
    served = {
        "split": {roles.layers.of(node.name) for node in tasks.graph.nodes if PART in node.attrs},
        "segment": {roles.layers.of(loop) for loop in loops},
        "recompute": {roles.layers.of(node.name) for t in repeated - copied for node in tasks.nodes[t]},
        "offload": {roles.layers.of(node.name) for t in copied for node in tasks.nodes[t]},
    }
    rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for node in tasks.graph.nodes:
        if node.op_type in COMPUTES_NOTHING:
            continue
        row = rows[roles.layers.of(node.name)]
        row["ops"] += 1
        if flops is not None:
            row[roles.directions[node]] += flops(node) or 0.0
    for b, value in enumerate(tasks.values):
        if roles.buffers[b] == "residuals":
            rows[roles.layers.of(value.producer.name)]["residual"] += tasks.costs.buffers[b].nbytes
        if value.producer not in roles.backward:
            rows[roles.layers.of(value.producer.name)]["activation"] += tasks.costs.buffers[b].nbytes
    for value, variable in tasks.graph.variables.items():
        if roles.variables[value] in WEIGHTS:
            rows[_layer_of_variable(value, tasks.graph, roles)]["parameters"] += (variable.nbytes or 0) / (variable.dtype.itemsize or 1)
    for live in timeline.live_at_peak:
        rows[live.layer]["peak"] += live.nbytes
    result: list[LayerCost] = []
    for layer, row in rows.items():
        ops, parameters, residual, peak = (int(row[name]) for name in ("ops", "parameters", "residual", "peak"))
        verbs = tuple(verb for verb, layers in served.items() if layer in layers)
        flops_by_direction = row["forward"], row["backward"], residual, peak, row["optimizer"]
        result.append(LayerCost(layer, ops, parameters, *flops_by_direction, activation_bytes=row["activation"], verbs=verbs))
    return tuple(sorted(result, key=lambda r: (-r.residual_bytes, -r.flops, r.layer)))


def output_shapes(tasks: TaskMap, roles: Roles) -> dict[str, tuple[int, ...]]:
    """Return the output shape of each layer and scope in the forward pass, in order of execution."""
    shapes: dict[str, tuple[int, ...]] = {}
    layer = {node: roles.layers.of(node.name) for node in tasks.graph.nodes if node not in roles.backward}
    given_back = set(tasks.graph.outputs)
    for node in topological_order(tasks.graph):
        parts = layer.get(node, "").split("/")
        unread = node.outputs[:1] if not any(value.consumers for value in node.outputs) else ()
        if node.op_type in COMPUTES_NOTHING or not parts[0]:
            continue
        for scope in ("/".join(parts[:end]) for end in range(1, len(parts) + 1)):
            for value in node.outputs:
                outside = [n for n in value.consumers if n in layer and f"{layer[n]}/".startswith(f"{scope}/") is False]
                is_last = outside or value in given_back or value in unread or scope not in shapes
                if value.shape is not None and None not in value.shape and is_last:
                    shapes[scope] = tuple(d for d in value.shape if d is not None)
    return shapes


def _repeated(schedule: Schedule) -> set[int]:
    return {t for t, times in Counter(schedule.steps).items() if times > 1}


def make_decisions(tasks: TaskMap, schedule: Schedule, roles: Roles, flops: FlopsOf) -> tuple[BufferDecision, ...]:
    repeated = _repeated(schedule)
    decisions: list[BufferDecision] = []
    for b, buffer in enumerate(tasks.costs.buffers):
        if roles.buffers[b] != "residuals" or not buffer.nbytes or buffer.producer is None:
            continue
        value, instead = tasks.values[b], tasks.costs.tasks[buffer.producer].again
        again = buffer.producer in repeated and instead is None
        cost = sum(flops(n) or 0.0 for n in tasks.nodes[buffer.producer]) if again else 0.0
        layer, decision = roles.layers.of(value.producer.name), "recompute" if again else "save"
        decision = "offload" if instead is not None and b in instead.outputs else decision
        decisions.append(
            BufferDecision(value.name, value.producer.op_type, layer, buffer.nbytes, decision, cost, roles.line(value.producer.name))
        )
    return tuple(sorted(decisions, key=lambda d: (-d.nbytes, d.name)))


def count_executed(graph: Graph, roles: Roles | None = None) -> tuple[Execution, Tally]:
    """Count the operations of one execution of a flat graph, with FLOPs and bytes by direction, op type and layer."""
    execution = execute(graph, constant_array, infer_body=infer_body_shapes)
    return execution, tally(graph, execution, (roles.layers if roles else find_layers(graph)).of, roles.directions if roles else None)


def recomputed_flops_share(tasks: TaskMap, schedule: Schedule, flops: FlopsOf) -> float:
    per_task = [sum(flops(n) or 0.0 for n in nodes) for nodes in tasks.nodes]
    total = sum(per_task)
    repeats = sum(per_task[t] for t in schedule.steps if tasks.costs.tasks[t].again is None)
    repeats -= sum(per_task[t] for t, task in enumerate(tasks.costs.tasks) if task.again is None)
    return repeats / total if total else 0.0
