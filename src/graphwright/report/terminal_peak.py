"""A predicted peak as text for a terminal, and what is live at a peak."""

from __future__ import annotations

from collections.abc import Iterable

from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.results import LiveBuffer
from graphwright.report.summary import NO_LAYER, ROLE_WORDS, Fact, LiveGroup, live_groups, of_example_sizes
from graphwright.report.tables import live_group_columns
from graphwright.report.terminal_layout import Page
from graphwright.report.units import format_bytes, format_count, printable

_ROWS = 8


def print_peak(prediction: PeakPrediction, page: Page) -> None:
    page.headline(_verdict(prediction))
    page.flow(role_words(prediction.by_role.items()), "   ", indent=2)
    if page.shows("all"):
        page.facts(_facts(prediction))
        print_live("Live at the peak", prediction.live, prediction.peak_bytes, page)
    else:
        page.ranking("Largest", [(layer or NO_LAYER, nbytes) for layer, nbytes in prediction.by_layer.items()], format_bytes)
        page.line(f"Reached at {printable(prediction.peak_op)}.")
    page.origins(prediction.how.items())


def role_words(amounts: Iterable[tuple[str, int]]) -> list[str]:
    """What each role holds, the most first."""
    return [f"{ROLE_WORDS[role]} {format_bytes(nbytes)}" for role, nbytes in sorted(amounts, key=lambda row: -row[1]) if nbytes]


def print_live(title: str, live: Iterable[LiveBuffer], peak_bytes: int, page: Page) -> None:
    """A table of what is held at a peak, by layer and role."""
    groups = live_groups(live)
    rows, rest = groups[:_ROWS], groups[_ROWS:]
    if rest:
        rows.append(LiveGroup(f"{format_count(len(rest))} more", "", sum(g.count for g in rest), sum(g.nbytes for g in rest)))
    missing = peak_bytes - sum(group.nbytes for group in groups)
    if groups and missing > 0:
        rows.append(LiveGroup("not itemized", "", 0, missing))
    page.table(title, rows, live_group_columns(peak_bytes), empty="not itemized")


def _verdict(prediction: PeakPrediction) -> str:
    text = f"{printable(prediction.name)}: {format_bytes(prediction.peak_bytes)} at its peak{of_example_sizes(prediction.how)}"
    if prediction.order == "traced":
        return f"{text}, when its operations run in the order in which they were traced."
    if prediction.order == "xla":
        return f"{text}, compiled by XLA."
    threads = "one inter-op thread" if prediction.threads == 1 else f"{prediction.threads} inter-op threads"
    return f"{text}, as TensorFlow runs it with {threads}."


def _facts(prediction: PeakPrediction) -> list[Fact]:
    facts = [Fact("peak", format_bytes(prediction.peak_bytes), f"reached at {printable(prediction.peak_op)}")]
    if prediction.order == "executor":
        span = f"{format_bytes(prediction.low_bytes)} to {format_bytes(prediction.high_bytes)}"
        facts.append(Fact("range", span, "in which a measured peak is expected"))
    return [*facts, Fact("resident", format_bytes(prediction.resident_bytes), "variables, inputs and constants")]
