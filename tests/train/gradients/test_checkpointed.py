"""`gw.checkpointed`: results, gradients and state as without it, eagerly and inside `tf.function`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw


@pytest.fixture(scope="module")
def model() -> Any:
    """Convolutions with batch norm and dropout."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    hidden = image = keras.Input((12, 12, 3))
    for _ in range(3):
        hidden = layers.Conv2D(16, 3, padding="same", activation="relu")(hidden)
        hidden = layers.Dropout(0.3)(layers.BatchNormalization()(hidden))
    return keras.Model(image, layers.Dense(3)(layers.Flatten()(hidden)))


def _gradients(model: Any, function: Any, *, graph: bool) -> tuple[list[Any], list[Any]]:
    """Gradients of the input and of all weights, and the state afterward; the state before is the same for every call."""
    states = [v for v in model.variables if not v.trainable]
    states += [layer.seed_generator.state for layer in model.layers if getattr(layer, "seed_generator", None) is not None]
    for state in states:
        state.assign(tf.ones_like(state) if state.dtype == "float32" else tf.cast(tf.range(tf.size(state)), state.dtype))
    x = tf.random.stateless_normal((8, 12, 12, 3), (1, 2))
    weights = model.trainable_variables

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x, training=True) ** 2)
        return tape.gradient(loss, [x, *(w.value for w in weights)])

    found = (tf.function(step) if graph else step)(x)
    return [g.numpy() for g in found], [np.asarray(state.value) for state in states]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("checkpoints", ["memory", "inputs"])
def test_a_model_with_state_and_random_numbers(model: Any, checkpoints: str, graph: bool) -> None:
    plain, after = _gradients(model, model, graph=graph)
    wrapped = gw.checkpointed(model, checkpoints=checkpoints, time_limit_s=0.5)
    found, after_wrapped = _gradients(model, wrapped, graph=graph)
    top = max(float(np.abs(g).max()) for g in plain)
    assert all(float(np.abs(p - f).max()) <= 1e-5 * top for p, f in zip(plain, found, strict=True))
    for one, other in zip(after, after_wrapped, strict=True):
        np.testing.assert_array_equal(one, other)
    (plan,) = wrapped.plans
    assert plan.recomputed_count > 0
    assert plan.peak_bytes < plan.plain_peak_bytes


def test_structures_closures_and_what_is_no_tensor() -> None:
    w, outside = tf.Variable(tf.ones((64, 64), tf.float64) / 64), tf.constant(np.eye(64))

    @gw.checkpointed(checkpoints="inputs")
    def block(pair: dict[str, Any], *, twice: bool) -> Any:
        hidden = tf.tanh(pair["a"] @ w) @ outside
        hidden = tf.tanh(tf.sin(hidden)) if twice else hidden
        return {"sum": hidden + pair["b"], "count": tf.size(hidden), "nothing": None}

    a, b = tf.ones((64, 64), tf.float64), tf.zeros((64, 64), tf.float64)
    found: list[Any] = []
    for call in (block, block._fn):
        with tf.GradientTape() as tape:
            tape.watch([a, b, outside])
            made = call({"a": a, "b": b}, twice=True)
            loss = tf.reduce_sum(tf.cast(made["count"], tf.float64) * made["sum"])
        assert made["nothing"] is None
        found.append(tape.gradient(loss, [a, b, outside, w]))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    block({"a": a, "b": b}, twice=False)
    assert len(block._signatures) == 2


def test_embeddings_give_sparse_gradients() -> None:
    table = tf.Variable(tf.random.stateless_normal((100, 32), (1, 2), dtype=tf.float64))
    wrapped = gw.checkpointed(lambda rows: tf.tanh(tf.sin(tf.nn.embedding_lookup(table, rows))), checkpoints="inputs")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(wrapped(tf.constant([3, 4, 3] * 20)))
    found = tape.gradient(loss, table)
    assert isinstance(found, tf.IndexedSlices)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.tanh(tf.sin(tf.nn.embedding_lookup(table, tf.constant([3, 4, 3] * 20)))))
    np.testing.assert_allclose(tf.convert_to_tensor(found), tf.convert_to_tensor(tape.gradient(loss, table)), rtol=1e-12)


