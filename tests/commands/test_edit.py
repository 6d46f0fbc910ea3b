"""`graphwright edit ...` on SavedModels, served by TensorFlow before and after."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from typer.testing import CliRunner

import graphwright as gw
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


def test_a_part_of_a_model_and_both_parts_merged(old_model, tmp_path):
    run("edit", old_model, tmp_path / "frozen", "freeze")
    run("edit", tmp_path / "frozen", tmp_path / "head", "extract", "--input", "image=image", "--output", "flat=Reshape")
    run("edit", tmp_path / "frozen", tmp_path / "tail", "extract", "--input", "flat=Reshape", "--output", "y=y")
    flat = served(tmp_path / "head", image=X)["flat"]
    np.testing.assert_array_equal(flat, X.reshape(2, -1))
    expected = served(old_model, image=X)["y"]
    np.testing.assert_allclose(served(tmp_path / "tail", flat=flat)["y"], expected, rtol=1e-5)
    run("edit", tmp_path / "head", tmp_path / "merged", "merge", tmp_path / "tail", "--connect", "flat=flat")
    np.testing.assert_allclose(served(tmp_path / "merged", image=X)["y"], expected, rtol=1e-5)


def test_an_op_type_replaced(keras_model, tmp_path):
    run("edit", keras_model, tmp_path / "out", "replace-op", "Relu", "Elu")
    [key] = feeds_of(keras_model)
    assert not np.allclose(first(served(tmp_path / "out", **{key: X})), first(served(keras_model, **{key: X})))


def test_pictures(keras_model, tmp_path):
    assert "picture written" in run("draw", keras_model, tmp_path / "model.html")
    assert (tmp_path / "model.html").read_text().startswith("<!doctype html>")


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


def test_a_frozen_file_holds_what_serving_needs(keras_model, tmp_path):
    """No function that only the objects of the SavedModel call, nothing that saves or restores."""
    run("edit", keras_model, tmp_path / "frozen.pb", "freeze")
    graph = load(tmp_path / "frozen.pb")
    assert not graph.functions
    assert "saver_filename" not in graph
    [key] = feeds_of(keras_model)
    run("edit", keras_model, tmp_path / "frozen", "freeze")
    expected = first(served(keras_model, **{key: X}))
    np.testing.assert_allclose(first(served(tmp_path / "frozen", **{key: X})), expected, rtol=1e-5)


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


def test_a_remedy_names_options(tmp_path):
    with tf.Graph().as_default() as graph:
        v1.get_variable("w", [2], use_resource=True) * 2.0
    (tmp_path / "g.pb").write_bytes(graph.as_graph_def().SerializeToString())
    for jobs, words in (
        (["strip-training"], ["name what serving fetches: --output NAME"]),
        (["freeze"], ["option --checkpoint", "freeze only some with --partial"]),
    ):
        with pytest.raises(ArgumentError) as caught:
            run("edit", tmp_path / "g.pb", tmp_path / "out", *jobs)
        assert [word for word in words if word not in str(caught.value)] == []


def small_mobilenet(folder: Path) -> Path:
    import keras

    model = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=10)
    rng = np.random.default_rng(7)
    for weight in model.weights:
        if "moving" in weight.path:
            weight.assign(np.abs(rng.normal(size=weight.shape)) * 0.3 + 0.7)
    model.export(folder / "mobilenet", verbose=False)
    return folder / "mobilenet"


def small_gpt(folder: Path) -> Path:
    hub = pytest.importorskip("keras_hub")
    sizes = {"vocabulary_size": 500, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "intermediate_dim": 64, "max_sequence_length": 16}
    hub.models.GPT2Backbone(**sizes).export(folder / "gpt", verbose=False)
    return folder / "gpt"


def packaged_pitch(_: Path) -> Path:
    found = importlib.util.find_spec("basic_pitch")
    if found is None or not found.submodule_search_locations:
        pytest.skip("basic_pitch is not installed")
    return Path(found.submodule_search_locations[0]) / "saved_models" / "icassp_2022" / "nmp"


LONG_CHAINS: dict[Any, list[tuple[list[str], Any, dict[str, Any]]]] = {
    small_mobilenet: [
        (["keep-signatures", "serving_default"], gw.keep_signatures, {"names": ["serving_default"]}),
        (["fold-batch-norms"], gw.fold_batch_norms, {}),
        (["rename-outputs", "output_0=scores"], gw.rename_outputs, {"names": {"output_0": "scores"}}),
    ],
    small_gpt: [
        (["strip-training"], gw.strip_training, {}),
        (["rename-outputs", "output_0=hidden"], gw.rename_outputs, {"names": {"output_0": "hidden"}}),
        (["freeze"], gw.freeze_variables, {}),
    ],
    packaged_pitch: [
        (["freeze"], gw.freeze_variables, {}),
        (["remove-debug"], gw.remove_debug_ops, {}),
        (["rename-outputs", "note=notes"], gw.rename_outputs, {"names": {"note": "notes"}}),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("made", LONG_CHAINS)
def test_long_chains_by_call_by_one_command_and_by_several(made, tmp_path):
    model, steps = made(tmp_path), LONG_CHAINS[made]
    run("edit", model, tmp_path / "one", *(word for words, _, _ in steps for word in words))
    by_call = by_command = model
    for k, (words, job, given) in enumerate(steps):
        job(by_call, **given, out=tmp_path / f"call{k}")
        run("edit", by_command, tmp_path / f"command{k}", *words)
        by_call, by_command = tmp_path / f"call{k}", tmp_path / f"command{k}"
    feeds = {
        key: np.ones([2 if size is None else size for size in value.shape], value.dtype.name)
        for key, value in load(model).signatures["serving_default"].inputs.items()
    }
    expected = in_session(model, feeds)
    for path in (tmp_path / "one", by_call, by_command):
        for old, (_, new) in zip(expected.values(), sorted(served(path, **feeds).items()), strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-3, atol=1e-5 * np.abs(old).max())
        sizes = [sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for folder in (model, path)]
        assert sizes[1] <= 1.05 * sizes[0]
