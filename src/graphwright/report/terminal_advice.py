"""Advice as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

from graphwright.report.advice import KINDS, Advice, Suggestion, SuggestionKind, price_text, short
from graphwright.report.out_of_memory import OutOfMemory
from graphwright.report.tables import Column
from graphwright.report.terminal_layout import Page, continued, listed, wrapped
from graphwright.report.terminal_peak import print_live
from graphwright.report.units import feeds_text, format_bytes, printable

_RESULTS: Mapping[SuggestionKind, str] = {"plan": "bit for bit", "plan, all verbs": "but rounding"}
_MEANINGS: Mapping[SuggestionKind, str] = {
    "plan": "plan: computes some values again instead of keeping them",
    "plan, all verbs": "split: runs the batch in parts, one after another",
}
_ROWS = 6
_COLUMNS: Sequence[Column[tuple[str, str, Suggestion]]] = (
    Column("", lambda row: row[0], kind="name"),
    Column("call", lambda row: row[1], kind="decision"),  # whole, since it is copied
    Column("same result?", lambda row: _RESULTS.get(row[2].kind, "no"), kind="text"),
    Column("time", lambda row: row[2].time - 1, lambda change: f"{100 * change:+.0f} %"),
)


def print_advice(advice: Advice, page: Page) -> None:
    """Put the suggestions on a page: those that fit as a table, the best first; the others in a line."""
    page.headline(f"{printable(advice.name)}: {advice.verdict}")
    if page.shows("all"):
        page.paragraph(f"Inputs: {feeds_text(advice.feeds)}")
        _print_suggestions(advice, page)
        if advice.lint:
            page.section("Likely mistakes", *(Text(wrapped(f"- {finding}", page.body_width), style="yellow") for finding in advice.lint))
        page.pairs("Left out", advice.left_out.items())
        page.origins(advice.how.items())
        return
    if fitting := [s for s in advice.suggestions if s.fits][:_ROWS]:
        calls = [_after(before, s.call) for before, s in zip(["", *(s.call for s in fitting)], fitting, strict=False)]
        rows = [(f"{k} {short(s)}", call, s) for k, (call, s) in enumerate(zip(calls, fitting, strict=True), 1)]
        page.lines(listed(page.width, rows, _COLUMNS))
        page.flow([text for kind, text in _MEANINGS.items() if any(s.kind == kind for s in fitting)], "; ")
    others = [f"{short(s)} {format_bytes(s.peak_bytes)}" for s in advice.suggestions if not s.fits]
    page.flow([f"Not enough alone: {text}" for text in others[:1]] + others[1:], ", ")
    if not fitting:
        for what, why in list(advice.left_out.items())[:_ROWS]:
            page.paragraph(f"- {KINDS.get(what, what)}: {why}")
    if advice.lint:
        first, *rest = advice.lint
        page.paragraph(f"Likely a mistake: {first}{f' ({len(rest)} more)' * bool(rest)}", "yellow")


def _after(first: str, call: str) -> str:
    """A call without what it shares with the one above it.

    >>> _after('gw.optimize_memory(step, "1GiB")', 'gw.optimize_memory(step, "1GiB", allow="all")')
    '..., allow="all")'
    """
    return f"...{call.removeprefix(first[:-1])}" if first and call.startswith(first[:-1]) else call


def print_out_of_memory(report: OutOfMemory, page: Page) -> None:
    """Put what was asked for, what was held and what would fit on a page."""
    page.headline(report.verdict)
    if report.peak is not None:
        print_live("Live at the peak", report.peak.live, report.peak.peak_bytes, page)
    if report.advice is not None:
        page.section("What would fit")
        _print_suggestions(report.advice, page)
    if report.left_out:
        page.pairs("Not known", [("the step", report.left_out)])


def _print_suggestions(advice: Advice, page: Page) -> None:
    """Each with its peak, time and results, its call, which is copied as it is, and its command, which goes on in the next line."""
    for number, s in enumerate(advice.suggestions, 1):
        time = "time not predicted" if math.isnan(s.time) else f"{price_text(s.time)} for each example"
        words = wrapped(f"{format_bytes(s.peak_bytes)}; {s.fits_words(advice.memory_bytes)}; {time}; {s.results}", page.body_width)
        ways = [Text(text, style="bold") for text in (printable(s.call), continued(printable(s.command), page.body_width)) if text]
        page.section(f"{number}. {s.what}", Text(words, style="" if s.fits else "dim"), *ways)
    if not advice.suggestions:
        page.section("What can be done", Text("nothing that was tried needs less", style="dim"))
