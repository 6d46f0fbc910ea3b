"""Memory-saving gradients, reversible layers and Levenberg-Marquardt on two replicas: `other_tools.py '{"checks": ["gradients", ...]}'`."""

from __future__ import annotations

import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.random((64, 16), np.float32)
_Y = np.sin(_X.sum(axis=1, keepdims=True))


def _strategy() -> Any:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _batch(strategy: Any) -> Any:
    data = tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(len(_X))
    return next(iter(strategy.experimental_distribute_dataset(data)))


def _gradients_of_replicas(strategy: Any, gradients_of: Any) -> list[Any]:
    """Gradients summed over replicas, as arrays."""

    @tf.function
    def step(x: Any, y: Any) -> Any:
        found = strategy.run(gradients_of, args=(x, y))
        return [strategy.reduce("SUM", gradient, axis=None) for gradient in found]

    return [gradient.numpy() for gradient in step(*_batch(strategy))]


def _largest_difference(ours: list[Any], theirs: list[Any]) -> float:
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in zip(ours, theirs, strict=True))


def _deep_model(strategy: Any) -> Any:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(16, "tanh") for _ in range(8)]
        return keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])


def gradients() -> dict[str, Any]:
    """`gw.gradients` in what `strategy.run` calls."""
    strategy = _strategy()
    model = _deep_model(strategy)
    kernels = [v.value for v in model.trainable_variables]

    def take(function: Any, **options: Any) -> Any:
        def replica(x: Any, y: Any) -> Any:
            loss = tf.reduce_sum((model(x) - y) ** 2)
            return function(loss, [kernel._get_on_device_or_primary() for kernel in kernels], **options)

        return replica

    plain = _gradients_of_replicas(strategy, take(tf.gradients))
    return {"difference": _largest_difference(_gradients_of_replicas(strategy, take(gw.gradients, checkpoints="memory")), plain)}


def checkpointed() -> dict[str, Any]:
    """`gw.checkpointed` under a gradient tape in what `strategy.run` calls."""
    strategy = _strategy()
    model = _deep_model(strategy)
    thrifty = gw.checkpointed(lambda x: model(x, training=True), checkpoints="inputs")

    def take(function: Any) -> Any:
        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((function(x) - y) ** 2)
            return tape.gradient(loss, model.trainable_variables)

        return replica

    plain = _gradients_of_replicas(strategy, take(lambda x: model(x, training=True)))
    return {"difference": _largest_difference(_gradients_of_replicas(strategy, take(thrifty)), plain)}


def _fit(strategy: Any, make: Any, **options: Any) -> list[float]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make()
    return model.fit(_X, _Y, batch_size=32, epochs=3, shuffle=False, verbose=0, **options).history["loss"]


def reversible() -> dict[str, Any]:
    """`fit` of reversible layers: on two replicas as on one."""

    def make() -> Any:
        blocks = [gw.ReversibleBlock(keras.layers.Dense(8, "tanh"), keras.layers.Dense(8, "tanh")) for _ in range(6)]
        model = keras.Sequential([keras.Input((16,)), gw.ReversibleSequence(blocks), keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        return model

    return {"together": _fit(_strategy(), make), "alone": _fit(tf.distribute.get_strategy(), make)}


def levenberg_marquardt() -> dict[str, Any]:
    """`fit` of an `LMModel`: the sums over samples are reduced over replicas, so the steps are those of one device."""

    keras.config.set_dtype_policy("float64")  # in float32 the last bits decide which steps are taken

    def make() -> Any:
        model = gw.train.LMModel(keras.Sequential([keras.Input((16,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)]))
        model.compile("mse")
        return model

    try:
        return {"together": _fit(_strategy(), make), "alone": _fit(tf.distribute.get_strategy(), make)}
    finally:
        keras.config.set_dtype_policy("float32")


def main(checks: list[str]) -> None:
    """Run the checks one after the other."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    print(json.dumps({name: globals()[name]() for name in checks}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["checks"])
