from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from graphwright.train.damped_least_squares.jacobians import (
    forward_jacobian,
    jvp,
    per_sample_jacobian,
    reverse_jacobian,
    rows_of_jacobian,
    vjp,
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


def test_a_block_of_rows():
    residuals, block = rows_of_jacobian(lambda leaves: network(leaves, DATA), LEAVES, tf.constant(3), 4)
    assert residuals.shape == (10,)
    np.testing.assert_allclose(block, numeric(LEAVES)[3:7], atol=1e-14)


def test_products():
    matrix, tangent = numeric(LEAVES), RNG.standard_normal(10)
    function = lambda leaves: network(leaves, DATA)  # noqa: E731
    parts = [tf.reshape(part, leaf.shape) for part, leaf in zip(np.split(tangent, [6, 9]), LEAVES, strict=True)]
    np.testing.assert_allclose(jvp(function, LEAVES, parts)[1], matrix @ tangent, atol=1e-13)
    _, pulled = vjp(function, LEAVES, lambda residuals: 2.0 * residuals)
    np.testing.assert_allclose(
        tf.concat([tf.reshape(p, [-1]) for p in pulled], 0), 2.0 * matrix.T @ network(LEAVES, DATA).numpy(), atol=1e-13
    )
