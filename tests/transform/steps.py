"""Small training steps, each with something that a rewrite could get wrong. Every tensor that matters has 4 KiB or more."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

SIZE = 32  # 32 * 32 floats are 4 KiB


def _weights(count: int, *shape: int) -> list[Any]:
    random = np.random.default_rng(count)
    return [tf.Variable(random.normal(0, 0.3, shape or (SIZE, SIZE)).astype(np.float32), name=f"w{k}") for k in range(count)]


def _input(*shape: int) -> Any:
    return tf.constant(np.random.default_rng(9).normal(size=shape or (SIZE, SIZE)).astype(np.float32))


def _train(weights: list[Any], loss_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return step


def _train_and_show(weights: list[Any], loss_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a value of the forward pass too: computed again after the update, it would be another one."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, shown = loss_of(x)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss, shown

    return step


def dense() -> tuple[Any, Any]:
    """Four layers, plain gradient descent."""
    weights = _weights(4)

    def loss_of(x: Any) -> Any:
        for weight in weights:
            x = tf.nn.relu(tf.linalg.matmul(x, weight))
        return tf.reduce_mean(x * x)

    return _train(weights, loss_of), _input()


def keras_model() -> tuple[Any, Any]:
    """Convolutions with bias, batch normalization, dropout by Keras's seed generator, Adam, a metric."""
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 4)),
            keras.layers.Conv2D(8, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.3),
            keras.layers.Conv2D(8, 3, padding="same", activation="gelu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    metric = keras.metrics.MeanSquaredError()

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            loss = tf.reduce_mean(tf.square(out - 1.0))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        metric.update_state(tf.ones_like(out), out)
        return loss, metric.result()

    step.keep = model  # variables live as long as somebody holds them
    return step, _input(8, 8, 8, 4)


def assigned_between_reads() -> tuple[Any, Any]:
    """A variable is read, overwritten, and read again, all before the backward pass."""
    weights = _weights(3)
    scale = tf.Variable(tf.ones((SIZE, SIZE)), trainable=False, name="scale")

    def loss_of(x: Any) -> Any:
        x = tf.tanh(tf.linalg.matmul(x, weights[0]) * scale)
        scale.assign(scale * 0.9 + 0.1 * tf.stop_gradient(x))
        x = tf.tanh(tf.linalg.matmul(x, weights[1]) * scale)
        scale.assign_add(tf.stop_gradient(x))
        return tf.reduce_mean(tf.tanh(tf.linalg.matmul(x, weights[2])) * scale)

    return _train(weights, loss_of), _input()


def branch() -> tuple[Any, Any]:
    """A tf.cond, whose taken branch reads a variable, with its gradient."""
    weights = _weights(3)

    def loss_of(x: Any) -> Any:
        x = tf.nn.relu(tf.linalg.matmul(x, weights[0]))
        x = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.tanh(tf.linalg.matmul(x, weights[1])), lambda: tf.linalg.matmul(x, weights[1]))
        return tf.reduce_mean(tf.tanh(tf.linalg.matmul(x, weights[2]))), x * 2.0

    return _train_and_show(weights, loss_of), _input()


def loop() -> tuple[Any, Any]:
    """A tf.while_loop with its gradient: lists of tensors, and a weight that the loop reads and the step then updates."""
    weights = _weights(3)

    def loss_of(x: Any) -> Any:
        x = tf.nn.relu(tf.linalg.matmul(x, weights[0]))
        _, x = tf.while_loop(lambda k, _: k < 3, lambda k, h: (k + 1, tf.tanh(tf.linalg.matmul(h, weights[1]))), (0, x))
        return tf.reduce_mean(tf.tanh(tf.linalg.matmul(x, weights[2]))), x * 2.0

    return _train_and_show(weights, loss_of), _input()


def random_noise() -> tuple[Any, Any]:
    """tf.random.uniform, seeded and not: it has a counter of its own and must never run again."""
    weights = _weights(3)

    def loss_of(x: Any) -> Any:
        for k, weight in enumerate(weights):
            noise = tf.random.uniform((SIZE, SIZE), seed=5 if k else None)
            x = tf.nn.relu(tf.linalg.matmul(x, weight)) * noise
        return tf.reduce_mean(x)

    return _train(weights, loss_of), _input()


def nested() -> tuple[Any, Any]:
    """A tf.function called twice, which calls another and counts its calls in a variable."""
    weights = _weights(3)
    calls = tf.Variable(tf.zeros((SIZE, SIZE)), trainable=False, name="calls")

    @tf.function
    def activation(x: Any) -> Any:
        return tf.tanh(x) * tf.sigmoid(x)

    @tf.function
    def layer(x: Any, weight: Any) -> Any:
        calls.assign_add(tf.ones_like(calls))
        return activation(tf.linalg.matmul(x, weight)) * calls

    def loss_of(x: Any) -> Any:
        for weight in weights:
            x = layer(x, weight)
        return tf.reduce_mean(x)

    return _train(weights, loss_of), _input()


def embedding() -> tuple[Any, Any]:
    """Rows gathered from the resource itself (ResourceGather), which the step then updates."""
    table = tf.Variable(np.random.default_rng(1).normal(size=(64, SIZE)).astype(np.float32), name="table")
    weights = _weights(2)
    rows = tf.constant(np.random.default_rng(2).integers(0, 64, SIZE), tf.int32)

    def loss_of(x: Any) -> Any:
        x = seen = x + tf.nn.embedding_lookup(table, rows)
        for weight in weights:
            x = tf.tanh(tf.linalg.matmul(x, weight))
        return tf.reduce_mean(x * x), seen

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, seen = loss_of(x)
        gradients = tape.gradient(loss, [table, *weights])
        table.assign_sub(0.1 * tf.convert_to_tensor(gradients[0]))
        for weight, gradient in zip(weights, gradients[1:], strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss, tf.reduce_mean(table), seen * 2.0

    return step, _input()


STEPS: dict[str, Callable[[], tuple[Any, Any]]] = {
    maker.__name__: maker for maker in (dense, keras_model, assigned_between_reads, branch, loop, random_noise, nested, embedding)
}


@cache
def concrete_step(name: str) -> tuple[Any, tuple[Any, ...], Any]:
    """The step as a concrete function, its inputs, and what keeps its variables alive."""
    step, x = STEPS[name]()
    return tf.function(step).get_concrete_function(x), (x,), step
