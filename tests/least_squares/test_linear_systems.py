from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from graphwright.least_squares.linear_systems import CgSystem, CholeskySystem, DualSystem, QrSystem
from graphwright.least_squares.parameters import flatten_parameters
from graphwright.least_squares.rows import Rows

SCALE = np.array([1.0, 2.0, 0.5, 3.0])
SYSTEMS = {
    "qr": QrSystem,
    "cholesky": CholeskySystem,
    "dual": DualSystem,
    "cg": lambda rows: CgSystem(rows, tolerance=1e-12, max_iterations=60),
}


def problem(count):
    rng = np.random.default_rng(count)
    matrix, right_side = rng.standard_normal((count, 4)), rng.standard_normal(count)
    layout, x = flatten_parameters(rng.standard_normal(4))
    rows = Rows(lambda p: tf.linalg.matvec(tf.constant(matrix), p) - right_side, layout)
    return rows, x, matrix, matrix @ x.numpy() - right_side


@pytest.mark.parametrize("count", [9, 4, 2])
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_damped_step_minimizes_the_augmented_problem(name, count):
    rows, x, matrix, f = problem(count)
    system = SYSTEMS[name](rows)
    at = system.linearize(x)
    for damping in (1e-2, 10.0):
        for free in (np.ones(4), np.array([1.0, 0.0, 1.0, 1.0])):
            augmented = np.vstack([matrix * free, np.sqrt(damping) * np.diag(SCALE)])
            exact = -np.linalg.lstsq(augmented, np.concatenate([f, np.zeros(4)]), rcond=None)[0]
            step, solve = system.step(x, at, tf.constant(SCALE), tf.constant(damping, tf.float64), free)
            np.testing.assert_allclose(step, exact, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(system.half_square(x, at, step), 0.5 * np.sum((matrix @ exact) ** 2), rtol=1e-8)
            if solve is not None:
                expected = np.linalg.solve(np.diag(free) @ matrix.T @ matrix @ np.diag(free) + damping * np.diag(SCALE**2), free)
                np.testing.assert_allclose(free * solve(tf.constant(free)), free * expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_linearization_knows_gradient_and_lengths(name):
    rows, x, matrix, f = problem(9)
    at = SYSTEMS[name](rows).linearize(x)
    np.testing.assert_allclose(at.gradient, matrix.T @ f, rtol=1e-10)
    np.testing.assert_allclose(at.residual_norm, np.linalg.norm(f), rtol=1e-12)
    exact = name in ("qr", "cholesky", "dual")
    np.testing.assert_allclose(at.column_norms, np.linalg.norm(matrix, axis=0), rtol=1e-10 if exact else 1.0)


def test_qr_solves_what_normal_equations_cannot():
    """Columns that differ by a millionth of a millionth: their Gram matrix is singular in double precision."""
    layout, x = flatten_parameters(np.zeros(2))
    matrix = np.array([[1.0, 1.0], [0.0, 1e-9], [0.0, 0.0]])
    rows = Rows(lambda p: tf.linalg.matvec(tf.constant(matrix), p) - np.array([3.0, 1e-9, 0.0]), layout)
    free, scale = tf.ones(2, tf.float64), tf.ones(2, tf.float64)

    def undamped(system):
        damping = tf.constant(system.smallest_damping, tf.float64)
        return system.step(x, system.linearize(x), scale, damping, free)[0].numpy()

    np.testing.assert_allclose(undamped(QrSystem(rows)), [2.0, 1.0], rtol=1e-6)
    assert not np.allclose(undamped(CholeskySystem(rows)), [2.0, 1.0], rtol=1e-2)