def test_closing_over_a_tensor_of_a_graph_that_is_traced() -> None:
    @tf.function
    def step(x: Any) -> Any:
        scale = tf.reduce_mean(x) + 2.0
        wrapped = gw.checkpointed(lambda h: tf.tanh(tf.sin(h * scale)), checkpoints="inputs")
        with tf.GradientTape() as tape:
            tape.watch([x, scale])
            y = tf.reduce_sum(wrapped(x))
        return tape.gradient(y, [x, scale])

    x = tf.random.stateless_normal((64, 64), (1, 2))
    with tf.GradientTape() as tape:
        scale = tf.reduce_mean(x) + 2.0
        tape.watch([x, scale])
        y = tf.reduce_sum(tf.tanh(tf.sin(x * scale)))
    for one, other in zip(step(x), tape.gradient(y, [x, scale]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_numbers_that_are_equal_but_of_another_type() -> None:
    wrapped = gw.checkpointed(lambda x, by: tf.tanh(tf.sin(x)) * tf.cast(tf.constant(by) / 2, x.dtype), checkpoints="inputs")
    x = tf.ones((64, 64))
    for by in (1, 1.0, 0.0, -0.0):
        wrapped(x, by)
    assert len(wrapped._signatures) == 4


@pytest.mark.parametrize("graph", [False, True])
def test_second_derivatives(graph: bool) -> None:
    """By arguments, a tensor that is closed over, variables (one of them an embedding), and incoming gradients that depend on them."""
    w = tf.Variable(tf.random.stateless_normal((16, 16), (1, 2), dtype=tf.float64) / 4)
    table = tf.Variable(tf.random.stateless_normal((9, 16), (3, 4), dtype=tf.float64))
    scale = tf.constant(np.linspace(1, 2, 16))

    def bare(h: Any, rows: Any) -> Any:
        hidden = tf.tanh(h @ w + tf.nn.embedding_lookup(table, rows)) * scale
        return {"out": tf.tanh(tf.sin(hidden)) ** 2, "count": tf.size(rows)}

    def penalized(function: Any, x: Any, rows: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch([x, scale])
            with tf.GradientTape() as tape:
                tape.watch([x, scale])
                loss = tf.reduce_sum(function(x, rows)["out"] ** 2)
            slopes = tape.gradient(loss, [x, scale, w, table])
            total = loss + tf.add_n([tf.reduce_sum(tf.convert_to_tensor(slope) ** 2) for slope in slopes])
        return [tf.convert_to_tensor(g) for g in outer.gradient(total, [x, scale, w, table])]

    wrapped = gw.checkpointed(bare, checkpoints="inputs")
    found: list[Any] = []
    for function in (bare, wrapped):
        step = tf.function(penalized) if graph else penalized
        found.append(step(function, tf.random.stateless_normal((5, 16), (5, 6), dtype=tf.float64), tf.constant([1, 4, 1, 7, 0])))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_third_derivatives() -> None:
    wrapped = gw.checkpointed(lambda h: tf.tanh(tf.sin(h)), checkpoints="inputs")
    found: list[Any] = []
    for function in (wrapped, wrapped._fn):
        value = x = tf.constant(np.linspace(-1, 1, 64))
        with tf.GradientTape() as third:
            third.watch(x)
            with tf.GradientTape() as second:
                second.watch(x)
                with tf.GradientTape() as first:
                    first.watch(x)
                    value = function(x)
                value = first.gradient(value, x)
            value = second.gradient(value, x)
        found.append(third.gradient(value, x))
    np.testing.assert_allclose(*found, rtol=1e-10)


def test_second_derivatives_of_what_is_random_are_refused() -> None:
    wrapped = gw.checkpointed(lambda h: tf.nn.dropout(tf.tanh(tf.sin(h)), 0.5), checkpoints="inputs")
    x = tf.ones((64, 64))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(wrapped(x))
        slope = tape.gradient(y, x)
    with pytest.raises(gw.UnsupportedError, match="gradients of the gradients"):
        outer.gradient(slope, x)


def test_blocks_of_a_model_under_fit() -> None:
    """Each block keeps its inputs alone; the loss goes down as it does without."""
    keras.utils.set_random_seed(1)

    class Blocks(keras.Model):
        def __init__(self, wrap: bool) -> None:
            super().__init__()
            self.parts = [keras.layers.Dense(64, activation="gelu", name=f"part{k}") for k in range(4)]
            self.calls = [gw.checkpointed(part, checkpoints="inputs") if wrap else part for part in self.parts]
            self.last = keras.layers.Dense(1)

        def build(self, shape: Any) -> None:
            for part in self.parts:
                part.build((None, 64))
            self.last.build((None, 64))

        def call(self, x: Any) -> Any:
            for part in self.calls:
                x = part(x)
            return self.last(x)

    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    y = x[:, :1] ** 2
    losses: list[list[float]] = []
    start: list[Any] = []
    for wrap in (False, True):
        model = Blocks(wrap)
        model.build((None, 64))
        start = start or model.get_weights()
        model.set_weights(start)
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
        losses.append(model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]
