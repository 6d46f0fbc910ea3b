"""Scratch memory of TensorFlow's own CPU kernels, which are written with Eigen.

They run where oneDNN does not: for the types in `BY_EIGEN_ALONE`, for float16 and float64, and for every dtype with
`TF_ENABLE_ONEDNN_OPTS=0`. The rules follow `conv_grad_filter_ops.cc`, `conv_grad_input_ops.cc` and `batch_matmul_op_impl.h` of
TensorFlow 2.21 and count written bytes. Packed operands of a matrix product are counted by an upper bound.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from graphwright.analyze.flop_rules.contraction import read_equation
from graphwright.analyze.flop_rules.rule import UnknownSizeError, text_attribute
from graphwright.ir.dtypes import element_count
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.arithmetic import COMBINES_TWO

_COLUMNS_BYTES = 30 << 20  # of im2col that a gradient makes at once
_PANEL, _PANELS = 320, 2  # terms of the sums that are packed together; such slices that exist at once
_PACKED_BY_THREAD = 3 << 20  # bytes, the most that was measured
_BLOCK_BYTES, _BLOCK_ELEMENTS = 108 << 10, 1 << 17  # of an operand that a thread broadcasts at once; elements that one more thread takes
_LARGE_PRODUCT = 128 * 128 * 512  # from there on the threads share each matrix of a batch


def eigen_workspace_bytes(node: Node) -> int:
    """Return the scratch bytes of the node's kernel without oneDNN; 0 for kernels that need little, and for unknown shapes.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> f16 = DTYPES["float16"]
    >>> g = Graph()
    >>> x = g.add_node("Const", "x", output_types=[(f16, (8, 32, 32, 16))]).outputs[0]
    >>> s = g.add_node("Const", "s", output_types=[(DTYPES["int32"], (4,))]).outputs[0]
    >>> dy = g.add_node("Const", "dy", output_types=[(f16, (8, 32, 32, 32))]).outputs[0]
    >>> w = g.add_node("Conv2DBackpropFilter", "w", inputs=[x, s, dy], output_types=[(f16, (3, 3, 16, 32))])
    >>> 8 * 32 * 32 * 144 * 2 < eigen_workspace_bytes(w) < 3e6
    True
    """
    values = [*node.inputs, *node.outputs[:1]]
    rule = _RULES.get(node.op_type)
    if rule is None or any(element_count(v.shape) is None for v in values):
        return 0
    return rule(node)


def _forward(node: Node) -> int:
    output, kernel = node.outputs[0], _shape(node.inputs[1])
    positions, is_half = _elements(output) // max(kernel[-1], 1), _size(output) == 2
    packed = _packed(positions, math.prod(kernel[:-1]), kernel[-1], max(_size(output), 4))
    return _in_float32(output, packed) if is_half else packed


def _input_gradient(node: Node) -> int:
    kernel, gradient, size = _shape(node.inputs[1]), node.inputs[2], _size(node.outputs[0])
    if len(kernel) == 5:
        return _packed(_elements(node.outputs[0]) // kernel[-2], math.prod(kernel[:3]) * kernel[-1], kernel[-2], size)
    positions, terms = _elements(gradient) // kernel[-1], math.prod(kernel[:-1])
    return _columns(gradient, positions, terms, size) + _packed(positions, kernel[-1], terms, size)


def _filter_gradient(node: Node) -> int:
    kernel, gradient, size = _shape(node.outputs[0]), node.inputs[2], _size(node.outputs[0])
    positions, terms = _elements(gradient) // kernel[-1], math.prod(kernel[:-1])
    packed = _packed(terms, positions, kernel[-1], size)
    if len(kernel) == 5:
        return packed + 2 * (gradient.nbytes or 0) + (node.inputs[0].nbytes or 0)
    # The product of one group of images is added to that of those before, so it is there beside it.
    return _columns(gradient, positions, terms, size) + math.prod(kernel) * size + packed


def _columns(gradient: Value, positions: int, terms: int, size: int) -> int:
    """Return the patches that a gradient of a convolution unfolds at once: of as many images as fit beside their filter."""
    batch, filter_bytes = max(_shape(gradient)[0], 1), terms * (_elements(gradient) // positions) * size
    image_bytes = positions * terms * size // batch
    return min(-(-_COLUMNS_BYTES // max(image_bytes + filter_bytes, 1)), batch) * image_bytes


def _product(node: Node) -> int:
    a, output = _shape(node.inputs[0]), node.outputs[0]
    inner = a[-2] if any(node.attrs.get(name) is True for name in ("transpose_a", "adj_x")) else a[-1]
    rows, columns = _shape(output)[-2:]
    size = max(_size(output), 4)
    if min(rows, columns) <= 1:  # a vector
        packed = 0
    elif len(a) > 2 and rows * inner * columns <= _LARGE_PRODUCT:  # a matrix for each thread
        packed = _threads() * min(inner, _PANEL) * (rows + columns) * size
    else:
        packed = _packed(rows, inner, columns, size)
    if _size(output) > 2:
        return packed
    return sum(4 * _elements(v) for v in node.inputs[:2]) + _in_float32(output, packed)


def _einsum(node: Node) -> int:
    """Return the copies of operands, and of the product, whose dimensions lie in another order than the kernel needs (`einsum_op_impl.h`).

    The kernel computes a batch of matrix products. It orders the dimensions of an operand as batch, free, contracted, or batch,
    contracted, free, after the ones that it sums first. The product has the batch first, then the free dimensions of both operands.
    Within a kind, the order of the equation decides.
    """
    try:
        operands, result, sizes = read_equation(text_attribute(node, "equation"), [_shape(value) for value in node.inputs])
    except UnknownSizeError:
        return 0
    every = list(dict.fromkeys(chain.from_iterable(operands)))
    # Of an ellipsis 0, batch 1, free 2, contracted 3, summed up before 4.
    kinds = {x: 0 if x.isdigit() else 1 + 2 * (x not in result) + (sum(x in labels for labels in operands) == 1) for x in every}

    def ordered(labels: Iterable[str], places: Sequence[int] = range(5)) -> list[str]:
        return sorted(labels, key=lambda x: (places[kinds[x]], every.index(x)))

    def size(labels: Iterable[str]) -> int:
        return math.prod(sizes[x] for x in labels)

    held = most = 0
    for labels in operands:
        copy = 0 if list(labels) in (ordered(labels), ordered(labels, (0, 1, 3, 2, 4))) else size(labels)
        total = size(x for x in labels if kinds[x] < 4) if size(x for x in labels if kinds[x] == 4) > 1 else 0
        most = max(most, held + copy + total)
        held += total or copy
    product, is_copied = _elements(node.outputs[0]), ordered(x for x in every if kinds[x] < 3) != list(result)
    if len(operands) > 1:
        held += product if is_copied else 0
    elif not is_copied:
        held = 0  # the one operand is the product
    return max(most - product, held) * _size(node.outputs[0])


def _broadcast(node: Node) -> int:
    """Return the blocks into which the threads broadcast operands: two for each thread of a selection, one of another operation."""
    output, is_selection = node.outputs[0], len(node.inputs) > 2
    if not is_selection and all(value.shape in (output.shape, ()) for value in node.inputs):
        return 0
    threads = min(_threads(), max(_elements(output) // _BLOCK_ELEMENTS, 1))
    return min((1 + is_selection) * threads * _BLOCK_BYTES, output.nbytes or 0)


_DEPTHWISE = "DepthwiseConv2dNative _FusedDepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput"
_FOR_ALL_DTYPES: Mapping[str, Callable[[Node], int]] = {
    "Einsum": _einsum,
    # What an expression of Eigen evaluates before its result, in the size of a tensor: sums before they are reversed, whether or not
    # they are (`scan_ops.h`), the terms of each loss (`xent_op.h`), squares and their sums, indices.
    **dict.fromkeys(("Cumsum", "Cumprod", "CumulativeLogsumexp"), lambda node: node.outputs[0].nbytes or 0),
    "SoftmaxCrossEntropyWithLogits": lambda node: node.outputs[1].nbytes or 0,
    "LRN": lambda node: 2 * (node.outputs[0].nbytes or 0),
    "HistogramFixedWidth": lambda node: 4 * _elements(node.inputs[0]),
    **dict.fromkeys(COMBINES_TWO | {"SelectV2"}, _broadcast),
}
BY_EIGEN_ALONE = frozenset(_FOR_ALL_DTYPES)
_RULES: Mapping[str, Callable[[Node], int]] = {
    **dict.fromkeys("Conv2D _FusedConv2D PadWithFusedConv2D Conv3D _FusedConv3D".split(), _forward),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _input_gradient),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), _filter_gradient),
    **dict.fromkeys("MatMul _FusedMatMul BatchMatMul BatchMatMulV2 BatchMatMulV3".split(), _product),
    **_FOR_ALL_DTYPES,
    # The pool again, and where each maximum lies.
    "MaxPoolGrad": lambda node: (node.inputs[1].nbytes or 0) + 8 * _elements(node.inputs[1]),
    **dict.fromkeys(
        ("FusedBatchNormGradV2", "FusedBatchNormGradV3"),
        lambda node: 4 * _elements(node.inputs[0]) if _size(node.inputs[0]) == 2 else 0,
    ),
    **dict.fromkeys(_DEPTHWISE.split(), lambda node: (_threads() + 1) * (node.inputs[1].nbytes or 0)),
    "DepthwiseConv2dNativeBackpropFilter": lambda node: (_shape(node.inputs[2])[0] + 1) * (node.outputs[0].nbytes or 0),
}


def _packed(rows: int, inner: int, columns: int, size: int) -> int:
    """Return an upper bound on the packed operands of one product."""
    return min((rows + columns) * min(inner, _PANELS * _PANEL) * size, _threads() * _PACKED_BY_THREAD)


def _in_float32(output: Value, packed: int) -> int:
    """Return the scratch of a half that is computed in float32 and written after the packed operands are free."""
    return 4 * _elements(output) + max(packed - (output.nbytes or 0), 0)


def _threads() -> int:
    return os.cpu_count() or 1


def _shape(value: Value) -> tuple[int, ...]:
    return tuple(d or 0 for d in value.shape or ())


def _elements(value: Value) -> int:
    return element_count(value.shape) or 0


def _size(value: Value) -> int:
    return int(value.dtype.itemsize or 1)
