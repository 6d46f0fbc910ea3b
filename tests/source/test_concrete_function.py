"""Real steps become graphs that know their variables and shapes, and become callables again."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from graphwright.errors import UnsupportedError
from graphwright.ir.verify import verify as verify_graph
from graphwright.run.verify import verify
from graphwright.source.concrete_function import convolution_calls, evaluate_constants, from_concrete_function, to_concrete_function


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
