"""Each rule of splitting is held against TensorFlow's kernel: what runs in parts, even and uneven ones, gives what the whole gives."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from graphwright.ir.constants import constant_array
from graphwright.ir.graph import DTYPES, Graph, Node, Value
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import PART_OF
from graphwright.ops.catalog import SPLITS
from graphwright.ops.elementwise import by_elements
from graphwright.source.concrete_function import from_concrete_function
from graphwright.source.registry_rule import default_attributes
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.proof import Original
from tests.transform.parts import split_step

pytestmark = pytest.mark.tensorflow

tf: Any = importlib.import_module("tensorflow")
raw: Any = tf.raw_ops
B = 6  # examples


def _arrays(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
    rng = np.random.default_rng(7)
    return tuple(tf.constant(rng.uniform(0.1, 0.9, shape)) for shape in shapes)


def _products(x: Any, y: Any) -> tuple[Any, ...]:
    """x [B, 4, 5], y [B, 5, 4]"""
    w = tf.reshape(tf.range(20, dtype=x.dtype), (5, 4))
    rows, columns = x[:, 0], y[:, :, 0]
    scores = tf.matmul(rows, columns, transpose_b=True)  # of each example by each other one: parts read all columns
    return (
        scores,
        tf.matmul(tf.tanh(scores), rows),
        tf.matmul(scores, tf.tanh(rows), transpose_a=True),
        tf.matmul(rows, w),
        tf.matmul(rows, columns, transpose_a=True),  # a term per part
        tf.matmul(w, rows, transpose_a=True, transpose_b=True),  # parts are columns
        raw.BatchMatMul(x=x, y=y),
        raw.BatchMatMulV2(x=x, y=w),
        raw.BatchMatMulV3(x=tf.transpose(x, (1, 0, 2)), y=w, Tout=x.dtype),
        tf.einsum("bij,bjk->bik", x, y),
        tf.einsum("bij,bjk->ik", x, y),
        tf.nn.l2_loss(x),
        tf.nn.bias_add(x, tf.range(5, dtype=x.dtype)),
        raw.BiasAddV1(value=x, bias=tf.range(5, dtype=x.dtype)),
        raw.BiasAddGrad(out_backprop=x),
    )


def _images(x: Any, y: Any) -> tuple[Any, ...]:
    """x [B, 4, 4, 2], y [B, 2, 4, 4, 2]"""
    y = tf.cast(y, tf.float32)  # which pools of volumes ask for
    two = {"strides": [1, 2, 2, 1], "padding": "SAME"}
    three = {"strides": [1, 1, 2, 2, 1], "padding": "SAME"}
    pool2, pool3 = {"ksize": [1, 2, 2, 1], **two}, {"ksize": [1, 1, 2, 2, 1], **three}
    kernel, volume = tf.ones((3, 3, 2, 2), x.dtype), tf.ones((1, 3, 3, 2, 2))
    conv, conv3 = raw.Conv2D(input=x, filter=kernel, **two), raw.Conv3D(input=y, filter=volume, **three)
    deep = raw.DepthwiseConv2dNative(input=x, filter=kernel, **two)
    pool, pooled3 = raw.MaxPool(input=x, **pool2), raw.MaxPool3D(input=y, **pool3)
    x32, size = tf.cast(x, tf.float32), tf.constant([8, 8])
    each, norms = tf.constant([0.5, 2.0]), (raw.FusedBatchNorm, raw.FusedBatchNormV2, raw.FusedBatchNormV3)
    return (
        conv,
        conv3,
        deep,
        raw.Conv2DBackpropInput(input_sizes=x.shape, filter=kernel, out_backprop=conv, **two),
        raw.Conv2DBackpropFilter(input=x, filter_sizes=kernel.shape, out_backprop=conv, **two),
        raw.Conv3DBackpropInputV2(input_sizes=y.shape, filter=volume, out_backprop=conv3, **three),
        raw.Conv3DBackpropFilterV2(input=y, filter_sizes=volume.shape, out_backprop=conv3, **three),
        raw.DepthwiseConv2dNativeBackpropInput(input_sizes=x.shape, filter=kernel, out_backprop=deep, **two),
        raw.DepthwiseConv2dNativeBackpropFilter(input=x, filter_sizes=kernel.shape, out_backprop=deep, **two),
        pool,
        pooled3,
        raw.MaxPoolGrad(orig_input=x, orig_output=pool, grad=2 * pool, **pool2),
        raw.MaxPool3DGrad(orig_input=y, orig_output=pooled3, grad=2 * pooled3, **pool3),
        raw.AvgPool(value=x, **pool2),
        raw.AvgPool3D(input=y, **pool3),
        raw.AvgPoolGrad(orig_input_shape=x.shape, grad=pool, **pool2),
        raw.AvgPool3DGrad(orig_input_shape=y.shape, grad=pooled3, **pool3),
        raw.LRN(input=x32),
        *(op(x=x32, scale=each, offset=each, mean=each, variance=each, is_training=False)[0] for op in norms),
        raw.SpaceToDepth(input=x, block_size=2),
        raw.DepthToSpace(input=tf.concat([x, x], 3), block_size=2),
        raw.ResizeBilinear(images=x32, size=size),
        raw.ResizeBicubic(images=x32, size=size),
        raw.ResizeNearestNeighbor(images=x, size=size),
        raw.ResizeBilinearGrad(grads=tf.image.resize(x32, (8, 8)), original_image=x32),
        raw.ResizeBicubicGrad(grads=tf.image.resize(x32, (8, 8)), original_image=x32),
        raw.ResizeNearestNeighborGrad(grads=x, size=[2, 2]),
    )


def _channels(x: Any, y: Any) -> tuple[Any, ...]:
    """x [B, 4, 4, 2], y [B, 2, 4, 4, 2]: what is split are channels, of inputs, of filters, and of both."""
    x, y = tf.transpose(x, (3, 1, 2, 0)), tf.cast(tf.transpose(y, (4, 1, 2, 3, 0)), tf.float32)
    two = {"strides": [1, 2, 2, 1], "padding": "SAME"}
    three = {"strides": [1, 1, 2, 2, 1], "padding": "SAME"}
    pool2, pool3 = {"ksize": [1, 2, 2, 1], **two}, {"ksize": [1, 1, 2, 2, 1], **three}
    corner, corner3 = x[:, :3, :3], y[:, :1, :3, :3]
    from_many, to_many, each = (tf.transpose(corner, order) for order in ((1, 2, 3, 0), (1, 2, 0, 3), (1, 2, 3, 0)))
    from_many3, to_many3 = (tf.transpose(corner3, order) for order in ((1, 2, 3, 4, 0), (1, 2, 3, 0, 4)))
    few, few3 = raw.Conv2D(input=x, filter=from_many, **two), raw.Conv3D(input=y, filter=from_many3, **three)
    many, many3 = raw.Conv2D(input=few, filter=to_many, **two), raw.Conv3D(input=few3, filter=to_many3, **three)
    deep = raw.DepthwiseConv2dNative(input=x, filter=each[:, :, :, :1], **two)
    pool, pool3d, x32, size = raw.MaxPool(input=x, **pool2), raw.MaxPool3D(input=y, **pool3), tf.cast(x, tf.float32), tf.constant([8, 8])
    return (
        many,
        many3,
        deep,
        raw.DepthwiseConv2dNative(input=x, filter=each, **two),  # two of each: the channels of the result are not those of the input
        raw.Conv2DBackpropInput(input_sizes=x.shape, filter=from_many, out_backprop=few, **two),
        raw.Conv2DBackpropInput(input_sizes=few.shape, filter=to_many, out_backprop=many, **two),
        raw.Conv2DBackpropFilter(input=x, filter_sizes=from_many.shape, out_backprop=few, **two),
        raw.Conv2DBackpropFilter(input=few, filter_sizes=to_many.shape, out_backprop=many, **two),
        raw.Conv3DBackpropInputV2(input_sizes=few3.shape, filter=to_many3, out_backprop=many3, **three),
        raw.Conv3DBackpropFilterV2(input=y, filter_sizes=from_many3.shape, out_backprop=few3, **three),
        raw.DepthwiseConv2dNativeBackpropInput(input_sizes=x.shape, filter=each[:, :, :, :1], out_backprop=deep, **two),
        raw.DepthwiseConv2dNativeBackpropFilter(input=x, filter_sizes=(3, 3, B, 1), out_backprop=deep, **two),
        pool,
        pool3d,
        raw.MaxPoolGrad(orig_input=x, orig_output=pool, grad=2 * pool, **pool2),
        raw.MaxPool3DGrad(orig_input=y, orig_output=pool3d, grad=2 * pool3d, **pool3),
        raw.AvgPoolGrad(orig_input_shape=x.shape, grad=raw.AvgPool(value=x, **pool2), **pool2),
        raw.AvgPool3DGrad(orig_input_shape=y.shape, grad=raw.AvgPool3D(input=y, **pool3), **pool3),
        raw.ResizeBicubic(images=x32, size=size),
        raw.ResizeBilinearGrad(grads=tf.image.resize(x32, (8, 8)), original_image=x32),
    )


def _reductions(x: Any, y: Any) -> tuple[Any, ...]:
    """x [B, 4, 5], y [B, 4]"""
    labels = tf.cast(10 * y[:, 0], tf.int32) % 4
    segments = (raw.UnsortedSegmentSum, raw.UnsortedSegmentMax, raw.UnsortedSegmentMin, raw.UnsortedSegmentProd)
    return (
        *(op(x, axis) for op in (tf.reduce_sum, tf.reduce_mean) for axis in (0, 1, (0, -1), None)),
        tf.reduce_mean(x, (0, 1), keepdims=True),
        *(op(x, axis) for op in (tf.reduce_max, tf.reduce_min, tf.reduce_prod) for axis in (1, (1, 2))),
        tf.reduce_all(x > 0.5, 1),
        tf.reduce_any(x > 0.5, 1),
        tf.argmax(x, 1),
        tf.argmin(x, -1),
        tf.cumsum(x, 1),
        tf.math.cumprod(x, -1),
        tf.reverse(x, [1]),
        tf.nn.softmax(x),
        tf.nn.log_softmax(y),
        *raw.SparseSoftmaxCrossEntropyWithLogits(features=y, labels=labels),
        *raw.SoftmaxCrossEntropyWithLogits(features=y, labels=tf.nn.softmax(y)),
        raw.InTopKV2(predictions=tf.cast(y, tf.float32), targets=labels, k=2),
        raw.UnsortedSegmentSum(data=x, segment_ids=labels, num_segments=4),
        *(op(data=tf.transpose(x, (1, 0, 2)), segment_ids=[0, 2, 2, 0], num_segments=3) for op in segments),
        *tf.math.top_k(x, 2),
        tf.one_hot(labels, 4),
        tf.one_hot(labels, 4, axis=0),
    )


def _movement(x: Any, y: Any) -> tuple[Any, ...]:
    """x [B, 4, 5], y [B, 4]"""
    merged = tf.reshape(x, (4 * B, 5))
    sliced = x[:, 1:3, ::2]
    table = tf.reshape(tf.range(12, dtype=x.dtype), (4, 3))
    rows = tf.cast(10 * y, tf.int32) % 4
    return (
        tf.reshape(tf.tanh(merged), (B, 20)),
        tf.squeeze(tf.tanh(tf.expand_dims(x, 0)), 0),
        tf.tanh(tf.transpose(x, (2, 0, 1))),
        tf.concat([x, 2 * x], 1),
        tf.concat([tf.transpose(y), tf.transpose(y)], -2),
        tf.stack([y, 2 * y], 1),
        *tf.unstack(x, axis=1),
        *tf.split(x, 2, axis=1),
        *tf.split(x, [1, 4], axis=2),
        raw.Slice(input=x, begin=[0, 1, 0], size=[B, 2, -1]),
        tf.pad(x, [[0, 0], [1, 1], [0, 2]]),
        raw.PadV2(input=x, paddings=[[0, 0], [1, 1], [0, 2]], constant_values=tf.constant(3.0, x.dtype)),
        tf.pad(x, [[0, 0], [1, 1], [0, 2]], "REFLECT"),
        sliced,
        x[:, 0, tf.newaxis],
        raw.StridedSlice(input=x, begin=[0, 1], end=[B, 3], strides=[1, 1]),
        raw.StridedSliceGrad(shape=[B, 4, 5], begin=[0, 1, 0], end=[B, 3, 5], strides=[1, 1, 2], dy=sliced),
        tf.gather(table, rows),
        tf.gather(x, [0, 2], axis=1),
        tf.gather(x, rows, axis=1, batch_dims=1),
        raw.Gather(params=table, indices=rows),
        tf.where(x > 0.5, x, 0.0),
        raw.Select(condition=x > 0.5, x=x, y=-x),
        raw.Select(condition=y[:, 0] > 0.5, x=x, y=-x),
        tf.cast(x, tf.float32),
    )


def _sources(x: Any, y: Any) -> tuple[Any, ...]:
    """x [B, 4, 5], y [B, 4]: what they are added to is split, so they are made in parts."""
    seed = tf.cast(tf.stack([y[0, 0] * 0 + 3, 5]), tf.int32)  # known when it runs
    row = y[0] * 0 + tf.range(4, dtype=y.dtype)  # read whole
    return (
        x + raw.Fill(dims=[B, 4, 5], value=row[0]),
        y + raw.Tile(input=row[tf.newaxis], multiples=[B, 1]),
        y + raw.BroadcastTo(input=row, shape=[B, 4]),
        x + tf.random.stateless_uniform((B, 4, 5), seed, dtype=tf.float64),
        tf.cast(x[:, :, :4], tf.float32) * tf.random.stateless_normal((B, 4, 4), seed),
        tf.cast(x[:, 0, :3], tf.float32) * tf.random.stateless_uniform((B, 3), seed),  # 3 numbers are no step of the counter: drawn whole
        tf.cast(x, tf.float32) * tf.random.stateless_truncated_normal((B, 4, 5), seed),
        x + tf.reshape(tf.range(20 * B, dtype=x.dtype), (B, 4, 5)),  # a constant
    )


def _lists(x: Any, y: Any) -> tuple[Any, ...]:
    """x [B, 4, 5], y [B, 4]; elements are [B, 5]"""
    shape = tf.constant([B, 5])
    rows = raw.TensorListFromTensor(tensor=tf.transpose(x, (1, 0, 2)), element_shape=shape)
    third = raw.TensorListGetItem(input_handle=rows, index=2, element_shape=shape, element_dtype=x.dtype)
    made = raw.TensorListReserve(element_shape=shape, num_elements=4, element_dtype=x.dtype)
    made = raw.TensorListSetItem(input_handle=made, index=1, item=third)
    empty = raw.EmptyTensorList(element_shape=shape, max_num_elements=-1, element_dtype=x.dtype)
    pushed = raw.TensorListPushBack(input_handle=raw.TensorListPushBack(input_handle=empty, tensor=third), tensor=x[:, 3])
    left, last = raw.TensorListPopBack(input_handle=pushed, element_shape=shape, element_dtype=x.dtype)
    return (
        raw.TensorListStack(input_handle=made, element_shape=shape, element_dtype=x.dtype, num_elements=4),
        last + raw.TensorListStack(input_handle=left, element_shape=shape, element_dtype=x.dtype, num_elements=1)[0],
        tf.cast(raw.TensorListLength(input_handle=rows), x.dtype) * y,
    )


def _slices(x: Any, y: Any) -> tuple[Any, ...]:
    """x [B, 4, 5], y [B, 4]"""
    columns, places = tf.transpose(x, (1, 0, 2)), tf.constant([[2], [0]])
    changed = {"tensor": columns, "indices": places, "updates": columns[:2] * 2}
    scatters = (raw.TensorScatterUpdate, raw.TensorScatterAdd, raw.TensorScatterSub, raw.TensorScatterMin, raw.TensorScatterMax)
    of_each = raw.GatherNd(params=tf.range(4, dtype=x.dtype), indices=tf.cast(y[:, :, tf.newaxis] * 3, tf.int32))
    summed = raw.ScatterNd(indices=tf.cast(y[:, :2] * 3, tf.int32), updates=x[:, 0], shape=[3, 3, 5])
    kept = raw.ScatterNd(indices=[[2], [0], [2], [1]], updates=columns, shape=[3, B, 5])
    return (raw.GatherNd(params=columns, indices=places), of_each, summed, kept, *(scatter(**changed) for scatter in scatters))


FAMILIES: dict[str, tuple[Callable[..., tuple[Any, ...]], tuple[tuple[int, ...], ...], set[str]]] = {
    "products": (_products, ((B, 4, 5), (B, 5, 4)), set()),
    "images": (_images, ((B, 4, 4, 2), (B, 2, 4, 4, 2)), set()),
    "channels": (_channels, ((B, 4, 4, 2), (B, 2, 4, 4, 2)), {"DepthwiseConv2dNative"}),
    "reductions": (_reductions, ((B, 4, 5), (B, 4)), set()),
    "movement": (_movement, ((B, 4, 5), (B, 4)), set()),
    "lists": (_lists, ((B, 4, 5), (B, 4)), set()),
    "slices": (_slices, ((B, 4, 5), (B, 4)), set()),
    "sources": (_sources, ((B, 4, 5), (B, 4)), {"StridedSlice"}),
}
"""What is computed, of what, and the op types that have to gather: `y[0]` reads one example, two results of each channel are merged."""


def _in_parts() -> list[Any]:
    """Each family in even and in uneven parts; by default one after the other in these and in those."""
    pairs = [(family, parts, parts == (2, 4)[k % 2]) for k, family in enumerate(FAMILIES) for parts in (2, 4)]
    return [pytest.param(family, parts, marks=() if quick else pytest.mark.slow) for family, parts, quick in pairs]


@pytest.mark.parametrize(("family", "parts"), _in_parts())
def test_parts_give_what_the_whole_gives(family: str, parts: int) -> None:
    function, shapes, gathered = FAMILIES[family]
    inputs = _arrays(*shapes)
    step = tf.function(function)
    found = split_step(step, inputs, parts)
    assert set(found.gathered) <= gathered
    whole, split = step(*inputs), found.function(*inputs)
    for k, (expected, given) in enumerate(zip(whole, split, strict=True)):
        tolerance = 1e-5 if expected.dtype == tf.float32 else 1e-13
        np.testing.assert_allclose(given, expected, rtol=tolerance, atol=tolerance, err_msg=f"output {k}, {expected}")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_proof_takes_parts_of_all_op_types_and_nothing_else(family: str) -> None:
    """Whatever TensorFlow knows of shapes in the function: of what looks rows of variables up it knows none."""
    function, shapes, _ = FAMILIES[family]
    found = split_step(tf.function(function), _arrays(*shapes), 2)
    flat = found.flat
    original = Original(flat.graph, flat.purity, default_attributes, parts=True)
    graph, _ = from_concrete_function(found.function, planned=False)
    purity = Purity(graph, stateful_op_types(graph))
    assert original.compare(graph, purity).equal
    for node in graph.nodes:
        for value in node.outputs:
            value.shape = None
    proof = original.compare(graph, purity)
    assert proof.equal, proof.difference
    tested = set[tuple[str, int]]()
    for first, second in _copies(graph):
        for k, value in enumerate(second.inputs):
            other = first.inputs[k]
            if (second.op_type, k) in tested or _is_same(value, other):
                continue
            graph.replace_input(second, k, other)
            assert not original.compare(graph, purity).equal, (second.name, k)
            graph.replace_input(second, k, value)
            tested.add((second.op_type, k))
    assert len(tested) > 3


def _copies(graph: Graph) -> list[tuple[Node, Node]]:
    """The two copies of nodes that run in parts; of a value that is the same for all parts nobody reads the second one."""
    copies: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if PART_OF in node.attrs:
            copies.setdefault(node.attrs[PART_OF], []).append(node)
    return [(both[0], both[1]) for both in copies.values() if len(both) == 2]


def _is_same(value: Value, other: Value) -> bool:
    arrays = [constant_array(v.producer) for v in (value, other)]
    return value is other or (all(array is not None for array in arrays) and np.array_equal(*arrays))


@pytest.mark.parametrize(
    ("filters", "layout", "made"),
    [
        ((3, 3, 6, 4), b"NHWC", ("n", None, None, "c")),
        ((3, 3, 3, 4), b"NHWC", ("n", None, None, None)),  # in two groups
        ((3, 3, 6, 4), b"NCHW", ("n", None, None, None)),
    ],
)
def test_channels_that_are_in_groups_or_come_second_stay_whole(filters: tuple[int, ...], layout: bytes, made: tuple[Any, ...]) -> None:
    graph, f32 = Graph(), DTYPES["float32"]
    shape, result = ((2, 6, 8, 8), (2, 4, 8, 8)) if layout == b"NCHW" else ((2, 8, 8, 6), (2, 8, 8, 4))
    x, w = (graph.add_node("Placeholder", name, output_types=[(f32, size)]).outputs[0] for name, size in (("x", shape), ("w", filters)))
    node = graph.add_node("Conv2D", "y", inputs=[x, w], attrs={"data_format": layout}, output_types=[(f32, result)])
    assert SPLITS[node.op_type](node).output == made


def test_all_rules_are_tested() -> None:
    tested = {"Identity"}
    for function, shapes, _ in FAMILIES.values():
        graph = tf.function(function).get_concrete_function(*_arrays(*shapes)).graph
        tested |= {op.type for op in graph.get_operations()}
    assert {name for name, rule in SPLITS.items() if rule is not by_elements} <= tested


def test_elements_do_not_depend_on_each_other() -> None:
    """But for a rounding: kernels compute what does not fill a vector register in another way."""
    x = _arrays((B, 3))[0]
    tested = 0
    for op_type in sorted(name for name, rule in SPLITS.items() if rule is by_elements and hasattr(raw, name)):
        op = getattr(raw, op_type)
        names = [name for name, parameter in inspect.signature(op).parameters.items() if parameter.default is parameter.empty]
        for cast in (lambda v: v, lambda v: tf.cast(10 * v, tf.int32), lambda v: v > 0.5):
            try:
                whole = _called(op, names, cast(x))
            except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.NotFoundError, TypeError, ValueError):
                continue
            parts = [_called(op, names, cast(x[a:b])) for a, b in ((0, 1), (1, 4), (4, B))]
            np.testing.assert_allclose(tf.concat(parts, 0), whole, rtol=1e-15, err_msg=op_type)
            tested += 1
            break
        else:
            pytest.fail(f"{op_type} takes none of these types")
    assert tested > 90


def _called(op: Any, names: list[str], x: Any) -> Any:
    """The op on arguments that are all made of one; lists where the op takes a list, a type where it asks for one."""
    given: dict[str, Any] = {}
    for k, name in enumerate(names):
        given[name] = x * (k + 1) if x.dtype in (tf.float64, tf.int32) and k else x
    if op is raw.AddN:
        return op(inputs=[x, 2 * x])
    if op is raw.Bitcast:
        return op(input=x, type=tf.int64)
    if op is raw.Cast:
        return op(x=x, DstT=tf.float32)
    if op in (raw.CheckNumerics, raw.ApproximateEqual):
        return op(**(given | {"message": ""} if "message" in names else given))
    if op is raw.ClipByValue:
        return op(t=x, clip_value_min=tf.constant(0.3, x.dtype), clip_value_max=tf.constant(0.6, x.dtype))
    if op in (raw.Select, raw.SelectV2):
        return op(**(given | {"condition": tf.cast(x, tf.float64) > 0.5}))
    return op(**given)


@pytest.mark.parametrize(("is_training", "read"), [(True, 0), (False, 1)])
def test_a_batch_norm_whose_statistics_are_made_or_read_runs_whole(is_training: bool, read: int) -> None:
    def step(x: Any) -> Any:
        ones = tf.ones(2)
        made = raw.FusedBatchNormV3(
            x=tf.tanh(x),
            scale=ones,
            offset=ones,
            mean=ones[:0] if is_training else ones,
            variance=ones[:0] if is_training else ones,
            is_training=is_training,
        )
        return tf.tanh(made[0]), tf.tanh(made[read])

    x = tf.cast(_arrays((B, 4, 4, 2))[0], tf.float32)
    found = split_step(tf.function(step), (x,), 2)
    assert found.gathered == ["FusedBatchNormV3"]
    for expected, given in zip(step(x), found.function(x), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-6)
