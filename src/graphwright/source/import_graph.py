"""Shape inference by TensorFlow: imports a graph, or the body of a function, with other shapes of its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from graphwright.errors import ErrorCode, UnknownShapeError, first_line
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.dtypes import Argument, Known, Shape, filled, format_shape
from graphwright.ir.graph import Graph, Value
from graphwright.ir.traits.control_flow import called_functions
from graphwright.source import private_tensorflow
from graphwright.source.attributes import shape_of
from graphwright.source.bounded_shapes import Bounded, Numbers, Outputs, import_bounded
from graphwright.source.graph_def import to_graph_def
from graphwright.source.never_run import forbid_to_run
from graphwright.source.tensorflow_import import import_tensorflow


def infer_shapes(graph: Graph, feeds: Mapping[int, tuple[int | None, ...]] | None = None, *, bounded: Known | None = None) -> list[str]:
    """Set the shape of every value from the shapes of the inputs; `feeds` replaces some of these by position.

    With `bounded`, what is known of the graph, values that depend on data get their largest shape (`Graph.at_most`); the names of the nodes
    whose data determine a number of rows are returned. Raise `UnknownShapeError` where a feed does not fit the graph.
    """
    fed = feeds or {}
    shapes = [fed.get(k, value.shape) for k, value in enumerate(graph.inputs)]
    variables = [graph.variables.get(value) for value in graph.inputs]
    arguments = [Argument(shape, None if v is None else (v.dtype, v.shape)) for shape, v in zip(shapes, variables, strict=True)]
    for k, held in (bounded or Known()).numbers.items():
        arguments[k] = replace(arguments[k], numbers=(np.array(held), np.array(held)))
    try:
        inferred = _inferred(graph, arguments, bounded=bounded)
    except ValueError as error:
        fed_shapes = ", ".join(f"{graph.inputs[k].name}={format_shape(s)}" for k, s in fed.items())
        raise UnknownShapeError(
            f"the graph cannot take these shapes: {fed_shapes}", cause=first_line(error), remedy="give the shapes the step is called with"
        ) from error
    for k in fed:
        if "shape" in graph.inputs[k].producer.attrs:
            graph.set_attr(graph.inputs[k].producer, "shape", ShapeAttribute(shapes[k]))
    known = dict(zip(graph.inputs, shapes, strict=True))
    for name, tensors in inferred.tensors.items():
        known.update(zip(graph[name].outputs, map(shape_of, tensors), strict=True))
    graph.assign_shapes(known)
    _note_bounds(graph, inferred)
    return inferred.found


def infer_body_shapes(body: Graph, arguments: Sequence[Argument]) -> dict[Value, Numbers]:
    """Set the shapes in the body of a function from its arguments; dimensions that inference leaves open keep their traced sizes. Return
    the known integers that the body passes to other functions.
    """
    try:
        inferred = _inferred(body, arguments, bounded=_known_inside(body))
    except ValueError as error:
        raise UnknownShapeError(
            f"the function cannot take these shapes: {', '.join(format_shape(a.shape) for a in arguments)}",
            where=f"function {body.name!r}",
            cause=first_line(error),
            remedy="give the shapes the step is called with, or example inputs",
            code=ErrorCode.UNKNOWN_SIZE,
        ) from error
    body.at_most.update({v: v.shape for v, argument in zip(body.inputs, arguments, strict=True) if argument.exact is not None})
    inferred_shapes = {value: argument.shape for value, argument in zip(body.inputs, arguments, strict=True)}
    for name, tensors in inferred.tensors.items():
        inferred_shapes.update(zip(body[name].outputs, map(shape_of, tensors), strict=True))
    body.assign_shapes({value: filled(shape, value.shape) for value, shape in inferred_shapes.items()})
    _note_bounds(body, inferred)
    handed_on = {v for node in body.nodes if called_functions(node) for v in node.inputs if v.producer.name in inferred.tensors}
    known = {v: inferred.numbers(inferred.made[v.producer.name][v.index]) for v in handed_on}
    return {v: numbers for v, numbers in known.items() if numbers is not None}


def _known_inside(body: Graph) -> Known:
    nodes = {value.producer for value in body.at_most} - {value.producer for value in body.inputs}
    return Known(sizes={node.name: [value.shape for value in node.outputs] for node in nodes})


def _note_bounds(graph: Graph, inferred: Bounded) -> None:
    for name, shape in inferred.at_most.items():
        producer, _, index = name.rpartition(":")
        graph.at_most[graph[producer].outputs[int(index)]] = shape


def _inferred(graph: Graph, arguments: Sequence[Argument], *, bounded: Known | None) -> Bounded:
    tf = import_tensorflow()
    inputs = {value.producer for value in graph.inputs}
    func_graph = private_tensorflow.new_func_graph(graph.name or "graph")
    with func_graph.as_default():
        input_map: dict[str, Any] = {}
        stand_ins: list[tuple[Any, Argument]] = []
        for k, (value, argument) in enumerate(zip(graph.inputs, arguments, strict=True)):
            # A name of its own: "a/b/resource" would claim the scope "a/b", and an imported node "a/b" would be renamed.
            tensor = _stand_in(argument, tf.as_dtype(value.dtype.number), f"graphwright_input_{k}")
            stand_ins.append((tensor, argument))
            if value.use_count:  # TensorFlow refuses to map what nothing reads
                input_map[value.name] = tensor
            if value.producer.control_consumers:
                input_map[f"^{value.producer.name}"] = tensor
        graph_def = forbid_to_run(to_graph_def(graph, keep=lambda node: node not in inputs))
        for node in graph_def.node:  # the gradient of a loop's body is placed with nodes of the body, which are not here
            node.attr.pop("_class", None)
        sizes, functions = (bounded or Known()).sizes, partial(_results, graph, bounded)
        return import_bounded(graph_def, input_map, functions, stand_ins, sizes, bounds=bounded is not None)


def _stand_in(argument: Argument, dtype: Any, name: str) -> Any:
    tf = import_tensorflow()
    numbers = argument.numbers
    if numbers is not None and np.array_equal(*numbers):
        return tf.constant(numbers[0], dtype, name=name)
    tensor = tf.compat.v1.placeholder(dtype, argument.shape if argument.exact is None else argument.exact, name=name)
    if argument.handle is not None:
        private_tensorflow.set_handle_data(tensor, *argument.handle)
    return tensor


def _results(graph: Graph, bounded: Known | None, name: str, arguments: Sequence[Argument]) -> list[Outputs]:
    results: list[Outputs] = []
    node = graph[name]
    for function in called_functions(node, "body") or called_functions(node):
        body = graph.functions[function].body
        inferred = _inferred(body, arguments, bounded=None if bounded is None else _known_inside(body))
        position = {value: k for k, value in enumerate(body.inputs)}
        outputs: list[tuple[Shape, Numbers | None, bool]] = []
        for value in body.outputs:
            if value in position:
                argument = arguments[position[value]]
                outputs.append((argument.shape, argument.numbers, argument.exact is None))
            else:
                made, largest = (tensors[value.producer.name][value.index] for tensors in (inferred.made, inferred.tensors))
                outputs.append((shape_of(largest), inferred.numbers(made), value.name not in inferred.at_most))
        results.append(outputs)
    return results
