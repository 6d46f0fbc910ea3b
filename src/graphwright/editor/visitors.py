"""Breadth-first walks, forward and backward, that may enter called functions and leave functions through their calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from graphwright.editor.node import Node
from graphwright.editor.tensor import Tensor
from graphwright.ir.traits.control_flow import CALL_TYPES, callee


class GraphVisitor:
    """A function of nodes for walks. A true result of `visit_node` ends the walk.

    >>> class Count(GraphVisitor):
    ...     total = 0
    ...     def visit_node(self, n):
    ...         self.total += 1
    """

    def visit_node(self, n: Node) -> Any:
        """Visit a node, once."""
        raise NotImplementedError

    def __call__(self, n: Node) -> Any:
        return self.visit_node(n)


Visitor = GraphVisitor | Callable[[Node], Any]


@dataclass
class Walk:
    """One walk through a `gde.Graph`. Walks through functions share its visited nodes."""

    graph: Any
    visit: Visitor
    visited: set[Node]
    iterate_functions: bool
    escape_functions: bool
    forward: bool

    def go(self, starts: Iterable[Node], max_depth: int | None, escape: bool | None = None) -> bool:
        """Visit the starting nodes and all nodes in the direction of the walk; return whether it ended early."""
        escape = self.escape_functions if escape is None else escape
        first = dict.fromkeys(starts)
        queue: deque[tuple[Node, Tensor | None, int | None]] = deque((n, None, max_depth) for n in first)
        functions: set[str] = set()
        while queue:
            node, edge, depth = queue.popleft()
            if node in self.visited:
                continue
            function: Any = node.graph if hasattr(node.graph, "parent_graph") else None
            if (function is None or node not in function.input_nodes) and self.visit(node):
                return True
            if escape and function is not None:
                functions.add(function.name)
            self.visited.add(node)
            enters = self.iterate_functions and node.op_type in CALL_TYPES and (self.forward or node not in first)
            if enters and self.go(self._entrance(node, edge), _less(depth), escape=False):
                return True
            for neighbor, tensor in self._neighbors(node):
                if neighbor in self.visited or neighbor in first:
                    continue
                if depth is not None and depth <= 0:
                    return True
                queue.append((neighbor, tensor, _less(depth)))
        nodes = self.graph.nodes_iterator(iterate_functions=True) if functions else ()
        for call in [node for node in nodes if node.op_type in CALL_TYPES and callee(node.ir) in functions]:
            if self.go([n for n, _ in self._neighbors(call)] if self.forward else [call], _less(max_depth), escape=True):
                return True
        return False

    def _neighbors(self, node: Node) -> Iterator[tuple[Node, Tensor]]:
        if self.forward:
            return ((consumer, tensor) for tensor in node.outputs for consumer in tensor.consumers())
        return ((tensor.op, tensor) for tensor in node.inputs)

    def _entrance(self, call: Node, edge: Tensor | None) -> list[Node]:
        """Return the nodes where a walk enters the called function: its results, or the arguments that a forward walk arrives at."""
        called = self.graph.get_function_graph_by_name(callee(call.ir))
        if not self.forward:
            return called.output_nodes
        return [a for a, tensor in zip(called.input_nodes, call.inputs, strict=False) if tensor == edge] or called.input_nodes


def _less(depth: int | None) -> int | None:
    return None if depth is None else depth - 1
