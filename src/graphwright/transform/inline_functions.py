"""Inline nested function calls, so that forward and backward pass lie in one joint graph."""

from __future__ import annotations

from graphwright.ir.colocation import ATTRIBUTE as COLOCATION
from graphwright.ir.edit.copying import copy_whole
from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity
from graphwright.transform.inline_calls import inline_calls


def inline_functions(graph: Graph, purity: Purity | None = None) -> Graph:
    """A new graph in which every function call is replaced by the function's body, nested calls included.

    While, If and Case stay nodes with their functions. Nodes of a body are named
    `<call>/<node>`. What ran after a call runs after all effects of its body; what a call
    waited for, the nodes of the body wait for that have effects or read a resource.

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
    >>> x = g.add_node("Placeholder", "x", output_types=[f32]).outputs[0]
    >>> call = g.add_node("PartitionedCall", "call", inputs=[x], attrs={"f": FunctionReference("f")}, output_types=[f32])
    >>> g.inputs, g.outputs = [x], [call.outputs[0]]
    >>> [n.name for n in inline_functions(g)]
    ['x', 'call/r']
    """
    graph.settle_shapes()
    result = copy_whole(graph, Graph(graph.name, functions=graph.functions, versions=graph.versions), {}).graph
    result.shape_rule = result.op_rule = None
    inline_calls(result, purity, strict=False)
    for node in result.nodes:
        if COLOCATION in node.attrs:  # it names nodes that are gone
            result.set_attr(node, COLOCATION, None)
    return result
