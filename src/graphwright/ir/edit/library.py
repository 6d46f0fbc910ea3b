"""The library of functions: find callers; add, remove, rename and copy functions."""

from collections.abc import Callable, Collection, Iterable, Mapping

from graphwright.errors import GraphError
from graphwright.ir.edit.copying import CloneResult, copy_body
from graphwright.ir.function_names import attributes_with_functions, definition_with_functions, functions_of, functions_of_node
from graphwright.ir.graph import Function, Graph, Node
from graphwright.ir.names import free_name
from graphwright.ir.text import to_text
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.walk import reached


def bodies(graph: Graph) -> tuple[Graph, ...]:
    return (graph, *(function.body for function in graph.functions.values()))


def call_sites(graph: Graph, name: str) -> tuple[Node, ...]:
    """Return the nodes that name a function, in the graph and in all bodies; visits every node."""
    return tuple(node for body in bodies(graph) for node in body if name in functions_of_node(node, (name,)))


def add_function(graph: Graph, function: Function) -> None:
    """Add a function, with a free name and known callees, to the library; its body gets this library."""
    if function.name in graph.functions:
        raise GraphError(f"there is a function {function.name!r} already", where=f"graph {graph.name!r}", remedy="use unique_function_name")
    for node in function.body:
        for name in called_functions(node):
            if name not in graph.functions and name != function.name:
                raise GraphError(f"function {name!r} is not in the library", where=f"node {node.name!r} of function {function.name!r}")
    function.body.functions = graph.functions
    graph.functions[function.name] = function


def unique_function_name(graph: Graph, name: str) -> str:
    return free_name(name, graph.functions)


def remove_function(graph: Graph, name: str) -> None:
    _function(graph, name)
    callers = [node for node in call_sites(graph, name) if node.graph is not graph.functions[name].body]
    if callers:
        raise GraphError(
            f"function {name!r} is called by {callers[0].name!r}" + (f" and {len(callers) - 1} more" if len(callers) > 1 else ""),
            where=f"graph {callers[0].graph.name!r}",
            remedy="inline or remove the calls first",
        )
    del graph.functions[name]


def remove_unused_functions(graph: Graph, *, called: Collection[str] = ()) -> list[str]:
    """Remove the functions that neither the graph nor those in `called` reach; return their names."""
    callers = [graph, *(graph.functions[name].body for name in called)]
    reached = {*called, *reached_functions(graph, (node for body in callers for node in body))}
    unused = [name for name in graph.functions if name not in reached]
    for name in unused:
        del graph.functions[name]
    return unused


def reached_functions(graph: Graph, nodes: Iterable[Node]) -> list[str]:
    """Return the functions of the library that the nodes name, directly or through others, in the order of the library."""
    library = graph.functions
    seeds = {name: None for node in nodes for name in functions_of_node(node, library)}
    names = set(reached(seeds, lambda name: functions_of(library[name], library)))
    return [name for name in library if name in names] if names else []


def rename_functions(graph: Graph, new_of: Mapping[str, str]) -> None:
    """Rename functions, all at the same time, with everything that names them: op types and attributes of nodes, attributes of such
    references, definitions of functions, gradients and objects in the graph's file. Raise `GraphError` where a name is given twice or
    taken.
    """
    for name, new in new_of.items():
        _function(graph, name)
        if not new or (new in graph.functions and new not in new_of):
            raise GraphError(f"a function cannot be renamed to {new!r}", where=f"function {name!r}", cause="the name is empty or taken")
    if len(set(new_of.values())) != len(new_of):
        raise GraphError("two functions cannot be renamed to the same name", where=f"graph {graph.name!r}")
    changed = {name: new for name, new in new_of.items() if name != new}
    if not changed:
        return
    rename: Callable[[Mapping[str, str]], None] | None = getattr(graph.package, "rename_functions", None)
    with graph.restored_on_error():
        if rename is not None:
            rename(changed)
        for body in bodies(graph):
            for node in body:
                if functions_of_node(node, changed):
                    node.op_type = changed.get(node.op_type, node.op_type)
                    for key, attribute in attributes_with_functions(node.attrs, changed).items():
                        node.attrs.record(key, attribute)
        renamed = {changed.get(name, name): function for name, function in graph.functions.items()}
        graph.functions.clear()
        graph.functions.update(renamed)
        for name, function in renamed.items():
            function.name = name
            if function.body.name in changed:
                function.body.name = name
            function.definition = definition_with_functions(function.definition, changed)


def import_functions(source: Graph, target: Graph, nodes: Iterable[Node]) -> dict[str, str]:
    """Copy the functions that nodes call into another library, unless it has the same text under that name; return the new names of
    functions that were renamed.
    """
    if source.functions is target.functions or not source.functions:
        return {}
    return copy_functions(source, target, reached_functions(source, nodes))[0]


def copy_functions(source: Graph, target: Graph, names: Iterable[str]) -> tuple[dict[str, str], list[CloneResult]]:
    names = list(names)
    same = {name for name in names if name in target.functions and _is_same(source.functions[name], target.functions[name])}
    # What names a function that must be renamed is not the same either.
    while True:
        renamed = {name for name in names if name not in same and name in target.functions}
        lost = {name for name in same if functions_of(source.functions[name], renamed)}
        if not lost:
            break
        same -= lost
    taken = set(target.functions)
    new_of: dict[str, str] = {}
    for name in names:
        if name in same:
            continue
        new = free_name(name, taken)
        taken.add(new)
        if new != name:
            new_of[name] = new
    return new_of, [copy_function(source.functions[name], new_of.get(name, name), target, new_of) for name in names if name not in same]


def copy_function(function: Function, name: str, target: Graph, new_of: Mapping[str, str]) -> CloneResult:
    copy = copy_body(function, name, target.functions, new_of)
    target.functions[name] = Function(name, copy.graph, definition_with_functions(function.definition, new_of))
    return copy


def _is_same(function: Function, other: Function) -> bool:
    if function is other:
        return True
    return function.definition == other.definition and len(function.body) == len(other.body) and _text(function) == _text(other)


def _text(function: Function) -> str:
    lone = copy_body(function, "", {}, {}).graph
    lone.shapes = None
    return to_text(lone)


def _function(graph: Graph, name: str) -> Function:
    try:
        return graph.functions[name]
    except KeyError:
        raise GraphError(
            f"function {name!r} is not in the library", where=f"graph {graph.name!r}", remedy="look at list(graph.functions)"
        ) from None
