"""Bytes that kernels allocate beyond their outputs, as far as they matter. Observed on TensorFlow 2.21, on a CPU with AVX-512."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path

from graphwright.analyze.eigen_workspace import eigen_workspace_bytes
from graphwright.analyze.gemm_workspace import gemm_workspace_bytes
from graphwright.ir.dtypes import DType, byte_count, element_count
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.effects import is_collective

_CONVOLVES_FORWARD = frozenset("Conv2D _FusedConv2D PadWithFusedConv2D".split())
_REORDERS_FILTER = _CONVOLVES_FORWARD | frozenset(
    "Conv2DBackpropInput Conv3D _FusedConv3D Conv3DBackpropInputV2 DepthwiseConv2dNative _FusedDepthwiseConv2dNative "
    "DepthwiseConv2dNativeBackpropInput".split()
)
_FOR_ONEDNN = frozenset({"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"})
_AVX512, _AMX = frozenset({"avx512f"}), frozenset({"amx_bf16"})
_LEFT_BLOCK, _RIGHT_BLOCK = 512 << 10, 128 << 10  # that a thread repacks at once of a batched product's operands
_DEPTHWISE_FILTER, _BLOCK = 3, 16  # the widest for which oneDNN has a depthwise gradient; its blocks of channels


def onednn_enabled() -> bool:
    """Whether TensorFlow uses oneDNN on the CPU: as the environment says, else where the processor has instructions made for it.

    `tests/source/test_private_tensorflow.py` holds it against what TensorFlow says of itself.
    """
    asked = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower()
    return _cpu_has(_FOR_ONEDNN) if asked not in ("0", "1", "false", "true") else asked in ("1", "true")


@cache
def _cpu_has(any_of: frozenset[str]) -> bool:
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return True  # not Linux: as most machines
    return not any_of.isdisjoint(told.split())


def _by_onednn(dtype: DType) -> bool:
    return dtype.name in ("float32", "bfloat16") and onednn_enabled()


def workspace_bytes(node: Node) -> int:
    """Bytes allocated while the node runs on the CPU and freed at its end: of its oneDNN kernel, or of TensorFlow's own."""
    if is_collective(node) or not node.outputs or _by_onednn(node.outputs[0].dtype):
        return onednn_workspace_bytes(node) + gemm_workspace_bytes(node, avx512=_cpu_has(_AVX512), amx=_cpu_has(_AMX))
    return eigen_workspace_bytes(node)


def onednn_workspace_bytes(node: Node) -> int:
    """The same where oneDNN's kernels run, or a GPU's.

    A convolution copies its filter into oneDNN's blocked layout; not so a forward one of a single float32 image, for which TensorFlow
    asks for a kernel that takes the filter as it is (`MklConvFwdPrimitive::Setup`). Gradients of filters are computed in a blocked
    layout and copied. That layout has 16 x 16 channels for each group, up to 256 times the filter, for the gradient of a depthwise filter
    wider than 3, and for any depthwise convolution of several outputs a channel. Batched matrix products repack one matrix of each operand
    that is transposed or broadcast, or as much of it as the threads take at once. A collective takes what the others send in chunks,
    together at most as large as its input.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> a = g.add_node("Const", "a", output_types=[(f32, (4, 128, 128))]).outputs[0]
    >>> b = g.add_node("Const", "b", output_types=[(f32, (128, 128))]).outputs[0]
    >>> onednn_workspace_bytes(g.add_node("BatchMatMulV2", "c", inputs=[a, b], output_types=[(f32, (4, 128, 128))]))
    65536
    >>> x = g.add_node("Const", "x", output_types=[(f32, (2, 7, 7, 512))]).outputs[0]
    >>> w = g.add_node("Const", "w", output_types=[(f32, (3, 3, 512, 512))]).outputs[0]
    >>> onednn_workspace_bytes(g.add_node("Conv2D", "d", inputs=[x, w], output_types=[(f32, (2, 7, 7, 512))]))
    9437184
    """
    if node.op_type in _REORDERS_FILTER:
        if "Depthwise" in node.op_type and (node.inputs[1].shape or (1,))[-1] != 1:
            return _blocked_by_groups(node.inputs[1])
        images = node.inputs[0]
        one_image = node.op_type in _CONVOLVES_FORWARD and images.dtype.name == "float32" and bool(images.shape) and images.shape[0] == 1
        return 0 if one_image else node.inputs[1].nbytes or 0  # of one image the filter is taken as it is
    if node.op_type in ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"):
        return node.outputs[0].nbytes or 0
    if node.op_type == "DepthwiseConv2dNativeBackpropFilter":
        return _depthwise_filter_gradient(node)
    if is_collective(node):
        return node.inputs[0].nbytes or 0 if node.inputs else 0
    if node.op_type not in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        return 0
    a, b = node.inputs[0], node.inputs[1]
    broadcast = a.shape is not None and b.shape is not None and a.shape[:-2] != b.shape[:-2]
    threads = os.cpu_count() or 1
    size = 0
    if node.attrs.get("adj_x") is True:
        size += min(_matrix_bytes(a), threads * _LEFT_BLOCK)
    if node.attrs.get("adj_y") is True or broadcast or node.attrs.get("adj_x") is True:
        size += min(_matrix_bytes(b), threads * _RIGHT_BLOCK)
    return size


def hidden_output_bytes(value: Value) -> int:
    """Bytes that a kernel keeps for the gradient beside an output, as long as that output.

    oneDNN's max pooling notes the position of each maximum, one byte per output element.
    """
    op_type = value.producer.op_type
    if op_type in ("MaxPool", "MaxPool3D") and _by_onednn(value.dtype) and any(c.op_type == f"{op_type}Grad" for c in value.consumers):
        return element_count(value.shape) or 0
    return 0


def _depthwise_filter_gradient(node: Node) -> int:
    kernel, images = node.outputs[0].shape, node.inputs[0].shape
    if kernel is None or None in kernel or images is None:
        return node.outputs[0].nbytes or 0
    height, width, _, multiplier = (d or 0 for d in kernel)
    rows, columns = images[2:] if node.attrs.get("data_format", b"NHWC") == b"NCHW" else images[1:3]
    small = (rows or 0) < height or (columns or 0) < width
    if max(height, width) <= _DEPTHWISE_FILTER and multiplier == 1 and not small:
        return node.outputs[0].nbytes or 0
    return _blocked_by_groups(node.outputs[0])


def _blocked_by_groups(kernel: Value) -> int:
    """Bytes of a depthwise filter [height, width, channels, multiplier] in blocks of 16 x 16 channels for each group."""
    if kernel.shape is None or None in kernel.shape:
        return kernel.nbytes or 0
    height, width, channels, multiplier = (d or 0 for d in kernel.shape)
    return byte_count(kernel.dtype, (height, width, channels * _BLOCK, math.ceil(multiplier / _BLOCK) * _BLOCK)) or 0


def _matrix_bytes(value: Value) -> int:
    return byte_count(value.dtype, None if value.shape is None else value.shape[-2:]) or 0
