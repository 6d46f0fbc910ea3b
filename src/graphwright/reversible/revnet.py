"""RevNets as in the paper.

A *stage* works at one image size. Its first unit halves the images and is not reversible, so its inputs are stored. That costs the same
for every depth.

Source: A. Gomez, M. Ren, R. Urtasun, R. Grosse, "The Reversible Residual Network", NeurIPS 2017, and its official code.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.reversible.block import ReversibleBlock
from graphwright.reversible.kept_blocks import blocks_that_fit
from graphwright.reversible.recomputed import RecomputedLayer
from graphwright.reversible.sequence import ReversibleSequence
from graphwright.reversible.stage_unit import StageUnit
from graphwright.reversible.units import BOTTLENECK_FACTOR, Preactivation, Stem, normalization

keras: Any = importlib.import_module("keras")


def revnet(
    units: Sequence[int],
    widths: Sequence[int],
    *,
    bottleneck: bool = False,
    input_shape: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    stem: int = 32,
    large_images: bool = False,
    kept_blocks: int | None = None,
    name: str = "revnet",
) -> Any:
    """Build a RevNet of any size, as a functional Keras model from images to logits.

    Args:
        units: reversible units of each stage.
        widths: channels of each of the two streams in each stage, outside of bottlenecks.
        bottleneck: use three convolutions per function instead of two.
        input_shape: height, width and channels of an image.
        classes: number of logits.
        stem: channels after the first convolution.
        large_images: begin with a 7x7 convolution and a pooling that make images four times smaller.
        kept_blocks: see `ReversibleSequence`. None for as many as fit a budget that does not depend on the depth, while the last
            stages with their small images run (see `graphwright.reversible.kept_blocks`); 0 for the least memory.
        name: of the model.

    Raises:
        ArgumentError: stages and widths do not match or get narrower, or an odd `stem`.

    >>> model = revnet([1, 1], [4, 8], input_shape=(8, 8, 1), stem=8, classes=3)
    >>> model.output_shape
    (None, 3)
    """
    check_stages(units, widths, bottleneck=bottleneck, start=stem // 2)
    if stem % 2 or stem < 2:
        raise ArgumentError(f"stem={stem} was given", argument="stem", remedy="give an even number: half for each stream")
    trunk: list[Any] = [RecomputedLayer(Stem(stem, large_images=large_images))]
    for stage, (count, width) in enumerate(zip(units, widths, strict=True)):
        for unit in range(count):
            activate_first = bool(stage or unit)
            if not unit and (stage or stem != 2 * width):
                strides = 2 if stage else 1
                trunk.append(StageUnit(width, strides=strides, bottleneck=bottleneck, activate_first=activate_first))
                continue
            f = Preactivation(width, bottleneck=bottleneck, activate_first=activate_first)
            trunk.append(ReversibleBlock(f, Preactivation(width, bottleneck=bottleneck)))
    remembering = kept_blocks
    if kept_blocks is None:
        sizes = [width / 4**stage for stage, width in enumerate(widths)]
        kept_blocks, remembering = blocks_that_fit(units, sizes, stem / 2, bottleneck=bottleneck)
    images = keras.Input(input_shape)
    streams = ReversibleSequence(trunk, kept_blocks=kept_blocks, remembering_blocks=remembering, name="trunk")((images, images))
    return keras.Model(images, logits_head(keras.layers.Concatenate()(streams), classes), name=name)


def check_stages(units: Sequence[int], widths: Sequence[int], *, bottleneck: bool, start: int) -> None:
    """Raise if stages of these units and widths cannot follow a stream of `start` channels."""
    what = f"units={list(units)} and widths={list(widths)} were given"
    if len(units) != len(widths) or not units or min(units) < 1:
        raise ArgumentError(what, remedy="give one number of each for every stage")
    if min(widths) < (BOTTLENECK_FACTOR if bottleneck else 1):
        raise ArgumentError(what, argument="widths", remedy=f"give {BOTTLENECK_FACTOR} or more with bottlenecks, else 1 or more")
    if not bottleneck and any(width < earlier for earlier, width in zip([start, *widths[:-1]], widths, strict=True)):
        raise ArgumentError(
            f"{what}, after a width of {start}",
            argument="widths",
            cause="where the width changes, units without bottlenecks pad their inputs with channels of zeros, and cannot remove channels",
            remedy="give widths that do not fall, or a smaller stem",
        )


def logits_head(x: Any, classes: int) -> Any:
    """Add normalization, ReLU, pooling and a dense layer."""
    policy = keras.config.dtype_policy()
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(normalization(policy)(x)))
    return keras.layers.Dense(classes, dtype="float32" if policy.variable_dtype == "float32" else policy)(x)
