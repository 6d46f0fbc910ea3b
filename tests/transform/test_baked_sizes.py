"""Sizes of a batch of 5 that operations hold: each model serves other batches as the same function does that was built for them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import graphwright as gw
from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.text import to_text
from graphwright.source.graph_def import to_graph_def
from graphwright.transform.batch_size import change_batch_size
from tests.transform.serving import random

pytestmark = pytest.mark.tensorflow
OLD = 5
W = random(6, 4, seed=1)
TABLE = random(9, 6, seed=2)


def conv_transpose(x, b):
    image = tf.reshape(x, [b, 3, 2, 1])
    return tf.nn.conv2d_transpose(image, random(2, 2, 3, 1), [b, 6, 4, 3], 2)


def tiled(x, b):
    return tf.concat([x, tf.tile(tf.constant([[1.0, 2.0]]), [b, 1])], 1)


def repeated(x, b):
    return tf.reshape(tf.repeat(x, 3, axis=0), [b * 3, 6]) @ W


def ensured(x, b):
    return tf.ensure_shape(x * 2.0, [b, 6]) - 1.0


def random_shape(x, b):
    noise = tf.random.stateless_uniform([b, 6], [1, 2])
    return x + tf.cast(noise > 2.0, tf.float32)


def one_hot_of_the_batch(x, b):
    same = tf.one_hot(tf.range(b), b)
    return tf.reduce_sum((x @ tf.transpose(x)) * (1.0 - same), 1)


def masked_sequence(x, b):
    lengths = tf.fill([b], 4)
    return x * tf.cast(tf.sequence_mask(lengths, 6), tf.float32)


def eye(x, b):
    return tf.reduce_max(x @ tf.transpose(x) - 9.0 * tf.eye(b), 1)


def zeros(x, b):
    return tf.concat([x, tf.zeros([b, 2]), tf.constant(np.full([b, 1], 7.0, np.float32))], 1)


def whole_slice(x, b):
    return (x * 2.0)[0:b] + tf.slice(x, [0, 1], [b, 1])


def halves(x, b):
    both = tf.concat([x, x * 2.0], 0)
    return both[:b] - both[b:] + tf.add_n(tf.split(both, [b, b]))


def ranges(x, b):
    return x + tf.cast(tf.range(b), tf.float32)[:, None] + tf.constant(np.arange(b, dtype=np.float32))[:, None]


def cropped(x, b):
    image = tf.reshape(x, [b, 3, 2, 1])
    boxes = tf.tile(tf.constant([[0.0, 0.0, 1.0, 1.0]]), [b, 1])
    return tf.image.crop_and_resize(image, boxes, tf.range(b), [2, 2])


def mean_by_hand(x, b):
    return x - tf.reduce_sum(x, 0) / b + tf.reduce_sum(x * x) * (1.0 / (b * 6))


def gathered_by_rows(x, b):
    best = tf.argmax(x, 1, output_type=tf.int32)
    return tf.gather_nd(x, tf.stack([tf.range(b), best], 1))


def mapped(x, b):
    return tf.map_fn(lambda row: tf.reduce_sum(row**2) * tf.ones([3]), x)


def scanned(x, b):
    return tf.scan(lambda a, row: a * 0.5 + row, x, initializer=tf.zeros([6]))


def recurrent(x, b):
    steps = tf.transpose(tf.reshape(x, [b, 3, 2]), [1, 0, 2])
    states = tf.TensorArray(tf.float32, 3, element_shape=[b, 4])

    def step(k, h, states):
        h = tf.tanh(tf.concat([steps[k], h], 1) @ W)
        return k + 1, h, states.write(k, h)

    _, _, states = tf.while_loop(lambda k, h, s: k < 3, step, [0, tf.zeros([b, 4]), states])
    return tf.reshape(tf.transpose(states.stack(), [1, 0, 2]), [b, 12])


def looped_rows(x, b):
    def step(k, rows):
        return k + 1, tf.tensor_scatter_nd_update(rows, [[k]], [x[k] * 2.0])

    return tf.while_loop(lambda k, rows: k < b, step, [0, tf.zeros([b, 6])])[1]


def sorted_examples(x, b):
    return tf.gather(x, tf.argsort(x[:, 0])) + (tf.cumsum(x) / tf.cast(tf.range(1, b + 1), tf.float32)[:, None])


@tf.function
def row_sums(x):
    return tf.reshape(tf.reduce_sum(x, 1), [x.shape[0], 1])


def called_in_a_branch(x, b):
    return tf.cond(tf.reduce_sum(x) > 1e9, lambda: row_sums(x), lambda: row_sums(x * 2.0) + tf.zeros([b, 1]))


def in_a_branch(x, b):
    return tf.cond(tf.reduce_sum(x) > 1e9, lambda: tf.zeros([b, 3]), lambda: tf.reshape(x, [b, 2, 3])[:, 0] + tf.ones([b, 1]))


def time_major(x, b):
    t = tf.transpose(tf.reshape(x, [b, 2, 3]), [1, 0, 2])
    flat = tf.reshape(t, [2 * b, 3]) @ W[:3]
    return tf.transpose(tf.reshape(flat, [2, b, 4]), [1, 0, 2])


def as_long_as_the_batch(x, b):
    square = tf.reshape(x @ random(6, 5, seed=3), [b, 5, 1])
    heads = tf.reshape(tf.reshape(square + tf.zeros([5, 1]), [b * 5, 1]) @ random(1, 5), [b, 5, 5])
    return tf.transpose(heads, [0, 2, 1]) + tf.ones([5, 5]) * tf.ones([b, 1, 5])


def gradient(x, b):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_mean(tf.square(tf.reshape(x, [b, 2, 3])[:, 1] @ W[:3]))
    return tape.gradient(y, x)


def pieces(x, b):
    return tf.stack([tf.reduce_sum(tf.nn.softmax(row) * W[:, 0]) for row in tf.unstack(x, b)])


def split_rows(x, b):
    return tf.concat([row @ W for row in tf.split(x, b)], 0)


def other_sizes_alike(x, b):
    """A batch of 5 beside 5 steps, 5 classes, 5 columns, a temperature of 5, and a table of 5 rows."""
    steps = tf.tile((x[:, :5] / 5.0)[:, :, None], [1, 1, 5])
    total = tf.while_loop(lambda k, h: k < 5, lambda k, h: (k + 1, h * 0.5 + steps[:, k]), [0, tf.zeros([b, 5])])[1]
    classes = tf.one_hot(tf.argmax(total, 1), 5)
    shares = tf.nn.softmax(tf.reshape(tf.reshape(steps, [b * 5, 5]) @ TABLE[:5, :5], [b, 5, 5]), 1) + TABLE[:5, :5]
    return classes + tf.reduce_sum(shares, 1) / 5.0 + tf.gather(TABLE[:, :5], tf.range(5))[0]


QUICK = (conv_transpose, tiled, eye, whole_slice, cropped, mean_by_hand, mapped, in_a_branch, pieces, time_major, halves)
SLOW = (
    repeated, ensured, random_shape, one_hot_of_the_batch, masked_sequence, zeros, ranges, gathered_by_rows, scanned, recurrent,
    as_long_as_the_batch, gradient, looped_rows, sorted_examples, called_in_a_branch, split_rows, other_sizes_alike,
)  # fmt: skip
MEANS = {mean_by_hand, gradient}


def traced(function, batch):
    return tf.function(lambda x: function(x, batch)).get_concrete_function(tf.TensorSpec([batch, 6], tf.float32, "x"))


def served(graph, x):
    tf_graph = tf.Graph()
    with tf_graph.as_default():
        tf.graph_util.import_graph_def(to_graph_def(graph), name="")
    [result] = graph.outputs
    with tf.compat.v1.Session(graph=tf_graph) as session:
        return session.run(result.name, {"x:0": x})


def of_function(concrete):
    return gw.load(concrete)


def frozen(concrete):
    constant = convert_variables_to_constants_v2(concrete)
    graph = gw.load(constant.graph.as_graph_def())
    graph.outputs = [graph.value(constant.outputs[0].name)]
    return graph


def check_sizes(function, load, *sizes):
    original = traced(function, OLD)
    for size in sizes:
        graph = load(original)
        change_batch_size(graph, size, means=True if function in MEANS else None)
        for batch in (10, 1) if size is None else (size,):
            x = random(batch, 6, seed=batch)
            wanted = traced(function, batch)(tf.constant(x)).numpy()
            np.testing.assert_allclose(served(graph, x), wanted, rtol=1e-4, atol=1e-5, err_msg=f"{load.__name__} {size} {batch}")


@pytest.mark.parametrize("function", [*QUICK, *(pytest.param(f, marks=pytest.mark.slow) for f in SLOW)], ids=lambda f: f.__name__)
def test_each_size_follows_the_batch(function):
    check_sizes(function, frozen if (*QUICK, *SLOW).index(function) % 2 else of_function, None)


def own_rows(x):
    return x + TABLE[:OLD]


def other_examples(x):
    return tf.reduce_sum(x[1:3], 0)


def one_example(x):
    return x * x[2]


def picked_examples(x):
    return tf.gather(x, [0, 2])


def unclear_divisor(x):
    return tf.reduce_sum(x, 0) / 10.0


def unknown_count(x):
    return tf.reshape(tf.boolean_mask(x, x > 0.0), [OLD, -1])


def state_of_one_batch(x):
    return x + STATE


def unlike_examples(x):
    return tf.stack([row * k for k, row in enumerate(tf.unstack(x))])


STATE = tf.Variable(random(OLD, 6), name="state")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (own_rows, "AddV2 'add' reads the constant 'add/y', which has a row of its own for each of 5 examples"),
        (other_examples, "StridedSlice 'strided_slice' takes examples 1 to 3 of 5"),
        (one_example, "StridedSlice 'strided_slice' reads example 2 of 5 alone"),
        (picked_examples, r"GatherV2 'GatherV2' picks examples \[0, 2\] by number"),
        (unclear_divisor, "RealDiv 'truediv' divides a sum over the batch by 10"),
        (unknown_count, "Reshape 'Reshape' brings an unknown number of elements"),
        (state_of_one_batch, "ReadVariableOp 'add/ReadVariableOp' makes 'add/ReadVariableOp:0', whose dimension 0 of size 5 has to follow"),
        (unlike_examples, "Unpack 'unstack' takes the 5 examples apart into 5 values"),
    ],
)
def test_what_cannot_be_known_is_refused_by_name(function, why):
    graph = of_function(tf.function(function).get_concrete_function(tf.TensorSpec([OLD, 6], tf.float32, "x")))
    before = to_text(graph)
    with pytest.raises(GraphError, match=why):
        change_batch_size(graph, None)
    assert to_text(graph) == before


def squeezed_example(x):
    return tf.nn.softmax(tf.reshape(x, [6]))


def number_of_the_example(x):
    return x + tf.constant([[0.0]])


def row_of_the_example(x):
    return x * tf.one_hot(tf.range(1), 6)


def steps_first(x):
    return tf.reshape(tf.transpose(tf.reshape(x, [1, 3, 2]), [1, 0, 2]), [3, 2])


def summed_example(x):
    return x - tf.reduce_sum(x, 0)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (squeezed_example, "Softmax 'Softmax' computes along dimension 0 of 'Reshape:0'"),
        (number_of_the_example, "AddV2 'add' reads 'Const:0', which may count the one example"),
        (row_of_the_example, "Mul 'mul' reads 'one_hot:0', which may count the one example"),
        (steps_first, "Reshape 'Reshape_1' brings"),
        (summed_example, "Sum 'Sum' sums over the one example"),
    ],
)
def test_a_batch_of_one_example_that_tells_too_little_is_refused(function, why):
    graph = of_function(tf.function(function).get_concrete_function(tf.TensorSpec([1, 6], tf.float32, "x")))
    with pytest.raises(GraphError, match=why):
        change_batch_size(graph, None)


def half_of_all_squares(x):
    return x + 0.5 * tf.reduce_sum(x * x)


def mean_beside_half_a_sum(x):
    return x + tf.reduce_mean(x, 0) * 0.0 + tf.reduce_sum(x * x) / 2.0


def scaled_rows(x):
    return x + tf.broadcast_to(tf.constant(TABLE[:1]), [2, 6]) / 2.0


@pytest.mark.parametrize("function", [half_of_all_squares, mean_beside_half_a_sum, scaled_rows])
def test_a_number_that_may_be_the_batch_size_is_refused_unless_it_is_stated(function):
    concrete = tf.function(function).get_concrete_function(tf.TensorSpec([2, 6], tf.float32, "x"))
    with pytest.raises(GraphError, match="divides a sum over the batch by 2") as raised:
        change_batch_size(of_function(concrete), None)
    assert "means=False" in str(raised.value)
    graph = of_function(concrete)
    change_batch_size(graph, 5, means=False)
    x = random(5, 6)
    wanted = x + TABLE[:1] / 2.0 if function is scaled_rows else x + 0.5 * (x * x).sum()
    np.testing.assert_allclose(served(graph, x), wanted, rtol=1e-5)


def test_sizes_follow_in_a_function_of_which_a_gradient_is_taken():
    from tensorflow.python.framework.function import Defun

    @Defun(tf.float32)
    def squares(x):
        return tf.reshape(tf.reshape(x, [5, 2, 3]) ** 2, [5, 6])

    with tf.Graph().as_default() as tf_graph:
        x = tf.compat.v1.placeholder(tf.float32, [5, 6], "x")
        gradient = tf.identity(tf.gradients(squares(x), x)[0], name="gradient")
    graph = gw.load(tf_graph.as_graph_def())
    graph.outputs = [graph.value(gradient.name)]
    change_batch_size(graph, None)
    np.testing.assert_allclose(served(graph, random(7, 6)), 2 * random(7, 6), rtol=1e-6)


def test_a_default_is_fed_in_another_size():
    for size in (None, 7):
        with tf.Graph().as_default() as tf_graph:
            x = tf.compat.v1.placeholder_with_default(tf.zeros([5, 6]), [5, 6], "x")
            y = tf.identity(tf.reshape(x, [30]) + 1.0, name="y")
        graph = gw.load(tf_graph.as_graph_def())
        graph.outputs = [graph.value(y.name)]
        change_batch_size(graph, size)
        np.testing.assert_allclose(served(graph, random(7, 6)), random(7, 6).reshape(-1) + 1.0)


def test_inputs_of_different_sizes():
    specs = [tf.TensorSpec([5, 6], tf.float32, "x"), tf.TensorSpec([3], tf.float32, "w")]
    concrete = tf.function(lambda x, w: tf.reshape(x, [5, 3, 2]) * w[:, None]).get_concrete_function(*specs)
    graph = of_function(concrete)
    with pytest.raises(ArgumentError, match="have different sizes"):
        change_batch_size(graph, 2, inputs=["x", "w"])
    change_batch_size(graph, None, inputs=["x"])
    assert [value.shape for value in graph.inputs] == [(None, 6), (3,)]
