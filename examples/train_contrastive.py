"""How do I train with a contrastive loss over a batch whose activations do not fit?

Two encoders learn with InfoNCE which right half of a handwritten digit belongs to which left half. All other right halves of the batch
are wrong answers, so a larger batch asks a harder question and gives better representations. `GradientCache` computes the exact
gradients of the whole batch in the memory of a chunk.
Needs `pip install "graphwright[cpu,demo]"`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import graphwright as gw

BATCH, CHUNK = 1024, 32


def make_encoder() -> Any:
    layers: list[Any] = []
    for width in (32, 32, 64, 64):
        layers += [keras.layers.Conv2D(width, 3, padding="same", activation="gelu"), keras.layers.LayerNormalization()]
    head = [keras.layers.Flatten(), keras.layers.Dropout(0.2), keras.layers.Dense(32), keras.layers.UnitNormalization()]
    return keras.Sequential([keras.Input((8, 4, 1)), *layers, *head])


def info_nce(left: Any, right: Any) -> Any:
    """Cross-entropy of the right answer among all right halves of the batch, at temperature 0.1."""
    scores = tf.matmul(left, right, transpose_b=True) / 0.1
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(scores)[0]), scores))


def found_at_once(left: Any, right: Any) -> float:
    """Return the share of left halves whose nearest right half is their own."""
    return float(np.mean(np.argmax(left @ right.T, 1) == np.arange(len(left))))


def main() -> None:
    keras.utils.set_random_seed(0)
    images = (load_digits().images[..., np.newaxis] / 16.0).astype(np.float32)
    halves = images[:, :, :4], images[:, :, 4:]
    train, test = tuple(half[:1536] for half in halves), tuple(half[1536:] for half in halves)

    encoders = make_encoder(), make_encoder()
    cache = gw.GradientCache(encoders, info_nce, CHUNK)

    @tf.function
    def plain(left: Any, right: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = info_nce(encoders[0](left, training=True), encoders[1](right, training=True))
        return loss, tape.gradient(loss, [v for encoder in encoders for v in encoder.trainable_variables])

    @tf.function
    def cached(left: Any, right: Any) -> Any:
        found = cache((left, right))
        return found.loss, found.gradients

    whole = tuple(tf.constant(half[:BATCH]) for half in train)
    for name, step in (("plain", plain), (f"in chunks of {CHUNK}", cached)):
        peak = gw.measure(step, whole, steps=1, time=False).peak_bytes
        print(f"{name}: a batch of {BATCH} takes {peak / 2**20:.0f} MiB")

    model = cache.model()
    model.compile(keras.optimizers.Adam(2e-3), jit_compile=False)
    print(f"of {len(test[0])} left halves, found at once before: {found_at_once(*model.predict(test, verbose=0)):.0%}")
    model.fit(train, batch_size=BATCH // 2, epochs=12, verbose=0)
    print(f"and after twelve epochs: {found_at_once(*model.predict(test, verbose=0)):.0%}")


if __name__ == "__main__":
    main()
