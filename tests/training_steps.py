"""A training step around a function of one variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def squares_step(forward: Callable[[Any, Any], Any], kernel: Any) -> Any:
    """A step that subtracts from a variable the gradient of the sum of squares of `forward(x, kernel)`, and returns that sum."""

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward(x, kernel) ** 2)
        kernel.assign_sub(tape.gradient(loss, kernel))
        return loss

    return step
