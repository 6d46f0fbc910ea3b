"""Gates as XLA's optimization barriers, where its compiler keeps them: on GPUs.

A barrier hands on all of its operands when all of them are there. So what a gate lets through goes through a barrier together with what the
backward part has made since the barrier before, or, where that is nothing, made last. XLA drops an operand of a barrier that nobody reads
behind it; so only what is read later on in the schedule is taken, and is read behind the barrier then.
"""

from collections.abc import Sequence

from graphwright.ir.edit.reroute import reroute
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import BARRIER, RECOMPUTED_FROM
from graphwright.ir.walk import topological_order
from graphwright.source.live_graph import is_numeric


def write_barriers(graph: Graph, gates: Sequence[Node], steps: Sequence[Sequence[Node]]) -> int:
    """Put barriers in the place of gates, those that wait for the same into one; returns how many there are.

    Args:
        gates: each an Identity, with control inputs that say which of them go together.
        steps: the nodes of each step of the backward part, in the order of the schedule.
    """
    position = {node: k for k, nodes in enumerate(steps) for node in nodes}
    made = [value for nodes in steps for node in nodes if RECOMPUTED_FROM not in node.attrs for value in node.outputs if is_numeric(value)]
    groups: dict[tuple[Node, ...], list[Node]] = {}
    for gate in gates:
        groups.setdefault(tuple(gate.control_inputs), []).append(gate)
    opening = [
        (min((k for gate in group for k in _readers(gate.outputs[0], position)), default=len(steps)), group) for group in groups.values()
    ]
    latest: dict[Value, Value] = {}
    done = 0
    for start, group in sorted(opening, key=lambda item: item[0]):
        crossing = [v for v in made if position[v.producer] < start <= max(_readers(latest.get(v, v), position), default=-1)]
        ties = [value for value in crossing if position[value.producer] >= done] or crossing[-1:]
        kept = list(dict.fromkeys([*(gate.inputs[0] for gate in group), *ties]))
        given = [latest.get(value, value) if value in ties else value for value in kept]
        barrier = graph.add_node(
            BARRIER,
            graph.unique_name(f"{group[0].name}/barrier"),
            inputs=given,
            attrs={"T": tuple(value.dtype for value in kept)},
            output_types=[(value.dtype, value.shape) for value in kept],
            device=group[0].device,
        )
        after = dict(zip(kept, barrier.outputs, strict=True))
        for gate in group:
            reroute(after[gate.inputs[0]], gate.outputs[0])
        for value, before in zip(kept, given, strict=True):
            if value in ties:
                reroute(after[value], before, can_modify=[use.node for use in before.uses if position.get(use.node, -1) >= start])
                latest[value] = after[value]
        done = start
    graph.remove_nodes(gates)
    graph.sort_nodes(topological_order(graph))
    return len(groups)


def _readers(value: Value, position: dict[Node, int]) -> list[int]:
    """The steps that read a value, perhaps behind one view."""
    readers = [use.node for use in value.uses]
    behind = [use.node for reader in readers if reader not in position for view in reader.outputs for use in view.uses]
    return [position[node] for node in (*readers, *behind) if node in position]
