"""Removal of nodes that nothing needs."""

from collections.abc import Callable, Iterable, Sequence

from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.walk import needed_nodes


def prune(
    graph: Graph,
    outputs: Sequence[Value] | None = None,
    *,
    signatures: bool = True,
    collections: bool = True,
) -> int:
    """Remove what is not needed; return the number of removed nodes.

    Args:
        outputs: replace those of the graph; None keeps them.
        signatures: whether to keep what signatures need. Otherwise those that lose an output are removed.
        collections: whether to keep what collections hold. Otherwise removed nodes are dropped from them.
    """
    if outputs is not None:
        graph.outputs = outputs
    needed = needed_nodes(graph, signatures=signatures, collections=collections)
    doomed = [node for node in graph if node not in needed]
    for name, signature in list(graph.signatures.items()):
        if any(v.producer not in needed for v in (*signature.inputs.values(), *signature.outputs.values())):
            del graph.signatures[name]
    graph.remove_nodes(doomed)
    return len(doomed)


def remove_unread(graph: Graph, nodes: Iterable[Node], may_go: Callable[[Node], bool]) -> None:
    """Remove nodes that nothing reads or waits for, and then nodes that only they needed, as far as `may_go` allows."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if not graph.owns(node) or graph.is_border(node) or node.control_consumers or any(v.use_count for v in node.outputs):
            continue
        if may_go(node):
            waiting += [*(v.producer for v in node.inputs), *node.control_inputs]
            graph.remove_node(node)
