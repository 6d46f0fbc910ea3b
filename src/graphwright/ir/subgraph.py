"""The boundary between some nodes of a graph and the rest of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphwright.errors import GraphError
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.walk import fetched_values


@dataclass(frozen=True)
class Boundary:
    """The edges between a set of nodes and the rest of its graph."""

    inputs: tuple[Value, ...]
    """Values from outside that the nodes read."""
    outputs: tuple[Value, ...]
    """Values of the nodes that someone outside reads, that are an output of the graph or of a signature, or that nobody reads."""
    inside: tuple[Value, ...]
    """Values that are made and read inside."""
    control_inputs: tuple[Node, ...]
    """Nodes outside that a node inside waits for."""
    control_outputs: tuple[Node, ...]
    """Nodes inside that a node outside waits for."""


def boundary(nodes: Iterable[Node], *, borders: bool = True) -> Boundary:
    """Compute the boundary, in linear time; `borders` tells whether outputs of the graph and of its signatures count as read outside."""
    members = dict.fromkeys(nodes)
    reads = dict.fromkeys(value for node in members for value in node.inputs)
    fetched: frozenset[Value] | None = None  # known when the first node asks
    outputs: list[Value] = []
    for node in members:
        if borders and fetched is None and node.graph.is_border(node):
            fetched = frozenset(fetched_values(node.graph))
        outputs += [v for v in node.outputs if (fetched and v in fetched) or not v.use_count or any(c not in members for c in v.consumers)]
    controls = dict.fromkeys(c for node in members for c in node.control_inputs if c not in members)
    return Boundary(
        inputs=tuple(value for value in reads if value.producer not in members),
        outputs=tuple(outputs),
        inside=tuple(value for value in reads if value.producer in members),
        control_inputs=tuple(controls),
        control_outputs=tuple(node for node in members if any(c not in members for c in node.control_consumers)),
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
