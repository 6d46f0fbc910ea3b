"""A figure as a function of one free dimension, mostly the batch size: polynomials in pieces, with exact fractions.

How such a function is found by evaluating a figure at some sizes: `graphwright.analyze.formula_search`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from graphwright.errors import ArgumentError
from graphwright.plain import Result

Unit = Literal["", "bytes"]
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Coefficients, the constant first.

    >>> print(Polynomial((Fraction(0), Fraction(33554432))))
    33,554,432 * batch
    >>> Polynomial((Fraction(2), Fraction(3), Fraction(1, 2)))(4)
    22.0
    """

    coefficients: tuple[Fraction, ...]
    variable: str = "batch"

    def __call__(self, batch: int) -> float:
        return float(self.at(batch))

    def at(self, batch: int) -> Fraction:
        """The exact figure at a batch size."""
        total = Fraction(0)
        for coefficient in reversed(self.coefficients):
            total = total * batch + coefficient
        return total

    @property
    def degree(self) -> int:
        """The highest power; 0 for a constant."""
        return max(len(self.coefficients) - 1, 0)

    def __str__(self) -> str:
        return self.written("")

    def written(self, unit: Unit) -> str:
        """The highest power first; of bytes the constant, and each coefficient in what suits it: `102.5 MiB + 84.1 MiB * batch`."""
        terms: list[str] = []
        powers = list(enumerate(self.coefficients or (Fraction(0),)))
        for power, coefficient in powers if unit == "bytes" else reversed(powers):
            if not coefficient and self.degree:
                continue
            name = "" if power == 0 else self.variable if power == 1 else f"{self.variable}^{power}"
            number = _size(abs(coefficient)) if unit == "bytes" else _number(abs(coefficient))
            sign = "- " if coefficient < 0 else "+ " if terms else ""
            terms.append(sign + (name if name and number == "1" else f"{number} * {name}" if name else number))
        return " ".join(terms)


@dataclass(frozen=True, slots=True)
class Piece:
    """A polynomial on a range of sizes.

    Attributes:
        first: the smallest size.
        last: the largest size; None for a piece without end.
    """

    first: int
    last: int | None
    polynomial: Polynomial

    def __contains__(self, size: int) -> bool:
        return self.first <= size and (self.last is None or size <= self.last)


@dataclass(frozen=True, slots=True)
class Formula(Result):
    """A piecewise polynomial of one whole number, 1 and more. Its pieces join without a gap, the last one has no end.

    Neighboring pieces of one polynomial become one piece.

    Attributes:
        pieces: by size.
        variable: what the free dimension is called.
        unit: "bytes" where the figure is one, so that it prints in MiB.
        how: at which sizes the figure was evaluated, and at which the formula was checked.
        guesses: ranges inside of which nothing confirms the formula; empty where all of it was checked.

    >>> formula = Formula((Piece(1, 6, line(40, 10)), Piece(7, None, line(16, 14))), unit="")
    >>> print(formula)
    10 * batch + 40 (batch <= 6), 14 * batch + 16 (batch >= 7)
    >>> formula(2), formula(10), formula.largest_within(105), formula.largest_within(49)
    (60, 156, 6, 0)
    """

    pieces: tuple[Piece, ...]
    variable: str = "batch"
    unit: Unit = ""
    how: str = ""
    guesses: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        joined = all(a.last is not None and a.last + 1 == b.first for a, b in pairwise(self.pieces))
        if not self.pieces or not joined or self.pieces[-1].last is not None:
            raise ArgumentError("the pieces of a formula do not join", argument="pieces", remedy="each begins where the last ends")
        object.__setattr__(self, "pieces", _joined(self.pieces, lambda a, b: trimmed(a.coefficients) == trimmed(b.coefficients)))

    @property
    def first(self) -> int:
        """The smallest size that it is made for."""
        return self.pieces[0].first

    @property
    def degree(self) -> int:
        """The highest power in any piece."""
        return max(piece.polynomial.degree for piece in self.pieces)

    def at(self, size: int) -> Fraction:
        """The exact figure at a size.

        Raises:
            ArgumentError: no such size.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < self.first:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"{self.variable} = {size!r} was given",
                where=f"a formula of {self.variable}",
                remedy=f"give a whole number from {self.first} on",
            )
        return next(piece for piece in self.pieces if size in piece).polynomial.at(size)

    def __call__(self, size: int) -> int | float:
        """The figure at a size; a whole number where it is one.

        Raises:
            ArgumentError: no such size.
        """
        return whole_or_float(self.at(size))

    def largest_within(self, budget: float | Fraction) -> int | None:
        """The largest size at which the figure is not above a budget, exactly.

        Returns:
            0 where no size fits; None where there is no largest one.
        """
        limit = Fraction(budget)
        for piece in reversed(self.pieces):
            found = _largest(piece, limit)
            if found is None or found:
                return found
        return 0

    def __str__(self) -> str:
        return ", ".join(f"{text} ({where})" if where else text for where, text in self.lines())

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Each piece as text: where it holds, and its polynomial. Neighbors that read the same are one."""
        shown = self.told_apart()
        return tuple((self.where(p) if len(shown) > 1 else "", self._written(p.polynomial)) for p in shown)

    def told_apart(self) -> tuple[Piece, ...]:
        """The pieces, those joined whose polynomials differ by less than is written of them.

        >>> pieces = (Piece(1, 50, line(2**20, 2**30)), Piece(51, None, line(2**20, 2**30 + 8)))
        >>> print(Formula(pieces, unit="bytes"))
        1 MiB + 1 GiB * batch
        """
        return _joined(self.pieces, lambda a, b: self._written(a) == self._written(b))

    def where(self, piece: Piece) -> str:
        """The range of a piece in words: "batch <= 6"."""
        if piece.last is None:
            return f"{self.variable} >= {piece.first:,}"
        if piece.first == piece.last:
            return f"{self.variable} = {piece.first:,}"
        if piece.first <= 1:
            return f"{self.variable} <= {piece.last:,}"
        return f"{piece.first:,} <= {self.variable} <= {piece.last:,}"

    def _written(self, polynomial: Polynomial) -> str:
        return replace(polynomial, variable=self.variable).written(self.unit)

    def to_json(self) -> dict[str, object]:
        """Text and exact coefficients, the constant first; a fraction as text."""
        return {
            "text": str(self),
            "variable": self.variable,
            "unit": self.unit or None,
            "pieces": [
                {"first": p.first, "last": p.last, "coefficients": [_plain(c) for c in p.polynomial.coefficients]} for p in self.pieces
            ],
            "guesses": [list(span) for span in self.guesses],
            "how": self.how,
        }


