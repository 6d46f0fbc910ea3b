"""Reference models with training steps as users write them, shared by the tests and the benchmarks.

    reference = zoo.make("resnet50", size="small")
    loss = reference.step(*reference.inputs)

Each step is a plain `tf.function`: gradient tape, loss, `optimizer.apply_gradients`. Dropout and batch
normalization are active. The optimizer is built before, so that the step creates no variables. Nothing
here knows of graphwright.

Sizes: "full" is the published model with a batch at which activations outweigh weights; "small" has the same kinds of
layers and takes well under a second a step on two cores.

Variants are what users of TensorFlow have today against memory. They share model and optimizer with the plain step they are
made from (`Reference.with_variant`), so that both can be compared from the same state:

- `recompute_grad`: `tf.recompute_grad` around hand-made *blocks*, each with the layers between a few tensors that are kept
  (a level of the U-Net, a residual block, a Transformer layer, ...). `keras.remat(function)` is the same thing: on TensorFlow
  it is `return tf.recompute_grad(function)`.
- `keras_remat`: the model built under `keras.RematScope(mode="full")`, which wraps each layer by itself.
"""

from __future__ import annotations

import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from numpy.typing import NDArray

from bench.unet import build_unet, unet_output_size
from graphwright.errors import ArgumentError

Size = Literal["full", "small"]
Variant = Literal["plain", "recompute_grad", "keras_remat"]
VARIANTS: tuple[Variant, ...] = ("plain", "recompute_grad", "keras_remat")


@dataclass(frozen=True)
class Block:
    """A part of a model between kept tensors, by the names of the layers that give them."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """A model with its training step.

    Attributes:
        name: key in `MODELS` or `NO_BASELINES`.
        step: a `tf.function`; `step(*inputs)` trains once and returns the loss.
        inputs: tensors to call it with.
        blocks: what the baselines recompute, in the order of execution. What is in no block is kept.
        description: the model in one line.
    """

    name: str
    size: Size
    variant: Variant
    step: Any
    inputs: tuple[Any, ...]
    model: Any
    optimizer: Any
    loss: Callable[[Any, Any], Any]
    blocks: tuple[Block, ...]
    description: str

    def with_variant(self, variant: Variant) -> Reference:
        """Another step that trains the same model with the same optimizer, recomputing in another way.

        Raises:
            ArgumentError: `keras_remat`, which has to be asked for when the model is built; a model without blocks.
        """
        if variant == "keras_remat":
            raise ArgumentError(
                "RematScope takes effect when layers are created, so it cannot be put on an existing model",
                where="argument 'variant'",
                remedy="use make(name, variant='keras_remat')",
            )
        if variant == "recompute_grad" and not self.blocks:
            raise ArgumentError(f"{self.name!r} has no blocks", where="argument 'variant'", remedy=f"take one of {', '.join(MODELS)}")
        forward = _forward_in_blocks(self.model, self.blocks) if variant == "recompute_grad" else self.model
        step = _training_step(self.model, forward, self.loss, self.optimizer)
        return replace(self, variant=variant, step=step)


@dataclass(frozen=True)
class _Parts:
    """What a maker gives; `make` adds the step."""

    model: Any
    inputs: tuple[NDArray[Any], NDArray[Any]]
    optimizer: Any
    loss: Callable[[Any, Any], Any]
    blocks: tuple[Block, ...]
    description: str


def make(name: str, *, batch: int | None = None, size: Size = "full", variant: Variant = "plain", seed: int = 0) -> Reference:
    """A reference model with its training step.

    Args:
        name: a key of `MODELS` or of `NO_BASELINES`.
        batch: examples in a step; None for the size that goes with `size`.
        size: "full" or "small".
        variant: see the module's docstring.
        seed: of the weights, the dropout masks and the data.

    Raises:
        ArgumentError: an unknown name, size or variant; `recompute_grad` of a model without blocks.
    """
    known_models = MODELS | NO_BASELINES
    for argument, value, known in (("name", name, known_models), ("size", size, ("full", "small")), ("variant", variant, VARIANTS)):
        if value not in known:
            raise ArgumentError(f"unknown {argument} {value!r}", where=f"argument {argument!r}", remedy=f"take one of {', '.join(known)}")
    keras.utils.set_random_seed(seed)
    if variant == "keras_remat":
        with keras.RematScope(mode="full"):
            parts = known_models[name](size, batch, seed)
    else:
        parts = known_models[name](size, batch, seed)
    parts.optimizer.build(parts.model.trainable_variables)
    reference = Reference(
        name=name,
        size=size,
        variant=variant,
        step=_training_step(parts.model, parts.model, parts.loss, parts.optimizer),
        inputs=tuple(tf.constant(array) for array in parts.inputs),
        model=parts.model,
        optimizer=parts.optimizer,
        loss=parts.loss,
        blocks=parts.blocks,
        description=parts.description,
    )
    return reference.with_variant(variant) if variant == "recompute_grad" else reference


def keras_model(
    name: str, *, size: Size = "small", batch: int | None = None, batches: int = 3, seed: int = 0
) -> tuple[Any, tuple[NDArray[Any], NDArray[Any]]]:
    """A compiled Keras model with data for `model.fit`.

    Args:
        name: a key of `MODELS`.
        size: as in `make`.
        batch: examples of a batch; None for the size that goes with `size`.
        batches: full batches in the data; one example more makes the last batch of an epoch smaller.
        seed: of the weights, the dropout masks and the data.

    Returns:
        The model, and its inputs and labels.
    """
    keras.utils.set_random_seed(seed)
    parts = MODELS[name](size, batch, seed)
    x, y = parts.inputs
    rng = np.random.default_rng(seed)
    picks = np.concatenate([np.arange(len(x)), rng.integers(0, len(x), (batches - 1) * len(x) + 1)])
    parts.model.compile(optimizer=parts.optimizer, loss=parts.loss, metrics=["accuracy"] if y.dtype.kind == "i" else ["mae"])
    return parts.model, (x[picks], y[picks])


def trainable_parameters(model: Any) -> int:
    """Number of trainable elements."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


