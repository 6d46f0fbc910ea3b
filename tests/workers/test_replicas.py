"""Two replicas on two logical CPU devices, under `MirroredStrategy`."""

from __future__ import annotations

from typing import Any

import pytest


def _check_plans(found: dict[str, Any]) -> None:
    for plan in found["plans"]:
        assert plan["verification"].startswith("equal by structure")
        assert plan["peak"] <= plan["budget"]
        assert set(plan["devices"]) <= {"CPU:0", "CPU:1"}
        assert max(plan["devices"].values()) <= plan["budget"]
    assert found["plans"][0]["recomputed"] > 0
    assert found["plans"][0]["peak"] < found["plans"][0]["original"]


@pytest.mark.slow
def test_a_custom_step_around_run_keeps_the_budget_on_each_device(run_program: Any) -> None:
    outcome = run_program("replicas", checks=["custom_step"])
    assert outcome.code == 0, outcome.errors
    found = outcome.lines[-1]["custom_step"]
    assert found["found"] == found["expected"]
    assert found["weights"]
    _check_plans(found)
    assert "exchanges values between devices" in found["measure"]
    assert set(found["measured"]) == {"CPU:0", "CPU:1"}
    budget = found["plans"][0]["budget"]
    for device, peak in found["measured"].items():
        assert peak <= budget < found["unmodified"][device]


@pytest.mark.slow
@pytest.mark.parametrize("check", ["fit", "synchronized_batch_norm"])
def test_fit_gives_what_keras_gives(run_program: Any, check: str) -> None:
    outcome = run_program("replicas", checks=[check])
    assert outcome.code == 0, outcome.errors
    found = outcome.lines[-1][check]
    assert found["history"]
    assert found["weights"]
    assert found["optimizer"]
    assert found["batches"] == [0, 1, 0, 1]
    _check_plans(found)


@pytest.mark.slow
def test_steps_inside_and_around_run(run_program: Any) -> None:
    outcome = run_program("replicas", checks=["inside_run", "train_on_batch", "merge_inside_run", "loop_around_run"])
    assert outcome.code == 0, outcome.errors
    inside = outcome.lines[-1]["inside_run"]
    assert inside["found"] == inside["expected"]
    assert inside["moved"]
    assert inside["weights"]
    assert len(inside["plans"]) == 2  # one per replica: each captures variables of its own
    batch = outcome.lines[-1]["train_on_batch"]
    assert batch["found"] == batch["expected"]
    assert "strategy.run" in outcome.lines[-1]["merge_inside_run"]["error"]
    assert "CPU:0, CPU:1" in outcome.lines[-1]["loop_around_run"]["error"]
