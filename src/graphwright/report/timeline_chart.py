"""What a page's script draws a memory timeline from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from graphwright.analyze.downsample import envelope, runs
from graphwright.report.results import ROLES, LiveBuffer, Timeline
from graphwright.report.summary import PHASES, phase_spans, step_phase, timeline_summary

CHART_POINTS = 2000
"""About how many points a timeline is drawn with."""

_LIFETIMES = 3000


class Words(dict[str, int]):
    """Texts by number, each once for a page."""

    def number(self, text: str) -> int:
        return self.setdefault(text, len(self))


def timeline_data(timeline: Timeline, words: Words, time_of: Mapping[str, float] | None = None) -> dict[str, Any]:
    """The chart's data, thinned; steps count from 0 here and from 1 on the page.

    Args:
        words: gets the names, which stand here as numbers.
        time_of: by label, seconds that the step took, where that was measured.
    """
    keep = [timeline.peak_step] if timeline.total_bytes else []
    steps = envelope(timeline.total_bytes, CHART_POINTS, keep)
    # Marks closer together than a pixel are one mark.
    gap = len(timeline.labels) // CHART_POINTS
    lifetimes = sorted((life for life in timeline.lifetimes if life.buffer.nbytes), key=lambda life: -life.buffer.nbytes)
    return {
        "stepCount": len(timeline.labels),
        "steps": steps,
        "labels": [words.number(timeline.words(step)) for step in steps],
        "total": [timeline.total_bytes[step] for step in steps],
        # Of the very step, where spans say what most of them do.
        "phase": [PHASES.index(step_phase(timeline, step)) for step in steps],
        "spans": [(first, last, PHASES.index(phase)) for first, last, phase in phase_spans(timeline)],
        "byRole": {role: _picked(timeline.bytes_by_role, role, steps) for role in ROLES},
        "recomputation": runs(timeline.is_recomputation, gap),
        "peakStep": timeline.peak_step,
        "peakBytes": timeline.peak_bytes,
        "liveAtPeak": [_buffer_data(buffer, words, None, None, "") for buffer in timeline.live_at_peak[:50]],
        "lifetimes": [
            _buffer_data(life.buffer, words, life.first_step, life.last_step, timeline.words(life.last_step))
            for life in lifetimes[:_LIFETIMES]
        ],
        "lifetimesLeftOut": max(len(lifetimes) - _LIFETIMES, 0),
        "times": _times(timeline, steps, time_of or {}),
    }


def _times(timeline: Timeline, steps: Sequence[int], time_of: Mapping[str, float]) -> list[float] | None:
    """When each of the steps begins, and when the last one ends, if they ran one after another; None where no time is known."""
    ends = list(accumulate(known if math.isfinite(known := time_of.get(label, 0.0)) else 0.0 for label in timeline.labels))
    return [round(ends[step - 1], 9) if step else 0.0 for step in steps] + [round(ends[-1], 9)] if ends and ends[-1] > 0 else None


def chart_words(identity: str, title: str, timeline: Timeline) -> dict[str, Any]:
    """What stands around a chart: its title, and what it shows in words."""
    return {"id": identity, "title": title, "summary": timeline_summary(timeline), "empty": not timeline.total_bytes}


def _picked(rows: Mapping[Any, Sequence[int]], role: str, steps: Sequence[int]) -> list[int]:
    row = rows.get(role)
    return [row[step] for step in steps] if row is not None and any(row) else []


def _buffer_data(buffer: LiveBuffer, words: Words, first: int | None, last: int | None, keeper: str) -> list[int | None]:
    name, op_type, layer, kind, source = (
        words.number(text) for text in (buffer.words, buffer.op_type, buffer.layer, buffer.type, buffer.source)
    )
    return [name, op_type, layer, ROLES.index(buffer.role), buffer.nbytes, first, last, kind, source, words.number(keeper)]
