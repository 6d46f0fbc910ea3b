"""Forward and backward told apart by dataflow, whatever the step returns."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.analyze.backward import backward_nodes, updated_variables
from graphwright.ir.graph import Graph, Node
from graphwright.ir.text import from_text
from graphwright.step.flatten import flatten

pytestmark = pytest.mark.tensorflow


def split(step: Any) -> tuple[Graph, set[str], set[str]]:
    """Op types of the forward and of the backward pass, constants left out."""
    with tf.name_scope("any_scope"):  # no name says what is backward
        function = tf.function(step).get_concrete_function(tf.TensorSpec((8, 4)))
    graph = flatten(function).graph
    backward = backward_nodes(graph)

    def types(nodes: list[Node]) -> set[str]:
        return {n.op_type for n in nodes if n.op_type not in ("Const", "Placeholder", "NoOp", "Identity")}

    return graph, types([n for n in graph if n not in backward]), types([n for n in graph if n in backward])


def weights() -> tuple[Any, Any]:
    return tf.Variable(tf.ones((4, 4))), tf.Variable(tf.ones((4, 4)))


def update(variables: Any, gradients: Any) -> None:
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(gradient)


@pytest.mark.parametrize("result", ["loss", "gradients", "nothing"])
def test_whatever_a_training_step_returns(result: str):
    v, w = weights()

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(tf.nn.relu(x @ v) @ w))
        gradients = tape.gradient(loss, (v, w))
        if result == "gradients":
            return gradients
        update((v, w), gradients)
        return loss if result == "loss" else None

    graph, forward, backward = split(step)
    assert {"TanhGrad", "ReluGrad"} <= backward
    assert {"MatMul", "Relu", "Tanh"} <= forward
    assert not {"Relu", "Tanh"} & backward
    assert ("AssignSubVariableOp" in backward) == (result != "gradients")
    if result == "loss":
        assert forward == {"MatMul", "Relu", "Tanh", "Mean", "ReadVariableOp"}
        assert sum(n.op_type == "MatMul" for n in graph if n not in backward_nodes(graph)) == 2


def test_a_constant_that_grappler_shared_leads_the_moving_averages_to_no_gradient():
    graph = from_text(
        """
graph "g"
%w = VarHandleOp() {shared_name = "w"} : resource[]
%average = VarHandleOp() {shared_name = "average"} : resource[]
%x = Placeholder() : float32[4, 4]
%read = ReadVariableOp(%w:0) : float32[4, 4]
%y = MatMul(%x:0, %read:0) : float32[4, 4]
%one = Const() : float32[4, 4]
%rate = Const() : float32[]
%gradient = MatMul(%x:0, %one:0) {transpose_a = true} : float32[4, 4]
%scaled = Mul(%gradient:0, %rate:0) : float32[4, 4]
%update = AssignSubVariableOp(%w:0, %scaled:0)
%before = ReadVariableOp(%average:0) : float32[4, 4]
%decayed = Mul(%before:0, %rate:0) : float32[4, 4]
%sum = AddV2(%decayed:0, %y:0) : float32[4, 4]
%moved = AssignVariableOp(%average:0, %sum:0)
outputs %y:0
"""
    )
    assert [n.name for n in graph if n in backward_nodes(graph)] == ["one", "rate", "gradient", "scaled", "update"]


def test_metrics_are_returned():
    v, w = weights()
    total, count, moving = (tf.Variable(0.0) for _ in range(3))

    def step(x):
        with tf.GradientTape() as tape:
            out = tf.tanh(x @ v) @ w
            moving.assign(moving * 0.9 + 0.1 * tf.reduce_mean(out))
            loss = tf.reduce_mean(out * out)
        update((v, w), tape.gradient(loss, (v, w)))
        total.assign_add(loss)
        count.assign_add(1.0)
        return {"loss": total / count, "out": tf.reduce_max(out)}

    _, forward, backward = split(step)
    assert "TanhGrad" in backward
    assert "AssignSubVariableOp" in backward
    assert not {"RealDiv", "Max", "AssignAddVariableOp", "AssignVariableOp"} & backward
    assert "TanhGrad" not in forward


def test_a_scaled_loss():
    """Mixed precision: the loss is multiplied by a scale that lives in a variable, and the gradients divided by it."""
    v, w = weights()
    scale, good = tf.Variable(1024.0, trainable=False), tf.Variable(0, trainable=False)

    def step(x):
        with tf.GradientTape() as tape:
            half = tf.cast(x, tf.float16) @ tf.cast(v, tf.float16)
            loss = tf.reduce_mean(tf.cast(tf.tanh(half @ tf.cast(w, tf.float16)), tf.float32))
            scaled = loss * scale
        gradients = [g / scale for g in tape.gradient(scaled, (v, w))]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
        update((v, w), [tf.where(finite, gradient, tf.zeros_like(gradient)) for gradient in gradients])
        good.assign(tf.where(finite, good + 1, 0))
        scale.assign(tf.where(good > 100, scale * 2.0, scale))
        return loss

    _, forward, backward = split(step)
    assert {"TanhGrad", "IsFinite", "AssignSubVariableOp"} <= backward
    assert {"Tanh", "Mean"} <= forward
    assert "TanhGrad" not in forward
    assert "Tanh" not in backward


def test_a_graph_without_backward_pass():
    v, w = weights()
    _, _, backward = split(lambda x: tf.tanh(tf.nn.relu(x @ v) @ w))
    assert not backward


def test_an_update_that_is_no_training_is_forward():
    """A moving average depends on no gradient, though a constant factor stands in its update."""
    v, _ = weights()
    average = tf.Variable(tf.zeros((4, 4)), trainable=False)

    def step(x):
        out = x @ v
        average.assign_sub(0.1 * (average - v))
        return tf.reduce_mean(out)

    _, forward, backward = split(step)
    assert not backward
    assert "AssignSubVariableOp" in forward


def _generator(train: bool) -> tuple[Graph, frozenset[Node]]:
    filters = [tf.Variable(tf.ones((3, 3, 4, 4))) for _ in range(3)]

    def step(x):
        with tf.GradientTape() as tape:
            y = tf.nn.conv2d(tf.nn.conv2d(x, filters[0], 1, "SAME"), filters[1], 1, "SAME")
            y = tf.nn.conv2d_transpose(y, filters[2], (2, 16, 16, 4), 2)
        return (y, tape.gradient(y, filters)) if train else y

    graph = flatten(tf.function(step).get_concrete_function(tf.TensorSpec((2, 8, 8, 4)))).graph
    return graph, backward_nodes(graph)


def test_a_transposed_convolution_in_inference_is_forward():
    assert _generator(train=False)[1] == frozenset()


def test_where_gradients_are_returned_those_of_convolutions_are_backward():
    graph, backward = _generator(train=True)
    made = [n.op_type for n in graph if n in backward]
    assert made.count("Conv2DBackpropFilter") == 3
    assert made.count("Conv2DBackpropInput") == 1  # of the second convolution; the transposed one is forward
    assert made.count("Conv2D") == 1  # of the transposed one


def test_of_an_assignment_by_reference_the_variable_alone_is_updated():
    graph = from_text("""
        graph "g"
        %v = VariableV2() : float32[4]
        %w = VariableV2() : float32[4]
        %assign = Assign(%v:0, %w:0) : float32[4]
        %apply = SparseApplyAdagrad(%v:0, %w:0) : float32[4]
        """)
    assert updated_variables(graph["assign"]) == graph["v"].outputs
    assert updated_variables(graph["apply"]) == (*graph["v"].outputs, *graph["w"].outputs)
