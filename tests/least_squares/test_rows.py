from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from graphwright.errors import ArgumentError
from graphwright.least_squares.linear_systems import gram_matrix
from graphwright.least_squares.parameters import flatten_parameters
from graphwright.least_squares.robust_losses import RobustLoss
from graphwright.least_squares.rows import Rows

RNG = np.random.default_rng(2)
X, Y = RNG.standard_normal((7, 2)), RNG.standard_normal((7, 3))
PARAMS = {"kernel": RNG.standard_normal((2, 3)), "bias": RNG.standard_normal(3)}


def residuals(params, x=X, y=Y):
    return tf.tanh(x @ params["kernel"]) + params["bias"] - y


@pytest.fixture(scope="module")
def point():
    return flatten_parameters(PARAMS)


def make(layout, chunk_size, **options):
    return Rows(residuals, layout, data=(tf.constant(X), tf.constant(Y)), chunk_size=chunk_size, loss=RobustLoss("cauchy", 0.5), **options)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 99])
def test_chunks_of_samples_sum_to_the_whole(point, chunk_size):
    layout, x = point
    whole, rows = make(layout, None), make(layout, chunk_size)
    vector = tf.constant(RNG.standard_normal(9))
    for found, expected in zip(tf.nest.flatten(gram_matrix(rows, x)), tf.nest.flatten(gram_matrix(whole, x)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    (gram,), gradient, squares = gram_matrix(whole, x)
    np.testing.assert_allclose(rows.cost(x), whole.cost(x), rtol=1e-13)
    np.testing.assert_allclose(rows.residuals(x), tf.reshape(residuals(PARAMS), [-1]), rtol=1e-13)
    found, found_squares = rows.gradient(x)
    np.testing.assert_allclose(found, gradient, rtol=1e-12)
    np.testing.assert_allclose(found_squares, squares, rtol=1e-12)
    np.testing.assert_allclose(rows.gram_product(x, vector), tf.linalg.matvec(gram, vector), rtol=1e-11)
    np.testing.assert_allclose(rows.squared_norm_along(x, vector), tf.tensordot(vector, tf.linalg.matvec(gram, vector), 1), rtol=1e-12)
    assert float(squares) > 0.0


def test_chunks_of_rows_without_data_sum_to_the_whole(point):
    layout, x = point
    whole, rows = Rows(residuals, layout), Rows(residuals, layout, chunk_size=4)
    assert (rows.mode, rows.is_chunked, rows.count) == ("reverse", True, 21)
    for found, expected in zip(tf.nest.flatten(gram_matrix(rows, x)), tf.nest.flatten(gram_matrix(whole, x)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_no_more_than_a_chunk_of_the_jacobian_is_ever_made(point):
    layout, x = point
    seen = set()

    def body(count, f, matrix):
        seen.add((f.shape[0], *matrix.shape))
        return count + f.shape[0]

    assert int(make(layout, 2).fold(x, body, tf.constant(0))) == 21
    assert int(Rows(residuals, layout, chunk_size=5).fold(x, body, tf.constant(0))) == 21
    assert seen == {(6, 6, 9), (3, 3, 9), (5, 5, 9), (1, 1, 9)}


def test_the_second_derivative_along_a_step(point):
    layout, x = point
    rows, step = make(layout, 3), tf.constant(RNG.standard_normal(9))

    def along(t):
        return tf.reshape(residuals(layout.pack(layout.split(x + t * step))), [-1])

    t = tf.constant(0.0, tf.float64)
    with tf.autodiff.ForwardAccumulator(t, tf.ones_like(t)) as outer, tf.autodiff.ForwardAccumulator(t, tf.ones_like(t)) as inner:
        second = outer.jvp(inner.jvp(along(t)))
    weight = rows.loss.weights(along(t))[0]
    jacobian = make(layout, None).fold(x, lambda _, residuals, matrix: matrix, None)
    exact = tf.linalg.matvec(jacobian, weight * second, transpose_a=True)
    np.testing.assert_allclose(rows.curvature_gradient(x, step), exact, rtol=0.2, atol=0.05 * float(tf.norm(exact)))


def test_random_signs_are_the_same_whatever_the_chunks_and_replicas(point):
    layout, x = point
    expected = make(layout, None).random_column_products(x, (7, 1))
    np.testing.assert_allclose(make(layout, 3).random_column_products(x, (7, 1)), expected, rtol=1e-12)
    halves = [
        Rows(residuals, layout, data=(tf.constant(X[a:b]), tf.constant(Y[a:b])), loss=RobustLoss("cauchy", 0.5)).random_column_products(
            x, (7, 1), first=3 * a, total=21
        )
        for a, b in ((0, 4), (4, 7))
    ]
    np.testing.assert_allclose(halves[0] + halves[1], expected, rtol=1e-12)


def test_products_through_rows_that_are_looked_up():
    layout, x = flatten_parameters(RNG.standard_normal((4, 3)))
    rows = Rows(lambda table: tf.reshape(tf.gather(table, [1, 1, 3]) ** 2, [-1]), layout)
    vector = tf.constant(RNG.standard_normal(12))
    (gram,), *_ = gram_matrix(rows, x)
    np.testing.assert_allclose(rows.gram_product(x, vector), tf.linalg.matvec(gram, vector), atol=1e-12)


def test_a_given_jacobian_may_be_a_matrix_or_a_structure():
    layout, x = flatten_parameters({"a": np.array([1.0, 2.0]), "b": 3.0})
    t = np.array([1.0, 2.0, 4.0])
    line = lambda p: p["a"][0] * t + p["a"][1] + p["b"] * t**2  # noqa: E731
    matrix = np.stack([t, np.ones(3), t**2], axis=1)
    expected = gram_matrix(Rows(line, layout), x)[0][0]
    for given in (lambda _: tf.constant(matrix), lambda _: {"a": matrix[:, :2], "b": matrix[:, 2]}):
        np.testing.assert_allclose(gram_matrix(Rows(line, layout, jacobian=given), x)[0][0], expected, rtol=1e-13)
    with pytest.raises(ArgumentError, match=r"\(3, 3\)"):
        gram_matrix(Rows(line, layout, jacobian=lambda _: tf.constant(matrix.T[:2])), x)


@pytest.mark.parametrize(
    ("function", "data", "message"),
    [
        (lambda p: tf.cast(p, tf.float32), (), "float32"),
        (lambda p: p[:0], (), "no residuals"),
        (lambda p: tf.boolean_mask(p, p > 0.0), (), "not known"),
        (lambda p, x: tf.concat([p[0] * x, p], 0), (tf.ones(3, tf.float64),), "5 residuals of 3 samples"),
        (lambda p, x, y: p[0] * x - y, (tf.ones(3, tf.float64), tf.ones(2, tf.float64)), "2 and 3 samples"),
    ],
)
def test_residuals_that_make_no_sense_are_refused(function, data, message):
    layout, _ = flatten_parameters(np.ones(2))
    with pytest.raises(ArgumentError, match=message):
        Rows(function, layout, data=data, chunk_size=2)
