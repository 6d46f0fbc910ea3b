"""The data from which a page's script draws memory over a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from graphwright.analyze.downsample import envelope, runs
from graphwright.report.timeline import PHASES, ROLES, LiveBuffer, MemoryCharts, Timeline, Track, phase_spans

CHART_POINTS = 2000
"""About how many points a timeline is drawn with."""

_LIFETIMES = 3000
_LIVE_AT_PEAK = 50


class _Words(dict[str, int]):
    """Texts by number, each once for a page."""

    def number(self, text: str) -> int:
        return self.setdefault(text, len(self))


def chart_data(charts: MemoryCharts) -> dict[str, Any]:
    words = _Words()
    return {
        "topBytes": max([charts.top_bytes, *(track.peak_bytes for track in charts.tracks)]),
        "budgetBytes": charts.budget_bytes,
        "timelines": [{"id": i, "title": title, **_timeline_data(own, words, charts.time_of)} for i, title, own in charts.timelines],
        "tracks": [_track_data(track) for track in charts.tracks],
        "words": list(words),
        "curve": None,
    }


def _timeline_data(timeline: Timeline, words: _Words, time_of: Mapping[str, float]) -> dict[str, Any]:
    """Thin a chart; steps count from 0 here and from 1 on the page, names are numbers of `words`."""
    keep = [timeline.peak_step] if timeline.total_bytes else []
    steps = envelope(timeline.total_bytes, CHART_POINTS, keep)
    # Marks closer together than a pixel are one mark.
    gap = len(timeline.labels) // CHART_POINTS
    spans = [(life.buffer, life.first_step, life.last_step) for life in timeline.lifetimes if life.buffer.nbytes]
    spans.sort(key=lambda span: -span[0].nbytes)
    return {
        "stepCount": len(timeline.labels),
        "steps": steps,
        "labels": [words.number(timeline.words(step)) for step in steps],
        "total": [timeline.total_bytes[step] for step in steps],
        # Of the very step; spans give the phase of most steps around it.
        "phase": [PHASES.index(timeline.phase(step)) for step in steps],
        "spans": [(first, last, PHASES.index(phase)) for first, last, phase in phase_spans(timeline)],
        "byRole": {role: _picked(timeline.bytes_by_role.get(role, ()), steps) for role in ROLES},
        "recomputation": runs(timeline.is_recomputation, gap),
        "peakStep": timeline.peak_step,
        "peakBytes": timeline.peak_bytes,
        "liveAtPeak": [_buffer_data(buffer, words) for buffer in timeline.live_at_peak[:_LIVE_AT_PEAK]],
        "lifetimes": [_buffer_data(buffer, words, first, last, keeper=timeline.words(last)) for buffer, first, last in spans[:_LIFETIMES]],
        "lifetimesLeftOut": max(len(spans) - _LIFETIMES, 0),
        "times": _times(timeline, steps, time_of),
    }


def _times(timeline: Timeline, steps: Sequence[int], time_of: Mapping[str, float]) -> list[float] | None:
    """Return when each step begins and the last one ends if they ran one after another; None if no time is known."""
    ends = list(accumulate(time_s if math.isfinite(time_s := time_of.get(label, 0.0)) else 0.0 for label in timeline.labels))
    return [round(ends[step - 1], 9) if step else 0.0 for step in steps] + [round(ends[-1], 9)] if ends and ends[-1] > 0 else None


def _picked(row: Sequence[int], steps: Sequence[int]) -> list[int]:
    return [row[step] for step in steps] if any(row) else []


def _buffer_data(buffer: LiveBuffer, words: _Words, *steps: int, keeper: str = "") -> list[int | None]:
    texts = buffer.words, buffer.op_type, buffer.layer, buffer.type, buffer.source, keeper
    name, op_type, layer, *others = map(words.number, texts)
    return [name, op_type, layer, ROLES.index(buffer.role), buffer.nbytes, *(steps or (None, None)), *others]


def _track_data(track: Track) -> Mapping[str, Any]:
    points = envelope(track.bytes_in_use, CHART_POINTS)
    times, nbytes = [round(track.times_s[k], 9) for k in points], [track.bytes_in_use[k] for k in points]
    return {"id": track.id, "title": track.title, "times": times, "bytes": nbytes, "end": track.end_s, "spans": track.spans}
