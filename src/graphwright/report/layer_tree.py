"""The layers of an inspection as a tree with their figures: the table that an inspection begins with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from graphwright.analyze.layers import blocks
from graphwright.report.results import Inspection, LayerColumn, LayerCost, LayerTable
from graphwright.report.summary import NO_LAYER
from graphwright.report.tables import Column, nothing_of_zero
from graphwright.report.units import format_bytes, format_count, format_flops, format_time

_FEW = 40  # rows: the tree is shown as deep as it has so many
_SHOWN: tuple[LayerColumn, ...] = ("shape", "parameters", "flops", "activations", "time")
_SUMMED = tuple(f.name for f in fields(LayerCost) if f.name not in ("layer", "verbs"))


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer, or what lies in one scope, or in one block of layers, at its depth of the tree; the figures are with all that lies in it."""

    path: tuple[str, ...]
    shape: tuple[int, ...] | None
    cost: LayerCost

    @property
    def depth(self) -> int:
        """1 for the uppermost."""
        return len(self.path)


def layer_rows(inspection: Inspection, depth: int | None = None) -> list[LayerRow]:
    """The rows of the tree, in the order in which the layers run; what no forward pass runs, such as the optimizer, stands last.

    A functional model of many layers has no tree but in their names: `block_1_expand` and `block_1_project` make a block there.

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
    if depth is None:
        counts = [sum(len(path) <= level for path in sums) for level in range(1, max(map(len, sums), default=1) + 1)]
        depth = max((level for level, count in enumerate(counts, 1) if count <= _FEW), default=1)
    rank = {path: k for k, path in enumerate(sums)}
    paths = sorted((p for p in sums if len(p) <= depth), key=lambda path: [rank[path[:end]] for end in range(1, len(path) + 1)])
    last = {group.get(layer, layer): layer for layer in order}  # whose output a block has
    shapes = inspection.output_shapes
    return [LayerRow(p, shapes.get(sums[p].layer, shapes.get(last.get(p[0], ""))) if p[0] != NO_LAYER else None, sums[p]) for p in paths]


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
    columns: list[Column[LayerRow]] = [Column("layer", lambda row: "  " * (row.depth - 1) + row.path[-1], kind="name")]
    for name in names:
        if name == "shape":
            columns.append(Column("output shape", lambda row: "" if row.shape is None else _shape(row.shape), kind="text"))
        else:
            label, of, form = figures[name]
            columns.append(Column(label, lambda row, of=of: of(row.cost), nothing_of_zero(form)))
    return columns


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "scalar"
