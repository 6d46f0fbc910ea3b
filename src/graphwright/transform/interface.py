"""Find inputs and outputs of a graph by the names that people know.

A name is a key of a signature (`image`), the name of a node (`serving_default_image`) or of a value (`dense:1`).
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.dtypes import Shape, agree, format_shape
from graphwright.ir.graph import Graph, Value
from graphwright.ir.traits.values import MAY_BE_FED, is_constant
from graphwright.ir.walk import fed_values, fetched_values, topological_order


def input_values(graph: Graph) -> tuple[Value, ...]:
    """Return the inputs of the graph and of its signatures; where it states none, its placeholders."""
    return fed_values(graph) or tuple(v for node in graph.nodes if node.op_type in MAY_BE_FED for v in node.outputs)


def output_values(graph: Graph) -> tuple[Value, ...]:
    """Return the outputs of the graph and of its signatures; where it states none, the values that nothing reads."""
    stated = fetched_values(graph)
    if stated:
        return stated
    read = {v for node in graph.nodes for v in node.inputs}
    fed = set(input_values(graph))
    return tuple(
        v
        for node in graph.nodes
        if not is_constant(node) and not any(output in read for output in node.outputs)
        for v in node.outputs
        if v not in fed
    )


def find_end(graph: Graph, name: str, *, is_input: bool, signature: str | None = None) -> Value:
    """Return the input or output with this name, of one signature or of all.

    Raises:
        ArgumentError: the name is unknown, or several signatures have different values for it.
    """
    kind = "input" if is_input else "output"
    signatures = graph.signatures
    if signature is not None:
        if signature not in signatures:
            raise ArgumentError(f"there is no signature {signature!r}", argument="signature", remedy=f"it has {_listed(signatures)}")
        signatures = {signature: signatures[signature]}
    tables = {key: s.inputs if is_input else s.outputs for key, s in signatures.items()}
    keyed = dict.fromkeys(table[name] for table in tables.values() if name in table)
    if len(keyed) > 1:
        raise ArgumentError(
            f"{name!r} is the {kind} {', '.join(v.name for v in keyed)} of different signatures",
            where=f"graph {graph.name!r}",
            remedy="say which one with signature=",
        )
    if keyed:
        return next(iter(keyed))
    values = input_values(graph) if is_input else output_values(graph)
    if signature is not None:
        values = tuple(dict.fromkeys(v for table in tables.values() for v in table.values()))
    named = [v for v in values if v.name == name or (v.producer.name == name and v.index == 0)]
    if named:
        return named[0]
    known = list(dict.fromkeys([*(key for table in tables.values() for key in table), *(v.producer.name for v in values)]))
    raise ArgumentError(f"there is no {kind} {name!r}", where=f"graph {graph.name!r}", remedy=f"its {kind}s are {_listed(known)}")


def find_in_signatures(graph: Graph, names: Iterable[str], *, signature: str | None = None, is_input: bool) -> list[dict[str, Value]]:
    """Return the values of the names in each signature that has them all; signatures with the same values count once.

    A Keras export has two signatures with the same keys, each with its own placeholders: both are returned.

    Raises:
        ArgumentError: a name is unknown, or two signatures share some of the values, but not all.
    """
    names = list(names)
    meanings: list[dict[str, Value]] = []
    for key, known in graph.signatures.items() if signature is None else ():
        if names and all(name in (known.inputs if is_input else known.outputs) for name in names):
            meant = {name: find_end(graph, name, is_input=is_input, signature=key) for name in names}
            if meant not in meanings:
                meanings.append(meant)
    if not meanings:
        return [{name: find_end(graph, name, is_input=is_input, signature=signature) for name in names}]
    values = [value for meant in meanings for value in meant.values()]
    if len(meanings) > 1 and len(set(values)) != len(values):
        raise ArgumentError(
            f"signatures share some of {_listed(names)}, but not all",
            where=f"graph {graph.name!r}",
            remedy="say which signature is meant with signature=",
        )
    return meanings


def find_value(graph: Graph, name: str | Value) -> Value:
    """Return the value with this name: an output, an input, or any value inside such as `node:1`. A value is returned itself.

    Raises:
        ArgumentError: there is none, or it belongs to another graph.
    """
    if isinstance(name, Value):
        if not graph.owns(name.producer):
            raise ArgumentError(f"{name.name} does not belong to graph {graph.name!r}", where=f"value {name.name!r}")
        return name
    for is_input in (False, True):
        for key in ("serving_default", None):
            with suppress(ArgumentError):
                return find_end(graph, name, is_input=is_input, signature=key)
    try:
        return graph.value(name)
    except GraphError as error:
        raise ArgumentError(error.what, where=error.where, remedy=error.remedy) from error


def replace_end(graph: Graph, role: Literal["inputs", "outputs"], old: Value, new: Value) -> None:
    """Make `new` the input or output that was `old`, of the graph and its signatures; readers inside stay."""
    listed: tuple[Value, ...] = getattr(graph, role)
    if old in listed:
        setattr(graph, role, [new if v is old else v for v in listed])
    for signature in graph.signatures.values():
        named: dict[str, Value] = getattr(signature, role)
        named.update((key, new) for key, value in list(named.items()) if value is old)


def put_in_order(graph: Graph) -> None:
    """Sort the nodes into an order in which they can run, close to the present one."""
    graph.sort_nodes(topological_order(graph))


def described(value: Value) -> str:
    """Return a value as messages show it."""
    return f"{value.name} {value.dtype}{format_shape(value.shape)}"


def check_fits(source: Value, reader: Value, *, where: str = "", argument: str = "", item: str = "") -> None:
    """Raise an `ArgumentError` where a value cannot be read in the place of another one."""
    differ = "dtypes" if source.dtype != reader.dtype else "" if agree(source.shape, reader.shape) else "shapes"
    if differ:
        remedy = "add a Cast to the graph that is merged or grafted" if differ == "dtypes" else ""
        what = f"{described(reader)} cannot read {described(source)}: the {differ} differ"
        raise ArgumentError(what, where=where, remedy=remedy, argument=argument, item=item)


def says_less(first: Shape, second: Shape) -> bool:
    """Whether `second` states a size that `first` leaves unknown.

    >>> says_less((None, 3), (2, 3)), says_less((2, 3), (None, 3)), says_less(None, ())
    (True, False, True)
    """
    if first is None or second is None:
        return first is None and second is not None
    return any(a is None and b is not None for a, b in zip(first, second, strict=True))


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "none"
