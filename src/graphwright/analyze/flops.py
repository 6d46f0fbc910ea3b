"""Floating-point operations of one node. A multiply-add counts as two.

Rules exist for op types whose count follows from shapes; None means *unknown*, which
callers list, never take for zero. Data movement (reshape, transpose, gather, concat)
counts as zero. Transcendental functions count as one per element, as the TensorFlow
profiler does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from graphwright.ir.dtypes import element_count
from graphwright.ir.graph import Node

_ELEMENTWISE = frozenset(
    "Abs Acos Add AddV2 Asin Atan BiasAdd Ceil ClipByValue Cos Div DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1 Floor "
    "FloorDiv FloorMod Greater GreaterEqual Inv InvGrad LeakyRelu LeakyReluGrad Less LessEqual Log Log1p LogicalAnd LogicalNot "
    "LogicalOr Maximum Minimum Mod Mul MulNoNan Neg NotEqual Pow RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Rint "
    "Round Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softplus SoftplusGrad Softsign SoftsignGrad "
    "Sqrt SqrtGrad Square SquaredDifference Sub Tan Tanh TanhGrad Xdivy Xlogy AssignAddVariableOp AssignSubVariableOp IsFinite IsNan "
    "IsInf".split()
)
_REDUCTIONS = frozenset("Sum Mean Max Min Prod All Any ArgMax ArgMin BiasAddGrad L2Loss Cumsum".split())
_MOVEMENT = frozenset(
    "AssignVariableOp BroadcastTo BroadcastGradientArgs Cast Concat ConcatV2 Const DepthToSpace EnsureShape ExpandDims Fill Gather "
    "GatherNd GatherV2 Identity IdentityN InvertPermutation MirrorPad MirrorPadGrad NoOp OneHot OnesLike Pack Pad PadV2 Placeholder "
    "PreventGradient Range Rank ReadVariableOp Reshape ResourceGather ReverseV2 ScatterNd Shape ShapeN Size Slice SpaceToDepth Split "
    "SplitV Squeeze StopGradient StridedSlice StridedSliceGrad TensorListFromTensor TensorListReserve TensorListStack "
    "TensorListElementShape TensorListLength Tile Transpose Unpack ZerosLike _Arg CheckNumerics TensorListPopBack TensorListPushBack "
    "TensorListGetItem TensorListSetItem EmptyTensorList Where StatelessRandomGetKeyCounter StatelessRandomGetAlg VarHandleOp "
    "ResourceScatterAdd Bitcast PlaceholderWithDefault LogicalXor Assert".split()
)
_PER_OUTPUT: dict[str, float] = {
    "Softmax": 5,
    "LogSoftmax": 5,
    "StatelessRandomUniformV2": 10,
    "StatelessRandomNormalV2": 20,
    "RandomUniform": 10,
    "RandomStandardNormal": 20,
    "TruncatedNormal": 20,
    "StatelessTruncatedNormalV2": 20,
}
_PER_INPUT: dict[str, float] = {
    "SoftmaxCrossEntropyWithLogits": 6,
    "SparseSoftmaxCrossEntropyWithLogits": 6,
    "FusedBatchNormV3": 8,
    "FusedBatchNormGradV3": 12,
    "FusedBatchNorm": 8,
    "FusedBatchNormGrad": 12,
    "ResourceApplyAdam": 4,
    "ResourceApplyMomentum": 2,
    "ResourceApplyKerasMomentum": 2,
    "ResourceApplyGradientDescent": 2,
    "LRN": 10,
    "LRNGrad": 20,
}


def node_flops(node: Node) -> float | None:
    """FLOPs of one execution, or None when there is no rule or a shape is unknown.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> a, b = (g.add_node("Const", n, output_types=[(f32, (256, 256))]).outputs[0] for n in "ab")
    >>> node_flops(g.add_node("MatMul", "c", inputs=[a, b], attrs={"transpose_a": False}, output_types=[(f32, (256, 256))]))
    33554432.0
    """
    op = node.op_type
    if op in _MOVEMENT:
        return 0.0
    if op in _ELEMENTWISE:
        return _outputs(node) if node.outputs else _inputs(node)
    if op in _REDUCTIONS:
        return _inputs(node, first=True)
    if op in _PER_OUTPUT:
        return _times(_PER_OUTPUT[op], _outputs(node))
    if op in _PER_INPUT:
        return _times(_PER_INPUT[op], _inputs(node, first=True))
    rule = _rules().get(op)
    return rule(node) if rule else None


def _times(factor: float, count: float | None) -> float | None:
    return None if count is None else factor * count


def _outputs(node: Node) -> float | None:
    count = element_count(node.outputs[0].shape)
    return None if count is None else float(count)


def _inputs(node: Node, *, first: bool = False) -> float | None:
    counts = [element_count(v.shape) for v in (node.inputs[:1] if first else node.inputs) if v.dtype.itemsize is not None]
    if not counts or any(c is None for c in counts):
        return None
    return float(max(c for c in counts if c is not None))


def _dims(node: Node, index: int) -> tuple[int, ...] | None:
    shape = node.inputs[index].shape
    if shape is None or None in shape:
        return None
    return tuple(d for d in shape if d is not None)


@cache
def _rules() -> dict[str, Callable[[Node], float | None]]:
    return {
        "MatMul": _matmul,
        "BatchMatMul": _batch_matmul,
        "BatchMatMulV2": _batch_matmul,
        "BatchMatMulV3": _batch_matmul,
        "Einsum": _einsum,
        "Conv2D": lambda n: _convolution(_outputs(n), _dims(n, 1)),
        "Conv3D": lambda n: _convolution(_outputs(n), _dims(n, 1)),
        "Conv2DBackpropInput": lambda n: _convolution(_count(_dims(n, 2)), _dims(n, 1)),
        "Conv3DBackpropInputV2": lambda n: _convolution(_count(_dims(n, 2)), _dims(n, 1)),
        "Conv2DBackpropFilter": lambda n: _convolution(_count(_dims(n, 2)), _output_dims(n)),
        "Conv3DBackpropFilterV2": lambda n: _convolution(_count(_dims(n, 2)), _output_dims(n)),
        "DepthwiseConv2dNative": lambda n: _depthwise(_outputs(n), _dims(n, 1)),
        "DepthwiseConv2dNativeBackpropInput": lambda n: _depthwise(_count(_dims(n, 2)), _dims(n, 1)),
        "DepthwiseConv2dNativeBackpropFilter": lambda n: _depthwise(_count(_dims(n, 2)), _output_dims(n)),
        "MaxPool": _pool,
        "AvgPool": _pool,
        "MaxPoolGrad": _pool_gradient,
        "AvgPoolGrad": _pool_gradient,
        "AddN": lambda n: _times(len(n.inputs) - 1, _outputs(n)),
        "ResizeBilinear": lambda n: _times(8, _outputs(n)),
        "ResizeBilinearGrad": lambda n: _times(8, _inputs(n, first=True)),
        "ResizeNearestNeighbor": lambda _: 0.0,
        "ResizeNearestNeighborGrad": lambda n: _inputs(n, first=True),
        "UnsortedSegmentSum": lambda n: _inputs(n, first=True),
    }


def _count(dims: tuple[int, ...] | None) -> float | None:
    return None if dims is None else float(math.prod(dims))


def _output_dims(node: Node) -> tuple[int, ...] | None:
    shape = node.outputs[0].shape
    if shape is None or None in shape:
        return None
    return tuple(d for d in shape if d is not None)


def _convolution(output_count: float | None, filter_dims: tuple[int, ...] | None) -> float | None:
    """2 * outputs * kernel window * input channels; the filter is [..., in / groups, out]."""
    if output_count is None or filter_dims is None:
        return None
    return 2.0 * output_count * math.prod(filter_dims[:-1])


def _depthwise(output_count: float | None, filter_dims: tuple[int, ...] | None) -> float | None:
    if output_count is None or filter_dims is None:
        return None
    return 2.0 * output_count * filter_dims[0] * filter_dims[1]


def _matmul(node: Node) -> float | None:
    a, outputs = _dims(node, 0), _outputs(node)
    if a is None or outputs is None:
        return None
    inner = a[0] if node.attrs.get("transpose_a") is True else a[1]
    return 2.0 * outputs * inner


def _batch_matmul(node: Node) -> float | None:
    a, outputs = _dims(node, 0), _outputs(node)
    if a is None or outputs is None:
        return None
    inner = a[-2] if node.attrs.get("adj_x") is True else a[-1]
    return 2.0 * outputs * inner


def _einsum(node: Node) -> float | None:
    """Two operands: 2 * product of all labels' sizes, which is what a contraction by matrix products needs."""
    equation = node.attrs.get("equation")
    if not isinstance(equation, bytes) or b"..." in equation:
        return None
    sizes: dict[str, int] = {}
    left = equation.decode().replace(" ", "").split("->")[0].split(",")
    for k, labels in enumerate(left):
        dims = _dims(node, k)
        if dims is None or len(dims) != len(labels):
            return None
        sizes.update(zip(labels, dims, strict=True))
    return float(math.prod(sizes.values())) * (2 if len(left) > 1 else 1)


def _pool(node: Node) -> float | None:
    window = node.attrs.get("ksize")
    if not isinstance(window, tuple):
        return None
    return _times(math.prod(w for w in window if isinstance(w, int)), _outputs(node))


def _pool_gradient(node: Node) -> float | None:
    window = node.attrs.get("ksize")
    if not isinstance(window, tuple):
        return None
    gradient = element_count(node.inputs[-1].shape)
    return None if gradient is None else float(gradient) * math.prod(w for w in window if isinstance(w, int))
