"""Fits end to end: against exact solutions, SciPy, and NIST's certified values."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.nist import MODELS, read_problem
from graphwright.errors import ArgumentError
from graphwright.least_squares.solve import LeastSquares, choose_method, least_squares

LINE = LeastSquares(lambda p, a, b: tf.linalg.matvec(a, p) - b)


@given(seed=st.integers(0, 10**6), units=st.lists(st.floats(1e-5, 1e5), min_size=3, max_size=3))
def test_linear_problems_are_solved_whatever_the_units(seed, units):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((7, 3)), rng.standard_normal(7)
    assume(np.linalg.cond(a) < 1e3)
    exact = np.linalg.lstsq(a, b, rcond=None)[0]
    fit = LINE(np.zeros(3), a * units, b)
    assert fit.converged
    np.testing.assert_allclose(fit.params * units, exact, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(fit.covariance * np.outer(units, units), np.linalg.inv(a.T @ a) * 2.0 * fit.cost / 4.0, rtol=1e-6)


METHODS = {
    "qr forward": {"method": "qr", "jacobian_mode": "forward"},
    "qr reverse": {"method": "qr", "jacobian_mode": "reverse"},
    "qr per sample": {"method": "qr", "jacobian_mode": "per_sample"},
    "qr in chunks": {"method": "qr", "chunk_size": 7},
    "cholesky in chunks": {"method": "cholesky", "chunk_size": 8},
    "dual": {"method": "dual"},
    "cg in chunks": {"method": "cg", "chunk_size": 11, "krylov_tolerance": 1e-8},
}


@pytest.mark.parametrize("name", METHODS)
def test_all_methods_find_the_same_minimum(name, decay):
    residuals, x, y = decay
    best = scipy.optimize.least_squares(lambda p: p[0] * np.exp(-p[1] * x) + p[2] - y, [1.0, 1.0, 0.0], xtol=1e-15, ftol=1e-15, gtol=1e-15)
    fit = least_squares(residuals, np.array([1.0, 1.0, 0.0]), data=(x, y), **METHODS[name])
    assert fit.converged, fit
    assert fit.method in name
    np.testing.assert_allclose(fit.params, best.x, rtol=1e-7)
    np.testing.assert_allclose(fit.residuals, best.fun, rtol=1e-5, atol=1e-8)
    if fit.covariance is not None:
        np.testing.assert_allclose(fit.covariance, np.linalg.inv(best.jac.T @ best.jac) * 2.0 * best.cost / 27.0, rtol=1e-5)


@pytest.mark.parametrize("name", ["MGH09", "BoxBOD", "Lanczos3"])
def test_hard_problems_of_nist(name):
    check_nist(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_all_problems_of_nist(name):
    check_nist(name)


def check_nist(name):
    problem = read_problem(name)
    solver = LeastSquares(lambda b: problem.residuals(b, problem.x, problem.y, tf))
    for start in problem.starts:
        fit = solver(start)
        assert fit.converged, fit
        assert problem.digits(fit.params.numpy()) >= 6.0, fit
        if name != "Lanczos1":  # its deviations are those of the rounding of the data
            assert 2.0 * fit.cost == pytest.approx(problem.squares, rel=1e-9)
            assert problem.deviation_digits(fit.standard_errors) >= 5.0, fit


@pytest.mark.slow
def test_xla_gives_the_same():
    problem = read_problem("MGH09")
    fit = least_squares(lambda b: problem.residuals(b, problem.x, problem.y, tf), problem.starts[0], jit_compile=True)
    assert fit.converged
    assert problem.digits(fit.params.numpy()) >= 6.0


@pytest.mark.parametrize(
    ("lower", "upper"), [((-np.inf, -np.inf, 0.6), np.inf), ((0.0, 0.0, 0.0), (2.5, 5.0, 5.0)), (0.0, (4.0, 0.7, 5.0))], ids=str
)
def test_bounds_as_in_scipy(lower, upper, decay):
    residuals, x, y = decay
    start = np.array([1.0, 0.5, 0.65])
    best = scipy.optimize.least_squares(
        lambda p: p[0] * np.exp(-p[1] * x) + p[2] - y, start, bounds=(lower, upper), xtol=1e-15, ftol=1e-15, gtol=1e-12
    )
    fit = least_squares(residuals, start, data=(x, y), bounds=(lower, upper))
    assert fit.converged, fit
    assert (fit.params.numpy() >= lower).all()
    assert (fit.params.numpy() <= upper).all()
    assert fit.cost <= best.cost * (1.0 + 1e-9)
    np.testing.assert_allclose(fit.params, best.x, rtol=1e-4)
    assert "held at a bound" in str(fit)


def test_a_structure_of_float32_tensors(decay):
    _, x, y = decay
    x, y = x.astype(np.float32), y.astype(np.float32)
    fit = least_squares(
        lambda p: p["height"] * tf.exp(-p["rate"] * x) + p["floor"] - y, dict.fromkeys(("height", "rate", "floor"), np.float32(1.0))
    )
    assert fit.converged, fit
    assert fit.params["rate"].dtype == tf.float32
    assert float(fit.params["height"]) == pytest.approx(3.0, abs=0.1)
    told = fit.to_json()
    assert json.loads(json.dumps(told))["params"].keys() == told["standard_errors"].keys() == {f"params['{name}']" for name in fit.params}
    assert repr(fit) == f"<LeastSquaresResult: Converged: {fit.message}.>"


def test_more_parameters_than_residuals():
    x = tf.constant(np.random.default_rng(0).standard_normal((5, 300)))
    fit = least_squares(lambda p: tf.linalg.matvec(x, p) - 1.0, np.zeros(300))
    assert (fit.method, fit.converged, fit.covariance) == ("dual", True, None)
    np.testing.assert_allclose(fit.params, np.linalg.lstsq(x.numpy(), np.ones(5), rcond=None)[0], atol=0.3)
    np.testing.assert_allclose(fit.residuals, 0.0, atol=1e-6)
    assert "only 5 residuals" in str(fit)


def test_no_influence_is_no_convergence():
    problem = read_problem("BoxBOD")
    fit = least_squares(lambda b: problem.residuals(b, problem.x, problem.y, tf), np.array([100.0, 900.0]))
    assert (fit.status, fit.converged) == ("flat", False)
    assert "params[1]" in fit.message


def test_no_influence_is_no_convergence_without_a_jacobian_either():
    fit = least_squares(lambda p: p["a"] * np.arange(4.0) - 1.0, {"a": 0.0, "unused": 0.0}, method="cg")
    assert (fit.status, fit.converged) == ("flat", False)
    assert "params['unused']" in fit.message


def test_wrong_derivatives_are_no_convergence():
    fit = least_squares(lambda p: p - tf.constant([1.0, 2.0], tf.float64), np.zeros(2), jacobian=lambda _: -tf.eye(2, dtype=tf.float64))
    assert (fit.status, fit.converged) == ("stalled", False)


def test_stopping_early_is_no_convergence(decay):
    residuals, x, y = decay
    fit = least_squares(residuals, np.array([1.0, 1.0, 0.0]), data=(x, y), max_iterations=2)
    assert (fit.status, fit.converged, fit.iterations) == ("max iterations", False, 2)
    assert fit.offset > 1e-6


def test_a_region_where_the_residuals_are_not_numbers_is_left_out():
    """The root of a negative number: the undamped first step would go there."""
    fit = least_squares(lambda p: tf.stack([tf.sqrt(p[0]) - 0.1, 0.1 * (p[0] - 0.01)]), np.array([4.0]))
    assert fit.converged, fit
    assert float(fit.params[0]) == pytest.approx(0.01, rel=1e-6)


def test_zero_residuals():
    fit = least_squares(lambda p: 3.0 * p - 6.0, np.array([2.0]))
    assert (fit.status, fit.iterations, fit.cost) == ("zero residuals", 0, 0.0)


def test_what_the_data_do_not_determine_is_said():
    t = np.linspace(0.0, 1.0, 9)
    fit = least_squares(lambda p: (p[0] + p[1]) * t + p[2] - np.sin(t), np.array([1.0, 2.0, 3.0]))
    assert fit.converged, fit
    assert fit.rank == 2
    assert np.isinf(fit.standard_errors[:2]).all()
    assert "do not determine params[0], params[1]" in str(fit)


def test_a_solver_is_traced_once():
    traces = []

    def residuals(p, x, y):
        traces.append(1)
        return p * x - y

    solver = LeastSquares(residuals)
    x = np.ones(4)
    assert float(solver(np.array(0.0), x, 2.0 * x).params) == pytest.approx(2.0)
    count = len(traces)
    assert float(solver(np.array(0.0), x, 3.0 * x).params) == pytest.approx(3.0)
    assert len(traces) == count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "newton"}, "newton"),
        ({"jacobian_mode": "numeric"}, "numeric"),
        ({"jacobian_mode": "per_sample"}, "without samples"),
        ({"gtol": -1.0}, "gtol"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"geodesic": True, "method": "cg"}, "geodesic"),
        ({"geodesic": True, "bounds": (0.0, 9.0)}, "bounds"),
        ({"bounds": (1.0, 1.0)}, "1.0 and 1.0"),
        ({"bounds": (2.0, 3.0)}, "outside its bounds"),
        ({"bounds": ((0.0, 0.0, 0.0), 1.0)}, r"params of shape \(2,\)"),
        ({"bounds": (np.zeros(3), 1.0)}, r"params of shape \(2,\)"),
        ({"bounds": ("low", 1.0)}, "'low'"),
        ({"bounds": 5.0}, "a pair"),
        ({"bounds": (0.0, 1.0, 2.0)}, "a pair"),
        ({"loss": "huber", "loss_scale": np.inf}, "loss_scale=inf"),
        ({"max_iterations": 2.5}, "whole number"),
        ({"loss": "median"}, "median"),
        ({"loss": lambda z: z}, "three tensors"),
        ({"chunk_size": "some"}, "chunk_size='some'"),
        ({"first_damping": None}, "first_damping=None"),
        ({"gtol": "1e-8"}, "gtol='1e-8'"),
        ({"jacobian": lambda p: None}, "nothing is returned"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        least_squares(lambda p: p - 1.0, np.array([1.0, 1.5]), **options)


@pytest.mark.parametrize("lower", [{"a": 0.0}, {"a": 0.0, "c": 0.0}, [0.0, 0.0]], ids=str)
def test_bounds_of_another_structure_than_the_parameters_are_refused(lower):
    with pytest.raises(ArgumentError, match="another structure"):
        least_squares(lambda p: tf.stack([p["a"] - 1.0, p["b"] - 2.0]), {"a": 0.5, "b": 0.5}, bounds=(lower, 5.0))


@pytest.mark.parametrize(
    ("residuals", "message"),
    [
        (lambda p: None, "nothing is returned"),
        (lambda p: [], "nothing is returned"),
        (lambda p: (p, tf.cast(p, tf.float32)), "residuals of type float32"),
        (lambda p: np.exp(p), "not np.exp"),
        (lambda p: p if p[0] > 0.0 else -p, "tf.where in place"),
        (lambda p, x: p * x, "one argument for each entry"),
        (lambda p: p[5], "slice index 5"),
    ],
    ids=["none", "empty", "another type", "NumPy", "if", "two arguments", "an error"],
)
def test_residuals_that_make_no_sense_are_refused(residuals, message):
    with pytest.raises(ArgumentError, match=message):
        least_squares(residuals, np.ones(2))


def test_data_of_another_type_than_the_parameters_and_lists_of_numbers_are_refused():
    line = lambda p, x: p[0] * x + p[1]  # noqa: E731
    with pytest.raises(ArgumentError, match="data of type float32 and parameters of type float64"):
        least_squares(line, np.ones(2), data=(np.ones(3, np.float32),))
    with pytest.raises(ArgumentError, match="without a dimension of samples"):
        least_squares(line, np.ones(2), data=([1.0, 2.0, 3.0],))


@pytest.mark.parametrize(
    ("jacobian", "message"),
    [
        (lambda p, x: tf.stack([x, tf.ones_like(x)]), r"a Jacobian of shape \(2, 3\)"),
        (lambda p, x: tf.ones([3, 2], tf.float32), "a Jacobian of type float32"),
    ],
    ids=["transposed", "another type"],
)
def test_a_jacobian_of_another_shape_or_type_is_refused(jacobian, message):
    with pytest.raises(ArgumentError, match=message):
        least_squares(lambda p, x: p[0] * x + p[1], np.ones(2), data=(np.arange(3.0),), jacobian=jacobian)


@pytest.mark.parametrize(
    ("residuals", "start", "message"),
    [
        (lambda p: tf.math.log(p), [1.0, -1.0, 0.0], "2 of 3 residuals .* number 1"),
        (lambda p: tf.sqrt(p), [1.0, 0.0, 0.0], "Jacobian"),
        (lambda p: p, [1.0, np.nan, 0.0], r"params\[1\] is nan"),
        (lambda p: p * 1e200, [1.0, 0.0, 0.0], "too large for float64"),
        (lambda p: p * 1e-200, [1.0, 0.0, 0.0], "too small for float64"),  # the squares of which are zero
    ],
)
def test_a_start_that_is_not_finite_or_beyond_numbers_is_an_error(residuals, start, message):
    with pytest.raises(ArgumentError, match=message):
        least_squares(residuals, np.array(start))


@pytest.mark.parametrize("params", [1j, "abc", {"a": None}], ids=str)
def test_a_start_that_is_no_number_is_an_error(params):
    with pytest.raises(ArgumentError, match="no real number"):
        least_squares(lambda p: p, params)


def test_methods_are_chosen_by_size():
    assert choose_method(200, 10**5, 8, chunked=False)[0] == "qr"
    assert choose_method(201, 100, 8, chunked=False)[0] == "dual"
    assert choose_method(10_000, 10**6, 4, chunked=True)[0] == "cholesky"
    assert choose_method(10_000, 10**6, 4, chunked=False)[0] == "cg"
    assert choose_method(10**6, 100, 4, chunked=False)[0] == "dual"
    assert choose_method(10**6, 10**4, 4, chunked=False)[0] == "cg"
    assert choose_method(10**6, 10**4, 4, chunked=True)[0] == "cg"


def test_what_chunks_of_residuals_cannot_do_is_refused():
    line = lambda p: p[0] * np.arange(6.0) + p[1]  # noqa: E731
    with pytest.raises(ArgumentError, match="Jacobian of your own"):
        least_squares(line, np.ones(2), chunk_size=2, jacobian=lambda p: tf.ones([6, 2], tf.float64))
    with pytest.raises(ArgumentError, match="forward Jacobians in chunks"):
        least_squares(line, np.ones(2), chunk_size=2, jacobian_mode="forward")
    with pytest.raises(ArgumentError, match="whole number"):
        least_squares(line, np.ones(2), chunk_size=0)
