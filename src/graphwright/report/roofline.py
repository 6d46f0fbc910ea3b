"""The roofline: the attained rate of operations against their arithmetic per byte moved.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52 (2009).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from graphwright.analyze.step_profile import StepProfile, by_layer, by_op_type
from graphwright.analyze.time_model import Roofs
from graphwright.plain import fields_json
from graphwright.report.cost_rows import LayerCost, OpTypeCost
from graphwright.report.sheet import NO_LAYER
from graphwright.report.units import format_percent

Limit = Literal["arithmetic", "memory"]


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One layer or op type; `of_roof` is the rate as a share of the roof at this intensity (FLOPs per byte moved)."""

    name: str
    intensity: float
    flops_per_s: float
    flops: float
    time_s: float
    limit: Limit
    of_roof: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """The roofs, and points that have FLOPs, move bytes and take time."""

    roofs: Roofs
    measured: bool
    layers: tuple[RooflinePoint, ...]
    op_types: tuple[RooflinePoint, ...]

    @property
    def summary(self) -> str:
        ridge = self.roofs.flops_per_s / self.roofs.bytes_per_s
        text = (
            f"Roofs: {self.roofs.flops_per_s / 1e9:,.3g} GFLOP/s and {self.roofs.bytes_per_s / 1e9:,.3g} GB/s ({self.roofs.how}). "
            f"Below {ridge:.3g} FLOP per byte, moving data takes longer than arithmetic. "
        )
        total = sum(p.time_s for p in self.op_types)
        slow = sum(p.time_s for p in self.op_types if p.limit == "memory")
        if total:
            text += f"Op types below that take {format_percent(slow / total)} of the time of operations that compute. "
        if self.measured and any(p.of_roof > 1 for p in self.op_types + self.layers):
            text += "The roof is the rate of the main memory: operations on cached data can be above it. "
        if self.measured:
            return f"{text}Estimated times in the table use assumed rates, not these roofs."
        return (
            f"{text}Nothing was measured: each point stands where the estimated time puts it. That time is FLOPs or bytes moved over an "
            "assumed rate, whichever takes longer; the rates of many op types lie below the roofs, and each run costs a little."
        )


def make_roofline(
    roofs: Roofs, layers: Iterable[LayerCost], op_types: Iterable[OpTypeCost], profile: StepProfile | None
) -> Roofline | None:
    if profile is not None:
        # The operations that ran, under their own names: TensorFlow fuses operations, and drops some.
        profiled = by_layer(profile).values(), by_op_type(profile).values()
        rows = [[(row.name, row.flops, row.bytes_moved, row.time_s) for row in rows] for rows in profiled]
    else:
        rows = [[(row.layer, row.flops, row.bytes_moved, row.estimated_time_s) for row in layers]]
        rows.append([(row.op_type, row.flops, row.bytes_moved, row.estimated_time_s) for row in op_types])
    of_layers, of_op_types = (tuple(_point(*row, roofs) for row in own if all(figure > 0 for figure in row[1:])) for own in rows)
    return Roofline(roofs, profile is not None, of_layers, of_op_types) if of_layers or of_op_types else None


def roofline_data(roofline: Roofline) -> dict[str, Any]:
    return {
        "measured": roofline.measured,
        "flopsPerS": roofline.roofs.flops_per_s,
        "bytesPerS": roofline.roofs.bytes_per_s,
        "layers": [{**fields_json(p), "name": p.name or NO_LAYER, "layer": p.name} for p in roofline.layers],
        "opTypes": [fields_json(p) for p in roofline.op_types],
    }


def _point(name: str, flops: float, bytes_moved: float, time_s: float, roofs: Roofs) -> RooflinePoint:
    intensity, rate = flops / bytes_moved, flops / time_s
    roof = min(roofs.flops_per_s, intensity * roofs.bytes_per_s)
    limit: Limit = "memory" if intensity * roofs.bytes_per_s < roofs.flops_per_s else "arithmetic"
    return RooflinePoint(name, intensity, rate, flops, time_s, limit, rate / roof)
