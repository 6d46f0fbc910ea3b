"""Symmetric matrices by blocks of rows, against NumPy; sizes on both sides of where they become several blocks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from graphwright.least_squares.symmetric_blocks import (
    SMALLEST_BLOCK,
    cholesky,
    cholesky_solve,
    diagonal,
    lower_half,
    plus_products,
    quadratic_form,
    zero_blocks,
)

SIZES = [1, SMALLEST_BLOCK, SMALLEST_BLOCK + 1, 3 * SMALLEST_BLOCK - 5]


def blocks_and_matrix(size):
    rng = np.random.default_rng(size)
    first, second = rng.standard_normal((size + 3, size)), rng.standard_normal((2, size))
    blocks = plus_products(plus_products(zero_blocks(size, tf.float64), tf.constant(first)), tf.constant(second))
    return blocks, first.T @ first + second.T @ second, rng


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_products(size):
    blocks, matrix, rng = blocks_and_matrix(size)
    vector = rng.standard_normal(size)
    np.testing.assert_allclose(np.tril(lower_half(blocks)), np.tril(matrix), atol=1e-10)
    np.testing.assert_allclose(diagonal(blocks), np.diag(matrix), rtol=1e-12)
    np.testing.assert_allclose(quadratic_form(blocks, tf.constant(vector)), vector @ matrix @ vector, rtol=1e-10)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_solutions(size, jit_compile):
    blocks, matrix, rng = blocks_and_matrix(size)
    scale, vector, shift = rng.uniform(0.5, 2.0, size), rng.standard_normal(size), tf.constant(0.3, tf.float64)
    solve = tf.function(lambda *given: cholesky_solve(cholesky(*given[:3]), given[3]), jit_compile=jit_compile)
    expected = np.linalg.solve(matrix * np.outer(scale, scale) + 0.3 * np.eye(size), vector)
    np.testing.assert_allclose(solve(blocks, tf.constant(scale), shift, tf.constant(vector)), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_a_matrix_that_is_not_positive_has_no_finite_solution(size):
    blocks, matrix, _ = blocks_and_matrix(size)
    shift = tf.constant(-2.0 * np.linalg.eigvalsh(matrix)[0] - 1.0)
    roots = cholesky(blocks, tf.ones(size, tf.float64), shift)
    assert not np.isfinite(cholesky_solve(roots, tf.ones(size, tf.float64))).any()
