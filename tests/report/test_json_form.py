"""What is written for machines is what the published schemas say, and says it with numbers that JSON has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.report.samples import full_inspection, sample_inspection, sample_plan

_SCHEMAS = resources.files("graphwright.report").joinpath("schemas")
jsonschema = pytest.importorskip("jsonschema")
RESULTS = {
    "inspection": ("inspection", sample_inspection),
    "inspection, measured": ("inspection", lambda: sample_inspection(measured=True)),
    "inspection, all": ("inspection", lambda: full_inspection(profiled=True)),
    "plan": ("memory_plan", sample_plan),
    "plan, not measured": ("memory_plan", lambda: sample_plan(measured=False, curve=False)),
    "plan, infeasible": ("memory_plan", lambda: sample_plan(budget_share=0.3)),
}


def json_schema(name: str) -> dict[str, Any]:
    return json.loads((_SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", RESULTS)
def test_results_follow_their_schema(case: str) -> None:
    name, make = RESULTS[case]
    schema = json_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    written = json.loads(json.dumps(make().to_json(), allow_nan=False))
    jsonschema.validate(written, schema)
    assert set(written) == set(schema["properties"]), "nothing is written that the schema does not know"
    for key in ("peak_bytes", "timeline"):
        damaged = {k: v for k, v in written.items() if k != key}
        if key in written:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(damaged, schema)


def test_the_figures_are_those_of_the_result() -> None:
    inspection = full_inspection(profiled=True)
    written: Any = inspection.to_json()
    assert written["peak_bytes"] == inspection.peak_bytes == max(written["timeline"]["total_bytes"])
    assert written["layers"][0]["total_flops"] == inspection.layers[0].flops
    assert written["layers"][0]["measured_time_s"] is None, "a layer that did not run under its name has no time"
    assert [row["op_type"] for row in written["op_types"]] == [row.op_type for row in inspection.op_types]
    roles = written["timeline"]["bytes_by_role"]
    assert [sum(step) for step in zip(*roles.values(), strict=True)] == written["timeline"]["total_bytes"]


def test_what_is_not_known_is_null() -> None:
    written: Any = replace(sample_inspection(), forward_flops=float("nan")).to_json()
    assert written["forward_flops"] is None
    assert written["layers"][0]["estimated_time_s"] is None


def test_each_key_of_the_schemas_is_documented() -> None:
    def keys(schema: dict[str, Any]) -> Iterator[str]:
        yield from schema.get("properties", {})
        for part in schema.get("$defs", {}).values():
            yield from part.get("properties", {})

    text = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    missing = {key for name in ("inspection", "memory_plan", "doctor") for key in keys(json_schema(name)) if f"`{key}`" not in text}
    assert missing == set()
