"""The demo's model and training step: a U-Net without padding, trained with Adam on made-up images, discs on a noisy background.

Source: O. Ronneberger, P. Fischer, T. Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015, figure 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphwright.errors import ArgumentError
from graphwright.source.tensorflow_import import import_tensorflow

_POOLINGS = 4
_SMALLEST_SIZE = 188


class Demo(NamedTuple):
    """A training step, tensors to call it with, and a sentence about them."""

    step: Any
    inputs: tuple[Any, ...]
    description: str


def build_unet(input_size: int, filters: int) -> Any:
    """Return a Keras model with logits of two classes for images of one channel: 572 pixels in, 388 out.

    Args:
        filters: filters of the first level; every level below has twice as many. The paper has 64, and 31,030,658 parameters.
    """
    if input_size < _SMALLEST_SIZE or (input_size - _SMALLEST_SIZE) % 2**_POOLINGS:
        raise ArgumentError(
            f"an image of {input_size}x{input_size} cannot be halved {_POOLINGS} times after unpadded convolutions",
            argument="input_size",
            remedy=f"take 572, or another size from {_SMALLEST_SIZE} on that differs from it by a multiple of {2**_POOLINGS}",
        )
    keras = import_tensorflow().keras
    layers = keras.layers

    def convolve(x: Any, level: int, scope: str) -> Any:
        for k in (1, 2):
            x = layers.Conv2D(filters << level, 3, activation="relu", kernel_initializer="he_normal", name=f"{scope}_conv{k}")(x)
        return x

    x: Any = layers.Input((input_size, input_size, 1), name="image")
    image, skips = x, list[Any]()
    for level in range(_POOLINGS):
        x = convolve(x, level, f"down{level + 1}")
        skips.append(layers.Dropout(0.5, name="down_dropout")(x) if level == _POOLINGS - 1 else x)
        x = layers.MaxPooling2D(2, name=f"down{level + 1}_pool")(skips[-1])
    x = layers.Dropout(0.5, name="bottom_dropout")(convolve(x, _POOLINGS, "bottom"))
    for level in reversed(range(_POOLINGS)):
        scope = f"up{level + 1}"
        x = layers.Conv2DTranspose(filters << level, 2, strides=2, activation="relu", name=f"{scope}_up")(x)
        margin = (skips[level].shape[1] - x.shape[1]) // 2
        x = layers.Concatenate(name=f"{scope}_concat")([layers.Cropping2D(margin, name=f"{scope}_crop")(skips[level]), x])
        x = convolve(x, level, scope)
    return keras.Model(image, layers.Conv2D(2, 1, name="logits")(x), name="unet")


def make_demo(*, input_size: int, filters: int, batch: int) -> Demo:
    """Return a U-Net's training step that learns to find discs in noise."""
    tf = import_tensorflow()
    model = build_unet(input_size, filters)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam(learning_rate=1e-4)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    images, labels = _discs(batch, input_size, model.output_shape[1])
    description = f"U-Net, {model.count_params():,} parameters, Adam; {batch} made-up images of {input_size}x{input_size} pixels"
    return Demo(train_step, (tf.constant(images), tf.constant(labels)), description)


def _discs(batch: int, input_size: int, output_size: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:input_size, :input_size]
    centers = rng.integers(input_size // 4, 3 * input_size // 4, (batch, 2, 1, 1))
    inside: NDArray[np.bool_] = (rows - centers[:, 0]) ** 2 + (columns - centers[:, 1]) ** 2 < (input_size / 5) ** 2
    images = inside.astype(np.float32) + rng.normal(0.0, 0.5, inside.shape).astype(np.float32)
    middle = slice((input_size - output_size) // 2, (input_size + output_size) // 2)
    return images[..., None], inside[:, middle, middle].astype(np.int32)
