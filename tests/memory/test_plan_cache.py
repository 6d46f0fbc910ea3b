"""A file of the plan cache is believed in nothing: what cannot be read, or does not fit the budget, is as if it were not there."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import graphwright as gw
from graphwright.errors import InfeasibleError
from graphwright.memory import search
from graphwright.memory.plan_cache import PlanCache
from graphwright.memory.planning import map_tasks
from graphwright.plan.solve import solve
from graphwright.step.flatten import flatten
from graphwright.step.targets import trace

DAMAGES = {
    "empty": "",
    "cut off": "{",
    "no object": "[]",
    "no schedule": "{}",
    "nested": '{"schedule": ' + "[" * 200_000,
    "infinite": '{"schedule": [Infinity]}',
    "long number": f'{{"schedule": [{"9" * 5_000}]}}',
    "negative": '{"schedule": [-1]}',
    "incomplete": '{"schedule": [0]}',
    "text": '{"schedule": ["x"]}',
    "number": '{"schedule": 3}',
}


@pytest.fixture
def costs(conv_step: Any) -> Any:
    step, inputs, _ = conv_step
    return map_tasks(flatten(trace(step, inputs=inputs).function)).costs


def test_every_failure_to_read_is_a_miss(costs: Any, tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    cache.write("key", solve(costs, 1 << 40, time_limit_s=0.2))
    assert cache.read("key", costs, 1 << 40) is not None
    for damage in DAMAGES.values():
        cache.path("key").write_text(damage)
        assert cache.read("key", costs, 1 << 40) is None
    cache.path("key").unlink()
    os.mkfifo(cache.path("key"))  # who opens it waits
    assert cache.read("key", costs, 1 << 40) is None


def test_a_kept_plan_is_held_against_the_budget_that_is_asked_for(conv_step: Any, costs: Any, tmp_path: Path) -> None:
    step, inputs, _ = conv_step
    first = gw.optimize_memory(step, budget=0.7, inputs=inputs, cache_dir=tmp_path, verify=False).plan
    (file,) = tmp_path.glob("*.json")
    data = json.loads(file.read_text())
    file.write_text(json.dumps(data | {"schedule": costs.order, "budget_bytes": 1 << 40}))
    second = gw.optimize_memory(step, budget=0.7, inputs=inputs, cache_dir=tmp_path, verify=False).plan
    assert "plan cache" not in second.how["plan"]
    assert second.budget_bytes == first.budget_bytes >= second.peak_bytes


@pytest.mark.slow
def test_a_plan_for_less_is_a_plan_for_more(conv_step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the search for a budget finds a dearer plan than one that is kept for a smaller budget, or none."""
    step, inputs, _ = conv_step
    options: dict[str, Any] = {"inputs": inputs, "cache_dir": tmp_path, "verify": False, "allow": ("recompute",)}
    first = gw.optimize_memory(step, budget=0.7, **options).plan
    monkeypatch.setattr(search, "solve_with_room", lambda costs, *_, **__: solve(costs, 1, time_limit_s=1e-3, strict=True))
    second = gw.optimize_memory(step, budget=0.8, **options).plan
    assert "kept for another budget" in second.how["plan"]
    assert second.peak_bytes == first.peak_bytes <= second.budget_bytes
    assert second.overhead == first.overhead
    with pytest.raises(InfeasibleError):
        gw.optimize_memory(step, budget=0.6, **options)
