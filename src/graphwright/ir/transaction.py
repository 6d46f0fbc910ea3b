"""Undo: a record of a graph's state, for `Graph.restored_on_error`. It holds the fields and contents of each object of the graph, not
copies of the objects, so that references to restored nodes, values and bodies stay valid.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, cast

from graphwright.ir.attributes import Attributes
from graphwright.ir.node import Links, Node, Value
from graphwright.ir.signature import Collection, NamedRefs


class Record:
    """The recorded state of objects. Takes time and memory linear in their number."""

    __slots__ = ("_contents", "_fields", "_noted")

    def __init__(self) -> None:
        # Alternately an object and what it was: pairs would be one more object per object to make, and to collect.
        self._fields: list[Any] = []
        self._contents: list[Any] = []
        self._noted: set[int] = set()  # what many graphs share, as the library, is noted once

    def note(self, *objects: object) -> None:
        for noted in objects:
            if id(noted) in self._noted:
                continue
            self._noted.add(id(noted))
            if isinstance(noted, dict | list):
                container = cast("dict[Any, Any] | list[Any]", noted)
                self._contents += (container, container.copy())
            elif noted is not None:
                values = _fields_of(type(noted))[1](noted)
                self._fields += (noted, values)
                tables: list[object] = [held for held in values if isinstance(held, dict | list)]
                self.note(*tables)

    def note_nodes(self, links: Mapping[Node, Links]) -> None:
        held, contents = self._fields, self._contents
        of_node, of_links, of_value = _fields_of(Node)[1], _fields_of(Links)[1], _fields_of(Value)[1]
        for node, known in links.items():
            held += (node, of_node(node), known, of_links(known))
            for value in known.outputs:
                held += (value, of_value(value))
            for content in (node.attrs, known.control_inputs, known.control_consumers, *known.uses):
                contents += (content, content.copy() if content else None)

    def note_collections(self, collections: Iterable[Collection]) -> None:
        for collection in collections:
            self.note(collection, *(item for item in collection.items if isinstance(item, NamedRefs)))

    def restore(self) -> None:
        for holder, values in _pairs(self._fields):
            for name, value in zip(_fields_of(holder.__class__)[0], values, strict=True):
                object.__setattr__(holder, name, value)  # as it is: a signature would make a new dictionary of the one it is given
        for container, content in _pairs(self._contents):
            if isinstance(container, Attributes):
                container.restore(content or {})
                continue
            container.clear()
            if content:
                (container.update if hasattr(container, "update") else container.extend)(content)


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(items[::2], items[1::2], strict=True)


@cache
def _fields_of(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[object], tuple[Any, ...]]]:
    if is_dataclass(kind):
        names = tuple(entry.name for entry in fields(kind))
    else:
        names = tuple(name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ()))
    return names, attrgetter(*names) if len(names) > 1 else lambda holder: tuple(getattr(holder, name) for name in names)
