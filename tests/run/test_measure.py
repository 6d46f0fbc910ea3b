"""Measured memory is what the step holds; a process that dies, and a meter that does not move, are told."""

import math
import os
import signal
import stat
import subprocess
import sys
import time as clock
from pathlib import Path

import pytest

from graphwright.errors import ArgumentError, MeasurementError, UnsupportedError

tf = pytest.importorskip("tensorflow")
from graphwright.run import meter  # noqa: E402
from graphwright.run.measure import measure, measure_many, resident_bytes  # noqa: E402
from graphwright.run.traced_step import resolve  # noqa: E402

linux = pytest.mark.skipif(sys.platform != "linux", reason="the meter needs Linux")
MIB = 1 << 20


def three_buffers():
    """Three values of 16 MiB are live at once; their sum goes into one of them."""
    weight = tf.Variable(tf.zeros([MIB]), name="weight")  # 4 MiB

    @tf.function
    def step(x):  # 16 MiB
        parts = [tf.exp(x), tf.sin(x), tf.cos(x)]
        with tf.control_dependencies(parts):
            total = tf.identity(parts[0])
        weight.assign_add(tf.ones([MIB]))
        return tf.reduce_sum(total * parts[1] * parts[2])

    return step, tf.ones([4 * MIB]), weight


@linux
def test_peak_of_a_step_whose_peak_is_known():
    step, x, weight = three_buffers()
    result = measure(step, x, time=False, grappler=False, inter_op_threads=1)
    assert 0 <= result.resident_bytes - 24 * MIB <= 256  # the ones too, a constant of the graph or one that the runtime makes
    growth = result.peak_bytes - result.resident_bytes
    # Beside the three buffers, TensorFlow makes the ones of 4 MiB and the new weight of 4 MiB, at most at the same time.
    assert growth >= 48 * MIB - MIB // 2
    assert growth <= (48 + 8 + 1) * MIB
    assert math.isnan(result.time_s)
    assert "Grappler off" in result.how
    assert "1 inter-op" in result.how
    assert "high-water mark" in result.how
    assert float(tf.reduce_sum(weight)) == 0.0  # the caller's variables are left alone


@pytest.mark.slow
def test_many_take_turns_and_share_their_variables():
    weight = tf.Variable(tf.ones([400, 400]) / 400.0)

    def chain(length):
        @tf.function
        def step(x):
            for _ in range(length):
                x = x @ weight
            weight.assign(weight)
            return x

        return step

    results = measure_many({"long": chain(40), "short": chain(4), "again": chain(40)}, tf.ones([400, 400]), steps=7)
    assert list(results) == ["long", "short", "again"]
    assert results["long"].ratio == 1.0
    assert len(results["short"].times_s) == 7
    assert "took turns" in results["short"].how


@linux
def test_meter_sees_what_is_allocated():
    meter.check()
    assert meter.growth_of(lambda: bytearray(64 * MIB)) > 63 * MIB
    assert meter.growth_of(lambda: None) < 2 * MIB


def test_meter_that_does_not_move_is_found_out(monkeypatch):
    monkeypatch.setattr(meter, "_status", lambda field: 1000)
    monkeypatch.setattr(meter, "_reset_high_water", lambda: None)
    with pytest.raises(MeasurementError, match="the memory meter saw 0 bytes"):
        meter.check()


@linux
def test_missing_high_water_mark(monkeypatch):
    with pytest.raises(MeasurementError, match="does not report VmNothing"):
        meter._status("VmNothing")

    def refuse(self, text):
        raise PermissionError("no")

    monkeypatch.setattr(meter.Path, "write_text", refuse)
    with pytest.raises(MeasurementError, match="cannot be reset"):
        meter.growth_of(lambda: None)


@pytest.mark.slow
def test_step_that_fails_shows_what_it_said():
    @tf.function
    def step(x):
        tf.debugging.assert_positive(x, message="negative they were")
        return x

    with pytest.raises(MeasurementError, match="ended with status 1") as caught:
        measure(step, tf.constant(-1.0), time=False)
    assert "negative they were" in str(caught.value)


