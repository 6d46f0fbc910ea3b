"""A schedule applied to a step that XLA compiles: clones, and gates instead of an order.

XLA drops control edges and orders operations itself, by memory. This undoes a schedule in two ways:

- Equal computations are merged. So clones read through gates (`memory/xla/gates.py`).
- XLA fuses a cheap operation with every reader, also in the backward part, and then keeps the operation's inputs beside its result (the
  product of a dense layer beside its activation, 32 random bits beside a mask of 8). So the backward part reads *residuals* through solid
  gates.

The gate of a residual opens when the gradient before its first reader in the schedule is computed. So the coarse order of the schedule
holds.

XLA's compiler for GPUs keeps optimization barriers, which cost nothing; both ways of holding are compiled to find the better one.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from graphwright.analyze.backward import backward_nodes
from graphwright.analyze.cost import TaskMap
from graphwright.analyze.storages import SMALL_BYTES
from graphwright.ir.edit.insert import add_identity
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import GIVEN, RECOMPUTED_FROM, forwards_several
from graphwright.ir.traits.variables import is_read
from graphwright.ir.traits.views import is_view
from graphwright.ir.walk import topological_order
from graphwright.memory.xla.barriers import write_barriers
from graphwright.memory.xla.gates import add_gates
from graphwright.memory.xla.parts import add_part_gates, part_of
from graphwright.plan.model import Schedule
from graphwright.source.live_graph import is_numeric
from graphwright.source.traced_nodes import write_gates
from graphwright.transform.rematerialize import apply_schedule


@dataclass(frozen=True, slots=True)
class Holding:
    """How XLA is made to keep a schedule.

    Attributes:
        barriers: by XLA's optimization barriers (`memory/xla/barriers.py`) instead of opaque gates.
        residuals: whether the backward part reads residuals and sums of gradients through gates too, and not only clones their inputs.
    """

    barriers: bool
    residuals: bool


GATES = Holding(barriers=False, residuals=True)


def apply_for_xla(tasks: TaskMap, schedule: Schedule, holding: Holding = GATES) -> int:
    """Rewrite `tasks.graph` in place so that XLA, in its own order, keeps and recomputes what the schedule does.

    Returns:
        The number of gates; 0 if there is no backward part.
    """
    graph = tasks.graph
    backward = backward_nodes(graph)
    nodes_of = apply_schedule(tasks, schedule, fix_order=False)
    steps = [[node for node in nodes_of[k] if graph.owns(node)] for k in range(len(schedule.steps))]
    clones = {node for node in graph.nodes if RECOMPUTED_FROM in node.attrs}
    first = next((k for k, nodes in enumerate(steps) if not (backward.isdisjoint(nodes) and clones.isdisjoint(nodes))), len(steps))
    late = steps[first:]
    residuals = _hold_residuals(graph, set(tasks.resident), late, backward, clones) if holding.residuals else {}
    gates = dict(residuals)
    if clones:
        # Not all that the forward part leaves: bits of it would be read when the gate opens, and hold what they are read of.
        gates |= add_gates(graph, late, steps[first - 1] if first else (), clones, sums=holding.residuals)
    parts = add_part_gates(graph, steps, gates, residuals)
    gates |= parts
    graph.sort_nodes(topological_order(graph))
    if holding.barriers:
        early = {node for nodes in steps[:first] for node in nodes}
        in_turns = any(early.issuperset(gate.control_inputs) for gate in parts)  # parts take turns within the forward part
        write_barriers(graph, list(gates), steps, first=0 if in_turns else first)
    else:
        write_gates(graph, gates)
    return len(gates)


def _hold_residuals(
    graph: Graph, resident: AbstractSet[Value], late: Sequence[Sequence[Node]], backward: AbstractSet[Node], clones: AbstractSet[Node]
) -> dict[Node, bool]:
    """Let the backward part read large forward values through solid gates; return the gates."""
    # The forward part of all parts of a batch but the first comes late, too.
    inside = {node for nodes in late for node in nodes if node in backward or node in clones or part_of(node) is None}
    early = {node for node in graph.nodes if node not in inside}
    held = _Held(graph, early)
    gradient: Node | None = None
    for nodes in late:
        for node in (node for node in nodes if node in inside):
            for k, value in enumerate(node.inputs):
                root = held.root_of(value)
                is_given = root in resident or root.producer.op_type in GIVEN or is_read(root.producer)
                if gradient is not None and root.producer in early and not is_given and _is_large(root):
                    graph.replace_input(node, k, held.behind_gate(value, root, gradient))
        gradients = [node for node in nodes if node in backward and node not in clones and not is_view(node) and _has_gradient(node)]
        gradient = gradients[-1] if gradients else gradient
    return dict.fromkeys(held.gates, True)


def _is_large(value: Value) -> bool:
    return (value.nbytes or 0) > SMALL_BYTES and is_numeric(value)


def _has_gradient(node: Node) -> bool:
    value = next((value for value in node.outputs if is_numeric(value)), None)
    return value is not None and _is_large(value)


class _Held:
    """Residuals behind gates, one gate per storage, and the views that the backward part has of them."""

    def __init__(self, graph: Graph, early: AbstractSet[Node]) -> None:
        self.gates: list[Node] = []
        self._graph, self._early = graph, early
        self._behind: dict[Value, Value] = {}

    def root_of(self, value: Value) -> Value:
        """Return the value that owns the storage, as far back as views in the forward part go."""
        while value.producer in self._early and is_view(value.producer) and not forwards_several(value.producer):
            if not value.producer.inputs:
                break
            value = value.producer.inputs[0]
        return value

    def behind_gate(self, value: Value, root: Value, gradient: Node) -> Value:
        """Return the value as the backward part reads it; a new gate waits for the gradient."""
        if value not in self._behind:
            node = value.producer
            if value is root:
                new = add_identity(value, f"kept/{node.name}", control_inputs=[gradient])
                self.gates.append(new)
            else:
                new = self._graph.add_node(
                    node.op_type,
                    self._graph.unique_name(f"kept/{node.name}"),
                    inputs=[self.behind_gate(node.inputs[0], root, gradient), *node.inputs[1:]],
                    attrs=dict(node.attrs),
                    output_types=[(value.dtype, value.shape)],
                    device=node.device,
                    extra=node.extra,
                )
            self._behind[value] = new.outputs[0]
        return self._behind[value]
