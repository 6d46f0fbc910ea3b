"""Scratch memory of oneDNN's kernels.

TensorFlow computes float32 products of two matrices by `dnnl_sgemm`. Its kernels read the operands in place, or each thread packs panels
of both. The bound here takes the panel sizes of `src/cpu/x64/gemm/gemm_driver.cpp` and counts packing wherever the output is large enough
for it on some processor. In bfloat16 a `_FusedMatMul` without AMX adds up in float32 (`gemm_bf16_inner_product.cpp`).
"""

import math
import os
from typing import NamedTuple

from graphwright.ir.dtypes import DType, byte_count
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.effects import is_collective

_CONVOLVES_FORWARD = frozenset("Conv2D _FusedConv2D PadWithFusedConv2D".split())
_REORDERS_FILTER = _CONVOLVES_FORWARD | frozenset(
    "Conv2DBackpropInput Conv3D _FusedConv3D Conv3DBackpropInputV2 DepthwiseConv2dNative _FusedDepthwiseConv2dNative "
    "DepthwiseConv2dNativeBackpropInput".split()
)
_LEFT_BLOCK, _RIGHT_BLOCK = 512 << 10, 128 << 10  # that a thread repacks at once of a batched product's operands
_FILTER_GRADIENTS = frozenset("Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter".split())
_DEPTHWISE_FILTER = 3  # the widest for which oneDNN has a depthwise gradient
_BLOCK, _BLOCK_OF_AVX2 = 16, 8  # its blocks of channels
_FEW = 4  # groups of fewer than 16 channels have blocks of a multiple of this, where it divides them
_WITH_SUMS = 3  # a bfloat16 gradient of a filter, and its sums in float32
_FLOAT32 = 4
_SECOND_LEVEL = 512 << 10  # bytes, where the system does not tell
_IN_PLACE_BY_AVX512, _IN_PLACE_BY_AVX2 = 0.00196, 0.0038  # the sum 1 / rows + 1 / columns from which on matrices are read in place
_PAGE = 1024  # elements; columns that lie a multiple of it apart fall into the same lines of the cache and are packed
_TERMS_AT_ONCE, _ROWS_AT_ONCE = 384, 384  # of a packed panel
_COLUMNS_AT_ONCE, _COLUMNS_PACKED = 48, 10_000  # of the other matrix, where the rows take one panel or several


def onednn_workspace_bytes(node: Node, *, avx512: bool = True) -> int:
    """Return the scratch bytes of a node under oneDNN, or on a GPU, except for products of two matrices.

    A convolution copies its filter into a blocked layout, except for a single float32 image (`MklConvFwdPrimitive::Setup`). Without
    AVX-512 that one unfolds the image into a matrix, by blocks only if the filter takes less than half of the second cache level
    (`gemm_convolution_utils.cpp`). Gradients of filters are computed in the blocked layout and copied; bfloat16 ones are added up in
    float32. The layout has 16 x 16 channels per group (8 x 8 without AVX-512), up to 256 times the filter: for gradients of filters in
    groups, except depthwise ones at most 3 wide; and for float32 convolutions in groups, except depthwise ones and groups of 4, 8 or 12
    channels. Batched products repack a matrix of each transposed or broadcast operand, or the part that the threads take at once. A
    collective holds chunks of the others, together at most its input.

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
    >>> pairs = g.add_node("Const", "p", output_types=[(f32, (3, 3, 2, 512))]).outputs[0]
    >>> onednn_workspace_bytes(g.add_node("Conv2D", "e", inputs=[x, pairs], output_types=[(f32, (2, 7, 7, 512))]))
    2359296
    """
    block = _BLOCK if avx512 else _BLOCK_OF_AVX2
    if node.op_type in _REORDERS_FILTER:
        return _reordered_filter(node, block)
    if node.op_type in _FILTER_GRADIENTS:
        return _filter_gradient(node, block)
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


class _Groups(NamedTuple):
    """The groups of a convolution's filter."""

    size: int  # height x width
    groups: int
    inputs: int  # channels of a group
    outputs: int

    def blocked_bytes(self, dtype: DType, block: int) -> int:
        channels = math.prod(math.ceil(part / block) * block for part in (self.inputs, self.outputs))
        return byte_count(dtype, (self.size, self.groups, channels)) or 0