def test_process_killed_by_a_signal(monkeypatch, tmp_path):
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\necho nearly there >&2\nkill -9 $$\n")
    killed.chmod(killed.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(killed))
    with pytest.raises(MeasurementError, match="killed by SIGKILL") as caught:
        measure(tf.function(lambda x: x), tf.constant(1.0))
    assert "ran out of memory" in caught.value.cause
    assert "nearly there" in str(caught.value)
    killed.write_text("#!/bin/sh\nsleep 60\n")
    with pytest.raises(MeasurementError, match=r"stopped after 0\.2 s"):
        measure(tf.function(lambda x: x), tf.constant(1.0), timeout_s=0.2)
    killed.write_text("#!/bin/sh\nexit 0\n")  # well-behaved, but without a result
    with pytest.raises(MeasurementError, match="status 0"):
        measure(tf.function(lambda x: x), tf.constant(1.0))


def test_resident_bytes_count_each_buffer_once():
    half = tf.Variable(tf.zeros([100], tf.bfloat16))
    large = tf.ones([50, 20])
    x = tf.zeros([7])

    @tf.function
    def step(x, again):
        return tf.cast(half.read_value(), tf.float32)[:7] + x + again + tf.reduce_sum(large) + tf.constant([1.0] * 7)

    inside = sum(
        operation.outputs[0].shape.num_elements() * operation.outputs[0].dtype.size
        for operation in resolve(step, (x, x)).function.graph.get_operations()
        if operation.type == "Const"
    )
    assert inside >= 28
    assert resident_bytes(resolve(step, (x, x))) == 200 + 4000 + 28 + inside
    inner = tf.function(lambda x: x * tf.fill([100], 2.0) + tf.constant(3.0, shape=[50, 1]))
    constants = resident_bytes(resolve(tf.function(lambda x: inner(x)), x[:1])) - 4
    assert 200 <= constants <= 250  # in nested functions too, and one value for all elements counts as what it becomes
    grown = tf.Variable([1.0], shape=[None])
    grown.assign(tf.zeros([6]))
    assert resident_bytes(resolve(tf.function(lambda: grown.read_value()), ())) == 24


def test_bad_input():
    step, x = tf.function(lambda x: x), tf.constant(1.0)
    with pytest.raises(ArgumentError, match="steps=0"):
        measure(step, x, steps=0)
    with pytest.raises(ArgumentError, match="warmup=-1"):
        measure_many({"a": step}, x, warmup=-1)
    with pytest.raises(ArgumentError, match="no functions"):
        measure_many({}, x)
    with pytest.raises(ArgumentError, match="with Grappler on"):
        measure(step, x, executor="SINGLE_THREADED_EXECUTOR")
    with pytest.raises(UnsupportedError, match="calls Python"):
        measure(tf.function(lambda x: tf.numpy_function(lambda v: v, [x], tf.float32)), x)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_measuring_process_ends_with_its_parent(number):
    program = """
import tensorflow as tf
from graphwright import measure
step = tf.function(lambda x: tf.while_loop(lambda k: k < 10**9, lambda k: k + 1, [tf.cast(x, tf.int32)]))
measure(step, tf.constant(0.0), time=False)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        assert wait_until(lambda: any("graphwright.run.worker" in command_of(child) for child in children.read_text().split()))
        (child,) = (c for c in children.read_text().split() if "graphwright.run.worker" in command_of(c))
        parent.send_signal(number)
        assert wait_until(lambda: "graphwright.run.worker" not in command_of(child))
    finally:
        parent.kill()
        parent.wait()


def command_of(process: str) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:  # it ended
        return ""


def wait_until(holds) -> bool:
    deadline = clock.monotonic() + 60
    while not holds() and clock.monotonic() < deadline:
        clock.sleep(0.05)
    return holds()


@pytest.mark.slow
@linux
def test_small_tensors_are_counted_and_not_guessed_from_pages():
    """400 tensors of 16 KiB: in pages of the heap they are a third more, or nearly nothing where the heap had room."""

    @tf.function
    def step(x):
        parts = [tf.sin(x * float(k)) for k in range(400)]
        with tf.control_dependencies(parts):
            return tf.add_n([tf.identity(p) for p in parts])

    result = measure(step, tf.ones([4096]), time=False, grappler=False, inter_op_threads=1)
    held = 400 * 16384
    assert held <= result.peak_bytes - result.resident_bytes
    assert "counted by TensorFlow's allocator, above resident too: tensors" in result.how


@pytest.mark.slow
def test_a_measuring_process_imports_nothing_of_the_current_folder(tmp_path, monkeypatch):
    for name in ("json", "numpy", "keras", "graphwright"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder was imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    found = measure(tf.function(lambda x: tf.reduce_sum(x @ x)), (tf.ones([64, 64]),), time=False, steps=1)
    assert found.peak_bytes >= 0
