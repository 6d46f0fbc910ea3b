"""A count as a polynomial of the batch size, with exact fractions, through its values at a few sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from graphwright.errors import ArgumentError
from graphwright.plain import Result

_MAX_DEGREE = 3
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Formula(Result):
    """A polynomial of a whole number from 1 on, mostly the batch size.

    Attributes:
        coefficients: the constant first.
        variable: the name of the free dimension.
        at_one: the value at 1 if the polynomial holds only from 2 on, else None.

    >>> formula = Formula((Fraction(2), Fraction(3), Fraction(1, 2)))
    >>> print(formula)
    0.5 * batch^2 + 3 * batch + 2
    >>> formula(4), formula(3)
    (22, 15.5)
    """

    coefficients: tuple[Fraction, ...]
    variable: str = "batch"
    at_one: Fraction | None = None

    @property
    def degree(self) -> int:
        """The highest power; 0 for a constant."""
        return len(self.coefficients) - 1

    def at(self, size: int) -> Fraction:
        """Return the exact value at a size.

        Raises:
            ArgumentError: the size is not a whole number from 1 on.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"{self.variable} = {size!r} was given", where=f"a formula of {self.variable}", remedy="give a whole number from 1 on"
            )
        if size == 1 and self.at_one is not None:
            return self.at_one
        return sum((coefficient * size**power for power, coefficient in enumerate(self.coefficients)), Fraction(0))

    def __call__(self, size: int) -> int | float:
        """Return the value at a size, as an integer if it is whole, see `at`."""
        value = self.at(size)
        return value.numerator if value.denominator == 1 else float(value)

    def __str__(self) -> str:
        text = self._written(_number, reversed(self._terms()))
        return text if self.at_one is None else f"{_number(self.at_one)} ({self.variable} = 1), {text} ({self.variable} >= 2)"

    def in_bytes(self) -> str:
        """Return the polynomial as text, the constant first, each coefficient in a suitable unit.

        >>> print(Formula((Fraction(2**20), Fraction(3 * 2**9))).in_bytes())
        1 MiB + 1.5 KiB * batch
        """
        return self._written(_size, self._terms())

    def _terms(self) -> list[tuple[int, Fraction]]:
        return [(power, coefficient) for power, coefficient in enumerate(self.coefficients) if coefficient or not self.degree]

    def _written(self, number: Callable[[Fraction], str], terms: Iterable[tuple[int, Fraction]]) -> str:
        text = ""
        for power, coefficient in terms:
            name = self.variable if power == 1 else f"{self.variable}^{power}"
            factor = number(abs(coefficient))
            text += (" - " if text else "- ") if coefficient < 0 else " + " if text else ""
            text += factor if not power else name if factor == "1" else f"{factor} * {name}"
        return text


def formula_through(figures: Mapping[int, float]) -> Formula | None:
    """Return the polynomial of lowest degree through the values at some sizes, or None above degree 3; at least one more value checks it.

    A batch of one is often a special case, so the polynomial need not hold there.

    >>> print(formula_through({1: 8, 3: 12, 5: 18, 7: 24}))
    8 (batch = 1), 3 * batch + 3 (batch >= 2)
    """
    exact = {size: Fraction(value).limit_denominator(1000) for size, value in sorted(figures.items())}
    for at_one in (None, exact.get(1)):
        sizes = [size for size in exact if size > 1 or at_one is None]
        for degree in range(min(_MAX_DEGREE, len(sizes) - 2) + 1):
            formula = Formula(_interpolated({size: exact[size] for size in sizes[: degree + 1]}), at_one=at_one)
            # Values are floats: thirds of cubes are not exact.
            if all(abs(formula.at(size) - exact[size]) <= Fraction(1, 10**9) * max(abs(exact[size]), 1) for size in sizes):
                return formula
    return None


def _interpolated(points: Mapping[int, Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the polynomial through points, by Newton's divided differences, without leading zeros."""
    sizes, table = list(points), list(points.values())
    coefficients, basis = [Fraction(0)] * len(sizes), [Fraction(1)]
    for k, size in enumerate(sizes):
        for power, factor in enumerate(basis):
            coefficients[power] += table[0] * factor
        table = [(table[j + 1] - table[j]) / (sizes[j + k + 1] - sizes[j]) for j in range(len(table) - 1)]
        basis = [below - size * here for below, here in zip([Fraction(0), *basis], [*basis, Fraction(0)], strict=True)]
    while len(coefficients) > 1 and not coefficients[-1]:
        coefficients.pop()
    return tuple(coefficients)


def _number(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.4g}"


def _size(nbytes: Fraction) -> str:
    """Format bytes with one more decimal than elsewhere, since they are multiplied."""
    unit = 0
    while unit + 1 < len(_BYTE_UNITS) and nbytes >= 1024 ** (unit + 1):
        unit += 1
    scaled = nbytes / 1024**unit
    text = f"{float(scaled):,.1f}" if scaled.denominator != 1 and scaled >= 1000 else _number(scaled)
    return f"{text} {_BYTE_UNITS[unit]}"