def _joined(pieces: Iterable[Piece], is_same: Callable[[Polynomial, Polynomial], bool]) -> tuple[Piece, ...]:
    """Neighbors with the same polynomial as one."""
    kept: list[Piece] = []
    for piece in pieces:
        if kept and is_same(kept[-1].polynomial, piece.polynomial):
            piece = Piece(kept.pop().first, piece.last, piece.polynomial)
        kept.append(piece)
    return tuple(kept)


def line(constant: int | Fraction, slope: int | Fraction) -> Polynomial:
    """constant + slope * size.

    >>> print(line(2, 3))
    3 * batch + 2
    """
    return Polynomial(trimmed((Fraction(constant), Fraction(slope))))


def trimmed(coefficients: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Without zeros at the highest powers; at least the constant."""
    kept = list(coefficients)
    while len(kept) > 1 and not kept[-1]:
        kept.pop()
    return tuple(kept)


def whole_or_float(value: Fraction) -> int | float:
    """A fraction as users see it."""
    return value.numerator if value.denominator == 1 else float(value)


def _plain(value: Fraction) -> int | str:
    return value.numerator if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


# The inverse. On whole numbers, p rises where p(n+1) - p(n) > 0, a polynomial of one degree less.


def _largest(piece: Piece, limit: Fraction) -> int | None:
    """The largest size of a piece within the limit; 0 for none, None for no end."""
    polynomial = piece.polynomial
    last = piece.last
    if last is None:
        if polynomial.degree == 0 or polynomial.coefficients[-1] < 0:
            return None if polynomial.degree or polynomial.at(piece.first) <= limit else 0
        # Behind Cauchy's bound the polynomial has the value `limit` nowhere.
        *below, highest = polynomial.coefficients[0] - limit, *polynomial.coefficients[1:]
        last = max(piece.first, int(1 + max(abs(c / highest) for c in below)) + 1)
    for low, high in reversed(list(_monotone(polynomial.coefficients, piece.first, last))):
        if polynomial.at(high) <= limit:
            return high
        if polynomial.at(low) <= limit:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if polynomial.at(middle) <= limit else (low, middle)
            return low
    return 0


def _monotone(coefficients: Sequence[Fraction], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover `first` to `last`, on each of which the polynomial only rises or only falls."""
    if len(coefficients) <= 2 or last - first <= 1:
        yield first, last
        return
    growth = _growth(coefficients)
    rises = Polynomial(growth).at
    start = first
    for low, high in list(_monotone(growth, first, last - 1)):
        if (rises(low) > 0) == (rises(high) > 0):
            turns = [low] if low > start and (rises(low - 1) > 0) != (rises(low) > 0) else []
        else:
            left, right = low, high
            while right - left > 1:
                middle = (left + right) // 2
                left, right = (middle, right) if (rises(middle) > 0) == (rises(low) > 0) else (left, middle)
            turns = [right]
        for turn in turns:
            yield start, turn
            start = turn
    yield start, last


def _growth(coefficients: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of p(n+1) - p(n)."""
    moved = [Fraction(0)] * len(coefficients)
    row = [1]
    for power, coefficient in enumerate(coefficients):
        for k in range(power):
            moved[k] += coefficient * row[k]
        row = [1, *(a + b for a, b in pairwise(row)), 1]
    return trimmed(moved[:-1])


# Text


def _number(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.4g}"


def _size(nbytes: Fraction) -> str:
    """Bytes with one decimal more than elsewhere: they are multiplied."""
    unit = 0
    while unit + 1 < len(_BYTE_UNITS) and nbytes >= 1024 ** (unit + 1):
        unit += 1
    scaled = nbytes / 1024**unit
    text = f"{scaled.numerator:,}" if scaled.denominator == 1 else f"{float(scaled):,.4g}" if scaled < 1000 else f"{float(scaled):,.1f}"
    return f"{text} {_BYTE_UNITS[unit]}"
