"""Solvers, Jacobians and chunks are chosen by sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphwright.errors import ArgumentError, UnsupportedError

pytest.importorskip("tensorflow")
from graphwright.least_squares.keras.decisions import JACOBIAN_BYTES, SHARE_OF_SQUARE, Problem, decide

SMALL = Problem(parameters=61, samples=1000, residuals_per_sample=1, itemsize=4, replicas=1, coupled=False, random=False)


@pytest.mark.parametrize(
    ("parameters", "samples", "each", "replicas", "method"),
    [
        (61, 1000, 1, 1, "qr"),
        (61, 1000, 1, 2, "cholesky"),
        (5000, 100, 10, 1, "dual"),
        (5000, 100, 10, 2, "cholesky"),
        (5000, 1000, 10, 1, "cholesky"),
        (1_000_000, 512, 10, 1, "cg"),
        (1_000_000, 512, 10, 2, "cg"),
    ],
)
def test_method_by_sizes(parameters: int, samples: int, each: int, replicas: int, method: str) -> None:
    problem = replace(SMALL, parameters=parameters, samples=samples, residuals_per_sample=each, replicas=replicas)
    assert decide(problem, "auto", None, "auto").method == method


def test_chunks_keep_the_jacobian_small() -> None:
    decisions = decide(replace(SMALL, parameters=10_000, samples=60_000, residuals_per_sample=10), "auto", None, "auto")
    assert decisions.chunk_size is not None
    assert decisions.chunk_size * 10 * 10_000 * 4 <= 10_000**2 * 4 * SHARE_OF_SQUARE
    small = decide(replace(SMALL, parameters=1000, samples=60_000, residuals_per_sample=10), "auto", None, "auto")
    assert small.chunk_size is not None
    assert small.chunk_size * 10 * 1000 * 4 <= JACOBIAN_BYTES
    assert decisions.jacobian_mode == "per_sample"


def test_random_and_coupled_samples_have_no_rows_of_their_own() -> None:
    for problem in (replace(SMALL, random=True), replace(SMALL, coupled=True)):
        assert decide(problem, "auto", None, "auto").jacobian_mode in ("forward", "reverse")
        with pytest.raises(UnsupportedError, match="per-sample"):
            decide(problem, "auto", None, "per_sample")


def test_a_gram_matrix_that_takes_many_times_the_work_is_not_formed_for_losses_other_than_squares() -> None:
    classes = replace(SMALL, parameters=1510, samples=300, residuals_per_sample=9, squares=False)
    assert decide(classes, "auto", None, "auto").method == "cg"
    assert decide(replace(classes, replicas=2), "auto", None, "auto").method == "cg"
    assert decide(replace(classes, squares=True), "auto", None, "auto").method == "cholesky"
    assert decide(replace(classes, parameters=548), "auto", None, "auto").method == "cholesky"
    assert decide(classes, "cholesky", None, "auto").method == "cholesky"


def test_contradictions_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="2 replicas"):
        decide(replace(SMALL, replicas=2), "qr", None, "auto")
    with pytest.raises(ArgumentError, match="chunk_size"):
        decide(SMALL, "dual", 10, "auto")
    with pytest.raises(ArgumentError, match="forward"):
        decide(replace(SMALL, coupled=True), "cholesky", 10, "forward")
