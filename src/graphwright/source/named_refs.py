"""Messages that name nodes: which strings of them are names, and how the names of today get back in.

Such messages stand in collections (`VariableDef`, `WhileContextDef`, ...) and around the graph (`SaverDef`, asset files).
A place in a message is written as a path: `snapshot_name`, `values_def.values[3]`, `values_def.external_values{0}.key`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from graphwright.errors import FileFormatError
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import NamedRefs, node_of

_NO_NAMES = frozenset({"context_name", "full_name", "filename", "saver_id", "sharded", "keep_checkpoint_every_n_hours", "type_url"})
"""String fields that look like names of nodes and are names of something else (scopes, files)."""
_OPTIONAL = frozenset({"initial_value_name"})
"""Those that TensorFlow reads a message without."""


def read_refs(graph: Graph, message: Any, serialized: bytes = b"") -> NamedRefs:
    """The message with a reference for each string in it that names a value or node of the graph.

    Args:
        serialized: the bytes that it was read from, which are written again where no name changed.
    """
    refs: dict[str, Value | Node] = {}
    for path, text, _ in _slots(message, ""):
        found = find(graph, text)
        if found is not None:
            refs[path] = found
    return NamedRefs(serialized or message.SerializeToString(deterministic=True), refs)


def write_refs(graph: Graph, item: NamedRefs, message: Any, *, forget: bool = False) -> bool:
    """Fill the message with what was read, under the names that hold now.

    Args:
        forget: let the names of what is not in the graph leave; they stay otherwise.

    Returns:
        Whether the message can do without the names that left: those in lists and tables, and initial values.
    """
    message.ParseFromString(item.serialized)
    whole = True
    for path, _, assign in list(_slots(message, "")):
        held = item.refs.get(path)
        if held is not None and graph.owns(node_of(held)):
            assign(held.name)
        elif forget:
            assign("")
            whole = whole and (path.endswith("]") or "}." in path or path in _OPTIONAL)
    _settle(message, forget=forget)
    return whole


def refs_bytes(graph: Graph, item: NamedRefs, message: Any, *, forget: bool = False) -> bytes:
    """The message as bytes, under the names that hold now: those that were read where nothing changed; empty where it misses one."""
    if not write_refs(graph, item, message, forget=forget):
        return b""
    original: Any = message.__class__()
    original.ParseFromString(item.serialized)
    if message == original:
        return item.serialized
    return message.SerializeToString(deterministic=True)


def find(graph: Graph, name: str) -> Value | Node | None:
    """The value (`node:0`) or node with a name, or None."""
    node_name, colon, index = name.removeprefix("^").partition(":")
    if node_name not in graph:
        return None
    node = graph[node_name]
    if not colon:
        return node
    return node.outputs[int(index)] if index.isdecimal() and len(index) < 8 and int(index) < len(node.outputs) else None


def _slots(message: Any, path: str) -> Iterator[tuple[str, str, Callable[[str], None]]]:
    for field, content in message.ListFields():
        name = field.name
        where = f"{path}{name}"
        if name in _NO_NAMES:
            continue
        if _is_map(field):
            if field.message_type.fields_by_name["value"].type == field.TYPE_STRING:
                yield from _map_slots(content, where)
        elif field.type == field.TYPE_STRING:
            if _is_repeated(field):
                for k, text in enumerate(content):
                    yield f"{where}[{k}]", text, _item_setter(content, k)
            else:
                yield where, content, _field_setter(message, name)
        elif field.type == field.TYPE_MESSAGE:
            for k, part in enumerate(content if _is_repeated(field) else [content]):
                yield from _slots(part, f"{where}[{k}]." if _is_repeated(field) else f"{where}.")


def _is_repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


def _is_map(field: Any) -> bool:
    return field.type == field.TYPE_MESSAGE and field.message_type.GetOptions().map_entry


def _field_setter(message: Any, name: str) -> Callable[[str], None]:
    return lambda text: setattr(message, name, text)


def _item_setter(items: Any, index: int) -> Callable[[str], None]:
    def assign(text: str) -> None:
        items[index] = text

    return assign


_SEPARATOR = "\0"  # marks a renamed key until the map is rebuilt; no name holds it


def _map_slots(entries: Any, where: str) -> Iterator[tuple[str, str, Callable[[str], None]]]:
    for k, key in enumerate(sorted(entries)):

        def assign_value(text: str, key: str = key) -> None:
            entries[key] = text + (_SEPARATOR + entries[key].partition(_SEPARATOR)[2] if _SEPARATOR in entries[key] else "")

        def assign_key(text: str, key: str = key) -> None:
            entries[key] = entries[key].partition(_SEPARATOR)[0] + _SEPARATOR + text

        yield f"{where}{{{k}}}.value", entries[key], assign_value
        yield f"{where}{{{k}}}.key", key, assign_key


def _settle(message: Any, *, forget: bool) -> None:
    """Rebuild maps whose keys were renamed, and take out what was forgotten."""
    for field, content in message.ListFields():
        if _is_map(field):
            if field.message_type.fields_by_name["value"].type == field.TYPE_STRING:
                pairs = dict(content)
                content.clear()
                for key, text in pairs.items():
                    value, marked, renamed = text.partition(_SEPARATOR)
                    name = renamed if marked else key
                    if not forget or (name and value):
                        content[name] = value
        elif field.type == field.TYPE_STRING and _is_repeated(field) and forget:
            content[:] = [text for text in content if text]
        elif field.type == field.TYPE_MESSAGE:
            for part in content if _is_repeated(field) else [content]:
                _settle(part, forget=forget)


def parsed(kind: Any, data: bytes, where: str) -> Any:
    """A message from bytes.

    Raises:
        FileFormatError: the bytes are no such message.
    """
    try:
        return kind.FromString(data)
    except importlib.import_module("google.protobuf.message").DecodeError as error:
        raise FileFormatError(f"it is not a {kind.__name__}: {error}", where=where, cause="the file is damaged") from error
