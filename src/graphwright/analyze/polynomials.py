"""Polynomials of the batch size with exact coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


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


def _number(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.4g}"