def _groups(node: Node, kernel: Value, images: Value) -> _Groups | None:
    """Return the groups of a convolution [height, width, channels of a group, outputs]; a depthwise one has a group for each channel."""
    shape, channels = kernel.shape, (images.shape or (None,))[1 if node.attrs.get("data_format") == b"NCHW" else -1]
    if shape is None or len(shape) != 4 or None in shape:
        return None
    height, width, inputs, outputs = (size or 0 for size in shape)
    if "Depthwise" in node.op_type:
        return _Groups(height * width, inputs, 1, outputs)
    count = (channels or 0) // max(inputs, 1)
    return _Groups(height * width, count, inputs, outputs // count) if count > 1 else None


def _reordered_filter(node: Node, block: int) -> int:
    kernel, images = node.inputs[1], node.inputs[0]
    groups = _groups(node, kernel, node.outputs[0] if "BackpropInput" in node.op_type else images)
    if groups is not None and kernel.dtype.name == "float32":
        few = max(groups.inputs, groups.outputs) < _BLOCK and groups.inputs % _FEW == groups.outputs % _FEW == 0
        if groups.inputs * groups.outputs > 1 and not few:
            return groups.blocked_bytes(kernel.dtype, block)
    one_image = node.op_type in _CONVOLVES_FORWARD and images.dtype.name == "float32" and bool(images.shape) and images.shape[0] == 1
    if one_image and block == _BLOCK_OF_AVX2:
        return _patches(node)
    return 0 if one_image else kernel.nbytes or 0  # of one image the filter is taken as it is


def _patches(node: Node) -> int:
    """Return the bytes of a single image, unfolded into a matrix."""
    image, kernel, output = node.inputs[0].shape, node.inputs[1], node.outputs[0].shape
    shape = kernel.shape
    if image is None or shape is None or output is None or None in (*image, *shape, *output):
        return 0
    *window, inputs, outputs = (size or 0 for size in shape)
    by_blocks = (kernel.nbytes or 0) < _second_level_bytes() // 2
    elements = math.prod(size or 0 for size in output) // max(outputs, 1) * inputs
    as_it_is = math.prod(window) == 1 and elements == math.prod(size or 0 for size in image)
    return 0 if by_blocks or as_it_is else _FLOAT32 * math.prod(window) * elements


def _second_level_bytes() -> int:
    try:
        return os.sysconf("SC_LEVEL2_CACHE_SIZE") or _SECOND_LEVEL
    except (AttributeError, OSError, ValueError):  # Windows, macOS
        return _SECOND_LEVEL


def _filter_gradient(node: Node, block: int) -> int:
    kernel, images = node.outputs[0], node.inputs[0]
    groups, nbytes = _groups(node, kernel, images), kernel.nbytes or 0
    if groups is not None and kernel.shape is not None and images.shape is not None:
        height, width = (size or 0 for size in kernel.shape[:2])
        rows, columns = images.shape[2:] if node.attrs.get("data_format") == b"NCHW" else images.shape[1:3]
        small = (rows or 0) < height or (columns or 0) < width
        if max(height, width) <= _DEPTHWISE_FILTER and groups.inputs * groups.outputs == 1 and not small:
            return nbytes
        nbytes = groups.blocked_bytes(kernel.dtype, block)
    return nbytes * (_WITH_SUMS if kernel.dtype.name == "bfloat16" else 1)


def _matrix_bytes(value: Value) -> int:
    return byte_count(value.dtype, None if value.shape is None else value.shape[-2:]) or 0


def gemm_workspace_bytes(node: Node, *, avx512: bool = True, amx: bool = False) -> int:
    """Return an upper bound on the scratch of a `MatMul` or `_FusedMatMul` under oneDNN; 0 for other nodes and for unknown shapes.

    Args:
        avx512, amx: whether the processor has AVX-512, else AVX2, and AMX, which adds up bfloat16 in its tiles.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> a = g.add_node("Const", "a", output_types=[(f32, (1024, 192))]).outputs[0]
    >>> b = g.add_node("Const", "b", output_types=[(f32, (8000, 192))]).outputs[0]
    >>> logits = g.add_node("MatMul", "c", inputs=[a, b], attrs={"transpose_b": True}, output_types=[(f32, (1024, 8000))])
    >>> b.nbytes < gemm_workspace_bytes(logits)
    True
    """
    if node.op_type not in ("MatMul", "_FusedMatMul"):
        return 0
    first, out = node.inputs[0].shape, node.outputs[0].shape
    if first is None or out is None or None in (*first, *out):
        return 0
    transposed = node.attrs.get("transpose_a") is True
    columns, rows, terms = out[1] or 0, out[0] or 0, first[0 if transposed else 1] or 0
    dtype = node.outputs[0].dtype.name
    if dtype == "float32":
        in_place = _IN_PLACE_BY_AVX512 if avx512 and (os.cpu_count() or 1) > 1 else _IN_PLACE_BY_AVX2
        return _packed_bytes(rows, columns, terms, in_place=in_place, columns_apart=transposed and columns % _PAGE == 0)
    return _FLOAT32 * columns * rows if dtype == "bfloat16" and node.op_type == "_FusedMatMul" and not amx else 0


def _packed_bytes(rows: int, columns: int, terms: int, *, in_place: float, columns_apart: bool) -> int:
    """Return the panels that the threads pack, which share the longer side of the output; nothing is packed for a short side."""
    if min(rows, columns) <= 1 or terms == 0 or (1 / rows + 1 / columns >= in_place and not columns_apart):
        return 0
    threads = os.cpu_count() or 1
    if columns > rows:
        columns = -(-columns // threads)
    else:
        rows = -(-rows // threads)
    panel = min(columns, _COLUMNS_PACKED if rows > _ROWS_AT_ONCE else _COLUMNS_AT_ONCE) + min(rows, _ROWS_AT_ONCE)
    return threads * _FLOAT32 * min(terms, _TERMS_AT_ONCE) * panel
