"""Arithmetic that several parts of the library ask about; rules of FLOPs and of memory have tables of their own.

*In place* means that a kernel may write its output into the storage of an input that nobody else holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

from graphwright.ir.traits.of_type import of_type

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.node import Node

_Term = TypeVar("_Term")
ADDITIONS = frozenset({"Add", "AddV2"})
SUMS_OF_MANY = frozenset({"AddN", "AccumulateNV2"})
SUMS = ADDITIONS | SUMS_OF_MANY
ADDS_BIAS = frozenset({"BiasAdd", "BiasAddV1"})
SUMS_AND_DIFFERENCES = SUMS | {"Sub", "Neg"}
SCALES = frozenset({"Mul", "RealDiv", "Div", "DivNoNan", "MulNoNan"})
"""The first input times the second, or divided by it."""
CHOOSES_ELEMENTS = frozenset({"Select", "SelectV2", "Maximum", "Minimum"})
"""Each element is taken from one of the inputs."""
COMBINES_TWO = ADDITIONS | frozenset("Sub Mul Div RealDiv Maximum Minimum SquaredDifference".split())
"""Cheap arithmetic on two inputs, element by element."""
COMMUTES = SUMS | frozenset(
    "Mul Maximum Minimum Equal NotEqual LogicalAnd LogicalOr BitwiseAnd BitwiseOr BitwiseXor SquaredDifference".split()
)
"""The result is the same, bit for bit, when the two inputs change places. Not where `Add` joins text: ask `commutes`."""
CONVOLUTIONS = frozenset({"Conv2D", "Conv3D"})
"""Convolutions of images and volumes, also in groups of channels."""
MATRIX_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
TRANSPOSES = ("transpose_a", "transpose_b")
"""The attributes of a matrix product that transpose its inputs."""
LINEAR_IN_ALL = SUMS_AND_DIFFERENCES | {"ConcatV2", "Pack"}
"""Ops that distribute over sums in all inputs."""
_LINEAR_IN_FIRST = "Identity Neg RealDiv Cast Sum Mean Reshape Squeeze ExpandDims Transpose Slice StridedSlice SplitV Unpack Pad"
_BILINEAR = frozenset({"Mul", *MATRIX_PRODUCTS})
LINEAR_IN: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_LINEAR_IN_FIRST.split(), (0,)),
    **dict.fromkeys(_BILINEAR, (0, 1)),
    "Split": (1,),
    "StridedSliceGrad": (4,),
    "UnsortedSegmentSum": (0,),
}
"""Ops that distribute over a sum in one of these inputs."""
BATCH_NORMS = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
"""Batch normalization by one kernel, before Grappler."""
LOSSES_WITH_GRADIENT = frozenset({"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"})
"""Output 0 is the loss, output 1 its gradient."""
LOOKUPS = frozenset({"Gather", "GatherV2"})
"""Rows of the first input, at the indices in the second."""
ASKS_FOR_SHAPE = frozenset({"Shape", "ShapeN", "Size", "Rank", "VariableShape"})
"""The shape of an input, or a number from it."""
adds_any_number = of_type({"AddN"})
"""Returns whether it is a sum of any number of inputs of one shape, or of lists."""
MAKES = {"ZerosLike": 0, "OnesLike": 1}
"""Ops that fill a tensor with one number -> the number."""
REPEATS = {"Fill": 1, "BroadcastTo": 0, "Tile": 0}
"""Ops that repeat the elements of an input -> its index."""
NO_LARGER = frozenset("Sum Mean Max Min Prod All Any ArgMax ArgMin Slice StridedSlice Reshape BroadcastGradientArgs Shape".split())
"""The output has no more bytes than the largest input."""
TAKES_OUT_OF_LIST = frozenset({"TensorListGetItem", "TensorListPopBack", "OptionalGetValue"})
"""Reads an element of a list, or of an optional value."""
UNARY_IN_PLACE = frozenset(
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1 Floor Inv LeakyRelu Lgamma Log Log1p "
    "LogSoftmax LogicalNot Neg Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt "
    "Square Tan Tanh ZerosLike BiasAdd BiasAddV1 ClipByValue".split()
)
BINARY_IN_PLACE = frozenset(
    "Add AddV2 Atan2 BitwiseAnd BitwiseOr BitwiseXor Div DivNoNan EluGrad FloorDiv FloorMod InvGrad LeakyReluGrad LogicalAnd "
    "LogicalOr Maximum Minimum Mod Mul MulNoNan Pow RealDiv ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad "
    "SoftplusGrad SoftsignGrad SqrtGrad SquaredDifference Sub TanhGrad TruncateDiv Xdivy Xlogy".split()
)
ELEMENTWISE = UNARY_IN_PLACE | BINARY_IN_PLACE | {"Select", "SelectV2", "AddN"}
"""Elementwise ops, with broadcast inputs."""


def in_place_pairs(node: Node) -> tuple[tuple[int, int], ...]:
    """Return pairs (input, output) that the CPU kernel may share, in the order in which it tries them.

    Sizes and dtypes must also agree, and nobody else may hold the input. Batch norms have no pair: their kernel holds its input twice.
    """
    if node.op_type in UNARY_IN_PLACE:
        return ((0, 0),)
    if node.op_type in BINARY_IN_PLACE:
        return ((0, 0), (1, 0))
    match node.op_type:
        case "SelectV2" | "Select":
            return ((1, 0), (2, 0))
        case "_UnaryOpsComposition":
            return ((0, 0),)
        case "CollectiveReduce" | "CollectiveReduceV2" | "CollectiveReduceV3":
            return ((0, 0),)
        case "AddN":
            return tuple((k, 0) for k in range(len(node.inputs)))
        case op_type if op_type in LOSSES_WITH_GRADIENT:
            return ((0, 1),)
        case _:
            return ()


def commutes(node: Node) -> bool:
    """Return whether the node gives the same result, bit for bit, when its two inputs change places."""
    return node.op_type in COMMUTES and len(node.inputs) == 2 and node.inputs[0].dtype.name != "string"


def type_of_today(node: Node) -> str:
    """Return `AddV2` for an `Add` of numbers, which does the same; an `Add` of text joins it. Else the op type."""
    return "AddV2" if node.op_type in ADDITIONS and node.inputs[0].dtype.name != "string" else node.op_type


def is_batch_norm(node: Node) -> bool:
    """Return whether one kernel computes a batch normalization, perhaps with ops that Grappler fused into it."""
    return node.op_type.removeprefix("_") in BATCH_NORMS | {"FusedBatchNormEx"}


def add_in_kernel_order(terms: Sequence[_Term], add: Callable[[_Term, _Term], _Term]) -> _Term:
    """Return the sum of terms in the order of the kernel of `AddN` (aggregate_ops.cc): eight at a time, after two to nine at first.

    >>> add_in_kernel_order("abc", "({}+{})".format)
    '((a+b)+c)'
    >>> add_in_kernel_order("abcdefghijk", "({}+{})".format)
    '(((a+b)+c)+(((((((d+e)+f)+g)+h)+i)+j)+k))'
    """
    first = (len(terms) - 2) % 8 + 2
    groups = [terms[:first], *(terms[k : k + 8] for k in range(first, len(terms), 8))]
    return reduce(add, (reduce(add, group) for group in groups))
