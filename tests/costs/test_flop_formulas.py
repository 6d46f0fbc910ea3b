"""Formulas of the batch size."""

from __future__ import annotations

from fractions import Fraction

import pytest

tf = pytest.importorskip("tensorflow")

import graphwright as gw  # noqa: E402
from graphwright.errors import ArgumentError, UnknownShapeError  # noqa: E402

pytestmark = pytest.mark.tensorflow


def test_a_square_and_a_cube():
    square = gw.count_flops(tf.function(lambda a: a @ tf.transpose(a)), {"a": (None, 8)}).formula
    assert square.coefficients == (0, 0, 16)
    cube = gw.count_flops(tf.function(lambda a: tf.linalg.cholesky(a @ tf.transpose(a))), {"a": (None, 8)}).formula
    assert cube.degree == 3
    assert cube.coefficients[3] == pytest.approx(Fraction(1, 3))
    assert cube(30) == pytest.approx(30**3 / 3 + 16 * 30**2)


def test_the_batch_may_be_any_axis():
    count = gw.count_flops(tf.function(lambda a, b: a @ tf.transpose(b)), {"a": (16, None), "b": (16, None)})
    assert str(count.formula) == "512 * batch"
    assert count.feeds == {"a": (16, None), "b": (16, None)}
    with pytest.raises(ArgumentError, match="leaves 2 dimensions open"):
        gw.count_flops(tf.function(lambda x: 2.0 * x), {"x": (None, None)})


def test_a_step_is_traced_no_more_often_than_it_takes():
    traced: list[object] = []

    @tf.function
    def step(x):
        traced.append(x.shape[0])
        return tf.reduce_sum(x @ tf.ones((8, 8)))

    assert gw.count_flops(step, {"x": (None, 8)}).formula is not None
    assert traced == [1, 3, 5, 8]


def test_a_loop_over_the_batch():
    count = gw.count_flops(tf.function(lambda x: tf.map_fn(lambda row: row @ tf.transpose(row), x)), {"x": (None, 8, 8)})
    assert str(count.formula) == "1,024 * batch"
    assert list(count.loops.values()) == ["batch iterations"]


def test_the_branches_are_those_of_a_batch_size_that_is_said():
    step = tf.function(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x @ tf.ones((8, 8)), lambda: x))
    count = gw.count_flops(step, {"x": (None, 8)})
    assert "at batch size 8" in count.how["branches"]
    assert list(count.branches.values()) == [(8 * 128.0, 0.0)]


def test_what_grows_by_steps_is_no_polynomial():
    step = tf.function(lambda x: tf.reduce_sum(x[: tf.shape(x)[0] // 3 * 2] ** 2))
    with pytest.raises(UnknownShapeError, match="not a polynomial"):
        gw.count_flops(step, {"x": (None, 100)})
    assert gw.count_flops(step, {"x": (9, 100)}).total == 600 + 599


def test_a_batch_of_one_may_be_special():
    """Nothing is added up over one example; the formula says from where it holds."""
    step = tf.function(lambda x: tf.reduce_mean(x, 0))
    count = gw.count_flops(step, {"x": (None, 100)})
    assert str(count.formula) == "0 (batch = 1), 100 * batch (batch >= 2)"
    assert "from 2 on" in count.how["formulas"]
