"""Replace calls of functions by the functions' bodies, in the graph itself or in a new one."""

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
    """Inline every call, nested ones too, and keep signatures, collections and names around it; returns how many.

    What TF2 exports is a signature that calls a function that calls the model; a job that looks at
    the model's nodes runs on the inlined graph. A call that a collection names stays, such as the one that restores variables. While, If
    and Case stay nodes with their functions. Each call is inlined by `ir.edit.inline`, which says what is kept of its order and effects.

    Args:
        purity: tells which nodes have no effects; without it, every node of a body counts as having some.
        strict: as for `ir.edit.inline`.
        compiled: whether to inline calls that XLA compiles too.

    Raises:
        GraphError: a called function is not in the library.
        UnsupportedError: a function calls itself, or the functions nest too deep (`graphwright.ir.nesting`).

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "main"
    ... %x = Placeholder() : float32[2]
    ... %call = PartitionedCall(%x:0) {f = @f} : float32[2]
    ... function "f"
    ... inputs %a:0
    ... outputs %r:0
    ... %a = _Arg() : float32[2]
    ... %r = Relu(%a:0) : float32[2]
    ... ''')
    >>> [node.name for node in inline_functions(g)], inline_calls(g), [node.name for node in g]
    (['x', 'call/r'], 1, ['x', 'call/r'])
    """
    check_nesting(graph)
    purity = purity or Purity(graph, {})
    held = {node_of(item) for c in graph.collections.values() for item in c.references()}

    def goes(node: Node) -> bool:
        return is_call(node, graph) and (compiled or not is_compiled_call(node))

    waiting = [node for node in graph.nodes if goes(node) and node not in held]
    with garbage_collection_paused():
        order = {node: [node] for node in graph.nodes}  # and what stands in the place of calls
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
    """A new graph in which every call is inlined, so that forward and backward pass lie in one joint graph.

    Not as strict as `inline_calls`, which has the same arguments and errors: what ran after a call runs after the effects of its body,
    and a result is there as early as the node that makes it. The graph has neither signatures nor collections.
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
