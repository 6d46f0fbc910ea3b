"""Measured memory over time: bytes in use, as an allocator recorded them."""

from __future__ import annotations

from graphwright.analyze.downsample import mostly
from graphwright.analyze.measurement import Measurement
from graphwright.analyze.step_profile import StepProfile
from graphwright.report.timeline import PHASES, Track
from graphwright.report.units import format_bytes

_PARTS = 400  # of the time of a step, each of which has one phase


def measured_tracks(*measured: tuple[str, str, Measurement | None]) -> list[Track]:
    """Return a track per measurement that knows its times; each is given with its id on the page and its title."""
    note = (
        "Allocated by TensorFlow in a process of its own, with scratch of kernels, but not what they ask of malloc. "
        "Recording slows the step, so the times are longer than those measured without it."
    )
    timed = [(identity, title, m) for identity, title, m in measured if m is not None and m.times_s]
    return [Track(identity, title, m.times_s, m.bytes_in_use, m.times_s[-1], note) for identity, title, m in timed]


def profile_tracks(profile: StepProfile) -> list[Track]:
    """Return a track per allocator of a measured step."""
    end_s, spans = profile.step_time_s, _spans(profile)
    strip = " The strip below shows the phase that takes most of the time of operations; single operations may run early or late."
    tracks: list[Track] = []
    for k, memory in enumerate(t for t in profile.memory if t.times_ns):
        before = f"; {format_bytes(memory.resident_bytes)} of it before the step" if memory.resident_bytes else " on top of what was there"
        note = f"Allocated by {memory.allocator}{before}.{strip if spans else ''}"
        times_s = [when * 1e-9 for when in memory.times_ns]
        end = max(end_s, times_s[-1])
        tracks.append(Track(f"measured-{k}", f"Measured, {memory.device}", times_s, memory.bytes_in_use, end, note, spans))
    return tracks


def _spans(profile: StepProfile) -> list[tuple[float, float, int]]:
    """Return begin, end in seconds and number of the phase that takes most of the time of operations there."""
    end_ns = max((run.end_ns for run in profile.runs), default=0)
    if not end_ns:
        return []
    spent: list[dict[int, int]] = [{} for _ in range(_PARTS)]
    for run in profile.runs:
        phase, first = PHASES.index(run.direction), min(_PARTS * run.start_ns // end_ns, _PARTS - 1)
        for k in range(first, min(_PARTS * run.end_ns // end_ns, _PARTS - 1) + 1):
            inside = min(run.end_ns, (k + 1) * end_ns // _PARTS) - max(run.start_ns, k * end_ns // _PARTS)
            spent[k][phase] = spent[k].get(phase, 0) + max(inside, 0)
    phases = mostly([max(row, key=lambda phase: row[phase]) if row else None for row in spent], _PARTS // 40)
    starts = [k for k in range(_PARTS) if not k or phases[k] != phases[k - 1]]
    part_s = end_ns * 1e-9 / _PARTS
    return [(first * part_s, end * part_s, phases[first]) for first, end in zip(starts, [*starts[1:], _PARTS], strict=True)]
