"""Results for machines: plain numbers and text with units in the key names, as docs/json.md describes them.

`schema` names the type and its version. A version may gain keys; none is renamed, removed or redefined.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

from graphwright.plain import fields_json, number, plain
from graphwright.report.cost_rows import LayerCost, OpTypeCost
from graphwright.report.timeline import Timeline

INSPECTION_SCHEMA = "graphwright.inspection/1"
MEMORY_PLAN_SCHEMA = "graphwright.memory_plan/1"


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """Return memory over a step. Lists with an entry per step have the same length."""
    lifetimes = [{**plain(life.buffer), "first_step": life.first_step, "last_step": life.last_step} for life in timeline.lifetimes]
    return {"step_count": len(timeline.labels), **fields_json(timeline, "lifetimes", "layers"), "lifetimes": lifetimes}


def rows_json(rows: Iterable[LayerCost | OpTypeCost]) -> list[dict[str, Any]]:
    return [{**fields_json(row), "total_flops": number(row.flops)} for row in rows]


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of "inspection", "memory_plan" or "doctor".

    >>> json_schema("inspection")["properties"]["schema"]["const"]
    'graphwright.inspection/1'
    """
    text = resources.files("graphwright.report").joinpath("schemas", f"{name}.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
