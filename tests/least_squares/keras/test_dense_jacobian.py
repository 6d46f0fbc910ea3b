"""Jacobians layer by layer are those that TensorFlow finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

from graphwright.least_squares.keras.dense_jacobian import dense_jacobian, dense_layers  # noqa: E402

dense = keras.layers.Dense
RANDOM = np.random.default_rng(3)


def sequence() -> Any:
    """A layer on each place of a sequence, a shared one, and one whose outputs do not count."""
    inputs = keras.Input((4, 3), dtype="float64")
    shared = dense(3, "tanh", dtype="float64")
    hidden = keras.layers.Add(dtype="float64")([shared(inputs), shared(shared(inputs))])
    pooled = keras.layers.GlobalAveragePooling1D(dtype="float64")(hidden)
    return keras.Model(inputs, [dense(2, dtype="float64", use_bias=False)(pooled), dense(1, dtype="float64")(pooled)])


def network(outputs: int) -> Any:
    within = keras.Sequential([keras.Input((5,), dtype="float64"), dense(4, "softplus", dtype="float64")])
    last = dense(outputs, "softmax" if outputs > 1 else "tanh", dtype="float64")
    first = [keras.layers.Flatten(dtype="float64"), dense(5, "tanh", dtype="float64")]
    return keras.Sequential([keras.Input((4, 3), dtype="float64"), *first, within, last])


@pytest.mark.parametrize("make", [sequence, lambda: network(1), lambda: network(3)], ids=["sequence", "one output", "three outputs"])
def test_it_is_the_jacobian(make: Any) -> None:
    keras.utils.set_random_seed(1)
    model = make()
    x = tf.constant(RANDOM.normal(size=(6, 4, 3)))
    leaves = [tf.convert_to_tensor(variable) + 0.1 for variable in model.trainable_variables]

    def function(parts: list[Any]) -> Any:
        return tf.reshape(tf.nest.flatten(model.stateless_call(parts, [], x)[0])[0], [-1])

    layers = dense_layers(model)
    assert layers is not None
    residuals, found = tf.function(lambda: dense_jacobian(function, leaves, layers, model.trainable_variables, 6))()
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        expected_residuals = function(leaves)
    parts = tape.jacobian(expected_residuals, leaves, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    expected = tf.concat([tf.reshape(part, [residuals.shape[0], -1]) for part in parts], axis=1)
    np.testing.assert_allclose(residuals, expected_residuals, rtol=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)
    assert float(tf.norm(expected)) > 0.0
    assert all("call" not in vars(layer) for layer in layers)


def test_models_that_it_does_not_know_are_left_alone() -> None:
    class Own(dense):
        pass

    inputs = keras.Input((4,))
    for outputs in (
        Own(2)(inputs),
        keras.layers.LayerNormalization()(dense(2)(inputs)),
        dense(2)(keras.layers.Lambda(lambda x: x[::-1])(inputs)),
        dense(2)(keras.ops.flip(inputs, axis=0)),
        dense(2, dtype="mixed_float16")(inputs),
    ):
        assert dense_layers(keras.Model(inputs, outputs)) is None
    frozen = keras.Sequential([inputs, dense(3), dense(2)])
    frozen.layers[0].trainable = False
    assert dense_layers(frozen) == (frozen.layers[1],)
