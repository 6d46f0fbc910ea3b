"""Budgets as users write them: bytes, a share of the unmodified peak, or text such as "2.5GiB"."""

from __future__ import annotations

import math
import numbers
import re
from fractions import Fraction

from graphwright.errors import ArgumentError

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_TEXT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,2})?)\s*([a-z%]*)\s*", re.IGNORECASE)
_REMEDY = 'give bytes (an int), a share of the unmodified peak (a float between 0 and 1), or text such as "2.5GiB" or "60%"'


def parse_budget(value: object, total_bytes: int) -> int:
    """Turn a budget as a user writes it into bytes.

    Args:
        value: an int is bytes; a float between 0 and 1 is a share of `total_bytes`; text is a
            number with a unit (B, KB, MB, GB, TB in powers of 1000; KiB, MiB, GiB, TiB in powers
            of 1024), a percentage (`"60%"`), or a bare number that is read like the number itself.
        total_bytes: the unmodified peak that shares refer to, resident bytes included.

    Returns:
        The budget in bytes; shares are rounded down.

    Raises:
        ArgumentError: for anything that is not a positive amount, a float of 1 or more (bytes are
            whole numbers), a share of an unknown total, or text that cannot be read.

    >>> parse_budget("2.5GiB", 0)
    2684354560
    >>> parse_budget(0.5, 1000), parse_budget("60%", 1000), parse_budget(512, 1000)
    (500, 600, 512)
    """
    if isinstance(value, str):
        return _from_text(value, total_bytes)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentError(f"a budget of type {type(value).__name__} was given: {value!r}", argument="budget", remedy=_REMEDY)
    if isinstance(value, numbers.Integral):
        return _positive(int(value), value)
    if not math.isfinite(value):
        raise ArgumentError(f"the budget {value!r} is not a finite amount", argument="budget", remedy=_REMEDY)
    # `repr` gives the decimal that the user wrote: 0.29 of 100 bytes are 29, not 28.
    return _from_share(Fraction(repr(float(value))), value, total_bytes)


def is_share(value: object) -> bool:
    """Whether a budget, as `parse_budget` takes it, is a share of the unmodified peak.

    >>> is_share(0.5), is_share("50%"), is_share("2.5GiB"), is_share(512)
    (True, True, False, False)
    """
    return parse_budget(value, 1 << 60) != parse_budget(value, 1 << 61)


def _from_text(text: str, total_bytes: int) -> int:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ArgumentError(f"the budget {text!r} cannot be read", argument="budget", remedy=_REMEDY)
    digits, unit = match.groups()
    amount = Fraction(digits)
    if unit == "%":
        return _from_share(amount / 100, text, total_bytes, largest="100%")
    if unit.upper() not in _UNITS:
        raise ArgumentError(
            f"the budget {text!r} has the unknown unit {unit!r}",
            argument="budget",
            remedy="use B, KB, MB, GB, TB, KiB, MiB, GiB, TiB or %",
        )
    if unit == "" and not re.fullmatch(r"[+-]?\d+", digits):
        return _from_share(amount, text, total_bytes)
    return _positive(amount * _UNITS[unit.upper()], text)


def _from_share(share: Fraction, given: object, total_bytes: int, *, largest: str = "") -> int:
    if share > 1 or (share == 1 and not largest):
        raise ArgumentError(
            f"the budget {given!r} is read as a share of the unmodified peak, and is not below 1",
            argument="budget",
            cause="" if largest else "bytes were meant, which are whole numbers",
            remedy=f"give at most {largest}" if largest else 'give bytes as an int, or text such as "2.5GiB"; "100%" is the whole peak',
        )
    if share > 0 and total_bytes <= 0:
        raise ArgumentError(
            f"the budget {given!r} is a share, and the total it refers to is {total_bytes} bytes",
            argument="budget",
            remedy='give bytes, or text such as "2.5GiB"',
        )
    return _positive(share * total_bytes, given)


def _positive(amount: Fraction | int, given: object) -> int:
    if amount <= 0:
        raise ArgumentError(f"the budget {given!r} is not a positive amount", argument="budget", remedy=_REMEDY)
    if amount < 1:
        raise ArgumentError(f"the budget {given!r} is less than one byte", argument="budget", remedy=_REMEDY)
    return int(amount)
