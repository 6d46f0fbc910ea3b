"""Gradients of max pools by comparisons: those of TensorFlow's kernel, ties included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graphwright.memory.xla.max_pools import rewrite_max_pool_gradients
from graphwright.source.concrete_function import from_concrete_function, to_concrete_function


def _gradient(window: int, strides: int, padding: str, shape: tuple[int, ...]) -> Any:
    @tf.function
    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            pooled = tf.nn.max_pool2d(x, window, strides, padding)
            loss = tf.reduce_sum(tf.sin(pooled + tf.linspace(0.0, 3.0, shape[3])))
        return tape.gradient(loss, x)

    return gradient.get_concrete_function(tf.TensorSpec(shape))


@pytest.mark.parametrize(
    ("window", "padding", "shape"),
    [(2, "VALID", (2, 8, 8, 5)), (2, "VALID", (2, 9, 7, 3)), (3, "SAME", (1, 9, 9, 2)), (4, "VALID", (1, 8, 12, 2))],
)
def test_the_first_of_the_largest_gets_the_gradient(window: int, padding: str, shape: tuple[int, ...]) -> None:
    function = _gradient(window, window, padding, shape)
    graph, binding = from_concrete_function(function)
    assert rewrite_max_pool_gradients(graph) == 1
    assert not any(node.op_type == "MaxPoolGrad" for node in graph.nodes)
    x = tf.nn.relu(tf.constant(np.random.default_rng(0).integers(-3, 3, shape), tf.float32))  # many ties
    np.testing.assert_array_equal(to_concrete_function(graph, binding)(x), function(x))


def test_windows_that_overlap_stay() -> None:
    graph, _ = from_concrete_function(_gradient(3, 2, "VALID", (1, 9, 9, 2)))
    assert rewrite_max_pool_gradients(graph) == 0
