"""Two steps side by side as one HTML file that needs no network: figures, memory over both steps, layers that differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphwright.report.comparison import FIGURES, Comparison, LayerFigures, LayerPair, StepCosts
from graphwright.report.page import render_page
from graphwright.report.page_tables import ROW_LIMIT, Cell, Column, Table, bytes_cell, layer_cell, layer_href
from graphwright.report.results import ROLES, Role, Timeline
from graphwright.report.summary import NO_LAYER, Tone, live_groups
from graphwright.report.terminal_comparison import comparison_verdict
from graphwright.report.timeline_chart import chart_words, timeline_data
from graphwright.report.units import format_bytes, format_count, format_flops

_LAYER_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("FLOPs", "total_flops", format_flops),
    ("parameters", "parameters", lambda amount: format_count(int(amount))),
    ("residuals", "residual_bytes", format_bytes),
    ("at the peak", "peak_share_bytes", format_bytes),
)
_CHARTS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("Kept for the backward pass, by layer", "residual_bytes", format_bytes),
    ("Live at the peak, by layer", "peak_share_bytes", format_bytes),
)
_BARS = 14


@dataclass(frozen=True, slots=True)
class PairedBar:
    """One figure of A and of B; shares are of the largest in the chart."""

    label: str
    href: str
    texts: tuple[str, str]
    shares: tuple[float, float]


@dataclass(frozen=True, slots=True)
class StackedBar:
    """A peak by role: name of the role and its share of the larger peak, from the left."""

    label: str
    text: str
    parts: tuple[tuple[Role, float, str], ...]


def comparison_page(compared: Comparison) -> str:
    """The page as text; memory over the steps is drawn with the same scale, of those that were not read from a file."""
    steps = (("A", compared.a), ("B", compared.b))
    timelines = {letter: step.timeline for letter, step in steps if step.timeline is not None}
    charts = [(f"timeline-{letter.lower()}", f"{letter}: {step.name}", timelines[letter]) for letter, step in steps if letter in timelines]
    tabs = [("overview", "Overview"), *([("memory", "Memory")] if charts else []), ("layers", "Layers")]
    return render_page(
        "comparison.html",
        scripts=("layers.js",),
        name=f"{compared.a.name} → {compared.b.name}" if compared.a.name != compared.b.name else compared.a.name,
        feeds={},
        tabs=tabs,
        verdict=comparison_verdict(compared),
        tone=_tone(compared),
        steps=steps,
        figures=_figure_table(compared),
        peaks=_stacked(timelines),
        roles=_role_table(timelines),
        live=_live_table(compared.layers, timelines),
        bars=[(title, _paired(compared.layers, figure, form)) for title, figure, form in _CHARTS],
        layers=_layer_table(compared.layers),
        charts=[chart_words(*chart) for chart in charts],
        origins=list({**compared.a.how, **compared.b.how}.items()),
        unknown=_unknown(compared.a, compared.b),
        data={
            "roles": ROLES,
            "noLayer": NO_LAYER,
            "topBytes": max((timeline.peak_bytes for timeline in timelines.values()), default=1),
            "budgetBytes": None,
            "timelines": [{**timeline_data(identity, timeline), "title": title} for identity, title, timeline in charts],
            "rows": {"timeline-a": {pair.a.layer: pair.name for pair in compared.layers if pair.a is not None}},
            "curve": None,
        },
    )


def _stacked(timelines: Mapping[str, Timeline]) -> list[StackedBar]:
    longest = max((timeline.peak_bytes for timeline in timelines.values()), default=0) or 1
    bars: list[StackedBar] = []
    for letter, timeline in timelines.items():
        sizes: list[tuple[Role, int]] = [(role, _at_peak(timeline, role)) for role in ROLES]
        parts: list[tuple[Role, float, str]] = [
            (role, nbytes / longest, f"{role} {format_bytes(nbytes)}") for role, nbytes in sizes if nbytes
        ]
        bars.append(StackedBar(letter, format_bytes(timeline.peak_bytes), tuple(parts)))
    return bars


def _at_peak(timeline: Timeline, role: Role) -> int:
    row = timeline.bytes_by_role.get(role)
    return row[timeline.peak_step] if row else 0


def _role_table(timelines: Mapping[str, Timeline]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for role in ROLES:
        sizes = [_at_peak(timeline, role) for timeline in timelines.values()]
        if any(sizes):
            rows.append((Cell(role), *map(bytes_cell, sizes), *([_difference(*sizes)] if len(sizes) == 2 else [])))
    columns = (Column("role", "role"), *map(Column, timelines), *([Column("B - A")] if len(timelines) == 2 else []))
    return Table("table-roles", "Peak by role", "What is live at the peak of each step", columns, tuple(rows), (), len(rows))


def _live_table(pairs: Sequence[LayerPair], timelines: Mapping[str, Timeline]) -> Table:
    """What is live at the peaks by layer and role; layers of A under the names that they have in B."""
    names = {pair.a.layer: pair.name for pair in pairs if pair.a is not None}
    found: dict[tuple[str, Role], dict[str, int]] = {}
    for letter, timeline in timelines.items():
        for group in live_groups(timeline.live_at_peak):
            layer = names.get(group.layer, group.layer) if letter == "A" else group.layer
            sizes = found.setdefault((layer, group.role), {})
            sizes[letter] = sizes.get(letter, 0) + group.nbytes
    both = len(timelines) == 2
    ordered = sorted(found.items(), key=lambda item: (-max(item[1].values()), item[0]))
    rows: list[tuple[Cell, ...]] = []
    for (layer, role), sizes in ordered[:ROW_LIMIT]:
        amounts = [sizes.get(letter, 0) for letter in timelines]
        rows.append((layer_cell(layer, linked=True), Cell(role), *map(bytes_cell, amounts), *([_difference(*amounts)] if both else [])))
    columns = (Column("layer", "name"), Column("role", "role"), *map(Column, timelines), *([Column("B - A")] if both else []))
    caption = f"{format_count(len(found))} groups of buffers that are there at the worst moment of each step"
    keys = tuple(layer for (layer, _), _ in ordered[:ROW_LIMIT])
    return Table("table-live-groups", "Live at the peak, by layer and role", caption, columns, tuple(rows), keys, len(found))


def _difference(a: float, b: float) -> Cell:
    return Cell(f"{'+' if b > a else ''}{format_bytes(b - a)}" if b != a else "", b - a)


def _paired(pairs: Sequence[LayerPair], figure: str, form: Callable[[Any], str]) -> list[PairedBar]:
    """The layers with most of a figure in either step, in the order in which they run."""
    amounts = [(pair.name, [0 if layer is None else getattr(layer, figure) for layer in (pair.a, pair.b)]) for pair in pairs]
    kept = sorted((item for item in amounts if max(item[1]) > 0), key=lambda item: -max(item[1]))[:_BARS]
    longest = max((max(both) for _, both in kept), default=1)
    chosen = {name for name, _ in kept}
    return [
        PairedBar(name or NO_LAYER, layer_href(name), (form(a), form(b)), (a / longest, b / longest))
        for name, (a, b) in amounts
        if name in chosen
    ]


def _tone(compared: Comparison) -> Tone:
    return "good" if compared.difference("peak_bytes") < 0 else "neutral"


def _figure_table(compared: Comparison) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, figure in FIGURES.items():
        difference, ratio = compared.difference(name), compared.ratio(name)
        rows.append(
            (
                Cell(figure.label),
                Cell(figure.format(compared.a.figures[name]), compared.a.figures[name]),
                Cell(figure.format(compared.b.figures[name]), compared.b.figures[name]),
                Cell(figure.format(difference, signed=True) if difference else "same", difference),
                Cell(f"{100 * (ratio - 1):+.2f} %" if difference and math.isfinite(ratio) else "", ratio if math.isfinite(ratio) else -1),
            )
        )
    columns = (Column("figure", "name"), Column("A"), Column("B"), Column("B - A"), Column("change"))
    return Table("table-figures", "Figures", "What both steps cost, and B's figure minus A's", columns, tuple(rows), (), len(rows))


def _layer_table(pairs: Sequence[LayerPair]) -> Table:
    order = {"changed": 0, "added": 1, "removed": 2, "same": 3}
    shown = sorted(pairs, key=lambda pair: order[pair.change])[:ROW_LIMIT]
    columns: list[Column] = [Column("layer", "name"), Column("change", "decision")]
    for label, _, _ in _LAYER_FIGURES:
        columns += [Column(f"{label} A", optional=True), Column(f"{label} B", optional=label == "parameters"), Column(f"± {label}")]
    rows = [_layer_row(pair) for pair in shown]
    counts = {change: sum(pair.change == change for pair in pairs) for change in order}
    caption = ", ".join(f"{format_count(count)} {change}" for change, count in counts.items() if count) or "no layers"
    return Table("table-layers", "Layers", caption, tuple(columns), tuple(rows), tuple(pair.name for pair in shown), len(pairs))


def _layer_row(pair: LayerPair) -> tuple[Cell, ...]:
    cells = [layer_cell(pair.name, linked=True), Cell(pair.change)]
    for _, name, form in _LAYER_FIGURES:
        difference = pair.difference(name)
        cells += [_amount(pair.a, name, form), _amount(pair.b, name, form)]
        cells.append(Cell(f"{'+' if difference > 0 else ''}{form(difference)}" if difference else "", difference))
    return tuple(cells)


def _amount(layer: LayerFigures | None, name: str, form: Any) -> Cell:
    if layer is None:
        return Cell("", -1)
    return Cell(form(getattr(layer, name)), getattr(layer, name))


def _unknown(a: StepCosts, b: StepCosts) -> list[tuple[str, str]]:
    return [(letter, ", ".join(costs.unknown_flop_ops)) for letter, costs in (("A", a), ("B", b)) if costs.unknown_flop_ops]
