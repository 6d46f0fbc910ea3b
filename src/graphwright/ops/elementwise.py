"""Arithmetic element by element, comparisons and activations, with their gradients.

A transcendental function counts as one, as in the TensorFlow profiler. Integers and truth values count nothing. Comparisons of floats
count.
"""

from collections.abc import Mapping

import numpy as np

from graphwright.ir.graph import Node
from graphwright.ir.traits.arithmetic import CHOOSES_ELEMENTS, COMBINES_TWO, ELEMENTWISE
from graphwright.ir.traits.rounds import is_list
from graphwright.ops.dimensions import (
    MOST_DIMENSIONS,
    Dimensions,
    Labels,
    along_last_axis,
    broadcast_labels,
    labels_like,
    labels_of,
    labels_of_output,
)
from graphwright.ops.family import Count, Family, on_cpu, on_floats, per_output, reduced, zero
from graphwright.ops.machine import thread_count
from graphwright.ops.sizes import UnknownSizeError, dims, dims_of, output_dims, output_size, size, text_attribute

_BROADCAST_FROM_BYTES = 32 << 10  # smaller outputs are not worth counting
_BLOCK_BYTES, _BLOCK_ELEMENTS = 108 << 10, 1 << 17  # of an operand that a thread broadcasts at once; elements that one more thread takes

SCALARS: Mapping[str, np.ufunc] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Neg": np.negative,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalNot": np.logical_not,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
}
"""What loops compute on scalars to count their rounds."""
DECISIVE: Mapping[str, bool] = {"LogicalAnd": False, "LogicalOr": True}
"""The operand that decides the result, whatever the other one is."""


def _elements(factor: float) -> Count:
    return on_floats(lambda node: factor * (output_size(node) if node.outputs else _largest_input(node)))


def _largest_input(node: Node) -> int:
    sizes = [size(v) for v in node.inputs if v.dtype.itemsize is not None]
    if not sizes:
        raise UnknownSizeError
    return max(sizes)


def _composition(node: Node) -> float:
    names = node.attrs.get("op_names")
    return (len(names) if isinstance(names, tuple) else 1) * output_size(node)


def by_elements(node: Node) -> Dimensions:
    """Element by element, with broadcasting."""
    if is_list(node.outputs[0]):
        labels = labels_of("d", MOST_DIMENSIONS)
        return Dimensions((labels,) * len(node.inputs), labels)
    sizes, labels = output_dims(node), labels_of_output(node)
    return Dimensions(tuple(broadcast_labels(labels, sizes, dims(value)) for value in node.inputs), labels)


def _select(node: Node) -> Dimensions:
    """A vector as the condition of TF1's choice applies to rows."""
    labels = labels_of_output(node)
    return Dimensions((labels[: len(dims_of(node, 0))], labels, labels), labels)


def _add_bias(node: Node) -> Dimensions:
    labels = labels_like(node)
    return Dimensions((labels, _channel(node, labels)), labels)


def _bias_gradient(node: Node) -> Dimensions:
    labels = labels_like(node)
    return Dimensions((labels,), _channel(node, labels), sums=True)


def _channel(node: Node, labels: Labels) -> Labels:
    return (labels[1 if text_attribute(node, "data_format").startswith("NC") else -1],)


