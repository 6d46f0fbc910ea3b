"""Data movement: reshapes, slices, joins, gathers and scatters, padding, and tensors that are filled or repeated."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from graphwright.ir.graph import Node
from graphwright.ops.dimensions import (
    Dimensions,
    Labels,
    SplitRule,
    along_axis,
    broadcast_labels,
    labels_like,
    labels_of,
    labels_of_output,
    rows,
    whole,
    whole_inputs,
    without,
)
from graphwright.ops.family import Family, on_floats, per_input, reduced, zero
from graphwright.ops.sizes import UnknownSizeError, axes, constant, dims, dims_of, number, output_dims


def _reshape(node: Node) -> Dimensions:
    """A dimension is kept if the product of the sizes before it is the same, even if it is merged with those after it."""
    read, result = (_by_place(shape) for shape in (dims_of(node, 0), output_dims(node)))
    others = whole_inputs(node)
    return Dimensions((read, *others), result, {1: result} if others and node.op_type == "Reshape" else {})


def _by_place(shape: Sequence[int]) -> Labels:
    """Return per dimension the product of the sizes before it; None for size 1."""
    return tuple(None if size == 1 else front for size, front in zip(shape, accumulate(shape, mul, initial=1), strict=False))


def _transpose(node: Node) -> Dimensions:
    labels = labels_like(node)
    order = constant(node, 1)
    return Dimensions((labels, (None,)), tuple(labels[int(axis)] for axis in order))


def _concatenation(node: Node) -> Dimensions:
    rank = len(output_dims(node))
    labels = without(labels_of("d", rank), axes(node, len(node.inputs) - 1, rank))
    return Dimensions((*[labels] * (len(node.inputs) - 1), ()), labels)


def _pack(node: Node) -> Dimensions:
    rank = len(output_dims(node))
    labels = without(labels_of("d", rank), {number(node, "axis") % rank})
    return Dimensions((without(labels, {number(node, "axis") % rank}, kept=False),) * len(node.inputs), labels)


def _unpack(node: Node) -> Dimensions:
    rank = len(dims_of(node, 0))
    axis = {number(node, "axis") % rank}
    labels = without(labels_of("d", rank), axis)
    return Dimensions((labels,), without(labels, axis, kept=False))


def _cut(value: int, axis: int) -> SplitRule:
    def rule(node: Node) -> Dimensions:
        rank = len(dims_of(node, value))
        labels = without(labels_of("d", rank), axes(node, axis, rank))
        return Dimensions(tuple(labels if k == value else whole(len(dims(v))) for k, v in enumerate(node.inputs)), labels)

    return rule


def _extract(node: Node) -> Dimensions:
    """A slice keeps the dimensions that it takes whole."""
    sizes = dims_of(node, 0)
    taken = [begin == 0 and count in (-1, size) for begin, count, size in zip(constant(node, 1), constant(node, 2), sizes, strict=True)]
    labels = tuple(label if all_of_it else None for label, all_of_it in zip(labels_of("d", len(sizes)), taken, strict=True))
    return Dimensions((labels, (None,), (None,)), labels, {2: labels})


def _pad(node: Node) -> Dimensions:
    amounts = constant(node, 1)
    labels = labels_of("d", len(amounts))
    labels = without(labels, {axis for axis, pair in enumerate(amounts) if pair.any()})
    return Dimensions((labels, *whole_inputs(node)), labels)


def _strided_slice(node: Node) -> Dimensions:
    read, result, ends = _strided(node, dims_of(node, 0), 1)
    return Dimensions((read, (None,), (None,), (None,)), result, {2: ends})


def _strided_slice_gradient(node: Node) -> Dimensions:
    read, result, ends = _strided(node, [int(size) for size in constant(node, 0)], 1)
    return Dimensions(((None,), (None,), (None,), (None,), result), read, {0: read, 2: ends})


def _strided(node: Node, sizes: Sequence[int], first: int) -> tuple[Labels, Labels, Labels]:
    begins, ends, strides = (constant(node, k) for k in range(first, first + 3))
    bits = {name: number(node, name) for name in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")}
    if bits["ellipsis_mask"]:
        raise UnknownSizeError
    read, result, held = list(labels_of("d", len(sizes))), list[object](), list[object]()
    axis = 0
    for k, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        bit = 1 << k
        held.append(None)
        if bits["new_axis_mask"] & bit:
            result.append(None)
            continue
        from_start = bits["begin_mask"] & bit or begin == 0
        to_end = bits["end_mask"] & bit or end >= sizes[axis]
        if bits["shrink_axis_mask"] & bit or not (from_start and to_end and stride == 1):
            read[axis] = None
        elif not bits["end_mask"] & bit and end == sizes[axis]:
            held[-1] = read[axis]
        if not bits["shrink_axis_mask"] & bit:
            result.append(read[axis])
        axis += 1
    return tuple(read), (*result, *read[axis:]), tuple(held)


def _gather(node: Node) -> Dimensions:
    values, places, axis = dims_of(node, 0), dims_of(node, 1), 0
    if len(node.inputs) > 2:
        axis = int(constant(node, 2)) % len(values)
    shared = number(node, "batch_dims")
    if shared < 0:
        raise UnknownSizeError
    both = labels_of("batch", shared)
    read = both + without(labels_of("value", len(values)), {axis})[shared:]
    asked = both + labels_of("place", len(places))[shared:]
    return Dimensions((read, asked, *[()] * (len(node.inputs) - 2)), read[:axis] + asked[shared:] + read[axis + 1 :])


def _gather_slices(node: Node) -> Dimensions:
    """Slices of a tensor at positions given by the second input, which index its first dimensions."""
    values, places = dims_of(node, 0), dims_of(node, 1, 1)
    counted, asked = places[-1], labels_of("place", len(places) - 1)
    slice_labels = labels_of("d", len(values))[counted:]
    return Dimensions(((*whole(counted), *slice_labels), (*asked, None)), (*asked, *slice_labels))


def _scatter(node: Node) -> Dimensions:
    sizes, places = dims_of(node, 0), dims_of(node, 1, 1)
    labels = labels_of("d", len(sizes))
    counted = places[-1]
    labels = (*whole(counted), *labels[counted:])
    return Dimensions((labels, whole(len(places)), (*whole(len(places) - 1), *labels[counted:])), labels)


def _scatter_sum(node: Node) -> Dimensions:
    places = dims_of(node, 0, 1)
    asked, slice_labels = labels_of("place", len(places) - 1), labels_of_output(node)[places[-1] :]
    result = (*whole(places[-1]), *slice_labels)
    return Dimensions(((*asked, None), (*asked, *slice_labels), (None,)), result, {2: result}, sums=True)


def _one_hot(node: Node) -> Dimensions:
    labels = labels_like(node)
    axis = number(node, "axis", -1) % (len(labels) + 1)
    return Dimensions((labels, (), (), ()), (*labels[:axis], None, *labels[axis:]))


def _fill(node: Node) -> Dimensions:
    labels = labels_of_output(node)
    return Dimensions(((None,), ()), labels, {0: labels})


def _tile(node: Node) -> Dimensions:
    counts, labels = constant(node, 1), labels_of_output(node)
    sizes = dims_of(node, 0)
    read = tuple(label if count == 1 else None for label, count in zip(labels, counts, strict=True))
    result = tuple(label if count == 1 or size == 1 else None for label, count, size in zip(labels, counts, sizes, strict=True))
    return Dimensions(
        (read, (None,)), result, {1: tuple(label if count > 1 else None for label, count in zip(result, counts, strict=True))}
    )


def _broadcast(node: Node) -> Dimensions:
    sizes = output_dims(node)
    labels = labels_of("d", len(sizes))
    return Dimensions((broadcast_labels(labels, sizes, dims_of(node, 0)), (None,)), labels, {1: labels})


_MOVEMENT = (
    "BatchToSpace BatchToSpaceND Bitcast BroadcastArgs BroadcastGradientArgs BroadcastTo Cast CheckNumerics CheckNumericsV2 Concat "
    "ConcatOffset ConcatV2 Const ConjugateTranspose Copy CopyHost DataFormatDimMap DataFormatVecPermute DeepCopy DepthToSpace Diag "
    "DiagPart DynamicPartition DynamicStitch EditDistance Empty EnsureShape ExpandDims ExtractGlimpse ExtractGlimpseV2 "
    "ExtractImagePatches ExtractVolumePatches Fill Gather GatherNd GatherV2 GuaranteeConst HostConst Identity IdentityN Imag "
    "ImmutableConst InplaceUpdate InvertPermutation ListDiff MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 "
    "MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MirrorPad MirrorPadGrad OneHot OnesLike "
    "Pack Pad PadV2 ParallelConcat ParallelDynamicStitch PlaceholderWithDefault PreventGradient QuantizedConcat QuantizedConcatV2 "
    "QuantizedReshape Range Rank Real Reshape Reverse ReverseSequence ReverseV2 Roll ScatterNd "
    "Shape ShapeN Size Slice Snapshot SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze StopGradient "
    "StridedSlice StridedSliceGrad TensorScatterUpdate TensorStridedSliceUpdate Tile Transpose Unpack UnravelIndex "
    "Where ZerosLike Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 HostCast _HostCast "
    "XlaDynamicSlice XlaDynamicUpdateSlice XlaGather XlaPad XlaSharding XlaOptimizationBarrier "
    "BatchMatrixBandPart BatchMatrixDiag BatchMatrixDiagPart BatchMatrixSetDiag _EagerConst _ListToArray _ArrayToList "
)
_SPARSE_MOVEMENT = (
    "SparseConcat SparseFillEmptyRows SparseFillEmptyRowsGrad SparseReorder SparseReshape SparseSlice SparseSliceGrad SparseSplit "
    "SparseToDense SparseAddGrad SparseCross SparseCrossV2 SparseCrossHashed SparseToSparseSetOperation DenseToSparseSetOperation "
    "DenseToDenseSetOperation SetSize RaggedTensorToSparse "
    "RaggedBincount RaggedCountSparseOutput SparseCountSparseOutput DenseCountSparseOutput"
)
_UPDATES = "ScatterNdNonAliasingAdd InplaceAdd InplaceSub"
_TENSOR_SCATTERS = "TensorScatterAdd TensorScatterSub TensorScatterMin TensorScatterMax"
_SHAPES = "Shape ShapeN Size Rank BroadcastGradientArgs"

FAMILY = Family(
    flops={
        "element by element": [(f"{_TENSOR_SCATTERS} {_UPDATES}", "1 per element of the updates", on_floats(per_input(1, 2)))],
        "reduction": [("TileGrad", "elements of the input - elements of the output", on_floats(reduced))],
        "no arithmetic": [(f"{_MOVEMENT} {_SPARSE_MOVEMENT}", "0: data movement", zero)],
    },
    splits={
        "ReverseV2": along_axis,
        "SpaceToDepth DepthToSpace": rows("n--- -> n---"),
        "Reshape Squeeze ExpandDims": _reshape,
        "Transpose": _transpose,
        "ConcatV2": _concatenation,
        "Pack": _pack,
        "Unpack": _unpack,
        "Split": _cut(1, 0),
        "SplitV": _cut(0, 2),
        "Slice": _extract,
        "Pad PadV2 MirrorPad": _pad,
        "StridedSlice": _strided_slice,
        "StridedSliceGrad": _strided_slice_gradient,
        "GatherV2 Gather": _gather,
        "GatherNd": _gather_slices,
        "ScatterNd": _scatter_sum,
        f"TensorScatterUpdate {_TENSOR_SCATTERS}": _scatter,
        "OneHot": _one_hot,
        "Fill": _fill,
        "Tile": _tile,
        "BroadcastTo": _broadcast,
    },
    weights={"Gather GatherV2 GatherNd": (0,)},
    weight_passes=(
        "Identity IdentityN StopGradient Cast Bitcast Reshape Squeeze ExpandDims Transpose Split SplitV Unpack ConcatV2 Pack Slice "
        "StridedSlice Tile BroadcastTo SpaceToBatchND BatchToSpaceND"
    ),
    traffic={
        f"Const GuaranteeConst PlaceholderWithDefault {_SHAPES}": "nothing",
        "Gather GatherV2 GatherNd Slice StridedSlice Split SplitV Unpack": "rows",
        "Fill ZerosLike OnesLike Range LinSpace Empty OneHot BroadcastTo": "outputs",
    },
    bytes_per_s={
        "StridedSliceGrad": 1.4e9,
        "Cast": 1.0e10,
        "GatherV2": 1.1e10,
        "Tile": 1.2e10,
        "Transpose": 1.5e10,
        "Pad": 1.6e10,
        "ConcatV2": 2.5e10,
    },
    cheap=(
        f"Const _HostConst Identity IdentityN StopGradient PreventGradient Snapshot DebugIdentity PlaceholderWithDefault {_SHAPES} Reshape "
        "Squeeze ExpandDims EnsureShape StridedSlice StridedSliceGrad BroadcastArgs ConcatOffset"
    ),
    rows_in_data={
        "Where": "as many rows as elements are true",
        "Unique": "as many as there are different elements",
        "ListDiff": "as many elements as are left",
        "SetDiff1D": "as many elements as are left",
        "DynamicPartition": "as many as fall into each part",
        "SparseSlice": "as many as the slice holds",
        "Sparse": "as many as there are entries",
    },
)
