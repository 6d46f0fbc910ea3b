"""The split rules by op type. An op type without a rule runs whole: that costs memory, never correctness.

That an op may be cut along a dimension is a fact about its kernel, which `tests/analyze/test_split_rules.py` checks against TensorFlow's
kernels.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from graphwright.analyze.flop_rules.contraction import read_equation
from graphwright.analyze.flop_rules.rule import UnknownSizeError, dims, dims_of, output_dims, text_attribute
from graphwright.analyze.split_rules.rule import Dimensions, Labels, Rule, axes, constant, labels_of, number, whole, without
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.arithmetic import BATCH_NORMS, ELEMENTWISE
from graphwright.ir.traits.rounds import is_list

_MOST_DIMENSIONS = 8  # of the elements of a list


def rows(pattern: str, *, sums: bool = False, **sizes: str) -> Rule:
    """Return a rule for fixed ranks: `"n-- -- -> n--"` names each dimension of inputs and output by a letter, "-" if it stays whole.

    Letters other than "n" are of channels in last place; they do not hold for NCHW, nor for grouped convolutions.

    Args:
        sizes: labels of the elements of constant inputs, as `of_<input>="n--"`.
    """
    left, right = pattern.split("->")
    read = [tuple(None if letter == "-" else letter for letter in word if letter != "_") for word in left.split()]
    result = tuple(None if letter == "-" else letter for letter in right.strip() if letter != "_")
    held = {int(name.removeprefix("of_")): tuple(None if letter == "-" else letter for letter in word) for name, word in sizes.items()}

    def rule(node: Node) -> Dimensions:
        ranks = [len(dims(value)) for value in node.inputs]
        if len(read) != len(ranks) or any(len(labels) != rank for labels, rank in zip(read, ranks, strict=True)):
            raise UnknownSizeError
        shapes = [dims(value) for value in node.inputs] + [output_dims(node)]
        sizes = {pair for labels, shape in zip((*read, result), shapes, strict=True) for pair in zip(labels, shape, strict=True) if pair[0]}
        if len(sizes) == len(dict(sizes)) and not text_attribute(node, "data_format").startswith("NC"):
            return Dimensions(tuple(read), result, held, sums=sums)
        of_batch = {k: _of_batch(labels) for k, labels in held.items()}
        return Dimensions(tuple(map(_of_batch, read)), _of_batch(result), of_batch, sums=sums)

    return rule


def _of_batch(labels: Labels) -> Labels:
    return tuple(label if label == "n" else None for label in labels)


def by_elements(node: Node) -> Dimensions:
    """Element by element, with broadcasting."""
    if is_list(node.outputs[0]):
        labels = labels_of("d", _MOST_DIMENSIONS)
        return Dimensions((labels,) * len(node.inputs), labels)
    sizes = output_dims(node)
    labels = labels_of("d", len(sizes))
    return Dimensions(tuple(_broadcast(labels, sizes, dims(value)) for value in node.inputs), labels)


def select(node: Node) -> Dimensions:
    """Of the TF1 choice a vector condition applies to rows."""
    rank = len(output_dims(node))
    labels = labels_of("d", rank)
    chosen = dims_of(node, 0)
    return Dimensions((labels[: len(chosen)], labels, labels), labels)


def softmax(node: Node) -> Dimensions:
    labels = without(labels_of("d", len(output_dims(node))), {len(output_dims(node)) - 1})
    return Dimensions((labels,), labels)


def _broadcast(labels: Labels, sizes: Sequence[int], shape: Sequence[int]) -> Labels:
    front = len(sizes) - len(shape)
    if front < 0:
        raise UnknownSizeError
    return tuple(label if size == other else None for label, size, other in zip(labels[front:], shape, sizes[front:], strict=True))


def add_bias(node: Node) -> Dimensions:
    labels = labels_of("d", len(dims_of(node, 0)))
    return Dimensions((labels, (labels[_channel(node, len(labels))],)), labels)


def bias_gradient(node: Node) -> Dimensions:
    labels = labels_of("d", len(dims_of(node, 0)))
    return Dimensions((labels,), (labels[_channel(node, len(labels))],), sums=True)


def _channel(node: Node, rank: int) -> int:
    return 1 if text_attribute(node, "data_format").startswith("NC") else rank - 1


def matrix_product(node: Node) -> Dimensions:
    """Two matrices, or broadcast batches of them."""
    a, b, result = dims_of(node, 0, 2), dims_of(node, 1, 2), output_dims(node)
    flip_a = node.attrs.get("transpose_a") is True or node.attrs.get("adj_x") is True
    flip_b = node.attrs.get("transpose_b") is True or node.attrs.get("adj_y") is True
    batch = labels_of("batch", len(result) - 2)
    left = _broadcast(batch, result[:-2], a[:-2]) + (("k", "m") if flip_a else ("m", "k"))
    right = _broadcast(batch, result[:-2], b[:-2]) + (("n", "k") if flip_b else ("k", "n"))
    return Dimensions((left, right), (*batch, "m", "n"), sums=True)


def batch_norm(node: Node) -> Dimensions:
    """Inference mode: element by element."""
    if node.attrs.get("is_training") is not False or any(value.uses for value in node.outputs[1:]):
        raise UnknownSizeError
    labels = ("n", *whole(len(dims_of(node, 0)) - 1))
    return Dimensions((labels, *[(None,)] * (len(node.inputs) - 1)), labels, alone=True)


def einsum(node: Node) -> Dimensions:
    equation = text_attribute(node, "equation")
    if "." in equation:
        raise UnknownSizeError
    operands, result, _ = read_equation(equation, [dims(value) for value in node.inputs])
    if any(len(set(labels)) != len(labels) for labels in (*operands, result)):  # a diagonal
        raise UnknownSizeError
    return Dimensions(tuple(tuple(labels) for labels in operands), tuple(result), sums=True)


def reduction(*, sums: bool = False, mean: bool = False) -> Rule:
    def rule(node: Node) -> Dimensions:
        sizes = dims_of(node, 0)
        gone = axes(node, 1, len(sizes))
        labels = labels_of("d", len(sizes))
        read = labels if sums else without(labels, gone)
        result = without(labels, gone, kept=node.attrs.get("keep_dims") is True)
        divisor = math.prod(sizes[axis] for axis in gone) if mean else 1
        return Dimensions((read, whole(len(dims_of(node, 1)))), result, sums=sums, term="Sum" if mean else "", divisor=divisor)

    return rule


def half_square(node: Node) -> Dimensions:
    return Dimensions((labels_of("d", len(dims_of(node, 0))),), (), sums=True)


def along_axis(node: Node) -> Dimensions:
    """Elements depend on each other along one axis only."""
    labels = labels_of("d", len(dims_of(node, 0)))
    labels = without(labels, axes(node, 1, len(labels)))
    return Dimensions((labels, whole(len(dims_of(node, 1)))), labels)


def arg_max(node: Node) -> Dimensions:
    labels = labels_of("d", len(dims_of(node, 0)))
    gone = axes(node, 1, len(labels))
    return Dimensions((without(labels, gone), ()), without(labels, gone, kept=False))


def reshape(node: Node) -> Dimensions:
    """A dimension is kept if the product of the sizes before it is the same, even if it is merged with those after it."""
    read, result = (_by_place(shape) for shape in (dims_of(node, 0), output_dims(node)))
    others = tuple(whole(len(dims(value))) for value in node.inputs[1:])
    return Dimensions((read, *others), result, {1: result} if others and node.op_type == "Reshape" else {})


def _by_place(shape: Sequence[int]) -> Labels:
    """Return per dimension the product of the sizes before it; None for size 1."""
    return tuple(None if size == 1 else front for size, front in zip(shape, accumulate(shape, mul, initial=1), strict=False))


def transpose(node: Node) -> Dimensions:
    labels = labels_of("d", len(dims_of(node, 0)))
    order = constant(node, 1)
    return Dimensions((labels, (None,)), tuple(labels[int(axis)] for axis in order))


def concatenation(node: Node) -> Dimensions:
    rank = len(output_dims(node))
    labels = without(labels_of("d", rank), axes(node, len(node.inputs) - 1, rank))
    return Dimensions((*[labels] * (len(node.inputs) - 1), ()), labels)


def pack(node: Node) -> Dimensions:
    rank = len(output_dims(node))
    labels = without(labels_of("d", rank), {number(node, "axis") % rank})
    return Dimensions((without(labels, {number(node, "axis") % rank}, kept=False),) * len(node.inputs), labels)


def unpack(node: Node) -> Dimensions:
    rank = len(dims_of(node, 0))
    axis = {number(node, "axis") % rank}
    labels = without(labels_of("d", rank), axis)
    return Dimensions((labels,), without(labels, axis, kept=False))


def cut(value: int, axis: int) -> Rule:
    def rule(node: Node) -> Dimensions:
        rank = len(dims_of(node, value))
        labels = without(labels_of("d", rank), axes(node, axis, rank))
        return Dimensions(tuple(labels if k == value else whole(len(dims(v))) for k, v in enumerate(node.inputs)), labels)

    return rule


def extract(node: Node) -> Dimensions:
    """A slice keeps the dimensions that it takes whole."""
    sizes = dims_of(node, 0)
    taken = [begin == 0 and count in (-1, size) for begin, count, size in zip(constant(node, 1), constant(node, 2), sizes, strict=True)]
    labels = tuple(label if all_of_it else None for label, all_of_it in zip(labels_of("d", len(sizes)), taken, strict=True))
    return Dimensions((labels, (None,), (None,)), labels, {2: labels})


def pad(node: Node) -> Dimensions:
    amounts = constant(node, 1)
    labels = labels_of("d", len(amounts))
    labels = without(labels, {axis for axis, pair in enumerate(amounts) if pair.any()})
    return Dimensions((labels, *(whole(len(dims(value))) for value in node.inputs[1:])), labels)


def strided_slice(node: Node) -> Dimensions:
    read, result, ends = _strided(node, dims_of(node, 0), 1)
    return Dimensions((read, (None,), (None,), (None,)), result, {2: ends})


def strided_slice_gradient(node: Node) -> Dimensions:
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


def gather(node: Node) -> Dimensions:
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


def segments(*, sums: bool = False) -> Rule:
    def rule(node: Node) -> Dimensions:
        count = len(dims_of(node, 1))
        labels = labels_of("d", len(dims_of(node, 0)))
        rows = labels[:count] if sums else whole(count)
        return Dimensions(((*rows, *labels[count:]), rows, ()), (None, *labels[count:]), sums=sums)

    return rule


def gather_slices(node: Node) -> Dimensions:
    """Slices of a tensor at positions given by the second input, which index its first dimensions."""
    values, places = dims_of(node, 0), dims_of(node, 1, 1)
    counted, asked = places[-1], labels_of("place", len(places) - 1)
    slice_labels = labels_of("d", len(values))[counted:]
    return Dimensions(((*whole(counted), *slice_labels), (*asked, None)), (*asked, *slice_labels))


def scatter(node: Node) -> Dimensions:
    sizes, places = dims_of(node, 0), dims_of(node, 1, 1)
    labels = labels_of("d", len(sizes))
    counted = places[-1]
    labels = (*whole(counted), *labels[counted:])
    return Dimensions((labels, whole(len(places)), (*whole(len(places) - 1), *labels[counted:])), labels)


def scatter_sum(node: Node) -> Dimensions:
    places = dims_of(node, 0, 1)
    asked, slice_labels = labels_of("place", len(places) - 1), labels_of("d", len(output_dims(node)))[places[-1] :]
    result = (*whole(places[-1]), *slice_labels)
    return Dimensions(((*asked, None), (*asked, *slice_labels), (None,)), result, {2: result}, sums=True)


def top(node: Node) -> Dimensions:
    labels = without(labels_of("d", len(dims_of(node, 0))), {len(dims_of(node, 0)) - 1})
    return Dimensions((labels, ()), labels)


def one_hot(node: Node) -> Dimensions:
    labels = labels_of("d", len(dims_of(node, 0)))
    axis = number(node, "axis", -1) % (len(labels) + 1)
    return Dimensions((labels, (), (), ()), (*labels[:axis], None, *labels[axis:]))


# Lists of tensors: what is cut are dimensions of their elements.


def list_of(item: int) -> Rule:
    def rule(node: Node) -> Dimensions:
        labels = _of_element(node.inputs[item])
        return Dimensions(tuple(labels if k in (0, item) else () for k in range(len(node.inputs))), labels)

    return rule


def element_of(shape: int) -> Rule:
    def rule(node: Node) -> Dimensions:
        labels = _of_element(node.outputs[-1])
        return Dimensions((labels, *(whole(len(dims(v))) for v in node.inputs[1:])), labels, _element_sizes(node, shape, labels))

    return rule


def new_list(node: Node) -> Dimensions:
    labels = labels_of("d", _MOST_DIMENSIONS)
    return Dimensions(tuple(whole(len(dims(v))) for v in node.inputs), labels, _element_sizes(node, 0, labels))


def rows_to_list(node: Node) -> Dimensions:
    labels = labels_of("d", len(dims_of(node, 0)) - 1)
    return Dimensions(((None, *labels), whole(len(dims_of(node, 1)))), labels, _element_sizes(node, 1, labels))


def list_to_rows(node: Node) -> Dimensions:
    labels = labels_of("d", len(output_dims(node)) - 1)
    return Dimensions((labels, whole(len(dims_of(node, 1)))), (None, *labels), _element_sizes(node, 1, labels))


def list_length(node: Node) -> Dimensions:
    return Dimensions((labels_of("d", _MOST_DIMENSIONS),), output_dims(node), same=True)


def _of_element(value: Value) -> Labels:
    return labels_of("d", _MOST_DIMENSIONS if is_list(value) else len(dims(value)))


def _element_sizes(node: Node, index: int, labels: Labels) -> dict[int, Labels]:
    """Return the labels of the elements of a shape; an unknown shape is -1."""
    known = constant(node, index)
    return {index: labels[: len(known)]} if known.ndim else {}


# What is made without reading what is split: a part is made at its size.


def fill(node: Node) -> Dimensions:
    labels = labels_of("d", len(output_dims(node)))
    return Dimensions(((None,), ()), labels, {0: labels})


def tile(node: Node) -> Dimensions:
    counts, labels = constant(node, 1), labels_of("d", len(output_dims(node)))
    sizes = dims_of(node, 0)
    read = tuple(label if count == 1 else None for label, count in zip(labels, counts, strict=True))
    result = tuple(label if count == 1 or size == 1 else None for label, count, size in zip(labels, counts, sizes, strict=True))
    return Dimensions(
        (read, (None,)), result, {1: tuple(label if count > 1 else None for label, count in zip(result, counts, strict=True))}
    )


def broadcast(node: Node) -> Dimensions:
    sizes = output_dims(node)
    labels = labels_of("d", len(sizes))
    return Dimensions((_broadcast(labels, sizes, dims_of(node, 0)), (None,)), labels, {1: labels})


def draw(node: Node) -> Dimensions:
    """Philox draws a fixed number of elements per step of its counter, in memory order."""
    if int(constant(node, 3)) not in (1, 3):  # Philox, and what TensorFlow chooses by itself
        raise UnknownSizeError
    sizes = output_dims(node)
    first = next((k for k, size in enumerate(sizes) if size > 1), 0)
    labels = tuple("first" if k == first else None for k in range(len(sizes)))
    each = 16 // max(int(node.outputs[0].dtype.itemsize or 4), 4)  # a step gives 128 bits
    return Dimensions(((None,), (None,), (None,), *[()] * (len(node.inputs) - 3)), labels, {0: labels}, drawn=each)


_ELEMENTS = (
    "Cast Bitcast Identity StopGradient PreventGradient CheckNumerics Snapshot OnesLike Equal NotEqual Less LessEqual Greater GreaterEqual "
    "ApproximateEqual IsNan IsInf IsFinite BesselI0e BesselI1e NextAfter Ndtri"
)
RULES: dict[str, Rule] = {
    op_type: rule
    for names, rule in (
        (" ".join(sorted(ELEMENTWISE)), by_elements),
        (_ELEMENTS, by_elements),
        ("Select", select),
        ("Softmax LogSoftmax", softmax),
        ("BiasAdd BiasAddV1", add_bias),
        ("BiasAddGrad", bias_gradient),
        ("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3", matrix_product),
        ("Einsum", einsum),
        (" ".join(sorted(BATCH_NORMS)), batch_norm),
        ("Conv2D", rows("n--k --kc -> n--c", sums=True)),
        ("Conv3D", rows("n---k ---kc -> n---c", sums=True)),
        ("Conv2DBackpropInput", rows("- --kc n--c -> n--k", of_0="n--k", sums=True)),
        ("Conv3DBackpropInputV2", rows("- ---kc n---c -> n---k", of_0="n---k", sums=True)),
        ("Conv2DBackpropFilter", rows("n--k - n--c -> --kc", of_1="--kc", sums=True)),
        ("Conv3DBackpropFilterV2", rows("n---k - n---c -> ---kc", of_1="---kc", sums=True)),
        ("DepthwiseConv2dNative", rows("n--c --c- -> n--c")),
        ("DepthwiseConv2dNativeBackpropInput", rows("- --c- n--c -> n--c", of_0="n--c")),
        ("DepthwiseConv2dNativeBackpropFilter", rows("n--c - n--c -> --c-", of_1="--c-", sums=True)),
        ("LRN SpaceToDepth DepthToSpace", rows("n--- -> n---")),
        ("MaxPool AvgPool", rows("n--c -> n--c")),
        ("MaxPool3D AvgPool3D", rows("n---c -> n---c")),
        ("MaxPoolGrad", rows("n--c n--c n--c -> n--c")),
        ("MaxPool3DGrad", rows("n---c n---c n---c -> n---c")),
        ("AvgPoolGrad", rows("- n--c -> n--c", of_0="n--c")),
        ("AvgPool3DGrad", rows("- n---c -> n---c", of_0="n---c")),
        ("ResizeBilinear ResizeNearestNeighbor ResizeNearestNeighborGrad ResizeBicubic", rows("n--c - -> n--c")),
        ("ResizeBilinearGrad ResizeBicubicGrad", rows("n--c n--c -> n--c")),
        ("SparseSoftmaxCrossEntropyWithLogits", rows("n- n -> n")),
        ("SoftmaxCrossEntropyWithLogits", rows("n- n- -> n")),
        ("InTopKV2", rows("n- n _ -> n")),
        ("Sum", reduction(sums=True)),
        ("Mean", reduction(sums=True, mean=True)),
        ("Max Min Prod All Any", reduction()),
        ("L2Loss", half_square),
        ("ArgMax ArgMin", arg_max),
        ("Cumsum Cumprod ReverseV2", along_axis),
        ("Reshape Squeeze ExpandDims", reshape),
        ("Transpose", transpose),
        ("ConcatV2", concatenation),
        ("Pack", pack),
        ("Unpack", unpack),
        ("Split", cut(1, 0)),
        ("SplitV", cut(0, 2)),
        ("Slice", extract),
        ("Pad PadV2 MirrorPad", pad),
        ("StridedSlice", strided_slice),
        ("StridedSliceGrad", strided_slice_gradient),
        ("GatherV2 Gather", gather),
        ("UnsortedSegmentSum", segments(sums=True)),
        ("UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd", segments()),
        ("ScatterNd", scatter_sum),
        ("TensorScatterUpdate TensorScatterAdd TensorScatterSub TensorScatterMin TensorScatterMax", scatter),
        ("GatherNd", gather_slices),
        ("OneHot", one_hot),
        ("TopKV2", top),
        ("TensorListSetItem", list_of(2)),
        ("TensorListPushBack", list_of(1)),
        ("TensorListGetItem", element_of(2)),
        ("TensorListPopBack", element_of(1)),
        ("TensorListFromTensor", rows_to_list),
        ("TensorListStack", list_to_rows),
        ("TensorListReserve EmptyTensorList", new_list),
        ("TensorListLength", list_length),
        ("Fill", fill),
        ("Tile", tile),
        ("BroadcastTo", broadcast),
        ("StatelessRandomUniformV2 StatelessRandomNormalV2", draw),
    )
    for op_type in names.split()
}
"""By op type; a later entry takes the place of an earlier one."""
