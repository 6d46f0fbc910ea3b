"""Checks that a graph is well formed. The verbs of `Graph` keep it so; this is the proof, for tests and debugging."""

import textwrap
from collections.abc import Iterator

from graphwright.errors import GraphError
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.text import neighborhood
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.walk import cycle_among, producers_of


def verify(graph: Graph) -> None:
    """Raise `GraphError` unless every invariant holds, in the graph and in the bodies of its functions; takes linear time.

    Invariants:
        1. Names: each node is found under its own name, and no two nodes share one.
        2. Ownership: a node's `graph` is the graph that holds it; a value's `producer` and `index` match its place; all inputs and control
           inputs belong to the graph.
        3. Def-use: `value.uses` holds `(node, k)` if and only if `node.inputs[k]` is the value.
        4. Control edges: `n in node.control_inputs` if and only if `node in n.control_consumers`; no node waits for itself.
        5. Borders: inputs, outputs and control outputs belong to the graph, inputs are distinct, and variables stand behind resource
           values.
        6. Order: data and control edges make no cycle, except for edges from `NextIteration` to `Merge`.
        7. Functions: each function that an attribute names is in the library, under its own name, and all bodies share the library.
        8. Signatures and collections: their nodes and values belong to the graph.

    >>> from graphwright.ir.attributes import FunctionReference
    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph("g")
    >>> a = g.add_node("Const", "a", output_types=[(DTYPES["float32"], ())])
    >>> verify(g)
    >>> g.set_attr(a, "body", FunctionReference("lost"))
    >>> verify(g)
    Traceback (most recent call last):
        ...
    graphwright.errors.GraphError: function 'lost' is not in the library
      where: graph 'g', around
        %a = Const() {body = @lost} : float32[]
    """
    with garbage_collection_paused():
        _verify_body(graph)
        for name, function in graph.functions.items():
            if function.name != name:
                raise GraphError(f"function {function.name!r} is in the library as {name!r}", where=f"graph {graph.name!r}")
            if function.body.functions is not graph.functions:
                raise GraphError(f"the body of function {name!r} has another library", where=f"graph {graph.name!r}")
            _verify_body(function.body)


def _verify_body(graph: Graph) -> None:
    for node in graph:
        _verify_place(graph, node)
    _verify_uses(graph)
    _verify_control(graph)
    _verify_borders(graph)
    cycle = cycle_among(graph, producers_of)
    if cycle:
        raise _broken(graph, f"these nodes wait for each other: {' -> '.join(n.name for n in cycle)}", *cycle)


def _verify_place(graph: Graph, node: Node) -> None:
    if node.name not in graph or graph[node.name] is not node:
        raise _broken(graph, f"{node.name!r} is not found under its name", node)
    if node.graph is not graph:
        raise _broken(graph, f"{node.name!r} says that it belongs to graph {node.graph.name!r}", node)
    for k, value in enumerate(node.outputs):
        if value.producer is not node or value.index != k:
            raise _broken(graph, f"output {k} of {node.name!r} says that it is {value.name}", node, value.producer)
    for k, value in enumerate(node.inputs):
        if not _is_in(graph, value):
            raise _broken(graph, f"{node.name}.inputs[{k}] is {value.name}, which is not in the graph", node)
    for name in called_functions(node):
        if name not in graph.functions:
            raise _broken(graph, f"function {name!r} is not in the library", node)


def _verify_uses(graph: Graph) -> None:
    listed = {(use.node, use.index): value for node in graph for value in node.outputs for use in value.uses}
    for node in graph:
        for k, value in enumerate(node.inputs):
            if listed.pop((node, k), None) is not value:
                raise _broken(graph, f"{node.name}.inputs[{k}] is {value.name}, which does not list that use", node, value.producer)
    for (node, k), value in listed.items():
        raise _broken(graph, f"{value.name} lists the use {node.name}.inputs[{k}], which does not read it", value.producer, node)


def _verify_control(graph: Graph) -> None:
    listed = {(after, node) for node in graph for after in node.control_consumers}
    for node in graph:
        for before in node.control_inputs:
            if before is node:
                raise _broken(graph, f"{node.name!r} waits for itself", node)
            if not graph.owns(before):
                raise _broken(graph, f"{node.name!r} waits for {before.name!r}, which is not in the graph", node)
            if (node, before) not in listed:
                raise _broken(graph, f"{node.name!r} waits for {before.name!r}, which does not know it", node, before)
            listed.remove((node, before))
    for after, node in listed:
        raise _broken(graph, f"{node.name!r} lists {after.name!r}, which does not wait for it", node, after)


def _verify_borders(graph: Graph) -> None:
    where = f"graph {graph.name!r}"
    for place, held in _held(graph):
        if not (graph.owns(held) if isinstance(held, Node) else _is_in(graph, held)):
            raise GraphError(f"{place} is {held.name!r}, which is not in the graph", where=where)
    if len(set(graph.inputs)) != len(graph.inputs):
        raise GraphError("a value is an input twice", where=where)
    for value, variable in graph.variables.items():
        if not _is_in(graph, value) or value.dtype.name != "resource":
            raise GraphError(f"variable {variable.name!r} stands behind {value.name}, which is not a resource of the graph", where=where)


def _held(graph: Graph) -> Iterator[tuple[str, Node | Value]]:
    for role, items in (("an input", graph.inputs), ("an output", graph.outputs), ("a control output", graph.control_outputs)):
        yield from ((role, item) for item in items)
    for name, signature in graph.signatures.items():
        for role, values in (("input", signature.inputs), ("output", signature.outputs)):
            yield from ((f"{role} {key!r} of signature {name!r}", value) for key, value in values.items())
    for name, collection in graph.collections.items():
        yield from ((f"an item of collection {name!r}", item) for item in collection.references())


def _is_in(graph: Graph, value: Value) -> bool:
    outputs = value.producer.outputs
    return graph.owns(value.producer) and value.index < len(outputs) and outputs[value.index] is value


def _broken(graph: Graph, what: str, *nodes: Node) -> GraphError:
    return GraphError(what, where=f"graph {graph.name!r}, around\n{textwrap.indent(neighborhood(nodes), '    ')}")
