"""The tables of the pages: columns, and rows of cells that know what they sort by and where they lead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar
from urllib.parse import quote

from graphwright.report.results import BufferDecision, LayerCost, LiveBuffer, OpTypeCost, Timeline
from graphwright.report.summary import NO_LAYER, LiveGroup
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, format_time

ROW_LIMIT = 500
"""More rows of a table are left out, and the table says so."""

Kind = Literal["name", "text", "role", "decision", "number"]
Item = TypeVar("Item")


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


def tabulated(
    identity: str,
    title: str,
    caption: str,
    items: Sequence[Item],
    figures: Iterable[tuple[Column, Callable[[Item], Cell]]],
    key: Callable[[Item], str] | None = None,
) -> Table:
    """A row per item, as far as a table goes; each column says what stands in it.

    >>> tabulated("t", "Squares", "", [2, 3], [(Column("n"), lambda n: Cell(str(n))), (Column("n²"), lambda n: Cell(str(n * n)))]).rows[1]
    (Cell(text='3', value=None, href=''), Cell(text='9', value=None, href=''))
    """
    figures, shown = tuple(figures), items[:ROW_LIMIT]
    rows = tuple(tuple(cell(item) for _, cell in figures) for item in shown)
    keys = () if key is None else tuple(map(key, shown))
    return Table(identity, title, caption, tuple(column for column, _ in figures), rows, keys, len(items))


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
        (Column("layer", "name"), lambda r: layer_cell(r.layer, linked=linked)),
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
    caption = f"{format_count(len(layers))} layers. Residuals are forward values kept for the backward pass"
    return tabulated("table-layers", "Per layer", caption, layers, figures, lambda r: r.layer)


def op_type_table(op_types: Sequence[OpTypeCost]) -> Table:
    """Costs per op type."""
    measured = any(math.isfinite(row.measured_time_s) for row in op_types)
    uncounted = any(row.unknown_count for row in op_types)
    figures: list[tuple[Column, Callable[[OpTypeCost], Cell]]] = [
        (Column("op type", "name"), lambda r: Cell(r.op_type)),
        (Column("ops", note="operations; those in loops once"), lambda r: count_cell(r.op_count)),
        (Column("forward", bar=True, note="FLOPs of the forward pass"), lambda r: flops_cell(r.forward_flops)),
        (Column("backward", bar=True, note="FLOPs of the gradients"), lambda r: flops_cell(r.backward_flops)),
        (Column("optimizer", optional=True, note="FLOPs of the updates"), lambda r: flops_cell(r.optimizer_flops)),
        (Column("moved", bar=True, note="bytes read and written"), lambda r: bytes_cell(r.bytes_moved)),
        (Column("FLOP/B", note="arithmetic intensity"), lambda r: ratio_cell(r.flops, r.bytes_moved)),
        (Column("estimated", bar=True, note="time by assumed rates"), lambda r: time_cell(r.estimated_time_s)),
        (Column("not counted", optional=not uncounted, note="operations whose FLOPs are not known"), lambda r: count_cell(r.unknown_count)),
    ]
    caption = f"{format_count(len(op_types))} op types of the graph"
    if measured:
        figures.append((Column("measured", bar=True, note="time in the profile"), lambda r: time_cell(r.measured_time_s)))
        caption += "; what TensorFlow fused ran under another name and has no time here"
    return tabulated("table-op-types", "Per op type", caption, op_types, figures)


def live_table(identity: str, title: str, timeline: Timeline, *, linked: bool) -> Table:
    """The buffers that are live at the peak."""
    live = timeline.live_at_peak
    figures: list[tuple[Column, Callable[[LiveBuffer], Cell]]] = [
        (Column("value", "name"), lambda b: Cell(b.name)),
        (Column("op type", "text"), lambda b: Cell(b.op_type)),
        (Column("layer", "name"), lambda b: layer_cell(b.layer, linked=linked)),
        (Column("role", "role"), lambda b: Cell(b.role)),
        (Column("bytes", bar=True), lambda b: bytes_cell(b.nbytes)),
        (Column("of the peak"), lambda b: _share_cell(b.nbytes, timeline.peak_bytes)),
    ]
    listed = sum(b.nbytes for b in live)
    caption = (
        f"{format_count(len(live))} buffers, {format_bytes(listed)} of {format_bytes(timeline.peak_bytes)}, "
        f"at step {format_count(timeline.peak_step + 1)}"
    )
    return tabulated(identity, title, caption, live, figures, lambda b: b.layer)


def live_group_table(groups: Sequence[LiveGroup], peak_bytes: int, *, linked: bool) -> Table:
    """What is live at the peak, by layer and role."""
    figures: list[tuple[Column, Callable[[LiveGroup], Cell]]] = [
        (Column("layer", "name"), lambda g: layer_cell(g.layer, linked=linked)),
        (Column("role", "role"), lambda g: Cell(g.role)),
        (Column("buffers"), lambda g: count_cell(g.count)),
        (Column("bytes", bar=True), lambda g: bytes_cell(g.nbytes)),
        (Column("of the peak"), lambda g: _share_cell(g.nbytes, peak_bytes)),
    ]
    caption = f"{format_count(len(groups))} groups of buffers that are there at the worst moment"
    return tabulated("table-live-groups", "Live at the peak, by layer and role", caption, groups, figures, lambda g: g.layer)


def decision_table(decisions: Sequence[BufferDecision], *, linked: bool) -> Table:
    """What a plan does with each residual."""
    figures: list[tuple[Column, Callable[[BufferDecision], Cell]]] = [
        (Column("value", "name"), lambda d: Cell(d.name)),
        (Column("op type", "text"), lambda d: Cell(d.op_type)),
        (Column("layer", "name"), lambda d: layer_cell(d.layer, linked=linked)),
        (Column("decision", "decision"), lambda d: Cell(d.decision)),
        (Column("bytes", bar=True), lambda d: bytes_cell(d.nbytes)),
        (
            Column("FLOPs of the op"),
            lambda d: Cell(format_flops(d.recompute_flops) if d.decision == "recompute" else "", d.recompute_flops),
        ),
    ]
    caption = "Forward values that the backward pass reads"
    return tabulated("table-decisions", "What becomes of the residuals", caption, decisions, figures, lambda d: d.layer)


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


def _share_cell(nbytes: int, peak_bytes: int) -> Cell:
    return Cell(format_percent(nbytes / peak_bytes) if peak_bytes else "", nbytes)


def _cell(form: Callable[[float], str], figure: float) -> Cell:
    return Cell(form(figure), figure) if math.isfinite(figure) else Cell("", -1)


def layer_cell(layer: str, *, linked: bool) -> Cell:
    """A layer, which leads to where it is shown."""
    return Cell(layer or NO_LAYER, href=layer_href(layer) if linked else "")
