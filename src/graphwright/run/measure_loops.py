"""How often loops run, measured: the counters of loops are fetched in one run that changes no variable."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphwright.analyze.backward import updated_variables
from graphwright.analyze.frames import counters_of_frames, has_frames, is_one_more
from graphwright.analyze.storages import Scalar
from graphwright.analyze.trip_counts import number_behind
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import LOOPS, called_functions, function_at
from graphwright.ir.walk import backward_reachable, topological_order
from graphwright.source.concrete_function import Binding
from graphwright.source.graph_def import to_graph_def
from graphwright.source.rebuild import rebuild_concrete_function
from graphwright.source.tensorflow_import import import_tensorflow

Number = Callable[[Value], "Scalar | None"]


def measure_trip_counts(
    graph: Graph,
    binding: Binding,
    arguments: Sequence[Any],
    names: Iterable[str],
    constant: Callable[[Value], np.ndarray[Any, Any] | None],
) -> Mapping[str, int]:
    """Run what the counters of the loops need, once; how often each of them ran.

    A loop without a counter (a value that grows by one) is left out, and so is one that writes variables, takes from an iterator, or is
    inside a function.

    Args:
        graph: flat, made from the function of the binding.
        arguments: tensors, in the order of the graph's first inputs.
        names: of the loops (nodes, or frames of TF1) to measure.
        constant: the array of a value whose producer is a `Const`, or None.
    """
    tf = import_tensorflow()

    number = partial(number_behind, constant=constant, example={})
    wanted = set(names)
    counters = {name: found for name, found in _counters(graph, number).items() if name in wanted and not _writes(graph, found[0])}
    if not counters:
        return {}
    needed = backward_reachable(value.producer for value, _ in counters.values()) | {v.producer for v in graph.inputs}
    inputs = graph.inputs[: binding.argument_count]
    captured = graph.inputs[binding.argument_count :]
    try:
        function = rebuild_concrete_function(
            to_graph_def(graph, keep=lambda node: node in needed),
            inputs=[v.name for v in inputs],
            captures=[(external, value.name) for external, value in zip(binding.captures, captured, strict=True)],
            outputs=[value.name for value, _ in counters.values()],
            name="loop_counters",
        )
        results: Any = function(*(tf.convert_to_tensor(a) for a in arguments))
    except tf.errors.OpError:  # a graph that was made to be analyzed need not run
        return {}
    return {name: int(result) - start for (name, (_, start)), result in zip(counters.items(), results, strict=True)}


def _counters(graph: Graph, number: Number) -> dict[str, tuple[Value, int]]:
    """By loop, the output that counts its iterations, and where it starts."""
    found: dict[str, tuple[Value, int]] = {}
    for node in graph.nodes:
        function = function_at(node, "body", graph) if node.op_type in LOOPS else None
        if function is None:
            continue
        for value, before, after in zip(node.inputs, function.body.inputs, function.body.outputs, strict=True):
            start = number(value)
            if start is not None and is_one_more(after, before, number):
                found[node.name] = (node.outputs[function.body.inputs.index(before)], int(start))
                break
    if has_frames(graph.nodes):
        found |= counters_of_frames(topological_order(graph), number)
    return found


def _writes(graph: Graph, value: Value) -> bool:
    """Whether what the value needs writes a variable or takes from an iterator, in functions too."""
    waiting: list[Node] = list(backward_reachable([value.producer]))
    seen: set[str] = set()
    while waiting:
        node = waiting.pop()
        if updated_variables(node) or "GetNext" in node.op_type:
            return True
        for name in called_functions(node):
            if name not in seen and name in graph.functions:
                seen.add(name)
                waiting += graph.functions[name].body.nodes
    return False
