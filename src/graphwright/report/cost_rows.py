"""Costs by layer, op type and node: the rows, tables of them, and the tree of layers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, Literal, get_args

from graphwright.analyze.layers import blocks, several
from graphwright.errors import ArgumentError
from graphwright.plain import fields_json, number
from graphwright.report.sheet import NO_LAYER, Column, Table, layer_href, ratio
from graphwright.report.units import format_bytes, format_count, format_flops, format_ratio, format_time, nothing_of_zero

LayerColumn = Literal[
    "class", "shape", "parameters", "flops", "forward", "backward", "activations", "residuals", "peak", "moved", "estimated", "time",
    "ops", "source",
]  # fmt: skip
_FEW = 40  # rows: the tree is shown as deep as it has so many
_MANY = 100  # layers that no name puts into blocks: the largest are shown
_SHOWN: tuple[LayerColumn, ...] = ("shape", "parameters", "flops", "activations", "time")
_ALIKE = ("op_count", "parameter_count", "forward_flops")
_WEIGHED = ("parameter_count", "forward_flops", "activation_bytes")


class ByDirection:
    """FLOPs by direction; `undivided_flops` are those in all directions if the directions are unknown and nan."""

    __slots__ = ()
    forward_flops: float
    backward_flops: float
    optimizer_flops: float
    undivided_flops: float

    @property
    def flops(self) -> float:
        return self.undivided_flops or self.forward_flops + self.backward_flops + self.optimizer_flops

    def to_json(self) -> dict[str, object]:
        return {**fields_json(self), "total_flops": number(self.flops)}


@dataclass(frozen=True, slots=True)
class LayerCost(ByDirection):
    """One row of the table per layer. Unknown figures are nan.

    Attributes:
        residual_bytes: forward values kept for the backward pass.
        activation_bytes: outputs of its forward pass, kept or not.
        verbs: of a plan: "split", "segment", "recompute", "offload".
    """

    layer: str
    op_count: int
    parameter_count: int
    forward_flops: float
    backward_flops: float
    residual_bytes: int
    peak_share_bytes: int
    optimizer_flops: float = 0.0
    bytes_moved: float = math.nan
    estimated_time_s: float = math.nan
    measured_time_s: float = math.nan
    activation_bytes: float = math.nan
    verbs: tuple[str, ...] = ()
    undivided_flops: float = 0.0


@dataclass(frozen=True, slots=True)
class OpTypeCost(ByDirection):
    """One row of the table per op type. Operations in loops count as often as they run; `unknown_count` have unknown FLOPs."""

    op_type: str
    op_count: int
    forward_flops: float
    backward_flops: float
    optimizer_flops: float
    bytes_moved: float
    unknown_count: int
    estimated_time_s: float = math.nan
    measured_time_s: float = math.nan
    undivided_flops: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeCost:
    """The costs of one node of the graph; of a loop those of all iterations."""

    layer: str
    flops: float
    bytes_moved: float
    estimated_time_s: float
    measured_time_s: float = math.nan


_SUMMED = tuple(f.name for f in fields(LayerCost) if f.name not in ("layer", "verbs"))


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The depth and the columns of the tree of layers; None for what fits."""

    depth: int | None = None
    columns: tuple[LayerColumn, ...] | None = None

    def __post_init__(self) -> None:
        for name in self.columns or ():
            if name not in (known := get_args(LayerColumn)):
                raise ArgumentError(f"there is no column {name!r}", argument="columns", remedy=f"give some of {', '.join(known)}")
        if self.depth is not None and self.depth < 1:
            raise ArgumentError(f"depth={self.depth} was given", argument="depth", remedy="give 1 or more")


_FORWARD = Column[Any]("forward", lambda r: r.forward_flops, format_flops, bar=True, note="FLOPs of the forward pass")
_BACKWARD = Column[Any]("backward", lambda r: r.backward_flops, format_flops, bar=True, note="FLOPs of the gradients")
_OPTIMIZER = Column[Any]("optimizer", lambda r: r.optimizer_flops, nothing_of_zero(format_flops), note="FLOPs of the updates")
_MOVED = Column[Any]("moved", lambda r: r.bytes_moved, format_bytes, bar=True, note="bytes read and written")
_INTENSITY = Column[Any]("FLOP/B", lambda r: ratio(r.flops, r.bytes_moved), format_ratio, note="arithmetic intensity")
_ESTIMATED = Column[Any]("estimated", lambda r: r.estimated_time_s, format_time, bar=True, note="time by assumed rates")
_MEASURED = Column[Any]("measured", lambda r: r.measured_time_s, format_time, bar=True, note="time in the profile")


