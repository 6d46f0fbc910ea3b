"""The step of the tests beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def chain(
    layers: int = 7, *, width: int = 32, scale: int = 6, batch: int = 512, dtype: str = "float32", compiled: bool = True
) -> tuple[Any, Any, list[Any]]:
    """A chain of dense layers with a plain update: step, input, weights."""
    rng = np.random.default_rng(0)
    weights = [tf.Variable(rng.normal(size=(width, width)) / scale, dtype=dtype) for _ in range(layers)]

    @tf.function(jit_compile=compiled or None)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for w in weights:
                y = tf.tanh(y @ w)
            loss = tf.reduce_mean(y * y)
        for w, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(tf.cast(0.1, w.dtype) * gradient)
        return loss

    return step, tf.constant(rng.normal(size=(batch, width)), dtype), weights
