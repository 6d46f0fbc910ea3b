"""`measure` and `verify` take what every other question takes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow")

import keras
import numpy as np
import tensorflow as tf
from typer.testing import CliRunner

import graphwright as gw
from graphwright.commands.cli import app

pytestmark = pytest.mark.tensorflow


def model(seed: int = 1) -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    x = keras.Input((8, 8, 3), name="image")
    h = keras.layers.BatchNormalization(name="norm")(keras.layers.Conv2D(4, 3, name="conv")(x))
    made = keras.Model(x, keras.layers.Dense(3, name="scores")(keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(h))))
    made.compile("adam", "mse")
    made.optimizer.build(made.trainable_variables)
    return made


@pytest.fixture
def saved(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = model()
    made.save(tmp_path / "model.keras")
    made.export(tmp_path / "export", verbose=False)
    gw.fold_batch_norms(tmp_path / "export", out=tmp_path / "folded")
    gw.rename_inputs(tmp_path / "export", {"image": "picture"}, out=tmp_path / "renamed")
    model(2).export(tmp_path / "other", verbose=False)
    monkeypatch.chdir(tmp_path)
    return made


DATA = np.random.default_rng(0).random((4, 8, 8, 3), "float32"), np.zeros((4, 3), "float32")


def test_files_are_held_against_each_other(saved: Any) -> None:
    before = gw.trust("export")
    folded = gw.verify(before, gw.trust("folded"), batch=4)
    assert folded.equal
    assert "made up" in folded.how
    assert gw.verify(before, gw.trust("renamed"), feeds={"image": (4, 8, 8, 3), "picture": (4, 8, 8, 3)}).bitwise
    assert gw.verify(before, saved, DATA[0], mode="infer").equal
    other = gw.verify(before, gw.trust("other"), batch=4)
    assert not other
    assert "output" in other.first_difference
    with pytest.raises(gw.ArgumentError, match="trust"):
        gw.verify("export", "folded", batch=4)
    with pytest.raises(gw.ArgumentError, match="no argument 'bogus'"):
        gw.verify(before, gw.trust("renamed"), feeds={"bogus": (4,)})


def test_what_training_changes_is_compared_and_put_back(saved: Any) -> None:
    read = keras.saving.load_model("model.keras")
    before = [w.numpy() for w in (*saved.weights, *read.weights)]
    assert gw.verify(saved, gw.trust("model.keras"), DATA, steps=2).equal
    assert gw.verify(saved, read, iter([DATA]), steps=2).equal
    for kept, now in zip(before, (*saved.weights, *read.weights), strict=True):
        np.testing.assert_array_equal(kept, now.numpy())
    saved.optimizer.learning_rate = 0.5
    found = gw.verify(saved, read, DATA)
    assert "differs" in found.first_difference
    assert "variable" in found.first_difference


def test_an_optimized_model_is_held_against_its_own_step(saved: Any) -> None:
    assert gw.verify(saved, saved, DATA).bitwise
    gw.optimize_memory(saved, "100%", inputs=DATA, cache_dir=None)
    for words in ({"inputs": DATA}, {"batch": 4}):
        found = gw.verify(saved, saved, **words)
        assert found.equal
        assert "Grappler on for the original" in found.how or saved.memory_plan().status == "unchanged"


def test_inputs_of_a_file_by_name_or_the_only_one(saved: Any) -> None:
    path = gw.trust("export")
    assert gw.verify(path, path, {"image": DATA[0]}).equal
    assert gw.verify(path, path, tf.data.Dataset.from_tensors(DATA[0])).equal
    with pytest.raises(gw.ArgumentError, match=r"by name, .*'image'"):
        gw.verify(path, path, DATA)


def test_the_command(saved: Any) -> None:
    run = CliRunner().invoke
    done = run(app, ["verify", "export", "folded", "--batch", "4", "--trust"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("folded, held against export: equal")
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = run(app, ["verify", "export", "other", "--batch", "4", "--trust"])
    assert done.exit_code == 1
    assert "DIFFERENT" in done.stdout
    assert "--trust" in run(app, ["verify", "export", "folded", "--batch", "4"]).stderr


@pytest.mark.slow
def test_models_and_files_are_measured(saved: Any) -> None:
    options: dict[str, Any] = {"time": False, "steps": 1}
    trained = gw.measure(saved, DATA, **options)
    read = gw.measure(gw.trust("model.keras"), batch=4, **options)
    assert read.resident_bytes == trained.resident_bytes
    assert "made up" in read.how
    assert gw.measure(gw.trust("export"), batch=4, **options).resident_bytes < trained.resident_bytes
    assert gw.inspect(saved, batch=4, measure=True).how["inputs"].startswith("made up")
    times = gw.measure_many({"plain": saved, "file": gw.trust("model.keras")}, batch=4, steps=1)
    assert set(times) == {"plain", "file"}
