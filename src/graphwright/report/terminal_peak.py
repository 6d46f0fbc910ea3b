"""A predicted peak as text for a terminal."""

from __future__ import annotations

from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.summary import NO_LAYER, Fact
from graphwright.report.terminal_layout import Page
from graphwright.report.units import format_bytes, format_percent, printable

_ROWS = 12


def print_peak(prediction: PeakPrediction, page: Page) -> None:
    page.headline(_verdict(prediction))
    page.facts(_facts(prediction))
    peak = prediction.peak_bytes
    roles = [(role, format_bytes(n), format_percent(n / peak)) for role, n in prediction.by_role.items() if n]
    page.table("Live at the peak, by role", ("role", "bytes", "share"), roles)
    layers = [
        (printable(layer) or NO_LAYER, format_bytes(n), format_percent(n / peak)) for layer, n in list(prediction.by_layer.items())[:_ROWS]
    ]
    if layers:
        page.table("Live at the peak, by layer", ("layer", "bytes", "share"), layers)
    page.origins(prediction.how.items())


def _verdict(prediction: PeakPrediction) -> str:
    text = f"{printable(prediction.name)}: {format_bytes(prediction.peak_bytes)} at its peak, "
    if prediction.order == "traced":
        return text + "when its operations run in the order in which they were traced."
    if prediction.order == "xla":
        return text + "compiled by XLA."
    threads = "one inter-op thread" if prediction.threads == 1 else f"{prediction.threads} inter-op threads"
    spread = f" ({format_bytes(prediction.low_bytes)} to {format_bytes(prediction.high_bytes)})" if _is_spread(prediction) else ""
    return text + f"in the order of TensorFlow's executor with {threads}{spread}."


def _is_spread(prediction: PeakPrediction) -> bool:
    return format_bytes(prediction.low_bytes) != format_bytes(prediction.high_bytes)


def _facts(prediction: PeakPrediction) -> list[Fact]:
    facts = [Fact("peak", format_bytes(prediction.peak_bytes), f"reached at {printable(prediction.peak_op)}")]
    if prediction.order == "executor":
        facts.append(Fact("lowest", format_bytes(prediction.low_bytes), f"of {prediction.simulations} simulations"))
        facts.append(Fact("highest", format_bytes(prediction.high_bytes), ""))
    return [*facts, Fact("resident", format_bytes(prediction.resident_bytes), "variables, inputs and constants")]
