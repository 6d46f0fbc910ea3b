"""Give inputs and outputs other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.edit.insert import add_identity
from graphwright.ir.given import Written, edits_in_place
from graphwright.ir.graph import Graph, Node, Value
from graphwright.transform.interface import find_in_signatures, put_in_order, replace_end


@edits_in_place
def rename_inputs(graph: Graph, names: Mapping[str, str], *, signature: str | None = None, **written: Unpack[Written]) -> int:
    """Rename inputs: keys of signatures, and nodes where the old name is a node's; returns how many names changed.

    Names may be exchanged: all are renamed at the same time. Everything is checked before anything changes.

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
    kind = "input" if is_input else "output"
    if signature is not None and signature not in graph.signatures:
        raise ArgumentError(
            f"there is no signature {signature!r}",
            argument="signature",
            remedy=f"it has {', '.join(map(repr, graph.signatures)) or 'none'}",
        )
    values = {old: value for old in names for value in _meant(graph, old, signature, is_input=is_input)}
    chosen = graph.signatures if signature is None else {signature: graph.signatures[signature]}
    tables = [s.inputs if is_input else s.outputs for s in chosen.values()]
    renamed_tables = [_renamed_keys(table, names, kind) for table in tables]
    nodes: dict[Node, str] = {}
    split: dict[Value, str] = {}
    for old, new in names.items():
        value = values[old]
        if old not in (value.name, value.producer.name):
            continue
        if len(value.producer.outputs) == 1:
            nodes[value.producer] = new
        else:
            split[value] = new
    _check_free(graph, nodes, split, kind)

    with graph.restored_on_error():
        for table, renamed in zip(tables, renamed_tables, strict=True):
            table.clear()
            table.update(renamed)
        graph.rename_many(nodes)
        for value, new in split.items():
            replace_end(graph, "outputs", value, add_identity(value, new).outputs[0])
        if split:
            put_in_order(graph)
        return len(names)


def _meant(graph: Graph, name: str, signature: str | None, *, is_input: bool) -> list[Value]:
    """The values of this name; the one whose node has it comes last."""
    found = [meant[name] for meant in find_in_signatures(graph, [name], signature=signature, is_input=is_input)]
    return sorted(found, key=lambda value: name in (value.name, value.producer.name))


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


def _check_free(graph: Graph, nodes: Mapping[Node, str], split: Mapping[Value, str], kind: str) -> None:
    wanted = [*nodes.values(), *split.values()]
    leaving = {node.name for node in nodes}
    for new in wanted:
        if new in graph and new not in leaving:
            raise ArgumentError(f"a node named {new!r} exists already", argument="names", where=f"{kind}s")
        try:
            graph.check_new_name(new)
        except GraphError as error:
            raise ArgumentError(error.what, argument="names", where=f"{kind}s", cause=error.cause) from error
