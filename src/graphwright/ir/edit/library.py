"""The library of functions: who calls what, adding, removing and renaming functions, taking them into another library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute, FunctionReference
from graphwright.ir.graph import Function, Graph, Node
from graphwright.ir.text import to_text
from graphwright.ir.traits import called_functions

_A = TypeVar("_A", bound=Attribute | str)


def bodies(graph: Graph) -> tuple[Graph, ...]:
    """The graph itself and the bodies of its functions."""
    return (graph, *(function.body for function in graph.functions.values()))


def references(node: Node) -> tuple[str, ...]:
    """The names of all functions that a node names: in its attributes, and as its op type."""
    called = called_functions(node)
    return (node.op_type, *called) if node.op_type in node.graph.functions else called


def call_sites(graph: Graph, name: str) -> tuple[Node, ...]:
    """The nodes that name a function, in the graph and in the bodies of its functions; looks at every node.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %call = PartitionedCall() {f = @f}
    ... function "f"
    ... ''')
    >>> [node.name for node in call_sites(g, "f")]
    ['call']
    """
    return tuple(node for body in bodies(graph) for node in body if name in references(node))


def add_function(graph: Graph, function: Function) -> None:
    """Add a function to the library; its body gets this library.

    Raises:
        GraphError: the name is taken, or the body calls what the library does not have; nothing is changed then.
    """
    if function.name in graph.functions:
        raise GraphError(f"there is a function {function.name!r} already", where=f"graph {graph.name!r}", remedy="use unique_function_name")
    for node in function.body:
        for name in called_functions(node):
            if name not in graph.functions and name != function.name:
                raise GraphError(f"function {name!r} is not in the library", where=f"node {node.name!r} of function {function.name!r}")
    function.body.functions = graph.functions
    graph.functions[function.name] = function


def unique_function_name(graph: Graph, name: str) -> str:
    """The name itself when the library has no such function, else with the first free suffix."""
    if name not in graph.functions:
        return name
    k = 1
    while f"{name}_{k}" in graph.functions:
        k += 1
    return f"{name}_{k}"


def remove_function(graph: Graph, name: str) -> None:
    """Remove a function that nothing names.

    Raises:
        GraphError: there is none, or a node names it; the message says which.
    """
    _function(graph, name)
    callers = [node for node in call_sites(graph, name) if node.graph is not graph.functions[name].body]
    if callers:
        raise GraphError(
            f"function {name!r} is called by {callers[0].name!r}" + (f" and {len(callers) - 1} more" if len(callers) > 1 else ""),
            where=f"graph {callers[0].graph.name!r}",
            remedy="inline or remove the calls first",
        )
    del graph.functions[name]


def remove_unused_functions(graph: Graph) -> list[str]:
    """Remove the functions that neither the graph nor a function that it reaches names; returns their names."""
    reached: set[str] = set()
    waiting = [graph]
    while waiting:
        body = waiting.pop()
        fresh = {name for node in body for name in references(node) if name in graph.functions} - reached
        reached |= fresh
        waiting += [graph.functions[name].body for name in fresh]
    unused = [name for name in graph.functions if name not in reached]
    for name in unused:
        del graph.functions[name]
    return unused


def rename_functions(graph: Graph, new_of: Mapping[str, str]) -> None:
    """Rename functions, all at the same time; every node that names one follows.

    Raises:
        GraphError: a function does not exist, or a name is given twice or taken; nothing is changed then.
    """
    for name, new in new_of.items():
        _function(graph, name)
        if not new or (new in graph.functions and new not in new_of):
            raise GraphError(f"a function cannot be renamed to {new!r}", where=f"function {name!r}", cause="the name is empty or taken")
    if len(set(new_of.values())) != len(new_of):
        raise GraphError("two functions cannot be renamed to the same name", where=f"graph {graph.name!r}")
    for body in bodies(graph):
        for node in body:
            if any(name in new_of for name in references(node)):
                node.op_type = new_of.get(node.op_type, node.op_type)
                for key, attribute in node.attrs.items():
                    node.attrs[key] = with_functions(attribute, new_of)
    renamed = {new_of.get(name, name): function for name, function in graph.functions.items()}
    graph.functions.clear()
    graph.functions.update(renamed)
    for name, function in renamed.items():
        function.name = name


def with_functions(attribute: _A, new_of: Mapping[str, str]) -> _A:
    """An attribute, or an op type, with other names of functions."""
    if not new_of:
        return attribute
    if isinstance(attribute, str):
        return cast(_A, new_of.get(attribute, attribute))
    if isinstance(attribute, FunctionReference):
        return cast(_A, FunctionReference(new_of.get(attribute.name, attribute.name), attribute.serialized))
    if isinstance(attribute, tuple):
        return cast(_A, tuple(with_functions(item, new_of) for item in cast("tuple[Attribute, ...]", attribute)))
    return attribute


def reached_functions(graph: Graph, nodes: Iterable[Node]) -> list[str]:
    """The functions of the library that the nodes name, directly or through others, in the order of the library."""
    reached: set[str] = set()
    waiting: list[Iterable[Node]] = [nodes]
    while waiting:
        fresh = {name for node in waiting.pop() for name in references(node) if name in graph.functions} - reached
        reached |= fresh
        waiting += [graph.functions[name].body for name in fresh]
    return [name for name in graph.functions if name in reached] if reached else []


def import_functions(source: Graph, target: Graph, nodes: Iterable[Node]) -> dict[str, str]:
    """Copy what the nodes call into the library of `target`; returns the new name of each function that was copied under another one.

    A function that the target has under the same name with the same text is shared.
    """
    if source.functions is target.functions:
        return {}
    names = reached_functions(source, nodes)
    same = {name for name in names if name in target.functions and _text(target.functions[name]) == _text(source.functions[name])}
    # What calls a function that must be renamed is not the same either.
    while True:
        renamed = {name for name in names if name not in same and name in target.functions}
        lost = {name for name in same if any(c in renamed for node in source.functions[name].body for c in references(node))}
        if not lost:
            break
        same -= lost
    taken = set(target.functions)
    new_of: dict[str, str] = {}
    for name in names:
        if name in same:
            continue
        new = name
        k = 1
        while new in taken:
            new = f"{name}_{k}"
            k += 1
        taken.add(new)
        if new != name:
            new_of[name] = new
    for name in names:
        if name not in same:
            _copy_function(source.functions[name], target, new_of)
    return new_of


def _copy_function(function: Function, target: Graph, new_of: Mapping[str, str]) -> None:
    name = new_of.get(function.name, function.name)
    copy = copy_body(function.body, name, target.functions, new_of)
    target.functions[name] = Function(name, copy, function.definition)


def copy_body(body: Graph, name: str, functions: dict[str, Function], new_of: Mapping[str, str]) -> Graph:
    """A copy of a body, node by node in the same order, in another library."""
    copy = Graph(name, functions=functions, versions=body.versions)
    node_of: dict[Node, Node] = {}
    for node in body:
        node_of[node] = copy.add_node(
            with_functions(node.op_type, new_of),
            node.name,
            attrs={key: with_functions(attribute, new_of) for key, attribute in node.attrs.items()},
            output_types=[(v.dtype, v.last_shape) for v in node.outputs],
            device=node.device,
            extra=node.extra,
        )
    for node, new in node_of.items():
        if node.inputs:
            copy.set_inputs(new, [node_of[v.producer].outputs[v.index] for v in node.inputs])
        for control in node.control_inputs:
            copy.add_control_input(new, node_of[control])
    copy.inputs = [node_of[v.producer].outputs[v.index] for v in body.inputs]
    copy.outputs = [node_of[v.producer].outputs[v.index] for v in body.outputs]
    copy.control_outputs = [node_of[node] for node in body.control_outputs]
    copy.variables = {node_of[v.producer].outputs[v.index]: variable for v, variable in body.variables.items()}
    copy.shape_rule = body.shape_rule
    return copy


def _text(function: Function) -> tuple[str, bytes]:
    """What two functions have in common that are the same."""
    lone = copy_body(function.body, "", {}, {})
    lone.shape_rule = None
    return to_text(lone), function.definition


def _function(graph: Graph, name: str) -> Function:
    try:
        return graph.functions[name]
    except KeyError:
        raise GraphError(
            f"function {name!r} is not in the library", where=f"graph {graph.name!r}", remedy="look at list(graph.functions)"
        ) from None
