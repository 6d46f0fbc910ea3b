from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from graphwright.least_squares.damping import first_scale, loses_influence, updated_damping, updated_scale

ONE = tf.constant(1.0, tf.float64)


@given(gain=st.floats(1e-6, 2.0))
def test_damping_follows_the_gain(gain):
    damping, growth = updated_damping(ONE, 8.0 * ONE, gain * ONE, accepted=True)
    assert 1.0 / 3.0 <= float(damping) <= 2.0
    assert (float(damping) < 1.0) == (gain > 0.5) or gain == 0.5
    assert float(growth) == 2.0


def test_each_refusal_in_a_row_damps_more():
    damping, growth = ONE, 2.0 * ONE
    for expected in (2.0, 8.0, 64.0):
        damping, growth = updated_damping(damping, growth, -ONE, accepted=False)
        assert float(damping) == expected


def test_the_scale_fades_but_follows_a_column_that_grows():
    scale = first_scale(tf.constant([5.0, 0.0, 1.0]))
    assert scale.numpy().tolist() == [5.0, 1.0, 1.0]
    light, same = tf.constant(1e-6), tf.constant(1.0)
    for _ in range(20):
        scale = updated_scale(scale, tf.constant([1e-3, 7.0, 1.0]), light, same)
    np.testing.assert_allclose(scale, [5.0 * 0.7**20, 7.0, 1.0], rtol=1e-5)
    for _ in range(300):
        scale = updated_scale(scale, tf.zeros(3), light, same)
    assert (scale.numpy() > 0.0).all()


@pytest.mark.parametrize(("shortened", "kept"), [(1.5, 10.0), (1.0, 10.0), (0.5, 5.0)])
def test_under_heavy_damping_the_scale_fades_only_as_residuals_get_shorter(shortened, kept):
    assert updated_scale(tf.constant([10.0]), tf.zeros(1), tf.constant(2.0), tf.constant(shortened)).numpy() == kept


@given(units=st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=2), unit=st.floats(1e-6, 1e6))
def test_influence_is_told_whatever_the_units(units, unit):
    before, kept, lost = np.array([1.0, 2.0]), np.array([1.0, 0.5]), np.array([1.0, 1e-4])

    def tells(after):
        return bool(loses_influence(tf.constant(before * units), unit * ONE, tf.constant(after * units), 0.5 * unit * ONE))

    assert not tells(kept)
    assert tells(lost)
