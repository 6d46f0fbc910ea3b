"""How do I build reversible networks: the RevNets of the paper, an i-RevNet, a Transformer; and plain ResNets of the same sizes?

Each builder returns a functional Keras model whose layer "trunk" is a `ReversibleSequence`. Run as a script, it takes a training step
of a small network of each kind by reconstruction and by stored activations, and compares the gradients. Needs
`pip install "graphwright[cpu]"`.

Sources: A. Gomez, M. Ren, R. Urtasun, R. Grosse, "The Reversible Residual Network", NeurIPS 2017, table 2, and its official code for the
widths; J.-H. Jacobsen, A. Smeulders, E. Oyallon, "i-RevNet: Deep Invertible Networks", ICLR 2018; K. He et al., "Identity Mappings in
Deep Residual Networks", 2016, figure 4e; N. Kitaev, L. Kaiser, A. Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw
from graphwright import train
from graphwright.errors import UnsupportedError
from graphwright.reversible.engine import BackwardRun, ForwardRun, InverseRun, Streams
from graphwright.reversible.residual import ResidualFunction
from graphwright.reversible.stream_layer import StreamLayer

# The table of the paper: units of each stage; widths of one stream (or of the plain network) outside of bottlenecks; options.
REVNETS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "revnet38": ((3, 3, 3), (16, 32, 56), {"stem": 32}),
    "revnet110": ((9, 9, 9), (16, 32, 64), {"stem": 32}),
    "revnet164": ((9, 9, 9), (64, 128, 256), {"stem": 32, "bottleneck": True}),
    "revnet104": ((2, 2, 11, 2), (256, 512, 1024, 1664), {"stem": 128, "bottleneck": True, "large_images": True}),
}
RESNETS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "resnet32": ((5, 5, 5), (16, 32, 64), {"stem": 16}),
    "resnet110": ((18, 18, 18), (16, 32, 64), {"stem": 16}),
    "resnet164": ((18, 18, 18), (64, 128, 256), {"stem": 16, "bottleneck": True}),
    "resnet101": ((3, 4, 23, 3), (256, 512, 1024, 2048), {"stem": 64, "bottleneck": True, "large_images": True}),
}

BOTTLENECK_FACTOR = 4
"""Channels outside of a bottleneck over those inside."""


class OptionsLayer(keras.layers.Layer):
    """A layer whose arguments are in `options`. By default its output has the shape of its input."""

    options: dict[str, Any]

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self.options


@keras.saving.register_keras_serializable(package="examples")
class Remember(keras.layers.Layer):
    """Marks a tensor that a `ReversibleSequence` may store, see `graphwright.train.remember`."""

    def call(self, x: Any) -> Any:
        return train.remember(x)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def preactivation(
    filters: int,
    *,
    inside: int | None = None,
    bottleneck: bool = False,
    strides: int = 1,
    activate_first: bool = True,
    dtype: Any = None,
) -> Any:
    """Return the residual function of a preactivation unit: normalization, ReLU and convolution, in this order, two or three times.

    Args:
        filters: channels of the result.
        inside: channels between the convolutions; None for `filters`, or a quarter of it in a bottleneck.
        bottleneck: use three convolutions instead of two.
        strides: of the first 3x3 convolution.
        activate_first: whether it begins with normalization and ReLU.
        dtype: dtype policy of the layers.
    """
    middle = inside or (filters // BOTTLENECK_FACTOR if bottleneck else filters)
    plan = [(middle, 3, strides), (filters, 3, 1)]
    if bottleneck:
        plan = [(middle, 1, 1), (middle, 3, strides), (filters, 1, 1)]
    layers: list[Any] = []
    for index, sizes in enumerate(plan):
        if index:
            layers.append(Remember(dtype=dtype))  # with the unit's input, this avoids running any convolution again
        if index or activate_first:
            layers += [normalization(dtype), keras.layers.ReLU(dtype=dtype)]
        layers.append(convolution(*sizes, dtype))
    return keras.Sequential(layers)


@keras.saving.register_keras_serializable(package="examples")
class PaddedShortcut(OptionsLayer):
    """Average pooling, and channels of zeros. `strides` is the factor by which images shrink."""

    def __init__(self, filters: int, *, strides: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = {"filters": filters, "strides": strides}

    def call(self, x: Any) -> Any:
        strides = self.options["strides"]
        if strides > 1:
            x = tf.nn.avg_pool2d(x, strides, strides, "SAME")
        return tf.pad(x, [[0, 0], [0, 0], [0, 0], [0, self.options["filters"] - x.shape[-1]]])

    def compute_output_shape(self, input_shape: Any) -> Any:
        return _smaller(input_shape, self.options["strides"], self.options["filters"])


def shortcut(filters: int, *, strides: int, bottleneck: bool, dtype: Any = None) -> Any:
    """Return the shortcut of a unit that changes the shape."""
    return convolution(filters, 1, strides, dtype) if bottleneck else PaddedShortcut(filters, strides=strides, dtype=dtype)


@keras.saving.register_keras_serializable(package="examples")
class Stem(OptionsLayer):
    """The layers before the first unit: convolution, normalization, ReLU; for large images, with strides of two and a pooling.

    As the first part of a reversible sequence it takes the images as both streams and returns half of its channels as each.
    """

    def __init__(self, filters: int, *, large_images: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = {"filters": filters, "large_images": large_images}
        self.convolution = convolution(filters, 7 if large_images else 3, 2 if large_images else 1, self.dtype_policy)
        self.norm = normalization(self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        images = _first(input_shape)
        self.convolution.build(images)
        self.norm.build(self.convolution.compute_output_shape(images))
        self.built = True

    def call(self, images: Any, training: Any = None) -> Any:
        x = tf.nn.relu(self.norm(self.convolution(images[0] if isinstance(images, list | tuple) else images), training=training))
        if self.options["large_images"]:
            x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        return tuple(tf.split(x, 2, -1)) if isinstance(images, list | tuple) else x

    def compute_output_shape(self, input_shape: Any) -> Any:
        shrinks, filters = 4 if self.options["large_images"] else 1, self.options["filters"]
        if isinstance(input_shape[0], list | tuple):
            return (_smaller(input_shape[0], shrinks, filters // 2),) * 2
        return _smaller(input_shape, shrinks, filters)


def _first(shape: Any) -> tuple[int | None, ...]:
    return tuple(shape[0] if isinstance(shape[0], list | tuple) else shape)


def _smaller(shape: Any, factor: int, channels: int) -> tuple[int | None, ...]:
    batch, height, width, _ = shape
    return (batch, *(side and -(-side // factor) for side in (height, width)), channels)


def convolution(filters: int, size: int, strides: int, dtype: Any) -> Any:
    """Return a convolution without bias, since a normalization follows."""
    return keras.layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False, kernel_initializer="he_normal", dtype=dtype)


def normalization(dtype: Any) -> Any:
    return train.FusedBatchNormalization(momentum=0.9, epsilon=1e-5, dtype=dtype)


@keras.saving.register_keras_serializable(package="examples")
class StageUnit(StreamLayer):
    """`y1 = s1(x1) + f(x2)`, `y2 = s2(x2) + g(y1)`, with shortcuts `s1` and `s2` that change the shape.

    A sequence stores its inputs. The backward pass knows `y1` from the next unit, so it can begin with g and needs no result of f:
    neither last convolution runs again. For arguments see `preactivation`; images shrink by `strides`.

    Source: the official code of Gomez et al. 2017, `_residual` and `_bottleneck_residual`.
    """

    is_invertible = False

    def __init__(self, filters: int, *, strides: int, bottleneck: bool = False, activate_first: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._options = {"filters": filters, "strides": strides, "bottleneck": bottleneck, "activate_first": activate_first}
        policy = self.dtype_policy
        self.f = preactivation(filters, strides=strides, bottleneck=bottleneck, activate_first=activate_first, dtype=policy)
        self.g = preactivation(filters, bottleneck=bottleneck, dtype=policy)
        self.shortcuts = [shortcut(filters, strides=strides, bottleneck=bottleneck, dtype=policy) for _ in range(2)]
        self._residuals = [ResidualFunction(layer, f"layer {self.name!r}") for layer in (*self.shortcuts, self.f, self.g)]

    @property
    def functions(self) -> list[ResidualFunction]:
        return self._residuals

    def build_streams(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        first, second = shapes
        y1, y2 = self.output_stream_shapes(shapes)
        for function, source, target in zip(self._residuals, (first, second, second, y1), (y1, y2, y1, y2), strict=True):
            function.build(tuple(source), self.stream_dtype, tuple(target))
        return y1, y2

    def output_stream_shapes(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        y1, y2 = (layer.compute_output_shape(tuple(shape)) for layer, shape in zip(self.shortcuts, shapes, strict=True))
        return y1, y2

    def stream_forward(self, x: Streams, run: ForwardRun) -> Streams:
        s1, s2, f, g = self._residuals
        of_x1, of_x2 = run(s1, x[0]), run(s2, x[1])
        y1 = of_x1 + run(f, x[1])
        return y1, of_x2 + run(g, y1)

    def stream_inverse(self, y: Streams, run: InverseRun) -> Streams:  # noqa: ARG002
        raise UnsupportedError(f"layer {self.name!r} has no inverse", where="inverse", cause="its shortcuts lose information")

    def stream_backward(self, y: Streams, dy: Streams, run: BackwardRun, x: Streams | None) -> tuple[Streams, Streams]:
        assert x is not None, "the engine stores the inputs of layers without inverse"
        (dy1, dy2), (s1, s2, f, g) = dy, self._residuals
        dy1 += run(g, y[0])[1](dy2)
        x1, x2 = run.gate(*x, after=[dy1])
        dx2 = run(f, x2)[1](dy1)
        x1, x2 = run.gate(x1, x2, after=[dx2])
        dx2 += run(s2, x2)[1](dy2)
        return (x1, x2), (run(s1, x1)[1](dy1), dx2)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self._options


# How many of a RevNet's last units may store tensors to save time, under one peak for every depth. Rebuilding takes at most a few streams
# of the first stage, whose images are the largest. While later stages run, memory is left for tensors of their units, which are freed
# before the first stage is rebuilt. The budget is a number of streams of the first stage: it grows with the images and the batch, not with
# the depth.


@dataclass(frozen=True)
class _Unit:
    """A kind of unit; sizes in streams of its stage.

    Attributes:
        working: memory of its backward pass: four streams and their gradients, and the inside of one function. Determined by
            `graphwright.predict_peak` and by measurement.
        remembered: results of all convolutions but the last, of both functions.
        saved: share of the convolutions' FLOPs that remembered tensors save; stored inputs save the rest.
        budget: memory that may be in use, in streams of the first stage. A network of 38 layers fills it.
    """

    working: float
    remembered: float
    saved: float
    budget: float


_INPUTS = 2
_BASIC = _Unit(working=8, remembered=2, saved=1 / 2, budget=26)
_BOTTLENECK = _Unit(working=7, remembered=1, saved=13 / 17, budget=11)


def blocks_that_fit(units: Sequence[int], sizes: Sequence[float], stem: float, *, bottleneck: bool) -> tuple[int, int]:
    """Return how many of the last units can store their inputs, and how many their remembered tensors.

    `units` and `sizes` (elements of a stream of one image) have one entry per stage; `stem` is the size after the stem.
    """
    kind = _BOTTLENECK if bottleneck else _BASIC
    before = [stem, *sizes[:-1]]
    # The first unit of a stage stores its inputs in any case, except in the first stage if the stem has its width.
    always_stored = [_INPUTS * sum(before[stem == sizes[0] : stage + 1]) for stage in range(len(sizes))]

    def fits(inputs: int, remembering: int) -> bool:
        stored, start = 0.0, 0
        for stage, (count, size) in enumerate(zip(units, sizes, strict=True)):
            start += count
            later = sum(units) - start  # units of later stages
            streams = min(max(inputs - later, 0), count) * _INPUTS + min(max(remembering - later, 0), count) * kind.remembered
            stored += streams * size
            if stored and stored + always_stored[stage] + kind.working * size > kind.budget * sizes[0]:
                return False
        return True

    best, inputs = (0.0, 0, 0), sum(units)
    for remembering in range(sum(units) + 1):
        while inputs and not fits(inputs, remembering):
            inputs -= 1
        if not fits(inputs, remembering):
            break
        counted = min(inputs, remembering)
        best = max(best, (remembering * kind.saved + counted * (1 - kind.saved), counted, remembering))
    return best[1], best[2]


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
            stages with their small images run; 0 for the least memory.
        name: of the model.
    """
    check_stages(units, widths, bottleneck=bottleneck, start=stem // 2)
    if stem % 2 or stem < 2:
        raise ValueError(f"stem={stem} was given: give an even number, half for each stream")
    trunk: list[Any] = [train.RecomputedLayer(Stem(stem, large_images=large_images))]
    for stage, (count, width) in enumerate(zip(units, widths, strict=True)):
        for unit in range(count):
            activate_first = bool(stage or unit)
            if not unit and (stage or stem != 2 * width):
                strides = 2 if stage else 1
                trunk.append(StageUnit(width, strides=strides, bottleneck=bottleneck, activate_first=activate_first))
                continue
            f = preactivation(width, bottleneck=bottleneck, activate_first=activate_first)
            trunk.append(gw.ReversibleBlock(f, preactivation(width, bottleneck=bottleneck)))
    remembering = kept_blocks
    if kept_blocks is None:
        sizes = [width / 4**stage for stage, width in enumerate(widths)]
        kept_blocks, remembering = blocks_that_fit(units, sizes, stem / 2, bottleneck=bottleneck)
    images = keras.Input(input_shape)
    streams = gw.ReversibleSequence(trunk, kept_blocks=kept_blocks, remembering_blocks=remembering, name="trunk")((images, images))
    return keras.Model(images, logits_head(keras.layers.Concatenate()(streams), classes), name=name)


def check_stages(units: Sequence[int], widths: Sequence[int], *, bottleneck: bool, start: int) -> None:
    """Raise if stages of these units and widths cannot follow a stream of `start` channels."""
    what = f"units={list(units)} and widths={list(widths)} were given"
    if len(units) != len(widths) or not units or min(units) < 1:
        raise ValueError(f"{what}: give one number of each for every stage")
    if min(widths) < (BOTTLENECK_FACTOR if bottleneck else 1):
        raise ValueError(f"{what}: give {BOTTLENECK_FACTOR} or more with bottlenecks, else 1 or more")
    if not bottleneck and any(width < earlier for earlier, width in zip([start, *widths[:-1]], widths, strict=True)):
        raise ValueError(f"{what}, after a width of {start}: give widths that do not fall, or a smaller stem")


def logits_head(x: Any, classes: int) -> Any:
    """Add normalization, ReLU, pooling and a dense layer."""
    return logits(keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(normalization(None)(x))), classes)


