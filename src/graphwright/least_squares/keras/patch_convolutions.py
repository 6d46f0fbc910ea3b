"""Convolutions whose kernel gradients are products of patches: one batched product for many samples.

TensorFlow vectorizes the kernel gradient of a convolution over samples by a loop over them. The gradient is also the product of the input's
patches, transposed, with the output's gradient (K. Chellapilla, S. Puri, P. Simard: High performance convolutional neural networks for
document processing, 2006), and products vectorize well.
"""

import importlib
import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from graphwright.source.private_keras import all_layers

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")


@contextmanager
def convolutions_by_patches(model: Any) -> Generator[None]:
    """While the context is open, calls of the model's plain convolutions have kernel gradients by patches."""
    plain = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
    layers = [
        layer
        for layer in all_layers(model)
        if type(layer) in plain and layer.data_format == "channels_last" and layer.groups == 1 and "convolution_op" not in vars(layer)
    ]
    for layer in layers:
        object.__setattr__(layer, "convolution_op", _PatchConvolution(layer))
    try:
        yield
    finally:
        for layer in layers:
            object.__delattr__(layer, "convolution_op")


class _PatchConvolution:
    def __init__(self, layer: Any) -> None:
        padding = "valid" if layer.padding == "causal" else layer.padding  # Keras pads causal inputs itself
        self._options = {"strides": layer.strides, "padding": padding.upper(), "dilations": layer.dilation_rate}

    def __call__(self, inputs: Any, kernel: Any) -> Any:
        return tf.custom_gradient(self._with_gradient)(inputs, kernel)

    def _with_gradient(self, inputs: Any, kernel: Any) -> tuple[Any, Any]:
        def gradient(upstream: Any) -> tuple[Any, Any]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(inputs)
                outputs = tf.nn.convolution(inputs, kernel, **self._options)
            of_inputs = tape.gradient(outputs, inputs, output_gradients=upstream)
            *window, channels, filters = kernel.shape
            size = math.prod(window) * channels
            picks = tf.reshape(tf.eye(size, dtype=kernel.dtype), [*window, channels, size])
            patches = tf.nn.convolution(inputs, picks, **self._options)
            of_kernel = tf.matmul(tf.reshape(patches, [-1, size]), tf.reshape(upstream, [-1, filters]), transpose_a=True)
            return of_inputs, tf.reshape(of_kernel, kernel.shape)

        return tf.nn.convolution(inputs, kernel, **self._options), gradient
