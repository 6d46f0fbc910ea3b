"""What a page's script draws measured memory from: bytes over time, as an allocator told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphwright.analyze.downsample import envelope, mostly
from graphwright.analyze.measurement import Measurement
from graphwright.analyze.step_profile import StepProfile
from graphwright.report.summary import PHASES
from graphwright.report.timeline_chart import CHART_POINTS
from graphwright.report.units import format_bytes, format_time

_PARTS = 400  # of the time of a step, each of which has one phase


@dataclass(frozen=True)
class Track:
    """Memory over time.

    Attributes:
        times_s: when it changed, rising.
        bytes_in_use: from then on.
        spans: from when to when a phase takes most of the time of operations.
        note: what is counted.
    """

    id: str
    title: str
    times_s: Sequence[float]
    bytes_in_use: Sequence[int]
    end_s: float
    note: str
    spans: Sequence[tuple[float, float, int]] = ()

    @property
    def peak_bytes(self) -> int:
        return max(self.bytes_in_use)

    @property
    def summary(self) -> str:
        """The chart in words."""
        at = self.times_s[self.bytes_in_use.index(self.peak_bytes)]
        return f"{format_bytes(self.peak_bytes)} at most, {format_time(at)} after the step began. {self.note}"

    def data(self) -> Mapping[str, Any]:
        """What the script draws from, thinned."""
        kept = envelope(self.bytes_in_use, CHART_POINTS)
        times, nbytes = [round(self.times_s[k], 9) for k in kept], [self.bytes_in_use[k] for k in kept]
        return {"id": self.id, "title": self.title, "times": times, "bytes": nbytes, "end": self.end_s, "spans": self.spans}


def measured_tracks(*measured: tuple[str, str, Measurement | None]) -> list[Track]:
    """Of measurements, each with its id on the page and its title; those that know no times are left out."""
    note = (
        "Allocated by TensorFlow in a process of its own, with scratch of kernels, but not what they ask of malloc. "
        "Recording slows the step, so the times are longer than those measured without it."
    )
    known = [(identity, title, m) for identity, title, m in measured if m is not None and m.times_s]
    return [Track(identity, title, m.times_s, m.bytes_in_use, m.times_s[-1], note) for identity, title, m in known]


def profile_tracks(profile: StepProfile) -> list[Track]:
    """Of a measured step, one for each allocator that gave something out."""
    end_s, spans = profile.step_time_s, _spans(profile)
    strip = " The strip below says which phase most of the time of operations goes to; operations of another one may run early or late."
    found: list[Track] = []
    for k, track in enumerate(t for t in profile.memory if t.times_ns):
        before = f"; {format_bytes(track.resident_bytes)} of it before the step" if track.resident_bytes else " on top of what was there"
        note = f"Allocated by {track.allocator}{before}.{strip if spans else ''}"
        times_s = [when * 1e-9 for when in track.times_ns]
        found.append(Track(f"measured-{k}", f"Measured, {track.device}", times_s, track.bytes_in_use, max(end_s, times_s[-1]), note, spans))
    return found


def _spans(profile: StepProfile) -> list[tuple[float, float, int]]:
    """Which phase takes most of the time of operations, from when to when in seconds."""
    end_ns = max((run.end_ns for run in profile.runs), default=0)
    if not end_ns:
        return []
    spent: list[dict[int, int]] = [{} for _ in range(_PARTS)]
    for run in profile.runs:
        phase, first = PHASES.index(run.direction), min(_PARTS * run.start_ns // end_ns, _PARTS - 1)
        for k in range(first, min(_PARTS * run.end_ns // end_ns, _PARTS - 1) + 1):
            inside = min(run.end_ns, (k + 1) * end_ns // _PARTS) - max(run.start_ns, k * end_ns // _PARTS)
            spent[k][phase] = spent[k].get(phase, 0) + max(inside, 0)
    kinds = mostly([max(row, key=lambda phase: row[phase]) if row else None for row in spent], _PARTS // 40)
    starts = [k for k in range(_PARTS) if not k or kinds[k] != kinds[k - 1]]
    part_s = end_ns * 1e-9 / _PARTS
    return [(first * part_s, end * part_s, kinds[first]) for first, end in zip(starts, [*starts[1:], _PARTS], strict=True)]
