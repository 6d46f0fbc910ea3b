"""Gates as XLA's optimization barriers, where its compiler keeps them: on GPUs.

A barrier hands on all of its operands when all of them are there. So what a gate lets through goes through a barrier together with what the
backward part has made since the barrier before, or, where that is nothing, made last. XLA drops an operand of a barrier that nobody reads
behind it; so only what is read later on in the schedule is taken, and is read behind the barrier then.
"""

from collections.abc import Mapping, Sequence

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
    latest: dict[Value, Value] = {}
    done = 0
    groups = _groups(graph, gates, position)
    for start, group in groups:
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


def _groups(graph: Graph, gates: Sequence[Node], position: Mapping[Node, int]) -> list[tuple[int, list[Node]]]:
    """Gates that can be one barrier, with the step at which it opens: all that they let through is there before."""
    opens = {gate: min(_readers(gate.outputs[0], position), default=len(position)) for gate in gates}
    ready: dict[Node, int] = {}  # the step in which what it needs is there; -1 before the backward part
    for node in topological_order(graph):
        before = max((ready[value.producer] for value in node.inputs), default=-1)
        ready[node] = opens[node] if node in opens else position.get(node, before)
    # One may let through what another one does, and comes behind it then.
    opening = sorted(((opens[node], node) for node in ready if node in opens), key=lambda item: item[0])
    groups: list[tuple[int, list[Node]]] = []
    last: dict[tuple[Node, ...], tuple[int, list[Node]]] = {}
    for start, gate in opening:
        waits = tuple(gate.control_inputs)
        if waits not in last or ready[gate.inputs[0].producer] >= last[waits][0]:
            last[waits] = (start, [])
            groups.append(last[waits])
        last[waits][1].append(gate)
    return groups


def _readers(value: Value, position: Mapping[Node, int]) -> list[int]:
    """The steps that read a value, perhaps behind nodes of no step: views, or what comes before the backward part; each is passed once."""
    found: list[int] = []
    values, seen = [value], set[Node]()
    while values:
        for use in values.pop().uses:
            if use.node in position:
                found.append(position[use.node])
            elif use.node.op_type != BARRIER and use.node not in seen:
                seen.add(use.node)
                values += use.node.outputs
    return found
