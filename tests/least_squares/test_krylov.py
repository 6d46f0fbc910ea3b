from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import lsmr as scipy_lsmr

from graphwright.least_squares.krylov import conjugate_gradients, lsmr

SPEC = tf.TensorSpec([8, 4], tf.float64), tf.TensorSpec([8], tf.float64), tf.TensorSpec([], tf.float64)


@tf.function(input_signature=SPEC, autograph=False)
def both(matrix, right_side, damping):
    normal = lambda v: tf.linalg.matvec(matrix, tf.linalg.matvec(matrix, v), True) + damping**2 * v  # noqa: E731
    by_gradients = conjugate_gradients(normal, tf.linalg.matvec(matrix, right_side, True), tolerance=1e-14, max_iterations=40)
    products = lambda v: tf.linalg.matvec(matrix, v), lambda u: tf.linalg.matvec(matrix, u, True)
    return by_gradients, lsmr(*products, right_side, damping=damping, tolerance=1e-14, max_iterations=40)


@given(seed=st.integers(0, 10**6), damping=st.sampled_from([0.0, 0.1, 3.0]), columns=st.lists(st.floats(0.1, 10.0), min_size=4, max_size=4))
def test_both_solve_damped_least_squares(seed, damping, columns):
    rng = np.random.default_rng(seed)
    matrix, right_side = rng.standard_normal((8, 4)) * columns, rng.standard_normal(8)
    augmented = np.vstack([matrix, damping * np.eye(4)])
    exact = np.linalg.lstsq(augmented, np.concatenate([right_side, np.zeros(4)]), rcond=None)[0]
    for found in both(matrix, right_side, damping):
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-7)


def test_lsmr_goes_the_way_of_scipy():
    rng = np.random.default_rng(3)
    matrix, right_side = rng.standard_normal((8, 4)), rng.standard_normal(8)
    products = lambda v: tf.linalg.matvec(matrix, v), lambda u: tf.linalg.matvec(matrix, u, True)
    for steps in (1, 2, 3):
        ours = lsmr(*products, tf.constant(right_side), damping=tf.constant(0.3, tf.float64), tolerance=0.0, max_iterations=steps)
        theirs = scipy_lsmr(matrix, right_side, damp=0.3, atol=0.0, btol=0.0, conlim=0.0, maxiter=steps)[0]
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_nothing_to_solve():
    zero = tf.zeros(2, tf.float64)
    assert conjugate_gradients(lambda v: v, zero, tolerance=0.1, max_iterations=5).numpy().tolist() == [0.0, 0.0]
    found = lsmr(lambda v: v, lambda u: u, zero, damping=tf.constant(0.0, tf.float64), tolerance=0.1, max_iterations=5)
    assert found.numpy().tolist() == [0.0, 0.0]
