"""The loss curve of each training tool: `curves.py '{"on": "alone" | "replicas" | "workers", ...}'` prints them as JSON.

Alone, that is on one device, TensorFlow and Keras train the same models without the tools (but for Levenberg-Marquardt, which
they lack). All in float64, so that only the order of sums is left to differ.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.random((1280, 16))
_Y = np.sin(_X.sum(axis=1, keepdims=True))
_BATCH = 256


class Curves:
    """Trains under a strategy; with one for a single device, without the tools."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.alone = strategy is tf.distribute.get_strategy()

    def batches(self) -> Any:
        """The data in global batches, of which each process takes its part."""
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(_BATCH).with_options(options)

    def deep_model(self) -> Any:
        """Eight layers."""
        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            layers = [keras.layers.Dense(32, "tanh") for _ in range(8)]
            return keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])

    def reversible_model(self) -> Any:
        """Reversible blocks, or the same layers trained plainly."""
        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            blocks = [gw.ReversibleBlock(keras.layers.Dense(8, "tanh"), keras.layers.Dense(8, "tanh")) for _ in range(6)]
            trunk = gw.ReversibleSequence(blocks)
            trunk.reconstructs = not self.alone
            return keras.Sequential([keras.Input((16,)), trunk, keras.layers.Dense(1)])

    def compiled(self, model: Any) -> Any:
        """A model with optimizer and loss."""
        with self.strategy.scope():
            model.compile(keras.optimizers.Adam(1e-2), "mse", jit_compile=False)
        return model

    def fit(self, model: Any) -> list[float]:
        """The loss of each batch of two epochs."""
        losses: list[float] = []
        each = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"])))
        model.fit(self.batches(), epochs=2, verbose=0, callbacks=[each])
        return losses

    def loop(self, model: Any, gradients_of: Callable[[Any, Any], Any], *, jit_compile: bool = False) -> list[float]:
        """The loss of each batch of two epochs of a loop of one's own; `gradients_of` a replica's samples gives its loss and gradients."""
        variables = model.trainable_variables
        with self.strategy.scope():
            optimizer = keras.optimizers.Adam(1e-2)
            optimizer.build(variables)
        taken = tf.function(gradients_of, autograph=False, jit_compile=True) if jit_compile else gradients_of

        def replica(x: Any, y: Any) -> Any:
            loss, gradients = taken(x, y)
            optimizer.apply(gradients, variables)
            return loss

        @tf.function
        def step(x: Any, y: Any) -> Any:
            return self.strategy.reduce("SUM", self.strategy.run(replica, args=(x, y)), axis=None)

        data = self.strategy.experimental_distribute_dataset(self.batches())
        return [float(step(x, y)) for _ in range(2) for x, y in data]


def _loss(output: Any, y: Any) -> Any:
    return tf.reduce_sum((output - y) ** 2) / _BATCH


def _taped(model: Any, function: Any) -> Callable[[Any, Any], Any]:
    def gradients_of(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _loss(function(x), y)
        return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])

    return gradients_of


def optimize_memory(curves: Curves) -> dict[str, Any]:
    """`fit` in a budget."""
    model = curves.compiled(curves.deep_model())
    if curves.alone:
        return {"losses": curves.fit(model)}
    gw.optimize_memory(model, 0.85, cache_dir=None)
    losses = curves.fit(model)
    plan = model.memory_plan()
    return {"losses": losses, "planned": plan.peak_bytes <= plan.budget_bytes < plan.original_peak_bytes}


def gradients(curves: Curves, *, jit_compile: bool = False) -> dict[str, Any]:
    """`gw.gradients` in what `strategy.run` calls."""
    model = curves.deep_model()

    def gradients_of(x: Any, y: Any) -> Any:
        loss = _loss(model(x, training=True), y)
        values = [v.value for v in model.trainable_variables]
        return loss, tf.gradients(loss, values) if curves.alone else gw.gradients(loss, values, checkpoints="memory")

    return {"losses": curves.loop(model, gradients_of, jit_compile=jit_compile)}


def checkpointed(curves: Curves, *, jit_compile: bool = False) -> dict[str, Any]:
    """`gw.checkpointed` under a tape."""
    model = curves.deep_model()

    def forward(x: Any) -> Any:
        return model(x, training=True)

    thrifty = forward if curves.alone else gw.checkpointed(forward, checkpoints="memory")
    losses = curves.loop(model, _taped(model, thrifty), jit_compile=jit_compile)
    return {"losses": losses, "planned": curves.alone or bool(thrifty.plans)}


def reversible(curves: Curves, *, jit_compile: bool = False) -> dict[str, Any]:
    """Reversible layers in a loop of one's own."""
    model = curves.reversible_model()
    return {"losses": curves.loop(model, _taped(model, lambda x: model(x, training=True)), jit_compile=jit_compile)}


def reversible_fit(curves: Curves) -> dict[str, Any]:
    """Reversible layers in `fit`."""
    return {"losses": curves.fit(gw.train.repair_for_workers(curves.compiled(curves.reversible_model())))}


def levenberg_marquardt(curves: Curves, *, jit_compile: bool = False) -> dict[str, Any]:
    """`fit` of an `LMModel`: Gram matrices, reduced over replicas."""
    keras.utils.set_random_seed(1)
    with curves.strategy.scope():
        model = gw.train.LMModel(keras.Sequential([keras.Input((16,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)]))
        model.compile("mse", method="cholesky", jit_compile=jit_compile)
    return {"losses": curves.fit(model)}


def _strategy(task: dict[str, Any]) -> Any:
    if task["on"] == "workers":
        cluster = {"worker": [f"127.0.0.1:{port}" for port in task["ports"]]}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": task["index"]}})
        return tf.distribute.MultiWorkerMirroredStrategy()
    if task["on"] == "replicas":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    return tf.distribute.get_strategy()


def main(task: dict[str, Any]) -> None:
    """Train with each tool, where there are several devices also compiled by XLA."""
    strategy = _strategy(task)  # before TensorFlow makes its first tensor
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    curves = Curves(strategy)
    tools: list[Callable[..., dict[str, Any]]] = [optimize_memory, gradients, checkpointed, reversible, reversible_fit, levenberg_marquardt]
    found = {tool.__name__: tool(curves) for tool in tools}
    if not curves.alone:
        compilable = [gradients, checkpointed, reversible, levenberg_marquardt] if task["on"] == "replicas" else [reversible]
        found |= {f"{tool.__name__} by XLA": tool(curves, jit_compile=True) for tool in compilable}
    print(json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
