"""Results as one HTML file that needs no network: styles, scripts and data are all inside.

The charts are drawn by plotly.js, which the plotly wheel ships as one file of some 5 MB, nearly
the whole of the page. A smaller library would do for the drawing; but it must come as a
Python package with its JavaScript inside (nothing is fetched, at installation or later), have
stacked areas with hover text, and bring few packages along. A content security policy in the
page forbids every request, so that "offline" does not rest on the library's good behavior.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from graphwright.errors import ArgumentError
from graphwright.report.downsample import envelope, runs
from graphwright.report.results import ROLES, Inspection, LiveBuffer, MemoryPlan, Timeline
from graphwright.report.summary import (
    NO_LAYER,
    chart_top_bytes,
    inspection_comparisons,
    inspection_facts,
    inspection_verdict,
    layers_by_share,
    origins,
    plan_comparisons,
    plan_facts,
    plan_tone,
    plan_verdict,
    timeline_summary,
)
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, glue_units

CHART_POINTS = 2000
"""About how many points a timeline is drawn with."""

_TABLE_ROWS = 500
_LIFETIMES = 3000


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the overview: a peak, of which `resident_share` is resident. Shares are of the longest bar."""

    label: str
    value: str
    share: float
    resident_share: float
    kind: str


def write_inspection(inspection: Inspection, path: Path) -> Path:
    """Write the inspection as one offline HTML file.

    Args:
        inspection: what to show.
        path: the file to write; its folder must exist. A file that is there is replaced.

    Returns:
        `path`.

    Raises:
        ArgumentError: `path` is a folder, lies in no folder, or cannot be written.
    """
    return _write(path, inspection_page(inspection))


def write_plan(plan: MemoryPlan, path: Path) -> Path:
    """Write the plan as one offline HTML file; arguments and errors as for `write_inspection`."""
    return _write(path, plan_page(plan))


def inspection_page(inspection: Inspection) -> str:
    """The inspection as the text of an HTML page."""
    timeline = inspection.timeline
    layers = layers_by_share(inspection.layers)
    return _render(
        "inspection.html",
        result=inspection,
        verdict=inspection_verdict(inspection),
        tone="neutral",
        facts=inspection_facts(inspection),
        comparisons=inspection_comparisons(inspection),
        origins=origins(inspection),
        bars=_bars(_inspection_peaks(inspection), inspection.resident_bytes),
        markers=_markers([("lower bound", inspection.lower_bound_bytes)], _longest(_inspection_peaks(inspection))),
        charts=[_chart_words("timeline", "", timeline)],
        live=[("Live at the peak", timeline)],
        layers=layers,
        data={
            "roles": ROLES,
            "topBytes": inspection.peak_bytes,
            "budgetBytes": None,
            "timelines": [_timeline_data("timeline", timeline)],
            "curve": None,
        },
    )


def plan_page(plan: MemoryPlan) -> str:
    """The plan as the text of an HTML page."""
    before, after = plan.timeline_before, plan.timeline_after
    peaks = _plan_peaks(plan)
    charts = [("before", "Before", before), ("after", "Planned", after)]
    if plan.status == "unchanged":
        charts = [("after", "", after)]
    curve = None
    if plan.curve:
        curve = {
            "points": [{"peakBytes": point.peak_bytes, "overhead": point.overhead} for point in plan.curve],
            "chosen": {"peakBytes": plan.peak_bytes, "overhead": plan.overhead},
            "budgetBytes": plan.budget_bytes,
            "lowerBoundBytes": plan.lower_bound_bytes,
        }
    return _render(
        "plan.html",
        result=plan,
        verdict=plan_verdict(plan),
        tone=plan_tone(plan),
        facts=plan_facts(plan),
        comparisons=plan_comparisons(plan),
        origins=origins(plan),
        bars=_bars(peaks, plan.resident_bytes),
        markers=_markers([("budget", plan.budget_bytes), ("lower bound", plan.lower_bound_bytes)], _longest(peaks)),
        charts=[_chart_words(*chart) for chart in charts],
        live=[("Live at the planned peak", after), ("Live at the original peak", before)][: len(charts)],
        layers=layers_by_share(plan.layers),
        decisions=plan.decisions,
        totals=_decision_totals(plan),
        curve=plan.curve,
        data={
            "roles": ROLES,
            "topBytes": chart_top_bytes(plan),
            "budgetBytes": plan.budget_bytes,
            "timelines": [_timeline_data(identity, timeline) for identity, _, timeline in charts],
            "curve": curve,
        },
    )


def _render(template: str, **values: Any) -> str:
    library = _plotly_script()
    assert "</script" not in library.lower(), "plotly.js would end the script element that holds it"
    environment = _environment()
    # The script is our own and trusted; everything else on the page is escaped.
    return environment.get_template(template).render(
        values,
        plotly=Markup(library),
        style=Markup(_source("report.css")),
        script=Markup(_source("report.js")),
        row_limit=_TABLE_ROWS,
        no_layer=NO_LAYER,
    )


