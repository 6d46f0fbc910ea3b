"""How do I fit my own training step into a memory budget, and how do I know that its results are the same?

The step is a plain `tf.function` with a tape. `optimize_memory` returns a callable with the same signature;
`verify` compares the two, `measure` runs each in a fresh process. Needs `pip install "graphwright[cpu]"`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw


def make_step(width: int = 128, depth: int = 12) -> Any:
    """One step of a deep regression network with dropout."""
    layers: list[Any] = []
    for index in range(depth):
        layers += [keras.layers.Dense(width, activation="gelu"), keras.layers.Dropout(0.1, seed=index)]
    model = keras.Sequential([keras.layers.Input((width,)), *layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


def main() -> None:
    random = np.random.default_rng(0)
    inputs = (
        tf.constant(random.normal(size=(1024, 128)).astype(np.float32)),
        tf.constant(random.normal(size=(1024, 1)).astype(np.float32)),
    )
    train_step = make_step()

    fast = gw.optimize_memory(train_step, budget=0.5, inputs=inputs)
    print(fast.plan)
    print(gw.verify(train_step, fast, inputs, steps=3))
    for name, step in (("plain", train_step), ("optimized", fast)):
        measured = gw.measure(step, inputs)
        print(f"{name}: {measured.peak_bytes / 2**20:.1f} MiB, {1000 * measured.time_s:.0f} ms a step")
    for _ in range(3):
        print("loss:", float(fast(*inputs)))


if __name__ == "__main__":
    main()
