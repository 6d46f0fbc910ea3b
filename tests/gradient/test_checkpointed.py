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
    for call in (block, block.function):
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


def _used_mib() -> float:
    return tf.config.experimental.get_memory_info("CPU:0")["current"] / 2**20


def test_an_eager_tape_holds_what_the_plan_keeps_and_no_more() -> None:
    def block(x: Any) -> Any:
        for _ in range(10):
            x = tf.tanh(x)
        return x

    wrapped = gw.checkpointed(block, checkpoints="inputs")
    x = tf.ones((512, 512))
    held: list[float] = []
    for function in (wrapped, wrapped, block):  # the first call traces
        with tf.GradientTape() as tape:
            tape.watch(x)
            before = _used_mib()
            y = function(x)
            held.append(_used_mib() - before)
        assert tape.gradient(y, x) is not None
        del tape, y
    assert held[1] < 2.5
    assert held[2] > 9.5


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("inner", ["checkpointed", "function", "recompute_grad"])
def test_functions_inside_under_a_persistent_tape(inner: str, graph: bool) -> None:
    w = tf.Variable(tf.random.stateless_normal((16, 16), (1, 2), dtype=tf.float64))
    wrap = {"checkpointed": gw.checkpointed, "function": tf.function, "recompute_grad": tf.recompute_grad}[inner]
    called = wrap(lambda h: tf.sin(tf.tanh(h @ w)))

    def bare(x: Any) -> Any:
        return tf.tanh(called(tf.sin(x)))

    def step(function: Any, x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = function(x)
        return [y, *tape.gradient(y, [x, w]), tape.gradient(y, x)]

    x = tf.random.stateless_normal((5, 16), (3, 4), dtype=tf.float64)
    wrapped = gw.checkpointed(bare, checkpoints="inputs")
    found = [(tf.function(step) if graph else step)(function, x) for function in (bare, wrapped)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.parametrize("outside", [False, True])
def test_forward_mode(outside: bool) -> None:
    w = tf.Variable(tf.random.stateless_normal((16, 16), (1, 2), dtype=tf.float64))
    x = tf.random.stateless_normal((5, 16), (3, 4), dtype=tf.float64)

    def bare(x: Any) -> Any:
        return tf.tanh(tf.sin(x @ w))

    found: list[Any] = []
    for function in (bare, gw.checkpointed(bare, checkpoints="inputs")):
        called = tf.function(function) if outside else function
        with tf.autodiff.ForwardAccumulator([x, w], [tf.ones_like(x), tf.ones_like(w)]) as accumulator:
            y = called(x)
        found.append([accumulator.jvp(y)])
        if not outside:  # forward over backward; a function with variables is refused by TensorFlow itself there
            with tf.autodiff.ForwardAccumulator([x, w], [tf.ones_like(x), tf.ones_like(w)]) as accumulator:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = called(x)
                slopes = tape.gradient(y, [x, w])
            found[-1] += [accumulator.jvp(slope) for slope in slopes]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_results_that_are_no_plain_tensors() -> None:
    weight = tf.Variable(tf.ones((4,)))

    def bare(x: Any) -> Any:
        values = tf.tanh(x)
        ragged = tf.RaggedTensor.from_row_lengths(values, [1, 3])
        return {"ragged": ragged, "slices": tf.IndexedSlices(values, tf.range(4)), "weight": weight, "nothing": (None, ())}

    x = tf.constant([1.0, 2.0, 3.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        made = gw.checkpointed(bare)(x)
        loss = tf.reduce_sum(made["ragged"].flat_values * made["slices"].values * made["weight"])
    assert made["ragged"].to_list() == bare(x)["ragged"].to_list()
    assert made["nothing"] == (None, ())
    by_x, by_weight = tape.gradient(loss, [x, weight])
    np.testing.assert_allclose(by_x, 2 * tf.tanh(x) * (1 - tf.tanh(x) ** 2), rtol=1e-6)
    np.testing.assert_allclose(by_weight, tf.tanh(x) ** 2, rtol=1e-6)
    assert gw.checkpointed(lambda _: None)(x) is None


def test_a_variable_that_is_not_trainable_and_that_a_tape_watches() -> None:
    fixed = [tf.Variable(tf.ones((8, 8)), trainable=False) for _ in range(2)]
    wrapped = gw.checkpointed(lambda x: tf.sin(tf.tanh(x @ fixed[0]) @ fixed[1]), checkpoints="inputs")
    x = tf.ones((2, 8))
    for watched in ([], fixed[:1], fixed[1:]):
        found: list[Any] = []
        for function in (wrapped, wrapped.function):
            with tf.GradientTape() as tape:
                tape.watch([x, *watched])
                y = function(x)
            found.append(tape.gradient(y, [x, *fixed]))
        for variable, one, other in zip((x, *fixed), *found, strict=True):
            assert (one is None) == (other is None) == all(variable is not w for w in (x, *watched))
            if one is not None:
                np.testing.assert_allclose(one, other, rtol=1e-5)


def test_the_call_of_a_keras_layer() -> None:
    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.dropout = keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.5)

        @gw.checkpointed(checkpoints="inputs")
        def call(self, x: Any, training: bool = False) -> Any:
            return self.dropout(self.dense(self.dense(x)), training=training)

    image = keras.Input((8,))
    model = keras.Model(image, Block()(Block()(image)))
    model.compile("sgd", "mse", jit_compile=False)
    x = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    before = model.get_weights()
    model.fit(x, x, batch_size=8, verbose=0)
    assert all(np.abs(a - b).max() > 0 for a, b in zip(before, model.get_weights(), strict=True) if a.dtype == np.float32)
    assert np.abs(model(x) - model(x)).max() == 0 < np.abs(model(x, training=True) - model(x)).max()
    assert isinstance(model.layers[1].call.plans, tuple)
    assert keras.layers.Lambda(gw.checkpointed(tf.tanh))(x).shape == x.shape


def test_open_shapes_are_said_as_the_caller_knows_them() -> None:
    wrapped = gw.checkpointed(lambda x: tf.tanh(tf.sin(tf.tanh(x))), time_limit_s=0.1)
    traced = tf.function(wrapped, input_signature=[tf.TensorSpec((None, 64))])
    with pytest.warns(gw.AssumedSizeWarning, match="dimensions of argument_0, gradient_of_result_0.* tensors of known"):
        traced(tf.ones((3, 64)))


def test_second_derivatives_of_what_is_random_are_refused() -> None:
    wrapped = gw.checkpointed(lambda h: tf.nn.dropout(tf.tanh(tf.sin(h)), 0.5), checkpoints="inputs")
    x = tf.ones((64, 64))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(wrapped(x))
        slope = tape.gradient(y, x)
    with pytest.raises(gw.UnsupportedError, match="second derivatives"):
        outer.gradient(slope, x)
