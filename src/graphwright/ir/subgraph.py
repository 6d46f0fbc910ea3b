"""A view of some nodes of a graph, with an ordered list of inputs and outputs that can be remapped.

inputs
    Values from outside that the nodes read.
outputs
    Values of the nodes that someone outside reads, that are an output of the graph or of a signature, or that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from graphwright.errors import GraphError
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.walk import fetched_values


@dataclass(frozen=True)
class Boundary:
    """How a set of nodes is tied to the rest of its graph."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    inside: tuple[Value, ...]
    """Values that are made and read inside."""
    control_inputs: tuple[Node, ...]
    """Nodes outside that a node inside waits for."""
    control_outputs: tuple[Node, ...]
    """Nodes inside that a node outside waits for."""


def boundary(nodes: Iterable[Node], *, borders: bool = True) -> Boundary:
    """Compute the boundary, in time linear in the nodes and their edges.

    Args:
        borders: whether outputs of the graph and of its signatures count as read outside.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) : float32[2]
    ... %b = Neg(%a:0) : float32[2]
    ... ''')
    >>> found = boundary([g["a"], g["b"]])
    >>> [v.name for v in found.inputs], [v.name for v in found.outputs], [v.name for v in found.inside]
    (['x:0'], ['b:0'], ['a:0'])
    """
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


@dataclass(frozen=True)
class Subgraph:
    """Nodes of a graph with the inputs and outputs of their boundary, or a selection and another order of them.

    A view says how the graph was when it was made; make it again after an edit.

    Args:
        graph: the graph that holds the nodes.
        nodes: each once.
        inputs: values from outside; None means those of the boundary.
        outputs: values of the nodes; None means those of the boundary.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %w = Placeholder() : float32[2]
    ... %a = Mul(%x:0, %w:0) : float32[2]
    ... ''')
    >>> view = Subgraph.of(g["a"])
    >>> [v.name for v in view.remap_inputs([1]).inputs], "a" in view
    (['w:0'], True)
    """

    graph: Graph
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @staticmethod
    def of(*nodes: Node | Iterable[Node]) -> Subgraph:
        """The view of these nodes, with the inputs and outputs of their boundary.

        Raises:
            GraphError: there are none, or they belong to several graphs.
        """
        found = dict.fromkeys(node for item in nodes for node in ((item,) if isinstance(item, Node) else item))
        graph = graph_of(found)
        ends = boundary(found)
        return Subgraph(graph, tuple(found), ends.inputs, ends.outputs)

    @cached_property
    def members(self) -> frozenset[Node]:
        """The nodes as a set."""
        return frozenset(self.nodes)

    @cached_property
    def boundary(self) -> Boundary:
        """The boundary of the nodes, whatever the inputs and outputs were remapped to."""
        return boundary(self.nodes)

    def __contains__(self, node: object) -> bool:
        if isinstance(node, str):
            return node in self.graph and self.graph[node] in self.members
        return node in self.members

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def remap_inputs(self, order: Sequence[int | Value]) -> Subgraph:
        """The view with these of its inputs, by index or value, in this order.

        Raises:
            GraphError: one is not an input of the view, or stands there twice.
        """
        return replace(self, inputs=_remapped(self.inputs, order, "input", repeated=False))

    def remap_outputs(self, order: Sequence[int | Value]) -> Subgraph:
        """The view with these outputs: indices of its outputs, or any values of its nodes; one may stand there twice.

        Raises:
            GraphError: one is not an output of the view nor a value of its nodes.
        """
        own = {v for node in self.nodes for v in node.outputs}
        return replace(self, outputs=_remapped(self.outputs, order, "output", repeated=True, also=own))

    def remap(self, inputs: Sequence[int | Value] | None = None, outputs: Sequence[int | Value] | None = None) -> Subgraph:
        """Both at once; None leaves a side as it is."""
        view = self if inputs is None else self.remap_inputs(inputs)
        return view if outputs is None else view.remap_outputs(outputs)


def graph_of(nodes: Iterable[Node] | Mapping[Node, object]) -> Graph:
    """The graph that owns all of these nodes.

    Raises:
        GraphError: there are none, they belong to several graphs, or one was removed.
    """
    graph: Graph | None = None
    for node in nodes:
        graph = node.graph if graph is None else graph
        graph.check_owned(node, node.name)
    if graph is None:
        raise GraphError("no nodes were given", remedy="give at least one node")
    return graph


def _remapped(
    known: tuple[Value, ...], order: Sequence[int | Value], role: str, *, repeated: bool, also: Iterable[Value] = ()
) -> tuple[Value, ...]:
    allowed = {*known, *also}
    chosen: list[Value] = []
    seen: set[Value] = set()
    for item in order:
        if isinstance(item, int) and not 0 <= item < len(known):
            raise GraphError(f"there is no {role} {item}: the subgraph has {len(known)}", where=f"remap_{role}s")
        value = known[item] if isinstance(item, int) else item
        if value not in allowed:
            raise GraphError(f"{value.name} is not an {role} of the subgraph", where=f"remap_{role}s")
        if not repeated and value in seen:
            raise GraphError(f"{value.name} is given twice", where=f"remap_{role}s")
        seen.add(value)
        chosen.append(value)
    return tuple(chosen)
