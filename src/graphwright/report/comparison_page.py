"""Two steps side by side as one HTML file that needs no network: figures, memory over both steps, layers that differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from graphwright.report.comparison import FIGURES, LAYER_FIGURES, Comparison, LayerPair
from graphwright.report.page import page_data, render_page
from graphwright.report.results import ROLES, Role, Timeline
from graphwright.report.summary import live_groups
from graphwright.report.tables import Column, Table, signed, tabulated
from graphwright.report.terminal_comparison import comparison_verdict, difference_column, figure_columns
from graphwright.report.timeline_chart import chart_words
from graphwright.report.units import format_bytes, format_count


def comparison_page(compared: Comparison) -> str:
    """The page as text; memory over the steps is drawn with the same scale, of those that were not read from a file."""
    steps = (("A", compared.a), ("B", compared.b))
    timelines = {letter: step.timeline for letter, step in steps if step.timeline is not None}
    charts = [(f"timeline-{letter.lower()}", f"{letter}: {step.name}", timelines[letter]) for letter, step in steps if letter in timelines]
    held = [Held("", role, {letter: _at_peak(timeline, role) for letter, timeline in timelines.items()}) for role in ROLES]
    held = [row for row in held if any(row.sizes.values())]
    tabs = [("overview", "Overview"), *([("memory", "At the peak")] if charts else []), ("layers", "Layers")]
    return render_page(
        "comparison.html",
        scripts=("layers.js",),
        name=f"{compared.a.name} → {compared.b.name}" if compared.a.name != compared.b.name else compared.a.name,
        feeds={},
        tabs=tabs,
        verdict=comparison_verdict(compared),
        tone="good" if compared.difference("peak_bytes") < 0 else "neutral",
        steps=steps,
        figures=tabulated(
            "table-figures", "Figures", "What both steps cost; a difference is B minus A", list(FIGURES), figure_columns(compared)
        ),
        peaks=_stacked(timelines),
        roles=tabulated("table-roles", "Peak by role", "What is live at the peak of each step", held, _held_columns(timelines)),
        live=_live_table(compared.layers, timelines),
        layers=_layer_table(compared.layers),
        charts=[chart_words(*chart) for chart in charts],
        origins=list({**compared.a.how, **compared.b.how}.items()),
        unknown=[(letter, ", ".join(step.unknown_flop_ops)) for letter, step in steps if step.unknown_flop_ops],
        data=page_data(
            max((timeline.peak_bytes for timeline in timelines.values()), default=1),
            timelines=[(timeline, {"id": identity, "title": title}) for identity, title, timeline in charts],
            rows={"timeline-a": {pair.a.layer: pair.name for pair in compared.layers if pair.a is not None}},
        ),
    )


def _stacked(timelines: Mapping[str, Timeline]) -> list[dict[str, Any]]:
    """Peaks by role: name of the role, its share of the larger peak, and what stands there, from the left."""
    longest = max((timeline.peak_bytes for timeline in timelines.values()), default=0) or 1
    bars: list[dict[str, Any]] = []
    for letter, timeline in timelines.items():
        sizes = [(role, nbytes) for role in ROLES if (nbytes := _at_peak(timeline, role))]
        parts = [(role, nbytes / longest, f"{role} {format_bytes(nbytes)}") for role, nbytes in sizes]
        bars.append({"label": letter, "text": format_bytes(timeline.peak_bytes), "parts": parts})
    return bars


def _at_peak(timeline: Timeline, role: Role) -> int:
    row = timeline.bytes_by_role.get(role)
    return row[timeline.peak_step] if row else 0


@dataclass(frozen=True, slots=True)
class Held:
    """What the steps hold at their peaks of one role, in one layer or in all: bytes by letter of the step."""

    layer: str
    role: str
    sizes: dict[str, int]


def _held_columns(timelines: Mapping[str, Timeline]) -> list[Column[Held]]:
    """What each step holds, and the difference where there are two."""
    columns: list[Column[Held]] = [Column("role", lambda held: held.role, kind="role")]
    columns = [*columns, *(Column[Held](a, lambda held, a=a: held.sizes.get(a, 0), format_bytes) for a in timelines)]
    if len(timelines) == 2:
        columns.append(Column("B - A", lambda held: held.sizes.get("B", 0) - held.sizes.get("A", 0), signed(format_bytes), wide=True))
    return columns


def _live_table(pairs: Sequence[LayerPair], timelines: Mapping[str, Timeline]) -> Table:
    """What is live at the peaks by layer and role; layers of A under the names that they have in B."""
    names = {pair.a.layer: pair.name for pair in pairs if pair.a is not None}
    found: dict[tuple[str, str], Held] = {}
    for letter, timeline in timelines.items():
        for group in live_groups(timeline.live_at_peak):
            layer = names.get(group.layer, group.layer) if letter == "A" else group.layer
            sizes = found.setdefault((layer, group.role), Held(layer, group.role, {})).sizes
            sizes[letter] = sizes.get(letter, 0) + group.nbytes
    ordered = sorted(found.values(), key=lambda held: (-max(held.sizes.values()), held.layer, held.role))
    columns = [Column[Held]("layer", lambda held: held.layer, kind="layer"), *_held_columns(timelines)]
    caption = f"{format_count(len(found))} groups of buffers that are there at the worst moment of each step"
    return tabulated("table-live-groups", "Live at the peak, by layer and role", caption, ordered, columns, lambda held: held.layer)


def _layer_table(pairs: Sequence[LayerPair]) -> Table:
    order = {"changed": 0, "added": 1, "removed": 2, "same": 3}
    columns: list[Column[LayerPair]] = [
        Column("layer", lambda pair: pair.name, kind="layer"),
        Column("change", lambda pair: pair.change, kind="decision"),
    ]
    for name, figure in reversed(list(LAYER_FIGURES.items())):  # memory first, and of both steps
        optional = name != "peak_share_bytes"
        less_asked = name in ("nodes", "parameters")
        for letter in "AB":
            of = attrgetter(letter.lower())
            columns.append(
                Column(
                    f"{figure.label} {letter}",
                    lambda pair, of=of, name=name: getattr(of(pair), name, math.nan),
                    figure.format,
                    optional=optional,
                    wide=letter == "B",
                    bar=True,
                )
            )
        columns.append(replace(difference_column(name, f"{figure.label}, change"), optional=name == "nodes", wide=less_asked))
    counts = {change: sum(pair.change == change for pair in pairs) for change in order}
    caption = ", ".join(f"{format_count(count)} {change}" for change, count in counts.items() if count) or "no layers"
    shown = sorted(pairs, key=lambda pair: order[pair.change])
    return tabulated("table-layers", "Layers", caption, shown, columns, lambda pair: pair.name)
