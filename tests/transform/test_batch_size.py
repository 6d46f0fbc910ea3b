"""Batch sizes that were written down in many ways: fed with another size, each row is what the original makes of it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import graphwright as gw
from graphwright.transform.batch_size import change_batch_size
from tests.transform.serving import inferring, random, serve, traced

pytestmark = pytest.mark.tensorflow


def made_of_constants(x):
    """What `tf.shape` of a known shape leaves behind: a constant, sliced and packed."""
    shape = tf.constant([3, 4, 2])
    return tf.reshape(tf.matmul(tf.reshape(x, [shape[0] * shape[1], 2]), random(2, 5)), tf.stack([shape[0], shape[1], 5]))


def with_a_free_dimension(x):
    return tf.reshape(x * 2.0, [3, -1])


def in_a_loop(x):
    def step(k, h):
        return k + 1, tf.reshape(tf.reshape(h, [12, 2]) * 2.0, [3, 4, 2])

    return tf.while_loop(lambda k, h: k < 3, step, [0, x])[1] + 1.0


FUNCTIONS = (made_of_constants, with_a_free_dimension, in_a_loop)


@pytest.mark.parametrize("size", [None, 5, 1])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_row_stays_what_it_is(function, size):
    spec = tf.TensorSpec([3, 4, 2], tf.float32, "x")
    graph, original = inferring(traced(function, spec)), traced(function, spec)
    change_batch_size(graph, size)
    x = random(5, 4, 2, seed=4)
    rows = serve(original, {"x": x[:3]})["output_0"]
    if size is None or size == 5:
        got = serve(graph, {"x": x}, grappler=True)["output_0"]
        assert got.shape == (5, *rows.shape[1:])
        np.testing.assert_allclose(got[:3], rows, rtol=1e-6)
    if size is None or size == 1:
        np.testing.assert_allclose(serve(graph, {"x": x[:1]}, grappler=True)["output_0"], rows[:1], rtol=1e-6)


def test_a_model_with_a_fixed_batch_in_a_saved_model(tmp_path):
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input(batch_shape=(2, 6, 6, 3))
    y = keras.layers.Conv2D(4, 3)(inputs)
    y = keras.layers.Reshape((16, 4))(y)
    y = keras.layers.Dense(3)(y)
    model = keras.Model(inputs, keras.layers.Flatten()(y))
    model.export(tmp_path / "model", verbose=False)
    graph = gw.load(tmp_path / "model")
    change_batch_size(graph, None)
    gw.write(graph, tmp_path / "free")
    served = tf.saved_model.load(tmp_path / "free").signatures["serving_default"]
    x = random(5, 6, 6, 3)
    [name] = served.structured_input_signature[1]
    [got] = served(**{name: tf.constant(x)}).values()
    np.testing.assert_allclose(got[:2], model(x[:2]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[3:], model(x[3:]), rtol=1e-4, atol=1e-5)


def test_other_constants_that_begin_with_the_same_number_stay():
    def function(x):
        weights = tf.reshape(tf.constant(random(6)), [3, 2])
        return x @ tf.transpose(weights) + tf.reshape(tf.reduce_sum(x, 0) * 0.0, [1, 4, 2])[..., :1]

    spec = tf.TensorSpec([3, 4, 2], tf.float32, "x")
    graph, original = inferring(traced(function, spec)), traced(function, spec)
    change_batch_size(graph, None)
    x = random(3, 4, 2)
    np.testing.assert_allclose(serve(graph, {"x": x})["output_0"], serve(original, {"x": x})["output_0"], rtol=1e-6)
    assert serve(graph, {"x": x[:1]})["output_0"].shape == (1, 4, 3)