def _columns(layers: Sequence[LayerCost]) -> dict[str, Column[LayerCost]]:
    extra = any(math.isfinite(row.bytes_moved) for row in layers)
    measured = any(math.isfinite(row.measured_time_s) for row in layers)

    return {
        "peak": Column("at the peak", lambda r: r.peak_share_bytes, format_bytes, bar=True, note="bytes live at the peak"),
        "residuals": Column(
            "residuals", lambda r: r.residual_bytes, format_bytes, bar=True, note="forward values kept for the backward pass"
        ),
        "parameters": Column("parameters", lambda r: r.parameter_count, bar=True, note="elements of weights, trained or not"),
        "verbs": Column("verbs", lambda r: ", ".join(r.verbs), note="what the plan does to it", kind="text"),
        "forward": _FORWARD,
        "backward": _BACKWARD,
        "optimizer": replace(_OPTIMIZER, bar=True),
        "flops": Column("FLOPs", lambda r: r.flops, format_flops, bar=True, note="FLOPs in all directions", optional=True),
        "activations": Column(
            "activations", lambda r: r.activation_bytes, format_bytes, bar=True, note="outputs of the forward pass", optional=True
        ),
        "moved": _MOVED,
        "intensity": _INTENSITY,
        "estimated": replace(_ESTIMATED, optional=measured),
        "time": _MEASURED,
        "ops": Column("ops", lambda r: r.op_count, optional=extra, note="operations"),
    }


def layer_table(layers: Sequence[LayerCost], *, on: Literal["both", "page"] = "both") -> Table[LayerCost]:
    rows = sorted(layers, key=lambda layer: (-layer.peak_share_bytes, -layer.residual_bytes, layer.layer))
    columns = [Column[LayerCost]("layer", lambda r: r.layer, kind="layer"), *_columns(layers).values()]
    caption = f"{format_count(len(layers))} layers. Residuals are forward values kept for the backward pass"
    return Table(
        rows, columns, "table-layers", caption, lambda r: r.layer, limit=8, more="more in the HTML report", empty="No layers are known.",
        title="Per layer", part="layers", on=on,
        hint="Choose a layer to see its tensors and its operations. In the table the arrow keys go from row to row.",
    )  # fmt: skip


def op_type_table(op_types: Sequence[OpTypeCost]) -> Table[OpTypeCost]:
    uncounted = any(row.unknown_count for row in op_types)
    columns: list[Column[OpTypeCost]] = [
        Column("op type", lambda r: r.op_type, kind="name"),
        Column("ops", lambda r: r.op_count, note="operations; those in loops once"),
        _FORWARD,
        _BACKWARD,
        replace(_OPTIMIZER, optional=True),
        _MOVED,
        _INTENSITY,
        _ESTIMATED,
        Column("not counted", lambda r: r.unknown_count, optional=not uncounted, note="operations whose FLOPs are not known"),
    ]
    caption = f"{format_count(len(op_types))} op types of the graph"
    if any(math.isfinite(row.measured_time_s) for row in op_types):
        columns.append(_MEASURED)
        caption += "; fused operations ran under other names, so some times are missing here"
    return Table(op_types, columns, "table-op-types", caption, title="Per op type", on="page")


def largest_layers(
    amounts: Sequence[tuple[float, str]], form: Callable[[Any], str], *, of_layers: bool = True
) -> list[tuple[str, str, str, float]]:
    """Return name, address, figure and share of the whole of the six largest positive amounts."""
    positive = sorted(((amount, name) for amount, name in amounts if amount > 0), reverse=True)
    total = sum(amount for amount, _ in positive)
    return [(name or NO_LAYER, layer_href(name) if of_layers else "", form(amount), amount / total) for amount, name in positive[:6]]


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer, scope or block of layers in the tree, with the figures of all that it holds.

    Attributes:
        alike: this and the following layers that are made of the same parts with the same figures; they share the row.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...] | None
    cost: LayerCost
    alike: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        return len(self.path)

    @property
    def count(self) -> int:
        return max(len(self.alike), 1)

    @property
    def label(self) -> str:
        """>>> cost = LayerCost("block_2", 1, 1, 2.0, 0.0, 0, 0)
        >>> LayerRow(("block_2",), None, cost, ("block_2", "block_3", "block_4")).label
        '3 × block_2…4'
        """
        return several(self.alike or self.path[-1:])


def layer_rows(layers: Sequence[LayerCost], output_shapes: Mapping[str, tuple[int, ...]], depth: int | None = None) -> list[LayerRow]:
    """Return the rows of the tree in execution order; the layers that no forward pass runs come last.

    The names of a flat model make its blocks: `block_1_expand` and `block_1_project` form `block_1`. Consecutive blocks that differ only
    in the numbers of their names share a row. Without a depth, there are about 40 rows; of more than 100 layers without blocks the largest.
    """
    costs = {row.layer: row for row in layers}
    order = [*output_shapes, *(layer for layer in sorted(costs) if layer not in output_shapes)]
    group = blocks([layer for layer in order if "/" not in layer]) if sum("/" not in layer for layer in order) > _FEW else {}
    held: dict[tuple[str, ...], list[LayerCost]] = {}
    names: dict[tuple[str, ...], str] = {}
    for layer in order:
        parts = tuple(layer.split("/")) if layer else (NO_LAYER,)
        path = (group[parts[0]], *parts) if parts[0] in group else parts
        for end in range(1, len(path) + 1):
            names.setdefault(path[:end], "/".join(parts[: end - (path != parts)]))
            held.setdefault(path[:end], []).extend([costs[layer]] if layer in costs else [])
    last = {group.get(layer, layer): layer for layer in order}  # whose output a block has
    shapes = {p: output_shapes.get(names[p], output_shapes.get(last.get(p[0], ""))) if p[0] != NO_LAYER else None for p in held}
    rows = _folded([LayerRow(p, shapes[p], _sum(names[p], held[p])) for p in in_tree_order(held)])
    if depth is None:
        counts = [sum(row.depth <= level for row in rows) for level in range(1, max((row.depth for row in rows), default=1) + 1)]
        if counts and counts[0] > _MANY:
            return _largest([row for row in rows if row.depth == 1])
        depth = max((level for level, count in enumerate(counts, 1) if count <= _FEW), default=1)
    return [row for row in rows if row.depth <= depth]


