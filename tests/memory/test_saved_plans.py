"""Plans as files: shown as they were, followed without a search, refused for another step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
import graphwright as gw  # noqa: E402
from graphwright.errors import ArgumentError, FileFormatError  # noqa: E402
from graphwright.memory import search  # noqa: E402
from graphwright.memory.xla import planning  # noqa: E402
from tests.report.samples import sample_plan  # noqa: E402


def _chain(width: int = 64, **options: Any) -> Any:
    w = tf.Variable(tf.ones((width, width)) / width)

    @tf.function(**options)
    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for _ in range(8):
                y = tf.tanh(y @ w)
            loss = tf.reduce_mean(y)
        w.assign_sub(tape.gradient(loss, w))
        return loss

    return step


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a plan was looked for")

    monkeypatch.setattr(search, "solve_with_room", forbidden)
    monkeypatch.setattr(search, "minimum_within", forbidden)
    monkeypatch.setattr(planning, "solve", forbidden)


@pytest.mark.parametrize("make", [sample_plan, lambda: replace(sample_plan(measured=False), feeds={"<x>": (1, 2)}, overhead=0.125)])
def test_a_plan_is_read_as_it_was_written(make: Any, tmp_path: Path) -> None:
    plan = make()
    again = gw.load_plan(plan.save(tmp_path / "plan.json"))
    assert again == plan
    assert str(again) == str(plan)


@pytest.mark.parametrize(
    ("budget", "options", "jit"),
    [
        (0.6, {}, None),
        ("smallest", {"max_overhead": 0.3}, None),
        (0.5, {"allow": "all"}, None),
        pytest.param(0.8, {}, True, marks=pytest.mark.slow),
    ],
)
def test_a_saved_plan_is_followed_without_a_search(
    budget: Any, options: dict[str, Any], jit: bool | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    step, x = _chain(jit_compile=jit), tf.ones((512, 64))
    first = gw.optimize_memory(step, budget, inputs=x, cache_dir=None, time_limit_s=0.3, **options)
    path = first.plan.save(tmp_path / "plan.json")
    request.getfixturevalue("no_search")
    again = gw.optimize_memory(_chain(jit_compile=jit), plan=path, inputs=x, cache_dir=None)
    assert again.memory_plan().how["plan"].endswith(("that of the saved plan", "in its own order"))
    assert (again.plan.peak_bytes, again.plan.budget_bytes) == (first.plan.peak_bytes, first.plan.budget_bytes)
    assert again.plan.timeline_after.labels == first.plan.timeline_after.labels
    assert again.plan.verification.startswith("equal")
    np.testing.assert_array_equal(again(x), _chain(jit_compile=jit)(x))


@pytest.mark.parametrize("batch", [512, 256])
def test_a_plan_for_another_step_is_refused(batch: int) -> None:
    plan = gw.optimize_memory(_chain(), 0.6, feeds={"x": (512, 64)}, cache_dir=None, time_limit_s=0.3).plan
    other = _chain() if batch == 256 else tf.function(lambda x: tf.reduce_sum(tf.tanh(x)))
    with pytest.raises(ArgumentError, match="the plan is for another step"):
        gw.optimize_memory(other, plan=plan, feeds={"x": (batch, 64)})


def test_calls_with_other_shapes_are_planned_beside_a_saved_plan() -> None:
    plan = gw.optimize_memory(_chain(), 0.6, feeds={"x": (512, 64)}, cache_dir=None, time_limit_s=0.3).plan
    fast = gw.optimize_memory(_chain(), plan=plan, inputs=tf.ones((512, 64)), cache_dir=None)
    fast(tf.ones((100, 64)))
    assert len(fast.plans) == 2


def test_a_model_follows_a_saved_plan(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")

    def model() -> Any:
        made = keras.Sequential([keras.Input((32,)), *(keras.layers.Dense(32, "tanh") for _ in range(6)), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        return made

    data = np.ones((256, 32), "float32"), np.ones((256, 1), "float32")
    first = gw.optimize_memory(model(), 0.7, inputs=data, cache_dir=None, time_limit_s=0.3)
    path = first.memory_plan().save(tmp_path / "plan.json")
    again = gw.optimize_memory(model(), plan=path)
    again.fit(*data, batch_size=256, verbose=0)
    assert again.memory_plan().how["plan"] == "that of the saved plan"


@pytest.mark.parametrize(
    "beside",
    [{"allow": "all"}, {"time_limit_s": 3.0}, {"max_overhead": 0.3}, {"device": "h100"}, {"offload_to": "cpu"}],
    ids=lambda beside: next(iter(beside)),
)
def test_what_a_plan_was_made_without_is_not_given_beside_it(beside: dict[str, Any]) -> None:
    step, x = _chain(), tf.ones((256, 64))
    plan = gw.optimize_memory(step, 0.8, inputs=x, cache_dir=None, time_limit_s=0.3).plan
    with pytest.raises(ArgumentError, match=f"{next(iter(beside))} was given beside a plan"):
        gw.optimize_memory(step, inputs=x, plan=plan, **beside)


def test_what_is_no_plan_is_said(tmp_path: Path) -> None:
    step = _chain()
    with pytest.raises(ArgumentError, match="neither a budget nor a plan"):
        gw.optimize_memory(step)
    with pytest.raises(ArgumentError, match="a budget was given beside a plan"):
        gw.optimize_memory(step, 0.5, plan=sample_plan())
    with pytest.raises(ArgumentError, match="lacks the data to follow it"):
        gw.optimize_memory(step, plan=sample_plan())
    with pytest.raises(FileFormatError, match=r"missing\.json"):
        gw.optimize_memory(step, plan=tmp_path / "missing.json")
    path = sample_plan().save(tmp_path / "plan.json")
    data = json.loads(path.read_text())
    for damage, told in (
        ({"format": "other"}, "holds no plan"),
        ({"version": 99}, "must be 1"),
        ({"plan": data["plan"] | {"peak_bytes": "many"}}, "plan.peak_bytes"),
        ({"plan": data["plan"] | {"odd": 1}}, "plan.odd is not known"),
        ({"plan": {k: v for k, v in data["plan"].items() if k != "status"}}, "status"),
    ):
        path.write_text(json.dumps(data | damage))
        with pytest.raises(FileFormatError, match=told):
            gw.load_plan(path)
