"""Batch norms in training mode, and whether the step keeps their statistics.

Training normalizes with the mean and the variance of the batch, and the step must move the moving statistics towards them, which inference
uses. Two forms are found: `FusedBatchNorm` kernels in training mode, and `(x - mean) * rsqrt(var + epsilon)` with moments over the first
axis, the batch.
"""

from collections.abc import Iterable

import numpy as np

from graphwright.ir.constants import constant_array
from graphwright.ir.dtypes import Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ADDITIONS, SCALES, SUMS_AND_DIFFERENCES, is_batch_norm
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.traits.values import RECOMPUTED_FROM, SAME_BUT_FOR_TYPE, forwards_several, input_behind, origin
from graphwright.ir.traits.variables import assigns, is_read

_ARITHMETIC = SAME_BUT_FOR_TYPE | SUMS_AND_DIFFERENCES | SCALES
_LIMIT = 64


def unkept_batch_norms(body: Graph, nodes: Iterable[Node]) -> list[Node]:
    """Return the batch norms in training mode whose statistics are not assigned to a variable.

    Statistics that leave the body, or go to a called function, count as kept.

    Args:
        body: a graph or the body of a function.
        nodes: those of it that run.
    """
    results = frozenset(body.outputs)
    unkept: list[Node] = []
    for node in nodes:
        if RECOMPUTED_FROM in node.attrs:
            continue
        if is_batch_norm(node):
            if node.attrs.get("is_training", True) is True and not any(_is_kept(v, results) for v in node.outputs[1:3]):
                unkept.append(node)
        elif node.op_type == "Rsqrt":
            variance = _batch_variance(node)
            if variance is not None and not _is_kept(variance, results):
                unkept.append(node)
    return unkept


def _batch_variance(root: Node) -> Value | None:
    total = root.inputs[0].producer
    if total.op_type not in ADDITIONS or len(total.inputs) != 2:
        return None
    for value in total.inputs:
        node = origin(value, SAME_BUT_FOR_TYPE).producer
        if node.op_type != "Mean" or len(node.inputs) != 2:
            continue
        deviation = node.inputs[0].producer
        if deviation.op_type not in ("SquaredDifference", "Square") or not _is_over_batch(node):
            continue
        if not is_read(origin(deviation.inputs[0], SAME_BUT_FOR_TYPE).producer):  # weights may be standardized, too
            return node.outputs[0]
    return None


def _is_over_batch(mean: Node) -> bool:
    axes, rank = constant_array(mean.inputs[1].producer), len(mean.inputs[0].shape or ())
    return axes is not None and bool(np.any((axes == 0) | (axes == -rank)))


def _is_kept(statistic: Value, results: frozenset[Value]) -> bool:
    """Whether a statistic of the batch, or arithmetic on it of the same size, is assigned, returned or passed to a function."""
    size = _size(statistic.shape)
    stack, seen = [statistic], {statistic}
    while stack and len(seen) < _LIMIT:
        value = stack.pop()
        if value in results:
            return True
        for consumer in value.consumers:
            if assigns(consumer) or called_functions(consumer):
                return True
            handed_on = [v for v in consumer.outputs if not forwards_several(consumer) or input_behind(v) is value]
            for after in handed_on if consumer.op_type in _ARITHMETIC else ():
                if after not in seen and (size is None or consumer.op_type in SAME_BUT_FOR_TYPE or _size(after.shape) == size):
                    seen.add(after)
                    stack.append(after)
    return False


def _size(shape: Shape) -> Shape:
    return None if shape is None else tuple(d for d in shape if d != 1)


def is_gpu_scratch(value: Value) -> bool:
    """Whether it is the scratch of the GPU's batch norm kernel for its gradient. Inference never knows its shape.

    Other kernels leave it empty, except for oneDNN's: one bit per element that a fused ReLU lets through.
    """
    return value.index == 5 and is_batch_norm(value.producer)
