"""Checkpoints on disk: complete or absent, checked when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graphwright.errors import ArgumentError, FileFormatError
from graphwright.train import TrainingCheckpoints


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    TrainingCheckpoints(tmp_path, lambda: {"a": tf.Variable([1.0, 2.0]), "b": tf.Variable([3.0, 4.0])}).save(1)
    variables = {"a": tf.Variable([0.0, 0.0]), "b": tf.Variable([0, 0])}  # of another dtype, though of as many bytes
    checkpoints = TrainingCheckpoints(tmp_path, lambda: variables)
    with pytest.raises(ArgumentError, match="does not fit variable 'b'"):
        checkpoints.restore()
    with pytest.raises(ArgumentError, match="no variable 'c'"):
        checkpoints.restore(["a", "c"])
    with pytest.raises(ArgumentError, match="no checkpoint of step 7"):
        checkpoints.restore(step=7)
    fewer = TrainingCheckpoints(tmp_path, lambda: {"a": variables["a"]})  # the optimizer has not been built, say
    with pytest.raises(ArgumentError, match="holds 'b', and there is no such variable"):
        fewer.restore()
    assert variables["a"].numpy().tolist() == [0.0, 0.0]
    assert fewer.restore(["a"]) == {}
    assert variables["a"].numpy().tolist() == [1.0, 2.0]


def test_two_trainings_in_one_folder_are_noticed(tmp_path: Path) -> None:
    one, other = (TrainingCheckpoints(tmp_path, dict) for _ in range(2))
    assert (one.newest(), other.newest()) == (None, None)
    one.save(100)
    with pytest.raises(ArgumentError, match="another training has written the checkpoint of step 100 meanwhile"):
        other.save(1)
    one.save(200)
    assert other.newest() == 200  # after another look


def test_a_training_that_went_back_leaves_no_later_steps(tmp_path: Path) -> None:
    checkpoints = TrainingCheckpoints(tmp_path, dict, keep=2)
    for step in (2, 4, 6):
        checkpoints.save(step)
    checkpoints.restore(step=4)
    checkpoints.save(5)
    assert checkpoints.newest() == 5
    assert sorted(int(path.name[5:17]) for path in tmp_path.iterdir()) == [4, 5]


@pytest.mark.parametrize(
    ("others", "newest"),
    [([4, 6], 6), ([2, 4], 4), ([2], "no step is on disk"), ([], "no step is on disk")],
    ids=["equal", "one behind", "older files", "lost files"],
)
def test_the_newest_step_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[int], newest: int | str) -> None:
    checkpoints = TrainingCheckpoints(tmp_path, dict)
    assert checkpoints.newest() is None
    checkpoints.save(2)
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


def test_whatever_is_damaged_no_variable_changes(tmp_path: Path) -> None:
    weight = tf.Variable(np.arange(20.0))
    checkpoints = TrainingCheckpoints(tmp_path, lambda: {"w": weight})
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
        except (FileFormatError, ArgumentError):
            refused += 1
        np.testing.assert_array_equal(weight, np.arange(20.0))
    assert refused > 60
    with path.open("wb") as stream:
        np.save(stream, np.ones(3))
    with pytest.raises(FileFormatError, match="step 1 cannot be read"):
        checkpoints.restore()


@pytest.mark.parametrize("how", ["cut off", "a flipped bit"])
def test_a_damaged_checkpoint_is_skipped(tmp_path: Path, how: str) -> None:
    weight = tf.Variable(np.zeros(100))
    checkpoints = TrainingCheckpoints(tmp_path, lambda: {"w": weight}, keep=3)
    paths: list[Path] = []
    for step in (1, 2, 3):
        weight.assign(np.full(100, step))
        paths.append(checkpoints.save(step, {"step": step}))

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        if how == "cut off":
            content = content[: len(content) // 2]
        else:
            content[content.index(b"w@0.npy") + 200] ^= 1  # within the numbers, which only the checksum protects
        path.write_bytes(content)

    for newest in (2, 1):
        damage(paths[newest])
        with pytest.warns(RuntimeWarning, match=f"step {newest + 1} is damaged in process 0 .*; the training continues from step {newest}"):
            assert checkpoints.restore() == {"step": newest}
        assert set(weight.numpy()) == {float(newest)}
    damage(paths[0])
    with pytest.raises(FileFormatError, match="step 1 cannot be read"):  # no silent start from the beginning
        checkpoints.restore()
    assert set(weight.numpy()) == {1.0}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_unfinished_file_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    weight = tf.Variable(tf.constant([1.5, 2.5], tf.bfloat16))
    checkpoints = TrainingCheckpoints(tmp_path, lambda: {"w": weight})
    for step in range(1, 5):
        checkpoints.save(step, {"step": step})

    def fails(stream: Any, **_: Any) -> None:
        stream.write(b"half")
        raise error

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises((KeyboardInterrupt, OSError)):
        checkpoints.save(5)
    assert sorted(path.name[5:17] for path in tmp_path.iterdir()) == ["000000000003", "000000000004"]
    weight.assign([0.0, 0.0])
    assert checkpoints.restore() == {"step": 4}
    assert weight.numpy().tolist() == [1.5, 2.5]
    # A process that is killed leaves the unfinished file; the next save, or the end, removes it.
    (tmp_path / ".step-000000000005.process-0-of-1.npz.abc.tmp").write_bytes(b"half")
    assert checkpoints.newest() == 4
    checkpoints.clear()
    assert not list(tmp_path.iterdir())


def test_arguments(tmp_path: Path) -> None:
    for keep in (1, 2.5, None):
        with pytest.raises(ArgumentError, match="keep="):
            TrainingCheckpoints(tmp_path, dict, keep=keep)  # type: ignore[arg-type]
    checkpoints = TrainingCheckpoints(tmp_path, lambda: {"s": tf.Variable("text")})
    for step in (-1, 1.5, "1", None):
        with pytest.raises(ArgumentError, match="is not a step"):
            checkpoints.save(step)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="JSON cannot hold"):
        TrainingCheckpoints(tmp_path, dict).save(1, {"a": object()})
    with pytest.raises(ArgumentError, match="'s' holds strings"):
        checkpoints.save(1)
    assert not list(tmp_path.iterdir())
    (tmp_path / "step-000000000001.process-0-of-2.npz").touch()
    with pytest.raises(ArgumentError, match="2 processes, this one has 1"):
        TrainingCheckpoints(tmp_path, dict).newest()
