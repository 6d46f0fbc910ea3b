"""What stands around a graph in a SavedModel: signatures and collections.

Both hold values and nodes, never names, so that renames follow by themselves.

>>> from graphwright.ir.graph import DTYPES, Graph
>>> g = Graph()
>>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2,))])
>>> g.signatures["serve"] = Signature(inputs={"image": x.outputs[0]}, outputs={"same": x.outputs[0]})
>>> g.rename(x, "pixels")
>>> g.signatures["serve"].inputs["image"].name
'pixels:0'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from graphwright.ir.node import Node, Value
from graphwright.ir.watched import CLOCK, WatchedDict, WatchedList

CollectionKind = Literal["nodes", "bytes", "ints", "floats", "any"]


class _Watched:
    """Assigning a field moves the clock, and what is assigned is watched."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, dict):
            value = WatchedDict(cast("dict[Any, Any]", value))
        elif isinstance(value, list):
            value = WatchedList(cast("list[Any]", value))
        object.__setattr__(self, name, value)
        CLOCK.time += 1


@dataclass(eq=False)
class Signature(_Watched):
    """A named way to call the graph.

    Args:
        inputs: what is fed, by the name under which callers know it.
        outputs: what is fetched, by name.
        method_name: such as `tensorflow/serving/predict`.
        extra: the serialized fields of the `SignatureDef` that the IR does not model.
    """

    inputs: dict[str, Value]
    outputs: dict[str, Value]
    method_name: str = ""
    extra: bytes = b""


@dataclass(eq=False)
class NamedRefs(_Watched):
    """A serialized message that names nodes (`VariableDef`, `WhileContextDef`, `SaverDef`, ...).

    Args:
        serialized: the message as it was read; the names in it may be out of date.
        refs: field path -> the value or node that stands there now. A path leaves when its node is removed.
    """

    serialized: bytes
    refs: dict[str, Value | Node]


@dataclass(eq=False)
class Collection(_Watched):
    """A list that travels with the graph.

    Args:
        kind: what the items are, as in a `CollectionDef`. "nodes" holds values and nodes; the
            other kinds hold plain items, or `NamedRefs` where a message names nodes.
        items: in order. A removed node leaves the list, and a message leaves it with the last node that it names.
    """

    kind: CollectionKind
    items: list[Any] = field(default_factory=list[Any])

    def references(self) -> Iterator[Value | Node]:
        """Every value and node that an item holds."""
        for item in self.items:
            yield from references_of(item)


def references_of(item: object) -> tuple[Value | Node, ...]:
    """The values and nodes that an item of a collection holds."""
    if isinstance(item, Value | Node):
        return (item,)
    return tuple(item.refs.values()) if isinstance(item, NamedRefs) else ()


def node_of(reference: Value | Node) -> Node:
    """The node that is held, or that makes the value that is held."""
    return reference if isinstance(reference, Node) else reference.producer


class Holdings:
    """Which nodes the signatures and collections of a graph hold, in O(1); counted anew after one of them changed."""

    __slots__ = ("_collections", "_held", "_signatures", "_time")

    def __init__(self, signatures: Mapping[str, Signature], collections: Mapping[str, Collection]) -> None:
        self._signatures = signatures
        self._collections = collections
        self._time = -1
        self._held: dict[Node, tuple[dict[str, None], dict[str, None]]] = {}

    def signatures_of(self, node: Node) -> tuple[str, ...]:
        """The names of the signatures that feed or fetch a value of the node."""
        return tuple(self._look_up(node)[0])

    def collections_of(self, node: Node) -> tuple[str, ...]:
        """The names of the collections that hold the node or a value of it."""
        return tuple(self._look_up(node)[1])

    def replace_outputs(self, new_of: Mapping[Value, Value]) -> int:
        """Let the outputs of the signatures be the new values; returns how many changed."""
        names = {name: None for old in new_of for name in self.signatures_of(old.producer)}
        changed = 0
        for name in names:
            outputs = self._signatures[name].outputs
            for key, value in outputs.items():
                if new_of.get(value, value) is not value:
                    outputs[key] = new_of[value]
                    changed += 1
        return changed

    def drop(self, nodes: Mapping[Node, object]) -> None:
        """Take nodes out of the collections, in time linear in the collections that hold some."""
        if not self._signatures and not self._collections:
            return
        names = {name: None for node in nodes for name in self.collections_of(node)}
        for name in names:
            items = self._collections[name].items
            kept: list[Any] = []
            for item in items:
                if isinstance(item, NamedRefs):
                    gone = [path for path, held in item.refs.items() if node_of(held) in nodes]
                    for path in gone:
                        del item.refs[path]
                    if not gone or item.refs:
                        kept.append(item)
                elif not isinstance(item, Value | Node) or node_of(item) not in nodes:
                    kept.append(item)
            items[:] = kept
        if names:
            for node in nodes:
                self._held.pop(node, None)
            self._time = CLOCK.time  # nothing else has changed

    def _look_up(self, node: Node) -> tuple[dict[str, None], dict[str, None]]:
        if self._time != CLOCK.time:
            self._count()
        return self._held.get(node) or ({}, {})

    def _count(self) -> None:
        self._held = {}
        for name, signature in self._signatures.items():
            for value in (*signature.inputs.values(), *signature.outputs.values()):
                self._held.setdefault(value.producer, ({}, {}))[0][name] = None
        for name, collection in self._collections.items():
            for held in collection.references():
                self._held.setdefault(node_of(held), ({}, {}))[1][name] = None
        self._time = CLOCK.time
