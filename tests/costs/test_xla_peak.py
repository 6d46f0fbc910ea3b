"""The predicted peak of a step that XLA compiles, beside the measured one."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import graphwright as gw

MIB = 1 << 20


def _step() -> tuple[Any, Any]:
    weights = [tf.Variable(tf.ones((256, 256)) / 256, name=f"w{k}") for k in range(6)]

    @tf.function(jit_compile=True)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            h = x
            for w in weights:
                h = tf.tanh(h @ w)
            loss = tf.reduce_mean(h)
        for w, g in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(g)
        return loss

    return step, tf.ones((8192, 256))


def test_roles_add_up_and_arguments_are_named() -> None:
    step, x = _step()
    found = gw.predict_peak(step, inputs=x)
    assert found.order == "xla"
    assert sum(found.by_role.values()) == found.peak_bytes
    assert found.by_role["inputs"] == 8 * MIB
    assert found.by_role["weights"] == 6 * 256 * 256 * 4
    assert found.resident_bytes >= 9.5 * MIB
    assert {"x", "w0", "w5"} <= {buffer.name for buffer in found.live}
    assert "XLA's own buffer assignment" in found.how["peak"]
    assert "compiled by XLA" in found.text("all")
    assert gw.predict_peak(step, feeds={"x": (4096, 256)}).peak_bytes < found.peak_bytes


def test_what_inspect_and_check_say() -> None:
    step, x = _step()
    xla = gw.predict_peak(step, inputs=x)
    report = gw.inspect(step, inputs=x)
    assert report.executor is not None
    assert report.executor.peak_bytes == xla.peak_bytes
    assert "compiled by XLA" in report.text("all")
    assert report.peak_bytes == xla.peak_bytes
    assert report.how["bytes moved"].startswith("of the graph, operation by operation")
    assert report.forward_flops > 6 * 2 * 8192 * 256 * 256
    assert gw.check(step, inputs=x, max_peak=xla.peak_bytes).passed
    assert not gw.check(step, inputs=x, max_peak=xla.peak_bytes - 1).passed


def test_the_largest_batch_is_xlas() -> None:
    step, _ = _step()
    feeds = {"x": (None, 256)}
    found = gw.max_batch(step, "20MiB", feeds)
    assert found.order == "xla"
    assert found.batch
    assert found.peak_bytes <= 20 * MIB < found.next_peak_bytes
    swept = gw.sweep(step, feeds, batches=(found.batch, found.batch + 1), budget="20MiB")
    assert [point.fits for point in swept.points] == [True, False]
    assert [point.peak_bytes for point in swept.points] == [found.peak_bytes, found.next_peak_bytes]
    with pytest.raises(gw.UnsupportedError, match="compiled by XLA"):
        gw.sweep(step, feeds, batches=(1, 2), optimized=0.5)