def logits(x: Any, classes: int) -> Any:
    """Add a dense layer, in float32 under mixed policies too."""
    policy = keras.config.dtype_policy()
    return keras.layers.Dense(classes, dtype="float32" if policy.variable_dtype == "float32" else policy)(x)


def paper_network(name: str, input_shape: tuple[int, int, int] | None = None, classes: int | None = None, **options: Any) -> Any:
    """Build a network of the paper's table: "revnet38", "resnet32", ... The networks 104 and 101 are for photographs."""
    build, (units, widths, own) = (revnet, REVNETS[name]) if name in REVNETS else (resnet, RESNETS[name])
    photographs = own.get("large_images", False)
    shape = input_shape or ((224, 224, 3) if photographs else (32, 32, 3))
    return build(units, widths, input_shape=shape, classes=classes or (1000 if photographs else 10), name=name, **own, **options)


def resnet(
    units: Sequence[int],
    widths: Sequence[int],
    *,
    bottleneck: bool = False,
    input_shape: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    stem: int = 16,
    large_images: bool = False,
    name: str = "resnet",
) -> Any:
    """Build a plain preactivation ResNet. Arguments as for `revnet`; `widths` of the one stream."""
    check_stages(units, widths, bottleneck=bottleneck, start=stem)
    images = keras.Input(input_shape)
    x = Stem(stem, large_images=large_images)(images)
    for stage, (count, width) in enumerate(zip(units, widths, strict=True)):
        for unit in range(count):
            strides = 2 if stage and not unit else 1
            residual = preactivation(width, bottleneck=bottleneck, strides=strides, activate_first=bool(stage or unit))(x)
            changes = strides > 1 or x.shape[-1] != width
            x = keras.layers.Add()([shortcut(width, strides=strides, bottleneck=bottleneck)(x) if changes else x, residual])
    return keras.Model(images, logits_head(x, classes), name=name)


