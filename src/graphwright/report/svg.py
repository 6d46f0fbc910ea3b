"""Small charts as SVG elements, for places without a chart library: notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from graphwright.analyze.downsample import envelope
from graphwright.report.results import ROLES, Role, Timeline
from graphwright.report.summary import timeline_summary
from graphwright.report.units import format_bytes

ROLE_COLORS: Mapping[Role, str] = {
    "weights": "#6d7a8a",
    "optimizer state": "#98a3b1",
    "inputs": "#c9b68c",
    "residuals": "#2f7fd6",
    "gradients": "#e07b24",
    "temporaries": "#2ca089",
}
"""Readable on light and on dark ground."""

_LINE_COLORS = ("#2f7fd6", "#e07b24", "#2ca089", "#8d6bc2")
_POINTS = 300
_WIDTH, _HEIGHT = 720, 200
_LEFT, _TOP, _BOTTOM = 70, 10, 18


def timeline_svg(timeline: Timeline, top_bytes: int = 0, budget_bytes: int = 0) -> Markup:
    """Memory over a step, stacked by role, with the peak marked.

    Args:
        top_bytes: how high the chart reaches; 0 for the peak.
        budget_bytes: where a line is drawn; 0 for none.
    """
    if not timeline.total_bytes:
        return Markup("")
    top = max(top_bytes, timeline.peak_bytes, 1) * 1.05
    steps = envelope(timeline.total_bytes, _POINTS, [timeline.peak_step])
    last = max(len(timeline.labels) - 1, 1)
    xs = [_LEFT + (_WIDTH - _LEFT) * step / last for step in steps]
    below = [0.0] * len(steps)
    parts: list[Markup] = []
    for role in ROLES:
        row = timeline.bytes_by_role.get(role)
        if row is None or not any(row):
            continue
        above = [base + row[step] for base, step in zip(below, steps, strict=True)]
        outline = [*zip(xs, above, strict=True), *reversed(list(zip(xs, below, strict=True)))]
        points = " ".join(f"{x:.1f},{_y(nbytes, top):.1f}" for x, nbytes in outline)
        parts.append(Markup('<polygon points="{}" fill="{}"><title>{}</title></polygon>').format(points, ROLE_COLORS[role], role))
        below = above
    x, y = _LEFT + (_WIDTH - _LEFT) * timeline.peak_step / last, _y(timeline.peak_bytes, top)
    parts.append(Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="currentColor"/>').format(x, y))
    return _svg(timeline_summary(timeline), parts, top, budget_bytes)


def lines_svg(series: Mapping[str, Sequence[tuple[float, float]]], summary: str, budget_bytes: int = 0) -> Markup:
    """Bytes against something, one line per series.

    Args:
        series: by name, points of an amount and bytes.
        summary: the chart in words.
        budget_bytes: where a line is drawn; 0 for none.
    """
    points = [point for row in series.values() for point in row]
    if not points:
        return Markup("")
    top = 1.08 * max(nbytes for _, nbytes in points) or 1.0
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    width = (last - first) or 1.0

    def x_of(amount: float) -> float:
        return _LEFT + 10 + (_WIDTH - _LEFT - 24) * (amount - first) / width

    parts: list[Markup] = []
    for k, (name, row) in enumerate(series.items()):
        color = _LINE_COLORS[k % len(_LINE_COLORS)]
        path = " ".join(f"{x_of(x):.1f},{_y(nbytes, top):.1f}" for x, nbytes in row)
        parts.append(Markup('<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>').format(path, color))
        for x, nbytes in row:
            dot = '<circle cx="{:.1f}" cy="{:.1f}" r="3.5" fill="{}"><title>{}</title></circle>'
            parts.append(Markup(dot).format(x_of(x), _y(nbytes, top), color, f"{name}: {x:g}, {format_bytes(nbytes)}"))
    for x in dict.fromkeys(x for x, _ in points):
        label = '<text x="{:.1f}" y="{}" text-anchor="middle">{:g}</text>'
        parts.append(Markup(label).format(x_of(x), _HEIGHT - 3, x))
    return _svg(summary, parts, top, budget_bytes)


def _y(nbytes: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - nbytes / top)


def _grid(top: float) -> list[Markup]:
    parts: list[Markup] = []
    for share in (0.0, 0.5, 1.0):
        nbytes = share * top / 1.05
        line = '<line x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}" stroke="currentColor" stroke-opacity=".18"/>'
        parts.append(Markup(line).format(_LEFT, _WIDTH, _y(nbytes, top), _y(nbytes, top)))
        text = '<text x="{}" y="{:.1f}" text-anchor="end">{}</text>'
        parts.append(Markup(text).format(_LEFT - 6, _y(nbytes, top) + 4, format_bytes(round(nbytes))))
    return parts


def _svg(summary: str, parts: Sequence[Markup], top: float, budget_bytes: int) -> Markup:
    head = '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" xmlns="http://www.w3.org/2000/svg">'
    drawn = [Markup(head).format(_WIDTH, _HEIGHT, escape(summary)), *_grid(top), *parts]
    if 0 < budget_bytes <= top:
        line = '<line x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}" stroke="#d32f2f" stroke-width="1.5" stroke-dasharray="6 4">'
        y = _y(budget_bytes, top)
        drawn.append(Markup(line + "<title>budget {}</title></line>").format(_LEFT, _WIDTH, y, y, format_bytes(budget_bytes)))
    return Markup("").join([*drawn, Markup("</svg>")])
