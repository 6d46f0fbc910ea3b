"""What a page's script draws a memory timeline from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphwright.report.downsample import envelope, runs
from graphwright.report.results import ROLES, LiveBuffer, Timeline
from graphwright.report.summary import timeline_summary

CHART_POINTS = 2000
"""About how many points a timeline is drawn with."""

_LIFETIMES = 3000


def timeline_data(identity: str, timeline: Timeline) -> dict[str, Any]:
    """The chart's data, thinned; steps count from 0 here and from 1 on the page."""
    keep = [timeline.peak_step] if timeline.total_bytes else []
    steps = envelope(timeline.total_bytes, CHART_POINTS, keep)
    # Marks closer together than a pixel are one mark.
    gap = len(timeline.labels) // CHART_POINTS
    lifetimes = sorted((life for life in timeline.lifetimes if life.buffer.nbytes), key=lambda life: -life.buffer.nbytes)
    return {
        "id": identity,
        "stepCount": len(timeline.labels),
        "steps": steps,
        "labels": [timeline.labels[step] for step in steps],
        "total": [timeline.total_bytes[step] for step in steps],
        # Of the very step, where the spans below close small gaps.
        "phase": [2 if timeline.is_recomputation[step] else int(timeline.is_backward[step]) for step in steps],
        "byRole": {role: _picked(timeline.bytes_by_role, role, steps) for role in ROLES},
        "backward": runs(timeline.is_backward, gap),
        "recomputation": runs(timeline.is_recomputation, gap),
        "peakStep": timeline.peak_step,
        "peakBytes": timeline.peak_bytes,
        "liveAtPeak": [_buffer_data(buffer) for buffer in timeline.live_at_peak[:50]],
        "lifetimes": [[*_buffer_data(life.buffer), life.first_step, life.last_step] for life in lifetimes[:_LIFETIMES]],
        "lifetimesLeftOut": max(len(lifetimes) - _LIFETIMES, 0),
    }


def chart_words(identity: str, title: str, timeline: Timeline) -> dict[str, Any]:
    """What stands around a chart: its title, and what it shows in words."""
    return {"id": identity, "title": title, "summary": timeline_summary(timeline), "empty": not timeline.total_bytes}


def _picked(rows: Mapping[Any, Sequence[int]], role: str, steps: Sequence[int]) -> list[int]:
    row = rows.get(role)
    return [row[step] for step in steps] if row is not None and any(row) else []


def _buffer_data(buffer: LiveBuffer) -> list[str | int]:
    return [buffer.name, buffer.op_type, buffer.layer, ROLES.index(buffer.role), buffer.nbytes]
