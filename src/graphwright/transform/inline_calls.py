"""Inline calls of functions, in place or in a new graph."""

from itertools import takewhile

from graphwright.ir.colocation import ATTRIBUTE as COLOCATION
from graphwright.ir.edit.copying import copy_whole
from graphwright.ir.edit.inline import inline
from graphwright.ir.edit.library import reached_functions
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph, Node
from graphwright.ir.nesting import check_nesting
from graphwright.ir.signature import node_of
from graphwright.ir.traits.control_flow import is_call, is_compiled_call
from graphwright.ir.traits.effects import Purity
from graphwright.transform.interface import put_in_order


def inline_calls(graph: Graph, purity: Purity | None = None, *, strict: bool = True, compiled: bool = True) -> int:
    """Inline all calls, nested ones too; returns how many. Signatures, collections and the names of other nodes stay.

    A TF2 export is a signature that calls a function that calls the model; jobs on the model's nodes need the inlined graph. Calls in a
    collection stay, such as the one that restores variables. While, If and Case stay nodes with functions. `purity` and `strict` are
    arguments of `ir.edit.inline`; `compiled` tells whether to inline calls that XLA compiles too.

    Raises:
        GraphError: a called function is not in the library.
        UnsupportedError: a function calls itself, or the functions are nested too deep (`graphwright.ir.nesting`).
    """
    check_nesting(graph)
    purity = purity or Purity(graph, {})
    held = {node_of(item) for c in graph.collections.values() for item in c.references()}

    def goes(node: Node) -> bool:
        return is_call(node, graph) and (compiled or not is_compiled_call(node))

    waiting = [node for node in graph.nodes if goes(node) and node not in held]
    with garbage_collection_paused():
        order = {node: [node] for node in graph.nodes}  # replacements of calls included
        for call in waiting:  # grows while it is walked
            inline(call, purity=purity, strict=strict)
            order[call] = list(takewhile(lambda node: node not in order, reversed(graph)))[::-1]
            order.update((node, [node]) for node in order[call])
            waiting += filter(goes, order[call])
        for call in reversed(waiting):
            order[call] = [inner for node in order[call] for inner in order.pop(node)]
    if waiting:
        graph.sort_nodes([node for nodes in order.values() for node in nodes])
        put_in_order(graph)
    return len(waiting)


def inline_functions(graph: Graph, purity: Purity | None = None, *, compiled: bool = True) -> Graph:
    """Return a new graph in which all calls are inlined, so that forward and backward pass are one graph.

    Arguments and errors are those of `inline_calls`. The order is less strict: nodes after a call wait only for the effects of its
    body, and a result is available when its node has run. The new graph has no signatures and no collections.
    """
    graph.settle_shapes()
    result = copy_whole(graph, Graph(graph.name, functions=graph.functions, versions=graph.versions), {}).graph
    result.shapes = result.op_rule = None
    inline_calls(result, purity, strict=False, compiled=compiled)
    result.inlined = len(result) + sum(len(result.functions[name].body) for name in reached_functions(result, result.nodes))
    for node in result.nodes:
        if COLOCATION in node.attrs:  # it names nodes that are gone
            result.set_attr(node, COLOCATION, None)
    return result
