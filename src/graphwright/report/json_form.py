"""Results for machines: plain numbers and text with units in the key names. docs/json.md describes each type.

`schema` names the type and its version. Within a version, keys are added but none is renamed, removed or given another meaning.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from graphwright.plain import fields_json, number, plain
from graphwright.report.results import Inspection, LayerCost, MemoryPlan, OpTypeCost, Timeline

INSPECTION_SCHEMA = "graphwright.inspection/1"
MEMORY_PLAN_SCHEMA = "graphwright.memory_plan/1"


def inspection_json(inspection: Inspection) -> dict[str, Any]:
    """An inspection; the graph itself is not part of it."""
    return {
        "schema": INSPECTION_SCHEMA,
        "verdict": inspection.verdict,
        **fields_json(inspection, "nodes", "graph", "profile", "table", "advice", "layer_origins"),
        "layers": [_with_total(layer) for layer in inspection.layers],
        "op_types": [_with_total(op_type) for op_type in inspection.op_types],
        "timeline": timeline_json(inspection.timeline),
    }


def plan_json(plan: MemoryPlan) -> dict[str, Any]:
    return {
        "schema": MEMORY_PLAN_SCHEMA,
        "verdict": plan.verdict,
        **fields_json(plan, "recipe"),
        "layers": [_with_total(layer) for layer in plan.layers],
        "timeline_before": timeline_json(plan.timeline_before),
        "timeline_after": timeline_json(plan.timeline_after),
    }


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """Memory over a step. Lists with an entry per step have the same length; buffers and lifetimes are objects."""
    lifetimes = [{**plain(life.buffer), "first_step": life.first_step, "last_step": life.last_step} for life in timeline.lifetimes]
    return {"step_count": len(timeline.labels), **fields_json(timeline, "lifetimes", "layers"), "lifetimes": lifetimes}


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a type that is written: "inspection", "memory_plan" or "doctor".

    >>> json_schema("inspection")["properties"]["schema"]["const"]
    'graphwright.inspection/1'
    """
    text = resources.files("graphwright.report").joinpath("schemas", f"{name}.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _with_total(row: LayerCost | OpTypeCost) -> dict[str, Any]:
    return {**fields_json(row), "total_flops": number(row.flops)}
