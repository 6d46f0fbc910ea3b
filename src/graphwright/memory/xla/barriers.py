"""Gates as XLA's optimization barriers, where its compiler keeps them: on GPUs.

A barrier hands on all of its operands when all of them are there. So a gate that waits for gradients becomes a barrier of what it lets
through and of those gradients. XLA drops an operand of a barrier that nobody reads behind it; so what reads those gradients later on in the
schedule reads them behind the barrier.
"""

from collections.abc import Sequence

from graphwright.ir.edit.reroute import reroute
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import BARRIER
from graphwright.ir.walk import topological_order
from graphwright.source.live_graph import numeric_output


def write_barriers(graph: Graph, gates: Sequence[Node], steps: Sequence[Sequence[Node]]) -> int:
    """Put barriers in the place of gates, those that wait for the same into one; returns how many there are.

    Args:
        gates: each an Identity that waits for nodes with a `numeric_output`.
        steps: the nodes of each step of the backward part, in the order of the schedule.
    """
    position = {node: k for k, nodes in enumerate(steps) for node in nodes}
    groups: dict[tuple[Node, ...], list[Node]] = {}
    for gate in gates:
        groups.setdefault(tuple(gate.control_inputs), []).append(gate)

    def opens(group: Sequence[Node]) -> int:
        """The first step that reads through one of the gates, perhaps behind a view."""
        readers = [use.node for gate in group for use in gate.outputs[0].uses]
        readers += [use.node for reader in readers if reader not in position for value in reader.outputs for use in value.uses]
        return min((position[reader] for reader in readers if reader in position), default=len(steps))

    latest: dict[Value, Value] = {}
    for start, waits, group in sorted(((opens(group), waits, group) for waits, group in groups.items()), key=lambda item: item[0]):
        behind = [value for value in map(numeric_output, waits) if value is not None]
        kept = list(dict.fromkeys([*(gate.inputs[0] for gate in group), *behind]))
        given = [latest.get(value, value) if value in behind else value for value in kept]
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
            if value in behind:
                later = [use.node for use in before.uses if position.get(use.node, -1) >= start]
                reroute(after[value], before, can_modify=later)
                latest[value] = after[value]
    graph.remove_nodes(gates)
    graph.sort_nodes(topological_order(graph))
    return len(groups)
