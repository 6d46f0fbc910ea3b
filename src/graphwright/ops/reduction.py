"""Reductions and cumulative sums, segments, sorting and searching."""

import math

from graphwright.ir.graph import Node
from graphwright.ops.dimensions import Dimensions, SplitRule, along_axis, along_last_axis, labels_like, rows, whole, whole_inputs, without
from graphwright.ops.family import Family, on_cpu, on_floats, per_input, reduced
from graphwright.ops.sizes import axes, dims_of, output_dims, output_size, size_of


def _mean(node: Node) -> float:
    return float(size_of(node)) if size_of(node) > output_size(node) else 0.0


def _segment_mean(node: Node) -> float:
    return float(size_of(node) + output_size(node))


def _sparse_segments(node: Node) -> float:
    """Count one addition per element of the rows that the indices pick."""
    return float(size_of(node, 1) * math.prod(dims_of(node, 0, 1)[1:]))


def _sparse_segment_mean(node: Node) -> float:
    return _sparse_segments(node) + output_size(node)


def log2(count: int) -> float:
    return math.ceil(math.log2(count)) if count > 1 else 0.0


def _top_k(node: Node) -> float:
    """Count n log2 k comparisons a row for a heap of the k largest; n log2 n if all are sorted."""
    largest = output_dims(node, 0, 1)[-1]
    return math.prod(dims_of(node, 0, 1)) * max(log2(largest), 1.0)


def _binary_search(node: Node) -> float:
    return size_of(node, 1) * log2(dims_of(node, 0, 1)[-1])


def _bucketize(node: Node) -> float:
    boundaries = node.attrs.get("boundaries")
    return size_of(node) * log2(len(boundaries) + 1 if isinstance(boundaries, tuple) else 2)


def _reduction(*, sums: bool = False, mean: bool = False) -> SplitRule:
    def rule(node: Node) -> Dimensions:
        sizes, labels = dims_of(node, 0), labels_like(node)
        gone = axes(node, 1, len(sizes))
        read = labels if sums else without(labels, gone)
        result = without(labels, gone, kept=node.attrs.get("keep_dims") is True)
        divisor = math.prod(sizes[axis] for axis in gone) if mean else 1
        return Dimensions((read, *whole_inputs(node)), result, sums=sums, term="Sum" if mean else "", divisor=divisor)

    return rule


def _half_square(node: Node) -> Dimensions:
    return Dimensions((labels_like(node),), (), sums=True)


def _arg_max(node: Node) -> Dimensions:
    labels = labels_like(node)
    gone = axes(node, 1, len(labels))
    return Dimensions((without(labels, gone), ()), without(labels, gone, kept=False))


def _segments(*, sums: bool = False) -> SplitRule:
    def rule(node: Node) -> Dimensions:
        count, labels = len(dims_of(node, 1)), labels_like(node)
        picked = labels[:count] if sums else whole(count)
        return Dimensions(((*picked, *labels[count:]), picked, ()), (None, *labels[count:]), sums=sums)

    return rule


def _first_result(node: Node) -> int:
    """Eigen evaluates sums before it reverses them, whether or not it does (`scan_ops.h`)."""
    return node.outputs[0].nbytes or 0


_SEGMENTS = (
    "SegmentSum SegmentSumV2 SegmentProd SegmentProdV2 SegmentMax SegmentMaxV2 SegmentMin SegmentMinV2 UnsortedSegmentSum "
    "UnsortedSegmentProd UnsortedSegmentMax UnsortedSegmentMin"
)
_SPARSE_SEGMENT_SUMS = "SparseSegmentSum SparseSegmentSumWithNumSegments"
_SPARSE_SEGMENT_MEANS = "SparseSegmentMean SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNWithNumSegments"
_SPARSE_SEGMENT_GRADIENTS = (
    "SparseSegmentSumGrad SparseSegmentMeanGrad SparseSegmentSqrtNGrad SparseSegmentSumGradV2 SparseSegmentMeanGradV2 "
    "SparseSegmentSqrtNGradV2"
)

FAMILY = Family(
    flops={
        "reduction": [
            ("Sum Max Min Prod ArgMax ArgMin All Any", "elements of the input - elements of the output", on_floats(reduced)),
            ("Mean", "1 per element of the input; 0 where nothing is reduced", on_floats(_mean)),
            ("L2Loss", "2 per element of the input", per_input(2)),
            ("EuclideanNorm", "2 per element of the input", per_input(2)),  # n squares, n - m additions, m roots
            ("Cumsum Cumprod", "1 per element of the input", on_floats(per_input(1))),
            ("CumulativeLogsumexp", "4 per element of the input", per_input(4)),
            ("DenseBincount Bincount HistogramFixedWidth", "1 per element of the input", on_floats(per_input(1))),
        ],
        "segment": [
            (_SEGMENTS, "1 per element of the input", on_floats(per_input(1))),
            ("SegmentMean", "1 per element of the input + 1 per element of the output", on_floats(_segment_mean)),
            (_SPARSE_SEGMENT_SUMS, "1 per element of the rows picked", on_floats(_sparse_segments)),
            (_SPARSE_SEGMENT_MEANS, "1 per element of the rows picked + 1 per element of the output", on_floats(_sparse_segment_mean)),
            (_SPARSE_SEGMENT_GRADIENTS, "2 per element of the rows written", lambda node: 2 * _sparse_segments(node)),
        ],
        "sorting and searching (comparisons)": [
            ("TopK TopKV2 TopKUnique TopKWithUnique ApproxTopK", "n log2 k, at least n", on_floats(_top_k)),
            ("NthElement KthOrderStatistic", "3 n (quickselect, on average)", on_floats(per_input(3))),
            ("InTopK InTopKV2", "1 per element of the predictions", per_input(1)),
            ("LowerBound UpperBound", "log2 n per value looked up", on_floats(_binary_search)),
            ("Bucketize", "log2 of the buckets per element", on_floats(_bucketize)),
        ],
    },
    splits={
        "Sum": _reduction(sums=True),
        "Mean": _reduction(sums=True, mean=True),
        "Max Min Prod All Any": _reduction(),
        "L2Loss": _half_square,
        "ArgMax ArgMin": _arg_max,
        "Cumsum Cumprod": along_axis,
        "UnsortedSegmentSum": _segments(sums=True),
        "UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd": _segments(),
        "TopKV2": along_last_axis,
        "InTopKV2": rows("n- n _ -> n"),
    },
    scratch={"Cumsum Cumprod CumulativeLogsumexp": on_cpu(_first_result), "HistogramFixedWidth": on_cpu(lambda node: 4 * size_of(node))},
    traffic={f"{_SPARSE_SEGMENT_SUMS} {_SPARSE_SEGMENT_MEANS} {_SPARSE_SEGMENT_GRADIENTS}": "rows"},
    bytes_per_s={"UnsortedSegmentSum": 4e9, "Mean Sum": 9e9},
)
