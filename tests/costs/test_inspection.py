"""An inspection's rows add up to its totals, per node, per layer and per op type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
import graphwright as gw  # noqa: E402
from graphwright.analyze.storages import SMALL_BYTES  # noqa: E402


@pytest.fixture(scope="module")
def inspection() -> gw.Inspection:
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((16, 16, 3)), layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(), layers.Flatten(), layers.Dense(4)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return gw.inspect(model, batch=4)


def test_rows_add_up(inspection: gw.Inspection) -> None:
    total = inspection.forward_flops + inspection.backward_flops + inspection.optimizer_flops
    assert inspection.optimizer_flops > 0
    assert inspection.backward_flops > 0
    for rows in (inspection.layers, inspection.op_types, inspection.nodes.values()):
        assert sum(row.flops for row in rows) == pytest.approx(total)
        assert sum(row.bytes_moved for row in rows) == pytest.approx(inspection.bytes_moved)
        assert all(row.estimated_time_s >= 0 for row in rows)
    assert inspection.graph is not None
    assert set(inspection.nodes) == {node.name for node in inspection.graph}
    assert sum(row.estimated_time_s for row in inspection.layers) == pytest.approx(sum(r.estimated_time_s for r in inspection.op_types))


def test_what_is_kept_for_the_backward_pass_is_there_when_it_begins() -> None:
    """A batch norm's gradient subtracts the mean anew, from nothing of the backward pass: made when that runs, it is not kept."""
    import keras

    layers = keras.layers
    blocks = [layer for _ in range(4) for layer in (layers.Conv2D(16, 3, padding="same"), layers.BatchNormalization(), layers.ReLU())]
    model = keras.Sequential([keras.Input((32, 32, 8)), *blocks, layers.GlobalAveragePooling2D(), layers.Dense(4)])
    model.compile("sgd", "mse")
    found = gw.inspect(model, batch=16)
    assert sum(row.residual_bytes for row in found.layers) == pytest.approx(max(found.timeline.bytes_by_role["residuals"]), rel=0.001)


def test_each_layer_hands_on_what_keras_says(inspection: gw.Inspection) -> None:
    shapes = {name.rstrip("_0123456789"): shape for name, shape in inspection.output_shapes.items()}
    expected = {"conv2d": (4, 14, 14, 8), "batch_normalization": (4, 14, 14, 8), "flatten": (4, 1568), "dense": (4, 4)}
    assert {name: shapes[name] for name in expected} == expected
    made = {row.layer.rstrip("_0123456789"): row.activation_bytes for row in inspection.layers}
    assert made["conv2d"] >= 4 * 14 * 14 * 8 * 4
    assert "layer" in inspection.text("all").split("\n\n")[1], "the table comes first"


def test_the_optimizer_is_one_layer(inspection: gw.Inspection) -> None:
    """TensorFlow opens a scope around the operands of each operator; those are no layers."""
    (optimizer,) = [row for row in inspection.layers if row.layer.startswith("adam")]
    assert "/" not in optimizer.layer
    assert optimizer.optimizer_flops > 0.9 * inspection.optimizer_flops


@pytest.mark.slow
def test_a_profile_brings_times_and_roofs() -> None:
    @tf.function
    def step(a, b):
        with tf.name_scope("net/dense"):
            return tf.reduce_sum(tf.nn.relu(a @ b))

    found = gw.inspect(step, feeds={"a": (128, 256), "b": (256, 64)}, profile=True)
    assert found.profile is not None
    assert found.roofs is not None
    assert found.roofs.how.startswith("measured")
    (dense,) = [row for row in found.layers if row.layer == "net/dense"]
    assert dense.measured_time_s > 0
    assert any(math.isfinite(cost.measured_time_s) for cost in found.nodes.values())


def keras_model(**options):
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model, (np.zeros((32, 8), np.float32), np.zeros(32, np.int32))


