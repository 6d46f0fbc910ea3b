"""Residuals that are copied to files or another device, and come back bit for bit."""

from __future__ import annotations

import gc
import importlib
import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import graphwright as gw
from graphwright.analyze.private_files import private_files
from graphwright.source.concrete_function import from_concrete_function

pytestmark = pytest.mark.tensorflow

tf: Any = importlib.import_module("tensorflow")
offload_module: Any = importlib.import_module("graphwright.memory.offload")
FAST = gw.CopyEngine(1e11, 1e11)


def differentiated(weights: list[Any], x: Any, reduce: Any) -> tuple[Any, list[Any]]:
    """The loss of products one behind another, and its gradients."""
    with tf.GradientTape() as tape:
        y = x
        for weight in weights:
            y = tf.tanh(y @ weight)
        loss = reduce(y * y)
    return loss, tape.gradient(loss, weights)


def products(dtype: str = "float32", layers: int = 8, width: int = 256, batch: int = 0) -> tuple[Any, Any]:
    """Products whose results, of 16 MiB, are read again backward: twice what TensorFlow's writer takes for itself."""
    batch = batch or 16 * 2**20 // (width * tf.as_dtype(dtype).size)
    rng = np.random.default_rng(0)
    weights = [tf.Variable(tf.cast(rng.normal(0, 0.05, (width, width)), dtype)) for _ in range(layers)]

    @tf.function
    def step(x: Any) -> Any:
        loss, gradients = differentiated(weights, x, tf.reduce_sum)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(tf.cast(1e-6, dtype) * gradient)
        return loss

    return step, tf.cast(rng.normal(size=(batch, width)), dtype)


def in_files(step: Any, budget: float | str, x: Any, folder: Path | str, **options: Any) -> Any:
    options = {"cache_dir": None, "offload_to": folder, "copy_engine": FAST} | options
    return gw.optimize_memory(step, budget, inputs=x, **options)


@pytest.mark.parametrize(
    "dtype",
    [
        *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("float32", "bfloat16")),
        *(pytest.param(dtype, marks=[pytest.mark.slow, pytest.mark.thorough]) for dtype in ("float64", "float16")),
    ],
)
def test_residuals_come_back_bit_for_bit_for_less_time_than_recomputing(dtype: str, tmp_path: Path) -> None:
    step, x = products(dtype)
    plain = gw.optimize_memory(step, 0.5, inputs=x, cache_dir=None)
    fast = in_files(step, 0.5, x, tmp_path)
    plan = fast.plan
    assert plan.verification.startswith("equal")
    assert plan.peak_bytes <= plan.budget_bytes
    assert plan.offloaded_bytes > 0
    assert plan.overhead < plain.plan.overhead
    assert plan.offload_to == str(tmp_path)
    assert str(tmp_path) in plan.how["plan"]
    assert {d.decision for d in plan.decisions} >= {"offload"}
    assert any("offload" in row.verbs for row in plan.layers)
    found = gw.verify(step, fast, x, steps=3)
    assert found.bitwise, str(found)


def test_files_are_in_the_folder_while_the_step_lives_and_gone_then(tmp_path: Path) -> None:
    step, x = products()
    fast = in_files(step, 0.4, x, tmp_path)
    for _ in range(3):
        fast(x)
    [folder] = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 2, "the last file that was read, and its index"
    del fast
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_files_are_gone_when_the_process_ends_by_an_error(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path; from tests.memory.test_offload import *; "
        "step, x = products(); fast = in_files(step, 0.4, x, Path(sys.argv[1])); fast(x); "
        "assert list(Path(sys.argv[1]).iterdir()); raise SystemError('meant')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parents[2])], capture_output=True, text=True, check=False
    )
    assert "meant" in done.stderr
    assert not list(tmp_path.iterdir())


