"""Residuals and optimizer state that are copied to files or another device, and come back bit for bit."""

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
from graphwright.ir.constants import text_attribute
from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity
from graphwright.source.concrete_function import from_concrete_function
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.proof import Original

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


def with_adam(layers: int = 5, width: int = 1024, dtype: str = "float32") -> tuple[Any, Any, list[Any]]:
    """Products, and Adam written out with its two slots."""
    rng = np.random.default_rng(1)
    weights, first, second = (
        [tf.Variable(tf.cast(rng.normal(0, 0.05, (width, width)) * scale, dtype), trainable=scale == 1) for _ in range(layers)]
        for scale in (1, 0, 0)
    )

    @tf.function
    def step(x: Any) -> Any:
        loss, gradients = differentiated(weights, x, tf.reduce_mean)
        for weight, m, v, gradient in zip(weights, first, second, gradients, strict=True):
            m.assign_add(0.1 * (gradient - m))
            v.assign_add(0.01 * (gradient * gradient - v))
            weight.assign_sub(0.01 * m / (tf.sqrt(v) + 1e-7))
        return loss

    return step, tf.cast(rng.normal(size=(32, width)), dtype), [*first, *second]


def is_away(variable: Any) -> bool:
    held = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    return bool(held.shape != variable.shape)


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


@pytest.mark.parametrize("options", [{"allow": ("offload",)}, {"offload_to": "."}, {"allow": ("recompute", "segment", "transpose")}])
def test_verbs_by_name_are_refused_for_xla_and_a_gpu_that_is_not_there(options: Any) -> None:
    step, x = products(layers=3, width=64, batch=256)
    [verb] = {"transpose", "offload"} & set(options.get("allow", ["offload"]))
    with pytest.raises(gw.UnsupportedError, match=f"'{verb}' is not for a step that XLA compiles"):
        gw.optimize_memory(step, 0.9, device="h100", **options)  # before the step is traced
    compiled = tf.function(step.python_function, jit_compile=True)
    with pytest.raises(gw.UnsupportedError, match=f"'{verb}' is not for a step that XLA compiles"):
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


def test_slots_of_the_optimizer_are_in_files_between_steps_and_come_back(tmp_path: Path) -> None:
    step, x, slots = with_adam()
    with pytest.raises(gw.InfeasibleError):
        gw.optimize_memory(step, 0.75, inputs=x, cache_dir=None)
    fast = in_files(step, 0.75, x, tmp_path)
    plan = fast.plan
    assert plan.verification.startswith("equal")
    assert plan.peak_bytes <= plan.budget_bytes < plan.original_peak_bytes
    assert plan.offloaded_bytes >= sum(slot.shape.num_elements() * 4 for slot in slots) // 2
    found = gw.verify(step, fast, x, steps=3)
    assert found.bitwise, str(found)

    before = [slot.numpy() for slot in slots]
    fast(x)
    away = [slot for slot in slots if is_away(slot)]
    assert away, "some hold the name of a file"
    assert fast.bring_back() == len(away)
    [folder] = tmp_path.iterdir()
    assert not [path for path in folder.iterdir() if not path.name.startswith("over")], "what came back leaves no file"
    assert not any(map(is_away, slots))
    assert any(not np.array_equal(slot.numpy(), value) for slot, value in zip(slots, before, strict=True))

    # Whoever reads one, in Python, finds its value; what is assigned to one counts, and no file is read for it.
    fast(x)
    assert is_away(away[0])
    assert away[0].numpy().shape == before[0].shape
    fast(x)
    away[0].assign(tf.ones_like(before[0]))
    fast(x)
    assert np.abs(away[0].numpy()).min() > 0.5
    del fast
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_threads_that_read_slots_in_files_disturb_neither_steps_nor_each_other(tmp_path: Path) -> None:
    step, x, slots = with_adam()
    other, _, others = with_adam()
    fast = in_files(step, 0.75, x, tmp_path)
    failed, over = list[BaseException](), threading.Event()

    def read() -> None:
        try:
            while not over.is_set():
                assert all(slot.numpy().shape == slot.shape for slot in slots)
        except BaseException as error:  # noqa: BLE001 - whatever it was, it is what the test looks for
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    losses = [(float(fast(x)), float(other(x))) for _ in range(6)]
    over.set()
    for reader in readers:
        reader.join()
    assert not failed
    assert all(ours == theirs for ours, theirs in losses)
    assert all(np.array_equal(ours.numpy(), theirs.numpy()) for ours, theirs in zip(slots, others, strict=True))
    fast(x)
    slot = next(slot for slot in slots if is_away(slot))
    assert tf.gather(slot, [0]).shape == (1, slot.shape[1])


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_slots_of_other_dtypes_are_in_files_too(dtype: str, tmp_path: Path) -> None:
    step, x, slots = with_adam(dtype=dtype)
    other, _, others = with_adam(dtype=dtype)
    fast = in_files(step, "smallest", x, tmp_path, max_overhead=1e3)
    assert fast.plan.verification.startswith("equal")
    assert fast.plan.offloaded_bytes >= sum(slot.shape.num_elements() * slot.dtype.size for slot in slots)
    for _ in range(3):
        assert float(fast(x)) == float(other(x))
    assert fast.bring_back()
    assert all(np.array_equal(ours.numpy(), theirs.numpy()) for ours, theirs in zip(slots, others, strict=True))


