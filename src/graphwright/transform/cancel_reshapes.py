"""Remove reshapes that cancel each other."""

from collections.abc import Container

from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.values import RESHAPES, before_reshapes
from graphwright.ir.walk import order_of


def cancel_reshapes(graph: Graph, *, kept: Container[Node] = ()) -> int:
    """Let readers of a value that was reshaped back to its earlier shape read the earlier value; returns how many values were replaced.

    Reshapes that nothing reads any more are removed, unless they have control inputs or are in `kept`, such as those fetched by name.
    """
    nodes = [node for node in graph.nodes if node.op_type in RESHAPES and node not in kept]
    earlier = {value: before for node in nodes for value in node.outputs[:1] if (before := before_reshapes(value)) is not value}
    graph.replace_many_uses(earlier)
    borders = {value.producer for value in (*graph.inputs, *graph.outputs)}
    gone = dict[Node, None]()
    for node in reversed(order_of(graph.nodes)):
        is_read = any(use.node not in gone for value in node.outputs for use in value.uses) or node.control_consumers
        if node.op_type in RESHAPES and not is_read and not node.control_inputs and node not in borders and node not in kept:
            gone[node] = None
    graph.remove_nodes(list(gone))
    return len(earlier)
