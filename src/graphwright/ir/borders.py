"""Where a graph meets the world: inputs, outputs, signatures and collections. A layer of `Graph`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from graphwright.errors import GraphError
from graphwright.ir.node import Node, Value
from graphwright.ir.node_table import NodeTable
from graphwright.ir.signature import Collection, Holdings, Signature
from graphwright.ir.watched import SHAPE_CLOCK, WatchedDict


class Borders(NodeTable):
    """What is fed and fetched, and what signatures and collections hold."""

    __slots__ = ("_borders", "_collections", "_control_outputs", "_edits", "_holdings", "_inputs", "_outputs", "_signatures")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._inputs: tuple[Value, ...] = ()
        self._outputs: tuple[Value, ...] = ()
        self._control_outputs: tuple[Node, ...] = ()
        self._borders: Counter[Node] = Counter()  # how often a node is an input, output or control output
        self._signatures: dict[str, Signature] = WatchedDict()
        self._collections: dict[str, Collection] = WatchedDict()
        self._holdings = Holdings(self._signatures, self._collections)
        self._edits = 0  # how far this graph itself has moved the clock of shapes

    # Inputs and outputs

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that are fed, each one once. Assigning checks that the graph owns them."""
        return self._inputs

    @inputs.setter
    def inputs(self, values: Iterable[Value]) -> None:
        values = tuple(values)
        for value in values:
            self.check_owned(value.producer, "graph.inputs")
        twice = next((v for v, count in Counter(values).items() if count > 1), None)
        if twice is not None:
            raise GraphError(f"{twice.name} is an input twice", where="graph.inputs", remedy="give every argument its own placeholder")
        self._inputs = values
        self._count_borders()

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that are returned. Assigning checks that the graph owns them."""
        return self._outputs

    @outputs.setter
    def outputs(self, values: Iterable[Value]) -> None:
        values = tuple(values)
        for value in values:
            self.check_owned(value.producer, "graph.outputs")
        self._outputs = values
        self._count_borders()
        self._move_clock()  # who calls this graph gets other results

    @property
    def control_outputs(self) -> tuple[Node, ...]:
        """The nodes that run though no output needs them. Assigning checks that the graph owns them."""
        return self._control_outputs

    @control_outputs.setter
    def control_outputs(self, nodes: Iterable[Node]) -> None:
        nodes = tuple(nodes)
        for node in nodes:
            self.check_owned(node, "graph.control_outputs")
        self._control_outputs = nodes
        self._count_borders()

    def is_border(self, node: Node) -> bool:
        """Whether the node is a control output, or one of its values is an input or output of the graph or of a signature."""
        return node in self._borders or bool(self._holdings.signatures_of(node))

    # Signatures and collections

    @property
    def signatures(self) -> dict[str, Signature]:
        """The named ways to call it. What they feed and fetch counts as a border: it cannot be removed."""
        return self._signatures

    @signatures.setter
    def signatures(self, signatures: Mapping[str, Signature]) -> None:
        self._signatures = WatchedDict(signatures)
        self._holdings = Holdings(self._signatures, self._collections)

    @property
    def collections(self) -> dict[str, Collection]:
        """Lists of nodes, values and plain items. A removed node leaves them."""
        return self._collections

    @collections.setter
    def collections(self, collections: Mapping[str, Collection]) -> None:
        self._collections = WatchedDict(collections)
        self._holdings = Holdings(self._signatures, self._collections)

    def collections_of(self, node: Node) -> tuple[str, ...]:
        """The names of the collections that hold the node or a value of it, in O(1)."""
        return self._holdings.collections_of(node) if self._collections else ()

    def replace_in_collections(self, old: Node, new: Node) -> None:
        """Let the collections hold `new`, and its values, where they hold `old` and its values.

        Raises:
            GraphError: a node belongs to another graph.
        """
        self.check_owned(old, old.name)
        self.check_owned(new, new.name)
        if self._collections and old is not new:
            self._holdings.replace(old, new)

    def places_of_values(self, node: Node) -> list[tuple[str, list[Node | Value]]]:
        """Where values of a node, or the node, stand without being read: inputs, outputs, signatures and collections."""
        places: list[tuple[str, list[Node | Value]]] = [("graph.inputs", [*self._inputs]), ("graph.outputs", [*self._outputs])]
        for name in self._holdings.signatures_of(node):
            signature = self._signatures[name]
            places.append((f"graph.signatures[{name!r}]", [*signature.inputs.values(), *signature.outputs.values()]))
        places += [
            (f"graph.collections[{name!r}]", [*self._collections[name].references()]) for name in self._holdings.collections_of(node)
        ]
        return places

    # For the layers above

    def _check_not_border(self, node: Node) -> None:
        if node in self._borders:
            raise GraphError(f"{node.name!r} is an input or output of the graph", where=f"node {node.name!r}")
        names = self._holdings.signatures_of(node) if self._signatures else ()
        if names:
            raise GraphError(
                f"{node.name!r} is an input or output of signature {names[0]!r}",
                where=f"node {node.name!r}",
                remedy="change graph.signatures first",
            )

    def _move_clock(self) -> None:
        SHAPE_CLOCK.time += 1
        self._edits += 1

    def _count_borders(self) -> None:
        self._borders = Counter((*(v.producer for v in self._inputs), *(v.producer for v in self._outputs), *self._control_outputs))
