from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from graphwright.errors import ArgumentError
from graphwright.least_squares.parameters import flatten_parameters


class Line(NamedTuple):
    slope: float
    offset: float


def test_elements_are_named_as_the_user_writes_them():
    layout, _ = flatten_parameters({"w": np.zeros((2, 2)), "line": Line(1.0, 2.0)})
    assert [layout.element_name(i) for i in range(layout.size)] == [
        "params['line'].slope",
        "params['line'].offset",
        "params['w'][0, 0]",
        "params['w'][0, 1]",
        "params['w'][1, 0]",
        "params['w'][1, 1]",
    ]


@pytest.mark.parametrize(
    ("params", "dtype"), [(2.0, tf.float64), ([1, 2.0], tf.float64), (np.float32(1.0), tf.float32), ([tf.ones(2), 3.0], tf.float32)]
)
def test_numbers_without_a_type_are_double_or_follow_the_others(params, dtype):
    layout, vector = flatten_parameters(params)
    assert layout.dtype == vector.dtype == dtype


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([], "no parameters"),
        (np.zeros((0, 3)), "no elements"),
        (np.array([1, 2]), "int64"),
        (tf.ones(2, tf.float16), "half|float16"),
        ([tf.ones(2), tf.ones(2, tf.float64)], "float32, float64"),
    ],
)
def test_what_cannot_be_fitted_is_refused(params, message):
    with pytest.raises(ArgumentError, match=message):
        flatten_parameters(params)
