"""How do I recompute some blocks of my model in the backward pass, and keep my `GradientTape`?

Each block of a network with dropout is wrapped by `gw.checkpointed`; masks are drawn once, so the gradients equal those of the
plain network. Needs `pip install "graphwright[cpu]"`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw


def make_block(width: int, seed: int) -> Any:
    """Two layers with dropout and a residual connection."""
    image = keras.Input((width,))
    hidden = keras.layers.Dense(4 * width, activation="gelu")(image)
    hidden = keras.layers.Dropout(0.1, seed=seed)(hidden)
    return keras.Model(image, keras.layers.Add()([image, keras.layers.Dense(width)(hidden)]))


def main() -> None:
    keras.utils.set_random_seed(0)
    blocks = [make_block(128, seed) for seed in range(12)]
    weights = [weight for block in blocks for weight in block.trainable_variables]
    masks = [layer.seed_generator.state for block in blocks for layer in block.layers if hasattr(layer, "seed_generator")]
    start = [mask.numpy() for mask in masks]
    x = tf.random.stateless_normal((512, 128), (1, 2))

    def step(calls: list[Any]) -> Any:
        @tf.function
        def gradients(x: Any) -> Any:
            with tf.GradientTape() as tape:
                hidden = x
                for call in calls:
                    hidden = call(hidden, training=True)
                loss = tf.reduce_mean(hidden**2)
            return tape.gradient(loss, [w.value for w in weights])

        return gradients

    plain, saving = step(blocks), step([gw.checkpointed(block, checkpoints="inputs") for block in blocks])
    found = []
    for function in (plain, saving):
        for mask, value in zip(masks, start, strict=True):
            mask.assign(value)
        found.append([g.numpy() for g in function(x)])
    difference = max(float(np.abs(a - b).max()) for a, b in zip(*found, strict=True))
    print(f"largest difference of a gradient: {difference:.1e}")
    for name, function in (("plain", plain), ("checkpointed blocks", saving)):
        print(f"{name:>20}: peak {gw.measure(function, x, time=False).peak_bytes / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
