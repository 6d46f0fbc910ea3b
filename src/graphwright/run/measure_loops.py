"""Measure numbers of rounds and sizes that depend on data, in one run that changes no variable."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import numpy as np

from graphwright.analyze.backward import updated_variables
from graphwright.analyze.frames import counters_of_frames, has_frames, is_one_more
from graphwright.analyze.storages import Scalar
from graphwright.analyze.trip_counts import number_behind
from graphwright.analyze.unknown_shapes import is_counted_in_data
from graphwright.errors import UnsupportedError
from graphwright.ir.dtypes import Shape
from graphwright.ir.edit.library import reached_functions
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import LOOPS, called_functions, function_at
from graphwright.ir.traits.effects import CHECKS, Purity, draws_by_counter
from graphwright.ir.traits.values import ARGUMENTS, is_open, only_orders
from graphwright.ir.traits.variables import reads_resource, written_resources
from graphwright.ir.walk import backward_reachable, topological_order
from graphwright.run.step_session import StepSession, trace_options
from graphwright.run.step_stats import read_runs, written_name
from graphwright.run.traced_step import TracedStep
from graphwright.source.bounded_shapes import largest
from graphwright.source.concrete_function import Binding
from graphwright.source.rebuild import function_of_values
from graphwright.source.tensorflow_import import import_tensorflow

Number = Callable[[Value], "Scalar | None"]


def measure_trip_counts(
    graph: Graph, binding: Binding, arguments: Sequence[Any], names: Iterable[str], constant: Callable[[Value], np.ndarray[Any, Any] | None]
) -> Mapping[str, int]:
    """Return how often loops ran, from one run of the nodes that their counters need.

    Loops without a counter (a value that grows by one), loops that write variables or take from an iterator, and loops in functions are
    left out. The graph is flat, made from the function of the binding; `names` are of loops (nodes, or frames of TF1).
    """

    number = partial(number_behind, constant=constant, example={})
    wanted = set(names)
    counters = {name: found for name, found in _counters(graph, number).items() if name in wanted and not _writes(graph, found[0])}
    if not counters:
        return {}
    results = _run(graph, binding, arguments, [value for value, _ in counters.values()])
    return {name: int(result) - start for (name, (_, start)), result in zip(counters.items(), results, strict=bool(results))}


def measure_shapes(
    graph: Graph, binding: Binding, arguments: Sequence[Any], purity: Purity, nodes: Iterable[Node]
) -> Mapping[str, Sequence[Shape]]:
    """Return the shapes of the outputs of nodes, by name, from one run of the nodes that they need; see `measure_trip_counts`.

    Nodes that need one with effects other than reading variables and drawing random numbers are left out. In a loop or a branch that counts
    rows in data, the shapes inside are set to the largest of all rounds; the nodes that count them are returned.
    """

    def may_run(node: Node) -> bool:
        reads = reads_resource(node) and not written_resources(node)
        return reads or purity.is_pure(node) or draws_by_counter(node) or only_orders(node) or node.op_type in CHECKS | ARGUMENTS

    open_ = {node: _counted_inside(graph, node) for node in nodes}
    wanted = [node for node, inside in open_.items() if inside or any(map(is_open, node.outputs))]
    wanted = [node for node in wanted if all(map(may_run, backward_reachable([node])))]
    measured = _measure_inside(graph, binding, arguments, {node: open_[node] for node in wanted if open_[node]})
    sized = [value for node in wanted if any(map(is_open, node.outputs)) for value in node.outputs if value.dtype.itemsize is not None]
    shapes = _run(graph, binding, arguments, sized, import_tensorflow().shape) if sized else []
    shapes_of: dict[Value, Shape] = {value: tuple(shape.numpy().tolist()) for value, shape in zip(sized, shapes, strict=False)}
    named = (node for node in wanted if shapes and any(map(is_open, node.outputs)))
    sizes = {node.name: [shapes_of.get(value, ()) for value in node.outputs] for node in named}
    return {**measured, **sizes}


def _counted_inside(graph: Graph, node: Node) -> dict[str, Node]:
    """Return the nodes with open shapes in the functions of a node, if some of them count rows in data."""
    bodies = [graph.functions[name].body for name in reached_functions(graph, [node])]
    inside = {n.name: n for body in bodies for n in body.nodes if any(map(is_open, n.outputs))}
    return inside if any(map(is_counted_in_data, inside.values())) else {}


def _measure_inside(
    graph: Graph, binding: Binding, arguments: Sequence[Any], wanted: Mapping[Node, Mapping[str, Node]]
) -> dict[str, list[Shape]]:
    """Run nodes and set open shapes in their functions to the largest of all rounds; return the shapes of the counting nodes."""
    if not wanted:
        return {}
    tf = import_tensorflow()
    largest_shapes: dict[tuple[str, int], Shape] = {}
    try:
        function = _part(graph, binding, backward_reachable(wanted), effects=wanted)
        with StepSession(TracedStep.called("part_of_step", function, arguments), grappler=False) as session:
            metadata = tf.compat.v1.RunMetadata()
            session.run(options=trace_options(devices=False), metadata=metadata)
    except (tf.errors.OpError, UnsupportedError):
        return {}
    for run in read_runs(metadata.step_stats):
        for slot, shape in run.shapes:
            key = written_name(run.name), slot
            largest_shapes[key] = largest([shape, largest_shapes.get(key, shape)])
    for function in graph.functions.values():  # bounds give way
        for value, exact in function.body.at_most.items():
            value.shape = exact
        function.body.at_most.clear()
    inside = {name: node for nodes in wanted.values() for name, node in nodes.items()}
    for name, node in inside.items():
        for value in node.outputs:
            measured = largest_shapes.get((name, value.index))
            if measured is not None and is_open(value):
                node.graph.at_most[value], value.shape = value.shape, measured
    counted = [node for node in inside.values() if is_counted_in_data(node) and node.outputs[0] in node.graph.at_most]
    return {node.name: [value.shape for value in node.outputs] for node in counted}


def _part(graph: Graph, binding: Binding, needed: AbstractSet[Node], outputs: Sequence[Value] = (), effects: Iterable[Node] = ()) -> Any:
    arguments, captured = graph.inputs[: binding.argument_count], graph.inputs[binding.argument_count :]
    needed = {*needed, *(value.producer for value in arguments)}
    captures = [(outer, value) for outer, value in zip(binding.captures, captured, strict=True) if value.producer in needed]
    return function_of_values(graph, arguments, outputs, captures, effects, needed.__contains__, name="part_of_step")


def _run(graph: Graph, binding: Binding, arguments: Sequence[Any], values: Sequence[Value], asked: Any = None) -> list[Any]:
    """Return values for these arguments, or what is `asked` of each; nothing if the analyzed graph does not run."""
    tf = import_tensorflow()

    def answers(*given: Any) -> list[Any]:  # holds no value for long
        return [(asked or tf.identity)(tensor) for tensor in function(*given) or ()]

    try:
        function = _part(graph, binding, backward_reachable(value.producer for value in values), values)
        return list(tf.function(answers, autograph=False)(*map(tf.convert_to_tensor, arguments)))
    except tf.errors.OpError:
        return []


def _counters(graph: Graph, number: Number) -> dict[str, tuple[Value, int]]:
    counters: dict[str, tuple[Value, int]] = {}
    for node in graph.nodes:
        function = function_at(node, "body", graph) if node.op_type in LOOPS else None
        if function is None:
            continue
        for value, before, after in zip(node.inputs, function.body.inputs, function.body.outputs, strict=True):
            start = number(value)
            if start is not None and is_one_more(after, before, number):
                counters[node.name] = (node.outputs[function.body.inputs.index(before)], int(start))
                break
    if has_frames(graph.nodes):
        counters |= counters_of_frames(topological_order(graph), number)
    return counters


def _writes(graph: Graph, value: Value) -> bool:
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