def test_steps_that_run_at_once_do_not_meet(tmp_path: Path) -> None:
    step, x = products()
    fast = in_files(step, 0.4, x, tmp_path)
    graph = fast.concrete_function(x)
    assert private_files(from_concrete_function(graph, planned=False)[0].nodes).written
    losses: list[float] = []
    threads = [threading.Thread(target=lambda: losses.append(float(fast(x)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(losses) == 4, "none failed for want of a file"


def test_a_folder_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    step, x = products()
    with pytest.raises(gw.ArgumentError, match="nothing can be written"):
        gw.optimize_memory(step, 0.4, inputs=x, cache_dir=None, offload_to=tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(gw.ArgumentError, match="nothing can be written"):
        gw.optimize_memory(step, 0.4, inputs=x, cache_dir=None, offload_to=tmp_path / "file")
    with pytest.raises(gw.ArgumentError, match="no device"):
        gw.optimize_memory(step, 0.4, inputs=x, cache_dir=None, offload_to="CPU:7")


def _with_a_switch(x: Any) -> Any:
    left, right = tf.raw_ops.Switch(data=x, pred=tf.reduce_sum(x) > 0)
    return tf.raw_ops.Merge(inputs=[left + 1, right])[0]


def _with_a_collective(x: Any) -> Any:
    keys = {"group_size": 1, "group_key": 1, "instance_key": 1, "ordering_token": []}
    return tf.raw_ops.CollectiveReduceV2(input=x, merge_op="Add", final_op="Id", **keys)


@pytest.mark.parametrize(
    ("around", "why"), [(_with_a_switch, "'offload' is not for a step with switches"), (_with_a_collective, "with collectives")]
)
def test_a_step_that_nothing_is_copied_of_is_refused_where_copies_are_asked_for(around: Any, why: str, tmp_path: Path) -> None:
    plain, x = products(layers=3, width=64, batch=256)
    step = tf.function(lambda x: around(plain(x)))
    assert gw.optimize_memory(step, 0.9, inputs=x, cache_dir=None, allow="all").plan
    with pytest.raises(gw.UnsupportedError, match=why):
        in_files(step, 0.9, x, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"allow": ("offload",)}, {"offload_to": "."}])
def test_verbs_by_name_are_refused_for_xla_and_a_gpu_that_is_not_there(options: Any) -> None:
    step, x = products(layers=3, width=64, batch=256)
    with pytest.raises(gw.UnsupportedError, match="'offload' is not for a step that XLA compiles"):
        gw.optimize_memory(step, 0.9, device="h100", **options)  # before the step is traced
    compiled = tf.function(step.python_function, jit_compile=True)
    with pytest.raises(gw.UnsupportedError, match="'offload' is not for a step that XLA compiles"):
        gw.optimize_memory(compiled, 0.9, inputs=x, cache_dir=None, **options)


def test_a_place_that_frees_nothing_and_what_nobody_uses_are_refused(tmp_path: Path) -> None:
    step, x = products(layers=3, width=64, batch=256)
    with pytest.raises(gw.ArgumentError, match="the step itself runs on CPU:0"):
        in_files(step, 0.9, x, "CPU:0")
    with pytest.raises(gw.ArgumentError, match="nothing may be copied"):
        gw.optimize_memory(step, 0.9, inputs=x, cache_dir=None, copy_engine=FAST)
    plan = gw.optimize_memory(step, 0.9, inputs=x, cache_dir=None).plan
    with pytest.raises(gw.ArgumentError, match="beside a plan that was made without it"):
        gw.optimize_memory(step, plan=plan, inputs=x, cache_dir=None, offload_to=tmp_path)


def test_a_folder_that_goes_while_the_step_runs_is_a_clear_error(tmp_path: Path) -> None:
    step, x = products()
    place = tmp_path / "place"
    place.mkdir()
    fast = in_files(step, 0.4, x, place)
    [folder] = place.iterdir()
    folder.rmdir()
    folder.write_text("a file is in the way")
    with pytest.raises(gw.OffloadError, match=f"could not be written .*{folder}"):
        fast(x)
    folder.unlink()


def test_all_verbs_do_not_mean_offload_and_a_folder_does(tmp_path: Path) -> None:
    step, x = products()
    assert not gw.optimize_memory(step, 0.4, inputs=x, cache_dir=None, allow="all").plan.offloaded_bytes
    assert in_files(step, 0.4, x, tmp_path, allow=("recompute",)).plan.offloaded_bytes
    with pytest.raises(gw.ArgumentError, match="write_bytes_per_s"):
        gw.CopyEngine(0, 1)


def test_a_slow_disk_is_left_alone_where_recomputing_keeps_the_budget(tmp_path: Path) -> None:
    step, x = products()
    slow = in_files(step, 0.4, x, tmp_path, copy_engine=gw.CopyEngine(1e5, 1e5, 1.0))
    assert not slow.plan.offloaded_bytes
    assert slow.plan.recomputed_count


@pytest.mark.parametrize("bytes_per_s", [1e11, 5e9])
def test_copies_for_the_smallest_peak_take_no_more_time_than_they_may(bytes_per_s: float, tmp_path: Path) -> None:
    step, x = products()
    plan = in_files(step, "smallest", x, tmp_path, max_overhead=0.1, copy_engine=gw.CopyEngine(bytes_per_s, bytes_per_s)).plan
    assert plan.offloaded_bytes
    assert plan.overhead <= 0.1


def test_a_saved_plan_is_followed_with_its_copies(tmp_path: Path) -> None:
    step, x = products()
    fast = in_files(step, 0.4, x, tmp_path)
    path = fast.plan.save(tmp_path / "plan.json")
    again = gw.optimize_memory(step, plan=path, inputs=x, cache_dir=None)
    assert again.plan.offloaded_bytes == fast.plan.offloaded_bytes
    assert again.plan.peak_bytes == fast.plan.peak_bytes
    assert again.plan.verification.startswith("equal")


_ON_TWO_DEVICES = """
import importlib, sys
tf = importlib.import_module("tensorflow")
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
sys.path.insert(0, sys.argv[1])
from tests.memory.test_offload import *
step, x = products()
fast = in_files(step, 0.6, x, "CPU:1")
plan = fast.plan
assert plan.offload_to == "CPU:1" and plan.offloaded_bytes and plan.verification.startswith("equal"), plan
assert len(plan.device_peaks) == 2 and max(plan.device_peaks.values()) <= plan.budget_bytes, plan.device_peaks
graph = from_concrete_function(fast.concrete_function(x), planned=False)[0]
carrying = [node for node in graph.nodes if node.name.startswith("offloaded/") and node.outputs]
away = [node for node in carrying if node.name.rpartition("/")[2].startswith("write")]
back = [node for node in carrying if node not in away]
assert away and back and all(node.device.endswith("CPU:1") for node in away), [node.device for node in away]
assert all(not node.device or node.device.endswith("CPU:0") for node in back), [node.device for node in back]
assert all(node.inputs[0].producer in away and node.control_inputs for node in back)
assert gw.verify(step, fast, x, steps=2).bitwise
# What does not fit into the other device is not sent there.
tight = in_files(step, 0.4, x, "CPU:1").plan
assert max(tight.device_peaks.values()) <= tight.budget_bytes
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = tf.Variable(tf.ones((64, 64)))
def replica(x):
    weight.assign_add(tf.matmul(x, x, transpose_a=True) / 1e6)
mirrored = tf.function(lambda: strategy.run(replica, args=(tf.ones((512, 64)),)))
assert "order and recompute only" in gw.optimize_memory(mirrored, 2**24, inputs=(), cache_dir=None, allow="all").plan.how["devices"]
for options in ({"allow": ("split",)}, {"offload_to": "CPU:1"}, {"allow": ("recompute", "segment", "offload")}):
    with pytest.raises(gw.UnsupportedError, match="is not for a step on several devices"):
        gw.optimize_memory(mirrored, 2**24, inputs=(), cache_dir=None, **options)
print("both kept")
"""


def test_copies_in_the_memory_of_another_device_keep_the_budget_of_both() -> None:
    command = [sys.executable, "-c", _ON_TWO_DEVICES, str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "both kept" in done.stdout, done.stderr[-2000:]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_measured_peak_keeps_the_budget(tmp_path: Path) -> None:
    step, x = products()
    fast = in_files(step, 0.4, x, tmp_path)
    assert fast.plan.offloaded_bytes
    assert gw.measure(fast, x, time=False).peak_bytes <= fast.plan.budget_bytes


def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next_one(tmp_path: Path) -> None:
    code = f"""
import sys, tempfile
path = tempfile.mkdtemp(prefix={offload_module._SPILLED!r}, dir={str(tmp_path)!r})
held = locked(path)
open(path + "/tensor.data", "w").write("left")
print(path, flush=True)
sys.stdin.read()
"""
    own = inspect.getsource(offload_module._locked).partition("held = ")[2]  # without TensorFlow, which takes long to start
    code = f"import fcntl, os\ndef locked(folder):\n    held = {own}{code}"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        mine = offload_module._folder(str(tmp_path))
        assert folder.exists(), "its process is alive"
        assert {folder, Path(mine.path)} == set(tmp_path.iterdir())
        other.kill()
    (tmp_path / "graphwright_spill_file").write_text("no folder")
    (tmp_path / "mine").mkdir()
    (tmp_path / "graphwright_spill_link").symlink_to(tmp_path / "mine")
    del mine
    again = offload_module._folder(str(tmp_path))
    assert not folder.exists()
    assert (tmp_path / "mine").exists()
    assert Path(again.path).exists()
