"""How do I build reversible networks: the RevNets of the paper, an i-RevNet, a Transformer; and the plain ResNets of their sizes?

Each builder returns a functional Keras model whose layer "trunk" is a `ReversibleSequence`. Run as a script, it takes a training step
of a small network of each kind by reconstruction and by stored activations, and compares the gradients. Needs
`pip install "graphwright[cpu]"`.

Sources: A. Gomez, M. Ren, R. Urtasun, R. Grosse, "The Reversible Residual Network", NeurIPS 2017, table 2, and its official code for the
widths; J.-H. Jacobsen, A. Smeulders, E. Oyallon, "i-RevNet: Deep Invertible Networks", ICLR 2018; K. He et al., "Identity Mappings in
Deep Residual Networks", 2016; N. Kitaev, L. Kaiser, A. Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw
from graphwright import train
from graphwright.reversible.revnet import check_stages, logits_head
from graphwright.reversible.units import BOTTLENECK_FACTOR, OptionsLayer, Preactivation, Shortcut, Stem

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


def paper_network(name: str, input_shape: tuple[int, int, int] | None = None, classes: int | None = None, **options: Any) -> Any:
    """Build a network of the paper's table: "revnet38", "resnet32", ... The networks 104 and 101 are for photographs."""
    build, (units, widths, own) = (train.revnet, REVNETS[name]) if name in REVNETS else (resnet, RESNETS[name])
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
    """Build a plain preactivation ResNet. Arguments as for `graphwright.train.revnet`; `widths` of the one stream."""
    check_stages(units, widths, bottleneck=bottleneck, start=stem)
    images = keras.Input(input_shape)
    x = Stem(stem, large_images=large_images)(images)
    for stage, (count, width) in enumerate(zip(units, widths, strict=True)):
        for unit in range(count):
            strides = 2 if stage and not unit else 1
            residual = Preactivation(width, bottleneck=bottleneck, strides=strides, activate_first=bool(stage or unit))(x)
            changes = strides > 1 or x.shape[-1] != width
            x = keras.layers.Add()([Shortcut(width, strides=strides, bottleneck=bottleneck)(x) if changes else x, residual])
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

    Arguments as for `graphwright.train.revnet`. Streams are wider than `widths`; the functions have these widths inside.
    """
    images = keras.Input(input_shape)
    trunk: list[Any] = []
    for stage, (count, width) in enumerate(zip(units, widths, strict=True)):
        channels = widths[0] * 4**stage
        inside = width // BOTTLENECK_FACTOR if bottleneck else width
        trunk += [train.InvertibleDownsampling()] if stage else []
        for unit in range(count):
            f = Preactivation(channels, inside=inside, bottleneck=bottleneck, activate_first=bool(stage or unit))
            trunk.append(gw.ReversibleBlock(f, Preactivation(channels, inside=inside, bottleneck=bottleneck)))
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
    policy = keras.config.dtype_policy()
    logits = keras.layers.Dense(vocabulary, dtype="float32" if policy.variable_dtype == "float32" else policy)(x)
    return keras.Model(ids, logits, name=name)


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
        "RevNet": (train.revnet([2, 2], [8, 16], input_shape=(16, 16, 3), stem=16), images),
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
