"""Remove what no output and no effect needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from graphwright.ir.graph import Graph, Node
from graphwright.ir.walk import needed_nodes


def remove_unread(graph: Graph, nodes: Iterable[Node], may_go: Callable[[Node], bool]) -> None:
    """Remove those of the nodes that nothing reads or waits for, and what only they needed, as far as it may go."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if not graph.owns(node) or graph.is_border(node) or node.control_consumers or any(v.uses for v in node.outputs):
            continue
        if may_go(node):
            waiting += [*(v.producer for v in node.inputs), *node.control_inputs]
            graph.remove_node(node)


def remove_dead_code(graph: Graph) -> int:
    """Remove the nodes that outputs, control outputs and inputs do not need; returns how many.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> a = g.add_node("Const", "a", output_types=[(DTYPES["float32"], ())])
    >>> b = g.add_node("Const", "b", output_types=[(DTYPES["float32"], ())])
    >>> g.outputs = [a.outputs[0]]
    >>> remove_dead_code(g), [n.name for n in g]
    (1, ['a'])
    """
    needed = needed_nodes(graph)
    dead = [node for node in graph.nodes if node not in needed]
    graph.remove_nodes(dead)
    return len(dead)
