"""Peaks against the batch size as text for a terminal."""

from __future__ import annotations

from graphwright.report.sweep import SweepPoint, SweepResult
from graphwright.report.terminal_layout import Page
from graphwright.report.units import format_bytes, format_bytes_apart, printable

_BAR_CELLS = 32


def print_sweep(sweep: SweepResult, page: Page) -> None:
    page.headline(f"{printable(sweep.name)}: {sweep.verdict[:1].lower()}{sweep.verdict[1:]}" if sweep.name else sweep.verdict)
    letters = {name: chr(ord("A") + k) for k, name in enumerate(sweep.all)}
    heads = [f"peak {letter}" for letter in letters.values()] if sweep.others else ["peak"]
    columns = ("batch", *heads, "resident", *(["fits"] if sweep.budget_bytes else []), *([] if sweep.others else [""]))
    page.table("Peak against batch size", columns, _rows(sweep), left=tuple(k for k, head in enumerate(columns) if head in ("fits", "")))
    if sweep.others:
        page.pairs("Steps", [(letters[name], _told(name, other)) for name, other in sweep.all.items()])
    page.origins(sweep.origins(letters))


def _rows(sweep: SweepResult) -> list[tuple[str, ...]]:
    points = [{p.batch: p for p in other.points} for other in sweep.all.values()]
    longest = max((p.peak_bytes for p in sweep.points), default=0) or 1
    rows: list[tuple[str, ...]] = []
    for batch in sorted({batch for of_one in points for batch in of_one}):
        found = [of_one.get(batch) for of_one in points]
        resident = "" if found[0] is None else format_bytes(found[0].resident_bytes)
        fits = ", ".join("" if p is None else "yes" if p.peak_bytes <= sweep.budget_bytes else "no" for p in found)
        bar = [_bar(found[0].peak_bytes / longest)] if not sweep.others and found[0] is not None else []
        rows.append((f"{batch:,}", *(_peak(p, sweep.budget_bytes) for p in found), resident, *([fits] if sweep.budget_bytes else []), *bar))
    return rows


def _peak(point: SweepPoint | None, budget_bytes: int) -> str:
    """With as many digits as it takes to tell it from the budget."""
    if point is None:
        return ""
    return format_bytes_apart(point.peak_bytes, budget_bytes)[0] if budget_bytes else format_bytes(point.peak_bytes)


def _bar(share: float) -> str:
    """A bar of full blocks and one of eighths, so that a step of the peak is seen where it is small."""
    eighths = max(1, round(8 * _BAR_CELLS * share))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _told(name: str, sweep: SweepResult) -> str:
    if not sweep.budget_bytes:
        return printable(name)
    return f"{printable(name)}; largest batch that fits: {sweep.largest_batch or 'none'}"
