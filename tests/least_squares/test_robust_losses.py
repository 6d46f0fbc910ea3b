from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from graphwright.least_squares.robust_losses import RobustLoss
from graphwright.least_squares.solve import least_squares

NAMES = ("linear", "huber", "soft_l1", "cauchy", "arctan")
residuals = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=9).map(np.array)


@pytest.mark.parametrize("name", NAMES)
@given(values=residuals, scale=st.floats(0.01, 100.0))
def test_the_cost_is_that_of_scipy(name, values, scale):
    # SciPy evaluates its cost at the start, and with no step allowed to matter returns it.
    fit = scipy.optimize.least_squares(lambda _: values, [0.0], loss=name, f_scale=scale, jac=lambda _: np.zeros((len(values), 1)))
    # SciPy's soft_l1 is 2 (sqrt(1 + z) - 1), which loses what lies below the last bit of 1; a huber of tiny residuals is exact.
    cancelled = 4 * np.finfo(float).eps * scale**2 * len(values) if name == "soft_l1" else 1e-300
    assert float(RobustLoss(name, scale).cost(tf.constant(values))) == pytest.approx(fit.cost, rel=1e-12, abs=cancelled)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "linear"])
@given(values=residuals, scale=st.floats(0.01, 100.0))
def test_weighted_residuals_give_the_exact_gradient_of_the_cost(name, values, scale):
    loss, f = RobustLoss(name, scale), tf.constant(values)
    with tf.GradientTape() as tape:
        tape.watch(f)
        cost = loss.cost(f)
    row, residual = loss.weights(f)
    np.testing.assert_allclose(row * residual * f, tape.gradient(cost, f), rtol=1e-9, atol=1e-12)
    assert np.isfinite(row).all()
    assert (row.numpy() > 0.0).all()


def test_weighted_rows_give_the_second_derivative_where_the_loss_is_convex():
    f = tf.constant([-0.4, 0.0, 0.3], tf.float64)
    loss = RobustLoss("cauchy")
    with tf.GradientTape() as outer:
        outer.watch(f)
        with tf.GradientTape() as inner:
            inner.watch(f)
            cost = loss.cost(f)
        slope = inner.gradient(cost, f)
    np.testing.assert_allclose(loss.weights(f)[0] ** 2, outer.gradient(slope, f), rtol=1e-12)


@pytest.mark.parametrize("name", ["soft_l1", "cauchy"])
def test_outliers_pull_as_little_as_in_scipy(name):
    x = np.linspace(0.0, 3.0, 20)
    y = 2.0 * np.exp(-x)
    y[[3, 11]] += 5.0
    ours = least_squares(lambda p: p[0] * tf.exp(-p[1] * x) - y, np.array([1.0, 0.5]), loss=name, loss_scale=0.1)
    theirs = scipy.optimize.least_squares(
        lambda p: p[0] * np.exp(-p[1] * x) - y, [1.0, 0.5], loss=name, f_scale=0.1, xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    plain = scipy.optimize.least_squares(lambda p: p[0] * np.exp(-p[1] * x) - y, [1.0, 0.5])
    assert ours.converged
    np.testing.assert_allclose(ours.params, theirs.x, rtol=1e-6)
    assert ours.cost == pytest.approx(theirs.cost, rel=1e-10)
    assert np.abs(plain.x - [2.0, 1.0]).max() > 10.0 * np.abs(ours.params - [2.0, 1.0]).max()
