import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphwright.errors import ArgumentError
from graphwright.plan.budget import Budget


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (2**40, 2**40),
        (np.int64(512), 512),
        (0.5, 500),
        (np.float32(0.5), 500),
        (0.29, 290),
        ("60%", 600),
        ("100%", 1000),
        ("0.25", 250),
        ("512", 512),
        ("512 B", 512),
        ("1KB", 1000),
        ("1 kib", 1024),
        ("1.5MiB", 3 * 2**19),
        ("2.5GiB", 5 * 2**29),
        ("  3GB ", 3 * 10**9),
        (".5TiB", 2**39),
        ("1e3", None),
    ],
)
def test_reads(value, expected):
    if expected is None:  # a number with an exponent is no whole number of bytes, and no share
        with pytest.raises(ArgumentError, match="not below 1"):
            Budget.read(value).of(1000)
    else:
        assert Budget.read(value).of(1000) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "not a positive"),
        (-5, "not a positive"),
        (0.0, "not a positive"),
        (-0.5, "not a positive"),
        ("-1GiB", "not a positive"),
        ("0%", "not a positive"),
        (math.nan, "not a finite"),
        (math.inf, "not a finite"),
        (1.0, "not below 1"),
        (2.5e9, "not below 1"),
        ("1.5", "not below 1"),
        ("150%", "not below 1"),
        (1e-9, "less than one byte"),
        ("0.1B", "less than one byte"),
        ("2.5 Gbit", "unknown unit"),
        ("", "cannot be read"),
        ("nan", "cannot be read"),
        ("two GiB", "cannot be read"),
        ("1e999999999GB", "cannot be read"),
        (True, "type bool"),
        (None, "type NoneType"),
        ([1], "type list"),
        (1 + 2j, "type complex"),
    ],
)
def test_refuses(value, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        Budget.read(value).of(1000)
    assert caught.value.remedy


def test_a_share_needs_a_total():
    with pytest.raises(ArgumentError, match="no single peak to which it refers"):
        _ = Budget.read(0.5).nbytes
    assert Budget.read("1KiB").nbytes == 1024


@pytest.mark.parametrize("value", [1e-30, 0.5, "100%", "1e-30%"])
def test_a_share_is_one_whatever_it_is_a_share_of(value):
    assert Budget.read(value).is_share


@pytest.mark.parametrize("value", [1, 2**80, "2.5GiB", "1e30TiB"])
def test_bytes_are_bytes_however_many(value):
    budget = Budget.read(value)
    assert not budget.is_share
    assert budget.of(1000) == budget.nbytes


@given(st.integers(1, 999), st.integers(1, 2**50))
def test_a_decimal_share_is_exact(thousandths, total):
    share = thousandths / 1000
    expected = thousandths * total // 1000
    if expected == 0:
        with pytest.raises(ArgumentError):
            Budget.read(share).of(total)
    else:
        assert Budget.read(share).of(total) == Budget.read(f"{thousandths / 10}%").of(total) == expected
