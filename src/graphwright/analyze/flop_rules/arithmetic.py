"""Arithmetic element by element, reductions and cumulative sums, segments, sorting, random numbers.

A transcendental function counts as one, as in the TensorFlow profiler. Integers and truth values count nothing. Comparisons of floats
count.
"""

import math

from graphwright.analyze.flop_rules.rule import (
    FlopRule,
    Rule,
    dims_of,
    largest_input,
    output_dims,
    output_size,
    per_input,
    per_output,
    ranked,
    size_of,
    table,
    touches_floats,
)
from graphwright.ir.graph import Node

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
_SCATTER_ARITHMETIC = (
    "ResourceScatterAdd ResourceScatterSub ResourceScatterMul ResourceScatterDiv ResourceScatterMin ResourceScatterMax "
    "ResourceScatterNdAdd ResourceScatterNdSub ResourceScatterNdMin ResourceScatterNdMax ScatterAdd ScatterSub ScatterMul ScatterDiv "
    "ScatterMin ScatterMax ScatterNdAdd ScatterNdSub ScatterNdMin ScatterNdMax ScatterNdNonAliasingAdd TensorScatterAdd "
    "TensorScatterSub TensorScatterMin TensorScatterMax"
)
_SEGMENTS = (
    "SegmentSum SegmentSumV2 SegmentProd SegmentProdV2 SegmentMax SegmentMaxV2 SegmentMin SegmentMinV2 UnsortedSegmentSum "
    "UnsortedSegmentProd UnsortedSegmentMax UnsortedSegmentMin"
)
_SPARSE_SEGMENT_GRADIENTS = (
    "SparseSegmentSumGrad SparseSegmentMeanGrad SparseSegmentSqrtNGrad SparseSegmentSumGradV2 SparseSegmentMeanGradV2 "
    "SparseSegmentSqrtNGradV2"
)
_NORMAL = (
    "RandomStandardNormal StatelessRandomNormal StatelessRandomNormalV2 StatefulStandardNormal StatefulStandardNormalV2 "
    "TruncatedNormal StatelessTruncatedNormal StatelessTruncatedNormalV2 StatefulTruncatedNormal"
)
_REJECTION = (
    "RandomGamma StatelessRandomGammaV2 StatelessRandomGammaV3 RandomPoisson RandomPoissonV2 StatelessRandomPoisson "
    "StatefulRandomBinomial StatelessRandomBinomial"
)


def _on_floats(rule: Rule) -> Rule:
    """Return the rule for nodes that touch floats, and 0 for nodes with integers only."""
    return lambda node: rule(node) if touches_floats(node) else 0.0


def _elements(factor: float) -> Rule:
    return _on_floats(lambda node: factor * (output_size(node) if node.outputs else largest_input(node)))


def _reduced(node: Node) -> float:
    return float(max(size_of(node) - output_size(node), 0))


def _mean(node: Node) -> float:
    return float(size_of(node)) if size_of(node) > output_size(node) else 0.0


def _sparse_segments(node: Node) -> float:
    """Count one addition per element of the rows that the indices pick."""
    data = dims_of(node, 0, 1)
    return float(size_of(node, 1) * math.prod(data[1:]))


def _log2(count: int) -> float:
    return math.ceil(math.log2(count)) if count > 1 else 0.0


def _top_k(node: Node) -> float:
    """Count n log2 k comparisons a row for a heap of the k largest; n log2 n if all are sorted."""
    rows, kept = dims_of(node, 0, 1), output_dims(node, 0, 1)[-1]
    return math.prod(rows) * max(_log2(kept), 1.0)


def _binary_search(node: Node) -> float:
    return size_of(node, 1) * _log2(dims_of(node, 0, 1)[-1])


def _bucketize(node: Node) -> float:
    boundaries = node.attrs.get("boundaries")
    return size_of(node) * _log2(len(boundaries) + 1 if isinstance(boundaries, tuple) else 2)


def _multinomial(node: Node) -> float:
    """Count softmax weights and their cumulative sums, then a binary search per sample."""
    _, classes = ranked(node, 0, 2)
    return 3.0 * size_of(node) + output_size(node) * (2 + _log2(classes))


