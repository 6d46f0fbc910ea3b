"""The sides of a rewrite rule: traces a function of tensors into a small graph of the IR, and runs such graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphwright.errors import ArgumentError, first_line
from graphwright.ir.dtypes import DType, Shape
from graphwright.ir.graph import Graph
from graphwright.source.attributes import shape_of
from graphwright.source.graph_def import from_graph_def, run_graph_def, to_graph_def
from graphwright.source.tensorflow_import import import_tensorflow


def trace_side(function: Callable[..., Any], arguments: Mapping[str, tuple[DType, Shape]], others: Mapping[str, Any], what: str) -> Graph:
    """Trace a function, called `what` in errors, into a graph of its own, with inferred shapes. `arguments` gives dtypes and shapes of
    its tensors by name, `others` its other arguments.
    """
    tf = import_tensorflow()
    traced: Any = tf.Graph()
    with traced.as_default():
        placeholder = tf.compat.v1.placeholder
        placeholders = {name: placeholder(of[0].number, of[1], name=f"input_{k}") for k, (name, of) in enumerate(arguments.items())}
        try:
            result = function(**placeholders, **others)
            tensors = tf.nest.flatten(result)
            outputs = [tf.convert_to_tensor(tensor) for tensor in tensors if tensor is not None]
        except Exception as error:  # the user's function raises anything
            raise ArgumentError(
                f"the {what} cannot be traced: {first_line(error)}",
                cause="it is traced with tensors of the dtypes and shapes of what it stands for, into a graph without variables",
                remedy="state what its arguments are, specs={name: tf.TensorSpec(...)}; pass variables and tensors as arguments; "
                "constants may be NumPy arrays, tensor.numpy()",
            ) from error
        if any(tensor.graph is not traced for tensor in outputs):
            raise ArgumentError(f"the {what} returns a tensor from elsewhere", remedy="return what it computes of its arguments")
    graph = from_graph_def(traced.as_graph_def(), name=what)
    for operation in traced.get_operations():
        for value, tensor in zip(graph[operation.name].outputs, operation.outputs, strict=True):
            value.shape = shape_of(tensor)
    graph.inputs = [graph.value(tensor.name) for tensor in placeholders.values()]
    graph.outputs = [graph.value(tensor.name) for tensor in outputs]
    return graph


def run_side(graph: Graph, arrays: Sequence[Any]) -> list[Any]:
    """Run a graph on the CPU without Grappler; raise `ArgumentError` where a kernel or shape rule refuses the values."""
    tf = import_tensorflow()
    feeds = {value.name: array for value, array in zip(graph.inputs, arrays, strict=True)}
    try:
        return run_graph_def(to_graph_def(graph), [value.name for value in graph.outputs], feeds)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise ArgumentError(first_line(error)) from error