# The training step


def _training_step(model: Any, forward: Any, loss_of: Callable[[Any, Any], Any], optimizer: Any) -> Any:
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, forward(x, training=True))
            if model.losses:
                loss += tf.add_n(model.losses)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


def _forward_in_blocks(model: Any, blocks: tuple[Block, ...]) -> Callable[..., Any]:
    """The model's forward pass with `tf.recompute_grad` around each block."""
    tensors = {layer.name: layer.output for layer in model.layers}
    names = {id(tensor): name for name, tensor in tensors.items()}
    pieces: list[tuple[Block, Any]] = []
    for block in blocks:
        part = keras.Model([tensors[name] for name in block.inputs], [tensors[name] for name in block.outputs])
        pieces.append((block, part))
    kept = {names[id(model.inputs[0])]} | {name for block in blocks for name in block.outputs}
    # What lies before the first block and after the last one runs as usual.
    first = blocks[0].inputs
    head = None if set(first) <= {names[id(model.inputs[0])]} else keras.Model(model.inputs, [tensors[name] for name in first])
    last = blocks[-1].outputs
    assert set(last) <= kept
    tail = keras.Model([tensors[name] for name in last], model.outputs)

    def wrap(part: Any) -> Callable[..., Any]:
        @tf.recompute_grad
        def run(*values: Any) -> Any:
            return tuple(tf.nest.flatten(part(list(values), training=True)))

        return run

    wrapped = [(block, wrap(part)) for block, part in pieces]

    def forward(x: Any, training: bool) -> Any:
        assert training
        values = {names[id(model.inputs[0])]: x}
        if head is not None:
            values.update(zip(first, tf.nest.flatten(head(x, training=True)), strict=True))
        for block, run in wrapped:
            values.update(zip(block.outputs, tf.nest.flatten(run(*(values[name] for name in block.inputs))), strict=True))
        return tf.nest.flatten(tail([values[name] for name in last], training=True))[0]

    return forward


# The models