def in_tree_order(paths: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Put paths, each given after its parent, right behind their parents; siblings keep their order."""
    rank = {path: k for k, path in enumerate(paths)}
    return sorted(rank, key=lambda path: [rank[path[:end]] for end in range(1, len(path) + 1)])


def _largest(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """Keep the rows with the largest shares of all figures, and sum up the rows between two of them."""

    def share(row: LayerRow) -> float:
        figures = {name: getattr(row.cost, name) for name in _WEIGHED}
        return sum(row.count * n / sums[name] for name, n in figures.items() if sums[name] and math.isfinite(n))

    sums = {name: getattr(_total(rows), name) for name in _WEIGHED}
    layers = [k for k, row in enumerate(rows) if row.path[0] != NO_LAYER]
    smaller = set(sorted(layers, key=lambda k: -share(rows[k]))[_FEW // 2 :])
    kept_rows: list[LayerRow] = []
    for is_smaller, group in groupby(range(len(rows)), key=smaller.__contains__):
        between = [rows[k] for k in group]
        count = sum(row.count for row in between)
        kept_rows += [LayerRow((f"{count} layers",), between[-1].shape, _total(between))] if is_smaller and count > 1 else between
    return kept_rows


def _folded(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """Let a block share the row of the block before it if they differ only in the numbers of their names."""
    folded: list[LayerRow] = []
    previous: tuple[tuple[str, ...], list[object]] | None = None  # the place and the contents of the block before
    k = 0
    while k < len(rows):
        row = rows[k]
        end = next((n for n in range(k + 1, len(rows)) if rows[n].depth <= row.depth), len(rows))
        inner = _folded(rows[k + 1 : end])
        contents: list[object] = [
            (re.sub(r"\d+", "", part.path[-1]), part.depth, len(part.alike), part.shape, *(getattr(part.cost, name) for name in _ALIKE))
            for part in (row, *inner)
        ]
        if inner and previous == (row.path[:-1], contents):
            first = next(n for n in range(len(folded) - 1, -1, -1) if folded[n].depth == row.depth)
            folded[first] = replace(folded[first], alike=(*(folded[first].alike or (folded[first].path[-1],)), row.path[-1]))
        else:
            folded += [row, *inner]
        previous, k = (row.path[:-1], contents), end
    return folded


def _total(rows: Sequence[LayerRow]) -> LayerCost:
    return _sum("", [row.cost for row in rows if row.depth == 1 for _ in range(row.count)])


def _sum(layer: str, costs: Sequence[LayerCost]) -> LayerCost:
    figures = {name: [figure for cost in costs if math.isfinite(figure := getattr(cost, name))] for name in _SUMMED}
    none = LayerCost(layer, 0, 0, 0.0, 0.0, 0, 0)
    return replace(none, **{name: sum(finite) for name, finite in figures.items() if finite})


def layer_tree(
    layers: Sequence[LayerCost],
    output_shapes: Mapping[str, tuple[int, ...]],
    origins: Mapping[str, tuple[str, str]],
    table: LayerTable | None,
) -> Table[LayerRow]:
    rows = layer_rows(layers, output_shapes, table.depth if table else None)
    names = table.columns if table else None
    figures = _columns(layers)
    columns: list[Column[LayerRow]] = [Column("layer", lambda row: "  " * (row.depth - 1) + row.label, kind="name")]
    for name in names or _SHOWN:
        if name in ("class", "source"):
            at = ("class", "source").index(name)
            columns.append(Column(name, lambda row, at=at: origins.get(row.cost.layer, ("", ""))[at], kind="text"))
        elif name == "shape":
            columns.append(Column("output shape", lambda row: "" if row.shape is None else _shape(row.shape), kind="text"))
        else:
            own = figures[name]
            columns.append(Column(own.label, lambda row, own=own: own.of(row.cost), nothing_of_zero(own.form)))
    total = [LayerRow(("total",), None, _total(rows))] if len(rows) > 1 else []
    return Table(
        [*rows, *total], columns, limit=None, fixed=names is not None, empty="no layers are known", title="Layers", part="layers", on="text"
    )


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "scalar"
