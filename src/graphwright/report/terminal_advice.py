"""Advice as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

from graphwright.report.advice import Advice, Suggestion, SuggestionKind, price_text
from graphwright.report.out_of_memory import OutOfMemory
from graphwright.report.tables import Column
from graphwright.report.terminal_layout import Page, listed, wrapped
from graphwright.report.terminal_peak import print_live
from graphwright.report.units import feeds_text, format_bytes, printable

_ROWS = 6


def print_advice(advice: Advice, page: Page) -> None:
    """Put the suggestions on a page as a table, the best first, and how to follow the first one."""
    page.headline(f"{printable(advice.name)}: {advice.verdict}")
    if page.shows("all"):
        page.paragraph(f"Inputs: {feeds_text(advice.feeds)}")
        _print_suggestions(advice, page)
    elif advice.suggestions:
        page.lines(listed(page.width, enumerate(advice.suggestions, 1), _COLUMNS, limit=_ROWS))
        first = advice.suggestions[0]
        for label, text in (("In code", first.call), ("Command", _continued(printable(first.command), page.body_width))):
            if text and first.fits:
                page.line(Text(f"{label}: {printable(text, lines=True)}"))
    if not advice.suggestions:
        page.section("What can be done", Text("nothing that was tried needs less", style="dim"))
    if advice.lint and not page.shows("all"):
        page.paragraph(f"Likely mistakes: {len(advice.lint)}. {advice.lint[0]}", "yellow")
    elif advice.lint:
        page.section("Likely mistakes", *(Text(wrapped(f"- {finding}", page.body_width), style="yellow") for finding in advice.lint))
    if page.shows("all"):
        page.pairs("Left out", advice.left_out.items())
    page.origins(advice.how.items())


def print_out_of_memory(report: OutOfMemory, page: Page) -> None:
    """Put what was asked for, what was held and what would fit on a page."""
    page.headline(report.verdict)
    if report.peak is not None:
        print_live(report.peak, page)
    if report.advice is not None:
        page.section("What would fit")
        _print_suggestions(report.advice, page)
    if report.left_out:
        page.pairs("Not known", [("the step", report.left_out)])


_RESULTS: Mapping[SuggestionKind, str] = {"plan": "same bits", "plan, all verbs": "sums in another order"}
_COLUMNS: Sequence[Column[tuple[int, Suggestion]]] = (
    Column("", lambda row: f"{row[0]} {row[1].what if row[1].kind in ('batch', 'optimizer') else row[1].kind}", kind="name"),
    Column("peak", lambda row: row[1].peak_bytes, format_bytes),
    Column("fits", lambda row: "yes" if row[1].fits else "no", kind="text", style=lambda row: "green" if row[1].fits else "dim"),
    Column("time", lambda row: row[1].time - 1, lambda change: "not known" if math.isnan(change) else f"{100 * change:+.0f} %"),
    Column("results", lambda row: _RESULTS.get(row[1].kind, "change"), kind="text"),
)


def _print_suggestions(advice: Advice, page: Page) -> None:
    for number, suggestion in enumerate(advice.suggestions, 1):
        page.section(f"{number}. {suggestion.what}", *_body(suggestion, advice.memory_bytes, page.body_width))


def _body(suggestion: Suggestion, memory_bytes: int, width: int) -> list[Text]:
    fits = suggestion.fits_words(memory_bytes)
    time = "time not predicted" if math.isnan(suggestion.time) else f"{price_text(suggestion.time)} for each example"
    style = "" if suggestion.fits else "dim"
    lines = [Text(wrapped(f"{format_bytes(suggestion.peak_bytes)}; {fits}; {time}; {suggestion.results}", width), style=style)]
    # Both are copied: a call stays on its line, a command goes on in the next as a shell takes it.
    call, command = Text(printable(suggestion.call), style="bold"), Text(_continued(printable(suggestion.command), width), style="bold")
    return [*lines, *(text for text in (call, command) if text)]


def _continued(command: str, width: int) -> str:
    """A command in lines of a width, broken before options.

    >>> print(_continued("graphwright optimize net.keras --batch 8 --budget 2GiB", 42))
    graphwright optimize net.keras --batch 8 \\
      --budget 2GiB
    """
    first, *options = command.split(" --")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) + len(" -- \\") > width:
            lines[-1] += " \\"
            lines.append(f"  --{option}")
        else:
            lines[-1] += f" --{option}"
    return "\n".join(lines)
