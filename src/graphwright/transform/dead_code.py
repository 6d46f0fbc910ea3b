"""Remove what nothing reads any more. What the outputs do not need, `ir.edit.prune` removes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from graphwright.ir.graph import Graph, Node


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
