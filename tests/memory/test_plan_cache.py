"""A file of the plan cache is believed in nothing: what cannot be read, or does not fit the budget, is as if it were not there."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.errors import InfeasibleError
from graphwright.memory import plan_step, search
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
    monkeypatch.setattr(search, "solve_with_room", lambda costs, *_, **__: solve(costs, 1, time_limit_s=1e-3, longest_s=1e-3))
    second = gw.optimize_memory(step, budget=0.8, **options).plan
    assert "kept for another budget" in second.how["plan"]
    assert second.peak_bytes == first.peak_bytes <= second.budget_bytes
    assert second.overhead == first.overhead
    with pytest.raises(InfeasibleError):
        gw.optimize_memory(step, budget=0.6, **options)


def test_a_second_run_finds_the_figures_of_the_step_and_proves_the_plan_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = tf.Variable(np.full((512, 512), 0.01, np.float32))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.tanh(x @ weight)
            loss = tf.add_n([tf.reduce_sum(tf.sin(y * factor)) for factor in (1.0, 2.0, 3.0)])
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    def planned(batch: int = 16384) -> Any:
        return gw.optimize_memory(step, 0.9, feeds={"x": (batch, 512)}, cache_dir=tmp_path).plan

    first = planned()
    simulated: list[object] = []
    asked: list[bool] = []
    simulate, prepare = plan_step.plain_peak, plan_step.prepared
    monkeypatch.setattr(plan_step, "plain_peak", lambda *a, **w: simulated.append(a) or simulate(*a, **w))
    monkeypatch.setattr(
        plan_step, "prepared", lambda *a, memory_optimizer: asked.append(memory_optimizer) or prepare(*a, memory_optimizer=memory_optimizer)
    )
    second = planned()
    assert (simulated, asked) == ([], [False])  # what Grappler makes of it is asked of TensorFlow each time
    assert second.how["original peak"] == f"{first.how['original peak']}; as found in an earlier run"
    assert second.how["graph"] == first.how["graph"]
    assert second.executor == first.executor
    assert (second.original_peak_bytes, second.least_overhead) == (first.original_peak_bytes, first.least_overhead)
    assert second.verification == first.verification
    assert second.verification.startswith("equal by structure: ")
    assert planned(8192).original_peak_bytes < first.original_peak_bytes
    assert (len(simulated), asked) == (1, [False, True])
    for damage in ("", "{", '{"peak": 3}', '{"peak": {}, "least_time": {"x": "y"}}'):
        for file in tmp_path.glob("*.step"):
            file.write_text(damage)
        assert planned().original_peak_bytes >= first.executor.low_bytes
    assert len(simulated) == 5
