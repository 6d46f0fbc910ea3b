"""A reversible Transformer: attention and feed-forward layers as the two functions of a reversible block.

`y1 = x1 + Attention(x2)`, `y2 = x2 + FeedForward(y1)`, each with its own normalization inside. Attention is full, not the
Reformer's hashed one, and the feed-forward layer is not cut into chunks of positions.

Source: N. Kitaev, L. Kaiser, A. Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 3.
"""

# What a Keras layer inherits has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.reversible.block import ReversibleBlock
from graphwright.reversible.sequence import ReversibleSequence
from graphwright.reversible.units import OptionsLayer

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")


@keras.saving.register_keras_serializable(package="graphwright")
class AttentionFunction(OptionsLayer):
    """Normalization, self-attention, dropout.

    Args:
        heads: of the attention.
        dropout: share of the results that are set to zero in training.
        causal: whether a position sees only those before it.
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
        seen = None if mask is None else mask[:, tf.newaxis, :]
        x = self.attention(x, x, attention_mask=seen, use_causal_mask=self.options["causal"], training=training)
        return self.dropout(x, training=training)


@keras.saving.register_keras_serializable(package="graphwright")
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


@keras.saving.register_keras_serializable(package="graphwright")
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
        """Embeddings `[batch, length, width]` of ids `[batch, length]`."""
        return self.tokens(ids) + self.positions(tf.range(tf.shape(ids)[1]))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Which tokens are no padding."""
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
    """A Transformer whose memory for activations does not grow with its layers: from ids of tokens to logits of tokens.

    Args:
        vocabulary: number of tokens.
        length: number of positions.
        layers: reversible blocks.
        width: of each stream.
        heads: of the attention; they divide the width.
        inside: units of the wide layer; None for four times the width.
        dropout: in each function, in training.
        causal: whether a position sees only those before it.
        mask_zero: whether token 0 is padding, which no position sees.
        kept_blocks: see `ReversibleSequence`.
        name: of the model.

    Returns:
        A functional Keras model from `[batch, length]` integers to `[batch, length, vocabulary]` logits.

    Raises:
        ArgumentError: heads that do not divide the width.

    >>> reversible_transformer(100, 16, layers=2, width=8, heads=2).output_shape
    (None, 16, 100)
    """
    if heads < 1 or width % heads:
        raise ArgumentError(f"width={width} is not a multiple of heads={heads}", argument="heads", remedy="give a divisor of the width")
    ids = keras.Input((length,), dtype="int32")
    x = TokenEmbedding(vocabulary, length, width, mask_zero=mask_zero)(ids)
    blocks = [
        ReversibleBlock(AttentionFunction(heads, dropout=dropout, causal=causal), FeedForwardFunction(inside or 4 * width, dropout=dropout))
        for _ in range(layers)
    ]
    y1, y2 = ReversibleSequence(blocks, kept_blocks=kept_blocks, name="trunk")((x, x))
    x = keras.layers.LayerNormalization(epsilon=1e-6)(keras.layers.Concatenate()([y1, y2]))
    policy = keras.config.dtype_policy()
    logits = keras.layers.Dense(vocabulary, dtype="float32" if policy.variable_dtype == "float32" else policy)(x)
    return keras.Model(ids, logits, name=name)
