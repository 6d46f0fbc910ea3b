from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from graphwright.least_squares.jacobians import (
    Linear,
    forward_jacobian,
    per_sample_jacobian,
    reverse_jacobian,
)

RNG = np.random.default_rng(1)
LEAVES = [tf.constant(RNG.standard_normal((2, 3))), tf.constant(RNG.standard_normal(3)), tf.constant(0.7, tf.float64)]
DATA = tf.constant(RNG.standard_normal((5, 2)))


def network(leaves, data):
    """Two residuals per sample; the last tensor has no influence."""
    kernel, bias, _unused = leaves
    return tf.reshape(tf.tanh(data @ kernel + bias)[:, :2], [-1])


def numeric(leaves):
    """By complex steps: exact to rounding."""
    columns = []
    for k, leaf in enumerate(leaves):
        for index in np.ndindex(*leaf.shape):
            moved = [np.array(part, dtype=complex) for part in leaves]
            moved[k][index] += 1e-30j
            columns.append(np.tanh(DATA.numpy() @ moved[0] + moved[1])[:, :2].reshape(-1).imag / 1e-30)
    return np.array(columns).T


@pytest.mark.parametrize(
    "jacobian",
    [
        lambda: forward_jacobian(lambda leaves: network(leaves, DATA), LEAVES),
        lambda: reverse_jacobian(lambda leaves: network(leaves, DATA), LEAVES),
        lambda: per_sample_jacobian(network, LEAVES, DATA),
    ],
    ids=["forward", "reverse", "per sample"],
)
def test_every_mode_gives_the_jacobian(jacobian):
    residuals, matrix = tf.function(jacobian, autograph=False)()
    np.testing.assert_allclose(residuals, network(LEAVES, DATA), rtol=1e-14)
    np.testing.assert_allclose(matrix, numeric(LEAVES), atol=1e-14)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "traced"])
def test_products_with_both_from_one_evaluation(compiled):
    matrix, tangent = numeric(LEAVES), RNG.standard_normal(10)
    parts = [tf.reshape(part, leaf.shape) for part, leaf in zip(np.split(tangent, [6, 9]), LEAVES, strict=True)]
    evaluated = []

    def products():
        linear = Linear(lambda leaves: (evaluated.append(leaves), network(leaves, DATA))[1], LEAVES)
        return linear.push(parts), linear.pull(2.0 * linear.residuals)

    pushed, pulled = (tf.function(products, autograph=False) if compiled else products)()
    assert len(evaluated) == 1
    np.testing.assert_allclose(pushed, matrix @ tangent, atol=1e-13)
    np.testing.assert_allclose(
        tf.concat([tf.reshape(p, [-1]) for p in pulled], 0), 2.0 * matrix.T @ network(LEAVES, DATA).numpy(), atol=1e-13
    )


def test_a_product_through_rows_that_are_looked_up():
    table = tf.constant(RNG.standard_normal((4, 3)))
    linear = Linear(lambda leaves: tf.reshape(tf.gather(leaves[0], [1, 1, 3]) ** 2, [-1]), [table])
    tangent = tf.constant(RNG.standard_normal((4, 3)))
    expected = 2.0 * tf.gather(table, [1, 1, 3]) * tf.gather(tangent, [1, 1, 3])
    np.testing.assert_allclose(linear.push([tangent]), tf.reshape(expected, [-1]), atol=1e-14)
