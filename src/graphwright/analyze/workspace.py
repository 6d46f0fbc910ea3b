"""Bytes that kernels allocate beyond their outputs, as far as they matter. Observed on TensorFlow 2.21, CPU with oneDNN."""

from __future__ import annotations

from graphwright.ir.dtypes import byte_count, element_count
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits import is_collective

_CONVOLVES_FORWARD = frozenset("Conv2D _FusedConv2D PadWithFusedConv2D".split())
_REORDERS_FILTER = _CONVOLVES_FORWARD | frozenset(
    "Conv2DBackpropInput Conv3D _FusedConv3D Conv3DBackpropInputV2 DepthwiseConv2dNative _FusedDepthwiseConv2dNative".split()
)


def workspace_bytes(node: Node) -> int:
    """Bytes allocated while the node runs and freed at its end.

    A convolution copies its filter into oneDNN's blocked layout; not so a forward one of a single float32 image, for which TensorFlow
    asks for a kernel that takes the filter as it is (`MklConvFwdPrimitive::Setup`). Gradients of filters are computed in a
    blocked layout and copied. Batched matrix products repack one matrix of each operand that is transposed or broadcast. A
    collective takes what the others send in chunks, together at most as large as its input.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> a = g.add_node("Const", "a", output_types=[(f32, (4, 128, 128))]).outputs[0]
    >>> b = g.add_node("Const", "b", output_types=[(f32, (128, 128))]).outputs[0]
    >>> workspace_bytes(g.add_node("BatchMatMulV2", "c", inputs=[a, b], output_types=[(f32, (4, 128, 128))]))
    65536
    >>> x = g.add_node("Const", "x", output_types=[(f32, (2, 7, 7, 512))]).outputs[0]
    >>> w = g.add_node("Const", "w", output_types=[(f32, (3, 3, 512, 512))]).outputs[0]
    >>> workspace_bytes(g.add_node("Conv2D", "d", inputs=[x, w], output_types=[(f32, (2, 7, 7, 512))]))
    9437184
    """
    if node.op_type in _REORDERS_FILTER:
        return 0 if _takes_filter_as_it_is(node) else node.inputs[1].nbytes or 0
    if node.op_type in ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"):
        return node.outputs[0].nbytes or 0
    if is_collective(node):
        return node.inputs[0].nbytes or 0 if node.inputs else 0
    if node.op_type not in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        return 0
    a, b = node.inputs[0], node.inputs[1]
    broadcast = a.shape is not None and b.shape is not None and a.shape[:-2] != b.shape[:-2]
    size = 0
    if node.attrs.get("adj_x") is True:
        size += _matrix_bytes(a)
    if node.attrs.get("adj_y") is True or broadcast or node.attrs.get("adj_x") is True:
        size += _matrix_bytes(b)
    return size


def hidden_output_bytes(value: Value) -> int:
    """Bytes that a kernel keeps for the gradient beside an output, as long as that output.

    oneDNN's max pooling notes the position of each maximum, one byte per output element.
    """
    if value.producer.op_type == "MaxPool" and any(c.op_type == "MaxPoolGrad" for c in value.consumers):
        return element_count(value.shape) or 0
    return 0


def _takes_filter_as_it_is(node: Node) -> bool:
    images = node.inputs[0]
    return node.op_type in _CONVOLVES_FORWARD and images.dtype.name == "float32" and bool(images.shape) and images.shape[0] == 1


def _matrix_bytes(value: Value) -> int:
    return byte_count(value.dtype, None if value.shape is None else value.shape[-2:]) or 0