def _unet(size: Size, batch: int | None, seed: int) -> _Parts:
    full = size == "full"
    input_size, filters, poolings = (572, 64, 4) if full else (132, 8, 3)
    output_size = unet_output_size(input_size, poolings)
    count = batch or (2 if full else 8)
    model = build_unet(input_size=input_size, filters=filters, poolings=poolings, seed=seed)
    down = [
        Block((f"down{k - 1}_pool" if k > 1 else "image",), (f"down{k}_dropout" if k == poolings else f"down{k}_conv2", f"down{k}_pool"))
        for k in range(1, poolings + 1)
    ]
    bottom = [Block((f"down{poolings}_pool",), ("bottom_dropout",))]
    up = [
        Block(
            (f"up{k + 1}_conv2" if k < poolings else "bottom_dropout", f"down{k}_dropout" if k == poolings else f"down{k}_conv2"),
            (f"up{k}_conv2",),
        )
        for k in range(poolings, 0, -1)
    ]
    return _Parts(
        model,
        _blobs(count, input_size, output_size, seed),
        keras.optimizers.Adam(1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        (*down, *bottom, *up),
        f"U-Net, {input_size}x{input_size} to {output_size}x{output_size}, batch {count}, Adam",
    )


def _resnet50(size: Size, batch: int | None, seed: int) -> _Parts:
    pixels, count, classes = (224, batch or 16, 1000) if size == "full" else (64, batch or 16, 10)
    if size == "full":
        model = keras.applications.ResNet50(weights=None, classes=classes, classifier_activation=None)
    else:
        model = _small_resnet(pixels, classes)
    outs = [layer.name for layer in model.layers if layer.name.endswith("_out")]
    chain = [model.layers[0].name, "pool1_pool", *outs]
    return _Parts(
        model,
        _photographs(count, pixels, classes, seed),
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        _chain(chain),
        f"ResNet-50{'' if size == 'full' else ' in small'}, {pixels}x{pixels}, batch {count}, SGD with momentum",
    )


def _densenet121(size: Size, batch: int | None, seed: int) -> _Parts:
    pixels, count, classes = (224, batch or 16, 1000) if size == "full" else (64, batch or 16, 10)
    if size == "full":
        model = keras.applications.DenseNet121(weights=None, classes=classes, classifier_activation=None)
    else:
        model = _small_densenet(pixels, classes)
    # One block per dense layer, as in Pleiss et al., "Memory-Efficient Implementation of DenseNets": what is kept is the
    # concatenation after each layer; a whole dense block as one part would need as much when it is recomputed.
    kept = [layer.name for layer in model.layers if layer.name.endswith(("_concat", "_pool")) and layer.name != "avg_pool"]
    return _Parts(
        model,
        _photographs(count, pixels, classes, seed),
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        _chain([model.layers[0].name, *kept]),
        f"DenseNet-121{'' if size == 'full' else ' in small'}, {pixels}x{pixels}, batch {count}, SGD with momentum",
    )


def _transformer(size: Size, batch: int | None, seed: int, dtype: str | None = None) -> _Parts:
    """A causal language model on the bytes of English text (the docstrings of Python's own `textwrap`).

    Without a dtype policy of its own it takes the one that Keras is set to.
    """
    depth, width, heads, length = (12, 512, 8, 512) if size == "full" else (3, 64, 4, 128)
    count = batch or 4
    policy = keras.DTypePolicy(dtype) if dtype is not None else keras.config.dtype_policy()
    init = keras.initializers.RandomNormal
    seeds = iter(range(seed * 1000, seed * 1000 + 1000))
    tokens = layers.Input((length,), dtype="int32", name="tokens")
    x = layers.Embedding(256, width, embeddings_initializer=init(stddev=0.02, seed=next(seeds)), dtype=policy, name="embedding")(tokens)
    x = PositionEmbedding(length, dtype=policy, name="positions")(x)
    x = layers.Dropout(0.1, seed=next(seeds), dtype=policy, name="layer0_out")(x)
    for k in range(1, depth + 1):
        h = layers.LayerNormalization(dtype=policy, name=f"layer{k}_norm1")(x)
        attend = layers.MultiHeadAttention(
            heads, width // heads, dropout=0.1, seed=next(seeds), dtype=policy, name=f"layer{k}_attention"
        )  # its initializer draws from the seed set by `make`
        h = attend(h, h, use_causal_mask=True)
        h = layers.Dropout(0.1, seed=next(seeds), dtype=policy, name=f"layer{k}_dropout1")(h)
        x = layers.Add(dtype=policy, name=f"layer{k}_add")([x, h])
        h = layers.LayerNormalization(dtype=policy, name=f"layer{k}_norm2")(x)
        h = layers.Dense(4 * width, activation="relu", dtype=policy, name=f"layer{k}_dense1")(h)
        h = layers.Dense(width, dtype=policy, name=f"layer{k}_dense2")(h)
        h = layers.Dropout(0.1, seed=next(seeds), dtype=policy, name=f"layer{k}_dropout2")(h)
        x = layers.Add(dtype=policy, name=f"layer{k}_out")([x, h])
    x = layers.LayerNormalization(dtype=policy, name="norm")(x)
    logits = layers.Dense(256, dtype=policy.variable_dtype, name="logits")(x)
    return _Parts(
        keras.Model(tokens, logits, name="transformer"),
        _text(count, length, seed),
        keras.optimizers.Adam(1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        _chain([f"layer{k}_out" for k in range(depth + 1)]),
        f"Transformer, {depth} layers, d {width}, {heads} heads, {length} tokens, batch {count}, {policy.name}, Adam",
    )


def _transformer_bfloat16(size: Size, batch: int | None, seed: int) -> _Parts:
    return _transformer(size, batch, seed, "mixed_bfloat16")


def _mlp1000(size: Size, batch: int | None, seed: int) -> _Parts:
    """A deep chain; orthogonal weights and tanh let gradients through a thousand layers (Pennington et al., 2017)."""
    depth, width, count, group = (1000, 128, batch or 2048, 32) if size == "full" else (40, 64, batch or 2048, 6)
    x = image = layers.Input((width,), name="features")
    for k in range(1, depth + 1):
        x = layers.Dense(width, activation="tanh", kernel_initializer=keras.initializers.Orthogonal(seed=seed + k), name=f"dense{k}")(x)
    logits = layers.Dense(10, name="logits")(x)
    with _recursion_limit(20 * depth):  # Keras walks from the answer to the inputs by calling itself
        model = keras.Model(image, logits, name="mlp")
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 10, count).astype(np.int32)
    features = (rng.normal(size=(10, width))[classes] + rng.normal(size=(count, width))).astype(np.float32)
    return _Parts(
        model,
        (features, classes),
        keras.optimizers.SGD(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        _chain(["features", *(f"dense{k}" for k in range(group, depth, group))]),
        f"MLP, {depth} layers of {width}, batch {count}, SGD",
    )


def _lstm(size: Size, batch: int | None, seed: int) -> _Parts:
    return _recurrent("LSTM", 2, size, batch, seed)


def _recurrent(kind: Literal["LSTM", "GRU"], depth: int, size: Size, batch: int | None, seed: int) -> _Parts:
    steps, width, count = (128, 512, batch or 64) if size == "full" else (32, 64, batch or 64)
    x = series = layers.Input((steps, 8), name="series")
    names = [f"{kind.lower()}{k}" for k in range(1, depth + 1)]
    for name in names:
        x = getattr(layers, kind)(width, return_sequences=True, use_cudnn=False, name=name)(x)
    forecast = layers.Dense(8, name="forecast")(x)
    rng = np.random.default_rng(seed)
    time = np.arange(steps + 1)[None, :, None]
    waves = np.sin(time * rng.uniform(0.05, 0.5, (count, 1, 8)) + rng.uniform(0, 6.3, (count, 1, 8)))
    noisy = (waves + 0.1 * rng.normal(size=waves.shape)).astype(np.float32)
    return _Parts(
        keras.Model(series, forecast, name=kind.lower()),
        (noisy[:, :-1], noisy[:, 1:]),
        keras.optimizers.Adam(1e-3),
        keras.losses.MeanSquaredError(),
        _chain(["series", *names]),
        f"{kind}, {depth} layer{'s' * (depth > 1)} of {width}, {steps} steps, batch {count}, Adam",
    )


def _mobilenetv3small(size: Size, batch: int | None, seed: int) -> _Parts:
    pixels, count, classes = (224, batch or 16, 1000) if size == "full" else (64, batch or 64, 10)
    model = keras.applications.MobileNetV3Small((pixels, pixels, 3), weights=None, classes=classes, classifier_activation=None)
    return _Parts(
        model,
        _photographs(count, pixels, classes, seed),
        keras.optimizers.Adam(1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        (),
        f"MobileNetV3Small, {pixels}x{pixels}, batch {count}, Adam",
    )


def _depthwise(size: Size, batch: int | None, seed: int) -> _Parts:
    """Depthwise convolutions of three widths, with strides and with a multiplier, and separable ones."""
    pixels, filters, count, classes = (128, 32, batch or 16, 10) if size == "full" else (64, 16, batch or 32, 10)
    image = layers.Input((pixels, pixels, 3), name="image")
    x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu", name="stem")(image)
    x = layers.DepthwiseConv2D(3, padding="same", activation="relu", name="depthwise3")(x)
    x = layers.SeparableConv2D(2 * filters, 3, padding="same", activation="relu", name="separable3")(x)
    x = layers.DepthwiseConv2D(5, strides=2, padding="same", activation="relu", name="depthwise5")(x)
    x = layers.SeparableConv2D(4 * filters, 5, padding="same", activation="relu", name="separable5")(x)
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, activation="relu", name="doubled")(x)
    x = layers.DepthwiseConv2D(7, strides=2, padding="same", name="depthwise7")(x)
    x = layers.GlobalAveragePooling2D(name="average")(x)
    return _Parts(
        keras.Model(image, layers.Dense(classes, name="logits")(x), name="depthwise"),
        _photographs(count, pixels, classes, seed),
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        (),
        f"depthwise and separable convolutions, {pixels}x{pixels}, batch {count}, Adam",
    )


def _gru1(size: Size, batch: int | None, seed: int) -> _Parts:
    return _recurrent("GRU", 1, size, batch, seed)


def _gru2(size: Size, batch: int | None, seed: int) -> _Parts:
    return _recurrent("GRU", 2, size, batch, seed)


MODELS: dict[str, Callable[[Size, int | None, int], _Parts]] = {
    "unet": _unet,
    "resnet50": _resnet50,
    "densenet121": _densenet121,
    "transformer": _transformer,
    "transformer_bfloat16": _transformer_bfloat16,
    "mlp1000": _mlp1000,
    "lstm": _lstm,
}
NO_BASELINES: dict[str, Callable[[Size, int | None, int], _Parts]] = {  # for `bench.accuracy` alone
    "mobilenetv3small": _mobilenetv3small,
    "depthwise": _depthwise,
    "gru1": _gru1,
    "gru2": _gru2,
}


class PositionEmbedding(layers.Layer):
    """Adds a learned vector for each position."""

    def __init__(self, length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.vectors = self.add_weight(shape=(self.length, input_shape[-1]), initializer="random_normal", name="vectors")

    def call(self, inputs: Any) -> Any:
        return inputs + keras.ops.cast(self.vectors, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "length": self.length}


@contextmanager
def _recursion_limit(limit: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, limit))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _chain(names: list[str]) -> tuple[Block, ...]:
    """Blocks between each two neighbours of a list of layers."""
    return tuple(Block((before,), (after,)) for before, after in pairwise(names))


def _small_resnet(pixels: int, classes: int) -> Any:
    """Bottleneck blocks as in ResNet-50, one per stage and one more, with its names of layers."""
    normalized = 0

    def convolve(x: Any, filters: int, kernel: int, strides: int = 1, activate: bool = True) -> Any:
        nonlocal normalized
        normalized += 1
        x = layers.Conv2D(filters, kernel, strides=strides, padding="same", name=f"c{normalized}_conv")(x)
        x = layers.BatchNormalization(name=f"c{normalized}_bn")(x)
        return layers.Activation("relu", name=f"c{normalized}_relu")(x) if activate else x

    image = layers.Input((pixels, pixels, 3), name="image")
    x = convolve(image, 16, 7, 2)
    x = layers.MaxPooling2D(3, strides=2, padding="same", name="pool1_pool")(x)
    for k, (filters, strides) in enumerate([(16, 1), (16, 1), (32, 2), (32, 1)], start=1):
        widen = strides == 2 or x.shape[-1] != 4 * filters
        shortcut = convolve(x, 4 * filters, 1, strides, activate=False) if widen else x
        h = convolve(convolve(x, filters, 1, strides), filters, 3)
        h = convolve(h, 4 * filters, 1, activate=False)
        x = layers.Activation("relu", name=f"block{k}_out")(layers.Add(name=f"block{k}_add")([shortcut, h]))
    x = layers.GlobalAveragePooling2D(name="avg_pool")(x)
    return keras.Model(image, layers.Dense(classes, name="predictions")(x), name="small_resnet")


def _small_densenet(pixels: int, classes: int, growth: int = 8) -> Any:
    """Two dense blocks of three layers, with DenseNet-121's names of layers."""

    def normalize(x: Any, name: str) -> Any:
        return layers.Activation("relu", name=f"{name}_relu")(layers.BatchNormalization(name=f"{name}_bn")(x))

    image = layers.Input((pixels, pixels, 3), name="image")
    x = normalize(layers.Conv2D(2 * growth, 7, strides=2, padding="same", use_bias=False, name="conv1_conv")(image), "conv1")
    x = layers.MaxPooling2D(3, strides=2, padding="same", name="conv1_pool")(x)
    for stage in (2, 3):
        for k in (1, 2, 3):
            name = f"conv{stage}_block{k}"
            h = layers.Conv2D(4 * growth, 1, use_bias=False, name=f"{name}_1_conv")(normalize(x, f"{name}_0"))
            h = layers.Conv2D(growth, 3, padding="same", use_bias=False, name=f"{name}_2_conv")(normalize(h, f"{name}_1"))
            x = layers.Concatenate(name=f"{name}_concat")([x, h])
        if stage == 2:
            x = layers.Conv2D(x.shape[-1] // 2, 1, use_bias=False, name="pool2_conv")(normalize(x, "pool2"))
            x = layers.AveragePooling2D(2, name="pool2_pool")(x)
    x = layers.GlobalAveragePooling2D(name="avg_pool")(normalize(x, "final"))
    return keras.Model(image, layers.Dense(classes, name="predictions")(x), name="small_densenet")


# Data: made from fixed seeds, with something in it that can be learned


def _blobs(count: int, input_size: int, output_size: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Gray images with bright disks under noise, and which pixels of the middle belong to a disk."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:input_size, :input_size]
    inside = np.zeros((count, input_size, input_size), bool)
    for image in inside:
        for _ in range(12):
            row, column = rng.uniform(0, input_size, 2)
            image |= (rows - row) ** 2 + (columns - column) ** 2 < (rng.uniform(0.03, 0.1) * input_size) ** 2
    images = (inside + rng.normal(0.0, 0.3, inside.shape)).astype(np.float32)[..., None]
    margin = (input_size - output_size) // 2
    middle = slice(margin, margin + output_size)
    return images, inside[:, middle, middle].astype(np.int32)


def _photographs(count: int, pixels: int, classes: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Colored textures whose frequency and color depend on the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count).astype(np.int32)
    styles = np.random.default_rng(classes).uniform(0.02, 0.6, (classes, 2, 3))
    rows, columns = np.mgrid[:pixels, :pixels][..., None]
    images = np.stack([np.sin(rows * styles[label, 0] + columns * styles[label, 1]) for label in labels])
    return (images + rng.normal(0.0, 0.3, images.shape)).astype(np.float32), labels


def _text(count: int, length: int, seed: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Bytes of a text, and the byte that follows each."""
    data = np.frombuffer(inspect.getsource(textwrap).encode(), np.uint8).astype(np.int32)
    starts = np.random.default_rng(seed).integers(0, len(data) - length - 1, count)
    pieces = np.stack([data[start : start + length + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]
