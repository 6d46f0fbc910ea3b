"""A graph as a step: the function from fed placeholders to fetched values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import is_constant
from graphwright.source.load import load
from graphwright.source.static_function import static_function
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.trust import as_path, check_trusted


def output_names(outputs: Iterable[Any] | Any) -> list[str]:
    """Return the names of values, operations or tensors.

    >>> output_names("loss"), output_names(["loss:0", "train"])
    (['loss'], ['loss:0', 'train'])
    """
    listed: Sequence[Any] = cast("Sequence[Any]", outputs) if isinstance(outputs, list | tuple) else [outputs]
    return [output if isinstance(output, str) else str(output.name) for output in listed]


def fetch(graph: Graph, outputs: Iterable[Any] | Any, *, whole: bool = False) -> tuple[list[Value], list[Node]]:
    """Return the fetched values, and the fetched nodes without values. Raises `ArgumentError` if one is not in the graph."""
    values: list[Value] = []
    nodes: list[Node] = []
    for name in output_names(outputs):
        node_name, _, index = name.partition(":")
        try:
            node = graph[node_name]
        except GraphError as error:
            raise ArgumentError(error.what, argument="outputs", cause=error.cause, remedy=error.remedy) from error
        at = int(index) if index.isdecimal() else 0
        if not node.outputs:
            nodes.append(node)
        elif at >= len(node.outputs):
            raise ArgumentError(f"{node_name!r} has {len(node.outputs)} outputs", argument="outputs", where=repr(name))
        else:
            values += node.outputs if whole and not index else [node.outputs[at]]
    return values, nodes


def is_graph(target: Any) -> bool:
    tf = import_tensorflow()
    return isinstance(target, Graph | tf.Graph | tf.compat.v1.GraphDef | tf.compat.v1.MetaGraphDef)


def function_of_graph(target: Any, outputs: Iterable[Any] | Any, fed: Iterable[str] = (), *, runs: bool = False) -> Any:
    """Return a graph as a `ConcreteFunction` from its placeholders to the fetched values.

    Raises `ArgumentError` if it lacks an output, or names none itself.

    Args:
        target: what `load` reads; it is not changed.
        outputs: names, tensors or operations; None for the outputs that the graph names itself.
        fed: names of fed placeholders that have a default value.
        runs: whether the function will be called; a file must be trusted then.
    """
    if not is_graph(target) and not isinstance(target, str | Path):
        raise ArgumentError(f"{type(target).__name__} has outputs of its own", argument="outputs", remedy="leave it out: it is for graphs")
    if runs:
        check_trusted(target, "running it")
    graph = load(as_path(target) if isinstance(target, str | Path) else target)
    graph = copy_graph(graph).graph if graph is target else graph
    function = static_function(graph, "", fetch(graph, _own_outputs(graph) if outputs is None else outputs), fed=frozenset(fed), runs=runs)
    function.__name__ = graph.name or "graph"
    return function


def _own_outputs(graph: Graph) -> Sequence[str]:
    if graph.outputs or graph.control_outputs:
        return [*(v.name for v in graph.outputs), *(n.name for n in graph.control_outputs)]
    signatures = graph.signatures
    chosen = signatures.get("serving_default") or (next(iter(signatures.values())) if len(signatures) == 1 else None)
    if chosen is not None:
        return [v.name for v in chosen.outputs.values()]
    last = [n.name for n in graph.nodes if not any(v.uses for v in n.outputs) and not n.control_consumers and not is_constant(n)]
    raise ArgumentError(
        "a graph was given without its fetches",
        argument="outputs",
        cause="only what the fetches need is counted",
        remedy=f"give outputs=[...]; nothing reads {', '.join(last[:5])}",
    )
