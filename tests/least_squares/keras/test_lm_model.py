"""`LMModel` in `fit`, with what Keras has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphwright.errors import ArgumentError, UnsupportedError

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

from graphwright.train import LMModel  # noqa: E402

X = np.linspace(-1.0, 1.0, 50, dtype=np.float32)[:, np.newaxis]
Y = np.sin(3.0 * X)


def small() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])


def test_fit_with_all_that_keras_has(tmp_path: Path) -> None:
    model = LMModel(small())
    model.compile("mse", metrics=["mae"], method="cholesky")
    seen: list[int] = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    weights = np.ones(50, np.float32)
    history = model.fit(
        *(X, Y), batch_size=25, epochs=8, sample_weight=weights, validation_data=(X, Y), callbacks=[callback], verbose=0
    ).history
    assert set(history) == {"loss", "mae", "val_loss", "val_mae", "damping", "attempts", "accepted"}
    assert history["val_loss"][-1] < 0.1 * history["loss"][0]
    assert seen == [0, 1] * 8
    assert [decision.samples for decision in model.decisions] == [25]
    evaluated = model.evaluate(X, Y, verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-4)

    model.model.save(tmp_path / "inner.keras")
    model.save(tmp_path / "outer.keras")
    expected = model.predict(X, verbose=0)
    model.export(tmp_path / "served", verbose=False)
    assert tf.saved_model.load(str(tmp_path / "served")).serve(X).numpy() == pytest.approx(expected, abs=1e-6)
    for name in ("inner", "outer"):
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        assert loaded.predict(X, verbose=0) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_a_subclassed_model_of_a_dataset_with_steps_per_epoch() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last = keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.last(self.hidden(inputs))

    model = LMModel(Own())
    model.compile("mse")
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50, seed=1).batch(40).repeat()  # an uneven last batch
    history = model.fit(data, steps_per_epoch=4, epochs=4, shuffle=False, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert [decision.samples for decision in model.decisions] == [40, 10]


@pytest.mark.slow
def test_several_inputs_and_outputs() -> None:
    keras.utils.set_random_seed(1)
    inputs = {"a": keras.Input((1,), name="a"), "b": keras.Input((1,), name="b")}
    hidden = keras.layers.Dense(6, "tanh")(keras.layers.Concatenate()([inputs["a"], inputs["b"]]))
    outputs = {"value": keras.layers.Dense(1)(hidden), "kind": keras.layers.Dense(3, "softmax")(hidden)}
    model = LMModel(keras.Model(inputs, outputs))
    model.compile(
        {"value": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"value": 1.0, "kind": 0.5},
        metrics={"kind": ["accuracy"]},
    )
    x, y = {"a": X, "b": X**2}, {"value": Y, "kind": (np.abs(X[:, 0]) * 2.99).astype(np.int32)}
    before = model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    history = model.fit(x, y, batch_size=50, epochs=12, verbose=0).history
    assert history["loss"][0] == pytest.approx(before, rel=1e-4)  # the loss of the step is the loss of Keras
    assert history["kind_accuracy"][-1] > 0.9


def test_training_ends_when_nothing_moves() -> None:
    model = LMModel(small())
    model.compile("mse", attempts=3)
    history = model.fit(X, model.predict(X, verbose=0), batch_size=50, epochs=5, verbose=0).history
    assert len(history["loss"]) == 1
    assert "epoch 1" in model.stopped_because


def test_why_training_ended_is_told_right() -> None:
    model = LMModel(small())
    model.compile("mse", attempts=2)
    model.fit(X, np.full_like(Y, np.nan), batch_size=50, epochs=2, verbose=0)
    assert model.stopped_because == "no step of epoch 1 was taken: the loss is nan"
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).take(0).batch(5), shuffle=False, verbose=0)
    assert not model.stopped_because  # there was no batch


def test_what_does_not_exist_is_refused() -> None:
    model = LMModel(small())
    with pytest.raises(ArgumentError, match="optimizer"):
        model.compile("mse", optimizer="adam")
    with pytest.raises(ArgumentError, match="dampening"):
        model.compile("mse", dampening=3)
    with pytest.raises(ArgumentError, match="Keras model"):
        LMModel(lambda x: x)
    with pytest.raises(UnsupportedError, match="train_step"):
        model.train_step((X, Y))
