"""The standard problems of Moré, Garbow and Hillstrom: known minima are found and said to be minima, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bench.more_garbow_hillstrom import FACTORS, PROBLEMS
from graphwright.errors import ArgumentError
from graphwright.least_squares.solve import LeastSquares, least_squares

ELSEWHERE = {
    ("Powell badly scaled", 100.0),  # exp(-100) is no influence to speak of
    ("Beale", 10.0),  # a valley to infinity
    ("Beale", 100.0),
    ("Jennrich and Sampson", 100.0),  # squares beyond numbers
    ("Bard", 100.0),  # an infimum at infinity
    ("Gulf", 100.0),  # plateaus
    ("Box", 10.0),
    ("Box", 100.0),
    ("Biggs", 100.0),
    ("Osborne 2", 10.0),
    ("Osborne 2", 100.0),
}
"""Starts from which no known minimum is found."""
WITHOUT_INFLUENCE = "linear, rank 1 with zeros"
QUICK = ("Brown and Dennis", "Freudenstein and Roth", "Beale")


@pytest.mark.parametrize("name", QUICK)
def test_a_minimum_is_found_and_called_one(name):
    check(name, "auto")


OTHERS = [name for name in PROBLEMS if name not in QUICK]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OTHERS[::2], *(pytest.param(name, marks=pytest.mark.thorough) for name in OTHERS[1::2])])
def test_all_minima_are_found_and_called_so(name):
    check(name, "auto")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Brown and Dennis", "Bard", "Biggs", "Meyer", "penalty 1", "trigonometric", "Watson"])
def test_normal_equations_claim_nothing_wrong(name):
    problem = PROBLEMS[name]
    solver = LeastSquares(problem.residuals, method="cholesky")
    for factor in FACTORS:
        fit = solver(problem.start_times(factor))
        assert problem.is_minimum(2.0 * fit.cost) or not fit.converged, fit


def check(name, method):
    problem = PROBLEMS[name]
    solver = LeastSquares(problem.residuals, method=method)
    for factor in FACTORS:
        if (name, factor) == ("Jennrich and Sampson", 100.0):
            with pytest.raises(ArgumentError, match="too large"):
                solver(problem.start_times(factor))
            continue
        fit = solver(problem.start_times(factor))
        found = problem.is_minimum(2.0 * fit.cost)
        assert found or (name, factor) in ELSEWHERE, fit
        assert fit.converged == (found and name != WITHOUT_INFLUENCE), fit
        if name == "Brown and Dennis":
            assert fit.iterations < 200, fit
        if name == WITHOUT_INFLUENCE:
            assert fit.status == "flat"


def test_wrong_derivatives_at_a_minimum_with_large_residuals_are_no_convergence():
    """Where the Hessian decides, it is that of the Jacobian that was given: turned around, it has no minimum."""
    problem = PROBLEMS["Freudenstein and Roth"]

    def turned(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            residuals = problem.residuals(x)
        return -tape.jacobian(residuals, x)

    fit = least_squares(problem.residuals, np.array([11.41277901, -0.89680525]), jacobian=turned)
    assert not fit.converged, fit


def test_a_kink_is_no_minimum_by_the_hessian():
    """The cost is lowest where the derivative jumps: no step lowers it, and no second derivative shows that it is a minimum."""
    fit = least_squares(lambda p: tf.stack([1.0 + tf.abs(p[0]), 1.0 + 0.5 * tf.abs(p[0])]), np.array([0.7]))
    assert (fit.status, fit.converged) == ("stalled", False)
