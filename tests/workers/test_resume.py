"""Trainings that stop in the middle and go on, in this process and on one device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import graphwright as gw
from graphwright.errors import ArgumentError

_X = np.random.default_rng(0).random((40, 6), np.float32)
_Y = np.random.default_rng(1).integers(0, 3, 40)
Losses = dict[tuple[int, int], float]


class _StoppedError(Exception):
    pass


def _classifier() -> Any:
    """A model with all that differs between a training and its repetition: statistics, dropout, an optimizer with moments, a metric."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return model


def _dense(layers: int, optimizer: str, metrics: Any, loss: str = "mse", **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), *(keras.layers.Dense(6, "tanh") for _ in range(layers))])
    model.compile(optimizer, loss, metrics=list(metrics), jit_compile=False, **options)
    return model


class _Watch(keras.callbacks.Callback):
    """Notes the loss of each batch that is trained, and stops a training before a batch or after it."""

    def __init__(self, resume: Any, before: tuple[int, int] | None, after: tuple[int, int] | None) -> None:
        super().__init__()
        self.resume, self.before, self.after = resume, before, after
        self.losses: Losses = {}
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.before:
            raise _StoppedError

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.resume is None or not self.resume.skipping:
            self.losses[self.epoch, batch] = float(logs["loss"])
        if (self.epoch, batch) == self.after:
            raise _StoppedError


def _fit(
    model: Any,
    folder: Path | None = None,
    data: tuple[Any, ...] = (_X, _Y),
    *,
    every: Any = 2,
    before: tuple[int, int] | None = None,
    after: tuple[int, int] | None = None,
    others: tuple[Any, ...] = (),
    **options: Any,
) -> Losses:
    """Train three epochs of five batches, or up to a batch; return the loss of each batch that was trained."""
    resume = None if folder is None else gw.train.ResumeTraining(folder, every=every)
    watch = _Watch(resume, before, after)
    own = [resume] if resume else []
    callbacks = [*others, *own, watch] if after else [*others, watch, *own]
    options = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0} | options
    with suppress(_StoppedError):
        model.fit(*data, callbacks=callbacks, **options)
    return watch.losses


_VALIDATED: dict[str, Any] = {"validation_data": (_X, _Y)}


@pytest.fixture(scope="module")
def whole() -> tuple[Any, Losses]:
    """A training without interruption."""
    model = _classifier()
    return model, _fit(model, **_VALIDATED)


@pytest.mark.parametrize(
    ("stop", "first", "every"), [((1, 3), (1, 2), 2), ((2, 0), (2, 0), 2), ((0, 1), (0, 0), 2), ((1, 3), (1, 0), "epoch")]
)
def test_nothing_is_lost(whole: Any, tmp_path: Path, stop: tuple[int, int], first: tuple[int, int], every: Any) -> None:
    earlier = _fit(_classifier(), tmp_path, before=stop, every=every, **_VALIDATED)
    model = _classifier()
    later = _fit(model, tmp_path, every=every, **_VALIDATED)
    assert next(iter(later)) == first
    assert earlier | later == whole[1]
    assert model.history.history == whole[0].history.history
    assert model.history.epoch == [0, 1, 2]
    for resumed, expected in zip(model.get_weights(), whole[0].get_weights(), strict=True):
        np.testing.assert_array_equal(resumed, expected)
    assert not list(tmp_path.iterdir())


def test_an_exception_while_batches_are_skipped(whole: Any, tmp_path: Path) -> None:
    _fit(_classifier(), tmp_path, before=(1, 3), **_VALIDATED)
    model = _classifier()
    assert _fit(model, tmp_path, before=(1, 1), **_VALIDATED) == {}
    _fit(model, tmp_path, **_VALIDATED)
    assert model.history.history == whole[0].history.history


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    _fit(_dense(2, "sgd", ["mae"]), folder, (_X, _X), before=(0, 3))
    return folder


