"""What XLA makes of the training tools: static shapes, and nothing that calls the host, as a TPU asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw

pytestmark = pytest.mark.slow

_X = tf.constant(np.random.default_rng(0).random((32, 8), np.float32))
_Y = tf.sin(tf.reduce_sum(_X, axis=1, keepdims=True))
_HOST = re.compile(r"\b(infeed|outfeed|send|recv|host_compute|custom-call)\b[^\n]*")


def _taped(model: Any, function: Callable[[Any], Any]) -> Any:
    def gradients_of(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((function(x) - y) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    return tf.function(gradients_of, autograph=False, jit_compile=True)


def _dense() -> Any:
    return keras.Sequential([keras.Input((8,)), *[keras.layers.Dense(8, "tanh") for _ in range(4)], keras.layers.Dense(1)])


def _reversible() -> tuple[Any, tuple[Any, ...]]:
    def function() -> Any:
        return keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)])

    blocks = [gw.ReversibleBlock(function(), function()) for _ in range(3)]
    model = keras.Sequential([keras.Input((8,)), gw.ReversibleSequence(blocks), keras.layers.Dense(1)])
    return _taped(model, lambda x: model(x, training=True)), (_X, _Y)


def _checkpointed() -> tuple[Any, tuple[Any, ...]]:
    model = _dense()
    return _taped(model, gw.checkpointed(lambda x: model(x, training=True), checkpoints="memory")), (_X, _Y)


def _gradients() -> tuple[Any, tuple[Any, ...]]:
    model = _dense()

    @tf.function(autograph=False, jit_compile=True)
    def gradients_of(x: Any, y: Any) -> Any:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        return gw.gradients(loss, [v.value for v in model.trainable_variables], checkpoints="memory")

    return gradients_of, (_X, _Y)


def _levenberg_marquardt(**options: Any) -> tuple[Any, tuple[Any, ...]]:
    trainer = gw.train.LevenbergMarquardt(_dense(), "mse", jit_compile=True, **options)
    data = (_X, _Y, None)
    trainer.prepare(data)
    return trainer.compiled(trainer.traced_step), (data,)


@pytest.mark.parametrize(
    "made",
    [
        _reversible,
        _checkpointed,
        _gradients,
        lambda: _levenberg_marquardt(method="cholesky", chunk_size=8),
        lambda: _levenberg_marquardt(method="cg"),
    ],
    ids=["reversible", "checkpointed", "gradients", "gram_matrix", "matrix_free"],
)
def test_no_call_of_the_host_and_static_shapes(made: Callable[[], Any]) -> None:
    function, arguments = made()
    lowered = function.experimental_get_compiler_ir(*arguments)
    program = lowered(stage="stablehlo")
    shapes = re.findall(r"tensor<([^>]*)>", program)
    assert len(shapes) > 100
    assert not [shape for shape in shapes if "?" in shape or "bounds" in shape]
    # Here, after XLA has expanded what it calls by name before (the factors of a matrix).
    assert [found.group(0)[:200] for found in _HOST.finditer(lowered(stage="optimized_hlo"))] == []
    operations = {op.type for op in function.get_concrete_function(*arguments).graph.get_operations()}
    assert not operations & {"PyFunc", "EagerPyFunc", "PyFuncStateless", "XlaHostCompute", "XlaSendToHost"}


def test_a_call_of_the_host_is_seen() -> None:
    def calls_back(x: Any) -> Any:
        return tf.numpy_function(np.sin, [x], tf.float32)

    with pytest.raises(tf.errors.InvalidArgumentError, match="PyFunc"):  # not even compiled
        tf.function(calls_back, jit_compile=True)(_X)
