"""Ragged and sparse tensors as arguments: flattened as `tf.function` does it, their sizes taken from the example, or bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.step.flatten import flat_step
from graphwright.step.targets import trace

ROWS, WORDS, WIDTH = 90, 40, 8
_RNG = np.random.default_rng(0)
_LENGTHS = _RNG.integers(1, 9, ROWS)
_RAGGED = tf.RaggedTensor.from_row_splits(_RNG.integers(0, WORDS, _LENGTHS.sum()), np.concatenate([[0], np.cumsum(_LENGTHS)]))
_DENSE = (_RNG.random((ROWS, WORDS)) > 0.9).astype("float32")
_DENSE[:, 0] = 1
_SPARSE = tf.sparse.from_dense(_DENSE)
_IDS = tf.sparse.from_dense(np.where(_DENSE > 0, np.arange(WORDS, dtype=np.int64) % (WORDS - 1) + 1, 0))
_TARGET = tf.ones((ROWS, 1))


def _words(weight: Any, ragged: Any) -> Any:
    return tf.reduce_mean(tf.gather(weight, ragged), 1)


def _padded(weight: Any, ragged: Any) -> Any:
    rows = tf.identity(tf.gather(weight, ragged).to_tensor(), name="padded")
    return tf.reduce_sum(rows * tf.sequence_mask(ragged.row_lengths(), dtype=tf.float32)[..., None], 1)


_KINDS: dict[str, tuple[Callable[..., Any], Any]] = {
    "row splits": (lambda weight, data: _words(weight, data), _RAGGED),
    "padded": (lambda weight, data: _padded(weight, data), _RAGGED),
    "sparse in a mapping": (lambda weight, data: tf.sparse.sparse_dense_matmul(data["bag"], weight), {"bag": _SPARSE}),
    "lookup": (lambda weight, data: tf.nn.embedding_lookup_sparse(weight, data, None, combiner="mean"), _IDS),
    "nested": (
        lambda weight, data: _words(weight, data[0]) + tf.sparse.sparse_dense_matmul(data[1]["bag"], weight),
        (_RAGGED, {"bag": _SPARSE}),
    ),
}


def _step(kind: str) -> tuple[Any, Callable[[], None]]:
    """A training step, and a function that puts its variables back."""
    weight, head = (tf.Variable(tf.random.stateless_normal(shape, (0, 1))) for shape in ((WORDS, WIDTH), (WIDTH, 1)))
    first = [weight.numpy(), head.numpy()]
    forward = _KINDS[kind][0]

    @tf.function
    def step(data: Any, target: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(forward(weight, data)) @ head - target) ** 2)
        for variable, gradient in zip((weight, head), tape.gradient(loss, (weight, head)), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    return step, lambda: [variable.assign(value) for variable, value in zip((weight, head), first, strict=True)] and None


_SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("padded", "lookup")]


@pytest.mark.parametrize("kind", ["row splits", "sparse in a mapping", "nested", *_SLOW])
def test_a_step_trains_in_a_budget_bit_for_bit(kind: str) -> None:
    step, reset = _step(kind)
    inputs = (_KINDS[kind][1], _TARGET)
    plain = [float(step(*inputs)) for _ in range(2)]
    reset()
    planned = gw.optimize_memory(step, "100%", inputs=inputs, cache_dir=None, time_limit_s=0.5)
    assert planned.plan.verification.startswith("equal")
    assert [float(planned(*inputs)) for _ in range(2)] == plain
    assert len(planned.plans) == 1
    assert not gw.count_flops(step, inputs=inputs).unknown


def test_sizes_are_those_of_the_example() -> None:
    step, _ = _step("padded")
    flat = flat_step(trace(step, inputs=(_RAGGED, _TARGET)))
    padded = flat.graph["padded"].outputs[0]
    assert padded.shape == (ROWS, int(_LENGTHS.max()), WIDTH) == tuple(tf.gather(tf.zeros((WORDS, WIDTH)), _RAGGED).to_tensor().shape)
    assert flat.graph.at_most[padded] == (None, None, WIDTH), "other data have other sizes: the graph that runs states none"
    assert "as in the example inputs" in flat.how["sizes"]


def test_measuring_sizes_changes_nothing() -> None:
    count = tf.Variable(0, dtype=tf.int32)

    @tf.function
    def step(lengths: Any) -> Any:
        with tf.control_dependencies([count.assign_add(1)]):
            total = tf.reduce_sum(lengths)
        return tf.reduce_sum(tf.sort(tf.ones([total, 2])), 0), tf.reduce_sum(tf.sort(tf.ones([tf.reduce_max(lengths)])))

    with pytest.raises(gw.UnknownShapeError, match=r"tf\.ensure_shape"):  # one of the sizes needs what changes the variable
        gw.inspect(step, inputs=(tf.constant([300, 500]),))
    assert int(count) == 0


def test_a_sparse_spec_is_bounded_by_its_dense_shape() -> None:
    step, _ = _step("sparse in a mapping")
    whole = tf.sparse.from_dense(np.ones((ROWS, WORDS), "float32"))
    spec = tf.SparseTensorSpec((ROWS, WORDS), tf.float32)
    by_spec = gw.predict_peak(step, feeds={"data": {"bag": spec}, "target": (ROWS, 1)}, order="traced")
    by_inputs = gw.predict_peak(step, inputs=({"bag": whole}, _TARGET), order="traced")
    assert by_spec.peak_bytes == by_inputs.peak_bytes > gw.predict_peak(step, inputs=({"bag": _SPARSE}, _TARGET), order="traced").peak_bytes


@pytest.mark.parametrize(
    "spec",
    [
        tf.RaggedTensorSpec((ROWS, None), tf.int64, 1),
        tf.SparseTensorSpec((None, WORDS), tf.int64),
        tf.SparseTensorSpec((ROWS, None), tf.int64),
    ],
)
def test_a_spec_that_leaves_sizes_open_asks_for_example_inputs(spec: Any) -> None:
    step = tf.function(lambda data, target: tf.reduce_sum(data.values) + tf.cast(tf.reduce_sum(target), tf.int64))
    with pytest.raises(gw.UnknownShapeError, match=r"argument 'data' is .*which leaves sizes open") as error:
        gw.inspect(step, feeds={"data": spec, "target": (ROWS, 1)})
    assert "inputs=" in str(error.value)
    assert "feeds={" not in str(error.value), "no shape binds it"
    data = _RAGGED if isinstance(spec, tf.RaggedTensorSpec) else _IDS
    assert gw.inspect(step, inputs=(data, _TARGET)).feeds["target"] == (ROWS, 1), "the remedy works"


def _bag_of_words() -> Any:
    words = keras.Input((WORDS,), sparse=True)
    return keras.Model(words, keras.layers.Dense(1)(keras.layers.Dense(4, activation="tanh")(words))), _SPARSE


def _sentences() -> Any:
    words = keras.Input((None,), dtype="int64", ragged=True)
    embedded = keras.layers.Lambda(lambda ids: tf.reduce_mean(tf.one_hot(ids, WORDS), 1), output_shape=(WORDS,))(words)
    return keras.Model(words, keras.layers.Dense(1)(embedded)), _RAGGED


@pytest.mark.parametrize("make", [_bag_of_words, pytest.param(_sentences, marks=pytest.mark.slow)])
def test_keras_models_take_them_as_inputs(make: Callable[[], Any]) -> None:
    def history(budget: str | None) -> Any:
        keras.utils.set_random_seed(0)
        model, data = make()
        model.compile("sgd", "mse")
        if budget:
            gw.optimize_memory(model, budget, cache_dir=None, time_limit_s=0.5)
        data_set = tf.data.Dataset.from_tensors((data, _TARGET))
        return model.fit(data_set, epochs=2, shuffle=False, verbose=0).history["loss"]

    np.testing.assert_allclose(history("100%"), history(None), rtol=1e-6)
    model, data = make()
    model.compile("sgd", "mse")
    assert gw.inspect(model, inputs=(data, _TARGET)).peak_bytes > 0


_SLOW_SWEEPS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("row splits", "nested")]


@pytest.mark.parametrize("kind", ["sparse in a mapping", *_SLOW_SWEEPS])
def test_a_sweep_repeats_the_rows_of_the_example(kind: str) -> None:
    step, _ = _step(kind)
    data = _KINDS[kind][1]
    found = gw.sweep(step, batches=(ROWS, 2 * ROWS), inputs=(data, _TARGET))
    twice = tf.nest.map_structure(lambda t: (tf.sparse.concat if isinstance(t, tf.SparseTensor) else tf.concat)(axis=0, **_pair(t)), data)
    for point, inputs in zip(found.points, ((data, _TARGET), (twice, tf.ones((2 * ROWS, 1)))), strict=True):
        assert point.peak_bytes == gw.predict_peak(step, inputs=inputs).peak_bytes
    assert "rows of ragged and sparse inputs are those of the examples" in found.how


def _pair(tensor: Any) -> dict[str, Any]:
    return {"sp_inputs" if isinstance(tensor, tf.SparseTensor) else "values": [tensor, tensor]}


def test_a_sweep_over_an_open_ragged_spec_asks_for_example_inputs() -> None:
    step, _ = _step("row splits")
    with pytest.raises(gw.ArgumentError, match=r"feeds\['data'\]") as error:
        gw.sweep(step, {"data": tf.RaggedTensorSpec((None, None), tf.int64), "target": (None, 1)})
    assert "inputs=" in str(error.value)
