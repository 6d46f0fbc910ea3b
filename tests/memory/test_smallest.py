"""The budget "smallest": as little memory as a stated share of more time buys."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

pytest.importorskip("tensorflow")

import graphwright as gw
from graphwright.errors import ArgumentError, UnsupportedError
from tests.memory.test_verbs import convolutions

pytestmark = pytest.mark.tensorflow

tf: Any = importlib.import_module("tensorflow")


def test_more_time_buys_a_smaller_peak() -> None:
    step, inputs, _ = convolutions()
    options = {"inputs": inputs, "cache_dir": None, "time_limit_s": 0.5}
    plans = [gw.optimize_memory(step, "smallest", max_overhead=most, **options).plan for most in (0.0, 0.1, 1.0)]
    peaks = [plan.peak_bytes for plan in plans]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > peaks[2]
    for plan, most in zip(plans, (0.0, 0.1, 1.0), strict=True):
        assert plan.overhead <= most + 1e-9
        assert plan.budget_bytes == plan.peak_bytes < plan.original_peak_bytes
        assert plan.verification.startswith("equal by structure")
        assert f"within {100 * most:g} % more time" in plan.how["plan"]


def test_the_verbs_that_are_allowed_serve_it() -> None:
    step, inputs, _ = convolutions()
    options = {"inputs": inputs, "cache_dir": None, "time_limit_s": 2.0, "max_overhead": 1.0}  # shared by four searches
    alone = gw.optimize_memory(step, "smallest", **options)
    parts = gw.optimize_memory(step, "smallest", allow="all", verify="run", **options)
    assert parts.plan.peak_bytes < 0.8 * alone.plan.peak_bytes
    assert parts.plan.overhead <= 1.0
    assert "split: " in parts.plan.how["plan"]
    assert parts.plan.verification.startswith("equal")


def test_a_kept_plan_and_a_smaller_batch(tmp_path: Any) -> None:
    step, inputs, _ = convolutions()
    options = {"cache_dir": tmp_path, "time_limit_s": 0.5}
    first = gw.optimize_memory(step, "smallest", inputs=inputs, **options)
    again = gw.optimize_memory(step, "smallest", inputs=inputs, **options)
    assert "read from the plan cache" in again.plan.how["plan"]
    assert again.plan.peak_bytes == first.plan.peak_bytes
    again(inputs[0][:9])
    assert "taken over" in again.plans[1].how["plan"]


def test_what_makes_no_sense_is_refused() -> None:
    step, inputs, _ = convolutions()
    with pytest.raises(ArgumentError, match="beside the budget"):
        gw.optimize_memory(step, 0.5, max_overhead=0.1, inputs=inputs)
    for most in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="max_overhead"):
            gw.optimize_memory(step, "smallest", max_overhead=most, inputs=inputs)
    with pytest.raises(UnsupportedError, match="XLA compiles"):
        gw.optimize_memory(tf.function(lambda x: tf.reduce_sum(tf.exp(x)), jit_compile=True), "smallest", inputs=(tf.ones((64, 64)),))
