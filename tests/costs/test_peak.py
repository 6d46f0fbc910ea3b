"""`predict_peak`: both orders, what is live, errors; slow: against measured peaks."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.report.units import format_bytes

MIB = 2**20


@pytest.fixture(scope="module")
def step() -> Any:
    weights = [tf.Variable(tf.random.stateless_uniform([256, 256], (0, k)), name=f"w{k}") for k in range(4)]

    @tf.function
    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for k, w in enumerate(weights):
                with tf.name_scope(f"layer{k}"):
                    x = tf.tanh(x @ w)
            loss = tf.reduce_sum(x)
        for w, g in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(0.1 * g)
        return loss

    return train


@pytest.mark.parametrize("order", ["traced", "executor"])
def test_the_peak_is_split_by_role_and_layer(step: Any, order: Any) -> None:
    found = gw.predict_peak(step, feeds={"x": (1024, 256)}, order=order, threads=1)
    assert found.order == order
    assert found.low_bytes <= found.peak_bytes <= found.high_bytes
    assert sum(found.by_role.values()) == found.peak_bytes
    # In the executor's order an update may come before the peak; its new value takes the place of the weight.
    updated = found.by_role["weights"] // (256 * 256 * 4)
    assert found.by_role["weights"] == updated * 256 * 256 * 4
    assert updated == 4 if order == "traced" else updated in (3, 4)
    assert found.by_role["inputs"] == 2 * MIB  # x, and the gradient of the sum, which is a constant that the runtime keeps
    assert found.by_role["residuals"] >= 3 * MIB
    assert found.resident_bytes == 3 * MIB
    assert found.peak_bytes >= 6 * MIB
    assert found.by_layer["layer0"] >= MIB
    assert {b.nbytes for b in found.live} >= {MIB}
    assert found.peak_op


def test_the_executor_has_a_range_and_says_how(step: Any) -> None:
    found = gw.predict_peak(step, feeds={"x": (1024, 256)}, order="executor", threads=2)
    assert found.threads == 2
    assert found.low_bytes < found.peak_bytes < found.high_bytes
    assert "5%" in found.how["range"]
    assert "nothing was run" in found.how["peak"]


def test_it_prints_itself_and_gives_plain_json(step: Any) -> None:
    for order in ("traced", "executor"):
        found = gw.predict_peak(step, feeds={"x": (64, 256)}, order=order)
        text = found.text("all")
        assert all(len(line) <= 80 for line in text.splitlines())
        assert "Live at the peak" in text
        assert ("as TensorFlow runs it" in text.splitlines()[0]) == (order == "executor")
        data = json.loads(json.dumps(found.to_json()))
        assert data["peak_bytes"] == found.peak_bytes
        assert sum(data["bytes_by_role"].values()) == found.peak_bytes


def test_every_question_is_answered_with_one_peak(step: Any) -> None:
    """The peak as TensorFlow runs the step by default, and the traced one where it is asked for."""
    feeds = {"x": (1024, 256)}
    for order in ("executor", "traced"):
        report = gw.inspect(step, feeds=feeds, order=order)
        assert (report.executor is None) == (order == "traced")
        peak = report.peak_bytes
        assert report.timeline.peak_bytes == report.timeline.total_bytes[report.timeline.peak_step] == peak
        assert sum(row[report.timeline.peak_step] for row in report.timeline.bytes_by_role.values()) == peak
        assert f"peak {format_bytes(peak)}, predicted" in report.verdict
        predicted = gw.predict_peak(step, feeds, order=order)
        costs = gw.step_costs(step, feeds, order=order)
        low, high = predicted.low_bytes, predicted.high_bytes  # TensorFlow may prepare the step in another order each time
        assert all(0.99 * low <= other <= 1.01 * high for other in (peak, costs.figures["peak_bytes"]))
        assert gw.check(step, feeds, max_peak=int(1.01 * high), order=order)
        assert not gw.check(step, feeds, max_peak=int(0.99 * low), order=order)
        swept = gw.sweep(step, {"x": (None, 256)}, (1024,), order=order)
        assert 0.99 * low <= swept.points[0].peak_bytes <= 1.01 * high
        assert gw.max_batch(step, int(1.01 * high), {"x": (None, 256)}, order=order).batch >= 1000


def test_a_timeline_shows_the_order_in_which_tensorflow_runs_a_loop() -> None:
    """Values that a loop pushes for its gradient are residuals; the rest of each round is not."""
    w = tf.Variable(tf.ones([128, 128]))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            _, y = tf.while_loop(lambda i, _: i < 8, lambda i, y: (i + 1, tf.sin(y * w)), (0, x))
            loss = tf.reduce_sum(y)
        w.assign_sub(tape.gradient(loss, w))
        return loss

    timeline = gw.inspect(step, inputs=tf.ones([128, 128])).timeline
    assert 2 * 7 * 64 * 1024 <= timeline.bytes_by_role["residuals"][timeline.peak_step] <= 2 * 9 * 64 * 1024
    assert timeline.total_bytes[0] < timeline.peak_bytes / 3
    assert timeline.total_bytes[-1] < timeline.peak_bytes / 3


@pytest.mark.parametrize("options", [{"order": "random"}, {"threads": 0}])
def test_wrong_options_are_refused(step: Any, options: dict[str, Any]) -> None:
    with pytest.raises(gw.ArgumentError, match=next(iter(options))):
        gw.predict_peak(step, feeds={"x": (8, 256)}, **options)


def test_the_traced_order_of_a_step_with_a_loop_is_simulated_on_the_step_that_holds_it() -> None:
    """The loop saves four tensors of 64 KiB for its gradient; each takes whole pages, 68 KiB."""

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, tf.sin(y)), (0, x))
        return tape.gradient(y, x)

    found = gw.predict_peak(step, inputs=tf.ones([128, 128]), order="traced", threads=1)
    assert found.order == "traced"
    assert "inside loops" in found.how["peak"]
    assert found.low_bytes <= found.peak_bytes <= found.high_bytes
    assert (64 + 4 * 68) * 1024 < found.peak_bytes < (64 + 9 * 68) * 1024
