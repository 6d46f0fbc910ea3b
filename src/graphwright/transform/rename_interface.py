"""Rename inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.edit.insert import add_identity
from graphwright.ir.graph import Graph, Value
from graphwright.ir.jobs import Written, edits_in_place
from graphwright.transform.interface import find_in_signatures, put_in_order, replace_end


@edits_in_place
def rename_inputs(graph: Graph, names: Mapping[str, str], *, signature: str | None = None, **written: Unpack[Written]) -> int:
    """Rename inputs: keys of signatures, and nodes where the old name is a node's; returns how many names changed.

    All are renamed at the same time, so names may be exchanged.

    Args:
        names: old name -> new name.
        signature: the signature that is changed; all by default.

    Raises:
        ArgumentError: there is no such input, or the new name is taken.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2,))])
    >>> rename_inputs(g, {"x": "pixels"}), g.nodes
    (1, (<Node pixels = Placeholder()>,))
    """
    return _rename(graph, names, signature, is_input=True)


@edits_in_place
def rename_outputs(graph: Graph, names: Mapping[str, str], *, signature: str | None = None, **written: Unpack[Written]) -> int:
    """Rename outputs, as `rename_inputs` does; an output of a node that has several gets an `Identity` of the new name.

    Raises:
        ArgumentError: there is no such output, or the new name is taken.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> parts = g.add_node("Unpack", "parts", output_types=[(DTYPES["float32"], ())] * 2)
    >>> g.outputs = parts.outputs
    >>> rename_outputs(g, {"parts:1": "second"}), [value.name for value in g.outputs]
    (1, ['parts:0', 'second:0'])
    """
    return _rename(graph, names, signature, is_input=False)


def _rename(graph: Graph, names: Mapping[str, str], signature: str | None, *, is_input: bool) -> int:
    if not names:
        return 0
    kind = "input" if is_input else "output"
    values: dict[str, Value] = {}
    for old in names:
        candidates = [meant[old] for meant in find_in_signatures(graph, [old], signature=signature, is_input=is_input)]
        values[old] = next((value for value in candidates if _is_called(value, old)), candidates[-1])
    chosen = graph.signatures if signature is None else {signature: graph.signatures[signature]}
    tables = [s.inputs if is_input else s.outputs for s in chosen.values()]
    renamed_tables = [_renamed_keys(table, names, kind) for table in tables]
    called = {values[old]: new for old, new in names.items() if _is_called(values[old], old)}
    nodes = {value.producer: new for value, new in called.items() if len(value.producer.outputs) == 1}
    one_of_several = {value: new for value, new in called.items() if value.producer not in nodes}
    try:
        for table, renamed in zip(tables, renamed_tables, strict=True):
            table.clear()
            table.update(renamed)
        graph.rename_many(nodes)
        for value, new in one_of_several.items():
            same = add_identity(value, value.producer.name)
            graph.rename(same, new)
            replace_end(graph, "outputs", value, same.outputs[0])
        if one_of_several:
            put_in_order(graph)
        return len(names)
    except GraphError as error:
        raise ArgumentError(error.what, argument="names", where=f"{kind}s", cause=error.cause) from error


def _is_called(value: Value, name: str) -> bool:
    return name in (value.name, value.producer.name)


def _renamed_keys(table: Mapping[str, Value], names: Mapping[str, str], kind: str) -> dict[str, Value]:
    renamed: dict[str, Value] = {}
    for key, value in table.items():
        new = names.get(key, key)
        if not new:
            raise ArgumentError(f"the {kind} {key!r} cannot have an empty name", argument="names")
        if new in renamed:
            raise ArgumentError(f"two {kind}s would be called {new!r}", argument="names")
        renamed[new] = value
    return renamed