@pytest.mark.slow
def test_a_second_plan_goes_on_with_the_files_of_one_that_is_given_up(tmp_path: Path) -> None:
    step, x, slots = with_adam()
    first = in_files(step, 0.75, x, tmp_path)
    first(x)
    second = in_files(step, 0.76, x, tmp_path)
    second(x)
    del first
    gc.collect()
    assert any(map(is_away, slots)), "the second one still keeps them in files"
    found = gw.verify(step, second, x)
    assert found.bitwise, str(found)
    second(x)
    del second
    gc.collect()
    assert not any(map(is_away, slots))


def test_checkpoints_hold_the_slots_that_are_in_files(tmp_path: Path) -> None:
    keras = importlib.import_module("keras")
    keras.utils.set_random_seed(0)
    dense = [keras.layers.Dense(1024, activation="tanh") for _ in range(3)]
    model = keras.Sequential([keras.Input((512,)), *dense, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    (tmp_path / "files").mkdir()
    model = gw.optimize_memory(
        model, "smallest", batch=32, max_overhead=1e3, offload_to=tmp_path / "files", copy_engine=FAST, cache_dir=None
    )
    x, y = np.ones((32, 512), np.float32), np.ones((32, 1), np.float32)

    def slots() -> list[Any]:
        return [variable.value for variable in model.optimizer.variables if len(variable.shape)]

    def train() -> None:
        model.train_on_batch(x, y)
        assert any(map(is_away, slots()))

    train()
    model.save(tmp_path / "model.keras")
    now = [slot.numpy() for slot in slots()]
    assert all(
        map(np.array_equal, now, [v.numpy() for v in keras.models.load_model(tmp_path / "model.keras").optimizer.variables if len(v.shape)])
    )
    train()
    model.load_weights(tmp_path / "model.keras")
    assert all(map(np.array_equal, now, [slot.numpy() for slot in slots()]))
    train()
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    saved = sorted(tuple(shape) for name, shape in tf.train.list_variables(path) if "optimizer/_variables" in name and shape)
    assert saved == sorted(value.shape for value in now)


@pytest.mark.slow
def test_a_smaller_batch_finds_what_the_plan_for_the_larger_one_left_in_files(tmp_path: Path) -> None:
    step, x, slots = with_adam()
    other, _, others = with_adam()
    fast = in_files(step, 0.75, x, tmp_path)
    for batch in (x, x[:7], x, x[:7]):
        assert float(fast(batch)) == float(other(batch))
    assert [bool(plan.offloaded_bytes) for plan in fast.plans] == [True, True]
    fast.bring_back()
    assert all(np.array_equal(ours.numpy(), theirs.numpy()) for ours, theirs in zip(slots, others, strict=True))


def test_what_works_with_a_variable_in_a_file_does_not_run_again_when_it_is_gone(tmp_path: Path) -> None:
    """It would keep the memory of what it read."""
    step, x, _ = with_adam(width=1448)
    fast = in_files(step, 0.75, x, tmp_path)
    graph = from_concrete_function(fast.concrete_function(x), planned=False)[0]
    sent = {node.inputs[0] for node in graph.nodes if node.name.startswith("offloaded/") and node.name.endswith("/gone")}
    reads = {node for handle in sent for node in handle.consumers if node.op_type == "ReadVariableOp"}
    assert reads
    assert not [c for node in reads for c in node.outputs[0].consumers if c.name.startswith("recomputed/")]


def _sent_graph(tmp_path: Path) -> tuple[Graph, Graph]:
    step, x, _ = with_adam(layers=4)
    fast = in_files(step, 0.8, x, tmp_path)
    function = fast.concrete_function(x)
    graphs = [from_concrete_function(function, planned=False)[0] for _ in range(2)]
    assert any(node.name.endswith("/gone") for node in graphs[0].nodes)
    return graphs[0], graphs[1]


def _of(graph: Graph, end: str) -> Any:
    return next(node for node in graph.nodes if node.name.startswith("offloaded/") and node.name.endswith(end))


def _before_the_update(graph: Graph) -> None:
    after = _of(graph, "/after")
    for node in after.control_inputs:
        graph.remove_control_input(after, node)


def _name_before_value(graph: Graph) -> None:
    graph.remove_control_input(_of(graph, "/gone"), _of(graph, "/write"))


def _other_names(graph: Graph) -> None:
    number = next(n for n in graph.nodes if n.name.startswith("offloaded/") and n.name.endswith("/number"))
    graph.set_attr(number, "value", text_attribute(".other"))


def _other_size(graph: Graph) -> None:
    size = _of(graph, "/size_of_name")
    graph.set_attr(size, "value", text_attribute("x"))


def _update_before_it_is_back(graph: Graph) -> None:
    back = _of(graph, "/back")
    for node in back.control_consumers:
        graph.remove_control_input(node, back)


def _branches_exchanged(graph: Graph) -> None:
    value = _of(graph, "/value")
    then, other = value.attrs["then_branch"], value.attrs["else_branch"]
    graph.set_attr(value, "then_branch", other)
    graph.set_attr(value, "else_branch", then)


@pytest.mark.parametrize(
    "fault",
    [
        _before_the_update,
        _name_before_value,
        _other_names,
        *(pytest.param(fault, marks=pytest.mark.slow) for fault in (_other_size, _update_before_it_is_back, _branches_exchanged)),
    ],
)
def test_a_fault_around_a_variable_in_a_file_is_seen(fault: Any, tmp_path: Path) -> None:
    graph, damaged = _sent_graph(tmp_path)
    original = Original(graph, Purity(graph, stateful_op_types(graph)))
    assert original.compare(damaged, Purity(damaged, stateful_op_types(damaged))).equal
    fault(damaged)
    assert not original.compare(damaged, Purity(damaged, stateful_op_types(damaged))).equal


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
for options in ({"allow": ("transpose",)}, {"offload_to": "CPU:1"}, {"allow": ("recompute", "segment", "offload")}):
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
def test_the_measured_peak_is_the_planned_one(tmp_path: Path) -> None:
    step, x = products()
    fast = in_files(step, 0.4, x, tmp_path)
    assert fast.plan.offloaded_bytes
    assert gw.measure(fast, x, time=False).peak_bytes == pytest.approx(fast.plan.peak_bytes, rel=0.03)
    adam, y, _ = with_adam(width=1448)
    sent = in_files(adam, 0.75, y, tmp_path)
    assert sent.plan.offloaded_bytes
    measured = gw.measure(sent, y, time=False)
    assert measured.peak_bytes == pytest.approx(sent.plan.peak_bytes, rel=0.03)
    assert measured.resident_bytes < gw.measure(adam, y, time=False).resident_bytes


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
