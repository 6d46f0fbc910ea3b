"""Advice as text for a terminal."""

from __future__ import annotations

import math

from rich.text import Text

from graphwright.report.advice import Advice, Suggestion, price_text
from graphwright.report.terminal_layout import Page, wrapped
from graphwright.report.units import feeds_text, format_bytes, printable


def print_advice(advice: Advice, page: Page) -> None:
    """Put the suggestions on a page, the best first, each with what to call or to run."""
    page.headline(f"{printable(advice.name)}: {advice.verdict}")
    page.paragraph(f"Inputs: {feeds_text(advice.feeds)}")
    for number, suggestion in enumerate(advice.suggestions, 1):
        page.section(f"{number}. {suggestion.what}", *_body(suggestion, page.body_width))
    if not advice.suggestions:
        page.section("What can be done", Text("nothing of what was looked at needs less", style="dim"))
    if advice.lint:
        page.section("Likely mistakes", *(Text(wrapped(f"- {finding}", page.body_width), style="yellow") for finding in advice.lint))
    page.pairs("Left out", advice.left_out.items())
    page.origins(advice.how.items())


def _body(suggestion: Suggestion, width: int) -> list[Text]:
    fits = "fits" if suggestion.fits else "does not fit by itself"
    time = "time not predicted" if math.isnan(suggestion.time) else price_text(suggestion.time)
    style = "" if suggestion.fits else "dim"
    lines = [
        Text(wrapped(f"{format_bytes(suggestion.peak_bytes)}, {fits}; {time} for each example; {suggestion.results}", width), style=style)
    ]
    # A call is copied: it is not broken into lines.
    return [*lines, *(Text(printable(text), style="bold") for text in (suggestion.call, suggestion.command) if text)]
