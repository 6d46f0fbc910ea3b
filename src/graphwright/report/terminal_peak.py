"""A predicted peak as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.summary import NO_LAYER, Fact, of_example_sizes
from graphwright.report.tables import Column
from graphwright.report.terminal_layout import Page
from graphwright.report.units import format_bytes, format_percent, printable

_ROWS = 12


def print_peak(prediction: PeakPrediction, page: Page) -> None:
    page.headline(_verdict(prediction))
    page.facts(_facts(prediction))
    if page.shows("all"):
        print_live(prediction, page)
    else:
        page.ranking("Live there", [(role, nbytes) for role, nbytes in prediction.by_role.items()], format_bytes, 6)
        page.ranking("Largest", [(layer or NO_LAYER, nbytes) for layer, nbytes in prediction.by_layer.items()], format_bytes)
    page.origins(prediction.how.items())


def print_live(prediction: PeakPrediction, page: Page) -> None:
    """Tables of what is held at the peak."""
    groups: tuple[tuple[Literal["role", "layer"], Mapping[Any, int]], ...] = (("role", prediction.by_role), ("layer", prediction.by_layer))
    for heading, sizes in groups:
        columns: tuple[Column[tuple[str, int]], ...] = (
            Column(heading, lambda row: row[0], kind=heading),
            Column("bytes", lambda row: row[1], format_bytes),
            Column("share", lambda row: row[1] / prediction.peak_bytes, format_percent),
        )
        if rows := [(name, nbytes) for name, nbytes in sizes.items() if nbytes or heading == "layer"]:
            page.table(f"Live at the peak, by {heading}", rows[:_ROWS], columns)


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
    if prediction.order == "executor" and prediction.simulations > 1:
        facts.append(Fact("lowest", format_bytes(prediction.low_bytes), f"of {prediction.simulations} simulations"))
    return [*facts, Fact("resident", format_bytes(prediction.resident_bytes), "variables, inputs and constants")]
