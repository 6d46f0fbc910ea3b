"""Rewrites of whole graphs: another batch size, and batch normalization folded into the weights before or behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from graphwright.editor.fold_batch_norms import fold_batch_norms as fold_batch_norms
from graphwright.editor.fold_batch_norms import fold_batch_norms_up as fold_batch_norms_up
from graphwright.editor.fold_batch_norms import fold_old_batch_norms as fold_old_batch_norms
from graphwright.editor.graph import Graph
from graphwright.editor.node import Node
from graphwright.editor.tensor import Tensor
from graphwright.source.tensorflow_import import import_tensorflow


def change_batch_size(g: Graph, new_size: int | None, inputs: Iterable[Node | Tensor]) -> None:
    """Give placeholders another first dimension, and infer all shapes again.

    Args:
        g: the graph, which is changed.
        new_size: the batch size; None for any.
        inputs: the placeholders, as nodes or as tensors.

    Raises:
        ValueError: an input is not a placeholder of this graph or has no first dimension, or TensorFlow refuses the graph with the
            new shapes; nothing is changed then.
    """
    tf = import_tensorflow()
    nodes = [i.node if isinstance(i, Tensor) else i for i in inputs]
    before: dict[Node, Any] = {n: n.get_attr("shape") if n.has_attr("shape") else None for n in nodes}
    for n, shape in before.items():
        if n.op_type != "Placeholder":
            raise ValueError(f"Input node {n} is not a Placeholder")
        if n.graph is not g:
            raise ValueError(f"Input node {n} is not in graph {g}")
        if shape is None or not shape.rank:
            raise ValueError(f"Input node {n} has no first dimension, its shape is {shape}")
    with g.ir.restored_on_error():
        for n, shape in before.items():
            n.replace_attr("shape", tf.TensorShape([new_size, *shape.as_list()[1:]]))
        g.infer_shapes_and_dtypes()
