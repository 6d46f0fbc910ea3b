"""RevNets as in the paper, and the plain ResNets of the same size.

A *stage* works at one size of images. Its first unit halves them: in the paper it is not reversible, so its inputs are
kept, which costs the same for every depth (`downsampling="residual"`). With `downsampling="invertible"` pixels become channels
between the stages, as in an i-RevNet: the whole trunk is one reversible sequence, with wider streams and bottlenecks of
the paper's widths inside.

Source: A. Gomez, M. Ren, R. Urtasun, R. Grosse, "The Reversible Residual Network", NeurIPS 2017, table 2, and its official code
for the widths; J.-H. Jacobsen et al., "i-RevNet", ICLR 2018; K. He et al., "Identity Mappings in Deep Residual Networks", 2016.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Literal

from graphwright.errors import ArgumentError
from graphwright.reversible.block import ReversibleBlock
from graphwright.reversible.downsampling import InvertibleDownsampling
from graphwright.reversible.kept_blocks import blocks_that_fit
from graphwright.reversible.recomputed import RecomputedLayer
from graphwright.reversible.sequence import ReversibleSequence
from graphwright.reversible.stage_unit import StageUnit
from graphwright.reversible.units import BOTTLENECK_FACTOR, Preactivation, Shortcut, Stem, normalization

keras: Any = importlib.import_module("keras")

Shape = tuple[int, int, int]
Downsampling = Literal["residual", "invertible"]


# The table of the paper: units and widths of the stages, those of one stream (or of the plain network) outside of bottlenecks; options.
_REVNETS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "revnet38": ((3, 3, 3), (16, 32, 56), {"stem": 32}),
    "revnet110": ((9, 9, 9), (16, 32, 64), {"stem": 32}),
    "revnet164": ((9, 9, 9), (64, 128, 256), {"stem": 32, "bottleneck": True}),
    "revnet104": ((2, 2, 11, 2), (256, 512, 1024, 1664), {"stem": 128, "bottleneck": True, "large_images": True}),
}
_RESNETS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "resnet32": ((5, 5, 5), (16, 32, 64), {"stem": 16}),
    "resnet110": ((18, 18, 18), (16, 32, 64), {"stem": 16}),
    "resnet164": ((18, 18, 18), (64, 128, 256), {"stem": 16, "bottleneck": True}),
    "resnet101": ((3, 4, 23, 3), (256, 512, 1024, 2048), {"stem": 64, "bottleneck": True, "large_images": True}),
}


def revnet38(input_shape: Shape = (32, 32, 3), classes: int = 10, **options: Any) -> Any:
    """RevNet-38 for small images: 3 stages of 3 units; the size of ResNet-32.

    Args:
        input_shape: height, width and channels of an image.
        classes: number of logits.
        **options: `downsampling`, `kept_blocks`, `name`; see `revnet`.

    >>> revnet38().count_params()
    467562
    """
    return _listed("revnet38", input_shape, classes, options)


def revnet110(input_shape: Shape = (32, 32, 3), classes: int = 10, **options: Any) -> Any:
    """RevNet-110 for small images: 3 stages of 9 units; the size of ResNet-110. Arguments as for `revnet38`."""
    return _listed("revnet110", input_shape, classes, options)


def revnet164(input_shape: Shape = (32, 32, 3), classes: int = 10, **options: Any) -> Any:
    """RevNet-164 for small images: 3 stages of 9 bottleneck units; the size of ResNet-164. Arguments as for `revnet38`."""
    return _listed("revnet164", input_shape, classes, options)


def revnet104(input_shape: Shape = (224, 224, 3), classes: int = 1000, **options: Any) -> Any:
    """RevNet-104 for photographs: 4 stages of 2, 2, 11 and 2 bottleneck units; the size of ResNet-101. Arguments as for `revnet38`."""
    return _listed("revnet104", input_shape, classes, options)


def resnet32(input_shape: Shape = (32, 32, 3), classes: int = 10, **options: Any) -> Any:
    """The plain network of the size of `revnet38`."""
    return _listed("resnet32", input_shape, classes, options)


def resnet110(input_shape: Shape = (32, 32, 3), classes: int = 10, **options: Any) -> Any:
    """The plain network of the size of `revnet110`."""
    return _listed("resnet110", input_shape, classes, options)


def resnet164(input_shape: Shape = (32, 32, 3), classes: int = 10, **options: Any) -> Any:
    """The plain network of the size of `revnet164`."""
    return _listed("resnet164", input_shape, classes, options)


def resnet101(input_shape: Shape = (224, 224, 3), classes: int = 1000, **options: Any) -> Any:
    """The plain network of the size of `revnet104`."""
    return _listed("resnet101", input_shape, classes, options)


def revnet(
    units: Sequence[int],
    widths: Sequence[int],
    *,
    bottleneck: bool = False,
    input_shape: Shape = (32, 32, 3),
    classes: int = 10,
    stem: int = 32,
    large_images: bool = False,
    downsampling: Downsampling = "residual",
    kept_blocks: int | None = None,
    name: str = "revnet",
) -> Any:
    """A RevNet of any size, as a functional Keras model from images to logits.

    Args:
        units: reversible units of each stage.
        widths: channels of each of the two streams in each stage, outside of bottlenecks.
        bottleneck: three convolutions a function instead of two.
        input_shape: height, width and channels of an image.
        classes: number of logits.
        stem: channels behind the first convolution.
        large_images: begin with a 7x7 convolution and a pooling that make images four times smaller.
        downsampling: `"residual"` as in the paper, or `"invertible"`.
        kept_blocks: see `ReversibleSequence`. None for as many as fit a budget that does not depend on the depth, while the last
            stages with their small images are at work (see `graphwright.reversible.kept_blocks`); 0 for the least memory.
        name: of the model.

    Raises:
        ArgumentError: stages and widths do not match or get narrower, an odd `stem`, or an unknown `downsampling`.

    >>> model = revnet([1, 1], [4, 8], input_shape=(8, 8, 1), stem=8, classes=3)
    >>> model.output_shape
    (None, 3)
    """
    _check_stages(units, widths, bottleneck=bottleneck, start=None if downsampling == "invertible" else stem // 2)
    if stem % 2 or stem < 2:
        raise ArgumentError(f"stem={stem} was given", argument="stem", remedy="give an even number: half for each stream")
    if downsampling not in ("residual", "invertible"):
        raise ArgumentError(f"downsampling={downsampling!r} was given", argument="downsampling", remedy="give 'residual' or 'invertible'")
    invertible = downsampling == "invertible"
    if invertible:
        stem = 2 * widths[0]
    first = Stem(stem, large_images=large_images)
    trunk: list[Any] = [] if invertible else [RecomputedLayer(first)]
    for stage, (count, width) in enumerate(zip(units, widths, strict=True)):
        inside, channels = None, width
        if invertible:
            inside = width // BOTTLENECK_FACTOR if bottleneck else width
            channels = widths[0] * 4**stage
            trunk += [InvertibleDownsampling()] if stage else []
        for unit in range(count):
            activate_first = bool(stage or unit)
            if not unit and not invertible and (stage or stem != 2 * width):
                strides = 2 if stage else 1
                trunk.append(StageUnit(width, strides=strides, bottleneck=bottleneck, activate_first=activate_first))
                continue
            f = Preactivation(channels, inside=inside, bottleneck=bottleneck, activate_first=activate_first)
            g = Preactivation(channels, inside=inside, bottleneck=bottleneck)
            trunk.append(ReversibleBlock(f, g))
    remembering = kept_blocks
    if kept_blocks is None:
        sizes = [width / 4**stage for stage, width in enumerate(widths)]
        kept_blocks, remembering = (0, 0) if invertible else blocks_that_fit(units, sizes, stem / 2, bottleneck=bottleneck)
    images = keras.Input(input_shape)
    trunk_layer = ReversibleSequence(trunk, kept_blocks=kept_blocks, remembering_blocks=remembering, name="trunk")
    if invertible:
        return keras.Model(images, _head(trunk_layer(first(images)), classes), name=name)
    return keras.Model(images, _head(keras.layers.Concatenate()(trunk_layer((images, images))), classes), name=name)


def resnet(
    units: Sequence[int],
    widths: Sequence[int],
    *,
    bottleneck: bool = False,
    input_shape: Shape = (32, 32, 3),
    classes: int = 10,
    stem: int = 16,
    large_images: bool = False,
    name: str = "resnet",
) -> Any:
    """A plain preactivation ResNet, to compare with; arguments as for `revnet`, `widths` of the one stream.

    Raises:
        ArgumentError: stages and widths do not match, or get narrower.

    >>> resnet([1, 1], [4, 8], input_shape=(8, 8, 1), stem=4, classes=3).output_shape
    (None, 3)
    """
    _check_stages(units, widths, bottleneck=bottleneck, start=stem)
    images = keras.Input(input_shape)
    x = Stem(stem, large_images=large_images)(images)
    for stage, (count, width) in enumerate(zip(units, widths, strict=True)):
        for unit in range(count):
            strides = 2 if stage and not unit else 1
            residual = Preactivation(width, bottleneck=bottleneck, strides=strides, activate_first=bool(stage or unit))(x)
            changes = strides > 1 or x.shape[-1] != width
            x = keras.layers.Add()([Shortcut(width, strides=strides, bottleneck=bottleneck)(x) if changes else x, residual])
    return keras.Model(images, _head(x, classes), name=name)


def _check_stages(units: Sequence[int], widths: Sequence[int], *, bottleneck: bool, start: int | None) -> None:
    """Raise where the stages cannot be built. `start` is the width before the first; None where stages have widths of their own."""
    what = f"units={list(units)} and widths={list(widths)} were given"
    if len(units) != len(widths) or not units or min(units) < 1:
        raise ArgumentError(what, remedy="give one number of each for every stage")
    if min(widths) < (BOTTLENECK_FACTOR if bottleneck else 1):
        raise ArgumentError(what, argument="widths", remedy=f"give {BOTTLENECK_FACTOR} or more with bottlenecks, else 1 or more")
    before = [] if start is None else [start, *widths[:-1]]
    if not bottleneck and any(width < earlier for earlier, width in zip(before, widths, strict=False)):
        raise ArgumentError(
            f"{what}, behind a width of {start}",
            argument="widths",
            cause="where the width changes, units without bottlenecks add channels of zeros to what they pass on, and can take none away",
            remedy="give widths that do not fall, or a smaller stem",
        )


def _listed(name: str, input_shape: Shape, classes: int, options: dict[str, Any]) -> Any:
    """A network of the tables."""
    build, (units, widths, own) = (revnet, _REVNETS[name]) if name in _REVNETS else (resnet, _RESNETS[name])
    given: dict[str, Any] = {**own, "input_shape": input_shape, "classes": classes, "name": name, **options}
    return build(units, widths, **given)


def _head(x: Any, classes: int) -> Any:
    policy = keras.config.dtype_policy()
    x = keras.layers.ReLU()(normalization(policy)(x))
    return keras.layers.Dense(classes, dtype="float32" if policy.variable_dtype == "float32" else policy)(
        keras.layers.GlobalAveragePooling2D()(x)
    )
