"""Add many terms as they are computed, instead of all at once.

The gradient of a value with many readers is a sum of as many terms (`AddN`), all of which are live until the last is computed. Sums of two
terms hold a total, the total of at most eight terms, and one term. They add in the order of `AddN`'s kernel, so the result is bit for bit
the same, unless that kernel writes into another term than the first because the first is shared.
"""

from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import add_in_kernel_order, adds_any_number
from graphwright.ir.walk import topological_order


def large_sums(graph: Graph, least_bytes: int) -> list[Node]:
    """Return the sums of three and more terms that take so many bytes with their terms."""
    sums = [node for node in graph.nodes if adds_any_number(node) and len(node.inputs) > 2]
    return [node for node in sums if (len(node.inputs) + 1) * (node.outputs[0].nbytes or 0) >= max(least_bytes, 1)]


def add_up_in_turn(graph: Graph, sums: list[Node]) -> None:
    """Replace each sum, in place, by sums of two terms, each after its later term."""
    place = {node: (k, 0) for k, node in enumerate(topological_order(graph))}
    for node in sums:

        def add(a: Value, b: Value, node: Node = node) -> Value:
            name, result = graph.unique_name(f"{node.name}_part"), node.outputs[0]
            attrs, types = {**node.attrs, "N": 2}, [(result.dtype, result.shape)]
            total = graph.add_node(node.op_type, name, inputs=[a, b], attrs=attrs, output_types=types, device=node.device)
            place[total] = max(place[a.producer], place[b.producer])[0], len(place)
            return total.outputs[0]

        last = add_in_kernel_order(node.inputs, add).producer
        graph.set_attr(node, "N", 2)
        graph.set_inputs(node, last.inputs)
        graph.remove_node(last)
        del place[last]
    graph.sort_nodes(sorted(place, key=place.__getitem__))
