"""`revnet`: a RevNet of Keras layers.

A *stage* works at one image size. Its first unit halves the images and is not reversible, so its inputs are stored. That costs the same
for every depth.

Source: A. Gomez, M. Ren, R. Urtasun, R. Grosse, "The Reversible Residual Network", NeurIPS 2017. Residual functions are preactivation
units (K. He et al., "Identity Mappings in Deep Residual Networks", 2016, figure 4e).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.reversible.batch_norm import FusedBatchNormalization
from graphwright.reversible.block import ReversibleBlock
from graphwright.reversible.recomputed import RecomputedLayer
from graphwright.reversible.sequence import ReversibleSequence

keras: Any = importlib.import_module("keras")


def revnet(
    units: Sequence[int],
    widths: Sequence[int],
    *,
    input_shape: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    kept_blocks: int = 0,
    name: str = "revnet",
) -> Any:
    """Build a RevNet of any size, as a functional Keras model from images to logits.

    Args:
        units: of each stage.
        widths: channels of each of the two streams in each stage.
        input_shape: height, width and channels of an image.
        classes: number of logits.
        kept_blocks: see `ReversibleSequence`.
        name: of the model.

    Raises:
        ArgumentError: stages and widths do not match.

    >>> model = revnet([1, 1], [4, 8], input_shape=(8, 8, 1), classes=3)
    >>> model.output_shape
    (None, 3)
    """
    if len(units) != len(widths) or not units or min(*units, *widths) < 1:
        raise ArgumentError(f"units={list(units)} and widths={list(widths)} were given", remedy="give one number of each for every stage")
    images = keras.Input(input_shape)
    x = _convolution(2 * widths[0])(images)
    shape = (input_shape[0], input_shape[1], widths[0])
    trunk: list[Any] = []
    for stage, (count, width) in enumerate(zip(units, widths, strict=True)):
        if stage:
            trunk.append(_smaller_images(shape, width))
            shape = (-(-shape[0] // 2), -(-shape[1] // 2), width)
        blocks = count - 1 if stage else count
        trunk += [ReversibleBlock(_preactivation(width), _preactivation(width)) for _ in range(blocks)]
    x = ReversibleSequence(trunk, kept_blocks=kept_blocks, name="trunk")(x)
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(FusedBatchNormalization()(x)))
    policy = keras.config.dtype_policy()
    logits = keras.layers.Dense(classes, dtype="float32" if policy.variable_dtype == "float32" else policy)(x)
    return keras.Model(images, logits, name=name)


def _smaller_images(shape: tuple[int, int, int], width: int) -> RecomputedLayer:
    streams = keras.Input(shape), keras.Input(shape)
    shortcuts = [_convolution(width, size=1, strides=2)(stream) for stream in streams]
    y1 = keras.layers.Add()([shortcuts[0], _preactivation(width, strides=2)(streams[1])])
    y2 = keras.layers.Add()([shortcuts[1], _preactivation(width)(y1)])
    return RecomputedLayer(keras.Model(streams, (y1, y2)))


def _preactivation(width: int, strides: int = 1) -> Any:
    layers: list[Any] = []
    for step in (strides, 1):
        layers += [FusedBatchNormalization(), keras.layers.ReLU(), _convolution(width, strides=step)]
    return keras.Sequential(layers)


def _convolution(width: int, *, size: int = 3, strides: int = 1) -> Any:
    return keras.layers.Conv2D(width, size, strides=strides, padding="same", use_bias=False, kernel_initializer="he_normal")
