"""Results for machines: plain numbers and text with units in the key names. docs/json.md describes each type.

`schema` names the type and its version. Within a version, keys are added but none is renamed, removed or given another meaning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import resources
from typing import Any

from graphwright.analyze.measurement import Measurement
from graphwright.report.flop_count import number
from graphwright.report.results import Inspection, LayerCost, MemoryPlan, OpTypeCost, Timeline

INSPECTION_SCHEMA = "graphwright.inspection/1"
MEMORY_PLAN_SCHEMA = "graphwright.memory_plan/1"


def inspection_json(inspection: Inspection) -> dict[str, Any]:
    """An inspection; the graph itself is not part of it."""
    return {
        "schema": INSPECTION_SCHEMA,
        "name": inspection.name,
        "verdict": inspection.verdict,
        "feeds": _feeds(inspection.feeds),
        "node_count": inspection.node_count,
        "parameters": asdict(inspection.parameters),
        "forward_flops": number(inspection.forward_flops),
        "backward_flops": number(inspection.backward_flops),
        "optimizer_flops": number(inspection.optimizer_flops),
        "bytes_moved": number(inspection.bytes_moved),
        "unknown_flop_ops": list(inspection.unknown_flop_ops),
        "peak_bytes": inspection.peak_bytes,
        "resident_bytes": inspection.resident_bytes,
        "lower_bound_bytes": inspection.lower_bound_bytes,
        "lower_bound_reason": inspection.lower_bound_reason,
        "executor": None if inspection.executor is None else inspection.executor.to_json(),
        "measured": _measurement(inspection.measured),
        "roofs": None if inspection.roofs is None else asdict(inspection.roofs),
        "layers": [_row(layer) for layer in inspection.layers],
        "op_types": [_row(op_type) for op_type in inspection.op_types],
        "timeline": timeline_json(inspection.timeline),
        "how": dict(inspection.how),
    }


def plan_json(plan: MemoryPlan) -> dict[str, Any]:
    return {
        "schema": MEMORY_PLAN_SCHEMA,
        "name": plan.name,
        "verdict": plan.verdict,
        "status": plan.status,
        "feeds": _feeds(plan.feeds),
        "budget_bytes": plan.budget_bytes,
        "peak_bytes": plan.peak_bytes,
        "resident_bytes": plan.resident_bytes,
        "original_peak_bytes": plan.original_peak_bytes,
        "executor": None if plan.executor is None else plan.executor.to_json(),
        "device_peaks": dict(plan.device_peaks),
        "lower_bound_bytes": plan.lower_bound_bytes,
        "lower_bound_reason": plan.lower_bound_reason,
        "overhead": number(plan.overhead),
        "recomputed_flops": number(plan.recomputed_flops),
        "recomputed_count": plan.recomputed_count,
        "planning_time_s": number(plan.planning_time_s),
        "verification": plan.verification,
        "measured_before": _measurement(plan.measured_before),
        "measured_after": _measurement(plan.measured_after),
        "decisions": [_row(decision) for decision in plan.decisions],
        "curve": [_row(point) for point in plan.curve],
        "layers": [_row(layer) for layer in plan.layers],
        "timeline_before": timeline_json(plan.timeline_before),
        "timeline_after": timeline_json(plan.timeline_after),
        "how": dict(plan.how),
    }


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """Memory over a step. Lists with an entry per step have the same length; buffers and lifetimes are objects."""
    return {
        "step_count": len(timeline.labels),
        "labels": list(timeline.labels),
        "total_bytes": list(timeline.total_bytes),
        "bytes_by_role": {role: list(row) for role, row in timeline.bytes_by_role.items()},
        "is_recomputation": list(timeline.is_recomputation),
        "is_backward": list(timeline.is_backward),
        "peak_step": timeline.peak_step,
        "peak_bytes": timeline.peak_bytes,
        "live_at_peak": [_row(buffer) for buffer in timeline.live_at_peak],
        "lifetimes": [{**_row(life.buffer), "first_step": life.first_step, "last_step": life.last_step} for life in timeline.lifetimes],
    }


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a type that is written: "inspection" or "memory_plan".

    >>> json_schema("inspection")["properties"]["schema"]["const"]
    'graphwright.inspection/1'
    """
    text = resources.files("graphwright.report").joinpath("schemas", f"{name}.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _row(row: Any) -> dict[str, Any]:
    plain = {field.name: getattr(row, field.name) for field in fields(row)}
    made = {name: number(value) if isinstance(value, float) else value for name, value in plain.items()}
    if isinstance(row, LayerCost | OpTypeCost):
        made["total_flops"] = number(row.flops)
    return made


def _measurement(measured: Measurement | None) -> dict[str, Any] | None:
    return None if measured is None else _row(measured)


def _feeds(feeds: Mapping[str, tuple[int, ...]]) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in feeds.items()}
