"""The boundary between some nodes of a graph and the rest of it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from graphwright.errors import GraphError
from graphwright.ir.graph import Graph, Node, Value


class Boundary(NamedTuple):
    """The edges between a set of nodes and the rest of its graph."""

    inputs: tuple[Value, ...]
    """Values from outside that the nodes read."""
    outputs: tuple[Value, ...]
    """Values of the nodes that someone outside reads, or that nobody reads."""
    inside: tuple[Value, ...]
    """Values that are made and read inside."""


def boundary(nodes: Iterable[Node]) -> Boundary:
    """Return the boundary, in linear time."""
    members = dict.fromkeys(nodes)
    reads = dict.fromkeys(value for node in members for value in node.inputs)
    values = [value for node in members for value in node.outputs]
    return Boundary(
        inputs=tuple(value for value in reads if value.producer not in members),
        outputs=tuple(value for value in values if not value.use_count or any(reader not in members for reader in value.consumers)),
        inside=tuple(value for value in reads if value.producer in members),
    )


def graph_of(nodes: Iterable[Node] | Mapping[Node, object]) -> Graph:
    """Return the graph that owns all of these nodes; raise `GraphError` where there are none, or none owns all."""
    graph: Graph | None = None
    for node in nodes:
        graph = node.graph if graph is None else graph
        graph.check_owned(node, node.name)
    if graph is None:
        raise GraphError("no nodes were given", remedy="give at least one node")
    return graph
