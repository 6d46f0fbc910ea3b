"""The tables of the pages: columns, and rows of cells that know what they sort by and where they lead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from graphwright.report.results import BufferDecision, LayerCost, LiveBuffer, OpTypeCost, Timeline
from graphwright.report.summary import NO_LAYER, LiveGroup
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, format_time

ROW_LIMIT = 500
"""More rows of a table are left out, and the table says so."""

Kind = Literal["name", "text", "role", "decision", "number"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        optional: not shown until the reader asks for it.
        bar: whether cells show their share of the largest as a bar.
        note: what the figure is, for those who point at the heading.
    """

    label: str
    kind: Kind = "number"
    optional: bool = False
    bar: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. `value` is what it sorts by; `href` begins with #."""

    text: str
    value: float | None = None
    href: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page; the first cell of a row is its heading.

    Attributes:
        keys: per row, what links name it by; empty where nothing links to rows.
        row_count: with those that are left out.
    """

    id: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: tuple[str, ...]
    row_count: int


def layer_href(layer: str) -> str:
    """Where a layer is shown: its row, its tensors, the way to its box.

    >>> layer_href("model/conv 1")
    '#layers/model%2Fconv%201'
    """
    return f"#layers/{quote(layer, safe='')}"


def layer_table(layers: Sequence[LayerCost], *, linked: bool) -> Table:
    """Costs per layer, as many columns as there are figures for.

    Args:
        layers: in the order to show.
        linked: whether the page has a place for each layer.
    """
    extra = any(math.isfinite(row.bytes_moved) for row in layers)
    measured = any(math.isfinite(row.measured_time_s) for row in layers)
    optimizer = any(row.optimizer_flops for row in layers)
    figures: list[tuple[Column, Callable[[LayerCost], Cell]]] = [
        (Column("at the peak", bar=True, note="bytes live at the peak"), lambda r: bytes_cell(r.peak_share_bytes)),
        (Column("residuals", bar=True, note="forward values kept for the backward pass"), lambda r: bytes_cell(r.residual_bytes)),
        (Column("parameters", bar=True, note="trainable elements"), lambda r: count_cell(r.parameter_count)),
        (Column("forward", bar=True, note="FLOPs of the forward pass"), lambda r: flops_cell(r.forward_flops)),
        (Column("backward", bar=True, note="FLOPs of the gradients"), lambda r: flops_cell(r.backward_flops)),
    ]
    if optimizer:
        figures.append((Column("optimizer", bar=True, note="FLOPs of the updates"), lambda r: flops_cell(r.optimizer_flops)))
    if extra:
        moved: list[tuple[Column, Callable[[LayerCost], Cell]]] = [
            (Column("moved", bar=True, note="bytes read and written"), lambda r: bytes_cell(r.bytes_moved)),
            (Column("FLOP/B", note="arithmetic intensity"), lambda r: ratio_cell(r.flops, r.bytes_moved)),
            (Column("estimated", optional=measured, bar=True, note="time by assumed rates"), lambda r: time_cell(r.estimated_time_s)),
        ]
        figures += moved
    if measured:
        figures.append((Column("measured", bar=True, note="time in the profile"), lambda r: time_cell(r.measured_time_s)))
    figures.append((Column("ops", optional=extra, note="operations"), lambda r: count_cell(r.op_count)))
    rows = [(layer_cell(r.layer, linked=linked), *(cell(r) for _, cell in figures)) for r in layers[:ROW_LIMIT]]
    columns = (Column("layer", "name"), *(column for column, _ in figures))
    caption = f"{format_count(len(layers))} layers. Residuals are forward values kept for the backward pass"
    return Table("table-layers", "Per layer", caption, columns, tuple(rows), tuple(r.layer for r in layers[:ROW_LIMIT]), len(layers))


def op_type_table(op_types: Sequence[OpTypeCost]) -> Table:
    """Costs per op type."""
    measured = any(math.isfinite(row.measured_time_s) for row in op_types)
    columns = [
        Column("op type", "name"),
        Column("ops", note="operations; those in loops once"),
        Column("forward", bar=True, note="FLOPs of the forward pass"),
        Column("backward", bar=True, note="FLOPs of the gradients"),
        Column("optimizer", optional=True, note="FLOPs of the updates"),
        Column("moved", bar=True, note="bytes read and written"),
        Column("FLOP/B", note="arithmetic intensity"),
        Column("estimated", bar=True, note="time by assumed rates"),
        Column("not counted", optional=not any(row.unknown_count for row in op_types), note="operations whose FLOPs are not known"),
    ]
    columns += [Column("measured", bar=True, note="time in the profile")] if measured else []
    rows = [
        (
            Cell(r.op_type),
            count_cell(r.op_count),
            flops_cell(r.forward_flops),
            flops_cell(r.backward_flops),
            flops_cell(r.optimizer_flops),
            bytes_cell(r.bytes_moved),
            ratio_cell(r.flops, r.bytes_moved),
            time_cell(r.estimated_time_s),
            count_cell(r.unknown_count),
            *([time_cell(r.measured_time_s)] if measured else []),
        )
        for r in op_types[:ROW_LIMIT]
    ]
    caption = f"{format_count(len(op_types))} op types of the graph"
    caption += "; what TensorFlow fused ran under another name and has no time here" if measured else ""
    return Table("table-op-types", "Per op type", caption, tuple(columns), tuple(rows), (), len(op_types))


def live_table(identity: str, title: str, timeline: Timeline, *, linked: bool) -> Table:
    """The buffers that are live at the peak."""
    live = timeline.live_at_peak
    columns = (
        Column("value", "name"),
        Column("op type", "text"),
        Column("layer", "name"),
        Column("role", "role"),
        Column("bytes", bar=True),
        Column("of the peak"),
    )
    rows = [
        (
            Cell(b.name),
            Cell(b.op_type),
            layer_cell(b.layer, linked=linked),
            Cell(b.role),
            bytes_cell(b.nbytes),
            Cell(format_percent(b.nbytes / timeline.peak_bytes) if timeline.peak_bytes else "", b.nbytes),
        )
        for b in live[:ROW_LIMIT]
    ]
    listed = sum(b.nbytes for b in live)
    caption = (
        f"{format_count(len(live))} buffers, {format_bytes(listed)} of {format_bytes(timeline.peak_bytes)}, "
        f"at step {format_count(timeline.peak_step + 1)}"
    )
    return Table(identity, title, caption, columns, tuple(rows), tuple(_layers_of(live)), len(live))


def live_group_table(groups: Sequence[LiveGroup], peak_bytes: int, *, linked: bool) -> Table:
    """What is live at the peak, by layer and role."""
    columns = (Column("layer", "name"), Column("role", "role"), Column("buffers"), Column("bytes", bar=True), Column("of the peak"))
    rows = [
        (
            layer_cell(g.layer, linked=linked),
            Cell(g.role),
            count_cell(g.count),
            bytes_cell(g.nbytes),
            Cell(format_percent(g.nbytes / peak_bytes) if peak_bytes else "", g.nbytes),
        )
        for g in groups[:ROW_LIMIT]
    ]
    caption = f"{format_count(len(groups))} groups of buffers that are there at the worst moment"
    return Table(
        "table-live-groups",
        "Live at the peak, by layer and role",
        caption,
        columns,
        tuple(rows),
        tuple(g.layer for g in groups[:ROW_LIMIT]),
        len(groups),
    )


def decision_table(decisions: Sequence[BufferDecision], *, linked: bool) -> Table:
    """What a plan does with each residual."""
    columns = (
        Column("value", "name"),
        Column("op type", "text"),
        Column("layer", "name"),
        Column("decision", "decision"),
        Column("bytes", bar=True),
        Column("FLOPs of the op"),
    )
    rows = [
        (
            Cell(d.name),
            Cell(d.op_type),
            layer_cell(d.layer, linked=linked),
            Cell(d.decision),
            bytes_cell(d.nbytes),
            Cell(format_flops(d.recompute_flops) if d.decision == "recompute" else "", d.recompute_flops),
        )
        for d in decisions[:ROW_LIMIT]
    ]
    return Table(
        "table-decisions",
        "What becomes of the residuals",
        "Forward values that the backward pass reads",
        columns,
        tuple(rows),
        tuple(d.layer for d in decisions[:ROW_LIMIT]),
        len(decisions),
    )


def bytes_cell(nbytes: float) -> Cell:
    return _cell(format_bytes, nbytes)


def flops_cell(flops: float) -> Cell:
    """A number of floating-point operations."""
    return _cell(format_flops, flops)


def time_cell(time_s: float) -> Cell:
    return _cell(format_time, time_s)


def count_cell(count: int) -> Cell:
    return Cell(format_count(count), count)


def ratio_cell(above: float, below: float) -> Cell:
    """A quotient with three digits; nothing where there is nothing to divide by."""
    if not below or not math.isfinite(above / below):
        return Cell("", -1)
    return Cell(f"{above / below:.3g}", above / below)


def _cell(form: Callable[[float], str], figure: float) -> Cell:
    return Cell(form(figure), figure) if math.isfinite(figure) else Cell("", -1)


def layer_cell(layer: str, *, linked: bool) -> Cell:
    """A layer, which leads to where it is shown."""
    return Cell(layer or NO_LAYER, href=layer_href(layer) if linked else "")


def _layers_of(buffers: Iterable[LiveBuffer]) -> list[str]:
    return [b.layer for b in buffers][:ROW_LIMIT]
