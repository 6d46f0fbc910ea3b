"""Batch normalization by TensorFlow's fused kernel."""

# What a Keras layer inherits has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
from typing import Any

from graphwright.source.private_keras import without_autocast

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

_FUSED_DTYPES = frozenset({"float16", "bfloat16", "float32"})


@keras.saving.register_keras_serializable(package="graphwright")
class FusedBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` of images by one kernel forward and one backward.

    Keras composes it of a dozen element-wise operations, which are slower and store more. Weights, moving statistics and results equal
    Keras'. The layer falls back to Keras where the kernel does not apply: float64, other axes, masks, synchronized statistics.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(3.0, 2.0, (4, 5, 5, 2)).astype(np.float32)
    >>> ours, theirs = FusedBatchNormalization(), keras.layers.BatchNormalization()
    >>> bool(np.allclose(ours(x, training=True), theirs(x, training=True), atol=1e-5))
    True
    >>> bool(np.allclose(ours.moving_variance, theirs.moving_variance, atol=1e-5))
    True
    """

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if not self._is_fused(inputs, mask) or not (training and self.trainable):
            return super().call(inputs, training=training, mask=mask)
        with without_autocast():
            gamma, beta = tf.convert_to_tensor(self.gamma.value), tf.convert_to_tensor(self.beta.value)
            moving_mean, moving_variance = tf.convert_to_tensor(self.moving_mean.value), tf.convert_to_tensor(self.moving_variance.value)
        nothing = tf.zeros([0], tf.float32)
        result, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs, scale=gamma, offset=beta, mean=nothing, variance=nothing, epsilon=self.epsilon, is_training=True
        )
        # The kernel returns the unbiased variance; Keras averages the biased variance.
        count = tf.cast(tf.size(inputs) // tf.shape(inputs)[-1], tf.float32)
        variance *= (count - 1.0) / count
        self.moving_mean.assign(moving_mean * self.momentum + mean * (1.0 - self.momentum))
        self.moving_variance.assign(moving_variance * self.momentum + variance * (1.0 - self.momentum))
        return result

    def _is_fused(self, inputs: Any, mask: Any) -> bool:
        images = len(inputs.shape) == 4 and self.axis in (-1, 3) and mask is None
        plain = self.center and self.scale and not self.synchronized and not self.renorm
        dtypes = keras.backend.standardize_dtype(inputs.dtype) in _FUSED_DTYPES and self.variable_dtype == "float32"
        return images and plain and dtypes
