"""A compiled Keras model in a budget: `fit` and its friends work as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.step.keras_inputs import keras_specs
from graphwright.step.targets import trace


def _model(blocks: int = 2, **compile_options: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([keras.Input((20, 20, 3))])
    for _ in range(blocks):
        model.add(layers.Conv2D(16, 3, padding="same", activation="relu"))
        model.add(layers.BatchNormalization())
        model.add(layers.Dropout(0.1))
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(3))
    options: dict[str, Any] = {
        "optimizer": keras.optimizers.Adam(1e-3),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
        "jit_compile": False,
    }
    model.compile(**(options | compile_options))
    return model


def _data(count: int = 40) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 20, 20, 3)).astype("float32"), rng.integers(0, 3, count)


class _Seen(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(dict(logs))


@pytest.mark.slow
def test_fit_gives_the_loss_curve_of_the_plain_model(tmp_path: Path) -> None:
    x, y = _data()  # 40 samples in batches of 16: the last batch of an epoch is smaller
    histories: list[Any] = []
    seen = [_Seen(), _Seen()]
    models = [_model(), gw.optimize_memory(_model(), budget=0.6)]
    for model, callback in zip(models, seen, strict=True):
        keras.utils.set_random_seed(1)
        fitted = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x[:16], y[:16]), shuffle=False, verbose=0, callbacks=[callback])
        histories.append(fitted.history)
    for name in histories[0]:
        np.testing.assert_allclose(histories[1][name], histories[0][name], rtol=2e-3, err_msg=name)
    assert len(seen[1].batches) == 6
    plan = models[1].memory_plan()
    assert plan.peak_bytes <= 0.6 * plan.original_peak_bytes
    assert plan.verification.startswith("equal")
    assert len(models[1].optimized_step.plans) == 2
    assert "taken over" in models[1].optimized_step.plans[1].how["plan"]

    models[1].save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), models[1].predict(x, verbose=0))
    assert np.isfinite(models[1].train_on_batch(x[:16], y[:16])[0])
    assert np.isfinite(models[1].evaluate(x, y, verbose=0)[0])


def test_a_batch_by_hand_and_fit_share_one_plan() -> None:
    x, y = _data(16)
    for inputs in ((x, y), (x, y, None)):
        model = gw.optimize_memory(_model(), budget=0.9, inputs=inputs, cache_dir=None, time_limit_s=0.5)
        model.train_on_batch(x, y)
        model.fit(x, y, batch_size=16, verbose=0)
        assert len(model.optimized_step.plans) == 1


def test_a_step_of_ones_own_gets_the_three_parts_that_keras_gives() -> None:
    class Own(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y, weight = data
            assert weight is None
            return super().train_step((x, y))

    model = Own([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    gw.optimize_memory(model, budget="100%", cache_dir=None, time_limit_s=0.5)
    assert np.isfinite(model.train_on_batch(np.ones((8, 3), "float32"), np.ones((8, 1), "float32")))


def test_compiling_anew_keeps_the_budget() -> None:
    x, y = _data(16)
    model = gw.optimize_memory(_model(), budget=0.7)
    model.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.fit(x, y, batch_size=16, verbose=0)
    assert model.memory_plan().peak_bytes <= 0.7 * model.memory_plan().original_peak_bytes


def test_compiling_anew_takes_the_new_optimizer_and_loss() -> None:
    x, y = _data(16)
    model = gw.optimize_memory(_model(), budget=0.7, time_limit_s=0.5)
    model.fit(x, y, batch_size=16, verbose=0)
    trained = model.layers[-1].get_weights()[0]
    model.compile(keras.optimizers.SGD(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    first = model.optimized_step
    model.fit(x, y, batch_size=16, verbose=0)
    np.testing.assert_array_equal(model.layers[-1].get_weights()[0], trained)
    assert model.optimized_step is not first
    assert model.memory_plan() is model.optimized_step.plan


def test_a_budget_that_is_too_small_leaves_the_model_as_it_was() -> None:
    model = _model(jit_compile="auto")
    jit_compile = model.jit_compile
    with pytest.raises(gw.InfeasibleError):
        gw.optimize_memory(model, budget=0.01, inputs=_data(16), cache_dir=None)
    assert not hasattr(model, "memory_plan")
    assert model.jit_compile == jit_compile
    assert np.isfinite(model.train_on_batch(*_data(16))[0])


def test_a_model_left_to_keras_is_not_compiled_by_xla() -> None:
    model = gw.optimize_memory(_model(jit_compile="auto"), budget=0.7)
    assert model.jit_compile is False


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(gw.ArgumentError, match="not compiled"):
        gw.optimize_memory(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), budget=0.5)
    with pytest.raises(gw.UnsupportedError, match="eagerly"):
        gw.optimize_memory(_model(run_eagerly=True), budget=0.5)


@pytest.mark.slow
def test_inspect_reads_a_model_a_file_and_both_modes(tmp_path: Path) -> None:
    model = _model()
    train = gw.inspect(model, batch=8)
    assert train.parameters.trainable == model.count_params() - 2 * 2 * 16
    assert train.backward_flops > train.forward_flops > 0
    infer = gw.inspect(model, mode="infer", batch=8)
    assert infer.peak_bytes < train.peak_bytes
    assert infer.backward_flops == 0
    model.save(tmp_path / "model.keras")
    assert gw.inspect(tmp_path / "model.keras", batch=8).peak_bytes == train.peak_bytes
    with pytest.raises(gw.ArgumentError, match="batch size"):
        gw.inspect(model)


def test_the_peak_grows_with_the_batch() -> None:
    result = gw.sweep(_model(), batches=(1, 4, 8), budget="6MiB")
    peaks = [p.peak_bytes for p in result.points]
    assert peaks == sorted(peaks)
    assert [p.fits for p in result.points] == [p.peak_bytes <= 6 * 2**20 for p in result.points]
    assert "batch size 8 fits 6.00 MiB, and no larger one" in str(result)


def test_the_targets_shape_follows_from_the_shapes_given_for_the_inputs() -> None:
    tokens, mask = keras.Input((None,), dtype="int32", name="tokens"), keras.Input((None,), name="mask")
    embedded = keras.layers.Embedding(10, 4)(tokens) * mask[:, :, None]
    model = keras.Model({"tokens": tokens, "mask": mask}, keras.layers.Dense(10, "softmax")(embedded))
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    ((x, y),) = keras_specs(model, "train", {"tokens": (2, 6), "mask": (2, 6)}, None)
    assert (x["tokens"].shape, y.shape, y.dtype) == ((2, 6), (2, 6), tf.int32)
    with pytest.raises(gw.ArgumentError, match="more than the batch size open") as raised:
        keras_specs(model, "train", {}, 2)
    assert "batch" not in raised.value.remedy
    assert raised.value.item == "mask"
    assert "'mask': (...), 'tokens': (...)" in raised.value.remedy


def test_a_training_step_is_traced_once() -> None:
    class Counted(keras.Sequential):
        traced = 0

        def train_step(self, *args):
            self.traced += 1
            return super().train_step(*args)

    model = Counted([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("adam", "mse", metrics=["mae"])  # whose variables the first trace would make
    trace(model, batch=2)
    assert model.traced == 1


def test_several_targets_have_names_by_which_they_can_be_fed() -> None:
    x = keras.Input((8,))
    model = keras.Model(x, [keras.layers.Dense(3)(x), keras.layers.Dense(4)(x)])
    model.compile("sgd", "mse")
    feeds = trace(model, batch=4).feeds
    assert list(feeds.values()) == [(4, 8), (4, 3), (4, 4)]
    assert list(feeds)[1:] == ["y_0", "y_1"]
    ((_, (_, second)),) = keras_specs(model, "train", {"y_1": (6, 4)}, 6)
    assert second.name == "y_1"
    assert second.shape.as_list() == [6, 4]
    assert trace(model, feeds=feeds).feeds == feeds
    with pytest.raises(gw.ArgumentError, match="no input 'y_2'"):
        keras_specs(model, "train", {"y_2": (6, 4)}, 6)


def test_data_have_the_names_by_which_they_can_be_fed() -> None:
    tokens, mask = keras.Input((None,), dtype="int32", name="tokens"), keras.Input((None,), name="mask")
    embedded = keras.layers.Embedding(10, 4)(tokens) * mask[:, :, None]
    model = keras.Model({"tokens": tokens, "mask": mask}, keras.layers.Dense(10, "softmax")(embedded))
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    x = {"tokens": np.zeros((4, 6), "int32"), "mask": np.ones((4, 6), "float32")}
    data = tf.data.Dataset.from_tensors((x, np.zeros((4, 6), "int32"), np.ones((4, 6), "float32")))
    feeds = {"mask": (4, 6), "tokens": (4, 6), "y": (4, 6), "sample_weight": (4, 6)}
    traced = trace(model, inputs=data)
    assert traced.feeds == trace(model, feeds=feeds).feeds == feeds
    assert trace(model, feeds=feeds | {"tokens": tf.TensorSpec((4, 6), tf.int64), "y": tf.TensorSpec((4, 6), tf.int64)}).feeds == feeds
    assert traced.is_runnable
    assert trace(model, inputs=x, mode="infer").feeds == trace(model, inputs=data, mode="infer").feeds == {"mask": (4, 6), "tokens": (4, 6)}
    assert trace(model, feeds={"tokens": (4, 6), "mask": (4, 6)}).feeds == {name: feeds[name] for name in list(feeds)[:3]}
    model.fit(data, shuffle=False, verbose=0)
    assert trace(model, feeds={"tokens": (4, 6), "mask": (4, 6)}).feeds == feeds  # as in the earlier call
    with pytest.raises(gw.ArgumentError, match="no input 'sample_weight_1'"):
        trace(model, feeds=feeds | {"sample_weight_1": (4, 6)})


def test_several_weights_have_names_too() -> None:
    x = keras.Input((8,), name="rows")
    model = keras.Model(x, [keras.layers.Dense(3)(x), keras.layers.Dense(4)(x)])
    model.compile("sgd", ["mse", "mse"])
    targets = [np.zeros((4, 3), "float32"), np.zeros((4, 4), "float32")]
    given = trace(model, inputs=(np.zeros((4, 8), "float32"), targets, [np.ones(4, "float32")] * 2))
    feeds = {"rows": (4, 8), "y_0": (4, 3), "y_1": (4, 4), "sample_weight_0": (4,), "sample_weight_1": (4,)}
    assert given.feeds == trace(model, feeds=feeds).feeds == feeds
    assert list(trace(model, feeds={"rows": (4, 8), "sample_weight": [(4,), (4,)]}).feeds) == list(feeds)
