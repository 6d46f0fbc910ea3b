"""The calls in a graph, and whether the functions that they call still give what they gave.

The shapes of a call's results are those of the body, which is a graph of its own and edited by itself. So a graph
remembers, for each of its calls, the shapes of the results as they were when it last looked; it looks again when a shape
is read and any other graph was edited since, which one clock for all graphs tells. What a look costs grows with the
calls of the graph, not with its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from graphwright.ir.dtypes import Shape
from graphwright.ir.node import Node
from graphwright.ir.traits.control_flow import result_functions

if TYPE_CHECKING:
    from graphwright.ir.outputs import Outputs

_Shapes = tuple[Shape, ...]


class Calls:
    """The calls among the nodes of a graph, and the shapes of their functions' results when last looked at."""

    __slots__ = ("_results", "_unread")

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._results: dict[Node, tuple[_Shapes, ...]] = {}
        self._unread = dict.fromkeys(nodes)  # new, or edited: they may call something else now

    def note(self, node: Node) -> None:
        """Note a node that was added or edited."""
        self._unread[node] = None

    def discard(self, node: Node) -> None:
        """Forget a node."""
        self._results.pop(node, None)
        self._unread.pop(node, None)

    def outdated(self, graph: Outputs) -> list[Node]:
        """The calls whose functions give other shapes than when last asked about; of a new call, other ones than it has itself."""
        of_function: dict[str, _Shapes | None] = {}

        def results(node: Node) -> tuple[_Shapes, ...]:
            found: list[_Shapes] = []
            for name in result_functions(node):
                if name not in of_function:
                    function = graph.functions.get(name)
                    of_function[name] = None if function is None else tuple(value.shape for value in function.body.outputs)
                shapes = of_function[name]
                if shapes is not None:
                    found.append(shapes)
            return tuple(found)

        now = {node: results(node) for node in self._results if node not in self._unread}
        changed = [node for node, shapes in now.items() if shapes != self._results[node]]
        later = {node: None for node in self._unread if node in graph.unasked}
        for node in [node for node in self._unread if node not in later]:
            if found := results(node):
                now[node] = found
                own = tuple(value.last_shape for value in node.outputs)
                changed += [] if all(shapes == own for shapes in found) else [node]
        self._results, self._unread = now, later
        return changed