@pytest.mark.parametrize(
    ("layers", "optimizer", "metrics"), [(1, "sgd", ["mae"]), (2, "adam", ["mae"]), (2, "sgd", ["mae", "cosine_similarity"])]
)
def test_a_training_that_changed_is_refused(interrupted: Path, layers: int, optimizer: str, metrics: list[str]) -> None:
    files = {path.name: path.read_bytes() for path in interrupted.iterdir()}
    with pytest.raises(ArgumentError, match=r"there is no such variable|does not fit variable"):
        _fit(_dense(layers, optimizer, metrics), interrupted, (_X, _X))
    assert {path.name: path.read_bytes() for path in interrupted.iterdir()} == files


def test_histories_are_those_of_keras(tmp_path: Path) -> None:
    """A metric with a number per class, validation now and then, logs of other callbacks, and a first epoch that is not 0."""

    def train(folder: Path | None, before: tuple[int, int] | None = None) -> Any:
        model = _dense(2, "sgd", [keras.metrics.F1Score(average=None)], "categorical_crossentropy")
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9 if epoch < 3 else rate)
        options = {"validation_data": (_X, _X), "validation_freq": 2, "initial_epoch": 1, "epochs": 4}
        _fit(model, folder, (_X, _X), before=before, others=(schedule,), **options)
        return model.history

    expected = train(None)
    train(tmp_path / "broken", before=(2, 4))
    for history in (train(tmp_path / "whole"), train(tmp_path / "broken")):
        assert history.epoch == expected.epoch == [1, 2, 3]
        assert history.history.keys() == expected.history.keys()
        for key, values in expected.history.items():
            np.testing.assert_array_equal(history.history[key], values)


def test_a_folder_that_cannot_be_written_to_is_reported_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="checkpoints cannot be written"):
        _fit(_dense(1, "sgd", []), tmp_path / "file", (_X, _X))


def test_an_epoch_that_became_shorter_is_refused(tmp_path: Path) -> None:
    _fit(_classifier(), tmp_path, before=(1, 4))
    with pytest.raises(ArgumentError, match="shorter than the part that was already trained"):
        _fit(_classifier(), tmp_path, steps_per_epoch=2)

    def two_batches() -> Iterator[Any]:  # Keras does not know how many
        yield from [(_X[:8], _Y[:8])] * 2

    with pytest.raises(ArgumentError, match="shorter than the part that was already trained"):
        _fit(_classifier(), tmp_path, (two_batches(),), batch_size=None)


def test_the_last_steps_of_an_uneven_epoch(tmp_path: Path) -> None:
    def train(folder: Path, after: tuple[int, int] | None = None) -> Any:
        model = _dense(2, "adam", [], steps_per_execution=2)
        _fit(model, folder, (_X, _X), every=1, after=after, epochs=2)
        return model.history.history

    expected = train(tmp_path / "whole")
    train(tmp_path / "broken", after=(0, 5))  # Keras counts the third pair of five batches in full
    assert train(tmp_path / "broken") == expected


def test_levenberg_marquardt_goes_on(tmp_path: Path) -> None:
    def train(folder: Path, after: tuple[int, int] | None = None) -> tuple[Any, Losses]:
        keras.utils.set_random_seed(0)
        model = gw.train.LMModel(keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]))
        model.compile("mse")
        return model, _fit(model, folder, (_X, _Y / 2.0), every=1, after=after)

    model, expected = train(tmp_path / "whole")
    _, earlier = train(tmp_path / "broken", after=(1, 2))
    again, later = train(tmp_path / "broken")
    assert earlier | later == expected
    assert again.history.history == model.history.history
    assert float(again.trainer.damping) == float(model.trainer.damping)


@pytest.mark.parametrize("every", [0, -1, "batch", 1.5, True])
def test_intervals_that_are_none_are_refused(tmp_path: Path, every: Any) -> None:
    with pytest.raises(ArgumentError, match="every="):
        gw.train.ResumeTraining(tmp_path, every=every)
