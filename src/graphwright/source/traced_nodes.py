"""What a Python function of tensors computes, as nodes of an IR graph: traced by TensorFlow for XLA, and copied in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graphwright.ir.edit.clone import clone
from graphwright.ir.graph import Graph, Value
from graphwright.source.concrete_function import drop_shape_attributes
from graphwright.source.graph_def import from_graph_def
from graphwright.source.tensorflow_import import import_tensorflow


def add_traced(graph: Graph, function: Callable[..., Any], values: Sequence[Value], *, scope: str) -> list[Value]:
    """Add the operations of a function of values of the graph, at its end; the caller sorts its nodes.

    Args:
        function: takes a tensor for each value, and returns a list of tensors, none of which is one of them.
        values: of known shapes, each once.
        scope: of the names of the new nodes.

    Returns:
        What the function returned.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (8,))]).outputs[0]
    >>> [value.shape for value in add_traced(g, lambda x: [x[2:]], [x], scope="made")]
    [(6,)]
    """
    tf = import_tensorflow()
    specs = [tf.TensorSpec(value.shape, tf.dtypes.as_dtype(value.dtype.name)) for value in values]
    traced = tf.function(function, jit_compile=True, autograph=False).get_concrete_function(*specs)
    part = from_graph_def(traced.graph.as_graph_def(add_shapes=True), name=scope)
    drop_shape_attributes(part)
    given = {part.value(tensor.name): value for tensor, value in zip(traced.inputs, values, strict=True)}
    inputs = {value.producer for value in given}
    # TensorFlow ends a function in Identities of its results, so that none of them is an input.
    copied = clone([node for node in part.nodes if node not in inputs], into=graph, input_map=given, scope=scope)
    return [copied.value_of[part.value(tensor.name)] for tensor in traced.outputs]
