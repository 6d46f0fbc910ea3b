"""Results as text for a terminal: plain through `str()`, in color on a `Page` of a console.

Plain text is 80 columns wide. On a console the text takes the width there is, up to
`MAX_WIDTH`. Nothing that comes from a graph is read as markup or obeyed as a control
character, and names that are too long lose their middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from graphwright.report.results import ROLES, Inspection, LayerCost, MemoryPlan, Role, Timeline
from graphwright.report.summary import (
    NO_LAYER,
    NOT_MEASURED,
    Comparison,
    chart_top_bytes,
    inspection_comparisons,
    inspection_facts,
    inspection_verdict,
    layers_by_share,
    live_groups,
    origins,
    plan_comparisons,
    plan_facts,
    plan_tone,
    plan_verdict,
)
from graphwright.report.terminal_layout import Page, figures_table
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, printable, shorten_middle

__all__ = ["inspection_verdict", "plan_verdict", "print_inspection", "print_plan"]

_CHART_ROWS = 6
_TABLE_ROWS = 8
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ROLE_STYLES: dict[Role, str] = {
    "weights": "bright_black",
    "optimizer state": "white",
    "inputs": "yellow",
    "residuals": "blue",
    "gradients": "magenta",
    "temporaries": "green",
}
_TONE_STYLES = {"good": "bold green", "bad": "bold red", "neutral": "bold"}
_DECISION_ORDER = ("save", "recompute", "offload")


def print_inspection(inspection: Inspection, page: Page) -> None:
    page.headline(inspection_verdict(inspection))
    page.facts(inspection_facts(inspection))
    page.section("Memory over the step", *_chart(inspection.timeline, page.body_width, inspection.timeline.peak_bytes, None))
    page.section("Live at the peak", _live(inspection.timeline, page.body_width))
    page.section("Per layer", *_layers(inspection.layers, page.body_width))
    page.section("Predicted and measured", _comparisons(inspection_comparisons(inspection), page.body_width))
    page.origins(origins(inspection))


def print_plan(plan: MemoryPlan, page: Page) -> None:
    top = chart_top_bytes(plan)
    page.headline(plan_verdict(plan), _TONE_STYLES[plan_tone(plan)])
    page.facts(plan_facts(plan))
    if plan.status != "unchanged":
        page.section("Memory over the step, before", *_chart(plan.timeline_before, page.body_width, top, plan.budget_bytes))
    page.section("Memory over the step, planned", *_chart(plan.timeline_after, page.body_width, top, plan.budget_bytes))
    page.section("Live at the planned peak", _live(plan.timeline_after, page.body_width))
    page.section("What becomes of the residuals", *_decisions(plan, page.body_width))
    page.section("Per layer", *_layers(plan.layers, page.body_width))
    page.section("Predicted and measured", _comparisons(plan_comparisons(plan), page.body_width))
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
                line.append(_BLOCKS[min(eighths, 8)], style=_ROLE_STYLES[_role_at(timeline, step, (row + 0.5) / _CHART_ROWS * top_bytes)])
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
    steps = len(timeline.total_bytes)
    chosen: list[int] = []
    for column in range(count):
        first = column * steps // count
        last = max((column + 1) * steps // count, first + 1)
        chosen.append(max(range(first, last), key=timeline.total_bytes.__getitem__))
    return chosen


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
    steps = len(timeline.total_bytes)
    marks: list[tuple[str, str]] = []
    for column in range(count):
        first = column * steps // count
        last = max((column + 1) * steps // count, first + 1)
        if any(timeline.is_recomputation[first:last]):
            marks.append(("≈", "bold red"))
        elif 2 * sum(timeline.is_backward[first:last]) >= last - first:
            marks.append(("═", "magenta"))
        else:
            marks.append(("─", "dim"))
    return marks


def _peak_mark(timeline: Timeline, columns: Sequence[int], offset: int) -> Text:
    column = max(range(len(columns)), key=lambda index: timeline.total_bytes[columns[index]])
    text = f"peak {format_bytes(timeline.peak_bytes)}"
    if column >= len(text) + 1:
        return Text(" " * (offset + column - len(text) - 1) + f"{text} ▲", style="bold", no_wrap=True)
    return Text(" " * (offset + column) + f"▲ {text}", style="bold", no_wrap=True)


def _legend(timeline: Timeline, width: int) -> Text:
    legend = Text("steps: ─ forward  ═ backward", style="dim")
    if any(timeline.is_recomputation):
        legend.append("  ≈ with recomputation")
    legend.append("\nat the peak:")
    for role in ROLES:
        row = timeline.bytes_by_role.get(role)
        if row is not None and row[timeline.peak_step]:
            entry = f"{role} {format_bytes(row[timeline.peak_step])}"
            # The color of a role is said by its square, so a role and its bytes stay together on a line.
            legend.append("\n" if _last_line_width(legend) + cell_len(entry) + 4 > width else "  ")
            legend.append("■ ", style=f"not dim {_ROLE_STYLES[role]}")
            legend.append(entry)
    return legend


def _last_line_width(text: Text) -> int:
    return cell_len(text.plain.rpartition("\n")[2])


def _live(timeline: Timeline, width: int) -> RenderableType:
    groups = live_groups(timeline.live_at_peak)
    if not groups:
        return Text("not itemized", style="dim")
    rows: list[list[Text | str]] = []
    for group in groups[:_TABLE_ROWS]:
        role = Text(group.role, style=_ROLE_STYLES[group.role])
        share = _share(group.nbytes, timeline.peak_bytes)
        rows.append([_name(group.layer), role, format_count(group.count), format_bytes(group.nbytes), share])
    rest = groups[_TABLE_ROWS:]
    if rest:
        nbytes = sum(group.nbytes for group in rest)
        count = format_count(sum(group.count for group in rest))
        rows.append([f"{format_count(len(rest))} more", "", count, format_bytes(nbytes), _share(nbytes, timeline.peak_bytes)])
    missing = timeline.peak_bytes - sum(group.nbytes for group in groups)
    if missing > 0:
        rows.append(["not itemized", "", "", format_bytes(missing), _share(missing, timeline.peak_bytes)])
    return figures_table(width, ("layer", "role", "buffers", "bytes", "of the peak"), rows, left=(1,))


def _layers(layers: Sequence[LayerCost], width: int) -> list[RenderableType]:
    if not layers:
        return [Text("no layers are known", style="dim")]
    rows = [
        (
            _name(layer.layer),
            format_bytes(layer.peak_share_bytes),
            format_bytes(layer.residual_bytes),
            format_count(layer.parameter_count),
            format_flops(layer.forward_flops + layer.backward_flops),
        )
        for layer in layers_by_share(layers)[:_TABLE_ROWS]
    ]
    table = figures_table(width, ("layer", "at the peak", "residuals", "parameters", "FLOPs"), rows)
    rest = len(layers) - _TABLE_ROWS
    return [table, Text(f"{format_count(rest)} more in the HTML report", style="dim")] if rest > 0 else [table]


def _decisions(plan: MemoryPlan, width: int) -> list[RenderableType]:
    if not plan.decisions:
        return [Text("no residuals", style="dim")]
    totals: list[tuple[str, ...]] = []
    for decision in _DECISION_ORDER:
        chosen = [row for row in plan.decisions if row.decision == decision]
        if chosen:
            totals.append((decision, format_count(len(chosen)), format_bytes(sum(row.nbytes for row in chosen))))
    largest = [
        (_name(row.name), shorten_middle(printable(row.op_type), 24), format_bytes(row.nbytes), row.decision)
        for row in plan.decisions[:_TABLE_ROWS]
    ]
    return [
        figures_table(width, ("decision", "residuals", "bytes"), totals),
        Text(),
        figures_table(width, ("the largest", "op type", "bytes", "decision"), largest, left=(1, 3)),
    ]  # fmt: skip


def _comparisons(comparisons: Iterable[Comparison], width: int) -> RenderableType:
    rows: list[list[Text | str]] = []
    for row in comparisons:
        measured = Text(row.measured, style="dim" if row.measured == NOT_MEASURED else "bold")
        rows.append([row.label, row.predicted, measured, row.difference])
    return figures_table(width, ("", "predicted", "measured", "difference"), rows)


def _name(name: str) -> Text:
    return Text(printable(name) or NO_LAYER, no_wrap=True)


def _share(nbytes: int, peak_bytes: int) -> str:
    return format_percent(nbytes / peak_bytes) if peak_bytes else ""
