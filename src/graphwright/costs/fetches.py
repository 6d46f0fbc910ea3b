"""What is fetched from a graph, as users name it: one value, operation or tensor, or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.graph import Graph, Node, Value


def output_names(outputs: Iterable[Any] | Any) -> list[str]:
    """The names of what was given.

    >>> output_names("loss"), output_names(["loss:0", "train"])
    (['loss'], ['loss:0', 'train'])
    """
    listed: Sequence[Any] = cast("Sequence[Any]", outputs) if isinstance(outputs, list | tuple) else [outputs]
    return [output if isinstance(output, str) else str(output.name) for output in listed]


def fetch(graph: Graph, outputs: Iterable[Any] | Any, *, whole: bool = False) -> tuple[list[Value], list[Node]]:
    """The values that are fetched, and the nodes without values that are run.

    Args:
        outputs: names, tensors or operations.
        whole: whether a node that is named stands for all of its values; else for the first.

    Raises:
        ArgumentError: one is not in the graph.
    """
    values: list[Value] = []
    nodes: list[Node] = []
    for name in output_names(outputs):
        node_name, _, index = name.partition(":")
        try:
            node = graph[node_name]
        except GraphError as error:
            raise ArgumentError(error.what, argument="outputs", cause=error.cause, remedy=error.remedy) from error
        at = int(index) if index.isdecimal() else 0
        if not node.outputs:
            nodes.append(node)
        elif at >= len(node.outputs):
            raise ArgumentError(f"{node_name!r} has {len(node.outputs)} outputs", argument="outputs", where=repr(name))
        else:
            values += node.outputs if whole and not index else [node.outputs[at]]
    return values, nodes


def check_takes_outputs(target: Any, *, is_graph: bool) -> None:
    """Raise where outputs are given for what says itself what it gives back."""
    if not is_graph and not isinstance(target, str | Path):
        raise ArgumentError(f"{type(target).__name__} has outputs of its own", argument="outputs", remedy="leave it out: it is for graphs")
