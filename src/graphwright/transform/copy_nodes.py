"""Copy nodes, with the functions that they call, from one graph into another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

from graphwright.ir.attributes import Attribute, FunctionReference
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.signature import Collection, NamedRefs, Signature
from graphwright.ir.traits import called_functions
from graphwright.ir.walk import topological_order


@dataclass(frozen=True, slots=True)
class Copied:
    """Where the nodes and values went; values that were replaced are found too."""

    nodes: dict[Node, Node]
    values: dict[Value, Value]


def copy_nodes(
    source: Graph,
    into: Graph,
    *,
    nodes: Iterable[Node] | None = None,
    replaced: Mapping[Value, Value] | None = None,
    rename: Callable[[str], str] = str,
) -> Copied:
    """Append copies of nodes, in an order in which they can run.

    Data inputs read the copies, or what `replaced` says. A control edge from a node that is not
    copied is left out; so is a colocation with one. Functions that the nodes call come along,
    under another name where `into` has a different function of that name.

    Args:
        nodes: what is copied, all nodes by default.
        replaced: values of `source` -> values of `into`.
        rename: name -> name wished for; made unique.

    >>> from graphwright.ir.graph import DTYPES
    >>> g, h = Graph(), Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2,))])
    >>> _ = g.add_node("Relu", "y", inputs=[x.outputs[0]], output_types=[(DTYPES["float32"], (2,))])
    >>> _ = copy_nodes(g, h, rename=lambda name: f"part/{name}")
    >>> [node.name for node in h]
    ['part/x', 'part/y']
    """
    chosen = None if nodes is None else set(nodes)
    order = [node for node in topological_order(source) if chosen is None or node in chosen]
    functions = add_functions(source, into, order)
    values: dict[Value, Value] = dict(replaced or {})
    copies: dict[Node, Node] = {}
    forward: list[tuple[Node, Value]] = []  # back edges of TF1 loops: the Merge comes before what it reads
    for node in order:
        known = [values.get(v) for v in node.inputs]
        forward += [(node, v) for v, k in zip(node.inputs, known, strict=True) if k is None]
        copy = into.add_node(
            functions.get(node.op_type, node.op_type),
            into.unique_name(rename(node.name)),
            inputs=[v for v in known if v is not None],
            control_inputs=[copies[c] for c in node.control_inputs if c in copies],
            attrs=_renamed(node.attrs, functions),
            output_types=[(v.dtype, v.shape) for v in node.outputs],
            device=node.device,
            extra=node.extra,
        )
        copies[node] = copy
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            values.setdefault(old, new)
    for node, value in forward:
        into.append_input(copies[node], values[value])
    _follow_colocation(source, into, copies)
    for value, variable in source.variables.items():
        if value in values:
            into.variables.setdefault(values[value], variable)
    return Copied(copies, values)


def add_functions(source: Graph, into: Graph, callers: Iterable[Node]) -> dict[str, str]:
    """Give `into` the functions that these nodes of `source` reach; returns the new names of those that got one."""
    if source.functions is into.functions:
        return {}
    reached: dict[str, Function] = {}
    waiting = [name for node in callers for name in (node.op_type, *called_functions(node))]
    while waiting:
        name = waiting.pop()
        function = source.functions.get(name)
        if function is None or name in reached:
            continue
        reached[name] = function
        waiting += [n for node in function.body.nodes for n in (node.op_type, *called_functions(node))]
    renamed: dict[str, str] = {}
    fresh: list[tuple[Function, str]] = []
    for name, function in reached.items():
        if into.functions.get(name) is function:
            continue
        number, candidate = 0, name
        while candidate in into.functions or candidate in renamed.values():
            number += 1
            candidate = f"{name}_{number}"
        renamed[name] = candidate
        fresh.append((function, candidate))
    for function, name in fresh:
        into.functions[name] = _copied_function(function, name, into.functions, renamed)
    return {old: new for old, new in renamed.items() if old != new}


def _copied_function(function: Function, name: str, library: dict[str, Function], renamed: Mapping[str, str]) -> Function:
    body = copy_graph(function.body, functions=library, renamed=renamed)
    body.name = name
    return Function(name, body, function.definition)


def copy_graph(graph: Graph, *, functions: dict[str, Function], renamed: Mapping[str, str] | None = None) -> Graph:
    """A graph of its own with the same nodes, inputs and outputs, over another library."""
    copy = Graph(graph.name, functions=functions, versions=graph.versions)
    renamed = renamed or {}
    values: dict[Value, Value] = {}
    nodes: dict[Node, Node] = {}
    forward: list[tuple[Node, Value]] = []
    for node in topological_order(graph):
        known = [values.get(v) for v in node.inputs]
        forward += [(node, v) for v, k in zip(node.inputs, known, strict=True) if k is None]
        made = copy.add_node(
            renamed.get(node.op_type, node.op_type),
            node.name,
            inputs=[v for v in known if v is not None],
            control_inputs=[nodes[c] for c in node.control_inputs],
            attrs=_renamed(node.attrs, renamed),
            output_types=[(v.dtype, v.shape) for v in node.outputs],
            device=node.device,
            extra=node.extra,
        )
        nodes[node] = made
        values.update(zip(node.outputs, made.outputs, strict=True))
    for node, value in forward:
        copy.append_input(nodes[node], values[value])
    copy.sort_nodes([nodes[node] for node in graph.nodes])
    copy.inputs = [values[v] for v in graph.inputs]
    copy.outputs = [values[v] for v in graph.outputs]
    copy.control_outputs = [nodes[n] for n in graph.control_outputs]
    copy.variables = {values[v]: variable for v, variable in graph.variables.items()}
    return copy


def copy_model(graph: Graph) -> tuple[Graph, Copied]:
    """A copy of a graph with its functions, signatures, collections, and whatever its file holds besides."""
    library: dict[str, Function] = {}
    copy = Graph(graph.name, functions=library, versions=graph.versions)
    copied = copy_nodes(graph, copy)
    for name, function in graph.functions.items():  # functions that are named in strings alone, too
        if name not in library:
            library[name] = _copied_function(function, name, library, {})
    copy.sort_nodes([copied.nodes[node] for node in graph.nodes])
    values = copied.values
    copy.inputs = [values[v] for v in graph.inputs]
    copy.outputs = [values[v] for v in graph.outputs]
    copy.control_outputs = [copied.nodes[n] for n in graph.control_outputs]
    copy_surroundings(graph, copy, copied)
    copy.shape_rule = graph.shape_rule
    copy.package = copied_package(graph.package, copied)
    return copy, copied


def copied_package(package: object | None, copied: Copied) -> object | None:
    """What a file holds besides, where it speaks of values in terms of the copies."""
    if package is None or not is_dataclass(package) or isinstance(package, type):
        return package
    changed: dict[str, Any] = {}
    for entry in fields(package):
        held: Any = getattr(package, entry.name)
        if isinstance(held, dict):
            table = cast("dict[Any, Any]", held)
            changed[entry.name] = {copied.values.get(key, key) if isinstance(key, Value) else key: item for key, item in table.items()}
    return replace(package, **changed)


def copy_surroundings(source: Graph, into: Graph, copied: Copied, rename: Callable[[str], str] = str) -> None:
    """Add the signatures and collections of `source`, in terms of the copies; items of nodes that were not copied are left out."""
    for name, signature in source.signatures.items():
        into.signatures[rename(name)] = Signature(
            inputs={key: copied.values[v] for key, v in signature.inputs.items()},
            outputs={key: copied.values[v] for key, v in signature.outputs.items()},
            method_name=signature.method_name,
            extra=signature.extra,
        )
    for name, collection in source.collections.items():
        items = [_copied_item(item, copied) for item in collection.items]
        present = [item for item in items if item is not None]
        if name in into.collections:
            into.collections[name].items += present
        else:
            into.collections[name] = Collection(collection.kind, present)


def _copied_item(item: Any, copied: Copied) -> Any:
    if isinstance(item, Node):
        return copied.nodes.get(item)
    if isinstance(item, Value):
        return copied.values.get(item)
    if isinstance(item, NamedRefs):
        refs = {path: _copied_item(ref, copied) for path, ref in item.refs.items()}
        return None if None in refs.values() else NamedRefs(item.serialized, refs)
    return item


def _renamed(attrs: Mapping[str, Attribute], functions: Mapping[str, str]) -> dict[str, Attribute]:
    return {key: _renamed_attribute(attribute, functions) for key, attribute in attrs.items()} if functions else dict(attrs)


def _renamed_attribute(attribute: Attribute, functions: Mapping[str, str]) -> Attribute:
    if isinstance(attribute, FunctionReference):
        return FunctionReference(functions.get(attribute.name, attribute.name), attribute.serialized)
    if isinstance(attribute, tuple):
        return tuple(_renamed_attribute(item, functions) for item in attribute)
    return attribute


def _follow_colocation(source: Graph, into: Graph, copies: Mapping[Node, Node]) -> None:
    for copy in copies.values():
        places = copy.attrs.get("_class")
        if not isinstance(places, tuple):
            continue
        kept: list[Attribute] = []
        for place in places:
            if not isinstance(place, bytes) or not place.startswith(b"loc:@"):
                kept.append(place)
                continue
            name = place.removeprefix(b"loc:@").decode("utf-8", "replace")
            if name in source and source[name] in copies:
                kept.append(b"loc:@" + copies[source[name]].name.encode())
        into.set_attr(copy, "_class", tuple(kept) if kept else None)
