"""Find the formula of a figure that can only be evaluated: few evaluations, exact where the figure is a piecewise polynomial.

A peak is the largest of many sums, each affine in the batch size: a convex, piecewise affine function. Its pieces are found as in
M. J. Eisner and D. G. Severance, "Mathematical techniques for efficient record segmentation in large shared databases", J. ACM 23(4),
1976: where the lines at both ends of a range meet, there is a third line, or the two are all there is. Steps (what is too small to be
counted becomes large enough) break convexity, so every range is also checked inside, and where a line stops to hold without meeting
the next, the last size for which it holds is found by bisection.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from graphwright.analyze.formula import Formula, Piece, Polynomial, Unit, line, trimmed
from graphwright.errors import ArgumentError

MAX_DEGREE = 3
_SHOWN = 12
_BEHIND, _EXTENSIONS = 8, 2  # sizes to look at behind the last one where a figure changes right there, and how often


def find_formula(
    figure: Callable[[int], int | Fraction],
    last: int,
    *,
    hints: Iterable[int] = (),
    unit: Unit = "",
    max_evaluations: int = 64,
) -> Formula:
    """The piecewise polynomial that agrees with a figure at the sizes from 1 to `last`; its last piece goes on behind.

    Args:
        figure: evaluated once for a size, at `max_evaluations` sizes at most.
        last: up to which size the figure is looked at; where it changes right there, a few sizes behind say how it goes on.
        hints: sizes at which the figure may begin to differ; it is checked there and just before.

    Raises:
        ArgumentError: `last` is below 1.

    >>> formula = find_formula(lambda n: max(100 + 7 * n, 10 * n + 40), 1000)
    >>> print(formula)
    7 * batch + 100 (batch <= 20), 10 * batch + 40 (batch >= 21)
    """
    if last < 1:
        raise ArgumentError(f"sizes from 1 to {last} were given", argument="last", remedy="give 1 or more")
    search = _Search(figure, 1, last, frozenset(hints), max_evaluations)
    pieces = search.pieces()
    how = f"evaluated at {len(search.known)} sizes from {min(search.known):,} to {max(search.known):,} ({_listed(search.known)})"
    how += "; exact at each of them" if search.is_exact() else ""
    if search.guesses:
        how += f"; guessed between {', '.join(f'{a:,} and {b:,}' for a, b in search.guesses)}"
    return Formula(pieces, unit=unit, how=how, guesses=tuple(search.guesses))


def formula_through(figures: Mapping[int, int | float | Fraction]) -> Formula | None:
    """One polynomial through figures at some sizes, of a degree so low that at least one of them is left to check it.

    A smallest size at which it does not hold gets a piece of its own: a batch of one is often a special case.

    Returns:
        None where there is none of degree 3 or less.

    >>> print(formula_through({1: 8, 3: 12, 5: 18, 7: 24}))
    8 (batch = 1), 3 * batch + 3 (batch >= 2)
    """
    exact = {size: Fraction(value).limit_denominator(1000) for size, value in sorted(figures.items())}
    for skipped in (0, 1):
        sizes = list(exact)[skipped:]
        for degree in range(min(MAX_DEGREE, len(sizes) - 2) + 1):
            found = interpolate({size: exact[size] for size in sizes[: degree + 1]})
            checked = sizes[degree + 1 :]
            # Equal, as far as figures are floats: thirds of cubes are not exact.
            if all(abs(found.at(size) - exact[size]) <= Fraction(1, 10**9) * max(abs(exact[size]), 1) for size in checked):
                how = f"evaluated at {_listed(sizes[: degree + 1])}, checked at {_listed(checked)}"
                special = list(exact)[:skipped]
                pieces = [Piece(size, size, Polynomial((exact[size],))) for size in special]
                start = special[-1] + 1 if special else min(1, sizes[0])
                return Formula((*pieces, Piece(start, None, found)), how=how)
    return None


def interpolate(points: Mapping[int, Fraction]) -> Polynomial:
    """The polynomial of lowest degree through points (Newton's divided differences).

    >>> print(interpolate({1: Fraction(1), 2: Fraction(4), 3: Fraction(9)}))
    batch^2
    """
    sizes = list(points)
    table = [points[size] for size in sizes]
    coefficients = [Fraction(0)] * len(sizes)
    basis = [Fraction(1)]
    for k, size in enumerate(sizes):
        for power, factor in enumerate(basis):
            coefficients[power] += table[0] * factor
        table = [(table[j + 1] - table[j]) / (sizes[j + k + 1] - sizes[j]) for j in range(len(table) - 1)]
        basis = [below - size * here for below, here in zip([Fraction(0), *basis], [*basis, Fraction(0)], strict=True)]
    return Polynomial(trimmed(coefficients))


def _listed(sizes: Iterable[int]) -> str:
    ordered = sorted(sizes)
    if len(ordered) <= _SHOWN:
        return ", ".join(f"{size:,}" for size in ordered)
    return ", ".join(f"{size:,}" for size in ordered[: _SHOWN - 2]) + ", ..."


class _Search:
    def __init__(self, figure: Callable[[int], int | Fraction], first: int, last: int, hints: frozenset[int], budget: int) -> None:
        self.figure = figure
        self.first = first
        self.last = last
        self.hints = sorted({size for hint in hints for size in (hint - 1, hint) if first <= size <= last})
        self.budget = budget
        self.known: dict[int, Fraction] = {}
        self.found: list[Piece] = []
        self.guesses: list[tuple[int, int]] = []

    def at(self, size: int) -> Fraction:
        if size not in self.known:
            self.known[size] = Fraction(self.figure(size))
        return self.known[size]

    def is_exact(self) -> bool:
        return all(piece.polynomial.at(size) == value for piece in self.found for size, value in self.known.items() if size in piece)

    def pieces(self) -> tuple[Piece, ...]:
        self._look(self.first, self.last)
        for _ in range(_EXTENSIONS if self.last > self.first else 0):
            short = self.found[-1]
            if short.first < self.last - 1:
                break
            self.found.pop()  # one or two sizes say nothing of what comes behind
            self.last += _BEHIND
            self._look(short.first, self.last)
        self.found[-1] = replace(self.found[-1], last=None)
        return tuple(self.found)

    def _look(self, first: int, last: int) -> None:
        ranges = [(first, last)]  # a stack: the smallest sizes on top
        while ranges:
            low, high = ranges.pop()
            polynomial = self._only_piece(low, high)
            if polynomial is None:
                split = self._split(low, high)
                ranges += [(split + 1, high), (low, split)]
            else:
                self._add(Piece(low, high, polynomial))

    def _add(self, piece: Piece) -> None:
        """Append, and join what is one piece: of one or two sizes nobody can say which line they lie on."""
        while self.found:
            before = self.found[-1]
            if before.polynomial == piece.polynomial or self._covers(before.polynomial, piece):
                piece = Piece(before.first, piece.last, before.polynomial)
            elif self._covers(piece.polynomial, before):
                piece = Piece(before.first, piece.last, piece.polynomial)
            else:
                break
            self.found.pop()
        self.found.append(piece)

    def _covers(self, polynomial: Polynomial, piece: Piece) -> bool:
        sizes = (piece.first, piece.last or piece.first)
        return sizes[1] - sizes[0] <= 1 and all(polynomial.at(size) == self.at(size) for size in sizes)

    def _only_piece(self, low: int, high: int) -> Polynomial | None:
        """The polynomial of a range, where there is one for all of it; a chord where no evaluations are left."""
        if high - low <= 1:
            return interpolate({size: self.at(size) for size in dict.fromkeys((low, high))})
        if len(self.known) >= self.budget:
            self.guesses.append((low, high))
            return interpolate({size: self.at(size) for size in (low, high)})
        found = self._local(low, high)
        if found is None or found.at(high) != self.at(high) or found.at(high - 1) != self.at(high - 1):
            return None
        return found if all(found.at(size) == self.at(size) for size in self._inner(low, high)) else None

    def _inner(self, low: int, high: int) -> list[int]:
        """Sizes at which a range is checked: evaluated ones, hints, and some between both ends."""
        span = high - low
        spread = [low + 2, low + span // 2, low + span * 3 // 11, low + span * 8 // 11]
        hints = self.hints if len(self.known) + len(self.hints) < self.budget else []
        chosen = [size for size in [*self.known, *hints, *spread] if low < size < high]
        return list(dict.fromkeys(chosen))

    def _local(self, low: int, high: int) -> Polynomial | None:
        """The polynomial of lowest degree that holds at the first sizes of a range, one more than it takes."""
        for degree in range(1, MAX_DEGREE + 1):
            if low + degree + 1 > high:
                break
            found = interpolate({size: self.at(size) for size in range(low, low + degree + 1)})
            if found.at(low + degree + 1) == self.at(low + degree + 1):
                return found
        return None

    def _split(self, low: int, high: int) -> int:
        """The last size of the left one of two ranges that are looked at separately."""
        left = self._local(low, high)
        if left is None:
            return low if low + 2 >= high else (low + high) // 2 if self._is_rough(low) else low
        right = line(self.at(high) - (self.at(high) - self.at(high - 1)) * high, self.at(high) - self.at(high - 1))
        if left.degree <= 1 and right != left:
            slopes = self._slope(right) - self._slope(left)
            if slopes:
                meet = (left.coefficients[0] - right.coefficients[0]) / slopes
                split = int(meet // 1)
                if low < split < high - 1:
                    return split
        # The largest size up to which it holds, if it holds at none behind.
        holds, fails = low, high
        while fails - holds > 1:
            middle = (holds + fails) // 2
            holds, fails = (middle, fails) if left.at(middle) == self.at(middle) else (holds, middle)
        return holds

    def _slope(self, polynomial: Polynomial) -> Fraction:
        return polynomial.coefficients[1] if polynomial.degree else Fraction(0)

    def _is_rough(self, low: int) -> bool:
        """Whether nothing holds near the lower end even after one size is left aside."""
        return len(self.found) > 1 and all((p.last or p.first) - p.first <= 1 for p in self.found[-2:]) and self.found[-1].last == low - 1


def breakpoints(coefficients: Sequence[tuple[int, int]], threshold: int, last: float) -> set[int]:
    """The sizes up to `last` at which affine figures (constant, slope) reach a threshold.

    >>> sorted(breakpoints([(0, 40), (8, 4), (5000, 8), (0, 0)], 4096, 4096))
    [103, 1022]
    """
    found = {-((constant - threshold) // slope) for constant, slope in coefficients if slope > 0}
    return {size for size in found if 1 < size <= last}
