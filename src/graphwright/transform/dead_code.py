"""Remove what no output and no effect needs."""

from __future__ import annotations

from graphwright.ir.graph import Graph
from graphwright.ir.walk import needed_nodes


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
