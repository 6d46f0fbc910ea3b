"""Shapes by TensorFlow's own inference: a graph, or the body of a function, is imported with other shapes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphwright.errors import UnknownShapeError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.dtypes import DType, Shape, format_shape
from graphwright.ir.graph import Graph
from graphwright.source import private_tensorflow
from graphwright.source.graph_def import to_graph_def
from graphwright.source.tensorflow_import import import_tensorflow


def infer_shapes(graph: Graph, feeds: Mapping[int, tuple[int | None, ...]] | None = None) -> None:
    """Set the shape of every value of `graph` from the shapes of its inputs.

    Args:
        feeds: shapes of inputs by their position; other inputs keep theirs.

    Raises:
        UnknownShapeError: a feed does not fit the graph; nothing is changed then.
    """
    fed = feeds or {}
    shapes = [fed.get(k, value.shape) for k, value in enumerate(graph.inputs)]
    variables = [graph.variables.get(value) for value in graph.inputs]
    try:
        inferred = _inferred_shapes(graph, shapes, [None if v is None else (v.dtype, v.shape) for v in variables])
    except ValueError as error:
        given = ", ".join(f"{graph.inputs[k].name}={format_shape(s)}" for k, s in fed.items())
        raise UnknownShapeError(
            f"the graph cannot take these shapes: {given}",
            cause=str(error).splitlines()[0],
            remedy="give the shapes the step is called with",
        ) from error
    for k, (value, shape) in enumerate(zip(graph.inputs, shapes, strict=True)):
        value.shape = shape
        if k in fed and "shape" in value.producer.attrs:
            graph.set_attr(value.producer, "shape", ShapeAttribute(shape))
    for name, found in inferred.items():
        for value, shape in zip(graph[name].outputs, found, strict=True):
            value.shape = shape


def infer_body_shapes(body: Graph, shapes: Sequence[Shape], handles: Sequence[tuple[DType, Shape] | None]) -> None:
    """Set the shapes in the body of a function from those of its arguments.

    A dimension that inference leaves open keeps what tracing found.

    Args:
        shapes: per argument.
        handles: per argument that is a list or a variable, the dtype and shape of its elements or of its value.
    """
    inferred = _inferred_shapes(body, shapes, handles)
    for value, shape in zip(body.inputs, shapes, strict=True):
        value.shape = _merged(shape, value.shape)
    for name, found in inferred.items():
        for value, shape in zip(body[name].outputs, found, strict=True):
            value.shape = _merged(shape, value.shape)


def _inferred_shapes(graph: Graph, shapes: Sequence[Shape], handles: Sequence[tuple[DType, Shape] | None]) -> dict[str, list[Shape]]:
    """The shapes of the outputs of each node that is no input, by the name of the node.

    Raises:
        ValueError: TensorFlow refuses the graph with these shapes.
    """
    tf = import_tensorflow()
    inputs = {value.producer for value in graph.inputs}
    func_graph = private_tensorflow.new_func_graph(graph.name or "graph")
    with func_graph.as_default():
        input_map: dict[str, Any] = {}
        for k, (value, shape, handle) in enumerate(zip(graph.inputs, shapes, handles, strict=True)):
            # A name of its own: "a/b/resource" would claim the scope "a/b", and an imported node "a/b" would be renamed.
            tensor = tf.compat.v1.placeholder(tf.as_dtype(value.dtype.number), shape, name=f"graphwright_input_{k}")
            if handle is not None:
                private_tensorflow.set_handle_data(tensor, *handle)
            if value.uses:  # TensorFlow refuses to map what nothing reads
                input_map[value.name] = tensor
            if value.producer.control_consumers:
                input_map[f"^{value.producer.name}"] = tensor
        tf.graph_util.import_graph_def(to_graph_def(graph, keep=lambda node: node not in inputs), input_map=input_map, name="")
    operation: Any = func_graph.get_operation_by_name
    return {node.name: [_shape_of(tensor) for tensor in operation(node.name).outputs] for node in graph.nodes if node not in inputs}


def _shape_of(tensor: Any) -> Shape:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _merged(shape: Shape, traced: Shape) -> Shape:
    """The dimensions of `shape`, and where they are open those of `traced`."""
    if shape is None or traced is None or len(shape) != len(traced):
        return traced if shape is None else shape
    return tuple(t if s is None else s for s, t in zip(shape, traced, strict=True))
