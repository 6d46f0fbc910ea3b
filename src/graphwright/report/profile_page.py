"""A measured step as one HTML file that needs no network: memory over time, what ran when, where the time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from graphwright.analyze.step_profile import ProfileRow, StepProfile, by_layer, by_op_type
from graphwright.report.measured_chart import profile_tracks
from graphwright.report.page import page_data, render_page
from graphwright.report.profile_chart import profile_data, profile_summary, run_table
from graphwright.report.tables import Column, Table, chosen, largest, profile_columns, tabulated
from graphwright.report.terminal_profile import profile_facts, profile_verdict
from graphwright.report.units import format_count, format_time

_COLUMNS = ("time", "share", "forward", "backward", "optimizer", "FLOPs", "FLOP/s", "allocated=bytes", "params", "runs")


def profile_page(profile: StepProfile, feeds: Mapping[str, tuple[int, ...]], how: Mapping[str, str]) -> str:
    """The page as text."""
    layers, op_types = by_layer(profile), by_op_type(profile)
    tops = [("Layers", layers, True), ("Op types", op_types, False)]
    tracks = profile_tracks(profile)
    tabs = [("overview", "Overview"), *([("step", "Timeline")] if profile.runs else []), ("layers", "Layers"), ("op-types", "Op types")]
    return render_page(
        "profile.html",
        scripts=("layers.js", "profile.js"),
        name=profile.name,
        feeds=feeds,
        tabs=tabs,
        verdict=profile_verdict(profile),
        tone="neutral",
        facts=profile_facts(profile),
        origins=list(how.items()),
        tracks=tracks,
        tops=[
            {"title": title, "rows": largest(((row.time_s, name) for name, row in rows.items()), format_time, of_layers=of_layers)}
            for title, rows, of_layers in tops
        ],
        profile_words=profile_summary(profile),
        runs=run_table(profile) if profile.runs else None,
        layers=_table("layer", "Per layer", layers),
        op_types=_table("op type", "Per op type", op_types),
        data=page_data(1, tracks=tracks, profile=profile_data(profile)),
    )


def _table(heading: str, title: str, rows: Mapping[str, ProfileRow]) -> Table:
    columns = [replace(c, bar=c.label in ("time", "allocated")) for c in chosen(profile_columns(heading), *_COLUMNS)]
    first: Column[ProfileRow] = Column(heading, lambda row: row.name, kind="layer" if heading == "layer" else "name")
    caption = f"{format_count(len(rows))} {heading}s, the most time first; times of operations side by side add up; shares are of that sum"
    return tabulated(f"table-{heading.replace(' ', '-')}s", title, caption, list(rows.values()), [first, *columns], lambda row: row.name)
