"""Strategies under which there is no step to plan."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.step.keras_model import spans_workers


def _model_under(kind: Any) -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model._distribute_strategy = object.__new__(kind)  # neither can be made here: they need a TPU, or servers
    return model


@pytest.mark.parametrize("kind", [tf.distribute.TPUStrategy, tf.distribute.ParameterServerStrategy])
def test_strategies_without_a_joint_graph_are_refused(kind: Any) -> None:
    model = _model_under(kind)
    with pytest.raises(gw.UnsupportedError, match=kind.__name__.removesuffix("V2")):
        gw.optimize_memory(model, 0.5)


def test_a_strategy_for_workers_in_one_process_is_like_one_for_replicas() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    assert not spans_workers(strategy)
    assert not spans_workers(tf.distribute.OneDeviceStrategy("CPU:0"))
    assert not spans_workers(None)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    keras_function = model.make_train_function
    assert gw.train.repair_for_workers(model).make_train_function == keras_function
    with pytest.raises(gw.UnsupportedError, match="ParameterServer"):
        gw.train.repair_for_workers(_model_under(tf.distribute.ParameterServerStrategy))


def test_a_strategy_of_one_device_is_like_none() -> None:
    keras.utils.set_random_seed(0)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = keras.Sequential([keras.Input((64,)), *[keras.layers.Dense(64, "tanh") for _ in range(6)], keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=False)  # a longer step may overshoot
    x, y = tf.ones((256, 64)), tf.ones((256, 1))
    gw.optimize_memory(model, 0.8, cache_dir=None)
    first, second = (model.train_on_batch(x, y) for _ in range(2))
    assert second < first
    assert model.memory_plan().verification.startswith("equal by structure")
    assert model.memory_plan().peak_bytes <= model.memory_plan().budget_bytes
    assert model.memory_plan().device_peaks == {"one device": model.memory_plan().peak_bytes}
