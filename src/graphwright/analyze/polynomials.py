"""A figure as an exact polynomial of the batch size: fitted through values at some sizes, checked at another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

_TOLERANCE = Fraction(1, 10**9)  # figures are floats: thirds of cubes are not exact


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
        """The figure at a batch size."""
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
        terms: list[str] = []
        for power in range(self.degree, -1, -1):
            coefficient = self.coefficients[power] if self.coefficients else Fraction(0)
            if not coefficient and self.degree:
                continue
            name = "" if power == 0 else self.variable if power == 1 else f"{self.variable}^{power}"
            number = _number(abs(coefficient))
            sign = "- " if coefficient < 0 else "+ " if terms else ""
            terms.append(sign + (name if name and number == "1" else f"{number} * {name}" if name else number))
        return " ".join(terms)


def fit_polynomial(figures: Mapping[int, float]) -> Polynomial | None:
    """The polynomial of lowest degree through the figures at all sizes but the largest, if it also gives the figure there.

    Newton's divided differences, in fractions. A figure that grows by steps gives None.

    >>> print(fit_polynomial({1: 5.0, 2: 8.0, 3: 11.0, 5: 17.0, 7: 23.0}))
    3 * batch + 2
    >>> fit_polynomial({1: 1.0, 2: 1.0, 3: 2.0, 5: 3.0, 7: 4.0}) is None
    True
    """
    sizes = sorted(figures)
    values = {size: Fraction(figures[size]).limit_denominator(1000) for size in sizes}
    fitted, checked = sizes[:-1], sizes[-1]
    differences = [values[size] for size in fitted]
    coefficients = [Fraction(0)] * len(fitted)
    basis = [Fraction(1)]
    for k in range(len(fitted)):
        for power, b in enumerate(basis):
            coefficients[power] += differences[0] * b
        differences = [(b - a) / (fitted[j + k + 1] - fitted[j]) for j, (a, b) in enumerate(pairwise(differences))]
        basis = [
            (basis[p - 1] if p else Fraction(0)) - fitted[k] * (basis[p] if p < len(basis) else Fraction(0)) for p in range(len(basis) + 1)
        ]
    while len(coefficients) > 1 and not coefficients[-1]:
        coefficients.pop()
    found = Polynomial(tuple(coefficients))
    expected = values[checked]
    difference = abs(Fraction(found(checked)) - expected)
    return found if difference <= _TOLERANCE * max(abs(expected), 1) else None


def _number(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.4g}"