def irevnet(
    units: Sequence[int],
    widths: Sequence[int],
    *,
    bottleneck: bool = False,
    input_shape: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    kept_blocks: int = 0,
    name: str = "irevnet",
) -> Any:
    """Build a RevNet whose whole trunk is reversible: between stages, pixels become channels.

    Arguments as for `revnet`. Streams are wider than `widths`; the functions have these widths inside.
    """
    images = keras.Input(input_shape)
    trunk: list[Any] = []
    for stage, (count, width) in enumerate(zip(units, widths, strict=True)):
        channels = widths[0] * 4**stage
        inside = width // BOTTLENECK_FACTOR if bottleneck else width
        trunk += [train.InvertibleDownsampling()] if stage else []
        for unit in range(count):
            f = preactivation(channels, inside=inside, bottleneck=bottleneck, activate_first=bool(stage or unit))
            trunk.append(gw.ReversibleBlock(f, preactivation(channels, inside=inside, bottleneck=bottleneck)))
    x = gw.ReversibleSequence(trunk, kept_blocks=kept_blocks, name="trunk")(Stem(2 * widths[0])(images))
    return keras.Model(images, logits_head(x, classes), name=name)


@keras.saving.register_keras_serializable(package="examples")
class AttentionFunction(OptionsLayer):
    """Normalization, self-attention, dropout.

    Args:
        heads: of the attention.
        dropout: share of the results that are set to zero in training.
        causal: whether a position sees only earlier positions.
    """

    def __init__(self, heads: int, *, dropout: float = 0.0, causal: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.options = {"heads": heads, "dropout": dropout, "causal": causal}
        self.norm = keras.layers.LayerNormalization(epsilon=1e-6, dtype=self.dtype_policy)
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.attention: Any = None

    def build(self, input_shape: Any) -> None:
        heads, width = self.options["heads"], input_shape[-1]
        self.attention = keras.layers.MultiHeadAttention(int(heads), width // int(heads), dtype=self.dtype_policy)
        self.norm.build(input_shape)
        self.attention.build(query_shape=input_shape, value_shape=input_shape)
        self.built = True

    def call(self, x: Any, training: Any = None, mask: Any = None) -> Any:
        x = self.norm(x)
        visible = None if mask is None else mask[:, tf.newaxis, :]
        x = self.attention(x, x, attention_mask=visible, use_causal_mask=self.options["causal"], training=training)
        return self.dropout(x, training=training)


@keras.saving.register_keras_serializable(package="examples")
class FeedForwardFunction(OptionsLayer):
    """Normalization, a wide layer with GELU, a narrow one, dropout.

    Args:
        inside: units of the wide layer.
        dropout: share of the results that are set to zero in training.
    """

    def __init__(self, inside: int, *, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.options = {"inside": inside, "dropout": dropout}
        self.norm = keras.layers.LayerNormalization(epsilon=1e-6, dtype=self.dtype_policy)
        self.wide = keras.layers.Dense(inside, activation="gelu", dtype=self.dtype_policy)
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.narrow: Any = None

    def build(self, input_shape: Any) -> None:
        self.narrow = keras.layers.Dense(input_shape[-1], dtype=self.dtype_policy)
        self.norm.build(input_shape)
        self.wide.build(input_shape)
        self.narrow.build((*input_shape[:-1], self.options["inside"]))
        self.built = True

    def call(self, x: Any, training: Any = None) -> Any:
        return self.dropout(self.narrow(self.wide(self.norm(x))), training=training)


@keras.saving.register_keras_serializable(package="examples")
class TokenEmbedding(OptionsLayer):
    """Learned embeddings of tokens and positions, added.

    Args:
        vocabulary: number of tokens; ids lie below it.
        length: number of positions at most.
        mask_zero: whether token 0 is padding, which no position sees.
    """

    def __init__(self, vocabulary: int, length: int, width: int, *, mask_zero: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = {"vocabulary": vocabulary, "length": length, "width": width, "mask_zero": mask_zero}
        self.tokens = keras.layers.Embedding(vocabulary, width, dtype=self.dtype_policy)
        self.positions = keras.layers.Embedding(length, width, dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        self.tokens.build(input_shape)
        self.positions.build(input_shape)
        self.built = True

    def call(self, ids: Any) -> Any:
        """Return embeddings `[batch, length, width]` of ids `[batch, length]`."""
        return self.tokens(ids) + self.positions(tf.range(tf.shape(ids)[1]))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return which tokens are not padding."""
        return keras.ops.not_equal(inputs, 0) if self.options["mask_zero"] else previous_mask

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.options["width"])


def reversible_transformer(
    vocabulary: int,
    length: int,
    *,
    layers: int = 6,
    width: int = 256,
    heads: int = 4,
    inside: int | None = None,
    dropout: float = 0.1,
    causal: bool = True,
    mask_zero: bool = False,
    kept_blocks: int = 0,
    name: str = "reversible_transformer",
) -> Any:
    """Build a Transformer whose memory for activations does not grow with its layers: from ids of tokens to logits of tokens.

    `y1 = x1 + Attention(x2)`, `y2 = x2 + FeedForward(y1)`. Attention is full, not the Reformer's hashed one, and the feed-forward layer
    is not cut into chunks of positions.

    Args:
        vocabulary: number of tokens.
        length: number of positions.
        layers: reversible blocks.
        width: of each stream.
        heads: of the attention; they divide the width.
        inside: units of the wide layer; None for four times the width.
        dropout: in each function, in training.
        causal: whether a position sees only earlier positions.
        mask_zero: whether token 0 is padding, which no position sees.
        kept_blocks: see `ReversibleSequence`.
        name: of the model.

    Returns:
        A functional Keras model from `[batch, length]` integers to `[batch, length, vocabulary]` logits.
    """
    if heads < 1 or width % heads:
        raise ValueError(f"width={width} is not a multiple of heads={heads}")
    ids = keras.Input((length,), dtype="int32")
    x = TokenEmbedding(vocabulary, length, width, mask_zero=mask_zero)(ids)
    blocks = [
        gw.ReversibleBlock(
            AttentionFunction(heads, dropout=dropout, causal=causal), FeedForwardFunction(inside or 4 * width, dropout=dropout)
        )
        for _ in range(layers)
    ]
    y1, y2 = gw.ReversibleSequence(blocks, kept_blocks=kept_blocks, name="trunk")((x, x))
    x = keras.layers.LayerNormalization(epsilon=1e-6)(keras.layers.Concatenate()([y1, y2]))
    return keras.Model(ids, logits(x, vocabulary), name=name)


def gradients(model: Any, inputs: Any, *, reconstructs: bool) -> list[Any]:
    """Return the gradients of one training step, by reconstruction or by stored activations."""
    model.get_layer("trunk").reconstructs = reconstructs

    @tf.function
    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs, training=True)))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    return [tf.convert_to_tensor(gradient).numpy() for gradient in step(inputs)]


def main() -> None:
    keras.utils.set_random_seed(0)
    images = np.random.default_rng(0).normal(size=(8, 16, 16, 3)).astype(np.float32)
    ids = np.random.default_rng(0).integers(0, 50, (8, 12))
    small: dict[str, tuple[Any, Any]] = {
        "RevNet": (revnet([2, 2], [8, 16], input_shape=(16, 16, 3), stem=16), images),
        "i-RevNet": (irevnet([2, 2], [8, 16], input_shape=(16, 16, 3)), images),
        "Transformer": (reversible_transformer(50, 12, layers=2, width=16, dropout=0.0), ids),
    }
    for name, (model, inputs) in small.items():
        stored = gradients(model, inputs, reconstructs=False)
        rebuilt = gradients(model, inputs, reconstructs=True)
        scale = max(float(np.abs(gradient).max()) for gradient in stored)
        error = max(float(np.abs(a - b).max()) for a, b in zip(rebuilt, stored, strict=True)) / scale
        print(f"{name}: {model.count_params():,} weights, gradients differ from those of stored activations by {error:.1e} of the largest")
        assert error < 1e-3
    print(f"ResNet of the RevNet's size: {resnet([4, 4], [8, 16], input_shape=(16, 16, 3), stem=8).count_params():,} weights")


if __name__ == "__main__":
    main()
