"""Every optimizer and every kind of layer, with dense and with sparse gradients, is planned and costed; nothing falls back.

The default selection is pairwise: each optimizer and each kind of layer meets both kinds of gradients, and each question about costs is
asked of many. `GRAPHWRIGHT_PROFILE=thorough` takes the whole product of optimizers, layers and gradients.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.errors import InfeasibleError, VerificationWarning

layers = keras.layers
Block = Callable[[Any], Any]
BATCH, TOKENS, WIDTH = 8, 16, 16
OPTIMIZERS = sorted(
    name
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type)
    and issubclass(kind, keras.optimizers.Optimizer)
    and kind not in (keras.optimizers.Optimizer, keras.optimizers.MultiOptimizer)
)


def chain(shape: tuple[int, ...], *parts: Any) -> Block:
    def apply(x: Any) -> Any:
        x = layers.Reshape(shape)(x)
        for part in parts:
            x = part()(x)
        return x

    return apply


def attention(kind: Any, *arguments: int) -> Block:
    return lambda x: layers.Add()([x, kind(*arguments)(x, x)])


def content_attention(kind: Any) -> Block:
    return lambda x: layers.Add()([x, kind(use_scale=True)([x, x])])


SEQUENCE, IMAGE, VOLUME = (TOKENS, WIDTH), (8, 8, 4), (4, 4, 4, 4)
KINDS: dict[str, Block] = {
    "Conv1D": chain(SEQUENCE, lambda: layers.Conv1D(8, 3), lambda: layers.Conv1DTranspose(8, 3)),
    "separable 1D": chain(SEQUENCE, lambda: layers.SeparableConv1D(8, 3), lambda: layers.DepthwiseConv1D(3)),
    "Conv2D": chain(IMAGE, lambda: layers.Conv2D(8, 3, activation="relu"), lambda: layers.MaxPool2D()),
    "transposed 2D": chain(IMAGE, lambda: layers.Conv2DTranspose(4, 3, 2), lambda: layers.AveragePooling2D(2)),
    "depthwise 2D": chain(IMAGE, lambda: layers.DepthwiseConv2D(3, padding="same"), lambda: layers.BatchNormalization()),
    "separable 2D": chain(IMAGE, lambda: layers.SeparableConv2D(8, 3), lambda: layers.GlobalMaxPooling2D()),
    "Conv3D": chain(VOLUME, lambda: layers.Conv3D(4, 3, padding="same"), lambda: layers.MaxPool3D()),
    "transposed 3D": chain(VOLUME, lambda: layers.Conv3DTranspose(4, 2), lambda: layers.AveragePooling3D(2)),
    "LSTM": chain(SEQUENCE, lambda: layers.LSTM(8, return_sequences=True)),
    "GRU": chain(SEQUENCE, lambda: layers.Bidirectional(layers.GRU(8))),
    "SimpleRNN": chain(SEQUENCE, lambda: layers.SimpleRNN(8, return_sequences=True), lambda: layers.RNN(layers.LSTMCell(8))),
    "ConvLSTM": chain((4, 8, 8), lambda: layers.ConvLSTM1D(4, 3)),
    "MultiHeadAttention": attention(layers.MultiHeadAttention, 2, 8),
    "GroupQueryAttention": attention(layers.GroupQueryAttention, 8, 4, 2),
    "Attention": content_attention(layers.Attention),
    "AdditiveAttention": content_attention(layers.AdditiveAttention),
    "layer and group norm": chain(SEQUENCE, lambda: layers.LayerNormalization(), lambda: layers.GroupNormalization(4)),
    "batch and RMS norm": chain(SEQUENCE, lambda: layers.BatchNormalization(), lambda: layers.RMSNormalization()),
    "unit and spectral norm": chain(SEQUENCE, lambda: layers.UnitNormalization(), lambda: layers.SpectralNormalization(layers.Dense(8))),
}
GRADIENTS = ("dense", "sparse")
QUESTIONS: dict[str, Callable[[keras.Model, Any], Any]] = {
    "flops": lambda model, data: gw.count_flops(model, inputs=data),
    "parameters": lambda model, data: gw.count_parameters(model, inputs=data),
    "peak": lambda model, data: gw.predict_peak(model, inputs=data),
    "shapes": lambda model, _: gw.infer_shapes(model),
    "max_batch": lambda model, _: gw.max_batch(model, "64MiB"),
    "sweep": lambda model, _: gw.sweep(model, batches=[2, 4]),
    "compare": lambda model, data: gw.compare(model, model, inputs=data),
    "check": lambda model, data: gw.check(model, inputs=data, max_peak="1GiB"),
    "profile": lambda model, data: gw.profile(model, inputs=data, isolated=False),
}


def selection() -> list[tuple[str, str, str, str]]:
    questions, kinds = list(QUESTIONS), list(KINDS)
    if os.environ.get("GRAPHWRIGHT_PROFILE") == "thorough":
        every = [(o, k, g) for o in OPTIMIZERS for k in kinds for g in GRADIENTS]
    else:
        count = max(len(OPTIMIZERS), len(kinds))
        every = [(OPTIMIZERS[n % len(OPTIMIZERS)], kinds[n % len(kinds)], g) for n in range(count) for g in GRADIENTS]
    # Begun at the ninth, since formulas trace a step in many sizes: that takes long where it has loops.
    return [(*case, questions[(n + 8) % len(questions)]) for n, case in enumerate(every)]


def make_model(optimizer: str, kind: str, gradients: str) -> tuple[keras.Model, Any]:
    keras.utils.set_random_seed(0)
    if gradients == "sparse":
        x = tf.random.uniform((BATCH, TOKENS), 0, 100, tf.int32)
        inputs = keras.Input((TOKENS,), dtype="int32")
        inner = layers.Embedding(100, WIDTH)(inputs)
    else:
        x = tf.random.normal((BATCH, TOKENS, WIDTH))
        inputs = inner = keras.Input((TOKENS, WIDTH))
    outputs = layers.Dense(1)(layers.Flatten()(KINDS[kind](inner)))
    model = keras.Model(inputs, outputs)
    made: Any = getattr(keras.optimizers, optimizer)
    model.compile(made(keras.optimizers.SGD()) if optimizer == "LossScaleOptimizer" else made(), "mse", jit_compile=False)
    return model, (x, tf.random.normal((BATCH, 1)))


def test_both_gradients_meet_every_optimizer_every_layer_and_every_question() -> None:
    cases = selection()
    for column, names in ((0, OPTIMIZERS), (1, list(KINDS))):
        assert {(case[column], case[2]) for case in cases} == {(name, g) for name in names for g in GRADIENTS}
    assert {case[3] for case in cases} == set(QUESTIONS)
    assert {"Adam", "Adagrad", "RMSprop", "SGD", "Ftrl", "Lion"} <= set(OPTIMIZERS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "kind", "gradients", "question"),
    # Dense and sparse gradients in turns, each optimizer and each layer with one of them.
    [pytest.param(*case, marks=pytest.mark.thorough if k % 2 != k // 2 % 2 else []) for k, case in enumerate(selection())],
    ids=lambda text: text.replace(" ", "_"),
)
def test_planned_and_costed(optimizer: str, kind: str, gradients: str, question: str) -> None:
    model, data = make_model(optimizer, kind, gradients)
    with warnings.catch_warnings():
        warnings.simplefilter("error", VerificationWarning)
        report = gw.inspect(model, inputs=data)
        assert report.executor is not None, report.how
        assert "not exact" not in report.executor.how
        assert report.forward_flops > 0
        assert QUESTIONS[question](model, data) is not None
        options: dict[str, Any] = {"inputs": data, "cache_dir": None, "time_limit_s": 0.5}
        try:
            gw.optimize_memory(model, 1, **options)
        except InfeasibleError as error:
            gw.optimize_memory(model, error.smallest_budget_bytes, **options)
        assert model.memory_plan().peak_bytes > 0
        assert math.isfinite(model.fit(*data, batch_size=BATCH, verbose=0).history["loss"][0])
        assert len(model.optimized_step.plans) == 1
