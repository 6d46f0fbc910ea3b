"""That TensorFlow's kernels for the CPU write into the inputs that `in_place_pairs` names: held against where their outputs lie."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphwright.ir.traits.arithmetic import BINARY_IN_PLACE, UNARY_IN_PLACE, in_place_pairs
from graphwright.ir.traits.views import is_view
from graphwright.source.graph_def import from_graph_def

tf: Any = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow
SHAPE, IMAGES = (64, 128), (4, 8, 8, 16)
LOGICAL, BITS = ("LogicalAnd", "LogicalOr", "LogicalNot"), ("BitwiseAnd", "BitwiseOr", "BitwiseXor")


def shared(make: Callable[..., Any], *inputs: tuple[tuple[int, ...], str]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs (input, output) of an op that lie in one place when it is run on fresh tensors, and those that `in_place_pairs` names."""
    v1, place = tf.compat.v1, dict[tuple[str, int], int]()
    with tf.Graph().as_default() as graph:
        given = [v1.placeholder(dtype, shape) for shape, dtype in inputs]
        fresh = [tf.roll(one, 1, 0) for one in given]
        op = tf.nest.flatten(make(*fresh))[0].op
        readers = [tf.roll(output, 1, 0).op for output in op.outputs if output.shape.num_elements()]
        config, record = v1.ConfigProto(), v1.RunMetadata()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1
        with v1.Session(graph=graph, config=config) as session:
            values = {one: np.ones(one.shape, one.dtype.as_numpy_dtype) for one in given}
            session.run(readers, values, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata=record)
    for device in record.step_stats.dev_stats:
        for node in device.node_stats:
            for output in node.output:
                place[node.node_name, output.slot] = output.tensor_description.allocation_description.ptr
    found = [
        (i, o)
        for i, one in enumerate(fresh)
        for o in range(len(op.outputs))
        if (op.name, o) in place and place[op.name, o] == place[one.op.name, 0] != 0
    ]
    return found, list(in_place_pairs(from_graph_def(graph.as_graph_def())[op.name]))


def call(op_type: str) -> Callable[..., Any]:
    """The op on tensors, in the order of its arguments."""
    op = getattr(tf.raw_ops, op_type)
    names = list(inspect.signature(op).parameters)
    return lambda *tensors: op(**dict(zip(names, tensors, strict=False)))


@pytest.mark.parametrize("op_type", sorted(UNARY_IN_PLACE | BINARY_IN_PLACE))
def test_what_goes_by_elements_is_written_into_the_first_input(op_type: str) -> None:
    dtype = "bool" if op_type in LOGICAL else "int32" if op_type in BITS else "float32"
    rest = [((128,), dtype)] if op_type.startswith("BiasAdd") else [(SHAPE, dtype)] * (op_type in BINARY_IN_PLACE)
    make = call(op_type) if op_type != "ClipByValue" else lambda x: tf.raw_ops.ClipByValue(t=x, clip_value_min=0.0, clip_value_max=1.0)
    found, named = shared(make, (SHAPE, dtype), *rest)
    assert found == [(0, 0)] == named[:1]


def test_the_second_input_serves_where_the_first_is_another_size() -> None:
    assert shared(call("Mul"), ((128,), "float32"), (SHAPE, "float32"))[0] == [(1, 0)]


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda a, b, c: tf.raw_ops.AddN(inputs=[a, b, c]), [(SHAPE, "float32")] * 3),
        (call("SelectV2"), [(SHAPE, "bool"), (SHAPE, "float32"), (SHAPE, "float32")]),
        (call("Select"), [(SHAPE, "bool"), (SHAPE, "float32"), (SHAPE, "float32")]),
        (call("SoftmaxCrossEntropyWithLogits"), [(SHAPE, "float32")] * 2),
        (call("SparseSoftmaxCrossEntropyWithLogits"), [(SHAPE, "float32"), ((64,), "int32")]),
    ],
)
def test_others_are_written_where_it_is_said_first(make: Callable[..., Any], inputs: list[tuple[tuple[int, ...], str]]) -> None:
    found, named = shared(make, *inputs)
    assert found == named[:1] != []


@pytest.mark.parametrize("training", [True, False])
def test_batch_norms_hold_their_input_and_write_elsewhere(training: bool) -> None:
    def forward(x: Any, s: Any) -> Any:
        kept = s[:0] if training else s
        return tf.raw_ops.FusedBatchNormV3(x=x, scale=s, offset=s, mean=kept, variance=kept, is_training=training)

    def backward(dy: Any, x: Any, s: Any) -> Any:
        kept = {"reserve_space_1": s, "reserve_space_2": s, "reserve_space_3": s[:0]}
        return tf.raw_ops.FusedBatchNormGradV3(y_backprop=dy, x=x, scale=s, **kept, is_training=training)

    images, channels = (IMAGES, "float32"), ((16,), "float32")
    assert shared(forward, images, channels) == ([], [])
    assert shared(backward, images, images, channels) == ([], [])


def _place(make: Callable[..., Any], shape: tuple[int, ...]) -> tuple[bool, bool]:
    """Whether an op's outputs lie within its input when it runs, and whether `is_view` says so."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        fresh = tf.roll(v1.placeholder(tf.float32, shape, "x"), 1, 0)
        op = tf.nest.flatten(make(fresh))[0].op
        readers = [tf.roll(output, 1, 0).op for output in op.outputs]
        config, record = v1.ConfigProto(), v1.RunMetadata()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1
        with v1.Session(graph=graph, config=config) as session:
            options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
            session.run(readers, {"x:0": np.ones(shape, np.float32)}, options=options, run_metadata=record)
    lies: dict[str, list[int]] = {}
    for node in record.step_stats.dev_stats[0].node_stats:
        lies[node.node_name] = [output.tensor_description.allocation_description.ptr for output in node.output]
    start, end = lies[fresh.op.name][0], lies[fresh.op.name][0] + 4 * int(np.prod(shape))
    return all(start <= pointer < end for pointer in lies[op.name]), is_view(from_graph_def(graph.as_graph_def(add_shapes=True))[op.name])


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda x: x[0], (8, 48)),
        (lambda x: x[:3], (8, 4, 16)),
        (lambda x: x[5:7], (8, 48)),
        (lambda x: x[3:], (8, 5)),
        (lambda x: x[::2], (8, 48)),
        (lambda x: x[:, :16], (8, 48)),
        (lambda x: x[:, 0], (16, 16, 16)),
        (lambda x: x[tf.newaxis, 1:3], (8, 48)),
        (lambda x: x[..., 2:4, :], (8, 48)),
        (lambda x: x[16:32], (64,)),
        (lambda x: tf.slice(x, [2, 0], [3, 48]), (8, 48)),
        (lambda x: tf.slice(x, [2, 0], [3, 16]), (8, 48)),
        (lambda x: tf.split(x, 4, axis=0), (8, 48)),
        (lambda x: tf.split(x, 3, axis=1), (8, 48)),
        (lambda x: tf.split(x, [2, 6], axis=0), (8, 48)),
        (lambda x: tf.unstack(x), (8, 48)),
        (lambda x: tf.unstack(x), (8, 5)),
        (lambda x: tf.unstack(x, axis=1), (8, 48)),
    ],
)
def test_rows_of_a_tensor_share_its_storage(make: Callable[..., Any], shape: tuple[int, ...]) -> None:
    shares, told = _place(make, shape)
    assert told <= shares, "a copy is taken for a view"
    assert told == shares or len(shape) == 1 or any(word in inspect.getsource(make) for word in ("newaxis", "..."))
