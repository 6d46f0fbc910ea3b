"""Gates as XLA's optimization barriers, which its compiler keeps on GPUs.

A barrier forwards its operands when all of them are computed. So the value that a gate lets through goes through a barrier together with
the results of the backward part since the barrier before, or with its last result. XLA drops operands that nothing reads behind the
barrier; so only values that are read later are taken, and they are read behind it.
"""

from collections.abc import Mapping, Sequence

from graphwright.ir.edit.reroute import reroute
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import BARRIER, RECOMPUTED_FROM
from graphwright.ir.walk import topological_order
from graphwright.source.live_graph import is_numeric


def write_barriers(graph: Graph, gates: Sequence[Node], steps: Sequence[Sequence[Node]], *, first: int = 0) -> int:
    """Replace gates by barriers, one for all gates that wait for the same; return the number of barriers.

    Args:
        gates: each an Identity, whose control inputs say which gates go together.
        steps: the nodes of each step, in the order of the schedule.
        first: the first step whose results can be waited for, usually that of the backward part.
    """
    position = {node: k for k, nodes in enumerate(steps) for node in nodes}
    results = [v for nodes in steps[first:] for node in nodes if RECOMPUTED_FROM not in node.attrs for v in node.outputs if is_numeric(v)]
    last = {value: max(_readers(value, position), default=-1) for value in results}
    latest: dict[Value, Value] = {}
    coming, read_later, done = iter(results), list[Value](), 0
    upcoming = next(coming, None)
    groups = _groups(graph, gates, position)
    for start, group in groups:
        while upcoming is not None and position[upcoming.producer] < start:
            read_later.append(upcoming)
            upcoming = next(coming, None)
        read_later = [value for value in read_later if last[value] >= start]
        ties = dict.fromkeys([value for value in read_later if position[value.producer] >= done] or read_later[-1:])
        values = list(dict.fromkeys([*(gate.inputs[0] for gate in group), *ties]))
        operands = [latest.get(value, value) if value in ties else value for value in values]
        barrier = graph.add_node(
            BARRIER,
            graph.unique_name(f"{group[0].name}/barrier"),
            inputs=operands,
            attrs={"T": tuple(value.dtype for value in values)},
            output_types=[(value.dtype, value.shape) for value in values],
            device=group[0].device,
        )
        after = dict(zip(values, barrier.outputs, strict=True))
        for gate in group:
            reroute(after[gate.inputs[0]], gate.outputs[0])
        for value, before in zip(values, operands, strict=True):
            if value in ties:
                reroute(after[value], before, can_modify=[use.node for use in before.uses if position.get(use.node, -1) >= start])
                latest[value] = after[value]
        done = start
    graph.remove_nodes(gates)
    graph.sort_nodes(topological_order(graph))
    return len(groups)


def _groups(graph: Graph, gates: Sequence[Node], position: Mapping[Node, int]) -> list[tuple[int, list[Node]]]:
    """Return gates that can share a barrier, with the step at which it opens."""
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


def _readers(value: Value, position: Mapping[Node, int]) -> set[int]:
    readers, seen, asked = set[int](), {value}, [value]
    while asked:
        for use in asked.pop().uses:
            if use.node in position:
                readers.add(position[use.node])
            elif use.node.op_type != BARRIER:
                views = [view for view in use.node.outputs if view not in seen]
                seen.update(views)
                asked += views
    return readers
