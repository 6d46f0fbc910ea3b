"""Results as text for a terminal: plain through `str()`, in color on a `Page` of a console.

Plain text is 80 columns wide. On a console the text takes the width there is, up to
`MAX_WIDTH`. Nothing that comes from a graph is read as markup or obeyed as a control
character, and names that are too long lose their middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from graphwright.report.layer_tree import layer_columns as layer_tree_columns
from graphwright.report.layer_tree import layer_rows, total_row
from graphwright.report.results import ROLES, Inspection, LayerCost, LayerTable, MemoryPlan, Role, Timeline
from graphwright.report.summary import (
    Phase,
    chart_top_bytes,
    inspection_facts,
    inspection_lines,
    inspection_verdict,
    layers_by_share,
    live_groups,
    origins,
    phase_spans,
    plan_facts,
    plan_lines,
    plan_tone,
    plan_verdict,
    timeline_summary,
)
from graphwright.report.tables import DECISIONS, Column, chosen, layer_columns
from graphwright.report.terminal_layout import ROLE_STYLES, Page
from graphwright.report.terminal_peak import print_live, role_words
from graphwright.report.units import format_bytes, format_flops

__all__ = ["inspection_verdict", "plan_verdict", "print_inspection", "print_plan", "print_timeline"]

_STATE = ("weights", "optimizer state", "inputs")
_CHART_ROWS = 6
_TABLE_ROWS = 8
_BLOCKS = " ▁▂▃▄▅▆▇█"
_TONE_STYLES = {"good": "bold green", "bad": "bold red", "neutral": "bold"}
_PHASE_MARKS: dict[Phase, tuple[str, str]] = {
    "forward": ("─", "dim"),
    "backward": ("═", "magenta"),
    "recomputation": ("≈", "bold red"),
    "optimizer": ("╌", "yellow"),
}
_LARGEST = chosen(DECISIONS, "the largest=value", "op type", "bytes", "decision")


def print_inspection(inspection: Inspection, page: Page) -> None:
    page.headline(inspection_verdict(inspection))
    timeline = inspection.timeline
    page.flow(role_words((role, row[timeline.peak_step]) for role, row in timeline.bytes_by_role.items() if row), "   ", indent=2)
    if inspection.executor is not None and inspection.executor.order == "xla":
        page.paragraph(f"  ({format_bytes(timeline.peak_bytes)} operation by operation, without the fusions of XLA)")
    live = [group for group in live_groups(timeline.live_at_peak) if group.role not in _STATE]
    page.ranking("Largest", ((group.layer or f"other {group.role}", group.nbytes) for group in live), format_bytes)
    for text in inspection_lines(inspection):
        page.paragraph(text)
    if page.shows("layers"):
        table = inspection.table or LayerTable()
        rows = layer_rows(inspection, table.depth)
        page.table("Layers", [*rows, *total_row(rows)], layer_tree_columns(inspection, table), empty="no layers are known")
    if page.shows("all"):
        page.facts(inspection_facts(inspection))
    if page.shows("chart"):
        page.section("Memory over the step", *_chart(timeline, page.body_width, timeline.peak_bytes, None))
    if page.shows("all"):
        print_live("Live at the peak", timeline.live_at_peak, timeline.peak_bytes, page)
    page.origins(origins(inspection))


def print_timeline(timeline: Timeline, page: Page) -> None:
    page.headline(timeline_summary(timeline))
    page.section("Memory over the step", *_chart(timeline, page.body_width, timeline.peak_bytes, None))


def print_plan(plan: MemoryPlan, page: Page) -> None:
    top = chart_top_bytes(plan)
    page.headline(plan_verdict(plan), _TONE_STYLES[plan_tone(plan)])
    for text in plan_lines(plan):
        page.paragraph(text)
    if page.shows("all"):
        page.facts(plan_facts(plan))
    if page.shows("chart"):
        if plan.status != "unchanged":
            page.section("Memory over the step, before", *_chart(plan.timeline_before, page.body_width, top, plan.budget_bytes))
        page.section("Memory over the step, planned", *_chart(plan.timeline_after, page.body_width, top, plan.budget_bytes))
    if page.shows("all"):
        print_live("Live at the planned peak", plan.timeline_after.live_at_peak, plan.timeline_after.peak_bytes, page)
        page.table("What becomes of the residuals", plan.decisions, _LARGEST, limit=_TABLE_ROWS, empty="no residuals")
    if page.shows("layers"):
        _print_layers(plan.layers, page)
    page.origins(origins(plan))


def _chart(timeline: Timeline, width: int, top_bytes: int, budget_bytes: int | None) -> list[RenderableType]:
    """Block characters: one column per run of steps, as high as the most that is live in it."""
    if not timeline.total_bytes or top_bytes <= 0:
        return [Text("no steps", style="dim")]
    top_label = format_bytes(top_bytes)
    labels = {_CHART_ROWS - 1: top_label, 0: "0 B"}
    budget_row = -1
    if budget_bytes is not None and 0 < budget_bytes <= top_bytes:
        budget_row = min(int(budget_bytes / top_bytes * _CHART_ROWS), _CHART_ROWS - 1)
        labels[budget_row] = f"budget {format_bytes(budget_bytes)}"
    margin = max(cell_len(label) for label in labels.values())
    columns = _columns(timeline, max(width - margin - 2, 8))
    lines: list[RenderableType] = []
    for row in range(_CHART_ROWS - 1, -1, -1):
        line = Text(no_wrap=True)
        line.append(f"{labels.get(row, ''):>{margin}} {'┤' if row in labels else '│'}", style="dim")
        for step in columns:
            eighths = round(timeline.total_bytes[step] / top_bytes * _CHART_ROWS * 8) - 8 * row
            if eighths > 0:
                line.append(_BLOCKS[min(eighths, 8)], style=ROLE_STYLES[_role_at(timeline, step, (row + 0.5) / _CHART_ROWS * top_bytes)])
            else:
                line.append("┄" if row == budget_row else " ", style="red")
        lines.append(line)
    strip = Text(no_wrap=True)
    strip.append(" " * (margin + 1) + "└", style="dim")
    for mark, style in _phases(timeline, len(columns)):
        strip.append(mark, style=style)
    lines.append(strip)
    lines.append(_peak_mark(timeline, columns, margin + 2))
    lines.append(_legend(timeline, width))
    return lines


def _columns(timeline: Timeline, count: int) -> list[int]:
    """For each column of the chart the step that it shows: the highest of those that fall on it."""
    return [max(steps, key=timeline.total_bytes.__getitem__) for steps in _steps_of_columns(timeline, count)]


def _steps_of_columns(timeline: Timeline, count: int) -> list[range]:
    borders = [column * len(timeline.total_bytes) // count for column in range(count + 1)]
    return [range(first, max(last, first + 1)) for first, last in pairwise(borders)]


def _role_at(timeline: Timeline, step: int, height_bytes: float) -> Role:
    below = 0
    top: Role = ROLES[0]
    for role in ROLES:
        nbytes = timeline.bytes_by_role[role][step] if role in timeline.bytes_by_role else 0
        if nbytes:
            top = role
        below += nbytes
        if below > height_bytes:
            return role
    return top


def _phases(timeline: Timeline, count: int) -> list[tuple[str, str]]:
    marks: list[tuple[str, str]] = []
    spans = phase_spans(timeline)
    for steps in _steps_of_columns(timeline, count):
        if any(timeline.is_recomputation[step] for step in steps):
            marks.append(_PHASE_MARKS["recomputation"])
        else:
            marks.append(next(_PHASE_MARKS[phase] for _, last, phase in spans if steps[-1] <= last))
    return marks


def _peak_mark(timeline: Timeline, columns: Sequence[int], offset: int) -> Text:
    column = max(range(len(columns)), key=lambda index: timeline.total_bytes[columns[index]])
    text = f"peak {format_bytes(timeline.peak_bytes)}"
    if column >= len(text) + 1:
        return Text(" " * (offset + column - len(text) - 1) + f"{text} ▲", style="bold", no_wrap=True)
    return Text(" " * (offset + column) + f"▲ {text}", style="bold", no_wrap=True)


def _legend(timeline: Timeline, width: int) -> Text:
    legend = Text("steps: ─ forward  ═ backward", style="dim")
    if any(timeline.is_optimizer):
        legend.append("  ╌ optimizer")
    if any(timeline.is_recomputation):
        legend.append("  ≈ with recomputation")
    legend.append("\nat the peak:")
    for role in ROLES:
        row = timeline.bytes_by_role.get(role)
        if row is not None and row[timeline.peak_step]:
            entry = f"{role} {format_bytes(row[timeline.peak_step])}"
            # The color of a role is said by its square, so a role and its bytes stay together on a line.
            legend.append("\n" if cell_len(legend.plain.rpartition("\n")[2]) + cell_len(entry) + 4 > width else "  ")
            legend.append("■ ", style=f"not dim {ROLE_STYLES[role]}")
            legend.append(entry)
    return legend


def _print_layers(layers: Sequence[LayerCost], page: Page) -> None:
    known = layer_columns(layers)
    verbs = [column for column in known if column.label == "verbs"]
    columns = [*chosen(known, "layer", "at the peak", "residuals", "parameters"), *verbs]
    columns.append(Column[LayerCost]("FLOPs", lambda r: r.flops, format_flops))
    rows, more = layers_by_share(layers), "more in the HTML report"
    page.table("Per layer", rows, columns, limit=_TABLE_ROWS, more=more, empty="no layers are known")
