"""Callbacks, and fits that are part of a graph."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.least_squares.solve import LeastSquares, least_squares

T = np.linspace(0.0, 1.0, 8)
START = {"height": 1.0, "rate": 1.0}


def decay(p, seen, t=T):
    return p["height"] * tf.exp(-p["rate"] * t) - seen


def seen_from(height, rate):
    return height * np.exp(-rate * T)


@pytest.fixture(scope="module")
def told():
    """A fit that tells its steps: (the steps of the last call, the solver)."""
    steps = []
    return steps, LeastSquares(decay, callback=steps.append)


def test_each_step_is_told_as_it_is(told):
    steps, solver = told
    steps.clear()
    fit = solver(START, seen_from(5.0, 3.0) + 0.01 * np.sin(9.0 * T), T)
    assert fit.converged
    assert [step.iteration for step in steps] == list(range(1, fit.iterations + 1))
    assert sum(step.accepted for step in steps) == fit.accepted_steps
    assert (steps[-1].cost, steps[-1].gradient_norm) == (fit.cost, fit.gradient_norm)
    assert steps[-1].params["rate"] == fit.params["rate"]
    for before, after in itertools.pairwise(steps):
        assert after.cost <= before.cost * (1.0 + 1e-12)
        moved = np.hypot(*(after.params[name] - before.params[name] for name in START))
        assert after.step_norm == pytest.approx(moved, rel=1e-9, abs=1e-300)
        assert (after.step_norm > 0.0) == after.accepted
    with pytest.raises(dataclasses.FrozenInstanceError):
        steps[0].cost = 0.0


@pytest.mark.parametrize("answer", [True, np.True_])
def test_a_callback_ends_the_fit(answer):
    solver = LeastSquares(lambda p: decay(p, seen_from(5.0, 3.0)), callback=lambda step: answer if step.iteration == 2 else False)
    fit = solver(START)
    assert (fit.status, fit.converged, fit.iterations) == ("stopped", False, 2)
    assert "callback ended it after 2 steps" in fit.message


def test_what_a_callback_raises_or_returns_in_error_is_told():
    def fails(step):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        least_squares(lambda p: p - 1.0, np.zeros(2), callback=fails)
    with pytest.raises(ArgumentError, match="the callback returned 3"):
        least_squares(lambda p: p - 1.0, np.zeros(2), callback=lambda step: 3)


@pytest.mark.slow
def test_with_xla_each_step_is_told_too():
    steps = []
    fit = least_squares(lambda p: decay(p, seen_from(5.0, 3.0)), START, callback=steps.append, jit_compile=True)
    assert fit.converged
    assert len(steps) == fit.iterations


def test_a_fit_is_part_of_a_graph_with_its_callback():
    steps = []

    @tf.function
    def height_of(seen, rate):
        scaled = 2.0 * seen  # a tensor of this graph, which the residuals capture
        fit = gw.train.least_squares(lambda p: decay(p, scaled), {"height": 1.0, "rate": rate}, callback=steps.append)
        assert isinstance(fit, gw.train.LeastSquaresTensors)
        return fit

    for height in (5.0, 7.0):
        steps.clear()
        fit = height_of(tf.constant(seen_from(height, 3.0)), tf.constant(1.0, tf.float64))
        assert float(fit.params["height"]) == pytest.approx(2.0 * height, rel=1e-9)
        assert bool(fit.converged)
        assert fit.STATUSES[int(fit.status)] in ("step small", "gradient small", "zero residuals", "precision reached")
        assert len(steps) == int(fit.iterations)
    assert height_of.experimental_get_tracing_count() == 1


def test_a_start_in_a_graph_that_is_not_finite_is_told_by_the_status():
    @tf.function
    def root_of(start):
        fit = least_squares(lambda p: tf.math.log(p), start)
        return fit.status, fit.converged

    status, converged = root_of(tf.constant([-1.0], tf.float64))
    assert (gw.train.LeastSquaresTensors.STATUSES[int(status)], bool(converged)) == ("start not finite", False)


def test_a_fit_in_a_graph_has_no_gradient_and_says_so():
    @tf.function(autograph=False)  # which would put another class of error in its place
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = least_squares(lambda p: p * x - 1.0, tf.zeros([1], tf.float64)).params
        return tape.gradient(found, x)

    with pytest.raises(LookupError, match="has no gradient"):
        slope(tf.constant([2.0], tf.float64))


@pytest.mark.parametrize(
    ("shape", "data", "bounds", "message"),
    [
        ([None], False, None, "shape is not known"),
        ([None], True, None, "number of samples is not known"),
        ([2], False, "from the graph", "lower bounds"),
    ],
    ids=["parameters", "data", "bounds"],
)
def test_what_a_graph_must_know_while_it_is_built(shape, data, bounds, message):
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float64)])
    def fit(x):
        if data:
            return least_squares(lambda p, x: p * x - 1.0, tf.zeros([1], tf.float64), data=(x,)).params
        return least_squares(lambda p: p - 1.0, x, bounds=None if bounds is None else (x - 1.0, x + 1.0)).params

    with pytest.raises(ArgumentError, match=message):
        fit(tf.zeros([2], tf.float64))


def test_a_callback_where_xla_compiles_everything_is_refused():
    @tf.function(jit_compile=True)
    def fit(x):
        return least_squares(lambda p: p - x, tf.zeros([1], tf.float64), callback=lambda step: None).params

    with pytest.raises(UnsupportedError, match="XLA compiles"):
        fit(tf.zeros([1], tf.float64))


@pytest.mark.slow
def test_a_fit_within_a_function_that_xla_compiles():
    @tf.function(jit_compile=True)
    def fit(seen):
        found = least_squares(lambda p: decay(p, seen), {name: tf.constant(1.0, tf.float64) for name in START})
        return found.params["rate"], found.converged

    rate, converged = fit(tf.constant(seen_from(5.0, 3.0)))
    assert converged
    assert float(rate) == pytest.approx(3.0, rel=1e-9)
