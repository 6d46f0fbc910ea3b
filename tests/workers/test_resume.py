"""Trainings that stop in the middle and go on, in this process and on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphwright as gw
from graphwright.errors import ArgumentError

_X = np.random.default_rng(0).random((40, 6), np.float32)
_Y = np.random.default_rng(1).integers(0, 3, 40)


class _StoppedError(Exception):
    pass


def _train(
    folder: Path | None, *, stop_at: tuple[int, int] | None = None, every: Any = 2, data: Any = None, **fit: Any
) -> tuple[Any, list[tuple[int, int, float]]]:
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    resume = gw.train.ResumeTraining(folder, every=every) if folder is not None else None
    seen: list[tuple[int, int, float]] = []

    class Watch(keras.callbacks.Callback):
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if (self.epoch, batch) == stop_at:
                raise _StoppedError

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if resume is None or not resume.skipping:
                seen.append((self.epoch, batch, float(logs["loss"])))

    callbacks = [Watch(), *([resume] if resume else [])]
    options = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0, "validation_data": (_X, _Y)} | fit
    try:
        model.fit(*((_X, _Y) if data is None else (data,)), callbacks=callbacks, **options)
    except _StoppedError:
        return model, seen
    return model, seen


@pytest.fixture(scope="module")
def whole() -> tuple[Any, list[tuple[int, int, float]]]:
    return _train(None)


@pytest.mark.parametrize(("stop_at", "first"), [((1, 3), (1, 2)), ((2, 0), (2, 0)), ((0, 1), (0, 0))])
def test_nothing_is_lost(whole: Any, tmp_path: Path, stop_at: tuple[int, int], first: tuple[int, int]) -> None:
    _, before = _train(tmp_path, stop_at=stop_at)
    model, after = _train(tmp_path)
    assert after[0][:2] == first
    assert {entry[:2]: entry[2] for entry in (*before, *after)} == {entry[:2]: entry[2] for entry in whole[1]}
    assert model.history.history == whole[0].history.history
    assert model.history.epoch == [0, 1, 2]
    for ours, theirs in zip(model.get_weights(), whole[0].get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not list(tmp_path.iterdir())


def test_epochs_alone(whole: Any, tmp_path: Path) -> None:
    _train(tmp_path, stop_at=(1, 3), every="epoch")
    model, after = _train(tmp_path, every="epoch")
    assert after[0][:2] == (1, 0)
    assert model.history.history == whole[0].history.history


def test_a_checkpoint_that_holds_more_is_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    a, b = tf.Variable(1.0), tf.Variable(2.0)
    gw.train.TrainingCheckpoints(tmp_path, lambda: {"a": a, "b": b}).save(1)
    checkpoints = gw.train.TrainingCheckpoints(tmp_path, lambda: {"a": a})  # the optimizer has not been built, say
    a.assign(5.0)
    with pytest.raises(ArgumentError, match="holds 'b', and there is no such variable"):
        checkpoints.restore()
    assert float(a) == 5.0
    assert checkpoints.restore(["a"]) == {}
    assert float(a) == 1.0


def _small(layers: int, optimizer: str, metrics: Any, loss: str = "mse") -> Any:
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), *(keras.layers.Dense(6, "tanh") for _ in range(layers))])
    model.compile(optimizer, loss, metrics=list(metrics), jit_compile=False)
    return model


def _fit_small(model: Any, folder: Path, *, stop_at: int | None = None, others: Any = (), **fit: Any) -> Any:
    import keras

    def stop(batch: int, logs: Any) -> None:
        if batch == stop_at and (not fit or model.optimizer.iterations > 5):
            raise _StoppedError

    resume = gw.train.ResumeTraining(folder, every=2)
    callbacks = [*others, keras.callbacks.LambdaCallback(on_train_batch_begin=stop), resume]
    options = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0} | fit
    try:
        return model.fit(_X, _X, callbacks=callbacks, **options)
    except _StoppedError:
        return None


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken_off")
    _fit_small(_small(2, "sgd", ["mae"]), folder, stop_at=3)
    return folder


@pytest.mark.parametrize(
    ("layers", "optimizer", "metrics"),
    [(1, "sgd", ["mae"]), (2, "adam", ["mae"]), (2, "sgd", ["mae", "cosine_similarity"])],
)
def test_a_training_that_changed_is_refused(broken_off: Path, layers: int, optimizer: str, metrics: list[str]) -> None:
    before = {path.name: path.read_bytes() for path in broken_off.rglob("*") if path.is_file()}
    with pytest.raises(ArgumentError, match=r"there is no such variable|does not fit variable"):
        _fit_small(_small(layers, optimizer, metrics), broken_off)
    assert {path.name: path.read_bytes() for path in broken_off.rglob("*") if path.is_file()} == before


def test_two_trainings_in_one_folder_are_noticed(tmp_path: Path) -> None:
    one, other = (gw.train.TrainingCheckpoints(tmp_path, dict) for _ in range(2))
    assert (one.newest(), other.newest()) == (None, None)
    one.save(100)
    with pytest.raises(ArgumentError, match="another training has written the checkpoint of step 100 meanwhile"):
        other.save(1)
    one.save(200)
    assert other.newest() == 200  # who looks again goes on from there


def test_histories_are_those_of_keras(tmp_path: Path) -> None:
    """A metric with a number per class, validation now and then, what other callbacks log, and a first epoch that is not 0."""
    import keras

    def train(folder: Path | None, stop_at: int | None = None) -> Any:
        model = _small(2, "sgd", [keras.metrics.F1Score(average=None)], "categorical_crossentropy")
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9 if epoch < 3 else rate)
        fit = {"validation_data": (_X, _X), "validation_freq": 2, "initial_epoch": 1, "epochs": 4}
        if folder is not None:
            return _fit_small(model, folder, stop_at=stop_at, others=[schedule], **fit)
        return model.fit(_X, _X, batch_size=8, shuffle=False, verbose=0, callbacks=[schedule], **fit)

    expected = train(None)
    assert train(tmp_path / "broken", stop_at=4) is None
    for found in (train(tmp_path / "whole"), train(tmp_path / "broken")):
        assert found.epoch == expected.epoch == [1, 2, 3]
        assert found.history.keys() == expected.history.keys()
        for key, values in expected.history.items():
            np.testing.assert_array_equal(found.history[key], values)


def test_a_folder_that_cannot_be_written_to_is_said_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="checkpoints cannot be written"):
        _fit_small(_small(1, "sgd", []), tmp_path / "file")


def test_damaged_files(tmp_path: Path) -> None:
    import tensorflow as tf

    weight = tf.Variable(np.arange(20.0))
    checkpoints = gw.train.TrainingCheckpoints(tmp_path, lambda: {"w": weight})
    path = checkpoints.save(1)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(100):
        damaged = bytearray(whole[: len(whole) if rng.random() < 0.7 else int(rng.integers(len(whole)))])
        for place in rng.integers(len(damaged), size=rng.integers(1, 8)) if damaged else ():
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            checkpoints.restore()
        except (gw.FileFormatError, ArgumentError):
            refused += 1
        np.testing.assert_array_equal(weight, np.arange(20.0))
    assert refused > 60
    with path.open("wb") as stream:
        np.save(stream, np.ones(3))
    with pytest.raises(gw.FileFormatError, match="step 1 cannot be read"):
        checkpoints.restore()


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    import tensorflow as tf

    gw.train.TrainingCheckpoints(tmp_path, lambda: {"a": tf.Variable([1.0, 2.0]), "b": tf.Variable([3.0, 4.0])}).save(1)
    variables = {"a": tf.Variable([0.0, 0.0]), "b": tf.Variable([0, 0])}  # of another dtype, though of as many bytes
    checkpoints = gw.train.TrainingCheckpoints(tmp_path, lambda: variables)
    with pytest.raises(ArgumentError, match="does not fit variable 'b'"):
        checkpoints.restore()
    assert variables["a"].numpy().tolist() == [0.0, 0.0]
    with pytest.raises(ArgumentError, match="no variable 'c'"):
        checkpoints.restore(["a", "c"])
    with pytest.raises(ArgumentError, match="no checkpoint of step 7"):
        checkpoints.restore(step=7)
    checkpoints.restore(["a"])
    assert variables["a"].numpy().tolist() == [1.0, 2.0]
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(gw.FileFormatError, match="step 1 cannot be read"):
        checkpoints.restore()


def test_a_training_that_went_back_leaves_no_later_steps(tmp_path: Path) -> None:
    checkpoints = gw.train.TrainingCheckpoints(tmp_path, dict, keep=2)
    for step in (2, 4, 6):
        checkpoints.save(step)
    checkpoints.restore(step=4)
    checkpoints.save(5)
    assert checkpoints.newest() == 5
    assert sorted(int(path.name[5:17]) for path in tmp_path.iterdir()) == [4, 5]


@pytest.mark.parametrize(
    ("others", "newest"),
    [([4, 6], 6), ([2, 4], 4), ([2], "no step is on disk"), ([], "no step is on disk")],
    ids=["all alike", "one behind", "another one's files are older", "another one has lost its files"],
)
def test_the_newest_step_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[int], newest: int | str) -> None:
    checkpoints = gw.train.TrainingCheckpoints(tmp_path, dict)
    assert checkpoints.newest() is None
    checkpoints.save(2)
    monkeypatch.setattr("graphwright.workers.checkpoints.spans_workers", lambda strategy: True)
    monkeypatch.setattr(checkpoints, "_steps_of_all", lambda mine: [set(mine), set()])
    assert checkpoints.newest() is None  # the other one died while it wrote its first
    checkpoints.save(4)
    checkpoints.save(6)
    monkeypatch.setattr(checkpoints, "_steps_of_all", lambda mine: [set(mine), set(others)])
    if isinstance(newest, int):
        assert checkpoints.newest() == newest
    else:
        with pytest.raises(ArgumentError, match=newest):
            checkpoints.newest()


def _damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "cut off":
        content = content[: len(content) // 2]
    else:
        content[content.index(b"w@0.npy") + 200] ^= 1  # within the numbers, which only the checksum protects
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut off", "a flipped bit"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, how: str) -> None:
    import tensorflow as tf

    weight = tf.Variable(np.zeros(100))
    checkpoints = gw.train.TrainingCheckpoints(tmp_path, lambda: {"w": weight}, keep=3)
    paths = []
    for step in (1, 2, 3):
        weight.assign(np.full(100, step))
        paths.append(checkpoints.save(step, {"step": step}))
    _damage(paths[2], how)
    with pytest.warns(RuntimeWarning, match=r"step 3 is damaged in process 0 .*; the training goes on from step 2"):
        assert checkpoints.restore() == {"step": 2}
    assert set(weight.numpy()) == {2.0}
    _damage(paths[1], how)
    with pytest.warns(RuntimeWarning, match="goes on from step 1"):
        assert checkpoints.restore() == {"step": 1}
    _damage(paths[0], how)
    with pytest.raises(gw.FileFormatError, match="step 1 cannot be read"):  # nothing begins anew in silence
        checkpoints.restore()
    assert set(weight.numpy()) == {1.0}
    paths[2].unlink()
    gw.train.TrainingCheckpoints(tmp_path, lambda: {"w": weight}, keep=3).save(2)
    assert checkpoints.restore() == {}


def test_half_a_file_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    weight = tf.Variable(tf.constant([1.5, 2.5], tf.bfloat16))
    checkpoints = gw.train.TrainingCheckpoints(tmp_path, lambda: {"w": weight})
    for step in range(1, 5):
        checkpoints.save(step, {"step": step})

    def dies(stream: Any, **_: Any) -> None:
        stream.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", dies)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(5)
    assert sorted(path.name[5:17] for path in tmp_path.iterdir()) == ["000000000003", "000000000004"]
    weight.assign([0.0, 0.0])
    assert checkpoints.restore() == {"step": 4}
    assert weight.numpy().tolist() == [1.5, 2.5]
    # A process that is killed leaves the half where it is; the next save, or the end, removes it.
    (tmp_path / ".step-000000000005.process-0-of-1.npz.abc.tmp").write_bytes(b"half")
    assert checkpoints.newest() == 4
    checkpoints.clear()
    assert not list(tmp_path.iterdir())


def test_an_exception_while_batches_are_passed_over(whole: Any, tmp_path: Path) -> None:
    _train(tmp_path, stop_at=(1, 3))
    model, seen = _train(tmp_path, stop_at=(1, 1))
    assert seen == []
    model.fit(
        _X, _Y, batch_size=8, shuffle=False, verbose=0, epochs=3, validation_data=(_X, _Y), callbacks=[gw.train.ResumeTraining(tmp_path)]
    )
    assert model.history.history == whole[0].history.history


def test_an_epoch_that_became_shorter_is_refused(tmp_path: Path) -> None:
    _train(tmp_path, stop_at=(1, 4))
    with pytest.raises(ArgumentError, match="shorter than what was trained"):
        _train(tmp_path, steps_per_epoch=2)

    def two_batches() -> Any:  # of which Keras does not know how many there are
        yield from [(_X[:8], _Y[:8])] * 2

    with pytest.raises(ArgumentError, match="shorter than what was trained"):
        _train(tmp_path, data=two_batches(), batch_size=None)


def test_the_last_steps_of_an_uneven_epoch(tmp_path: Path) -> None:
    def train(folder: Path, stops: bool) -> tuple[Any, list[Any]]:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False, steps_per_execution=2)
        resume = gw.train.ResumeTraining(folder, every=1)

        def stop(batch: int, logs: Any) -> None:
            if stops and batch == 5:  # Keras counts the third pair of five batches in full
                raise _StoppedError

        callbacks = [resume, keras.callbacks.LambdaCallback(on_train_batch_end=stop)]
        try:
            model.fit(_X, _Y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        except _StoppedError:
            return model, []
        return model, model.history.history["loss"]

    import keras

    _, expected = train(tmp_path / "whole", stops=False)
    train(tmp_path / "broken", stops=True)
    _, found = train(tmp_path / "broken", stops=False)
    assert found == expected


def test_levenberg_marquardt_goes_on(tmp_path: Path) -> None:
    import keras

    def train(folder: Path, stop_at: int | None = None) -> tuple[Any, list[float]]:
        keras.utils.set_random_seed(0)
        model = gw.train.LMModel(keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]))
        model.compile("mse")
        seen: list[float] = []
        resume = gw.train.ResumeTraining(folder, every=1)

        def watch(batch: int, logs: Any) -> None:
            if not resume.skipping:
                seen.append(float(logs["loss"]))
                if len(seen) == stop_at:
                    raise _StoppedError

        callbacks = [resume, keras.callbacks.LambdaCallback(on_train_batch_end=watch)]
        try:
            model.fit(_X, _Y / 2.0, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
        except _StoppedError:
            return model, seen
        return model, seen

    model, expected = train(tmp_path / "whole")
    _, before = train(tmp_path / "broken", stop_at=8)
    again, after = train(tmp_path / "broken")
    # `watch` is called after `resume`, which has just ended to skip: the eighth batch is seen once more.
    assert before[:7] + after == expected
    assert again.history.history == model.history.history
    assert float(again.trainer.damping) == float(model.trainer.damping)


def test_arguments(tmp_path: Path) -> None:
    import tensorflow as tf

    for every in (0, -1, "batch", 1.5, True):
        with pytest.raises(ArgumentError, match="every="):
            gw.train.ResumeTraining(tmp_path, every=every)
    for keep in (1, 2.5, None):
        with pytest.raises(ArgumentError, match="keep="):
            gw.train.TrainingCheckpoints(tmp_path, dict, keep=keep)  # type: ignore[arg-type]
    checkpoints = gw.train.TrainingCheckpoints(tmp_path, lambda: {"s": tf.Variable("text")})
    for step in (-1, 1.5, "1", None):
        with pytest.raises(ArgumentError, match="is not a step"):
            checkpoints.save(step)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="JSON cannot hold"):
        gw.train.TrainingCheckpoints(tmp_path, dict).save(1, {"a": object()})
    with pytest.raises(ArgumentError, match="'s' holds strings"):
        checkpoints.save(1)
    assert not list(tmp_path.iterdir())
    (tmp_path / "step-000000000001.process-0-of-2.npz").touch()
    with pytest.raises(ArgumentError, match="2 processes, this one has 1"):
        gw.train.TrainingCheckpoints(tmp_path, dict).newest()
