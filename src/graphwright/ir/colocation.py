"""Colocation constraints: `loc:@name` in the attribute `_class` asks for the device of another node."""

from collections.abc import Callable, Iterable, Mapping

from graphwright.ir.attributes import Attribute
from graphwright.ir.node import Node

ATTRIBUTE = "_class"
_PREFIX = b"loc:@"


def colocated_with(node: Node) -> tuple[str, ...]:
    """Return the names of the nodes that the node is to share a device with."""
    items = [item for item in _items(node.attrs.get(ATTRIBUTE)) if isinstance(item, bytes) and item.startswith(_PREFIX)]
    return tuple(item.removeprefix(_PREFIX).decode("utf-8", "surrogateescape") for item in items)


def with_names(attribute: Attribute, name_of: Callable[[str], str | None]) -> Attribute | None:
    """Rename the constraints of an attribute `_class`; None drops a constraint, and the attribute with the last one."""
    items: list[Attribute] = []
    for item in _items(attribute):
        if isinstance(item, bytes) and item.startswith(_PREFIX):
            name = name_of(item.removeprefix(_PREFIX).decode("utf-8", "surrogateescape"))
            if name is not None:
                items.append(_PREFIX + name.encode("utf-8", "surrogateescape"))
        else:
            items.append(item)
    if not isinstance(attribute, tuple):
        return items[0] if items else None
    return tuple(items) if items or not attribute else None


def _items(attribute: Attribute | None) -> tuple[Attribute, ...]:
    if attribute is None:
        return ()
    return attribute if isinstance(attribute, tuple) else (attribute,)


class Colocations:
    """An index of the constraints by name, so that a rename costs only what it touches."""

    __slots__ = ("_members",)

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._members: dict[str, dict[Node, None]] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        if ATTRIBUTE in node.attrs:
            for name in colocated_with(node):
                self._members.setdefault(name, {})[node] = None

    def discard(self, node: Node) -> None:
        if ATTRIBUTE in node.attrs:
            for name in colocated_with(node):
                members = self._members.get(name, {})
                members.pop(node, None)
                if not members:
                    self._members.pop(name, None)

    def members(self, name: str) -> tuple[Node, ...]:
        return tuple(self._members.get(name, ()))

    def replace(self, new_of: Mapping[str, str | None]) -> None:
        touched = {node: None for name in new_of for node in self._members.get(name, ())}
        for node in touched:
            self.discard(node)
            attribute = with_names(node.attrs[ATTRIBUTE], lambda name: new_of.get(name, name))
            node.attrs.record(ATTRIBUTE, attribute)
            self.add(node)
