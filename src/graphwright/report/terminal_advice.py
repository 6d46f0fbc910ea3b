"""Advice as text for a terminal."""

from __future__ import annotations

import math

from rich.text import Text

from graphwright.report.advice import Advice, Suggestion, price_text
from graphwright.report.out_of_memory import OutOfMemory
from graphwright.report.terminal_layout import Page, wrapped
from graphwright.report.terminal_peak import print_live
from graphwright.report.units import feeds_text, printable


def print_advice(advice: Advice, page: Page) -> None:
    """Put the suggestions on a page, the best first, each with what to call or to run."""
    page.headline(f"{printable(advice.name)}: {advice.verdict}")
    page.paragraph(f"Inputs: {feeds_text(advice.feeds)}")
    _print_suggestions(advice, page)
    if not advice.suggestions:
        page.section("What can be done", Text("nothing of what was looked at needs less", style="dim"))
    if advice.lint:
        page.section("Likely mistakes", *(Text(wrapped(f"- {finding}", page.body_width), style="yellow") for finding in advice.lint))
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


def _print_suggestions(advice: Advice, page: Page) -> None:
    for number, suggestion in enumerate(advice.suggestions, 1):
        page.section(f"{number}. {suggestion.what}", *_body(suggestion, page.body_width))


def _body(suggestion: Suggestion, width: int) -> list[Text]:
    fits = "fits" if suggestion.fits else "does not fit by itself"
    time = "time not predicted" if math.isnan(suggestion.time) else price_text(suggestion.time)
    style = "" if suggestion.fits else "dim"
    lines = [Text(wrapped(f"{suggestion.peak_words}; {fits}; {time} for each example; {suggestion.results}", width), style=style)]
    # A call is copied: it is not broken into lines.
    return [*lines, *(Text(printable(text), style="bold") for text in (suggestion.call, suggestion.command) if text)]