def test_data_of_a_keras_model():
    model, (x, y) = keras_model()
    expected = gw.inspect(model, batch=32).peak_bytes
    for data in ((x, y), [x, y], ((x, y),), (x, y, np.ones(32, np.float32))):
        found = gw.inspect(model, inputs=data).peak_bytes
        assert found == pytest.approx(expected, abs=SMALL_BYTES)
    by_batch = gw.inspect(model, batch=32, mode="infer").peak_bytes
    assert gw.inspect(model, inputs=x, mode="infer").peak_bytes == pytest.approx(by_batch, rel=0.01)
    assert gw.count_flops(model, inputs=(x, y)).total == gw.count_flops(model, batch=32).total
    with pytest.raises(gw.ArgumentError, match=r"cannot be traced with these inputs: .*incompatible"):
        gw.inspect(model, inputs=(x[:, :3], y))
    with pytest.raises(gw.ArgumentError, match="its loss needs targets"):
        gw.optimize_memory(model, 0.9, inputs=x)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_measured_with_data_of_a_keras_model(jit_compile):
    model, data = keras_model(jit_compile=jit_compile)
    found = gw.inspect(model, inputs=data, measure=True)
    assert found.measured is not None
    assert found.measured.time_s > 0
    assert 32 * 8 * 4 + 90 * 3 * 4 <= found.measured.resident_bytes <= found.measured.peak_bytes


def test_buffers_say_what_they_are_where_they_come_from_and_steps_which_phase_they_are_in() -> None:
    w = tf.Variable(tf.ones((64, 64)))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(x @ w))  # the line below the tape
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    timeline = gw.inspect(step, inputs=tf.ones((512, 64))).timeline
    tanh = next(life.buffer for life in timeline.lifetimes if life.buffer.op_type == "Tanh")
    assert tanh.type == "float32[512,64]"
    line = step.python_function.__code__.co_firstlineno + 3
    assert tanh.source == f"tests/costs/test_inspection.py:{line} step"
    weights = next(life.buffer for life in timeline.lifetimes if life.buffer.role == "weights")
    assert (weights.type, weights.source) == ("float32[64,64]", "")
    optimizer = [label for label, is_optimizer in zip(timeline.labels, timeline.is_optimizer, strict=True) if is_optimizer]
    assert optimizer
    assert timeline.is_backward[timeline.labels.index(optimizer[0])]
    assert not timeline.is_optimizer[timeline.labels.index(tanh.name.removesuffix(":0"))]


def test_output_shapes_in_inference_are_those_of_the_model() -> None:
    import keras

    x = keras.Input((8, 8, 3))
    h = keras.layers.BatchNormalization(name="inner")(keras.layers.Conv2D(4, 3, name="conv")(x))
    model = keras.Model(x, keras.layers.BatchNormalization(name="last")(keras.layers.ReLU(name="relu")(h)))
    found = gw.inspect(model, batch=2, mode="infer").output_shapes
    for layer in model.layers[1:]:
        assert found[layer.name] == (2, *layer.output.shape[1:])


HERE = "test_inspection.py"


def _plain(x: Any) -> Any:
    return tf.reduce_sum(tf.tanh(x @ tf.ones((64, 64))))


def _scoped(x: Any) -> Any:
    with tf.name_scope("encoder"):
        return tf.reduce_sum(tf.tanh(x @ tf.ones((64, 64))))


def _twice(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.tanh(x)
        loss = tf.reduce_sum(y * tf.sin(y) + tf.cos(y))
    return tape.gradient(loss, x)


@pytest.mark.parametrize(
    ("function", "layers"),
    [
        (_plain, {"test_inspection.py"}),
        (_scoped, {"encoder"}),
        (_twice, {"test_inspection.py"}),
    ],
)
def test_lines_of_code_stand_for_layers_where_there_are_none(function: Any, layers: set[str]) -> None:
    report = gw.inspect(tf.function(function, autograph=False), feeds={"x": (512, 64)}, order="traced")
    owners = {buffer.layer.partition(":")[0].rpartition("/")[2] for buffer in report.timeline.live_at_peak if buffer.role != "inputs"}
    assert owners <= layers | {""}
    assert owners & layers
    if function is _twice:
        with pytest.raises(gw.InfeasibleError, match=r"\(.*test_inspection\.py:\d+\)"):
            gw.optimize_memory(tf.function(function, autograph=False), 1024, inputs=tf.ones((512, 64)), cache_dir=None)
