from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from graphwright.least_squares.krylov import conjugate_gradients

SPEC = tf.TensorSpec([8, 4], tf.float64), tf.TensorSpec([8], tf.float64), tf.TensorSpec([], tf.float64)


@tf.function(input_signature=SPEC, autograph=False)
def solution(matrix, right_side, damping):
    normal = lambda v: tf.linalg.matvec(matrix, tf.linalg.matvec(matrix, v), True) + damping**2 * v  # noqa: E731
    return conjugate_gradients(normal, tf.linalg.matvec(matrix, right_side, True), tolerance=1e-14, max_iterations=40)


@given(seed=st.integers(0, 10**6), damping=st.sampled_from([0.0, 0.1, 3.0]), columns=st.lists(st.floats(0.1, 10.0), min_size=4, max_size=4))
def test_solves_damped_least_squares(seed, damping, columns):
    rng = np.random.default_rng(seed)
    matrix, right_side = rng.standard_normal((8, 4)) * columns, rng.standard_normal(8)
    augmented = np.vstack([matrix, damping * np.eye(4)])
    exact = np.linalg.lstsq(augmented, np.concatenate([right_side, np.zeros(4)]), rcond=None)[0]
    np.testing.assert_allclose(solution(matrix, right_side, damping), exact, rtol=1e-5, atol=1e-7)


def test_nothing_to_solve():
    zero = tf.zeros(2, tf.float64)
    assert conjugate_gradients(lambda v: v, zero, tolerance=0.1, max_iterations=5).numpy().tolist() == [0.0, 0.0]
