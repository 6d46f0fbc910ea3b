"""Formulas of one free dimension: what they give, how they print, their inverse, and how they are found."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphwright.analyze.formula import Formula, Piece, Polynomial, line
from graphwright.analyze.formula_search import breakpoints, find_formula, formula_through
from graphwright.errors import ArgumentError

LAST = 200
lines = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**4)), min_size=1, max_size=6)
coefficients = st.lists(st.integers(-50, 50), min_size=1, max_size=4)


def one_piece(*numbers: int | Fraction, first: int = 1) -> Formula:
    return Formula((Piece(first, None, Polynomial(tuple(map(Fraction, numbers)))),))


class TestText:
    def test_one_polynomial(self) -> None:
        assert str(one_piece(0, 33554432)) == "33,554,432 * batch"

    def test_bytes_in_pieces(self) -> None:
        mib = 2**20
        pieces = (
            Piece(1, 6, line(105 * mib // 2, 84 * mib)),
            Piece(7, 7, line(3, 0)),
            Piece(8, 9, line(1, 1)),
            Piece(10, None, line(-512, 1)),
        )
        assert str(Formula(pieces, unit="bytes")) == (
            "52.5 MiB + 84 MiB * batch (batch <= 6), 3 B (batch = 7), "
            "1 B + 1 B * batch (8 <= batch <= 9), - 512 B + 1 B * batch (batch >= 10)"
        )

    def test_nothing_is_zero(self) -> None:
        assert str(one_piece(0)) == "0"
        assert str(Formula((Piece(1, None, line(0, 0)),), unit="bytes")) == "0 B"

    def test_exact_coefficients_for_machines(self) -> None:
        formula = Formula((Piece(1, None, line(Fraction(1, 3), 2**60 + 1)),), unit="bytes", how="by hand")
        assert formula.to_json()["pieces"] == [{"first": 1, "last": None, "coefficients": ["1/3", 2**60 + 1]}]


class TestCalls:
    def test_large_figures_are_exact(self) -> None:
        assert one_piece(1, 2**60 + 1)(3) == 3 * (2**60 + 1) + 1

    @pytest.mark.parametrize("size", [0, -1, True, 2.5, "2"])
    def test_a_size_that_is_none(self, size) -> None:
        with pytest.raises(ArgumentError, match="batch"):
            one_piece(1, 1)(size)

    def test_pieces_must_join(self) -> None:
        with pytest.raises(ArgumentError):
            Formula((Piece(1, 5, line(0, 1)), Piece(7, None, line(0, 1))))


class TestInverse:
    @given(coefficients, st.integers(-5000, 50_000))
    def test_it_is_the_largest(self, numbers, budget) -> None:
        formula = one_piece(*numbers)
        largest = formula.largest_within(budget)
        behind = 400  # no polynomial with these coefficients turns or crosses such a budget behind it, unless it is flat
        values = [formula(n) for n in range(1, behind + 1)]
        if largest is None:
            assert values[-1] <= budget
            assert formula(10**6) <= budget
        elif largest > behind:
            assert formula(largest) <= budget < formula(largest + 1)
        else:
            assert [n for n in range(1, behind + 1) if values[n - 1] <= budget][-1:] == ([largest] if largest else [])

    @given(lines, st.integers(0, 3 * 10**6))
    def test_of_what_was_found(self, functions, budget) -> None:
        def figure(n: int) -> int:
            return max(a + b * n for a, b in functions)

        largest = find_formula(figure, LAST).largest_within(budget)
        if largest is None:
            assert all(b == 0 for a, b in functions if a + b * LAST == figure(LAST))
            assert figure(LAST) <= budget
        elif largest == 0:
            assert figure(1) > budget
        elif largest < LAST:
            assert figure(largest) <= budget < figure(largest + 1)

    def test_exact_on_the_border(self) -> None:
        formula = one_piece(10, Fraction(7, 3))
        assert formula.largest_within(17) == 3
        assert formula.largest_within(Fraction(17) - Fraction(1, 10**30)) == 2


class TestSearch:
    @given(lines)
    def test_the_largest_of_lines(self, functions) -> None:
        def figure(n: int) -> int:
            return max(a + b * n for a, b in functions)

        formula = find_formula(figure, LAST)
        assert [formula(n) for n in range(1, LAST + 1)] == [figure(n) for n in range(1, LAST + 1)]
        assert len(formula.pieces) <= 2 * len(functions)
        assert not formula.guesses

    @given(lines, st.lists(st.tuples(st.integers(2, LAST), st.integers(1, 4096)), max_size=3))
    def test_with_steps_that_are_hinted_at(self, functions, steps) -> None:
        def figure(n: int) -> int:
            return max(a + b * n for a, b in functions) + sum(height for size, height in steps if n >= size)

        formula = find_formula(figure, LAST, hints=[size for size, _ in steps], max_evaluations=10_000)
        assert formula.guesses == ()
        evaluated_right = [n for n in range(1, LAST + 1) if formula(n) == figure(n)]
        for size, _ in steps:
            assert {size - 1, size} <= set(evaluated_right)

    @given(coefficients)
    def test_a_polynomial_is_one_piece(self, numbers) -> None:
        expected = one_piece(*numbers)
        found = find_formula(expected.at, LAST)
        assert len(found.pieces) == 1
        assert [found(n) for n in (1, 17, LAST, 10**6)] == [expected(n) for n in (1, 17, LAST, 10**6)]

    def test_each_size_is_evaluated_once_and_few_are(self) -> None:
        sizes: list[int] = []

        def figure(n: int) -> int:
            sizes.append(n)
            return max(100 + 7 * n, 10 * n + 40, 50 * n - 30_000)

        formula = find_formula(figure, 10**6)
        assert len(sizes) == len(set(sizes)) < 40
        assert str(len(sizes)) in formula.how
        assert [p.first for p in formula.pieces] == [1, 21, 752]

    @pytest.mark.parametrize("figure", [lambda n: n * n % 7, lambda n: 1000 * n + (n * 7919) % 64])
    def test_what_has_no_formula_is_said_to_be_guessed(self, figure) -> None:
        formula = find_formula(figure, 10**6, max_evaluations=40)
        assert formula.guesses
        assert "guessed" in formula.how

    @pytest.mark.parametrize("last", [1, 2, 3, 4, 5])
    def test_short_ranges(self, last) -> None:
        formula = find_formula(lambda n: n**3 + 1, last)
        assert [formula(n) for n in range(1, last + 1)] == [n**3 + 1 for n in range(1, last + 1)]

    @pytest.mark.parametrize("step_at", [511, 512])
    def test_a_step_at_the_end_does_not_make_up_a_slope(self, step_at) -> None:
        def figure(n: int) -> int:
            return 7 * n + (4096 if n >= step_at else 0)

        formula = find_formula(figure, 512, hints=[step_at])
        assert str(formula) == f"7 * batch (batch <= {step_at - 1}), 7 * batch + 4,096 (batch >= {step_at})"
        assert not formula.guesses

    def test_no_range(self) -> None:
        with pytest.raises(ArgumentError):
            find_formula(lambda n: n, 0)


class TestThroughFigures:
    def test_lowest_degree(self) -> None:
        found = formula_through({2: 4.0, 3: 9.0, 5: 25.0, 7: 49.0})
        assert str(found) == "batch^2"
        assert "checked at 7" in found.how

    def test_a_special_first_size(self) -> None:
        assert str(formula_through({1: 0, 3: 30, 5: 50, 7: 70})) == "0 (batch = 1), 10 * batch (batch >= 2)"

    def test_none(self) -> None:
        assert formula_through({1: 1, 3: 1, 5: 2, 7: 9, 11: 3}) is None

    def test_thirds_of_cubes(self) -> None:
        assert formula_through({n: n**3 * (2 / 3) for n in (2, 3, 5, 7, 11)}).degree == 3


def test_breakpoints_are_where_a_threshold_is_reached() -> None:
    for constant, slope in ((0, 40), (8, 4), (4095, 1), (4096, 5)):
        for size in breakpoints([(constant, slope)], 4096, 10**4):
            assert constant + slope * (size - 1) < 4096 <= constant + slope * size


def test_neighboring_pieces_of_one_polynomial_are_one() -> None:
    same, other = line(40, 10), line(16, 14)
    formula = Formula((Piece(1, 3, same), Piece(4, 6, line(40, 10)), Piece(7, 9, other), Piece(10, None, same)))
    assert [(p.first, p.last, p.polynomial) for p in formula.pieces] == [(1, 6, same), (7, 9, other), (10, None, same)]
    assert [formula(size) for size in (1, 3, 4, 6, 7, 10)] == [50, 70, 80, 100, 114, 140]
    assert str(formula).count("10 * batch + 40") == 2  # not neighbors
    assert len(formula.to_json()["pieces"]) == 3