def _broadcast_blocks(node: Node) -> int:
    """Return the blocks into which the threads broadcast operands: two for each thread of a selection, one of another operation."""
    output, is_selection = node.outputs[0], len(node.inputs) > 2
    nbytes = output.nbytes or 0
    if nbytes < _BROADCAST_FROM_BYTES or (not is_selection and all(value.shape in (output.shape, ()) for value in node.inputs)):
        return 0
    threads = min(thread_count(), max(output_size(node) // _BLOCK_ELEMENTS, 1))
    return min((1 + is_selection) * threads * _BLOCK_BYTES, nbytes)


_ONE_EACH = (
    "Abs Acos Acosh Add AddV2 Angle ApproximateEqual Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 "
    "BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 BiasAdd BiasAddV1 Ceil Complex ComplexAbs Conj Cos Cosh Dawsn Digamma Div "
    "DivNoNan Elu Equal Erf Erfc Erfinv Exp Expint Expm1 Floor FloorDiv FloorMod FresnelCos FresnelSin Greater GreaterEqual Igamma "
    "Igammac IgammaGradA RandomGammaGrad Inv IsFinite IsInf IsNan LeakyRelu Less LessEqual Lgamma Log Log1p Maximum Minimum Mod "
    "Mul MulNoNan Ndtri Neg NextAfter NotEqual Polygamma Pow RealDiv Reciprocal Relu Relu6 ReluGrad Relu6Grad LeakyReluGrad Rint Round "
    "Rsqrt Select SelectV2 Selu Sigmoid Sign Sin Sinh Softplus Softsign Spence Sqrt Square Sub Tan Tanh TruncateDiv TruncateMod Betainc "
    "Zeta Xdivy Xlog1py Xlogy LogicalAnd LogicalNot LogicalOr"
)
_TWO_EACH = (
    "ClipByValue EluGrad SeluGrad SquaredDifference ReciprocalGrad InvGrad SigmoidGrad TanhGrad SqrtGrad SoftplusGrad SoftsignGrad "
    "UniformQuantizedClipByValue"
)
_INTEGERS = "BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift PopulationCount LogicalXor ToBool"
_COMPARISONS = "Equal NotEqual Less LessEqual Greater GreaterEqual"
_OWN_SPLITS = frozenset("Select Softmax LogSoftmax BiasAdd BiasAddV1".split())
_BY_ELEMENTS = (
    f"{_COMPARISONS} Cast Bitcast Identity StopGradient PreventGradient CheckNumerics Snapshot OnesLike ApproximateEqual IsNan IsInf "
    "IsFinite BesselI0e BesselI1e NextAfter Ndtri"
)

FAMILY = Family(
    flops={
        "element by element": [
            (_ONE_EACH, "1 per element of the output", _elements(1)),
            (_TWO_EACH, "2 per element of the output", _elements(2)),
            ("RsqrtGrad", "4 per element of the output", _elements(4)),
            ("AddN AccumulateNV2", "(inputs - 1) per element of the output", on_floats(lambda n: len(n.inputs[1:]) * output_size(n))),
            ("LinSpace", "2 per element of the output", _elements(2)),
            ("Cross", "3 per element of the output", _elements(3)),
        ],
        "fused": [
            ("_UnaryOpsComposition", "1 per output for each op that it is made of", _composition),
            ("_FusedMish", "4 per element", per_output(4)),
            ("_Swish", "2 per element", per_output(2)),
        ],
        "softmax and losses": [("Softmax LogSoftmax", "5 per element: largest, difference, exponential, sum, quotient", per_output(5))],
        "reduction": [("BiasAddGrad", "elements of the input - elements of the output", on_floats(reduced))],
        "no arithmetic": [(_INTEGERS, "0: integers and bits", zero)],
    },
    splits={
        " ".join(sorted(ELEMENTWISE - _OWN_SPLITS)): by_elements,
        _BY_ELEMENTS: by_elements,
        "Select": _select,
        "Softmax LogSoftmax": along_last_axis,
        "BiasAdd BiasAddV1": _add_bias,
        "BiasAddGrad": _bias_gradient,
    },
    scratch={" ".join(sorted(COMBINES_TWO | {"SelectV2"})): on_cpu(_broadcast_blocks)},
    weights={"BiasAdd BiasAddV1": (1,)},
    weight_passes="Neg Rsqrt RightShift LeftShift BitwiseAnd BitwiseOr BitwiseXor",
    bytes_per_s={"Pow": 1.0e9, "SquaredDifference": 1.2e10, "SelectV2 Exp Erf Tanh Sigmoid": 1.6e10, "Softmax": 1.8e10, "Erfc": 2.0e10},
    widens=f"{' '.join(sorted(ELEMENTWISE - CHOOSES_ELEMENTS))} {_COMPARISONS} BiasAddGrad",
)
