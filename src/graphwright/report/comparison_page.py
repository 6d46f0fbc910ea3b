"""Two steps side by side as one HTML file that needs no network: figures, memory over both steps, layers that differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphwright.report.comparison import FIGURES, Comparison, LayerFigures, LayerPair, StepCosts
from graphwright.report.page import render_page, write_page
from graphwright.report.page_tables import ROW_LIMIT, Cell, Column, Table
from graphwright.report.results import ROLES, Timeline
from graphwright.report.summary import NO_LAYER, Tone
from graphwright.report.terminal_comparison import comparison_verdict
from graphwright.report.timeline_data import chart_words, timeline_data
from graphwright.report.units import format_bytes, format_count, format_flops

_LAYER_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("FLOPs", "total_flops", format_flops),
    ("parameters", "parameters", lambda amount: format_count(int(amount))),
    ("residuals", "residual_bytes", format_bytes),
    ("at the peak", "peak_share_bytes", format_bytes),
)


def write_comparison(compared: Comparison, path: Path, timelines: tuple[Timeline, Timeline] | None = None) -> Path:
    """Write the page; a file that is there is replaced.

    Raises:
        ArgumentError: `path` is a folder, lies in no folder, or cannot be written.
    """
    return write_page(path, comparison_page(compared, timelines))


def comparison_page(compared: Comparison, timelines: tuple[Timeline, Timeline] | None = None) -> str:
    """The page as text.

    Args:
        compared: the two steps.
        timelines: memory over each of them (of two inspections), drawn with the same scale; None leaves the charts out.
    """
    charts = list(zip(("a", "b"), (f"A: {compared.a.name}", f"B: {compared.b.name}"), timelines or (), strict=False))
    return render_page(
        "comparison.html",
        name=f"{compared.a.name} → {compared.b.name}" if compared.a.name != compared.b.name else compared.a.name,
        feeds={},
        tabs=[],
        verdict=comparison_verdict(compared),
        tone=_tone(compared),
        steps=[("A", compared.a), ("B", compared.b)],
        figures=_figure_table(compared),
        layers=_layer_table(compared.layers),
        charts=[chart_words(f"timeline-{letter}", title, timeline) for letter, title, timeline in charts],
        origins=list({**compared.a.how, **compared.b.how}.items()),
        unknown=_unknown(compared.a, compared.b),
        data={
            "roles": ROLES,
            "noLayer": NO_LAYER,
            "topBytes": max((timeline.peak_bytes for *_, timeline in charts), default=1),
            "budgetBytes": None,
            "timelines": [timeline_data(f"timeline-{letter}", timeline) for letter, _, timeline in charts],
            "curve": None,
        },
    )


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
    columns = (Column("figure", "name"), Column("A"), Column("B"), Column("difference"), Column("of A"))
    return Table("table-figures", "Figures", "What both steps cost, and B's figure minus A's", columns, tuple(rows), (), len(rows))


def _layer_table(pairs: Sequence[LayerPair]) -> Table:
    order = {"changed": 0, "added": 1, "removed": 2, "same": 3}
    shown = sorted(pairs, key=lambda pair: order[pair.change])[:ROW_LIMIT]
    columns: list[Column] = [Column("layer", "name"), Column("change", "decision")]
    for label, _, _ in _LAYER_FIGURES:
        columns += [Column(f"{label} A", optional=True), Column(f"{label} B"), Column("±")]
    rows = [_layer_row(pair) for pair in shown]
    counts = {change: sum(pair.change == change for pair in pairs) for change in order}
    caption = ", ".join(f"{format_count(count)} {change}" for change, count in counts.items() if count) or "no layers"
    return Table("table-layer-pairs", "Layers", caption, tuple(columns), tuple(rows), (), len(pairs))


def _layer_row(pair: LayerPair) -> tuple[Cell, ...]:
    cells = [Cell(pair.name or NO_LAYER), Cell(pair.change)]
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
