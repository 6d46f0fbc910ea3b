"""Tables, described once for the terminal and the pages: what each column holds, how it is written, what it is.

A column says what a row's figure is and how it is written. A terminal shows some of the columns (`chosen`) of the first rows, a page all
of them, of which the reader opens the optional ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from graphwright.analyze.layers import in_layer
from graphwright.analyze.parameters import ParameterSums
from graphwright.analyze.profile_tree import Column as TreeColumn
from graphwright.analyze.profile_tree import column_value
from graphwright.analyze.step_profile import ProfileRow
from graphwright.report.flop_count import FlopRow
from graphwright.report.results import BufferDecision, LayerCost, LiveBuffer, OpTypeCost, Timeline
from graphwright.report.summary import NO_LAYER, LiveGroup
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, format_time

ROW_LIMIT = 200
"""More rows of a table are left out of a page, and the table says so."""

Kind = Literal["name", "layer", "text", "role", "decision", "number"]
Item = TypeVar("Item")


def nothing_of_zero(form: Callable[[Any], str]) -> Callable[[Any], str]:
    """The same way to write a figure, but that nothing stands for 0."""
    return lambda figure: form(figure) if figure else ""


def signed(form: Callable[[Any], str]) -> Callable[[Any], str]:
    """The same way to write a figure, for a difference: with its sign, and nothing where there is none.

    >>> [signed(format_bytes)(difference) for difference in (2048, 0, -3)]
    ['+2.00 KiB', '', '-3 B']
    """
    return lambda figure: f"{'+' if figure > 0 else ''}{form(figure)}" if figure else ""


def format_ratio(ratio: float) -> str:
    """A quotient with three digits."""
    return f"{ratio:.3g}"


@dataclass(frozen=True)
class Column(Generic[Item]):
    """One column.

    Attributes:
        of: the figure of a row, nan where there is none; or its text, or what stands there.
        form: how a figure is written.
        kind: what it holds: figures stand at the right, a layer leads to its place on a page.
        optional: not shown on a page until the reader asks for it.
        wide: the same where a window has little room, as for all columns of words.
        bar: whether cells of a page show their share of the largest as a bar.
        note: what the figure is, for those who point at the heading.
        style: of a row's cell in a terminal.
    """

    label: str
    of: Callable[[Item], float | str | Cell]
    form: Callable[[Any], str] = format_count
    kind: Kind = "number"
    optional: bool = False
    wide: bool = False
    bar: bool = False
    note: str = ""
    style: Callable[[Item], str] | None = None

    def cell(self, item: Item) -> Cell:
        """What stands in the row of an item."""
        figure = self.of(item)
        if self.kind == "layer":
            return Cell(str(figure) or NO_LAYER, href=layer_href(str(figure)))
        if isinstance(figure, Cell | str):
            return Cell(figure) if isinstance(figure, str) else figure
        return Cell(self.form(figure), figure) if math.isfinite(figure) else Cell("", -1)


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
    columns: tuple[Column[Any], ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: tuple[str, ...]
    row_count: int


def tabulated(
    identity: str,
    title: str,
    caption: str,
    items: Sequence[Item],
    columns: Iterable[Column[Item]],
    key: Callable[[Item], str] | None = None,
) -> Table:
    """A row per item, as far as a table of a page goes; columns in which nothing stands are left out.

    >>> tabulated("t", "Squares", "", [2, 3], [Column("n", lambda n: n), Column("n²", lambda n: n * n)]).rows[1]
    (Cell(text='3', value=3, href=''), Cell(text='9', value=9, href=''))
    """
    columns, shown = tuple(columns), items[:ROW_LIMIT]
    keys = () if key is None else tuple(map(key, shown))
    rows = [tuple(c.cell(item) for c in columns) for item in shown]
    kept = [k for k in range(len(columns)) if k == 0 or not rows or any(row[k].text for row in rows)]
    cells = tuple(tuple(row[k] for k in kept) for row in rows)
    return Table(identity, title, caption, tuple(columns[k] for k in kept), cells, keys, len(items))


def largest(
    figures: Iterable[tuple[float, str]], form: Callable[[Any], str], count: int = 6, *, of_layers: bool = True
) -> list[dict[str, Any]]:
    """The first rows of a list by size: what has nothing is left out, each has its share of the whole."""
    known = sorted(((amount, name) for amount, name in figures if amount > 0), reverse=True)
    total = sum(amount for amount, _ in known)
    return [
        {
            "name": name or NO_LAYER,
            "href": layer_href(name) if of_layers else "",
            "value": form(amount),
            "share": amount / total,
        }
        for amount, name in known[:count]
    ]


def chosen(columns: Iterable[Column[Item]], *labels: str) -> list[Column[Item]]:
    """Those columns, in this order; `"heading=label"` gives one another heading.

    >>> [column.label for column in chosen([Column("n", abs), Column("n²", abs)], "square=n²", "n")]
    ['square', 'n']
    """
    by_label = {column.label: column for column in columns}
    pairs = [(heading, label or heading) for heading, _, label in (text.partition("=") for text in labels)]
    return [replace(by_label[label], label=heading) for heading, label in pairs]


def layer_href(layer: str) -> str:
    """Where a layer is shown: its row, its tensors, the way to its box.

    >>> layer_href("model/conv 1")
    '#layers/model%2Fconv%201'
    """
    return f"#layers/{quote(layer, safe='')}"


def ratio(above: float, below: float) -> float:
    """A quotient; nan where there is nothing to divide by."""
    return above / below if below else math.nan


def layer_columns(layers: Sequence[LayerCost]) -> list[Column[LayerCost]]:
    """Costs of layers, as many columns as there are figures for."""
    extra = any(math.isfinite(row.bytes_moved) for row in layers)
    measured = any(math.isfinite(row.measured_time_s) for row in layers)
    columns: list[Column[LayerCost]] = [
        Column("layer", lambda r: r.layer, kind="layer"),
        Column("at the peak", lambda r: r.peak_share_bytes, format_bytes, bar=True, note="bytes live at the peak"),
        Column("residuals", lambda r: r.residual_bytes, format_bytes, bar=True, note="forward values kept for the backward pass"),
        Column("parameters", lambda r: r.parameter_count, bar=True, note="elements of weights, trained or not"),
        Column("forward", lambda r: r.forward_flops, format_flops, bar=True, note="FLOPs of the forward pass"),
        Column("backward", lambda r: r.backward_flops, format_flops, bar=True, note="FLOPs of the gradients"),
    ]
    if any(row.optimizer_flops for row in layers):
        columns.append(Column("optimizer", lambda r: r.optimizer_flops, format_flops, bar=True, note="FLOPs of the updates"))
    if extra:
        columns = [
            *columns,
            Column("moved", lambda r: r.bytes_moved, format_bytes, bar=True, note="bytes read and written"),
            Column("FLOP/B", lambda r: ratio(r.flops, r.bytes_moved), format_ratio, note="arithmetic intensity"),
            Column("estimated", lambda r: r.estimated_time_s, format_time, optional=measured, bar=True, note="time by assumed rates"),
        ]
    if measured:
        columns.append(Column("measured", lambda r: r.measured_time_s, format_time, bar=True, note="time in the profile"))
    if any(row.verbs for row in layers):
        columns.append(Column("verbs", lambda r: ", ".join(r.verbs), note="what the plan does to it", kind="text"))
    return [*columns, Column("ops", lambda r: r.op_count, optional=extra, note="operations")]


def layer_table(layers: Sequence[LayerCost]) -> Table:
    """Costs per layer, in the order that is given."""
    caption = f"{format_count(len(layers))} layers. Residuals are forward values kept for the backward pass"
    return tabulated("table-layers", "Per layer", caption, layers, layer_columns(layers), lambda r: r.layer)


def op_type_table(op_types: Sequence[OpTypeCost]) -> Table:
    """Costs per op type."""
    uncounted = any(row.unknown_count for row in op_types)
    columns: list[Column[OpTypeCost]] = [
        Column("op type", lambda r: r.op_type, kind="name"),
        Column("ops", lambda r: r.op_count, note="operations; those in loops once"),
        Column("forward", lambda r: r.forward_flops, format_flops, bar=True, note="FLOPs of the forward pass"),
        Column("backward", lambda r: r.backward_flops, format_flops, bar=True, note="FLOPs of the gradients"),
        Column("optimizer", lambda r: r.optimizer_flops, format_flops, optional=True, note="FLOPs of the updates"),
        Column("moved", lambda r: r.bytes_moved, format_bytes, bar=True, note="bytes read and written"),
        Column("FLOP/B", lambda r: ratio(r.flops, r.bytes_moved), format_ratio, note="arithmetic intensity"),
        Column("estimated", lambda r: r.estimated_time_s, format_time, bar=True, note="time by assumed rates"),
        Column("not counted", lambda r: r.unknown_count, optional=not uncounted, note="operations whose FLOPs are not known"),
    ]
    caption = f"{format_count(len(op_types))} op types of the graph"
    if any(math.isfinite(row.measured_time_s) for row in op_types):
        columns.append(Column("measured", lambda r: r.measured_time_s, format_time, bar=True, note="time in the profile"))
        caption += "; what TensorFlow fused ran under another name, so its time is missing here, or a part of it"
    return tabulated("table-op-types", "Per op type", caption, op_types, columns)


def live_table(identity: str, title: str, timeline: Timeline) -> Table:
    """The buffers that are live at the peak."""
    live, peak = timeline.live_at_peak, timeline.peak_bytes
    columns: list[Column[LiveBuffer]] = [
        Column("value", lambda b: b.words, kind="name"),
        Column("op type", lambda b: b.op_type, kind="text"),
        Column("layer", lambda b: b.layer, kind="layer"),
        Column("role", lambda b: b.role, kind="role"),
        Column("bytes", lambda b: b.nbytes, format_bytes, bar=True),
        Column("of the peak", lambda b: ratio(b.nbytes, peak), format_percent),
    ]
    caption = (
        f"{format_count(len(live))} buffers, {format_bytes(sum(b.nbytes for b in live))} of {format_bytes(peak)}, "
        f"at operation {format_count(timeline.peak_step + 1)}"
    )
    return tabulated(identity, title, caption, live, columns, lambda b: b.layer)


def live_group_columns(peak_bytes: int) -> list[Column[LiveGroup]]:
    """What is live at the peak, by layer and role."""
    return [
        Column("layer", lambda g: g.layer, kind="layer"),
        Column("role", lambda g: g.role, kind="role"),
        Column("buffers", lambda g: g.count, nothing_of_zero(format_count)),
        Column("bytes", lambda g: g.nbytes, format_bytes, bar=True),
        Column("of the peak", lambda g: ratio(g.nbytes, peak_bytes), format_percent),
    ]


def live_group_table(groups: Sequence[LiveGroup], peak_bytes: int) -> Table:
    """What is live at the peak, by layer and role."""
    caption = f"{format_count(len(groups))} groups of buffers that are there at the worst moment"
    # What it is sorted by first: a narrow window shows no more than that.
    columns = chosen(live_group_columns(peak_bytes), "layer", "role", "bytes", "of the peak", "buffers")
    return tabulated("table-live-groups", "Live at the peak, by layer and role", caption, groups, columns, lambda g: g.layer)


DECISIONS: Sequence[Column[BufferDecision]] = (
    Column("value", lambda d: in_layer(d.layer, d.name), kind="name"),
    Column("op type", lambda d: d.op_type, kind="text"),
    Column("layer", lambda d: d.layer, kind="layer"),
    Column("decision", lambda d: d.decision, kind="decision"),
    Column("bytes", lambda d: d.nbytes, format_bytes, bar=True),
    Column("FLOPs of the op", lambda d: d.recompute_flops if d.decision == "recompute" else math.nan, format_flops),
    Column("source", lambda d: d.source, kind="text", note="the line of Python that made it"),
)


def decision_table(decisions: Sequence[BufferDecision]) -> Table:
    """What a plan does with each residual."""
    caption = "Forward values that the backward pass reads"
    return tabulated("table-decisions", "What becomes of the residuals", caption, decisions, DECISIONS, lambda d: d.layer)


def flop_columns(heading: str, rows: Iterable[FlopRow]) -> list[Column[FlopRow]]:
    """FLOPs of op types or layers; formulas where the batch size is open."""
    names: list[Column[FlopRow]] = [Column(heading, lambda r: r.name or NO_LAYER, kind="name"), Column("ops", lambda r: r.ops)]
    if any(row.formula is not None for row in rows):
        return [*names, Column("FLOPs", lambda r: str(r.formula))]
    return [
        *names,
        Column("FLOPs", lambda r: r.total, format_flops),
        Column("forward", lambda r: r.forward, format_flops),
        Column("backward", lambda r: r.backward, format_flops),
        Column("back, opt.", lambda r: r.backward + r.optimizer, format_flops, optional=True),
        Column("bytes", lambda r: r.bytes_moved, format_bytes, note="bytes read and written"),
        Column("FLOP/B", lambda r: r.arithmetic_intensity, format_ratio, note="arithmetic intensity"),
    ]


def parameter_columns(heading: str) -> list[Column[tuple[str, ParameterSums]]]:
    """Sums of parameters by name."""
    count = nothing_of_zero(format_count)
    return [
        Column(heading, lambda r: r[0], kind="name"),
        Column("count", lambda r: r[1].count, count, note="variables and constants"),
        Column("trainable", lambda r: r[1].elements["trainable"], count, note="elements"),
        Column("other weights", lambda r: r[1].elements["non-trainable"] + r[1].elements["constant"], count, note="elements"),
        Column("state", lambda r: r[1].elements["optimizer state"] + r[1].elements["other state"], count, note="elements"),
        Column("bytes", lambda r: r[1].total_bytes, format_bytes),
    ]


_TREE_HEADINGS: Mapping[TreeColumn, str] = {
    "host_time": "host",
    "accelerator_time": "accel.",
    "peak_bytes": "peak",
    "residual_bytes": "residual",
    "output_bytes": "output",
    "parameters": "params",
    "flops": "FLOPs",
    "flops_per_s": "FLOP/s",
    "intensity": "FLOP/B",
    "occurrences": "runs",
}


def profile_column(column: TreeColumn) -> Column[ProfileRow]:
    """A column of a profile, by the name that options of a tree call it by."""
    kind = column.rpartition("_")[2]  # "bytes" of "peak_bytes"
    return Column(_TREE_HEADINGS.get(column, column), lambda row: column_value(row, column), _TREE_FORMS.get(kind, format_count))


def _format_flops_short(flops: float) -> str:
    return format_flops(flops).removesuffix("FLOP").strip()


_TREE_FORMS: Mapping[str, Callable[[Any], str]] = {
    "time": format_time,
    "bytes": format_bytes,
    "share": format_percent,
    "flops": _format_flops_short,
    "s": _format_flops_short,  # of "flops_per_s"
    "intensity": format_ratio,
}


def profile_columns(heading: str) -> list[Column[ProfileRow]]:
    """Times, FLOPs and bytes of what ran."""
    shown: tuple[TreeColumn, ...] = ("time", "share", "occurrences", "flops", "parameters", "flops_per_s", "intensity", "bytes")
    figures = {name: profile_column(name) for name in shown}
    for name in ("parameters", "flops_per_s", "intensity"):
        figures[name] = replace(figures[name], form=nothing_of_zero(figures[name].form))
    return [
        Column(heading, lambda r: r.name or NO_LAYER, kind="name"),
        Column("forward", lambda r: r.forward_time_s, format_time),
        Column("backward", lambda r: r.backward_time_s, format_time),
        Column("optimizer", lambda r: r.optimizer_time_s, format_time),
        Column("back, opt.", lambda r: r.backward_time_s + r.optimizer_time_s, format_time),
        *figures.values(),
    ]
