"""Results as one HTML file that needs no network: the pages of an inspection and of a memory plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from graphwright.analyze.measurement import Measurement
from graphwright.plain import fields_json
from graphwright.report.advice import Advice, Suggestion, price_text
from graphwright.report.graph_data import inspected_views
from graphwright.report.measured_chart import measured_tracks, profile_tracks
from graphwright.report.page import page_data, render_page
from graphwright.report.profile_chart import profile_data, profile_summary, run_table
from graphwright.report.results import CurvePoint, Inspection, LayerCost, MemoryPlan, Timeline
from graphwright.report.roofline import Roofline, RooflinePoint, make_roofline
from graphwright.report.summary import (
    NO_LAYER,
    chart_top_bytes,
    decision_totals,
    inspection_facts,
    inspection_verdict,
    layers_by_share,
    live_groups,
    measured_overhead,
    origins,
    plan_facts,
    plan_tone,
    plan_verdict,
)
from graphwright.report.tables import decision_table, largest, layer_table, live_group_table, live_table, op_type_table
from graphwright.report.timeline_chart import chart_words
from graphwright.report.units import format_bytes, format_count, format_flops, format_time


def inspection_page(inspection: Inspection) -> str:
    """The inspection as the text of an HTML page."""
    timeline = inspection.timeline
    roofline = make_roofline(inspection)
    profile = inspection.profile if inspection.profile is not None and inspection.profile.runs else None
    graphs = inspected_views(inspection)
    tracks = measured_tracks(("measured", "Measured", inspection.measured)) or (profile_tracks(profile) if profile else [])
    peaks = _peaks(("", inspection.peak_bytes, inspection.measured, "before"))
    title = "" if inspection.peak_bytes == timeline.peak_bytes and not tracks else _title("Predicted", inspection.peak_bytes, timeline)
    memory = [("budget", inspection.advice.memory_bytes)] if inspection.advice else []
    tabs = [("advice", "What to do")] if inspection.advice else []
    tabs += [("overview", "Overview"), ("layers", "Layers"), ("memory", "At the peak")]
    if profile:
        tabs.append(("step", "Timeline"))
    if roofline or inspection.op_types:
        tabs.append(("roofline", "Roofline" if roofline else "Op types"))
    if graphs:
        tabs.append(("graph", "Graph"))
    return render_page(
        "inspection.html",
        scripts=("layers.js", "profile.js", "roofline.js", "drawing.js", "graph_tab.js"),
        styles=("drawing.css",),
        name=inspection.name,
        feeds=inspection.feeds,
        tabs=tabs,
        result=inspection,
        advice=_advice_data(inspection.advice) if inspection.advice else None,
        verdict=inspection.advice.verdict if inspection.advice else inspection_verdict(inspection),
        tone="neutral" if not inspection.advice else "good" if inspection.advice.fits else "bad",
        facts=inspection_facts(inspection),
        origins=origins(inspection),
        bars=_bars(peaks, inspection.resident_bytes),
        markers=_markers([*memory, ("lower bound", inspection.lower_bound_bytes)], _longest(peaks)),
        tops=_tops(inspection.layers),
        charts=[chart_words("timeline", title, timeline)],
        tracks=tracks,
        live=live_table("table-live", "Live at the peak", timeline),
        live_groups=live_group_table(live_groups(timeline.live_at_peak), timeline.peak_bytes),
        layers=layer_table(layers_by_share(inspection.layers)),
        op_types=op_type_table(inspection.op_types),
        roofline=roofline,
        timed=profile is not None,
        profile_words=profile_summary(profile) if profile else "",
        runs=run_table(profile) if profile else None,
        graphs=[view["title"] for view in graphs],
        graph_time="measured time" if profile else "estimated time",
        data=page_data(
            inspection.peak_bytes,
            inspection.advice.memory_bytes if inspection.advice else None,
            timelines=[(timeline, {"id": "timeline"})],
            tracks=tracks,
            time_of={name: cost.measured_time_s for name, cost in inspection.nodes.items()} if profile else None,
            roofline=_roofline_data(roofline) if roofline else None,
            timeWords="measured time" if profile else "estimated time",
            profile=profile_data(profile) if profile else None,
            graphs=graphs,
        ),
    )


def plan_page(plan: MemoryPlan) -> str:
    """The plan as the text of an HTML page."""
    before, after = plan.timeline_before, plan.timeline_after
    peaks = _peaks(
        ("original, ", plan.original_peak_bytes, plan.measured_before, "before"),
        ("planned, ", plan.peak_bytes, plan.measured_after, "after"),
    )
    charts = [("before", _title("Before", plan.original_peak_bytes, before), before), ("after", "Planned", after)]
    if plan.status == "unchanged":
        charts = [("after", "", after)]
    tracks = measured_tracks(
        ("measured-before", "Measured before", plan.measured_before), ("measured-after", "Measured, planned", plan.measured_after)
    )
    curve, chosen, measured = None, CurvePoint(plan.peak_bytes, plan.overhead), _measured_point(plan)
    if plan.curve:
        curve = {
            "points": [_point_data(point) for point in plan.curve],
            "chosen": _point_data(chosen),
            "measured": _point_data(measured) if measured else None,
            "budgetBytes": plan.budget_bytes,
            "lowerBoundBytes": plan.lower_bound_bytes,
        }
    tabs = [("overview", "Overview"), ("memory", "At the peak"), *([("price", "Memory and time")] if curve else [])]
    return render_page(
        "plan.html",
        scripts=("layers.js",),
        name=plan.name,
        feeds=plan.feeds,
        tabs=[*tabs, ("layers", "Layers"), ("residuals", "Residuals")],
        result=plan,
        verdict=plan_verdict(plan),
        tone=plan_tone(plan),
        facts=plan_facts(plan),
        origins=origins(plan),
        bars=_bars(peaks, plan.resident_bytes),
        markers=_markers([("budget", plan.budget_bytes), ("lower bound", plan.lower_bound_bytes)], _longest(peaks)),
        charts=[chart_words(*chart) for chart in charts],
        tracks=tracks,
        live=[
            live_table("table-live-after", "Live at the planned peak", after),
            live_table("table-live-before", "Live at the original peak", before),
        ][: len(charts)],
        layers=layer_table(layers_by_share(plan.layers)),
        decisions=decision_table(plan.decisions),
        totals=decision_totals(plan.decisions),
        curve=sorted({*plan.curve, chosen}, key=lambda point: -point.peak_bytes) if plan.curve else (),
        chosen=chosen,
        taken=measured,
        data=page_data(
            chart_top_bytes(plan),
            plan.budget_bytes,
            [(timeline, {"id": identity, "title": title.lower()}) for identity, title, timeline in charts],
            tracks=tracks,
            curve=curve,
        ),
    )


def _title(words: str, peak_bytes: int, timeline: Timeline) -> str:
    """The title of a chart, which says so where it shows another order than that of the peak."""
    return words if peak_bytes == timeline.peak_bytes else f"{words}, in the order of the trace"


def _advice_data(advice: Advice) -> dict[str, Any]:
    """What the tab of advice shows: the step as it is, and what can be done, each with its peak beside the memory."""
    longest = max([advice.memory_bytes, advice.peak_bytes, *(s.peak_bytes for s in advice.suggestions)], default=1)
    rows: list[dict[str, Any]] = [
        {
            "what": s.what[:1].upper() + s.what[1:],
            "peak": format_bytes(s.peak_bytes),
            "share": s.peak_bytes / longest,
            "fits": s.fits,
            "told": s.fits_words(advice.memory_bytes),
            "price": "Its time is not known" if math.isnan(s.time) else f"{price_text(s.time)} for each example",
            "results": s.results,
            "codes": [(where, text) for where, text in (("in Python", s.call), (_in_a_shell(s), s.command)) if text],
        }
        for s in advice.suggestions
    ]
    as_it_is = {"peak": format_bytes(advice.peak_bytes), "share": advice.peak_bytes / longest, "fits": advice.fits}
    as_it_is["told"] = "fits" if advice.fits else "does not fit"
    return {
        "rows": rows,
        "as_it_is": as_it_is,
        "memory": format_bytes(advice.memory_bytes),
        "memory_share": advice.memory_bytes / longest,
        "lint": advice.lint,
        "left_out": advice.left_out.items(),
        "origins": list(advice.how.items()),
    }


def _measured_point(plan: MemoryPlan) -> CurvePoint | None:
    """What the chosen plan took, beside what was planned."""
    ratio = measured_overhead(plan)
    return None if plan.measured_after is None or math.isnan(ratio) else CurvePoint(plan.measured_after.peak_bytes, ratio)


def _point_data(point: CurvePoint) -> dict[str, float]:
    return {"peakBytes": point.peak_bytes, "overhead": point.overhead}


def _in_a_shell(suggestion: Suggestion) -> str:
    return "found in a shell by" if suggestion.kind == "batch" else "or in a shell" if suggestion.call else "in a shell"


def _peaks(*steps: tuple[str, int, Measurement | None, str]) -> list[tuple[str, int, str]]:
    """Of each step the predicted peak, and the measured one where there is one: label, bytes, kind of the bar."""
    peaks: list[tuple[str, int, str]] = []
    for step, nbytes, measured, kind in steps:
        peaks.append((f"{step}predicted", nbytes, kind))
        if measured is not None:
            peaks.append((f"{step}measured", measured.peak_bytes, f"{kind} measured"))
    return peaks


def _longest(peaks: Sequence[tuple[str, int, str]]) -> int:
    return max(nbytes for _, nbytes, _ in peaks)


def _bars(peaks: Sequence[tuple[str, int, str]], resident_bytes: int) -> list[dict[str, Any]]:
    """The bars of the overview: peaks, and how much of each is resident, as shares of the longest."""
    longest = max(_longest(peaks), 1)
    shares = [{"share": nbytes / longest, "resident_share": min(resident_bytes, nbytes) / longest} for _, nbytes, _ in peaks]
    return [{"label": peak[0], "value": format_bytes(peak[1]), "kind": peak[2], **share} for peak, share in zip(peaks, shares, strict=True)]


def _markers(lines: Sequence[tuple[str, int]], longest: int) -> list[tuple[str, str, float]]:
    """Lines across the bars; one beyond the longest bar is left to the figures."""
    return [(label, format_bytes(nbytes), nbytes / longest) for label, nbytes in lines if 0 < nbytes <= longest]


def _tops(layers: Sequence[LayerCost]) -> list[dict[str, Any]]:
    """The layers with most of each figure, those that have none of it left out, with their shares of the whole."""
    figures: tuple[tuple[str, Callable[[LayerCost], float], Callable[[Any], str]], ...] = (
        ("Live at the peak", lambda r: r.peak_share_bytes, format_bytes),
        ("FLOPs", lambda r: r.flops, format_flops),
        ("Measured time", lambda r: r.measured_time_s, format_time),
        ("Estimated time", lambda r: r.estimated_time_s, format_time),
        ("Parameters", lambda r: r.parameter_count, format_count),
    )
    tops: dict[str, list[dict[str, Any]]] = {}
    for title, figure, form in figures:
        if not (title == "Estimated time" and "Measured time" in tops):
            tops[title] = largest(((figure(row), row.layer) for row in layers), form)
    return [{"title": title, "rows": rows} for title, rows in tops.items() if rows]


def _point(point: RooflinePoint) -> dict[str, Any]:
    return fields_json(point, flops_per_s="rate", time_s="time", of_roof="ofRoof")


def _roofline_data(roofline: Roofline) -> dict[str, Any]:
    return {
        "measured": roofline.measured,
        "flopsPerS": roofline.roofs.flops_per_s,
        "bytesPerS": roofline.roofs.bytes_per_s,
        "layers": [{**_point(p), "name": p.name or NO_LAYER, "layer": p.name} for p in roofline.layers],
        "opTypes": [_point(p) for p in roofline.op_types],
    }
