"""A budget that is a share is one of what the step as it is takes: the peak in the order of TensorFlow's executor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.memory import plan_step
from graphwright.step import executor_peak

X = tf.ones((1024, 256))


@tf.function
def _fan(x: Any) -> Any:
    """Eight products of 1 MiB: one at a time in the traced order, several at once in the executor's, which starts what is ready."""
    total = tf.constant(0.0)
    for k in range(1, 9):
        total += tf.reduce_sum(tf.exp(x * float(k)) * tf.sin(x))
    return total


def test_a_share_is_one_of_the_executors_peak() -> None:
    own = gw.predict_peak(_fan, inputs=(X,), order="executor")
    traced = gw.predict_peak(_fan, inputs=(X,), order="traced").peak_bytes
    assert own.peak_bytes > 1.3 * traced, "the two orders are to differ here"
    fast = gw.optimize_memory(_fan, 0.9, inputs=(X,), cache_dir=None, time_limit_s=0.5)
    plan = fast.plan
    assert plan.executor is not None
    assert plan.executor.order == "executor"
    assert plan.original_peak_bytes == plan.executor.peak_bytes > 1.3 * traced
    assert plan.budget_bytes == int(0.9 * plan.original_peak_bytes)
    assert plan.timeline_before.peak_bytes == plan.original_peak_bytes
    assert "as TensorFlow runs the step by itself" in " ".join(plan.text("all").split())
    assert plan.how["original peak"].startswith("TensorFlow's executor simulated")
    assert float(fast(X)) == float(_fan(X))


def test_a_budget_in_bytes_is_what_it_was_and_the_report_is_the_same() -> None:
    plan = gw.optimize_memory(_fan, "4MiB", inputs=(X,), cache_dir=None, verify=False, time_limit_s=0.5).plan
    assert plan.budget_bytes == 4 * 2**20
    assert plan.executor is not None
    assert plan.original_peak_bytes == plan.executor.peak_bytes


def test_planning_does_not_run_the_step() -> None:
    runs = tf.Variable(0)

    @tf.function
    def step(x: Any) -> Any:
        runs.assign_add(1)
        return _fan(x)

    planned = gw.optimize_memory(step, "9MiB", inputs=(X,), cache_dir=None, verify=False, time_limit_s=0.5).plan
    assert planned.executor is not None, planned.how
    fast = gw.optimize_memory(step, "9MiB", cache_dir=None, verify=False, time_limit_s=0.5)
    assert int(runs) == 0
    outer = tf.function(lambda x: fast(x))
    outer(X)  # planned while another function is traced
    assert int(runs) == 1
    assert fast.plan.executor is not None, fast.plan.how


@pytest.mark.parametrize("case", ["too many nodes", "refused"])
def test_where_the_executors_peak_is_not_known_the_traced_one_counts_and_the_plan_says_so(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise tf.errors.InternalError(None, None, "no graph today")

    monkeypatch.setattr(*((executor_peak, "MOST_NODES", 3) if case == "too many nodes" else (executor_peak, "recorded_graphs", refuse)))
    plan = gw.optimize_memory(_fan, "100%", inputs=(X,), cache_dir=None, verify=False, time_limit_s=0.5).plan
    assert plan.executor is None
    assert plan.original_peak_bytes == plan.timeline_before.peak_bytes == plan.budget_bytes
    said = plan.how["original peak"]
    assert said.startswith("that of the order in which the step was traced; TensorFlow's own is not simulated")
    assert "more than 3 nodes" in said if case == "too many nodes" else "InternalError: no graph today" in said


def test_a_kept_plan_serves_a_share_whose_peak_came_out_differently_while_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan_of(peak_bytes: int) -> gw.MemoryPlan:
        def found(*arguments: Any, **options: Any) -> Any:
            prediction, how = executor_peak.plain_peak(*arguments, **options)
            assert prediction is not None
            return replace(prediction, peak_bytes=peak_bytes), how

        for figures in tmp_path.glob("*.step"):  # or the peak is the one that was found first
            figures.unlink()
        monkeypatch.setattr(plan_step, "plain_peak", found)
        return gw.optimize_memory(_fan, 0.5, inputs=(X,), cache_dir=tmp_path, verify=False, time_limit_s=0.5).plan

    first, more, less = plan_of(10 << 20), plan_of(11 << 20), plan_of(7 << 20)
    assert [p.budget_bytes for p in (first, more, less)] == [5 << 20, 11 << 19, 7 << 19]
    assert "plan cache" not in first.how["plan"]
    assert "plan cache" in more.how["plan"]
    assert less.peak_bytes <= less.budget_bytes
    with pytest.raises(gw.InfeasibleError):  # judged against what is asked for now, not against what it was made for
        plan_of(5 << 20)


def test_a_budget_that_only_the_executors_own_order_keeps_leaves_the_step_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    low = 2 << 20  # less than any fixed order needs

    def found(*arguments: Any, **options: Any) -> Any:
        prediction, how = executor_peak.plain_peak(*arguments, **options)
        assert prediction is not None
        return replace(prediction, peak_bytes=low), how

    monkeypatch.setattr(plan_step, "plain_peak", found)
    for verify in ("run", False):
        fast = gw.optimize_memory(_fan, "100%", inputs=(X,), cache_dir=None, verify=verify, time_limit_s=0.5)
        plan = fast.plan
        assert (plan.status, plan.peak_bytes, plan.budget_bytes, plan.original_peak_bytes) == ("unchanged", low, low, low)
        assert plan.how["plan"].startswith("none: the step runs as it is")
        assert plan.how["peak"].startswith("TensorFlow's executor simulated")
        assert plan.verification == ("equal: it is the original itself" if verify else "")
        assert plan.verdict.startswith("Runs as it is: _fan needs 2.00 MiB of 2.00 MiB, and ")
        assert plan.verdict.endswith(" at the upper end of the predicted range; nothing is changed.")
        assert float(fast(X)) == float(_fan(X))
        assert fast.concrete_function(X) is _fan.get_concrete_function(X)
    with pytest.raises(gw.InfeasibleError) as raised:
        gw.optimize_memory(_fan, 0.99, inputs=(X,), cache_dir=None, time_limit_s=0.5)
    assert raised.value.smallest_budget_bytes > low  # what TensorFlow's order needs differs from one preparation of the graph to the next
    assert '"100%" (the step as it is, which takes 2.00 MiB)' in str(raised.value)
    for budget in ("100%", raised.value.smallest_budget_bytes):
        gw.optimize_memory(_fan, budget, inputs=(X,), cache_dir=None, time_limit_s=0.5)


def test_a_sweep_takes_the_same_shares() -> None:
    swept = gw.sweep(_fan, {"x": (None, 256)}, batches=(512, 1024), optimized=0.9, time_limit_s=0.5)
    (planned,) = swept.others.values()
    for point, with_plan in zip(swept.points, planned.points, strict=True):
        traced = gw.predict_peak(_fan, {"x": (point.batch, 256)}, order="traced").peak_bytes
        assert with_plan.peak_bytes <= 0.9 * point.peak_bytes
        assert point.peak_bytes > 1.3 * traced
    plain = gw.sweep(_fan, {"x": (None, 256)}, batches=(512, 1024), optimized="4MiB", time_limit_s=0.5, order="traced")
    assert plain.points[1].peak_bytes == gw.predict_peak(_fan, inputs=(X,), order="traced").peak_bytes
