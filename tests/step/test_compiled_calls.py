"""Calls that XLA compiles inside a step are one operation each: known, planned, and equal bit for bit."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import graphwright as gw
from graphwright.ir.traits.control_flow import is_compiled_call
from graphwright.step.compiled_calls import compiled_call_bytes
from graphwright.step.flatten import flat_step
from graphwright.step.targets import trace

tf: Any = importlib.import_module("tensorflow")
_OPTIONS: dict[str, Any] = {"cache_dir": None, "time_limit_s": 0.5}


@tf.function(jit_compile=True)
def activation(x: Any, bias: Any) -> Any:
    return tf.nn.gelu(x + bias) * tf.sigmoid(x)


@tf.function(jit_compile=True)
def norm(x: Any) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5)


def chain(layers: int = 4, width: int = 64) -> tuple[Any, list[Any]]:
    """A training step whose activations and norms are compiled; each activation reads a variable."""
    weights = [tf.Variable(tf.random.stateless_normal((width, width), (0, k)) / 8) for k in range(layers)]
    biases = [tf.Variable(tf.zeros(width)) for _ in range(layers)]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            h = x
            for weight, bias in zip(weights, biases, strict=True):
                h = norm(activation(h @ weight, bias))
            loss = tf.reduce_mean(h * x)
        for variable, gradient in zip(weights + biases, tape.gradient(loss, weights + biases), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step, weights + biases


def test_a_users_compiled_functions_are_planned_as_operations() -> None:
    step, _ = chain()
    inputs = (tf.random.stateless_normal((256, 64), (1, 1)),)
    flat = flat_step(trace(step, inputs=inputs))
    calls = [node for node in flat.graph.nodes if is_compiled_call(node)]
    assert len(calls) == 16
    assert {flat.loops.workspace[call] > 0 for call in calls} == {True}
    peak = gw.predict_peak(step, inputs=inputs)
    assert peak.order == "executor"
    assert "XLA" in peak.how["not exact"]
    fast = gw.optimize_memory(step, 0.5, inputs=inputs, **_OPTIONS)
    assert fast.plan.peak_bytes <= 0.5 * fast.plan.original_peak_bytes
    assert fast.plan.recomputed_count
    assert gw.verify(step, fast, inputs).bitwise


def test_the_gradient_side_of_compiled_calls_is_backward() -> None:
    step, variables = chain(2)
    counted = gw.count_flops(step, feeds={"x": (16, 64)})
    seen = gw.inspect(step, feeds={"x": (16, 64)})
    assert (seen.forward_flops, seen.backward_flops) == pytest.approx((counted.forward, counted.backward), rel=0.05)

    @tf.function
    def gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(norm(activation(x @ variables[0], variables[2])))
        return tape.gradient(loss, variables[0])

    seen = gw.inspect(gradients, feeds={"x": (16, 64)})
    assert 2 * 16 * 64 * 64 < seen.forward_flops < seen.backward_flops


@pytest.mark.slow
def test_compiled_calls_in_a_loop_and_in_a_branch() -> None:
    bias = tf.Variable(tf.ones(512))

    @tf.function
    def step(x: Any, n: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = x
            for _ in tf.range(3):
                h = norm(activation(h, bias))
            h = tf.cond(n > 0, lambda: activation(h, bias), lambda: h * 2.0)
        return tape.gradient(h, x)

    inputs = (tf.random.stateless_normal((64, 512), (1, 1)), tf.constant(1))
    assert gw.predict_peak(step, inputs=inputs).peak_bytes > 5 * 64 * 512 * 4
    fast = gw.optimize_memory(step, "smallest", inputs=inputs, **_OPTIONS)
    assert gw.verify(step, fast, inputs).bitwise


def test_sizes_that_are_arguments_of_a_compiled_call() -> None:
    @tf.function(jit_compile=True)
    def rows(x: Any, n: Any) -> Any:
        return tf.reshape(x, (n, -1)) * 2.0

    @tf.function(input_signature=[tf.TensorSpec((None, 64))])
    def step(x: Any) -> Any:
        return rows(x, 2 * tf.shape(x)[0])

    flat = flat_step(trace(step, feeds={"x": (4, 64)}))
    [call] = [node for node in flat.graph.nodes if is_compiled_call(node)]
    assert compiled_call_bytes(call) >= 0
    assert call.outputs[0].shape == (8, 32)


def test_a_compiled_call_that_writes_a_variable_is_refused() -> None:
    total = tf.Variable(tf.zeros(64))

    @tf.function(jit_compile=True)
    def add(x: Any) -> Any:
        return total.assign_add(x)

    @tf.function
    def step(x: Any) -> Any:
        return add(x) + 1.0

    with pytest.raises(gw.UnsupportedError, match="changes a variable"):
        gw.predict_peak(step, inputs=(tf.ones(64),))


@pytest.mark.slow
def test_convolutions_in_groups_keep_their_bits() -> None:
    keras: Any = importlib.import_module("keras")
    image = h = keras.Input((16, 16, 8))
    for _ in range(3):
        h = h + keras.layers.Conv2D(8, 1)(keras.layers.Conv2D(8, 3, padding="same", groups=4, activation="tanh")(h))
    model = keras.Model(image, h)
    image = tf.random.stateless_normal((8, 16, 16, 8), (1, 1))
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True)))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    assert sum(map(is_compiled_call, flat_step(trace(step, inputs=(image,))).graph.nodes)) == 6
    fast = gw.optimize_memory(step, 0.8, inputs=(image,), **_OPTIONS)
    assert fast.plan.peak_bytes <= 0.8 * fast.plan.original_peak_bytes
    assert gw.verify(step, fast, (image,)).bitwise
