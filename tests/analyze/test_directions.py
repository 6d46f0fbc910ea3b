"""Forward, backward and optimizer, told apart by dataflow."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from graphwright.analyze.directions import find_directions  # noqa: E402
from graphwright.step.flatten import flatten  # noqa: E402

pytestmark = pytest.mark.tensorflow

SILENT = ("Const", "Placeholder", "NoOp", "Identity", "ReadVariableOp", "StopGradient", "PreventGradient")


def types_by_direction(step: Any, shape: tuple[int, ...] = (8, 16)) -> dict[str, Counter[str]]:
    with tf.name_scope("any_scope"):  # no name says what is backward
        graph = flatten(tf.function(step).get_concrete_function(tf.TensorSpec(shape))).graph
    found: dict[str, Counter[str]] = {"forward": Counter(), "backward": Counter(), "optimizer": Counter()}
    for node, direction in find_directions(graph).items():
        if node.op_type not in SILENT:
            found[direction][node.op_type] += 1
    return found


def variable(*shape: int) -> Any:
    return tf.Variable(tf.ones(shape))


def descent(loss_of: Any, *weights: Any, change: Any = lambda gradient: gradient) -> Any:
    """A step of gradient descent that returns the loss."""

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of(x))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(change(gradient))
        return loss

    return step


def test_plain_descent_is_one_product_and_one_update():
    weight, bias = variable(16, 16), variable(16)
    step = descent(lambda x: tf.tanh(x @ weight + bias), weight, bias, change=lambda gradient: 0.1 * gradient)
    found = types_by_direction(step)
    assert found["optimizer"] == {"Mul": 2, "AssignSubVariableOp": 2}
    assert found["backward"] >= Counter({"TanhGrad": 1, "MatMul": 1, "Sum": 1})  # the sum finishes the gradient of the bias
    assert found["forward"] == {"MatMul": 1, "AddV2": 1, "Tanh": 1, "Mean": 1}


def test_the_gradient_of_a_weight_that_is_used_twice():
    weight = variable(16, 16)
    found = types_by_direction(descent(lambda x: tf.tanh(tf.tanh(x @ weight) @ weight), weight))
    assert found["optimizer"] == {"AssignSubVariableOp": 1}
    assert found["backward"]["AddN"] == 1


def test_clipping_by_the_global_norm():
    weight = variable(16, 16)
    step = descent(lambda x: tf.tanh(x @ weight), weight, change=lambda gradient: tf.clip_by_global_norm([gradient], 1.0)[0][0])
    found = types_by_direction(step)
    assert found["optimizer"] >= Counter({"L2Loss": 1, "Sqrt": 1, "Minimum": 1, "AssignSubVariableOp": 1})
    assert found["backward"]["MatMul"] == 1


def test_decay_and_schedules_that_depend_on_no_gradient():
    weight, steps = variable(16, 16), tf.Variable(0.0, trainable=False)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(x @ weight))
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(tf.sqrt(weight * 0.01))  # decay apart from the gradient
        rate = tf.exp(-steps)
        weight.assign_sub(rate * gradient)
        steps.assign_add(1.0)
        return loss

    found = types_by_direction(step)
    assert found["optimizer"] >= Counter({"Sqrt": 1, "Exp": 1, "Neg": 1, "AssignSubVariableOp": 2})
    assert not {"Sqrt", "Exp"} & {*found["forward"], *found["backward"]}


def test_a_moving_average_of_activations_is_forward():
    weight, average = variable(16, 16), tf.Variable(tf.zeros(16), trainable=False)

    def loss_of(x):
        out = tf.tanh(x @ weight)
        average.assign(average * 0.9 + 0.1 * tf.reduce_mean(out, 0))
        return out

    found = types_by_direction(descent(loss_of, weight))
    assert found["forward"]["AssignVariableOp"] == 1
    assert found["optimizer"] == {"AssignSubVariableOp": 1}


def test_what_is_computed_again_is_backward():
    weights = [variable(16, 16) for _ in range(3)]

    def block(x):
        for weight in weights[:2]:
            x = tf.tanh(x @ weight)
        return x

    found = types_by_direction(descent(lambda x: tf.tanh(tf.recompute_grad(block)(x) @ weights[2]), *weights))
    assert found["optimizer"] == {"AssignSubVariableOp": 3}
    assert found["forward"]["MatMul"] == 3
    assert found["backward"]["MatMul"] == 2 + 5  # twice again; three gradients of weights, two of activations
