"""The layers of an inspection as a tree with their figures: the table that an inspection begins with."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any

from graphwright.analyze.layers import blocks, several
from graphwright.report.results import Inspection, LayerColumn, LayerCost, LayerTable
from graphwright.report.summary import NO_LAYER
from graphwright.report.tables import Column, nothing_of_zero
from graphwright.report.units import format_bytes, format_count, format_flops, format_time

_FEW = 40  # rows: the tree is shown as deep as it has so many
_MANY = 100  # layers that no name puts into blocks: the largest are shown
_SHOWN: tuple[LayerColumn, ...] = ("shape", "parameters", "flops", "activations", "time")
_ALIKE = ("op_count", "parameter_count", "forward_flops")
_WEIGHED = ("parameter_count", "forward_flops", "activation_bytes")
_SUMMED = tuple(f.name for f in fields(LayerCost) if f.name not in ("layer", "verbs"))


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer, or what lies in one scope, or in one block of layers, at its depth of the tree; the figures are with all that lies in it.

    Attributes:
        alike: itself and the layers behind it that are made of the same with the same figures, which are those of each; they have no rows.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...] | None
    cost: LayerCost
    alike: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """1 for the uppermost."""
        return len(self.path)

    @property
    def count(self) -> int:
        """How many layers it stands for."""
        return max(len(self.alike), 1)

    @property
    def label(self) -> str:
        """What it is called in the table.

        >>> cost = LayerCost("block_2", 1, 1, 2.0, 0.0, 0, 0)
        >>> LayerRow(("block_2",), None, cost, ("block_2", "block_3", "block_4")).label
        '3 × block_2…4'
        """
        return several(self.alike or self.path[-1:])


def layer_rows(inspection: Inspection, depth: int | None = None) -> list[LayerRow]:
    """The rows of the tree, in the order in which the layers run; what no forward pass runs, such as the optimizer, stands last.

    A functional model of many layers has no tree but in their names: `block_1_expand` and `block_1_project` make a block there. Blocks that
    follow each other and are alike, but for numbers in their names, have one row. Of more than a hundred layers that lie in no block, the
    largest have rows, unless a depth is asked for.

    Args:
        depth: levels; as many as make a table of about 40 rows where it is None.
    """
    costs = {row.layer: row for row in inspection.layers}
    order = [*inspection.output_shapes, *(layer for layer in sorted(costs) if layer not in inspection.output_shapes)]
    group = blocks([layer for layer in order if "/" not in layer]) if sum("/" not in layer for layer in order) > _FEW else {}
    sums: dict[tuple[str, ...], LayerCost] = {}
    for layer in order:
        parts = tuple(layer.split("/")) if layer else (NO_LAYER,)
        path = (group[parts[0]], *parts) if parts[0] in group else parts
        for end in range(1, len(path) + 1):
            sums.setdefault(path[:end], LayerCost("/".join(parts[: end - (path != parts)]), 0, 0, 0.0, 0.0, 0, 0))
            if layer in costs:
                sums[path[:end]] = _sum(sums[path[:end]], costs[layer])
    rank = {path: k for k, path in enumerate(sums)}
    paths = sorted(sums, key=lambda path: [rank[path[:end]] for end in range(1, len(path) + 1)])
    last = {group.get(layer, layer): layer for layer in order}  # whose output a block has
    shapes = inspection.output_shapes
    rows = [LayerRow(p, shapes.get(sums[p].layer, shapes.get(last.get(p[0], ""))) if p[0] != NO_LAYER else None, sums[p]) for p in paths]
    rows = _folded(rows)
    if depth is None:
        counts = [sum(row.depth <= level for row in rows) for level in range(1, max((row.depth for row in rows), default=1) + 1)]
        if counts and counts[0] > _MANY:
            return _largest([row for row in rows if row.depth == 1])
        depth = max((level for level, count in enumerate(counts, 1) if count <= _FEW), default=1)
    return [row for row in rows if row.depth <= depth]


def _largest(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """Those with the largest shares of all figures together, and one row for what runs between two of them."""

    def share(row: LayerRow) -> float:
        figures = {name: getattr(row.cost, name) for name in _WEIGHED}
        return sum(row.count * n / sums[name] for name, n in figures.items() if sums[name] and math.isfinite(n))

    sums = {name: getattr(_total(rows), name) for name in _WEIGHED}
    layers = [k for k, row in enumerate(rows) if row.path[0] != NO_LAYER]
    smaller = set(sorted(layers, key=lambda k: -share(rows[k]))[_FEW // 2 :])
    found: list[LayerRow] = []
    for is_smaller, group in groupby(range(len(rows)), key=smaller.__contains__):
        between = [rows[k] for k in group]
        count = sum(row.count for row in between)
        found += [LayerRow((f"{count} layers",), between[-1].shape, _total(between))] if is_smaller and count > 1 else between
    return found


def _folded(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """The rows without those of blocks that are like the one before: with the same figures, and the same names but for numbers."""
    found: list[LayerRow] = []
    before: tuple[tuple[str, ...], list[object]] | None = None  # of the block before its place, and what it is made of
    k = 0
    while k < len(rows):
        row = rows[k]
        end = next((n for n in range(k + 1, len(rows)) if rows[n].depth <= row.depth), len(rows))
        inner = _folded(rows[k + 1 : end])
        made_of: list[object] = [
            (re.sub(r"\d+", "", part.path[-1]), part.depth, len(part.alike), part.shape, *(getattr(part.cost, name) for name in _ALIKE))
            for part in (row, *inner)
        ]
        if inner and before == (row.path[:-1], made_of):
            first = next(n for n in range(len(found) - 1, -1, -1) if found[n].depth == row.depth)
            found[first] = replace(found[first], alike=(*(found[first].alike or (found[first].path[-1],)), row.path[-1]))
        else:
            found += [row, *inner]
        before, k = (row.path[:-1], made_of), end
    return found


def total_row(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """What the uppermost of the rows add up to, where there are several."""
    return [LayerRow(("total",), None, _total(rows))] if len(rows) > 1 else []


def _total(rows: Sequence[LayerRow]) -> LayerCost:
    cost = LayerCost("", 0, 0, 0.0, 0.0, 0, 0)
    for row in (row for row in rows if row.depth == 1):
        for _ in range(row.count):
            cost = _sum(cost, row.cost)
    return cost


def _sum(a: LayerCost, b: LayerCost) -> LayerCost:
    def both(name: str) -> float:
        known = [x for x in (getattr(a, name), getattr(b, name)) if math.isfinite(x)]
        return sum(known) if known else math.nan

    return replace(a, **{name: both(name) for name in _SUMMED})


def layer_columns(inspection: Inspection, table: LayerTable) -> list[Column[LayerRow]]:
    """The columns of the table: those that were asked for, or those of which there are figures."""
    measured = any(math.isfinite(row.measured_time_s) for row in inspection.layers)
    names = table.columns or tuple(name for name in _SHOWN if name != "time" or measured)
    figures: Mapping[LayerColumn, tuple[str, Callable[[LayerCost], float], Callable[[Any], str]]] = {
        "parameters": ("parameters", lambda c: c.parameter_count, format_count),
        "flops": ("FLOPs", lambda c: c.flops, format_flops),
        "forward": ("forward", lambda c: c.forward_flops, format_flops),
        "backward": ("backward", lambda c: c.backward_flops, format_flops),
        "activations": ("activations", lambda c: c.activation_bytes, format_bytes),
        "residuals": ("residuals", lambda c: c.residual_bytes, format_bytes),
        "peak": ("at the peak", lambda c: c.peak_share_bytes, format_bytes),
        "moved": ("moved", lambda c: c.bytes_moved, format_bytes),
        "estimated": ("estimated", lambda c: c.estimated_time_s, format_time),
        "time": ("time", lambda c: c.measured_time_s, format_time),
        "ops": ("ops", lambda c: c.op_count, format_count),
    }
    columns: list[Column[LayerRow]] = [Column("layer", lambda row: "  " * (row.depth - 1) + row.label, kind="name")]
    for name in names:
        if name in ("class", "source"):
            origin = operator.itemgetter(("class", "source").index(name))
            columns.append(Column(name, lambda row, of=origin: of(inspection.layer_origins.get(row.cost.layer, ("", ""))), kind="text"))
        elif name == "shape":
            columns.append(Column("output shape", lambda row: "" if row.shape is None else _shape(row.shape), kind="text"))
        else:
            label, of, form = figures[name]
            columns.append(Column(label, lambda row, of=of: of(row.cost), nothing_of_zero(form)))
    return columns


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "scalar"
