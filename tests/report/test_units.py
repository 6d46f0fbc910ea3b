from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from graphwright.report.units import (
    BYTE_UNITS,
    format_bytes,
    format_bytes_apart,
    format_flops,
    format_percent,
    format_time,
    glue_units,
    printable,
    shorten_middle,
)


def _bytes_of(text: str) -> float:
    amount, unit = text.split(" ")
    return float(amount) * 1024.0 ** BYTE_UNITS.index(unit)


@given(st.integers(0, 2**60))
def test_bytes_read_back_within_half_a_digit(nbytes: int) -> None:
    assert math.isclose(_bytes_of(format_bytes(nbytes)), nbytes, rel_tol=0.006)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_two_sizes_are_told_apart(first: int, second: int) -> None:
    texts = format_bytes_apart(first, second)
    assert (texts[0] != texts[1]) or math.isclose(first, second, rel_tol=1e-10)
    assert [math.isclose(_bytes_of(text), size, rel_tol=0.006) for text, size in zip(texts, (first, second), strict=True)] == [True, True]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (2**30 - 2**10, "1.00 GiB"),
        (int(312.5 * 2**20), "313 MiB"),
        (-(2**20), "-1.00 MiB"),
    ],
)
def test_bytes(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


def test_not_a_number_is_said() -> None:
    assert {format_bytes(math.nan), format_percent(math.inf), format_time(math.nan), format_flops(math.nan)} == {"not known"}


@pytest.mark.parametrize(
    ("share", "text"), [(0.999, "99.9 %"), (0.00999, "1.0 %"), (0.0099, "0.99 %"), (12.5, "1,250.0 %"), (-0.00001, ">-0.01 %")]
)
def test_percent(share: float, text: str) -> None:
    assert format_percent(share) == text


@pytest.mark.parametrize(("time_s", "text"), [(123.4, "123 s"), (0.9999, "1.00 s"), (0.00099999, "1.00 ms"), (0.0, "0 µs")])
def test_time(time_s: float, text: str) -> None:
    assert format_time(time_s) == text


@given(st.text(max_size=60), st.integers(0, 40))
def test_a_shortened_name_fits(name: str, width: int) -> None:
    name = printable(name)
    short = shorten_middle(name, width)
    assert cell_len(short) <= width
    if cell_len(name) <= width:
        assert short == name


def test_units_are_glued_to_numbers_only() -> None:
    assert glue_units("step 98 of 625, 5.79 GiB, 28 %, 1.2 TFLOP, 3 MLPs, 4 seconds") == (
        "step 98 of 625, 5.79\xa0GiB, 28\xa0%, 1.2\xa0TFLOP, 3 MLPs, 4 seconds"
    )