def _plotly_script() -> str:
    offline: Any = importlib.import_module("plotly.offline")
    script: str = offline.get_plotlyjs()
    return script


@cache
def _environment() -> jinja2.Environment:
    environment: Any = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` escapes <, >, & and quotes; nan has no place in JSON, and a browser would refuse the whole page's data.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.policies["json.dumps_function"] = json.dumps
    environment.filters |= {
        "bytes": format_bytes,
        "count": format_count,
        "flops": format_flops,
        "percent": format_percent,
        "glued": glue_units,
    }
    return environment


def _source(name: str) -> str:
    return resources.files("graphwright.report").joinpath("templates", name).read_text(encoding="utf-8")


def _write(path: Path, page: str) -> Path:
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder", where="argument 'path'", remedy="name the file to write, for example report.html")
    if not path.parent.is_dir():
        raise ArgumentError(f"there is no folder {path.parent}", where="argument 'path'", remedy="create it, or name another")
    # Written beside its place and renamed, so that a reader sees the old page or the new, never half of one.
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise ArgumentError(f"{path} cannot be written: {error.strerror}", where="argument 'path'") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
        # `mkstemp` makes files for their owner alone; a report is for showing, with the rights of any new file.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise ArgumentError(f"{path} cannot be written: {error.strerror}", where="argument 'path'") from error
    return path


def _timeline_data(identity: str, timeline: Timeline) -> dict[str, Any]:
    """What the page's script draws a timeline from; steps count from 0 here and from 1 on the page."""
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
        "phase": [_phase(timeline, step) for step in steps],
        "byRole": {role: _picked(timeline.bytes_by_role, role, steps) for role in ROLES},
        "backward": runs(timeline.is_backward, gap),
        "recomputation": runs(timeline.is_recomputation, gap),
        "peakStep": timeline.peak_step,
        "peakBytes": timeline.peak_bytes,
        "liveAtPeak": [_buffer_data(buffer) for buffer in timeline.live_at_peak[:50]],
        "lifetimes": [[*_buffer_data(life.buffer), life.first_step, life.last_step] for life in lifetimes[:_LIFETIMES]],
        "lifetimesLeftOut": max(len(lifetimes) - _LIFETIMES, 0),
    }


def _phase(timeline: Timeline, step: int) -> int:
    return 2 if timeline.is_recomputation[step] else 1 if timeline.is_backward[step] else 0


def _picked(rows: Mapping[Any, Sequence[int]], role: str, steps: Sequence[int]) -> list[int]:
    row = rows.get(role)
    return [row[step] for step in steps] if row is not None and any(row) else []


def _buffer_data(buffer: LiveBuffer) -> list[str | int]:
    return [buffer.name, buffer.op_type, buffer.layer, ROLES.index(buffer.role), buffer.nbytes]


def _chart_words(identity: str, title: str, timeline: Timeline) -> dict[str, Any]:
    return {"id": identity, "title": title, "summary": timeline_summary(timeline), "empty": not timeline.total_bytes}


def _inspection_peaks(inspection: Inspection) -> list[tuple[str, int, str]]:
    peaks = [("predicted", inspection.peak_bytes, "before")]
    if inspection.measured is not None:
        peaks.append(("measured", inspection.measured.peak_bytes, "before measured"))
    return peaks


def _plan_peaks(plan: MemoryPlan) -> list[tuple[str, int, str]]:
    peaks = [("original, predicted", plan.original_peak_bytes, "before")]
    if plan.measured_before is not None:
        peaks.append(("original, measured", plan.measured_before.peak_bytes, "before measured"))
    peaks.append(("planned, predicted", plan.peak_bytes, "after"))
    if plan.measured_after is not None:
        peaks.append(("planned, measured", plan.measured_after.peak_bytes, "after measured"))
    return peaks


def _longest(peaks: Sequence[tuple[str, int, str]]) -> int:
    return max(nbytes for _, nbytes, _ in peaks)


def _bars(peaks: Sequence[tuple[str, int, str]], resident_bytes: int) -> list[Bar]:
    longest = max(_longest(peaks), 1)
    return [
        Bar(label, format_bytes(nbytes), nbytes / longest, min(resident_bytes, nbytes) / longest, kind) for label, nbytes, kind in peaks
    ]


def _markers(lines: Sequence[tuple[str, int]], longest: int) -> list[tuple[str, str, float]]:
    """Lines across the bars; one beyond the longest bar is left to the figures."""
    return [(label, format_bytes(nbytes), nbytes / longest) for label, nbytes in lines if 0 < nbytes <= longest]


def _decision_totals(plan: MemoryPlan) -> list[tuple[str, int, int]]:
    totals: dict[str, list[int]] = {}
    for row in plan.decisions:
        totals.setdefault(row.decision, []).append(row.nbytes)
    return [(decision, len(sizes), sum(sizes)) for decision, sizes in totals.items()]
