"""Breadth-first walks, forward and backward, that may go into the functions that nodes call, and out to where they are called."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from graphwright.ir.attributes import FunctionReference
from graphwright.ir.traits import CALL_TYPES

if TYPE_CHECKING:
    from graphwright.editor.function_graph import FunctionGraph
    from graphwright.editor.graph import Graph
    from graphwright.editor.node import Node
    from graphwright.editor.tensor import Tensor


class GraphVisitor:
    """What is called with each node of a walk. Returning something true from `visit_node` ends the walk.

    >>> class Count(GraphVisitor):
    ...     total = 0
    ...     def visit_node(self, n):
    ...         self.total += 1
    """

    def visit_node(self, n: Node) -> Any:
        """Called with each node, once."""
        raise NotImplementedError

    def __call__(self, n: Node) -> Any:
        """The same as `visit_node`."""
        return self.visit_node(n)


Visitor = GraphVisitor | Callable[["Node"], Any]


class Walk:
    """One walk with its options; what it has visited is shared with the walks through functions that it starts."""

    def __init__(self, graph: Graph, visitor: Visitor, visited: set[Node] | None, iterate_functions: bool, escape_functions: bool) -> None:
        self._graph = graph
        self._visit = visitor
        self._visited: set[Node] = set() if visited is None else visited
        self._iterate = iterate_functions
        self._escape = escape_functions

    def forward(self, starts: Iterable[Node], max_depth: int | None, escape: bool | None = None) -> bool:
        """Visit what depends on the starting nodes; True when the visitor or the depth ended it early."""
        escape = self._escape if escape is None else escape
        starts = list(starts)
        first = set(starts)
        queue: deque[tuple[Node, Tensor | None, int | None]] = deque((n, None, max_depth) for n in starts)
        functions: set[str] = set()
        while queue:
            node, way, depth = queue.popleft()
            if node in self._visited:
                continue
            if self._is_visited_and_ends(node):
                return True
            if escape and _function_of(node) is not None:
                functions.add(node.graph.name)
            self._visited.add(node)
            if self._iterate and node.op_type in CALL_TYPES and self.forward(self._arguments(node, way), _less(depth), escape=False):
                return True
            for tensor in node.outputs:
                for consumer in tensor.consumers():
                    if consumer in self._visited or consumer in first:
                        continue
                    if depth is not None and depth <= 0:
                        return True
                    queue.append((consumer, tensor, _less(depth)))
        for call in list(self._calls_of(functions)) if functions else ():
            after = dict.fromkeys(consumer for tensor in call.outputs for consumer in tensor.consumers())
            if self.forward(after, _less(max_depth), escape=True):
                return True
        return False

    def backward(self, starts: Iterable[Node], max_depth: int | None, escape: bool | None = None) -> bool:
        """Visit what the starting nodes depend on; True when the visitor or the depth ended it early."""
        escape = self._escape if escape is None else escape
        starts = list(starts)
        first = set(starts)
        queue: deque[tuple[Node, int | None]] = deque((n, max_depth) for n in starts)
        functions: set[str] = set()
        while queue:
            node, depth = queue.popleft()
            if node in self._visited:
                continue
            if self._is_visited_and_ends(node):
                return True
            if escape and _function_of(node) is not None:
                functions.add(node.graph.name)
            self._visited.add(node)
            enters = self._iterate and node.op_type in CALL_TYPES and node not in first
            if enters and self.backward(self._called(node).output_nodes, _less(depth), escape=False):
                return True
            for tensor in node.inputs:
                if tensor.op in self._visited or tensor.op in first:
                    continue
                if depth is not None and depth <= 0:
                    return True
                queue.append((tensor.op, _less(depth)))
        calls = list(self._calls_of(functions)) if functions else []
        return bool(calls) and self.backward(calls, _less(max_depth), escape=True)

    def _is_visited_and_ends(self, node: Node) -> bool:
        function = _function_of(node)
        is_argument = function is not None and node in function.input_nodes
        return not is_argument and bool(self._visit(node))

    def _called(self, node: Node) -> FunctionGraph:
        reference = node.ir.attrs["f"]
        assert isinstance(reference, FunctionReference)
        return self._graph.get_function_graph_by_name(reference.name)

    def _arguments(self, node: Node, way: Tensor | None) -> list[Node]:
        """The arguments of the called function that the walk arrives at."""
        arguments = self._called(node).input_nodes
        taken = [a for a, tensor in zip(arguments, node.inputs, strict=False) if tensor == way]
        return taken or arguments

    def _calls_of(self, functions: set[str]) -> Iterator[Node]:
        for node in self._graph.nodes_iterator(iterate_functions=True):
            if node.op_type in CALL_TYPES:
                reference = node.ir.attrs.get("f")
                if isinstance(reference, FunctionReference) and reference.name in functions:
                    yield node


def _function_of(node: Node) -> FunctionGraph | None:
    from graphwright.editor.function_graph import FunctionGraph

    return node.graph if isinstance(node.graph, FunctionGraph) else None


def _less(depth: int | None) -> int | None:
    return None if depth is None else depth - 1
