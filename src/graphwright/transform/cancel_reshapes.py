"""Remove reshapes that cancel each other."""

from collections.abc import Container

from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.values import RESHAPES, before_reshapes
from graphwright.ir.walk import order_of


def cancel_reshapes(graph: Graph, *, kept: Container[Node] = ()) -> int:
    """Let readers of a value that was reshaped back to its earlier shape read the earlier value; returns how many values were replaced.

    Reshapes that nothing reads any more are removed, unless they have control inputs.

    Args:
        kept: reshapes that stay, such as those that are fetched by name.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''graph "g"
    ... inputs %x:0, %s:0, %t:0
    ... outputs %relu:0
    ... %x = Placeholder() : float32[6]
    ... %s = Placeholder() : int32[2]
    ... %t = Placeholder() : int32[1]
    ... %y = Reshape(%x:0, %s:0) {T = float32, Tshape = int32} : float32[2,3]
    ... %z = Reshape(%y:0, %t:0) {T = float32, Tshape = int32} : float32[6]
    ... %relu = Relu(%z:0) {T = float32} : float32[6]''')
    >>> cancel_reshapes(g), g["relu"].inputs[0].name
    (1, 'x:0')
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
