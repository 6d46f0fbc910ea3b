"""Real steps become graphs that know their variables and shapes, and become callables again."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from graphwright.errors import UnsupportedError
from graphwright.ir.verify import verify as verify_graph
from graphwright.run.verify import verify
from graphwright.source.concrete_function import convolution_calls, evaluate_constants, from_concrete_function, to_concrete_function
from graphwright.source.import_graph import infer_shapes
from graphwright.step.flatten import flatten


def test_arguments_captures_and_variables():
    weight = tf.Variable(tf.ones((3, 2)), name="weight")
    frozen = tf.Variable(tf.ones((2,)), trainable=False, name="frozen")
    constant = tf.constant(np.ones((5, 3), np.float32))

    @tf.function
    def step(x, options):
        return {"y": (x + constant) @ weight + frozen * options["scale"]}

    function = step.get_concrete_function(tf.TensorSpec((5, 3)), {"scale": tf.TensorSpec(())})
    graph, binding = from_concrete_function(function)
    verify_graph(graph)
    assert binding.argument_count == 2
    assert len(graph.inputs) == 5
    assert {v.name: (v.shape, v.trainable) for v in graph.variables.values()} == {"weight": ((3, 2), True), "frozen": ((2,), False)}
    assert all("_output_shapes" not in node.attrs for node in graph)
    again = to_concrete_function(graph, binding)
    result = verify(function, again, (tf.ones((5, 3)), {"scale": tf.constant(2.0)}))
    assert result.bitwise, result
    assert set(again(tf.ones((5, 3)), {"scale": tf.constant(2.0)})) == {"y"}


def test_names_that_are_scopes_of_others_are_kept():
    """A capture called `a/b/resource` must not push the node `a/b` aside."""
    with tf.name_scope("a"):
        weight = tf.Variable(tf.ones((3,)), name="b")

    @tf.function
    def step(x):
        with tf.name_scope("a/b"):
            return x + weight

    function = step.get_concrete_function(tf.TensorSpec((3,)))
    graph, binding = from_concrete_function(function)
    infer_shapes(graph)
    assert verify(function, to_concrete_function(graph, binding), (tf.ones((3,)),)).bitwise


def test_constants_are_evaluated_by_the_kernels():
    function = tf.function(lambda: tf.range(3) * 2 + tf.shape(tf.zeros((4, 5)))[0]).get_concrete_function()
    graph, _ = from_concrete_function(function)
    (array,) = evaluate_constants(graph)(graph.outputs)
    assert array.tolist() == [4, 6, 8]


def test_python_callbacks_are_refused_wherever_they_stand():
    @tf.function
    def inner(x):
        return tf.numpy_function(lambda a: a + 1, [x], tf.float32)

    for step in (
        inner,
        tf.function(lambda x: tf.cond(x > 0, lambda: inner(x), lambda: x)),
        tf.function(lambda x: tf.py_function(lambda a: a, [x], tf.float32)),
    ):
        with pytest.raises(UnsupportedError, match="calls back into Python"):
            from_concrete_function(step.get_concrete_function(tf.TensorSpec(())))


def test_compiled_functions_that_hold_convolutions_alone():
    image, kernel = tf.ones((1, 4, 4, 2)), tf.ones((3, 3, 1, 2))
    same = {"strides": 1, "padding": "SAME"}
    for inner, expected in (
        (lambda x: tf.nn.conv2d(x, kernel, **same), True),
        (lambda x: tf.nn.conv2d(x, kernel, **same) * 2.0, False),
        (lambda x: tf.nn.conv2d(x, kernel, **same, dilations=2), False),
        (lambda x: tf.nn.conv2d(tf.cast(x, tf.float64), tf.cast(kernel, tf.float64), **same), False),
    ):
        step = tf.function(lambda x, inner=inner: tf.function(inner, jit_compile=True)(x))
        graph, _ = from_concrete_function(step.get_concrete_function(image))
        assert bool(convolution_calls(graph)) is expected


def test_a_flat_step_has_no_calls_no_shape_questions_and_all_sizes():
    weight = tf.Variable(tf.ones((3, 4)))

    @tf.function
    def layer(x):
        return tf.reduce_sum(tf.reshape(x @ weight, (tf.shape(x)[0] * 2, -1)), axis=0, keepdims=True) * tf.ones_like(x)[0, 0]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(x))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    function = step.get_concrete_function(tf.TensorSpec((None, 3)))
    flat = flatten(function, {0: (6, 3)})
    verify_graph(flat.graph)
    types = {n.op_type for n in flat.graph}
    assert not types & {"PartitionedCall", "StatefulPartitionedCall", "Shape", "BroadcastGradientArgs"}
    assert all(v.nbytes is not None for n in flat.graph for v in n.outputs if v.dtype.itemsize is not None)
    assert verify(function, to_concrete_function(flat.graph, flat.binding), (tf.ones((6, 3)),), steps=2).bitwise


def test_a_function_that_was_read_can_still_be_called_from_another_one():
    inner = tf.function(lambda x: x * 2.0)
    before = set(inner.get_concrete_function(tf.ones(3)).function_def.attr)
    from_concrete_function(inner.get_concrete_function(tf.ones(3)))
    assert set(inner.get_concrete_function(tf.ones(3)).function_def.attr) == before
    assert tf.function(lambda x: inner(x) + 1.0)(tf.ones(3)).numpy().tolist() == [3.0] * 3
