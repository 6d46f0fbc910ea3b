"""Signatures and collections of a graph. They hold values and nodes, never names, so renames need no update."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from graphwright.ir.node import Node, Value
from graphwright.ir.watched import CLOCK, WatchedDict, WatchedList

CollectionKind = Literal["nodes", "bytes", "ints", "floats", "any"]


class _Watched:
    """Assigning a field moves the clock; an assigned container is watched."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, dict):
            value = WatchedDict(cast("dict[Any, Any]", value))
        elif isinstance(value, list):
            value = WatchedList(cast("list[Any]", value))
        object.__setattr__(self, name, value)
        CLOCK.time += 1


@dataclass(eq=False)
class Signature(_Watched):
    """A named way to call the graph: the fed and fetched values, by the names that callers use.

    `method_name` is such as `tensorflow/serving/predict`; `extra` holds the serialized fields of the `SignatureDef` that the IR does not
    model.
    """

    inputs: dict[str, Value]
    outputs: dict[str, Value]
    method_name: str = ""
    extra: bytes = b""

    def of_copies(self, value_of: Mapping[Value, Value]) -> Signature:
        inputs = {key: value_of[value] for key, value in self.inputs.items()}
        return replace(self, inputs=inputs, outputs={key: value_of[value] for key, value in self.outputs.items()})


@dataclass(eq=False)
class NamedRefs(_Watched):
    """A serialized message that names nodes (`VariableDef`, `WhileContextDef`, `SaverDef`, ...).

    `refs` maps field paths to the values or nodes that they name now; names in `serialized` may be out of date.
    """

    serialized: bytes
    refs: dict[str, Value | Node]


@dataclass(eq=False)
class Collection(_Watched):
    """A list that travels with the graph.

    Args:
        kind: as in a `CollectionDef`. "nodes" holds values and nodes; the other kinds hold plain items, or `NamedRefs` for messages.
        items: a removed node leaves the list, and a message leaves it with the last node that it names. A collection that loses its last
            item leaves the graph: TensorFlow loads no model with an empty list of main ops.
    """

    kind: CollectionKind
    items: list[Any] = field(default_factory=list[Any])

    def references(self) -> Iterator[Value | Node]:
        for item in self.items:
            yield from references_of(item)


def references_of(item: object) -> tuple[Value | Node, ...]:
    if isinstance(item, Value | Node):
        return (item,)
    return tuple(item.refs.values()) if isinstance(item, NamedRefs) else ()


def node_of(reference: Value | Node) -> Node:
    return reference if isinstance(reference, Node) else reference.producer


class Holdings:
    """Which nodes the signatures and collections of a graph hold, in O(1); counted again after a user changed one of them."""

    __slots__ = ("_collections", "_in_collections", "_in_signatures", "_signatures", "_time")

    def __init__(self, signatures: Mapping[str, Signature], collections: dict[str, Collection]) -> None:
        self._signatures = signatures
        self._collections = collections
        self._time = -1
        self._in_signatures: dict[Node, dict[str, None]] = {}
        self._in_collections: dict[Node, dict[str, dict[NamedRefs, None]]] = {}  # with the messages that name the node

    def signatures_of(self, node: Node) -> tuple[str, ...]:
        self._refresh()
        return tuple(self._in_signatures.get(node, ()))

    def collections_of(self, node: Node) -> tuple[str, ...]:
        self._refresh()
        return tuple(self._in_collections.get(node, ()))

    def replace_outputs(self, new_of: Mapping[Value, Value]) -> int:
        changed = 0
        for name in {name: None for old in new_of for name in self.signatures_of(old.producer)}:
            outputs = self._signatures[name].outputs
            for key, value in outputs.items():
                if new_of.get(value, value) is not value:
                    outputs[key] = new_of[value]
                    changed += 1
        return changed

    def replace(self, old: Node, new: Node) -> None:
        self._refresh()
        counterpart: dict[object, Value | Node] = {old: new, **dict(zip(old.outputs, new.outputs, strict=False))}
        for name, messages in self._in_collections.get(old, {}).items():
            items = self._collections[name].items
            for place, item in enumerate(items):
                if isinstance(item, Value | Node) and item in counterpart:
                    items[place] = counterpart[item]
            for message in messages:
                for path, held in message.refs.items():
                    message.refs[path] = counterpart.get(held, held)

    def drop(self, nodes: Iterable[Node]) -> None:
        """Remove nodes and their values from the collections, with messages that name no other node."""
        if not self._collections:
            return
        self._refresh()
        doomed = {node: holders for node in nodes if (holders := self._in_collections.pop(node, None)) is not None}
        messages: dict[str, dict[NamedRefs, None]] = {}
        for holders in doomed.values():
            for name, named in holders.items():
                messages.setdefault(name, {}).update(named)
        for name, named in messages.items():
            for message in named:
                for path in [path for path, held in message.refs.items() if node_of(held) in doomed]:
                    del message.refs[path]
            items = self._collections[name].items
            items[:] = [item for item in items if not _is_gone(item, doomed, named)]
            if not items:
                del self._collections[name]
        if doomed:
            self._time = CLOCK.time

    def _refresh(self) -> None:
        if self._time == CLOCK.time:
            return
        self._in_signatures = {}
        for name, signature in self._signatures.items():
            for value in (*signature.inputs.values(), *signature.outputs.values()):
                self._in_signatures.setdefault(value.producer, {})[name] = None
        self._in_collections = {}
        for name, collection in self._collections.items():
            for item in collection.items:
                for held in references_of(item):
                    messages = self._in_collections.setdefault(node_of(held), {}).setdefault(name, {})
                    if isinstance(item, NamedRefs):
                        messages[item] = None
        self._time = CLOCK.time


def _is_gone(item: object, doomed: Container[Node], messages: Container[NamedRefs]) -> bool:
    if isinstance(item, NamedRefs):
        return item in messages and not item.refs
    return isinstance(item, Value | Node) and node_of(item) in doomed
