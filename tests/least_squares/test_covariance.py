from __future__ import annotations

import numpy as np
import pytest

from graphwright.least_squares.covariance import inverse_gram


@pytest.mark.parametrize("is_gram", [False, True])
def test_it_is_the_inverse_whatever_the_units(is_gram):
    rng = np.random.default_rng(0)
    jacobian = rng.standard_normal((9, 4)) * [1.0, 1e6, 1e-6, 10.0]
    gram = jacobian.T @ jacobian
    units = np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
    inverse, rank = inverse_gram(gram if is_gram else np.linalg.qr(jacobian)[1], is_gram=is_gram, free=np.ones(4, bool))
    assert rank == 4
    np.testing.assert_allclose(inverse * units, np.linalg.inv(gram / units), rtol=1e-7)


@pytest.mark.parametrize("is_gram", [False, True])
def test_what_the_data_do_not_determine_is_infinite(is_gram):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 9))
    jacobian = np.stack([a, b, 2.0 * b], axis=1)  # the last two only occur as their sum
    factor = jacobian.T @ jacobian if is_gram else np.linalg.qr(jacobian)[1]
    inverse, rank = inverse_gram(factor, is_gram=is_gram, free=np.ones(3, bool))
    assert rank == 2
    assert np.isinf(np.diag(inverse)).tolist() == [False, True, True]
    assert inverse[0, 0] == pytest.approx(np.linalg.inv(jacobian[:, :2].T @ jacobian[:, :2])[0, 0], rel=1e-6)
    assert np.isnan(inverse[0, 1])


def test_constants_have_no_variance():
    inverse, rank = inverse_gram(np.array([[2.0, 1.0], [1.0, 4.0]]), is_gram=True, free=np.array([True, False]))
    assert rank == 1
    np.testing.assert_allclose(inverse, [[0.5, 0.0], [0.0, 0.0]], rtol=1e-14)
