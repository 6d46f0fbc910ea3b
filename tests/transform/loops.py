"""Small training steps with a loop each, by what the loop is made of."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

keras: Any = importlib.import_module("keras")
tf: Any = importlib.import_module("tensorflow")

SIZE = 16


def _tensor(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(0, 0.4, shape).astype(np.float32)


def _step(loss_of: Callable[[Any, Any], Any], *shape: int) -> tuple[Any, tuple[Any, ...]]:
    """A step that trains one matrix, and its input."""
    weight = tf.Variable(_tensor(0, SIZE, SIZE))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x, weight)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return step, (tf.constant(_tensor(1, *shape)),)


def counted(x: Any, w: Any) -> Any:
    return tf.reduce_mean(tf.while_loop(lambda i, _: i < 11, lambda i, y: (i + 1, tf.tanh(y @ w)), (0, x))[1] ** 2)


def early_exit(x: Any, w: Any) -> Any:
    """Ends by the data, after some rounds of the 13 that it may have."""
    body = lambda i, y: (i + 1, tf.tanh(y @ w) * 0.7)  # noqa: E731 - a loop's body
    return tf.reduce_mean(tf.while_loop(lambda _, y: tf.reduce_sum(y * y) > 0.5, body, (0, x), maximum_iterations=13)[1] ** 2)


def scan(x: Any, w: Any) -> Any:
    return tf.reduce_mean(tf.scan(lambda h, e: tf.tanh(h @ w + e), x, initializer=tf.zeros(x.shape[1:])) ** 2)


def map_fn(x: Any, w: Any) -> Any:
    return tf.reduce_mean(tf.map_fn(lambda e: tf.tanh(tf.tanh(e @ w) @ w), x) ** 2)


def branches_and_loops(x: Any, w: Any) -> Any:
    """A conditional and a loop inside, and random numbers by the round."""
    y = x
    for i in tf.range(7):
        if i % 2 == 0:
            y = tf.tanh(y @ w)
        else:
            y = y @ w
            y = tf.sin(y) * tf.cast(i, tf.float32)
        for _ in tf.range(3):
            y = tf.tanh(y @ w)
        y = tf.nn.experimental.stateless_dropout(y, 0.3, seed=tf.stack([i, 3]))
    return tf.reduce_mean(y * y)


def attention(x: Any, w: Any) -> Any:
    """A decoder that attends to what it wrote in earlier rounds."""

    def body(i: Any, h: Any, memory: Any) -> Any:
        weights = tf.nn.softmax(tf.einsum("bd,tbd->bt", h, memory))
        h = tf.tanh((h + tf.einsum("bt,tbd->bd", weights, memory)) @ w)
        return i + 1, h, tf.tensor_scatter_nd_update(memory, [[i]], [h])

    _, h, memory = tf.while_loop(lambda i, *_: i < 9, body, (0, x, tf.zeros((9, 4, SIZE))))
    return tf.reduce_mean(h * memory)


def hidden_counter(x: Any, w: Any) -> Any:
    y = x
    for _ in tf.range(5):
        y = tf.nn.dropout(tf.tanh(y @ w), 0.3)
    return tf.reduce_mean(y * y)


def list_of_results(x: Any, w: Any) -> Any:
    """Reads what it wrote, from a list."""
    array = tf.TensorArray(tf.float32, 9, clear_after_read=False).write(0, x)
    y = x
    for i in tf.range(1, 9):
        y = tf.tanh((y + array.read(i // 2)) @ w)
        array = array.write(i, y)
    return tf.reduce_mean(array.stack() ** 2)


FUNCTIONS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "counted": (counted, (4, SIZE)),
    "early exit": (early_exit, (4, SIZE)),
    "scan": (scan, (11, 4, SIZE)),
    "map_fn": (map_fn, (11, 4, SIZE)),
    "branches, loops": (branches_and_loops, (4, SIZE)),
    "attention": (attention, (4, SIZE)),
}
LAYERS: dict[str, Callable[[], list[Any]]] = {
    "LSTM": lambda: [keras.layers.LSTM(8)],
    "GRU": lambda: [keras.layers.GRU(8, return_sequences=True)],
    "SimpleRNN": lambda: [keras.layers.SimpleRNN(8)],
    "masked, both ways": lambda: [keras.layers.Masking(), keras.layers.Bidirectional(keras.layers.GRU(8, return_sequences=True))],
    "recurrent dropout": lambda: [keras.layers.LSTM(8, recurrent_dropout=0.2, dropout=0.1)],
    "both ways, twice": lambda: [keras.layers.Bidirectional(keras.layers.LSTM(8, return_sequences=True)), keras.layers.LSTM(8)],
}


def function_step(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A `tf.function` and its arguments."""
    loss_of, shape = FUNCTIONS[name]
    return _step(loss_of, *shape)


def refused_step(loss_of: Callable[[Any, Any], Any]) -> tuple[Any, tuple[Any, ...]]:
    """A step whose loop cannot run in segments."""
    return _step(loss_of, 4, SIZE)


def layer_model(name: str, rounds: int = 11) -> tuple[Any, tuple[Any, Any]]:
    """A compiled model and a batch of data; a part of one row is masked where the model masks."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((rounds, 8)), *LAYERS[name](), keras.layers.Dense(4)])
    model.compile("adam", "mse")
    x = _tensor(2, 4, rounds, 8)
    x[0, 5:] = 0
    return model, (x, np.zeros((4, *model.output_shape[1:]), np.float32))
