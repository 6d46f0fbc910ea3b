"""A function of results and gradients as two functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from graphwright.source.split_function import Split, split_function


def _split(early: frozenset[str] = frozenset()) -> tuple[Split, Any]:
    """`y = tanh(x w + b)` that counts its calls, with the gradients of x and w; its incoming gradient is a placeholder."""
    count = tf.Variable(0)
    names: dict[str, str] = {}

    def whole(x: Any, w: Any, b: Any) -> Any:
        count.assign_add(1)
        y = tf.tanh(tf.matmul(x, w) + b, name="y")
        incoming = tf.compat.v1.placeholder(y.dtype, y.shape, name="incoming")
        names["incoming"] = incoming.name
        return [y, *tf.gradients(y, [x, w], incoming)]

    specs = [tf.TensorSpec(shape, tf.float64) for shape in ((5, 3), (3, 4), (4,))]
    concrete = tf.function(whole).get_concrete_function(*specs)
    inputs = [tensor.name for tensor in concrete.inputs[:3]]
    return split_function(concrete, inputs=inputs, incoming=[names["incoming"]], result_count=1, early=early, name="layer"), count


def test_results_and_gradients_are_those_of_the_whole() -> None:
    split, count = _split()
    x, w, b, dy = (tf.random.stateless_normal(shape, (1, k), dtype=tf.float64) for k, shape in enumerate(((5, 3), (3, 4), (4,), (5, 4))))
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        y = tf.tanh(x @ w + b)
    wanted = tape.gradient(y, [x, w], output_gradients=dy)
    result, *residuals = split.forward(x, w, b)
    np.testing.assert_allclose(result, y)
    found = split.backward(*residuals, *((x, w, b)[k] for k in split.needed_inputs), dy)
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(one, other)
    assert count.numpy() == 1  # the effect belongs to the first part


def test_only_what_the_gradients_need_is_handed_on() -> None:
    split, _ = _split()
    assert split.needed_inputs == (0, 1)  # not the offset
    residuals = split.forward.outputs[1:]
    assert [tuple(tensor.shape) for tensor in residuals] == [(5, 4)]
    assert [tuple(tensor.shape) for tensor in split.backward.inputs[:4]] == [(5, 4), (5, 3), (3, 4), (5, 4)]
