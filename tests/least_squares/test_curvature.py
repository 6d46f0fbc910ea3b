from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from graphwright.least_squares.curvature import curved_step, newton_offset, no_curvature, updated_curvature

RNG = np.random.default_rng(3)
HESSIAN = np.array([[5.0, 1.0, 0.5], [1.0, 4.0, -0.5], [0.5, -0.5, 3.0]])
GRAM = np.diag([1.0, 0.5, 2.0])


def learned(steps, hessian=HESSIAN):
    """What is known of a quadratic cost after these steps from (1, 1, 1)."""
    x, known = np.ones(3), no_curvature(tf.zeros([3], tf.float64))
    for step in steps:
        gradient, change = hessian @ x, hessian @ step
        reduction = -(gradient @ step + 0.5 * step @ change)
        image = GRAM @ step
        known = updated_curvature(known, *(tf.constant(part) for part in (step, gradient, change, 0.5 * step @ image, image, reduction)))
        x = x + step
    return known


def test_the_last_step_is_remembered_exactly():
    steps = -0.1 * RNG.random((6, 3))
    known = learned(steps)
    np.testing.assert_allclose(known.matrix @ steps[-1][:, None], ((HESSIAN - GRAM) @ steps[-1])[:, None], rtol=1e-9)
    np.testing.assert_allclose(known.matrix, tf.transpose(known.matrix), atol=1e-12)


def test_it_is_trusted_where_it_predicts_better_and_only_there():
    steps = -0.05 * RNG.random((8, 3))
    assert learned(steps).trusted
    assert not learned(steps, GRAM).trusted  # residuals that do not bend: J'J is the Hessian
    assert not learned(steps[:1]).trusted


def test_a_step_where_curvature_does_not_change_sign_is_not_learned_from():
    bent_down = learned([np.array([-0.1, 0.0, 0.0])], -HESSIAN)
    assert not bent_down.matrix.numpy().any()


def test_a_step_by_the_hessian_leads_to_the_minimum_and_leaves_what_is_held():
    gradient, scale = np.array([1.0, -2.0, 0.5]), np.array([1.0, 10.0, 0.1])
    given = [tf.constant(part) for part in (GRAM, HESSIAN - GRAM, gradient, scale)]
    everything = curved_step(*given, 0.0, tf.ones([3], tf.float64))
    np.testing.assert_allclose(everything[0], -np.linalg.solve(HESSIAN, gradient), rtol=1e-9)
    np.testing.assert_allclose(tf.matmul(everything[1], everything[1], transpose_a=True), HESSIAN, rtol=1e-9, atol=1e-12)
    held = curved_step(*given, 0.0, tf.constant([1.0, 0.0, 1.0], tf.float64))
    both = np.ix_([0, 2], [0, 2])
    np.testing.assert_allclose(held[0].numpy()[[0, 2]], -np.linalg.solve(HESSIAN[both], gradient[[0, 2]]), rtol=1e-9)
    assert held[0][1] == 0.0


def test_a_hessian_that_is_not_positive_definite_gives_no_finite_step_but_a_damped_one():
    given = [tf.constant(part) for part in (GRAM, -3.0 * np.eye(3), np.ones(3), np.ones(3))]
    assert not np.isfinite(curved_step(*given, 0.0, tf.ones([3], tf.float64))[0]).all()
    assert np.isfinite(curved_step(*given, 4.0, tf.ones([3], tf.float64))[0]).all()


@pytest.mark.parametrize(
    ("hessian", "known"),
    [(HESSIAN, True), (np.diag([1.0, 1.0, -1.0]), False), (np.diag([1.0, 1.0, 0.0]), False), (np.full((3, 3), np.nan), False)],
    ids=["minimum", "saddle", "flat", "not finite"],
)
def test_how_far_the_minimum_is_is_told_only_where_there_is_one(hessian, known):
    x, ones = np.array([1e-3, 0.0, -2e-3]), tf.ones([3], tf.float64)
    gradient = tf.constant(hessian @ x)
    offset = newton_offset(lambda at: tf.linalg.matvec(tf.constant(hessian), at), tf.constant(x), gradient, ones, 2.0 * ones[0], ones)
    if known:
        assert float(offset) == pytest.approx(np.sqrt(x @ hessian @ x) / 2.0, rel=1e-4)
    else:
        assert np.isinf(offset)
