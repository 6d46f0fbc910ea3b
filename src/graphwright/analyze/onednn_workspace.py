"""Bytes that oneDNN's kernels allocate beyond their outputs.

TensorFlow computes products of two matrices, float32 `MatMul` and `_FusedMatMul`, by `dnnl_sgemm`, whose kernels read the operands where
they lie, or each thread packs panels of both. Which, and how large, is read off oneDNN's `src/cpu/x64/gemm/gemm_driver.cpp`
(`nocopy_checker_avx512`, `nocopy_checker_avx2`, `set_thread_opts_nopack`, `gemm_kernel_driver`) and `gemm_info.cpp`, for threads that do
not wait for each other, as TensorFlow's; and checked against measurements (docs/figures.md has the table). Counted is what is
written when all threads run at once. In bfloat16 a `_FusedMatMul` without AMX adds up in float32 (`gemm_bf16_inner_product.cpp`); a
`MatMul` takes little.

oneDNN sees matrices by columns, so its first matrix is TensorFlow's second: here `m` are the output's columns, `n` its rows, and `k` is
what is summed over.
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
_COLUMNS_AT_ONCE, _COLUMNS_OF_SHORT_SUMS, _SHORT_SUM = 384, 24, 48
_MANY = 378  # rows, columns or terms for each thread from which on packing pays


class _Cpu(NamedTuple):
    """Constants of oneDNN's kernels: `least` is the sum 1/m + 1/n from which on nothing is packed."""

    least: float
    lanes: int
    rows: int  # that a kernel computes at once
    rows_packed: int
    terms_packed: int
    terms_undivided: int


_AVX512 = _Cpu(least=0.00196, lanes=16, rows=48, rows_packed=9984, terms_packed=384, terms_undivided=384)
_AVX2 = _Cpu(least=0.0038, lanes=8, rows=24, rows_packed=10000, terms_packed=192, terms_undivided=256)


