"""Rewrites of whole graphs: another batch size, and batch normalization folded into weights.

`graphwright.fold_batch_norms` does all three kinds of folding at once, and reports why something was not folded.
"""

from collections.abc import Callable, Iterable
from typing import Any

from graphwright.editor.graph import Graph
from graphwright.editor.node import Node
from graphwright.editor.tensor import Tensor
from graphwright.ir import graph as ir
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.transform.constant_values import Constants
from graphwright.transform.folding.before import fold_factors_before
from graphwright.transform.folding.behind import Notes, fold_behind
from graphwright.transform.folding.steps import NORMS
from graphwright.transform.interface import put_in_order


def change_batch_size(g: Graph, new_size: int | None, inputs: Iterable[Node | Tensor]) -> None:
    """Change the first dimension of placeholders, given as nodes or tensors, to a size or None, and infer all shapes again.

    Raises:
        ValueError: an input is not a placeholder of this graph or has no first dimension, or TensorFlow refuses the new shapes; nothing
            is changed then.
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


def fold_batch_norms(g: Graph) -> None:
    """Fold `Conv2D => Mul`, or a `Mul` behind another convolution or a `MatMul`, if weights and factors are constants.

    Convolutions with other readers, or named by signatures, stay; weights with other readers are copied first. The convolution, or a
    `BiasAdd` if offsets follow, gets the name and the collections of the `Mul`.
    """
    _fold(g, lambda graph: fold_behind(graph, Constants(), Notes(), where=lambda node: node.op_type not in NORMS))


def fold_old_batch_norms(g: Graph) -> None:
    """Fold a fused batch normalization into the convolution before it; a `BiasAdd` under its name remains.

    A `BatchToSpaceND`, or a concatenation of convolutions, may be between them. Normalizations in training mode stay.
    """
    _fold(g, lambda graph: fold_behind(graph, Constants(), Notes(), where=lambda node: node.op_type in NORMS))


def fold_batch_norms_up(g: Graph) -> None:
    """Fold a normalization into the weights of its reader: `Mul => Add` or a fused batch normalization, and an optional ReLU.

    The offset remains as a `BiasAdd`, divided by the factor. A `Relu6` becomes `Relu => Minimum`. Before a ReLU, factors that are not
    positive are not folded, because it would cut off the other side.
    """
    _fold(g, lambda graph: fold_factors_before(graph, Constants(), Notes()))


def _fold(g: Graph, fold: Callable[[ir.Graph], int]) -> None:
    if g.frozen:
        raise RuntimeError("Detected a change to a frozen graph")
    if fold(g.ir):
        put_in_order(g.ir)
        g.increment_version_counter()
