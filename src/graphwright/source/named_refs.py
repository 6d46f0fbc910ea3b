"""Messages that name nodes, in collections (`VariableDef`, `WhileContextDef`, ...) and around the graph (`SaverDef`, asset files). A
place in a message is written as a path: `snapshot_name`, `values_def.values[3]`, `values_def.external_values{0}.key`.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from graphwright.errors import FileFormatError
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import NamedRefs, node_of

_NO_NAMES = frozenset({"context_name", "full_name", "filename", "saver_id", "sharded", "keep_checkpoint_every_n_hours", "type_url"})
"""String fields that look like names of nodes and are names of something else (scopes, files)."""
_OPTIONAL = frozenset({"initial_value_name"})
"""Those that TensorFlow reads a message without."""


def read_refs(graph: Graph, message: Any, serialized: bytes = b"") -> NamedRefs:
    """Return the message with a reference for each string in it that names a value or node; the bytes `serialized` are written again
    where no name changed.
    """
    refs: dict[str, Value | Node] = {}
    for path, text, _ in _slots(message, ""):
        target = find(graph, text)
        if target is not None:
            refs[path] = target
    return NamedRefs(serialized or message.SerializeToString(deterministic=True), refs)


def write_refs(graph: Graph, item: NamedRefs, message: Any, *, forget: bool = False) -> bool:
    """Fill the message with its current names; with `forget`, drop names of what is not in the graph. Return whether it can do without
    those: names in lists and tables, and initial values.
    """
    message.ParseFromString(item.serialized)
    whole = True
    for path, _, assign in _slots(message, "", forget=forget):
        held = item.refs.get(path)
        if held is not None and graph.owns(node_of(held)):
            assign(held.name)
        elif forget:
            assign("")
            whole = whole and (path.endswith("]") or "}." in path or path in _OPTIONAL)
    return whole


def refs_bytes(graph: Graph, item: NamedRefs, message: Any, *, forget: bool = False) -> bytes:
    """Return the message as bytes under its current names: the original ones where nothing changed; empty where it misses a name."""
    if not write_refs(graph, item, message, forget=forget):
        return b""
    original: Any = message.__class__()
    original.ParseFromString(item.serialized)
    if message == original:
        return item.serialized
    return message.SerializeToString(deterministic=True)


def find(graph: Graph, name: str) -> Value | Node | None:
    node_name, colon, index = name.removeprefix("^").partition(":")
    if node_name not in graph:
        return None
    node = graph[node_name]
    if not colon:
        return node
    return node.outputs[int(index)] if index.isdecimal() and len(index) < 8 and int(index) < len(node.outputs) else None


def _slots(message: Any, path: str, *, forget: bool = False) -> Iterator[tuple[str, str, Callable[[str], object]]]:
    """Yield place, text and setter of each string that may name a node; with `forget`, empty texts leave lists and maps."""
    for field, content in message.ListFields():
        name = field.name
        where = f"{path}{name}"
        if name in _NO_NAMES:
            continue
        if field.type == field.TYPE_MESSAGE and field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].type == field.TYPE_STRING:
                yield from _map_slots(content, where, forget=forget)
        elif field.type == field.TYPE_STRING and _is_repeated(field):
            for k, text in enumerate(content):
                yield f"{where}[{k}]", text, partial(content.__setitem__, k)
            if forget:
                content[:] = [text for text in content if text]
        elif field.type == field.TYPE_STRING:
            yield where, content, partial(setattr, message, name)
        elif field.type == field.TYPE_MESSAGE:
            for k, part in enumerate(content if _is_repeated(field) else [content]):
                yield from _slots(part, f"{where}[{k}]." if _is_repeated(field) else f"{where}.", forget=forget)


def _map_slots(entries: Any, where: str, *, forget: bool) -> Iterator[tuple[str, str, Callable[[str], object]]]:
    pairs: list[list[str]] = [[key, entries[key]] for key in sorted(entries)]
    for k, pair in enumerate(pairs):
        yield f"{where}{{{k}}}.value", pair[1], partial(pair.__setitem__, 1)
        yield f"{where}{{{k}}}.key", pair[0], partial(pair.__setitem__, 0)
    renamed = {key: value for key, value in pairs if not forget or (key and value)}
    if renamed != dict(entries):
        entries.clear()
        entries.update(renamed)


def _is_repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


def parsed(kind: Any, data: bytes, where: str) -> Any:
    try:
        return kind.FromString(data)
    except importlib.import_module("google.protobuf.message").DecodeError as error:
        raise FileFormatError(f"it is not a {kind.__name__}: {error}", where=where, cause="the file is damaged") from error
