"""Budgets as users write them: bytes, a share of the unmodified peak, or text such as "2.5GiB"."""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from graphwright.errors import ArgumentError

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_TEXT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,2})?)\s*([a-z%]*)\s*", re.IGNORECASE)
_REMEDY = 'give bytes (an int), a share of the unmodified peak (a float between 0 and 1), or text such as "2.5GiB" or "60%"'


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget: bytes, or a share of the unmodified peak, resident bytes included."""

    given: Any
    amount: Fraction
    is_share: bool

    @property
    def plain(self) -> int | float | str:
        """The user's value, as plan files hold it."""
        return self.given if isinstance(self.given, str) else float(self.given) if self.is_share else int(self.given)

    @classmethod
    def read(cls, given: object, argument: str = "budget") -> Budget:
        """Read a budget.

        Raises `ArgumentError` for an amount that is not positive, a float of 1 or more (bytes are whole numbers), and unreadable text.

        Args:
            given: an int is bytes; a float between 0 and 1 is a share; text is a number with a unit (B, KB, MB, GB, TB in powers of 1000;
                KiB, MiB, GiB, TiB in powers of 1024), a percentage (`"60%"`), or a bare number that is read like the number itself.
            argument: name for messages.

        >>> Budget.read("2.5GiB").nbytes, Budget.read(512).of(1000)
        (2684354560, 512)
        >>> Budget.read(0.5).of(1000), Budget.read("60%").of(1000)
        (500, 600)
        """
        try:
            return cls._read(given)
        except ArgumentError as error:
            error.argument = argument
            raise

    @classmethod
    def _read(cls, given: object) -> Budget:
        if isinstance(given, str):
            return _from_text(given)
        if isinstance(given, bool) or not isinstance(given, numbers.Real):
            raise ArgumentError(f"a budget of type {type(given).__name__} was given: {given!r}", argument="budget", remedy=_REMEDY)
        if isinstance(given, numbers.Integral):
            return cls(given, Fraction(_positive(int(given), given)), is_share=False)
        if not math.isfinite(given):
            raise ArgumentError(f"the budget {given!r} is not a finite amount", argument="budget", remedy=_REMEDY)
        # `repr` gives the decimal that the user wrote: 0.29 of 100 bytes are 29, not 28.
        return _share(Fraction(repr(float(given))), given)

    def of(self, peak_bytes: int) -> int:
        """Return the budget in bytes; a share is taken of this peak and rounded down. Raises `ArgumentError` below one byte."""
        return _positive(self.amount * peak_bytes, self.given) if self.is_share else int(self.amount)

    @property
    def nbytes(self) -> int:
        """The budget in bytes; raises `ArgumentError` for a share."""
        if self.is_share:
            raise ArgumentError(
                f"the budget {self.given!r} is a share, but there is no single peak to which it refers",
                argument="budget",
                remedy='give bytes, or text such as "2.5GiB"',
            )
        return int(self.amount)


def _from_text(text: str) -> Budget:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ArgumentError(f"the budget {text!r} cannot be read", argument="budget", remedy=_REMEDY)
    digits, unit = match.groups()
    amount = Fraction(digits)
    if unit == "%":
        return _share(amount / 100, text, largest="100%")
    if unit.upper() not in _UNITS:
        raise ArgumentError(
            f"the budget {text!r} has the unknown unit {unit!r}",
            argument="budget",
            remedy="use B, KB, MB, GB, TB, KiB, MiB, GiB, TiB or %",
        )
    if unit == "" and not re.fullmatch(r"[+-]?\d+", digits):
        return _share(amount, text)
    return Budget(text, Fraction(_positive(amount * _UNITS[unit.upper()], text)), is_share=False)


def _share(share: Fraction, given: object, *, largest: str = "") -> Budget:
    if share > 1 or (share == 1 and not largest):
        raise ArgumentError(
            f"the budget {given!r} is read as a share of the unmodified peak, and is not below 1",
            argument="budget",
            cause="" if largest else "perhaps bytes were meant, which are whole numbers",
            remedy=f"give at most {largest}" if largest else 'give bytes as an int, or text such as "2.5GiB"; "100%" is the whole peak',
        )
    if share <= 0:
        _positive(share, given)
    return Budget(given, share, is_share=True)


def _positive(amount: Fraction | int, given: object) -> int:
    if amount <= 0:
        raise ArgumentError(f"the budget {given!r} is not a positive amount", argument="budget", remedy=_REMEDY)
    if amount < 1:
        raise ArgumentError(f"the budget {given!r} is less than one byte", argument="budget", remedy=_REMEDY)
    return int(amount)
