"""Facts of predicted and measured peaks that inspections and plans share."""

from __future__ import annotations

import math

from graphwright.analyze.measurement import Measurement
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.sheet import Fact
from graphwright.report.timeline import Timeline
from graphwright.report.units import format_bytes, format_time

RESIDENT_NOTE = "weights, optimizer state, inputs, constants: no plan changes it"


def measured_facts(label: str, measured: Measurement | None, predicted_bytes: int) -> list[Fact]:
    if measured is None:
        return []
    difference = 100 * (measured.peak_bytes - predicted_bytes) / max(predicted_bytes, 1)
    note = f"{difference:+.1f} % against the prediction".replace("-0.0 %", "+0.0 %")
    if math.isfinite(measured.time_s):
        note += f"; {format_time(measured.time_s)} a step"
    return [Fact(label, format_bytes(measured.peak_bytes), note)]


def executor_note(executor: PeakPrediction) -> str:
    low, high = format_bytes(executor.low_bytes), format_bytes(executor.high_bytes)
    spread = f"{low} to {high}, " if low != high else ""
    threads = "1 inter-op thread" if executor.threads == 1 else f"{executor.threads} inter-op threads"
    return f"{spread}as TensorFlow runs the step by itself, {threads}"


def peak_bars(step: str, predicted_bytes: int, measured: Measurement | None, kind: str) -> list[tuple[str, int, str]]:
    bars = [(f"{step}measured", measured.peak_bytes, f"{kind} measured")] if measured is not None else []
    return [(f"{step}predicted", predicted_bytes, kind), *bars]


def chart_title(words: str, peak_bytes: int, timeline: Timeline) -> str:
    return words if peak_bytes == timeline.peak_bytes else f"{words}, in the order of the trace"
