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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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

    def of_copies(self, value_of: Mapping[Value, Value]) -> Signature:
        """The same signature of a copy of the graph."""
        inputs = {key: value_of[value] for key, value in self.inputs.items()}
        return replace(self, inputs=inputs, outputs={key: value_of[value] for key, value in self.outputs.items()})


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
        items: in order. A removed node leaves the list, and a message leaves it with the last node that it names. A collection
            that loses its last item so leaves the graph: TensorFlow loads no model whose list of main ops is empty.
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
    """Which nodes the signatures and collections of a graph hold, in O(1).

    Counted again after somebody changed one of them; what the graph itself changes is followed step by step.
    """

    __slots__ = ("_collections", "_in_collections", "_in_signatures", "_signatures", "_time")

    def __init__(self, signatures: Mapping[str, Signature], collections: dict[str, Collection]) -> None:
        self._signatures = signatures
        self._collections = collections
        self._time = -1
        self._in_signatures: dict[Node, dict[str, None]] = {}
        self._in_collections: dict[Node, dict[str, dict[NamedRefs, None]]] = {}  # and the messages there that name it

    def signatures_of(self, node: Node) -> tuple[str, ...]:
        """The names of the signatures that feed or fetch a value of the node."""
        self._refresh()
        return tuple(self._in_signatures.get(node, ()))

    def collections_of(self, node: Node) -> tuple[str, ...]:
        """The names of the collections that hold the node or a value of it."""
        self._refresh()
        return tuple(self._in_collections.get(node, ()))

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
        if changed:
            self._count_signatures()
            self._time = CLOCK.time
        return changed

    def replace(self, old: Node, new: Node) -> None:
        """Let the collections hold `new`, and its values, where they hold `old` and its values."""
        self._refresh()
        held = self._in_collections.get(old)
        if held is None:
            return
        stays: dict[str, dict[NamedRefs, None]] = {}
        pairs: list[tuple[Value | Node, Value | Node]] = [(old, new), *zip(old.outputs, new.outputs, strict=False)]
        surplus = old.outputs[len(new.outputs) :]
        for name, messages in held.items():
            items = self._collections[name].items
            moved = False
            for before, after in pairs:
                for place in _places(items, before):
                    items[place] = after
                    moved = True
            touched: list[NamedRefs] = []
            for message in messages:
                after_of = {before: after for before, after in pairs if before in message.refs.values()}
                for path, item in message.refs.items():
                    message.refs[path] = after_of.get(item, item)
                if after_of:
                    touched.append(message)
            if moved or touched:
                self._in_collections.setdefault(new, {}).setdefault(name, {}).update(dict.fromkeys(touched))
            still = dict.fromkeys(message for message in messages if any(node_of(item) is old for item in message.refs.values()))
            if still or any(_places(items, value) for value in surplus):
                stays[name] = still
        del self._in_collections[old]
        if stays:
            self._in_collections[old] = stays
        self._time = CLOCK.time

    def drop(self, nodes: Iterable[Node]) -> None:
        """Take nodes out of the collections."""
        if not self._collections:
            return
        self._refresh()
        doomed = {node: held for node in nodes if (held := self._in_collections.pop(node, None)) is not None}
        if not doomed:
            return
        by_collection: dict[str, list[Node]] = {}
        for node, held in doomed.items():
            for name, messages in held.items():
                by_collection.setdefault(name, []).append(node)
                for message in messages:
                    for path in [path for path, item in message.refs.items() if node_of(item) is node]:
                        del message.refs[path]
                    if not message.refs:
                        for place in reversed(_places(self._collections[name].items, message)):
                            del self._collections[name].items[place]
        for name, gone in by_collection.items():
            items = self._collections[name].items
            if len(gone) == 1:  # comparing in one sweep per value is faster than looking at each item
                for held in (gone[0], *gone[0].outputs):
                    for place in reversed(_places(items, held)):
                        del items[place]
            else:
                members = frozenset(gone)
                items[:] = [item for item in items if not isinstance(item, Value | Node) or node_of(item) not in members]
            if not items:
                del self._collections[name]
        self._time = CLOCK.time

    def _refresh(self) -> None:
        if self._time == CLOCK.time:
            return
        self._count_signatures()
        self._in_collections = {}
        for name, collection in self._collections.items():
            for item in collection.items:
                for held in references_of(item):
                    messages = self._in_collections.setdefault(node_of(held), {}).setdefault(name, {})
                    if isinstance(item, NamedRefs):
                        messages[item] = None
        self._time = CLOCK.time

    def _count_signatures(self) -> None:
        self._in_signatures = {}
        for name, signature in self._signatures.items():
            for value in (*signature.inputs.values(), *signature.outputs.values()):
                self._in_signatures.setdefault(value.producer, {})[name] = None


def _places(items: list[Any], held: object) -> list[int]:
    """Where an object stands in a list, found by identity."""
    return [k for k, item in enumerate(items) if item is held]
