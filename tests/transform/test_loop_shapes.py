"""Loops of which the step says at the call only how long they are."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
from graphwright.errors import UnknownShapeError
from graphwright.memory.planning import map_tasks
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import simulate
from graphwright.run.verify import verify
from graphwright.source.concrete_function import to_concrete_function
from graphwright.step.flatten import FlatStep, flat_step
from graphwright.step.targets import trace

pytestmark = pytest.mark.tensorflow

keras: Any = importlib.import_module("keras")
tf: Any = importlib.import_module("tensorflow")


def recurrent_layers() -> Any:
    """Two layers, of which the second goes back through the list of what the first returns."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.SimpleRNN(8, return_sequences=True) for _ in range(2)]
    layers[0].build((None, None, 4))
    layers[1].build((None, None, 8))
    weights = [weight.value for layer in layers for weight in layer.trainable_variables]

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layers[1](layers[0](x)) ** 2)
        for gradient, weight in zip(tape.gradient(loss, weights), weights, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return step


def scanned() -> Any:
    weight = tf.Variable(tf.eye(4))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            h = tf.scan(lambda h, e: tf.tanh(h @ weight + e), x, initializer=tf.zeros((12, 4)))
            loss = tf.reduce_mean(tf.map_fn(lambda e: tf.tanh(e @ weight), h) ** 2)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    return step


def peak_bytes(flat: FlatStep) -> int:
    costs = map_tasks(flat).costs
    return simulate(costs, Schedule(costs.order)).peak_bytes


@pytest.mark.parametrize(("make", "open_shape"), [(recurrent_layers, (None, None, 4)), (scanned, (None, 12, 4))], ids=["layers", "scan"])
def test_a_loop_whose_length_only_the_call_says_costs_what_it_costs(make: Any, open_shape: tuple[int | None, ...]) -> None:
    x = tf.constant(np.random.default_rng(0).normal(size=(3, 12, 4)).astype(np.float32))
    step = make()
    traced = trace(tf.function(step, input_signature=[tf.TensorSpec(open_shape)]), inputs=(x,))
    flat, static = flat_step(traced), flat_step(trace(tf.function(step), inputs=(x,)))
    assert peak_bytes(flat) == pytest.approx(peak_bytes(static), rel=0.2)  # lists of shapes come on top, of a few bytes each
    assert str(verify(traced.function, to_concrete_function(flat.graph, flat.binding), (x,))).startswith("equal bit for bit")


def test_a_loop_whose_values_grow_behind_an_open_dimension_is_refused() -> None:
    def step(x: Any) -> Any:
        grown = lambda i, y: (i + 1, tf.concat([tf.tanh(y), tf.ones((1, 4))], 0))  # noqa: E731 - a loop's body
        open_shape = (tf.TensorShape([]), tf.TensorShape([None, 4]))
        return tf.reduce_sum(tf.while_loop(lambda i, _: i < 5, grown, (0, x), shape_invariants=open_shape)[1] ** 2)

    traced = trace(tf.function(step, input_signature=[tf.TensorSpec((None, 4))]), inputs=(tf.ones((7, 4)),))
    with pytest.raises(UnknownShapeError, match=r"changes its shape: \[7,4\] becomes \[8,4\] in a round"):
        flat_step(traced)
