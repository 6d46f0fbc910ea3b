"""Formulas of the batch size: values, text, and fits through a few figures."""

from __future__ import annotations

from fractions import Fraction

import pytest

from graphwright.analyze.formula import Formula, formula_through
from graphwright.errors import ArgumentError


@pytest.mark.parametrize(
    ("coefficients", "text"),
    [
        ((0,), "0"),
        ((2, 3), "3 * batch + 2"),
        ((-5, 1), "batch - 5"),
        ((0, 0, -1), "- batch^2"),
        ((0, Fraction(1, 3), 0, 1500), "1,500 * batch^3 + 0.3333 * batch"),
    ],
)
def test_the_text_has_the_highest_power_first(coefficients, text) -> None:
    assert str(Formula(tuple(map(Fraction, coefficients)))) == text


def test_bytes_have_the_constant_first_and_a_unit_each() -> None:
    assert Formula((Fraction(2**20 * 3 // 2), Fraction(-(2**40)), Fraction(100))).in_bytes() == "1.5 MiB - 1 TiB * batch + 100 B * batch^2"
    assert Formula((Fraction(0),)).in_bytes() == "0 B"
    assert Formula((Fraction(0), Fraction(1023 * 2**20 + 1)), "n").in_bytes() == "1,023.0 MiB * n"


def test_values_are_exact() -> None:
    formula = Formula((Fraction(1, 3), Fraction(2**60 + 1)))
    assert formula.at(3) == 3 * 2**60 + 3 + Fraction(1, 3)
    assert Formula((Fraction(1), Fraction(2**60 + 1)))(1) == 2**60 + 2
    assert Formula((Fraction(7), Fraction(2)), at_one=Fraction(5)).at(1) == 5


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "3"])
def test_what_is_no_size_is_refused(size) -> None:
    with pytest.raises(ArgumentError, match="from 1 on"):
        Formula((Fraction(1),))(size)


class TestThroughFigures:
    def test_a_square(self) -> None:
        square = formula_through({2: 4.0, 3: 9.0, 5: 25.0, 7: 49.0})
        assert square is not None
        assert square(10) == 100

    def test_a_batch_of_one_may_be_special(self) -> None:
        assert str(formula_through({1: 0, 3: 30, 5: 50, 7: 70})) == "0 (batch = 1), 10 * batch (batch >= 2)"

    def test_no_other_size_may(self) -> None:
        assert formula_through({3: 4, 5: 7, 8: 7}) is None

    def test_no_polynomial(self) -> None:
        assert formula_through({1: 1, 3: 1, 5: 2, 7: 9, 11: 3}) is None

    def test_thirds_of_cubes(self) -> None:
        cube = formula_through({n: n**3 * (2 / 3) for n in (2, 3, 5, 7, 11)})
        assert cube is not None
        assert cube.degree == 3