def onednn_workspace_bytes(node: Node, *, avx512: bool = True) -> int:
    """Bytes allocated while a node other than a product of two matrices runs under oneDNN, or on a GPU.

    A convolution copies its filter into oneDNN's blocked layout; not so a forward one of a single float32 image, for which TensorFlow
    asks for a kernel that takes the filter as it is (`MklConvFwdPrimitive::Setup`); without AVX-512 that one writes all patches of the
    image as a matrix, by blocks only where the filter is less than half of the second level's cache (`gemm_convolution_utils.cpp`).
    Gradients of filters are computed in a blocked layout and copied, those of bfloat16 are added up in float32 besides. That layout has
    16 x 16 channels for each group (8 x 8 without AVX-512), up to 256 times the filter, for the gradient of a filter in groups, but for a
    depthwise one at most 3 wide; and in float32 for any convolution in groups unless it is depthwise or its groups have 4, 8 or 12
    channels. Batched matrix products repack one matrix of each operand that is transposed or broadcast, or as much of it as the threads
    take at once. A collective takes what the others send in chunks, together at most as large as its input.

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
        """Bytes of the filter in square blocks of channels for each group."""
        channels = math.prod(math.ceil(part / block) * block for part in (self.inputs, self.outputs))
        return byte_count(dtype, (self.size, self.groups, channels)) or 0


def _groups(node: Node, kernel: Value, images: Value) -> _Groups | None:
    """The groups of a convolution [height, width, channels of a group, outputs]; a depthwise one has one for each channel."""
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
    """Of one image, as the rows of a matrix."""
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
    """The cache of a core."""
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
    """Bytes allocated while a `MatMul` or `_FusedMatMul` runs under oneDNN; 0 for other nodes, and for unknown shapes.

    `avx512` and `amx` say what the processor has; without AVX-512 it is taken to have AVX2.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> a = g.add_node("Const", "a", output_types=[(f32, (1024, 192))]).outputs[0]
    >>> b = g.add_node("Const", "b", output_types=[(f32, (8000, 192))]).outputs[0]
    >>> logits = g.add_node("MatMul", "c", inputs=[a, b], attrs={"transpose_b": True}, output_types=[(f32, (1024, 8000))])
    >>> b.nbytes < gemm_workspace_bytes(logits) < 1.2 * b.nbytes
    True
    """
    if node.op_type not in ("MatMul", "_FusedMatMul"):
        return 0
    first, out = node.inputs[0].shape, node.outputs[0].shape
    if first is None or out is None or None in (*first, *out):
        return 0
    transposed = node.attrs.get("transpose_a") is True
    m, n, k = out[1] or 0, out[0] or 0, first[0 if transposed else 1] or 0
    dtype = node.outputs[0].dtype.name
    if dtype == "float32":
        return _packed_bytes(m, n, k, node.attrs.get("transpose_b") is True, transposed, _AVX512 if avx512 else _AVX2)
    return _FLOAT32 * m * n if dtype == "bfloat16" and node.op_type == "_FusedMatMul" and not amx else 0


def _packed_bytes(m: int, n: int, k: int, trans_a: bool, trans_b: bool, cpu: _Cpu) -> int:
    threads = os.cpu_count() or 1
    if min(m, n) <= 1 or k == 0 or _reads_in_place(m, n, k, trans_a, trans_b, threads, cpu):
        return 0
    m, n = _share(m, n, threads, cpu)
    terms = k if k <= cpu.terms_undivided else -(-k // 2) if k < 2 * cpu.terms_packed else cpu.terms_packed
    columns = min(n, _COLUMNS_OF_SHORT_SUMS if k < _SHORT_SUM else _COLUMNS_AT_ONCE)
    rows = min(m, cpu.rows_packed) if columns < n else min(m, cpu.rows)  # kept for the next columns, if there are any
    return threads * _FLOAT32 * terms * (rows + columns)


def _reads_in_place(m: int, n: int, k: int, trans_a: bool, trans_b: bool, threads: int, cpu: _Cpu) -> bool:
    lda, ldb = k if trans_a else m, n if trans_b else k
    wide = cpu is _AVX512
    awkward = wide and not trans_a and lda % 1024 == 0  # what is read together falls into the same few lines of the cache
    alone = wide and threads == 1 and trans_a and not trans_b and m > 100
    if alone and ((m < 1200 and n < 200 and k < 1200) or lda % 256 == ldb % 256 == 0):
        return False
    if awkward and not trans_b and threads <= 8 and k > 500 and n > 100:
        return False
    if 1 / m + 1 / n >= cpu.least and not (awkward and trans_b):
        return True
    if wide and 0 in (lda % 256, ldb % 256, m % 256) and m >= 32 and n > 16:
        return False
    if k >= threads * _MANY and (m >= threads * _MANY or max(m, n) <= _MANY):
        return False
    if wide:
        few = 28 * threads
        return n <= few or k <= threads or (m <= few and (not trans_b or m >= n))
    return n <= threads or k <= threads if trans_b else n <= 16 * threads or k <= 2 * threads


def _share(m: int, n: int, threads: int, cpu: _Cpu) -> tuple[int, int]:
    """Rows and columns of the part of one thread."""
    both = m >= 768 and (n > threads * 384 or n <= threads * 192)
    if cpu is _AVX512:
        both &= m < 1000 or n < threads * 96
    else:
        both &= (n > 384 or m < threads * 384) and (m < 1000 or n < 4000)
    by_rows = 1
    if both:
        by_columns = threads
        while by_columns % 2 == 0 and (n // threads > 384 or n // by_columns <= 192) and m // by_rows >= 768 and by_rows < 4:
            by_rows, by_columns = 2 * by_rows, by_columns // 2
    elif m > n and (m >= threads * cpu.lanes or n < threads):
        by_rows = threads
    return -(-m // by_rows), -(-n // max(threads // by_rows, 1))
