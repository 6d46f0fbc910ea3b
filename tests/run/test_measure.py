"""Measured memory is what the step holds; a process that dies, and a meter that does not move, are told."""

import json
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
import time as clock
from pathlib import Path

import pytest

from graphwright.errors import ArgumentError, MeasurementError, UnsupportedError

tf = pytest.importorskip("tensorflow")
from graphwright.analyze.workspace import _AVX512, _cpu_has  # noqa: E402
from graphwright.costs.peak import predict_peak  # noqa: E402
from graphwright.run import measure as measuring  # noqa: E402
from graphwright.run import meter  # noqa: E402
from graphwright.run.measure import measure, measure_many, resident_bytes  # noqa: E402
from graphwright.run.traced_step import resolve  # noqa: E402
from graphwright.source.step_file import write_steps  # noqa: E402

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
@linux
def test_owner_says_how_its_step_runs():
    class Owner:
        grappler_disabled = True

        def concrete_function(self, x):
            return step.get_concrete_function(x)

    step, x, _weight = three_buffers()
    assert "Grappler off" in measure(Owner(), x, steps=1, time=False).how
    single = measure(step, x, steps=1, time=False, grappler=False, executor="SINGLE_THREADED_EXECUTOR")
    assert "executor SINGLE_THREADED_EXECUTOR" in single.how


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


_BESIDE_THE_HOOK = """
import ctypes, json, os, sys
from graphwright.run import meter
from graphwright.run.call_options import grappler_disabled
from graphwright.source.step_file import read_steps
hook = ctypes.CDLL(os.environ["LD_PRELOAD"])
hook.hook_reset.restype = hook.hook_peak.restype = ctypes.c_longlong
step = read_steps(sys.argv[1])["step"]
def run():
    global start
    start = hook.hook_reset()
    with grappler_disabled():
        outputs = step.concrete(*step.arguments)
    del outputs
run()
print(json.dumps([[meter.growth_of(run), hook.hook_peak() - start] for _ in range(3)]))
"""


@pytest.mark.slow
@linux
@pytest.mark.skipif(shutil.which("cc") is None, reason="the hook needs a C compiler")
def test_meter_agrees_with_a_hook_on_malloc(tmp_path):
    hook = tmp_path / "hook.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(hook), str(Path(__file__).with_name("malloc_hook.c"))], check=True)
    kernels = [tf.Variable(tf.random.stateless_normal([3, 3, 16, 16], [k, 1]) * 0.1) for k in range(4)]

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            for kernel in kernels:
                x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
            loss = tf.reduce_mean(tf.square(x))
        for kernel, gradient in zip(kernels, tape.gradient(loss, kernels), strict=True):
            kernel.assign_sub(0.1 * gradient)
        return loss

    x = tf.random.stateless_normal([8, 64, 64, 16], [1, 2])
    write_steps({"step": (train.get_concrete_function(x), [x])}, tmp_path)
    source = str(Path(meter.__file__).parents[2])
    # One operation at a time: the hook counts a buffer when it is allocated, the meter when it is written, and two
    # threads can have one each between the two.
    one_thread = {"TF_NUM_INTEROP_THREADS": "1"}
    environment = os.environ | meter.MEMORY_ENVIRONMENT | one_thread | {"LD_PRELOAD": str(hook), "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", _BESIDE_THE_HOOK, str(tmp_path)], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )
    pairs = json.loads(done.stdout)
    assert len(pairs) == 3
    for seen, counted in pairs:
        assert counted > 10 * MIB
        assert abs(seen - counted) < 0.03 * counted


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


def test_growth_below_what_is_returned_is_refused():
    step = resolve(tf.function(lambda x: tf.exp(x)), tf.zeros([4 * MIB]))
    measuring._check_plausible(step, [17 * MIB])
    with pytest.raises(MeasurementError, match="returns a tensor of 16777216 bytes"):
        measuring._check_plausible(step, [17 * MIB, 0])
    measuring._check_plausible(resolve(tf.function(lambda x: tf.reshape(x, [-1])), tf.zeros([4 * MIB])), [0])


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


def test_out_of_memory_of_tensorflow_is_named():
    error = measuring._death(1, "...\nResourceExhaustedError: OOM when allocating tensor with shape[9,9]", "memory")
    assert "more memory than there is" in error.cause


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
@linux
def test_equal_values_that_the_runtime_folds_are_held_once_as_predicted():
    n = MIB // 4

    @tf.function
    def step(x):
        y = tf.tanh(x + tf.zeros([n]))
        return tf.tanh(tf.tanh(y * tf.zeros([n])) - tf.ones([n]))

    result = measure(step, tf.ones([n]), time=False, grappler=False, inter_op_threads=1)
    assert 3 * MIB <= result.resident_bytes < 3.05 * MIB
    assert 3 * MIB <= predict_peak(step, inputs=(tf.ones([n]),)).resident_bytes < 3.05 * MIB


@pytest.mark.slow
@linux
def test_what_kernels_ask_of_malloc_counts_where_little_is_in_tensors():
    """oneDNN's gradient of a wide depthwise filter takes 16 x 16 channels a group, 14 MiB, of malloc; 8 x 8 without AVX-512."""

    @tf.function
    def step(x):
        attributes = {"strides": [1, 1, 1, 1], "padding": "SAME"}
        return tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(input=x, filter_sizes=[5, 5, 576, 1], out_backprop=x, **attributes)

    result = measure(step, tf.ones([8, 7, 7, 576]), time=False)
    taken = 14 * MIB if _cpu_has(_AVX512) else 3.5 * MIB
    assert 0.95 * taken <= result.peak_bytes - result.resident_bytes < 1.08 * taken


@pytest.mark.slow
def test_a_measuring_process_imports_nothing_of_the_current_folder(tmp_path, monkeypatch):
    for name in ("json", "numpy", "keras", "graphwright"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder was imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    found = measure(tf.function(lambda x: tf.reduce_sum(x @ x)), (tf.ones([64, 64]),), time=False, steps=1)
    assert found.peak_bytes >= 0
