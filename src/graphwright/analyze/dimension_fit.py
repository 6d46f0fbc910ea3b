"""A dimension as an expression of free dimensions: `batch`, `49*batch`, `batch + 1`, `ceil(x[1]/2)`, `batch*x[1]`.

It is fitted to its sizes at a base binding and, for each symbol, at two bindings in which only that symbol differs. A binding in which all
symbols differ checks it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import gcd, prod
from typing import cast

Dimension = int | str | None
"""A static size; an expression of free dimensions; None for what depends on data."""
_POWERS = (2, 3)


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
    rows = {symbol: (base, *varied[2 * k : 2 * k + 2]) for k, symbol in enumerate(bindings.symbols)}
    points = {symbol: dict(zip(bindings.sizes[symbol], row, strict=True)) for symbol, row in rows.items() if len(set(row)) > 1}
    if len(points) == 1:
        [symbol] = points
        points[symbol][bindings.checked[symbol]] = check
    fits = (way(points) for way in ((_of_one, _product) if len(points) == 1 else (_product, _sum)))
    text = next((fit.text for fit in fits if fit is not None and fit.value(bindings.checked) == check), "")
    return text or f"f({', '.join(points or bindings.symbols)})"


@dataclass(frozen=True, slots=True)
class _Fit:
    text: str
    value: Callable[[Mapping[str, int]], int]


_Points = Mapping[str, Mapping[int, int]]
"""By symbol, the figures at its sizes, while the other symbols keep their base."""


def _of_one(points: _Points) -> _Fit | None:
    [(symbol, figures)] = points.items()
    return _sum(points) or _power(symbol, figures) or _rounded(symbol, figures)


def _power(symbol: str, figures: Mapping[int, int]) -> _Fit | None:
    for power in _POWERS:
        factors = {Fraction(figure, size**power) for size, figure in figures.items()}
        if len(factors) == 1 and (factor := factors.pop()).denominator == 1:
            return _Fit(_written([(int(factor), f"{symbol}^{power}")], 0), lambda sizes, power=power: int(factor) * sizes[symbol] ** power)
    return None


def _rounded(symbol: str, figures: Mapping[int, int]) -> _Fit | None:
    """Fit floor((size + shift) / divisor), as strides and padding make it; written with ceil if possible."""
    ordered = sorted(figures.items())
    (first, at_first), (last, at_last) = ordered[0], ordered[-1]
    if at_last <= at_first:
        return None
    guess = Fraction(last - first, at_last - at_first)
    for divisor in range(max(2, int(guess * Fraction(3, 4))), int(guess * Fraction(4, 3)) + 2):
        low = max(divisor * figure - size for size, figure in ordered)
        high = min(divisor * figure - size + divisor - 1 for size, figure in ordered)
        for shift in (divisor - 1, 0, low):
            if low <= shift <= high:
                inside = symbol if not shift else f"({symbol} {'+' if shift > 0 else '-'} {abs(shift)})"
                text = f"ceil({symbol}/{divisor})" if shift == divisor - 1 else f"floor({inside}/{divisor})"
                return _Fit(text, lambda sizes, shift=shift, divisor=divisor: (sizes[symbol] + shift) // divisor)
    return None


def _product(points: _Points) -> _Fit | None:
    """Fit a product of expressions of one symbol each: `batch*ceil(x[1]/2)`."""
    fits: list[_Fit] = []
    factor = Fraction(1)
    for symbol, figures in points.items():
        common = gcd(*figures.values())
        fit = _of_one({symbol: {size: figure // common for size, figure in figures.items()}})
        if fit is None:
            return None
        first = next(iter(figures.values()))
        factor = factor * Fraction(common, first) if fits else Fraction(common)
        fits.append(fit)
    if factor.denominator != 1:
        return None
    texts = [f"({fit.text})" if " " in fit.text and not fit.text.startswith(("ceil", "floor")) else fit.text for fit in fits]
    text = "*".join([*[str(factor)] * (factor > 1), *texts])
    return _Fit(text, lambda sizes: int(factor) * prod(fit.value(sizes) for fit in fits))


def _sum(points: _Points) -> _Fit | None:
    constant, terms = Fraction(next(iter(next(iter(points.values())).values()))), list[tuple[int, str]]()
    for symbol, figures in points.items():
        slopes = {Fraction(d - c, b - a) for (a, c), (b, d) in pairwise(figures.items())}
        slope = slopes.pop()
        if slopes or slope.denominator != 1:
            return None
        constant -= slope * next(iter(figures))
        terms.append((int(slope), symbol))
    return _Fit(_written(terms, int(constant)), lambda sizes: int(constant) + sum(slope * sizes[symbol] for slope, symbol in terms))


def _written(terms: Sequence[tuple[int, str]], constant: int) -> str:
    parts = [(abs(factor), name if abs(factor) == 1 else f"{abs(factor)}*{name}", factor < 0) for factor, name in terms if factor]
    parts += [(abs(constant), str(abs(constant)), constant < 0)] if constant or not parts else []
    parts.sort(key=lambda part: part[2])  # what is taken off comes last
    text = "".join(f" {'-' if negative else '+'} {part}" for _, part, negative in parts)
    return f"-{text[3:]}" if parts[0][2] else text[3:]
