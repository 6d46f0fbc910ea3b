"""Under XLA: gradients are right, what is computed again is not merged with what was computed before, and memory falls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.run.xla_memory import xla_memory


def _temporary_bytes(step: Any, *inputs: Any) -> int:
    return xla_memory(step.get_concrete_function(*inputs), [tuple(x.shape) for x in inputs]).temporary_bytes


def _chain(layers: int, width: int, dtype: str) -> tuple[list[Any], Callable[[Any], Any]]:
    rng = np.random.default_rng(0)
    weights = [tf.Variable(rng.normal(size=(width, width)) / width**0.5, dtype=dtype) for _ in range(layers)]

    def loss(x: Any) -> Any:
        for w in weights:
            x = tf.tanh(x @ w)
        return tf.reduce_mean(x**2)

    return weights, loss


def _by_gradients(loss: Any, weights: list[Any], checkpoints: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        value = loss(x)
        return (
            tf.gradients(value, weights) if checkpoints is None else gw.gradients(value, weights, checkpoints=checkpoints, time_limit_s=0.2)
        )

    return step


def _by_tape(loss: Any, weights: list[Any]) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(x)
        return tape.gradient(value, weights)

    return step


@pytest.mark.slow
def test_the_saving_holds_and_gradients_are_equal() -> None:
    weights, loss = _chain(12, 32, "float64")
    x = tf.constant(np.random.default_rng(1).normal(size=(512, 32)))
    steps = {
        "plain": _by_gradients(loss, weights, None),
        "memory": _by_gradients(loss, weights, "memory"),
        "checkpointed": _by_tape(gw.checkpointed(loss, time_limit_s=0.2), weights),
    }
    compiled = {name: tf.function(step, jit_compile=True) for name, step in steps.items()}
    expected = compiled["plain"](x)
    plain = _temporary_bytes(compiled["plain"], x)
    for name, share in (("memory", 0.55), ("checkpointed", 0.55)):
        for one, other in zip(expected, compiled[name](x), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-14)
        assert _temporary_bytes(compiled[name], x) < share * plain, name


def test_each_of_many_blocks_by_itself() -> None:
    weights, _ = _chain(12, 32, "float64")

    def block(k: int) -> Any:
        return lambda x: tf.tanh(tf.tanh(tf.tanh(x @ weights[k]) @ weights[k + 1]) @ weights[k + 2])

    def loss_of(blocks: list[Any]) -> Any:
        def loss(x: Any) -> Any:
            for block in blocks:
                x = block(x)
            return tf.reduce_sum(x)  # the incoming gradient is a constant, through which XLA would look

        return loss

    blocks = [block(k) for k in range(0, 12, 3)]
    x = tf.constant(np.random.default_rng(1).normal(size=(512, 32)))
    plain = tf.function(_by_tape(loss_of(blocks), weights), jit_compile=True)
    wrapped = [gw.checkpointed(block, checkpoints="inputs") for block in blocks]
    saving = tf.function(_by_tape(loss_of(wrapped), weights), jit_compile=True)
    for one, other in zip(plain(x), saving(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)
    assert _temporary_bytes(saving, x) < 0.75 * _temporary_bytes(plain, x)


def _normalized(dtype: str) -> Any:
    """Dense layers with batch norm, dropout and a residual path."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    hidden = image = keras.Input((32,), dtype=dtype)
    for _ in range(2):
        branch = layers.BatchNormalization(dtype=dtype)(hidden)
        branch = layers.Dropout(0.3, dtype=dtype)(layers.Dense(32, activation="gelu", dtype=dtype)(branch))
        hidden = layers.Add(dtype=dtype)([hidden, branch])
    return keras.Model(image, layers.Dense(3, dtype=dtype)(hidden))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gradients", "checkpointed"])
def test_random_numbers_and_statistics_count_once(how: str) -> None:
    model = _normalized("float64")
    states = [v for v in model.variables if not v.trainable]
    states += [layer.seed_generator.state for layer in model.layers if getattr(layer, "seed_generator", None) is not None]
    first = [tf.identity(state.value) for state in states]
    weights = [v.value for v in model.trainable_variables]
    x = tf.constant(np.random.default_rng(1).normal(size=(64, 32)))

    def loss(x: Any) -> Any:
        return tf.reduce_mean(model(x, training=True) ** 2)

    wrapped = gw.checkpointed(loss, checkpoints="inputs")
    step = _by_gradients(loss, weights, "memory") if how == "gradients" else _by_tape(wrapped, weights)
    found: list[list[Any]] = []
    for function in (_by_gradients(loss, weights, None), step):
        for state, value in zip(states, first, strict=True):
            state.assign(value)
        compiled = tf.function(function, jit_compile=True)
        found.append([g.numpy() for g in compiled(x)] + [np.asarray(state.value) for state in states])
    top = max(float(np.abs(g).max()) for g in found[0][: len(weights)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(np.float64(one), np.float64(other), rtol=1e-10, atol=1e-11 * top)


def test_lookups_functions_and_integers_are_held_back_too() -> None:
    table = tf.Variable(np.random.default_rng(0).normal(size=(50, 16)))
    w = tf.Variable(np.random.default_rng(1).normal(size=(16, 16)) / 4)

    @tf.function
    def inner(x: Any, y: Any) -> Any:
        return tf.sin(x @ w) * y

    def loss(ids: Any) -> Any:
        hidden = tf.gather(table, ids)
        for _ in range(4):
            hidden = tf.reshape(inner(hidden, tf.one_hot(ids % 16, 16, dtype=tf.float64)), [-1, 16])
        return tf.reduce_sum(hidden * tf.range(16.0, dtype=tf.float64))

    ids = tf.constant(np.arange(64) % 50)
    plain, saving = (tf.function(_by_gradients(loss, [table, w], mode), jit_compile=True) for mode in (None, "memory"))
    for one, other in zip(plain(ids), saving(ids), strict=True):
        one, other = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)
