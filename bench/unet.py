"""The U-Net of the paper, as a user would write it.

Convolutions are not padded, so each level of resolution loses four pixels per axis, and the answer covers the middle of the image only:
572 in, 388 out with four poolings.

Source: O. Ronneberger, P. Fischer, T. Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015, figure 1.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from graphwright.errors import ArgumentError

_POOLINGS = 4
_LEVEL_LOSS = 4  # pixels per axis that two unpadded 3x3 convolutions take away


def unet_output_size(input_size: int, poolings: int = _POOLINGS) -> int:
    """Return the width and height, in pixels, of the answer of the unpadded U-Net.

    >>> unet_output_size(572), unet_output_size(188)
    (388, 4)
    """
    sizes = [input_size]
    for _ in range(poolings):
        sizes.append((sizes[-1] - _LEVEL_LOSS) // 2)
    output_size = sizes[-1] - _LEVEL_LOSS
    for _ in range(poolings):
        output_size = 2 * output_size - _LEVEL_LOSS
    if output_size <= 0 or any(size % 2 for size in sizes[:-1]):
        raise ArgumentError(
            f"an image of {input_size}x{input_size} cannot be halved {poolings} times after unpadded convolutions",
            argument="input_size",
            remedy=f"take 572, or a larger size that differs from it by a multiple of {2**poolings}",
        )
    return output_size


def build_unet(*, input_size: int, filters: int, poolings: int = _POOLINGS, dropout: float = 0.5, seed: int = 0) -> Any:
    """Return the unpadded U-Net as a Keras model with logits of two classes, for images of one channel.

    Layers are called `down1_conv1`, `bottom_conv2`, `up3_up`, ...; level 1 has the full resolution. The paper's model has images of 572
    pixels, 64 filters and 31,030,658 trainable parameters.

    Args:
        filters: filters of the first level; every level below has twice as many.
        dropout: rate of the two dropout layers at the end of the way down; 0 leaves them out.
        seed: seed of the initial weights and of the dropout masks.
    """
    unet_output_size(input_size, poolings)
    seeds = iter(range(seed * 1000, seed * 1000 + 1000))

    def convolve(x: Any, width: int, name: str) -> Any:
        init = keras.initializers.HeNormal(seed=next(seeds))
        return layers.Conv2D(width, 3, activation="relu", kernel_initializer=init, name=name)(x)

    image: Any = layers.Input((input_size, input_size, 1), name="image")
    x: Any = image
    skips: list[Any] = []
    for level in range(1, poolings + 2):
        scope = f"down{level}" if level <= poolings else "bottom"
        width = filters * 2 ** (level - 1)
        x = convolve(x, width, f"{scope}_conv1")
        x = convolve(x, width, f"{scope}_conv2")
        if dropout and level >= poolings:
            x = layers.Dropout(dropout, seed=next(seeds), name=f"{scope}_dropout")(x)
        if level <= poolings:
            skips.append(x)
            x = layers.MaxPooling2D(2, name=f"{scope}_pool")(x)
    for level in range(poolings, 0, -1):
        width = filters * 2 ** (level - 1)
        init = keras.initializers.HeNormal(seed=next(seeds))
        x = layers.Conv2DTranspose(width, 2, strides=2, activation="relu", kernel_initializer=init, name=f"up{level}_up")(x)
        skip = skips[level - 1]
        margin = (skip.shape[1] - x.shape[1]) // 2
        cropped = layers.Cropping2D(margin, name=f"up{level}_crop")(skip)
        x = layers.Concatenate(name=f"up{level}_concat")([cropped, x])
        x = convolve(x, width, f"up{level}_conv1")
        x = convolve(x, width, f"up{level}_conv2")
    logits = layers.Conv2D(2, 1, kernel_initializer=keras.initializers.HeNormal(seed=next(seeds)), name="logits")(x)
    return keras.Model(image, logits, name="unet")
