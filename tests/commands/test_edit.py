"""`graphwright edit ...` on SavedModels, served by TensorFlow before and after."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from typer.testing import CliRunner

from graphwright.commands.cli import app
from graphwright.commands.inputs import EXIT_ERROR
from graphwright.errors import ArgumentError
from graphwright.source.load import load

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1

X = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def keras_model(tmp_path_factory) -> Path:
    """Convolutions with batch norms whose statistics are no longer those of the start, as Keras exports it."""
    import keras

    keras.utils.set_random_seed(4)
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 3), name="image"),
            keras.layers.Conv2D(8, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.DepthwiseConv2D(3),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(12),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    for k, weight in enumerate(model.weights):
        values = np.random.default_rng(k).normal(size=weight.shape).astype(np.float32)
        weight.assign(np.abs(values) + 0.5 if "variance" in weight.path else values * 0.3)
    path = tmp_path_factory.mktemp("models") / "keras"
    model.export(path, verbose=False)
    return path


@pytest.fixture(scope="module")
def old_model(tmp_path_factory) -> Path:
    """A SavedModel of TF1: variables, a saver, a training step."""
    path = tmp_path_factory.mktemp("models") / "old"
    with tf.Graph().as_default(), v1.Session() as session:
        image = v1.placeholder(tf.float32, [None, 8, 8, 3], name="image")
        w = v1.get_variable("w", [192, 4], use_resource=False)
        b = v1.get_variable("b", [4], use_resource=True)
        y = tf.identity(tf.linalg.matmul(tf.reshape(image, [-1, 192]), w) + b, name="y")
        v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(y * y))
        session.run(v1.global_variables_initializer(), {image: X})
        v1.saved_model.simple_save(session, str(path), {"image": image}, {"y": y})
    return path


def run(*arguments: Any, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False, env={"COLUMNS": "400"})
    if result.exit_code == EXIT_ERROR:
        raise ArgumentError(result.output)
    assert result.exit_code == code, result.output
    return result.output


def in_session(path: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    with v1.Session(graph=tf.Graph()) as session:
        signature = v1.saved_model.load(session, ["serve"], str(path)).signature_def["serving_default"]
        tensors = {key: info.name for key, info in sorted(signature.outputs.items())}
        return session.run(tensors, {signature.inputs[key].name: value for key, value in feeds.items()})


def served(path: Path, **feeds: Any) -> dict[str, Any]:
    """By `tf.saved_model.load` and by a session, which must agree."""
    function = tf.saved_model.load(str(path)).signatures["serving_default"]
    results = {key: value.numpy() for key, value in function(**{key: tf.constant(value) for key, value in feeds.items()}).items()}
    again = in_session(path, feeds)
    for key, value in results.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, again[key], rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(value, again[key])
    return results


def feeds_of(path: Path, value: Any = X) -> dict[str, Any]:
    return {next(iter(load(path).signatures["serving_default"].inputs)): value}


def first(results: dict[str, Any]) -> Any:
    return next(iter(results.values()))


@pytest.mark.parametrize("name", ["keras_model", "old_model"])
@pytest.mark.parametrize(
    ("command", "arguments", "tolerance"),
    [
        ("freeze", [], 1e-6),
        ("fold-batch-norms", [], 1e-5),
        ("strip-training", [], 1e-6),
        ("remove-debug", [], 1e-6),
        ("inline", [], 1e-6),
        ("batch-size", ["2"], 1e-6),
        ("convert-weights", ["--dtype", "float16"], 5e-3),
    ],
)
def test_the_numbers_stay(request, name, command, arguments, tolerance, tmp_path):
    model = request.getfixturevalue(name)
    out = tmp_path / "out"
    run("edit", model, out, command, *arguments)
    before, after = served(model, **feeds_of(model)), served(out, **feeds_of(model))
    assert before.keys() == after.keys()
    np.testing.assert_allclose(first(after), first(before), rtol=tolerance, atol=tolerance)
    if command == "fold-batch-norms":
        kinds = [n.op_type for n in load(out)]
        assert "FusedBatchNormV3" not in kinds
        assert ("VarHandleOp" in kinds) == (name == "old_model")  # which has nothing to fold, and stays as it was
        assert "Rsqrt" not in kinds


def grafts(folder: Path, name: str, output: str, *, classes: int) -> tuple[Path, Path]:
    before, after = tf.Graph(), tf.Graph()
    with before.as_default():
        data = v1.placeholder(tf.string, [], name=name)
        pixels = tf.cast(tf.image.decode_image(data, channels=3, expand_animations=False), tf.float32) / 255.0
        tf.identity(tf.reshape(pixels, [-1, 8, 8, 3]), name=f"{name}_preprocessed")
    with after.as_default():
        scores = v1.placeholder(tf.float32, [None, classes], name=output)
        tf.gather(tf.constant([f"label {k}" for k in range(classes)]), tf.argmax(scores, 1), name=f"{output}_postprocessed")
    for key, graph in (("before", before), ("after", after)):
        (folder / f"{key}.pb").write_bytes(graph.as_graph_def().SerializeToString())
    return folder / "before.pb", folder / "after.pb"


@pytest.mark.parametrize(("name", "classes"), [("keras_model", 5), ("old_model", 4)])
def test_image_bytes_in_and_labels_out(request, name, classes, tmp_path):
    model = request.getfixturevalue(name)
    pixels = np.random.default_rng(2).integers(0, 255, (8, 8, 3)).astype(np.uint8)
    results = served(model, **feeds_of(model, pixels[None].astype(np.float32) / 255))
    [(output, scores)] = results.items()
    [key] = feeds_of(model)
    before, after = grafts(tmp_path, key, output, classes=classes)
    run("edit", model, tmp_path / "first", "add-preprocessing", before)
    run("edit", tmp_path / "first", tmp_path / "second", "add-postprocessing", after)
    labels = served(tmp_path / "second", **{key: tf.io.encode_png(pixels).numpy()})
    assert labels[output].tolist() == [f"label {int(scores.argmax())}".encode()]


def test_renames_and_a_diff(old_model, tmp_path):
    run("edit", old_model, tmp_path / "a", "rename-inputs", "image=pixels")
    run("edit", tmp_path / "a", tmp_path / "b", "rename-outputs", "y=scores")
    np.testing.assert_allclose(served(tmp_path / "b", pixels=X)["scores"], served(old_model, image=X)["y"], rtol=1e-6)
    text = run("diff", old_model, tmp_path / "b", code=1)
    assert "image → pixels (Placeholder)" in text
    assert "y → scores (Identity)" in text
    assert "no difference" in run("diff", old_model, old_model)
    data = json.loads(run("diff", old_model, tmp_path / "b", "--json", code=1))
    assert {"function": "", "before": "image", "after": "pixels", "op_type": "Placeholder"} in data["renamed"]
    assert json.loads(run("diff", old_model, old_model, "--json"))["changed"] == []


def test_where_no_picture_can_be_written_is_said_before_the_model_is_loaded(keras_model, tmp_path, monkeypatch):
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    (tmp_path / "mine.html").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr("graphwright.source.load.load", never)
        for out, message in (("mine.html", "--overwrite"), ("model.png", r"cannot be a '\.png' file"), ("no/where.html", "no folder")):
            with pytest.raises(ValueError, match=message):
                run("draw", keras_model, tmp_path / out)
    assert (tmp_path / "mine.html").read_text() == "mine"
    run("draw", keras_model, tmp_path / "mine.html", "--overwrite")
    assert (tmp_path / "mine.html").read_text().startswith("<!doctype html>")
    monkeypatch.chdir(tmp_path)
    run("draw", keras_model)
    with pytest.raises(ValueError, match="--overwrite"):
        run("draw", keras_model)


def test_show(old_model, keras_model, tmp_path):
    text = run("show", old_model)
    assert "signature serving_default (tensorflow/serving/predict)" in text
    assert "  in   image  image:0  float32[?,8,8,3]" in text
    data = json.loads(run("show", keras_model, "--json"))
    assert [s["name"] for s in data["signatures"]] == ["serve", "serving_default"]
    assert data["signatures"][1]["inputs"][0]["shape"] == [None, 8, 8, 3]
    assert run("show", old_model, "--nodes", "^w$") == "w  VariableV2  w:0 float32[192,4]\n"
    assert json.loads(run("show", old_model, "--nodes", "^b$", "--json")) == [
        {"name": "b", "op_type": "VarHandleOp", "outputs": ["b:0 resource[]"]}
    ]
    with pytest.raises(ValueError, match="not a regular expression"):
        run("show", old_model, "--nodes", "(")
    with pytest.raises(ValueError, match="have the tags \\['gpu', 'serve'\\]"):
        run("show", old_model, "--tag", "gpu", "--tag", "serve")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["edit", "{model}", "{out}", "batch-size", "many"], "'many' is not a batch size"),
        (["edit", "{model}", "{out}", "rename-inputs", "image"], "'image' is not a pair"),
        (["edit", "{model}", "{out}", "rename-inputs", "nobody=x"], "there is no input 'nobody'"),
        (["edit", "{model}", "{out}", "strip-training", "--constant", "image=oops("], "is not a value"),
        (["edit", "{out}", "{out}", "freeze"], "no file or folder"),
    ],
)
def test_errors_say_what_is_wrong(arguments, message, old_model, tmp_path):
    filled = [a.format(model=old_model, out=tmp_path / "out") for a in arguments]
    with pytest.raises(ValueError, match=message.replace("(", "\\(")):
        run(*filled)
    assert not (tmp_path / "out").exists()


def test_where_nothing_can_be_written_is_said_before_the_work(old_model, tmp_path, monkeypatch):
    def never(*_: Any) -> None:
        raise AssertionError

    (tmp_path / "there.pb").write_bytes(b"mine")
    (tmp_path / "file").write_bytes(b"mine")
    monkeypatch.setattr("graphwright.source.load.load", never)
    for out, message in (("there.pb", "--overwrite"), ("no/where.pb", "no folder"), ("file", "--overwrite")):
        with pytest.raises(ValueError, match=message):
            run("edit", old_model, tmp_path / out, "freeze")
    with pytest.raises(ValueError, match="is a file"):
        run("edit", old_model, tmp_path / "file", "freeze", "--overwrite")
    assert (tmp_path / "there.pb").read_bytes() == b"mine"


def test_a_disk_that_takes_nothing(old_model, tmp_path, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match="No space left"):
        run("edit", old_model, tmp_path / "out.pb", "freeze")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["keras_model", "old_model"])
def test_variables_come_along_when_a_model_is_cut_or_merged(request, name, tmp_path):
    model = request.getfixturevalue(name)
    [key] = feeds_of(model)
    [(output, expected)] = served(model, **{key: X}).items()
    run("edit", model, tmp_path / "whole", "extract", "--input", f"picture={key}", "--output", f"result={output}")
    assert any(n.op_type in ("VarHandleOp", "VariableV2") for n in load(tmp_path / "whole"))
    np.testing.assert_allclose(served(tmp_path / "whole", picture=X)["result"], expected, rtol=1e-5)

    with tf.Graph().as_default() as graph:
        tf.multiply(v1.placeholder(tf.float32, expected.shape, name="scores"), 100.0, name="percent")
    (tmp_path / "percent.pb").write_bytes(graph.as_graph_def().SerializeToString())
    run("edit", model, tmp_path / "behind", "merge", tmp_path / "percent.pb", "--connect", f"scores={output}")
    np.testing.assert_allclose(served(tmp_path / "behind", **{key: X})["percent"], expected * 100, rtol=1e-5)

    with tf.Graph().as_default() as graph:
        tf.divide(v1.placeholder(tf.float32, [None, 8, 8, 3], name="doubled"), 2.0, name="halved")
    (tmp_path / "halve.pb").write_bytes(graph.as_graph_def().SerializeToString())
    run("edit", tmp_path / "halve.pb", tmp_path / "before", "merge", model, "--connect", f"{key}=halved")
    np.testing.assert_allclose(served(tmp_path / "before", doubled=X * 2)[output], expected, rtol=1e-5)


CHAIN = ("strip-training", "rename-inputs", "image=pixels", "freeze", "rename-outputs", "y=scores")


def test_a_chain_in_one_command_is_the_same_as_its_jobs_in_turn(old_model, tmp_path):
    said = run("edit", old_model, tmp_path / "one", *CHAIN)
    verbs = [line.partition(" ")[0] for line in said.splitlines()]
    assert verbs[:4] == ["removed", "renamed", "froze", "renamed"]
    source = old_model
    for k, job in enumerate((CHAIN[:1], CHAIN[1:3], CHAIN[3:4], CHAIN[4:])):
        run("edit", source, tmp_path / f"step{k}", *job)
        source = tmp_path / f"step{k}"
    assert "no difference" in run("diff", tmp_path / "one", source)
    np.testing.assert_allclose(served(tmp_path / "one", pixels=X)["scores"], served(old_model, image=X)["y"], rtol=1e-5)


def test_options_stand_where_they_like_and_belong_to_their_job(old_model, tmp_path):
    (tmp_path / "out.pb").touch()
    run("edit", "--overwrite", old_model, tmp_path / "out.pb", "freeze", "inline")
    assert "MatMul" in [node.op_type for node in load(tmp_path / "out.pb")]
    run("edit", tmp_path / "out.pb", tmp_path / "out.pb", "strip-training", "--output", "Reshape", "inline", "--overwrite")
    assert "MatMul" not in [node.op_type for node in load(tmp_path / "out.pb")]
    assert "--checkpoint" in run("edit", "freeze", "--help")
    assert "--checkpoint" in run("edit", old_model, tmp_path / "no", "inline", "freeze", "--help")
    assert not (tmp_path / "no").exists()


def test_signatures_are_picked_before_the_model_is_frozen(keras_model, tmp_path):
    said = run("edit", keras_model, tmp_path / "out", "keep-signatures", "serving_default", "freeze")
    assert said.splitlines()[:2] == ["removed 1 signature", "froze 20 variables; the model serves its signatures only"]
    assert "20 variables" in run("show", keras_model).splitlines()[0]  # each of which has several handles
    assert list(tf.saved_model.load(str(tmp_path / "out")).signatures) == ["serving_default"]


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        (["freeze", "rename-inputs", "nobody=x"], ["there is no input 'nobody'", "job rename-inputs, 2 of 2"]),
        (["rename-inputs", "nobody=x", "freeze"], ["there is no input 'nobody'", "job rename-inputs, 1 of 2"]),
        (["replace-op", "MatMul", "Nothing", "freeze"], ["Nothing", "job replace-op, 1 of 2"]),
        (["keep-signatures", "train"], ["there is no signature 'train'", "argument SIGNATURE...", "job keep-signatures"]),
        (["merge", "missing"], ["'missing'", "job merge"]),
    ],
)
def test_nothing_is_written_where_a_job_fails_and_the_error_names_it(jobs, words, old_model, tmp_path):
    with pytest.raises(ArgumentError) as caught:
        run("edit", old_model, tmp_path / "out", *jobs)
    assert [word for word in words if word not in str(caught.value)] == []
    assert list(tmp_path.iterdir()) == []
