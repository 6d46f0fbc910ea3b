"""A dimension as an expression of free dimensions: `batch`, `49*batch`, `batch + 1`, `ceil(x[1]/2)`, `batch*x[1]`.

It is fitted to its sizes at a base binding and, for each symbol, at two bindings in which only that symbol differs. A binding in which all
symbols differ checks it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import gcd, prod
from typing import cast

Dimension = int | str | None
"""A static size; an expression of free dimensions; None for what depends on data."""
_POWERS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Bindings:
    """Sizes of the symbols at which dimensions are looked at: per symbol the base and two more, and those of the checking binding."""

    symbols: tuple[str, ...]
    sizes: Mapping[str, tuple[int, int, int]]
    checked: Mapping[str, int]

    def all(self) -> list[dict[str, int]]:
        """Return the base, two bindings for each symbol, and the checking one; only the base without symbols."""
        base = {symbol: self.sizes[symbol][0] for symbol in self.symbols}
        if not self.symbols:
            return [base]
        varied = [base | {symbol: size} for symbol in self.symbols for size in self.sizes[symbol][1:]]
        return [base, *varied, dict(self.checked)]


def fit_dimension(figures: Sequence[int | None], bindings: Bindings) -> Dimension:
    """Return the expression that gives these sizes at all bindings.

    Args:
        figures: sizes in the order of `Bindings.all`.

    Returns:
        `f(batch)` for an unrecognized dependence on a symbol; None if a size is unknown.

    >>> bindings = Bindings(("batch",), {"batch": (3, 5, 8)}, {"batch": 7})
    >>> [fit_dimension(f, bindings) for f in ([6] * 4, [3, 5, 8, 7], [147, 245, 392, 343], [4, 6, 9, 8], [2, 3, 4, 4], [9, 25, 64, 49])]
    [6, 'batch', '49*batch', 'batch + 1', 'ceil(batch/2)', 'batch^2']
    """
    if None in figures:
        return None
    sizes = cast("Sequence[int]", figures)
    base, varied, check = sizes[0], sizes[1:-1], sizes[-1]
    if len(set(sizes)) == 1:
        return base
    by_symbol = {symbol: (base, *varied[2 * k : 2 * k + 2]) for k, symbol in enumerate(bindings.symbols)}
    changing = [symbol for symbol, seen in by_symbol.items() if len(set(seen)) > 1]
    if len(changing) == 1:
        symbol = changing[0]
        points = dict(zip(bindings.sizes[symbol], by_symbol[symbol], strict=True)) | {bindings.checked[symbol]: check}
        found = _of_one(symbol, points)
    else:
        ways = (_product, _sum, _product_with_one_other)
        found = next((text for way in ways if (text := way(changing, by_symbol, bindings, check))), "")
    return found or f"f({', '.join(changing or bindings.symbols)})"


def _of_one(symbol: str, points: Mapping[int, int]) -> str:
    return _affine(symbol, points) or _power(symbol, points) or _rounded(symbol, points)


def _affine(symbol: str, points: Mapping[int, int]) -> str:
    (a, at_a), (b, at_b) = list(points.items())[:2]
    slope = Fraction(at_b - at_a, b - a)
    constant = at_a - slope * a
    if slope.denominator != 1 or any(constant + slope * size != figure for size, figure in points.items()):
        return ""
    return _written([(int(slope), symbol)], int(constant))


def _power(symbol: str, points: Mapping[int, int]) -> str:
    for power in _POWERS[1:]:
        factors = {Fraction(figure, size**power) for size, figure in points.items()}
        if len(factors) == 1 and (factor := factors.pop()).denominator == 1:
            return _written([(int(factor), f"{symbol}^{power}")], 0)
    return ""


def _rounded(symbol: str, points: Mapping[int, int]) -> str:
    """Fit floor((size + shift) / divisor), as strides and padding make it; written with ceil if possible."""
    ordered = sorted(points.items())
    (first, at_first), (last, at_last) = ordered[0], ordered[-1]
    if at_last <= at_first:
        return ""
    guess = Fraction(last - first, at_last - at_first)
    for divisor in range(max(2, int(guess * Fraction(3, 4))), int(guess * Fraction(4, 3)) + 2):
        low = max(divisor * figure - size for size, figure in ordered)
        high = min(divisor * figure - size + divisor - 1 for size, figure in ordered)
        if low > high:
            continue
        if low <= divisor - 1 <= high:
            return f"ceil({symbol}/{divisor})"
        shift = 0 if low <= 0 <= high else low
        return f"floor({symbol}/{divisor})" if not shift else f"floor(({symbol} {'+' if shift > 0 else '-'} {abs(shift)})/{divisor})"
    return ""


def _product(changing: Sequence[str], by_symbol: Mapping[str, tuple[int, ...]], bindings: Bindings, check: int) -> str:
    factors: list[str] = []
    factor, expected = Fraction(next(iter(by_symbol.values()))[0]), Fraction(check)
    for symbol in changing:
        seen, sizes = by_symbol[symbol], bindings.sizes[symbol]
        for power in _POWERS:
            if all(seen[k] * sizes[0] ** power == seen[0] * sizes[k] ** power for k in (1, 2)):
                break
        else:
            return ""
        factor /= sizes[0] ** power
        expected /= bindings.checked[symbol] ** power
        factors.append(symbol if power == 1 else f"{symbol}^{power}")
    if not factors or factor != expected or factor.denominator != 1:
        return ""
    return _written([(int(factor), "*".join(factors))], 0)


def _product_with_one_other(changing: Sequence[str], by_symbol: Mapping[str, tuple[int, ...]], bindings: Bindings, check: int) -> str:
    """Fit a product of symbols and one expression of another symbol: `batch*ceil(x[1]/2)`."""
    plain = [s for s in changing if all(by_symbol[s][k] * bindings.sizes[s][0] == by_symbol[s][0] * bindings.sizes[s][k] for k in (1, 2))]
    others = [s for s in changing if s not in plain]
    if len(others) != 1 or not plain:
        return ""
    other, base, checked = others[0], prod(bindings.sizes[s][0] for s in plain), prod(bindings.checked[s] for s in plain)
    if check % checked or any(figure % base for figure in by_symbol[other]):
        return ""
    points = dict(zip(bindings.sizes[other], (figure // base for figure in by_symbol[other]), strict=True))
    points[bindings.checked[other]] = check // checked
    common = gcd(*points.values())
    text = _of_one(other, {size: figure // common for size, figure in points.items()})
    factors = [str(common)] * (common > 1) + plain + [f"({text})" if " " in text and not text.startswith(("ceil", "floor")) else text]
    return "*".join(factors) if text else ""


def _sum(changing: Sequence[str], by_symbol: Mapping[str, tuple[int, ...]], bindings: Bindings, check: int) -> str:
    constant, terms, expected = Fraction(next(iter(by_symbol.values()))[0]), list[tuple[int, str]](), Fraction(0)
    for symbol in changing:
        slopes = {Fraction(d - c, b - a) for (a, c), (b, d) in pairwise(zip(bindings.sizes[symbol], by_symbol[symbol], strict=True))}
        slope = slopes.pop()
        if slopes or slope.denominator != 1:
            return ""
        constant -= slope * bindings.sizes[symbol][0]
        expected += slope * bindings.checked[symbol]
        terms.append((int(slope), symbol))
    return _written(terms, int(constant)) if terms and constant + expected == check else ""


def _written(terms: Sequence[tuple[int, str]], constant: int) -> str:
    parts = [(abs(factor), name if abs(factor) == 1 else f"{abs(factor)}*{name}", factor < 0) for factor, name in terms if factor]
    parts += [(abs(constant), str(abs(constant)), constant < 0)] if constant or not parts else []
    parts.sort(key=lambda part: part[2])  # what is taken off comes last
    text = "".join(f" {'-' if negative else '+'} {part}" for _, part, negative in parts)
    return f"-{text[3:]}" if parts[0][2] else text[3:]