RULES: dict[str, FlopRule] = table(
    {
        "element by element": [
            (_ONE_EACH, "1 per element of the output", _elements(1)),
            (_TWO_EACH, "2 per element of the output", _elements(2)),
            ("RsqrtGrad", "4 per element of the output", _elements(4)),
            ("AssignAddVariableOp AssignSubVariableOp AssignAdd AssignSub", "1 per element added", _on_floats(per_input(1, 1))),
            ("AddN AccumulateNV2", "(inputs - 1) per element of the output", _on_floats(lambda n: len(n.inputs[1:]) * output_size(n))),
            (_SCATTER_ARITHMETIC, "1 per element of the updates", _on_floats(per_input(1, 2))),
            ("InplaceAdd InplaceSub", "1 per element of the updates", _on_floats(per_input(1, 2))),
            ("LinSpace", "2 per element of the output", _elements(2)),
            ("Cross", "3 per element of the output", _elements(3)),
            ("NcclAllReduce CollectiveReduce CollectiveReduceV2 CollectiveReduceV3", "1 per element of the input", per_input(1)),
        ],
        "reduction": [
            ("Sum Max Min Prod ArgMax ArgMin All Any BiasAddGrad", "elements of the input - elements of the output", _on_floats(_reduced)),
            ("Mean", "1 per element of the input; 0 where nothing is reduced", _on_floats(_mean)),
            ("L2Loss", "2 per element of the input", per_input(2)),
            ("EuclideanNorm", "2 per element of the input", per_input(2)),  # n squares, n - m additions, m roots
            ("Cumsum Cumprod", "1 per element of the input", _on_floats(per_input(1))),
            ("CumulativeLogsumexp", "4 per element of the input", per_input(4)),
            ("TileGrad", "elements of the input - elements of the output", _on_floats(_reduced)),
            ("DenseBincount Bincount HistogramFixedWidth", "1 per element of the input", _on_floats(per_input(1))),
        ],
        "segment": [
            (_SEGMENTS, "1 per element of the input", _on_floats(per_input(1))),
            (
                "SegmentMean",
                "1 per element of the input + 1 per element of the output",
                _on_floats(lambda node: float(size_of(node) + output_size(node))),
            ),
            ("SparseSegmentSum SparseSegmentSumWithNumSegments", "1 per element of the rows picked", _on_floats(_sparse_segments)),
            (
                "SparseSegmentMean SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNWithNumSegments",
                "1 per element of the rows picked + 1 per element of the output",
                _on_floats(lambda node: _sparse_segments(node) + output_size(node)),
            ),
            (_SPARSE_SEGMENT_GRADIENTS, "2 per element of the rows written", lambda node: 2 * _sparse_segments(node)),
        ],
        "sorting and searching (comparisons)": [
            ("TopK TopKV2 TopKUnique TopKWithUnique ApproxTopK", "n log2 k, at least n", _on_floats(_top_k)),
            ("NthElement KthOrderStatistic", "3 n (quickselect, on average)", _on_floats(per_input(3))),
            ("InTopK InTopKV2", "1 per element of the predictions", per_input(1)),
            ("LowerBound UpperBound", "log2 n per value looked up", _on_floats(_binary_search)),
            ("Bucketize", "log2 of the buckets per element", _on_floats(_bucketize)),
        ],
        "random numbers (the generator's integer arithmetic counts 0)": [
            ("RandomUniform StatelessRandomUniform StatelessRandomUniformV2 StatefulUniform", "2 per sample: bits to float", _elements(2)),
            (_NORMAL, "6 per sample: Box and Muller, two for log, root, sine and cosine", _elements(6)),
            ("ParameterizedTruncatedNormal StatelessParameterizedTruncatedNormal", "10 per sample", _elements(10)),
            (_REJECTION, "20 per sample: one round of rejection sampling, an estimate", per_output(20)),
            ("Multinomial StatelessMultinomial", "3 per logit + (2 + log2 classes) per sample", _multinomial),
        ],
    }
)
