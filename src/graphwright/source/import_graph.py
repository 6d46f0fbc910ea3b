"""Shapes by TensorFlow's own inference: a graph, or the body of a function, is imported with other shapes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphwright.errors import UnknownShapeError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.dtypes import DType, Shape, format_shape
from graphwright.ir.graph import Graph, Value
from graphwright.ir.traits import called_functions, is_few_integers
from graphwright.source import private_tensorflow
from graphwright.source.graph_def import to_graph_def
from graphwright.source.never_run import forbid_to_run
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
        inferred, _ = _inferred(graph, shapes, [None if v is None else (v.dtype, v.shape) for v in variables])
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
    for name, tensors in inferred.items():
        for value, tensor in zip(graph[name].outputs, tensors, strict=True):
            value.shape = _shape_of(tensor)


def infer_body_shapes(
    body: Graph, shapes: Sequence[Shape], handles: Sequence[tuple[DType, Shape] | None], sizes: Sequence[Any]
) -> tuple[list[str], dict[Value, Any]]:
    """Set the shapes in the body of a function from those of its arguments.

    A dimension that inference leaves open keeps what tracing found.

    Args:
        shapes: per argument.
        handles: per argument that is a list or a variable, the dtype and shape of its elements or of its value.
        sizes: per argument, its integers where they are known, or None. Shapes alone may follow from them.

    Returns:
        The names of the nodes that give as many rows as there are in the data, where as many as there can be were taken; and the integers
        that the body hands to other functions, where they are known.

    Raises:
        UnknownShapeError: TensorFlow refuses the function with these shapes.
    """
    try:
        inferred, by_data = _inferred(body, shapes, handles, sizes)
    except ValueError as error:
        raise UnknownShapeError(
            f"the function cannot take these shapes: {', '.join(format_shape(shape) for shape in shapes)}",
            where=f"function {body.name!r}",
            cause=str(error).splitlines()[0],
            remedy="give the shapes the step is called with, or example inputs",
        ) from error
    for value, shape in zip(body.inputs, shapes, strict=True):
        value.shape = _merged(shape, value.shape)
    for name, tensors in inferred.items():
        for value, tensor in zip(body[name].outputs, tensors, strict=True):
            value.shape = _merged(_shape_of(tensor), value.shape)
    handed_on = {v for node in body.nodes if called_functions(node) for v in node.inputs if is_few_integers(v)}
    known = {v: private_tensorflow.constant_of(inferred[v.producer.name][v.index]) for v in handed_on if v.producer.name in inferred}
    return by_data, {v: array for v, array in known.items() if array is not None}


def _inferred(
    graph: Graph, shapes: Sequence[Shape], handles: Sequence[tuple[DType, Shape] | None], sizes: Sequence[Any] | None = None
) -> tuple[dict[str, list[Any]], list[str]]:
    """The tensors that TensorFlow makes for each node that is no input, by the name of the node, and what `import_bounded` gives.

    Args:
        sizes: see `infer_body_shapes`; without, what depends on data stays open.

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
            dtype, name = tf.as_dtype(value.dtype.number), f"graphwright_input_{k}"
            array = sizes[k] if sizes else None
            tensor = tf.compat.v1.placeholder(dtype, shape, name=name) if array is None else tf.constant(array, dtype, name=name)
            if handle is not None:
                private_tensorflow.set_handle_data(tensor, *handle)
            if value.uses:  # TensorFlow refuses to map what nothing reads
                input_map[value.name] = tensor
            if value.producer.control_consumers:
                input_map[f"^{value.producer.name}"] = tensor
        graph_def = forbid_to_run(to_graph_def(graph, keep=lambda node: node not in inputs))
        if sizes is not None:
            return import_bounded(graph_def, input_map)
        tf.graph_util.import_graph_def(graph_def, input_map=input_map, name="")
    operation: Any = func_graph.get_operation_by_name
    return {node.name: list(operation(node.name).outputs) for node in graph.nodes if node not in inputs}, []


def import_bounded(graph_def: Any, input_map: Mapping[str, Any]) -> tuple[dict[str, list[Any]], list[str]]:
    """Import into the current graph; where the number of rows depends on data, there are as many as there can be.

    Returns:
        The tensors that stand for the outputs of each node, and the names of the nodes whose outputs may have fewer rows when they run.

    Raises:
        ValueError: TensorFlow refuses the graph.
    """
    tf = import_tensorflow()
    bounded: dict[str, list[Any]] = {}
    while True:  # what is found in what was found
        prefix = f"graphwright_{len(bounded)}"
        largest = {f"{name}:{k}": tensor for name, tensors in bounded.items() for k, tensor in enumerate(tensors)}
        tf.graph_util.import_graph_def(graph_def, input_map={**input_map, **largest}, name=prefix)
        operation: Any = tf.compat.v1.get_default_graph().get_operation_by_name
        imported = {node.name: operation(f"{prefix}/{node.name}") for node in graph_def.node}
        found = {name: _largest(op) for name, op in imported.items() if name not in bounded}
        if not any(found.values()):
            return {name: list(op.outputs) for name, op in imported.items()} | bounded, list(bounded)
        bounded |= {name: tensors for name, tensors in found.items() if tensors}


def _largest(operation: Any) -> list[Any]:
    """Placeholders with the largest shapes that the outputs may have, of an operation that finds some of its input's elements."""
    if operation.type not in ("Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"):
        return []
    shape = _shape_of(operation.inputs[0])
    if shape is None or None in shape or (operation.type != "Where" and len(shape) != 1):
        return []
    largest = (operation.inputs[0].shape.num_elements(), len(shape)) if operation.type == "Where" else shape
    tf = import_tensorflow()
    return [tf.compat.v1.placeholder(tensor.dtype, largest) for tensor in operation.outputs]


def _shape_of(tensor: Any) -> Shape:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _merged(shape: Shape, traced: Shape) -> Shape:
    """The dimensions of `shape`, and where they are open those of `traced`."""
    if shape is None or traced is None or len(shape) != len(traced):
        return traced if shape is None else shape
    return tuple(t if s is None else s for s, t in zip(shape, traced, strict=True))
