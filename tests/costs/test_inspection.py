"""An inspection's rows add up to its totals, per node, per layer and per op type."""

from __future__ import annotations

import math

import pytest

tf = pytest.importorskip("tensorflow")
import graphwright as gw  # noqa: E402


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


def test_the_optimizer_is_one_layer(inspection: gw.Inspection) -> None:
    """TensorFlow opens a scope around the operands of each operator; those are no layers."""
    (optimizer,) = [row for row in inspection.layers if row.layer.startswith("adam")]
    assert "/" not in optimizer.layer
    assert optimizer.optimizer_flops > 0.9 * inspection.optimizer_flops


def test_each_layer_that_is_live_has_a_row(inspection: gw.Inspection) -> None:
    assert {buffer.layer for buffer in inspection.timeline.live_at_peak} <= {row.layer for row in inspection.layers}
    assert {cost.layer for cost in inspection.nodes.values() if cost.flops} <= {row.layer for row in inspection.layers}


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
