"""Let the readers of a loop wait until the loop has ended.

TensorFlow lowers a loop to Switch and Exit nodes. When its condition turns false, results leave by the Exits at once, while the body is
traversed once more, as *dead* nodes; until then the loop holds its arguments. With two threads or more, readers may start meanwhile.

A thread processes dead and cheap nodes first in, first out, so a row of `NoOp`s after the Exits that is longer than the longest path
through the body ends after the body (executor.cc, `ExecutorState::ScheduleReady`, and lower_while_op.cc in TensorFlow 2.21).
"""

from graphwright.ir.edit.insert import insert_after
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import LOOPS, called_functions
from graphwright.ir.walk import producers_of, topological_order

_LOWERED = 12
"""Nodes that lowering and inlining put on a path in front of a body or a branch and behind it: Enter, Merge, Switch, Identities, NoOps,
NextIteration."""


def wait_for_loop_ends(graph: Graph) -> int:
    """Put a row of `NoOp`s between each loop and its readers, also inside functions; return how many loops changed.

    Call it when the order is fixed.
    """
    rows = _Rows(graph)
    rows.insert(graph)
    return rows.changed


class _Rows:
    """Rows of `NoOp`s as long as the bodies that they wait for, inner bodies first."""

    def __init__(self, graph: Graph) -> None:
        self.functions = graph.functions
        self.depths: dict[str, int] = {}
        self.changed = 0

    def insert(self, body: Graph) -> None:
        loops: dict[Node, int] = {}
        for node in body.nodes:
            depth = self._inside(node)
            if node.op_type in LOOPS and (any(v.uses or v in body.outputs for v in node.outputs) or node.control_consumers):
                loops[node] = depth + 1
        for loop, length in loops.items():
            _wait(body, loop, length)
        if loops:
            body.sort_nodes(topological_order(body))
        self.changed += len(loops)

    def _inside(self, node: Node) -> int:
        return sum(self._depth(name) for name in called_functions(node) if name in self.functions)

    def _depth(self, name: str) -> int:
        if name not in self.depths:
            self.depths[name] = 0  # a function that calls itself
            body = self.functions[name].body
            self.insert(body)
            longest: dict[Node, int] = {}
            for node in topological_order(body):
                longest[node] = max((longest[n] for n in producers_of(node)), default=0) + 1 + self._inside(node)
            self.depths[name] = max(longest.values(), default=0) + _LOWERED
        return self.depths[name]


def _wait(graph: Graph, loop: Node, length: int) -> None:
    waiting, last = loop.control_consumers, loop
    for _ in range(length):
        last = graph.add_node("NoOp", graph.unique_name(f"{loop.name}/ends"), control_inputs=[last], device=loop.device)
    for value in loop.outputs:
        if value.uses or value in graph.outputs:
            over = insert_after(value, "Identity", f"{loop.name}/over", attrs={"T": value.dtype})
            graph.add_control_input(over, last)
    for node in waiting:
        graph.add_control_input(node, last)
        graph.remove_control_input(node, loop)
