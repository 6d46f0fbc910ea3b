"""Replace calls of functions by the functions' bodies, in the graph itself."""

from __future__ import annotations

from graphwright.ir.edit.inline import inline
from graphwright.ir.graph import Graph
from graphwright.ir.nesting import check_nesting
from graphwright.ir.signature import node_of
from graphwright.ir.traits.control_flow import is_call
from graphwright.ir.traits.effects import Purity
from graphwright.transform.interface import put_in_order


def inline_calls(graph: Graph, purity: Purity | None = None) -> int:
    """Inline every call, nested ones too, and keep signatures, collections and names around it; returns how many.

    What TF2 exports is a signature that calls a function that calls the model; a job that looks at
    the model's nodes runs on the inlined graph. Unlike `inline_functions` it changes the graph in
    place. A call that a collection names stays, such as the one that restores variables. While, If
    and Case stay nodes with their functions. Each call is inlined by `ir.edit.inline`, which says what is kept of its order and effects.

    Args:
        purity: tells which nodes have no effects; without it, every node of a body counts as having some.

    Raises:
        GraphError: a called function is not in the library.
        UnsupportedError: a function calls itself, or the functions nest too deep (`graphwright.ir.nesting`).

    >>> from graphwright.ir.attributes import FunctionReference
    >>> from graphwright.ir.graph import DTYPES, Function
    >>> f32 = (DTYPES["float32"], (2,))
    >>> body = Graph("f")
    >>> arg = body.add_node("_Arg", "a", output_types=[f32]).outputs[0]
    >>> body.inputs, body.outputs = [arg], [body.add_node("Relu", "r", inputs=[arg], output_types=[f32]).outputs[0]]
    >>> g = Graph("main", functions={"f": Function("f", body)})
    >>> body.functions = g.functions
    >>> x = g.add_node("Placeholder", "x", output_types=[f32]).outputs[0]
    >>> call = g.add_node("PartitionedCall", "call", inputs=[x], attrs={"f": FunctionReference("f")}, output_types=[f32])
    >>> g.inputs, g.outputs = [x], [call.outputs[0]]
    >>> inline_calls(g), [node.name for node in g]
    (1, ['x', 'call/r'])
    """
    check_nesting(graph)
    purity = purity or Purity(graph, {})
    held = {node_of(item) for c in graph.collections.values() for item in c.references()}
    waiting = [node for node in graph.nodes if is_call(node, graph) and node not in held]
    count = 0
    while waiting:
        node = waiting.pop()
        waiting += [inner for inner in inline(node, purity=purity).nodes if is_call(inner, graph)]
        count += 1
    if count:
        put_in_order(graph)
    return count
