"""Fewer points for a chart that keep its highs and lows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def envelope(values: Sequence[int], limit: int, keep: Sequence[int] = ()) -> list[int]:
    """Return positions that draw `values` in about `limit` points: of each run its highest and its lowest.

    The global maximum and minimum and both ends are included, so a peak of one step in a hundred thousand is drawn. With at most `limit`
    values all positions are returned.

    >>> envelope([0, 1, 9, 1, 0, 0, 0, 5], 4)
    [0, 2, 4, 7]
    >>> envelope([3, 1, 2], 4)
    [0, 1, 2]
    """
    count = len(values)
    if count <= limit:
        return list(range(count))
    runs = max(limit // 2, 1)
    chosen = {0, count - 1, *keep}
    for run in range(runs):
        positions = range(run * count // runs, (run + 1) * count // runs)
        chosen.add(max(positions, key=values.__getitem__))
        chosen.add(min(positions, key=values.__getitem__))
    return sorted(chosen)


def runs(flags: Sequence[bool], merge_gap: int = 0) -> list[tuple[int, int]]:
    """Return (first, last) positions of runs of true `flags`; gaps of at most `merge_gap` are closed.

    >>> runs([True, True, False, True, False, False, True])
    [(0, 1), (3, 3), (6, 6)]
    >>> runs([True, True, False, True, False, False, True], merge_gap=1)
    [(0, 3), (6, 6)]
    """
    spans: list[tuple[int, int]] = []
    for position, flag in enumerate(flags):
        if not flag:
            continue
        if spans and position - spans[-1][1] <= merge_gap + 1:
            spans[-1] = (spans[-1][0], position)
        else:
            spans.append((position, position))
    return spans


def mostly(kinds: Sequence[int | None], reach: int) -> list[int]:
    """Return for each position the most frequent kind within `reach` neighbors; None does not count.

    >>> mostly([0, 0, 1, 0, None, 0, 1, 1, 0, 1], 2)
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    """
    counts = Counter[int | None](kinds[:reach])
    kept_kinds: list[int] = []
    for position in range(len(kinds)):
        counts.update(kinds[position + reach : position + reach + 1])
        if position > reach:
            counts[kinds[position - reach - 1]] -= 1
        known = {kind: count for kind, count in counts.items() if kind is not None and count}
        own, last = kinds[position], kept_kinds[-1] if kept_kinds else 0
        # Of kinds that are as frequent the position's own one, then that of the position before.
        kept_kinds.append(max(known, key=lambda kind: (known[kind], kind == own, kind == last)) if known else last)
    return kept_kinds
