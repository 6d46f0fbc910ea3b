"""Features of frozen layers: the same training, each sample's features computed once, and nothing stale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from graphwright import cache_frozen
from graphwright.errors import ArgumentError, GraphError, UnsupportedError
from graphwright.reuse.feature_store import FeatureStore
from graphwright.reuse.frozen_prefix import find_prefix

COUNT = 50
layers = keras.layers


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(COUNT, 8, 8, 3)).astype("float32"), rng.integers(0, 3, COUNT)


def base_model() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", kernel_regularizer="l2", name="conv")(inputs)
    x = layers.BatchNormalization(name="norm")(x)
    shortcut = layers.ReLU()(x)
    x = layers.Add()([layers.Conv2D(8, 3, padding="same", name="conv_2")(shortcut), shortcut])
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(x), name="base")


def transfer(*, freeze: Callable[[Any], None] | None = None, before: Any = None, policy: str | None = None) -> Any:
    """A frozen network with a head that has dropout, the same at every call."""
    keras.utils.set_random_seed(3)
    if policy:
        keras.config.set_dtype_policy(policy)
    base = base_model()
    base.trainable = False
    if freeze is not None:
        freeze(base)
    inputs = keras.Input((8, 8, 3), name="image")
    x = layers.Rescaling(0.5)(inputs)
    x = base(x if before is None else before(x), training=False)
    x = layers.Dropout(0.4)(layers.Dense(6, activation="relu", name="hidden")(x))
    model = keras.Model(inputs, layers.Dense(3, name="head", dtype="float32")(x))
    keras.config.set_dtype_policy("float32")
    return compiled(model)


def compiled(model: Any) -> Any:
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def arrays() -> dict[str, Any]:
    x, y = data()
    return {"x": x, "y": y, "batch_size": 16}


def data_set() -> dict[str, Any]:
    keras.utils.set_random_seed(5)  # of which the order depends, too
    return {"x": tf.data.Dataset.from_tensor_slices(data()).shuffle(COUNT, seed=5).batch(16), "shuffle": False}


def generator() -> dict[str, Any]:
    x, y = data()
    return {"x": ((x[k : k + 10], y[k : k + 10]) for _ in range(3) for k in range(0, COUNT, 10)), "steps_per_epoch": 5, "shuffle": False}


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        x, y = data()
        return x[10 * index : 10 * index + 10], y[10 * index : 10 * index + 10]


def py_data_set() -> dict[str, Any]:
    return {"x": Batches(), "shuffle": False}


def history_of(model: Any, given: dict[str, Any], **more: Any) -> dict[str, list[float]]:
    keras.utils.set_random_seed(11)
    return model.fit(**given, epochs=3, verbose=0, **more).history


def assert_same(plain: dict[str, list[float]], cached: dict[str, list[float]], tolerance: float = 1e-5) -> None:
    assert plain.keys() == cached.keys()
    for name, values in plain.items():
        np.testing.assert_allclose(cached[name], values, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("given", [arrays, *(pytest.param(made, marks=pytest.mark.slow) for made in (data_set, generator, py_data_set))])
def test_training_is_the_same_and_features_are_computed_once(given: Callable[[], dict[str, Any]]) -> None:
    plain, model = transfer(), cache_frozen(transfer())
    x, y = data()
    expected = history_of(plain, given(), validation_data=(x[:20], y[:20]))
    assert_same(expected, history_of(model, given(), validation_data=(x[:20], y[:20])))
    assert model.frozen_cache.computed == COUNT
    for variable, other in zip(plain.variables, model.variables, strict=True):
        np.testing.assert_allclose(variable.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(plain.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(plain.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0), rtol=1e-4)
    assert model.frozen_cache.computed == COUNT


def test_a_part_of_the_data_for_validation_callbacks_and_saving(tmp_path: Path) -> None:
    plain, model = transfer(), cache_frozen(transfer())
    path = tmp_path / "best.keras"
    kept = [keras.callbacks.ModelCheckpoint(path), keras.callbacks.EarlyStopping(monitor="loss", patience=0, min_delta=10.0)]
    expected = history_of(plain, arrays(), validation_split=0.2, callbacks=[kept[1]])
    assert_same(expected, history_of(model, arrays(), validation_split=0.2, callbacks=kept))
    assert len(expected["loss"]) < 3  # it was stopped
    x, _ = data()
    saved = keras.models.load_model(path)
    np.testing.assert_allclose(saved.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5)
    assert "frozen_cache" not in vars(saved)


def test_models_inside_are_frozen_in_part() -> None:
    def release(base: Any) -> None:
        base.trainable = True
        for name in ("conv", "norm"):
            base.get_layer(name).trainable = False

    plain, model = transfer(freeze=release), cache_frozen(transfer(freeze=release))
    prefix = find_prefix(model)
    assert [call.name for call in prefix.prefix if call.has_weights] == ["conv", "norm"]
    assert len(prefix.features) == 1  # the shortcut and the convolution take the same
    assert_same(history_of(plain, arrays()), history_of(model, arrays()))


def test_inputs_that_the_head_takes_itself_by_name() -> None:
    def make() -> Any:
        keras.utils.set_random_seed(1)
        image, age = keras.Input((8, 8, 3), name="image"), keras.Input((2,), name="age")
        base = base_model()
        base.trainable = False
        both = layers.Concatenate()([base(image), age])
        return compiled(keras.Model({"image": image, "age": age}, layers.Dense(3)(both)))

    x, y = data()
    fed = {"image": x, "age": np.stack([np.arange(COUNT), np.ones(COUNT)], 1).astype("float32") / COUNT}
    plain, model = make(), cache_frozen(make())
    assert_same(history_of(plain, {"x": fed, "y": y}), history_of(model, {"x": fed, "y": y}))
    in_batches = {"x": tf.data.Dataset.from_tensor_slices((fed, y)).batch(10), "shuffle": False}
    assert_same(history_of(plain, in_batches), history_of(model, in_batches))
    assert model.frozen_cache.computed == COUNT


def test_features_of_other_weights_are_forgotten() -> None:
    plain, model = transfer(), cache_frozen(transfer())
    history_of(plain, arrays())
    history_of(model, arrays())
    for each in (plain, model):
        conv = each.get_layer("base").get_layer("conv")
        conv.set_weights([-weight for weight in conv.get_weights()])
    assert_same(history_of(plain, arrays()), history_of(model, arrays()))
    assert model.frozen_cache.computed == 2 * COUNT


def _small(base: Any, *, training: bool | None = None) -> Any:
    base.trainable = False
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(3)(base(inputs, training=training)))


def _nested() -> Any:
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(5, activation="relu")])
    return _small(keras.Sequential([keras.Input((6,)), inner, layers.Dense(4)], name="base"))


def test_a_base_that_is_released_as_a_whole_is_trained_plainly_until_it_is_frozen_again() -> None:
    x, y = np.random.default_rng(0).normal(size=(24, 6)).astype("float32"), np.arange(24) % 3
    keras.utils.set_random_seed(3)
    plain = _nested()
    keras.utils.set_random_seed(3)
    model = cache_frozen(_nested())
    kernel = model.get_layer("base").trainable_weights or model.get_layer("base").weights
    for stage, is_trained in enumerate((False, True, False)):
        before = kernel[0].numpy()
        for each in (plain, model):
            each.get_layer("base").trainable = is_trained
            compiled(each)
        given = {"x": x, "y": y, "batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        histories = [each.fit(**given).history for each in (plain, model)]
        assert_same(*histories, tolerance=1e-4)
        np.testing.assert_allclose(*(each.evaluate(x, y, verbose=0) for each in (plain, model)), rtol=1e-4)
        np.testing.assert_allclose(*(each.predict(x, verbose=0) for each in (plain, model)), rtol=1e-4, atol=1e-5)
        assert np.array_equal(kernel[0].numpy(), before) is not is_trained
        assert (model.frozen_cache.nbytes > 0) is not is_trained, f"stage {stage}"
    assert model.frozen_cache.computed == 2 * len(x), "each state of the base once"


def test_weights_that_a_callback_changes_are_noticed() -> None:
    model = cache_frozen(transfer())
    conv = model.get_layer("base").get_layer("conv")
    change = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: conv.kernel.assign_add(tf.ones_like(conv.kernel)))
    with pytest.raises(GraphError, match="before epoch 2, while their features were in use"):
        history_of(model, arrays(), callbacks=[change])
    history_of(model, arrays())  # what raised left it as it was
    assert model.frozen_cache.computed == 2 * COUNT


@pytest.mark.slow
def test_a_folder_serves_the_next_process(tmp_path: Path) -> None:
    expected = history_of(transfer(), arrays())
    for computed in (COUNT, 0):
        model = cache_frozen(transfer(), folder=tmp_path / "features")
        assert_same(expected, history_of(model, arrays()))
        assert model.frozen_cache.computed == computed
    model.frozen_cache.clear()
    assert "0 samples" in repr(model.frozen_cache)


def test_memory_is_bounded() -> None:
    model = cache_frozen(transfer(), max_bytes=10 * 8 * 4)
    assert_same(history_of(transfer(), data_set()), history_of(model, data_set()))
    assert model.frozen_cache.nbytes == 10 * 8 * 4
    store = FeatureStore(max_bytes=8)
    store.put({key: (np.zeros(1, "float32"),) for key in (b"a", b"b", b"c")})
    assert (store.get(b"a"), len(store), store.nbytes) == (None, 2, 8)


def test_it_is_taken_away() -> None:
    model = cache_frozen(cache_frozen(transfer()))
    model.frozen_cache.remove()
    assert not {"fit", "evaluate", "frozen_cache"} & set(vars(model))
    assert_same(history_of(transfer(), arrays()), history_of(model, arrays()))


def augmented() -> Any:
    return transfer(before=layers.RandomFlip(name="flip"))


def dropout_inside() -> Any:
    base = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dropout(0.5, name="drop"), layers.Dense(2, name="frozen")])
    base.trainable = False
    return compiled(keras.Sequential([keras.Input((4,)), base, layers.Dense(3)]))


def statistics_move() -> Any:
    norm = layers.BatchNormalization(center=False, scale=False, name="moving")
    frozen = layers.Dense(3, trainable=False, name="frozen")
    return compiled(keras.Sequential([keras.Input((4,)), norm, frozen, layers.Dense(3)]))


def penalized() -> Any:
    frozen = layers.Dense(3, trainable=False, activity_regularizer="l2", name="penalized")
    return compiled(keras.Sequential([keras.Input((4,)), frozen, layers.Dense(3)]))


def masked() -> Any:
    frozen = layers.Embedding(10, 4, mask_zero=True, trainable=False, name="words")
    return compiled(keras.Sequential([keras.Input((5,), dtype="int32"), frozen, layers.LSTM(3)]))


def all_trained() -> Any:
    return compiled(keras.Sequential([keras.Input((4,)), layers.Dense(3, name="first"), layers.Dense(3, trainable=False)]))


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def own_step() -> Any:
    inputs = keras.Input((4,))
    return compiled(OwnStep(inputs, layers.Dense(3)(layers.Dense(2, trainable=False)(inputs))))


class OwnCall(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (augmented, "frozen layer 'conv' are not the same in every epoch: layer 'flip' writes to a variable"),
        (dropout_inside, "frozen layer 'frozen' are not the same in every epoch: layer 'drop'"),
        (statistics_move, "layer 'moving' writes to a variable (?s:.*)freeze batch norms"),
        (penalized, "layer 'penalized' adds a loss"),
        (masked, "layer 'words' gives a mask"),
        (all_trained, "layer 'first' is the first that is trained"),
        (own_step, "OwnStep .* replaces train_step"),
        (OwnCall, "OwnCall .* does not state how its layers are connected"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], words: str) -> None:
    model = make()
    with pytest.raises(UnsupportedError, match=words):
        cache_frozen(model)
    assert not {"fit", "evaluate", "frozen_cache"} & set(vars(model))


def test_features_that_depend_on_the_batch_are_refused() -> None:
    center = layers.Lambda(lambda x: x - keras.ops.mean(x, axis=0, keepdims=True))
    model = cache_frozen(transfer(before=center))
    with pytest.raises(UnsupportedError, match="depend on the other samples of its batch"):
        history_of(model, arrays())


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="a function was given, not a Keras model"):
        cache_frozen(lambda x: x)
    with pytest.raises(ArgumentError, match="beside a folder"):
        cache_frozen(transfer(), folder=tmp_path, max_bytes=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="no folder"):
        cache_frozen(transfer(), folder=tmp_path / "file")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_with_features_that_are_no_numbers(bad: float) -> None:
    """They were taken for features that differ with the batch."""
    x, y = data()
    x[0] = bad
    cached, plain = cache_frozen(transfer()), transfer()
    np.testing.assert_allclose(cached.evaluate(x, y, verbose=0), plain.evaluate(x, y, verbose=0), rtol=1e-6)
    np.testing.assert_allclose(cached.evaluate(x[1:], y[1:], verbose=0), plain.evaluate(x[1:], y[1:], verbose=0), rtol=1e-5)
    assert cached.frozen_cache.computed == COUNT


def test_pixels_are_told_apart_as_they_are_given() -> None:
    """Whole numbers, in arrays and in a data set, which the model reads as floating-point ones."""
    x, y = np.random.default_rng(0).integers(0, 255, (COUNT, 8, 8, 3), np.uint8), data()[1]
    plain, model = transfer(), cache_frozen(transfer())
    history = [m.fit(x, y, batch_size=16, shuffle=False, verbose=0).history for m in (plain, model)]
    assert_same(*history)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    assert np.allclose(plain.evaluate(batches, verbose=0), model.evaluate(batches, verbose=0))
    assert (model.frozen_cache.computed, model.frozen_cache.found) == (COUNT, COUNT)
