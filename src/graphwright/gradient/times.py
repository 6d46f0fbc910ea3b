"""What running an operation again takes: the planner's time model, and what it leaves out."""

from __future__ import annotations

from graphwright.analyze.time_model import estimated_time_s
from graphwright.ir.dtypes import element_count
from graphwright.ir.graph import Node
from graphwright.ir.traits.arithmetic import COMBINES_TWO

_BROADCAST_BYTES_PER_S = 1.5e10
_SLOW_BYTES_PER_S = {"MaxPool": 1.6e10, "ConcatV2": 2.5e10}


def repeated_time_s(nodes: tuple[Node, ...]) -> float:
    """Estimated seconds of one execution of the nodes, one after the other.

    As the planner estimates elsewhere, but for kernels that stay below the speed of memory, read off TensorFlow 2.21 on two AVX-512
    cores. What is cheap enough to be run again is often of that kind: a scale and an offset per channel, as in a batch norm, take three
    times as long as the sum of two tensors of the same size.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> a = g.add_node("Const", "a", output_types=[(f32, (1000, 1000))]).outputs[0]
    >>> scale = g.add_node("Const", "scale", output_types=[(f32, (1000,))]).outputs[0]
    >>> plain = g.add_node("Mul", "b", inputs=[a, a], output_types=[(f32, (1000, 1000))])
    >>> broadcast = g.add_node("Mul", "c", inputs=[a, scale], output_types=[(f32, (1000, 1000))])
    >>> repeated_time_s((broadcast,)) > 2 * repeated_time_s((plain,))
    True
    """
    return sum(max(estimated_time_s((node,)), _traffic_time_s(node)) for node in nodes)


def _traffic_time_s(node: Node) -> float:
    """Time of what a kernel reads and writes, where it is known to be slow at that."""
    rate = _SLOW_BYTES_PER_S.get(node.op_type)
    if node.op_type in COMBINES_TWO:
        result = element_count(node.outputs[0].shape) or 0
        if any(1 < (element_count(value.shape) or 0) < result for value in node.inputs):  # a broadcast
            rate = _BROADCAST_BYTES_PER_S
    if rate is None:
        return 0.0
    return sum(value.nbytes or 0 for value in dict.fromkeys((*node.inputs, *node.outputs))) / rate
