"""What a file holds is looked at and never run: models that write a file when a part of them runs, read in every way there is."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

tf = pytest.importorskip("tensorflow")
import h5py  # noqa: E402
import keras  # noqa: E402

import graphwright as gw  # noqa: E402
from graphwright.commands.cli import app  # noqa: E402
from graphwright.errors import ArgumentError  # noqa: E402
from graphwright.source.files import load_callable  # noqa: E402
from graphwright.source.never_run import only_computes, reaches_outside  # noqa: E402
from graphwright.source.private_tensorflow import op_definition  # noqa: E402

FEEDS = {"x": (4, 8)}
READ = {
    "load": gw.load,
    "inspect": lambda path: gw.inspect(path, FEEDS),
    "flops": lambda path: gw.count_flops(path, FEEDS),
    "parameters": gw.count_parameters,
    "shapes": lambda path: gw.infer_shapes(path, FEEDS),
    "peak": lambda path: gw.predict_peak(path, FEEDS),
    "traced peak": lambda path: gw.predict_peak(path, FEEDS, order="traced"),
    "sweep": lambda path: gw.sweep(path, lambda batch: {"x": (batch, 8)}, [1, 2]),
    "check": lambda path: gw.check(path, FEEDS, max_peak="1GiB"),
}


def tf1_model(path: Path, written: str, *, use_resource: bool = True) -> None:
    """A TF1 SavedModel whose main op writes, which a session and `tf.saved_model.load` run when they load it."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 8], name="x")
        w = v1.get_variable("w", [8, 2], use_resource=use_resource)
        mean = v1.get_variable("mean", [2], use_resource=use_resource, trainable=False)
        y = tf.identity(tf.nn.relu(x @ w + mean), name="y")
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(path))
        signature = v1.saved_model.predict_signature_def({"in": x}, {"out": y})  # "in" is no name of an argument in Python
        main_op = tf.raw_ops.WriteFile(filename=written, contents="main op")
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, main_op=main_op)
        builder.save()


class Resource(tf.saved_model.experimental.TrackableResource):
    """A resource whose initializer writes."""

    def __init__(self, written: str) -> None:
        super().__init__()
        self.written = written

    def _create_resource(self) -> Any:
        return tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)

    def _initialize(self) -> None:
        tf.io.write_file(self.written, "initializer")


class Model(tf.Module):
    def __init__(self, written: str) -> None:
        super().__init__()
        self.written = written
        self.w = tf.Variable(tf.ones([8, 2]), name="w")
        self.mean = tf.Variable(tf.zeros([2]), trainable=False, name="mean")

    @tf.function(input_signature=[tf.TensorSpec([None, 8], name="x")])
    def __call__(self, x):
        tf.io.write_file(self.written, "signature")
        return {"y": tf.nn.relu(x @ self.w + self.mean)}


def tf2_model(path: Path, written: str) -> None:
    model = Model(written)
    tf.saved_model.save(model, str(path), signatures=model.__call__)


def tf2_initializer(path: Path, written: str) -> None:
    model = Model(written)
    model.resource = Resource(written)
    tf.saved_model.save(model, str(path), signatures=model.__call__)
    Path(written).unlink(missing_ok=True)


def frozen_graph(path: Path, written: str) -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
        with tf.control_dependencies([tf.raw_ops.WriteFile(filename=written, contents="graph")]):
            tf.nn.relu(x @ tf.ones([8, 2]), name="y")
    path.write_bytes(graph.as_graph_def().SerializeToString())


MODELS: dict[str, Callable[[Path, str], None]] = {
    "tf1": tf1_model,
    "tf1_references": lambda path, written: tf1_model(path, written, use_resource=False),
    "tf2": tf2_model,
    "tf2_initializer": tf2_initializer,
    "frozen.pb": frozen_graph,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    for name, make in MODELS.items():
        make(folder / name, str(folder / f"{name}.written"))
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_nothing_of_a_file_runs(models: Path, name: str) -> None:
    for how, read in READ.items():
        answer = read(models / name)
        if how == "peak" and name in ("tf2", "tf2_initializer", "frozen.pb"):  # TensorFlow would have to prepare the write
            assert answer.order == "traced"
            assert "TensorFlow cannot prepare the step" in answer.how["peak"]
    assert not (models / f"{name}.written").exists()


@pytest.mark.parametrize("name", MODELS)
def test_planning_and_its_proof_run_nothing(models: Path, name: str) -> None:
    done = CliRunner().invoke(app, ["optimize", str(models / name), "--feed", "x=4,8", "--budget", "1MiB", "--json"])
    assert done.exit_code == 0, done.output
    assert '"verification": "equal by structure' in done.output
    assert not (models / f"{name}.written").exists()


@pytest.mark.parametrize("name", ["tf1", "tf2_initializer"])
def test_what_is_trusted_runs_when_it_is_loaded_to_be_called(models: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="runs code of the file"):
        load_callable(models / name, runs=True)
    if name == "tf1":
        signature = "'in' is not a valid parameter name"  # TensorFlow's own limit; the main op has run by then
        with pytest.raises(gw.FileFormatError, match=signature):
            load_callable(gw.trust(models / name), runs=True)
    else:
        load_callable(gw.trust(models / name), runs=True)
    written = models / f"{name}.written"
    assert written.exists()
    written.unlink()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "run",
    [
        lambda path: gw.profile(path, FEEDS),
        lambda path: gw.profile(path, FEEDS, outputs=["y"]),
        lambda path: gw.inspect(path, inputs={"x": np.ones((4, 8), np.float32)}, measure=True),
        lambda path: gw.inspect(path, FEEDS, profile=True),
        lambda path: gw.max_batch(path, "1GiB", lambda batch: {"x": (batch, 8)}, measure=True),
    ],
    ids=["profile", "profile outputs", "measure", "inspect profile", "max batch"],
)
def test_what_runs_asks_for_trust(models: Path, name: str, run: Any) -> None:
    with pytest.raises(ArgumentError, match="runs code of the file") as caught:
        run(models / name)
    assert caught.value.code == "untrusted"


@pytest.mark.parametrize("name", ["tf1", "tf1_references", "tf2", "tf2_initializer"])
def test_figures_are_those_of_the_model_that_was_loaded(models: Path, name: str) -> None:
    found = gw.inspect(models / name, FEEDS)
    assert (found.parameters.trainable, found.parameters.non_trainable) == (16, 2)
    assert found.resident_bytes == 4 * (8 * 2 + 2)
    assert gw.count_flops(models / name, FEEDS).total == 2 * 4 * 8 * 2 + 2 * 4 * 2


def test_a_saved_model_without_signatures_says_so(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "bare"))
    with pytest.raises(gw.FileFormatError, match="has 0 signatures"):
        gw.inspect(tmp_path / "bare")


def shape_from_file(path: Path, use: Callable[..., Any] = tf.reshape) -> Any:
    """A graph that reshapes to what a file says, or repeats as often."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
        shape = tf.ensure_shape(tf.io.decode_raw(tf.io.read_file(str(path)), tf.int32), [2])
        use(x, shape, name="y")
    return graph.as_graph_def()


def test_shapes_are_inferred_without_opening_files(tmp_path: Path) -> None:
    (tmp_path / "shape").write_bytes(np.array([16, 2], np.int32).tobytes())
    graph_def = shape_from_file(tmp_path / "shape")
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    assert graph.get_tensor_by_name("y:0").shape == (16, 2)  # TensorFlow opens it
    (tmp_path / "graph.pb").write_bytes(graph_def.SerializeToString())
    assert gw.load(tmp_path / "graph.pb")["y"].outputs[0].shape == (None, None)
    assert gw.load(graph_def)["y"].outputs[0].shape == (None, None)
    report = gw.infer_shapes(tmp_path / "graph.pb", FEEDS, outputs=["y"])
    assert "16" not in str(report.outputs)


def test_constants_that_a_file_says_are_not_computed(tmp_path: Path) -> None:
    """`ReadFile` is free of state by TensorFlow's registry, and was folded."""
    (tmp_path / "shape").write_bytes(np.array([16, 2], np.int32).tobytes())
    (tmp_path / "graph.pb").write_bytes(shape_from_file(tmp_path / "shape", tf.tile).SerializeToString())
    with pytest.raises(gw.UnknownShapeError):
        gw.predict_peak(tmp_path / "graph.pb", FEEDS)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_lambda_layer_asks_for_trust(tmp_path: Path, suffix: str) -> None:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Lambda(lambda x: x * 2.0), keras.layers.Dense(2)])
    path = tmp_path / f"model{suffix}"
    model.save(path)
    for read in (gw.load, gw.count_parameters, lambda path: gw.inspect(path, batch=4, mode="infer")):
        with pytest.raises(ArgumentError, match="holds Python code"):
            read(path)
    assert gw.count_parameters(gw.trust(path)).trainable == 18
    assert gw.inspect(gw.trust(path), batch=4, mode="infer").peak_bytes > 0
    assert gw.load(gw.trust(path)).signatures


def test_ops_that_only_compute_are_told_from_those_that_reach_outside() -> None:
    outside = "ReadFile WriteFile MatchingFiles PyFunc PyFuncStateless EagerPyFunc DatasetFromGraph DebugIdentity ImmutableConst SaveV2 "
    outside += "RestoreV2 PrintV2 XlaCustomCallV2 TextLineDataset CacheDataset SnapshotDatasetV2 GenerateVocabRemapping DecodeProtoV2 Copy"
    for op_type in outside.split():
        assert op_definition(op_type) is not None, op_type
        assert reaches_outside(op_type), op_type
    computing = "MatMul Conv2D Range Fill StridedSlice ConcatV2 BroadcastGradientArgs FusedBatchNormV3 GatherV2 Einsum DynamicStitch"
    for op_type in computing.split():
        assert only_computes(op_type), op_type
    for op_type in "VarHandleOp ReadVariableOp HashTableV2 TensorListReserve While StatefulPartitionedCall ResourceApplyAdam".split():
        assert not reaches_outside(op_type), op_type
        assert op_type == "TensorListReserve" or not only_computes(op_type), op_type


def keras_file_with(path: Path, function: Any) -> Path:
    """A file whose `Lambda` layer has something as its function, which Keras calls when it loads the file."""
    layers = [
        {"module": "keras.layers", "class_name": "InputLayer", "config": {"batch_shape": [None, 4], "dtype": "float32", "name": "x"}},
        {"module": "keras.layers", "class_name": "Lambda", "config": {"name": "y", "function": function, "arguments": {}}},
    ]
    config = {"name": "model", "trainable": True, "dtype": "float32", "layers": [{**layer, "registered_name": None} for layer in layers]}
    document = json.dumps({"module": "keras", "class_name": "Sequential", "registered_name": None, "config": config})
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.attrs["model_config"] = document
            file.create_group("model_weights")
        return path
    weights = io.BytesIO()
    h5py.File(weights, "w").close()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", document)
        archive.writestr("metadata.json", json.dumps({"keras_version": keras.__version__, "date_saved": ""}))
        archive.writestr("model.weights.h5", weights.getvalue())
    return path


def named(module: str, name: str) -> dict[str, Any]:
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_functions_and_classes_of_keras_that_are_no_parts_of_models_are_not_called(tmp_path: Path, suffix: str) -> None:
    harmful = [
        named("keras.datasets.mnist", "load_data"),
        named("keras.src.datasets.mnist", "load_data"),
        named("keras.applications", "ResNet50"),
        named("keras.config", "set_floatx"),
        named("keras.utils", "set_random_seed"),
        named("keras.preprocessing.image", "save_img"),
        named("keras.saving", "KerasFileEditor"),
        named("keras.layers", "deserialize"),
        named("builtins", "deserialize"),
        named("builtins", "Adam"),
        {"module": "keras.callbacks", "class_name": "CSVLogger", "config": {"filename": str(tmp_path / "log")}, "registered_name": None},
        {"module": "keras_hub.models", "class_name": "Backbone", "config": {}, "registered_name": "x"},
        {"module": "keras.utils", "class_name": "__typespec__", "spec_name": "PyDataset", "config": [], "registered_name": "x"},
        {"module": 3, "class_name": ["Dense"], "config": {}},
    ]
    floatx, before = keras.config.floatx(), random.getstate()
    for function in harmful:
        path = keras_file_with(tmp_path / f"model{suffix}", function)
        for read in (gw.load, gw.count_parameters):
            with pytest.raises(ArgumentError, match="is a part, runs code of the file") as caught:
                read(path)
            assert caught.value.code == "untrusted"
    assert (keras.config.floatx(), random.getstate()) == (floatx, before)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("function", [named("keras.activations", "relu"), named("keras.ops", "tanh"), named("builtins", "softplus")])
def test_functions_of_models_are_loaded(tmp_path: Path, function: Any) -> None:
    for suffix in (".keras", ".h5"):
        assert gw.load(keras_file_with(tmp_path / f"model{suffix}", function)).signatures


def test_what_models_are_made_of_is_loaded(tmp_path: Path) -> None:
    @keras.saving.register_keras_serializable("harmless")
    class Doubled(keras.layers.Layer):
        def call(self, x):
            return x * 2.0

    x = keras.Input((6, 4))
    y = keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=True, kernel_regularizer="l2"))(x)
    y = keras.layers.RNN(keras.layers.StackedRNNCells([keras.layers.GRUCell(3, kernel_constraint=keras.constraints.MaxNorm(2.0))]))(y)
    y = Doubled()(keras.ops.gelu(keras.layers.Activation(keras.ops.silu)(y)) + 1.0)
    y = keras.layers.Dense(2, dtype="mixed_float16", kernel_initializer=keras.initializers.HeNormal(3))(keras.layers.Dropout(0.2)(y))
    model = keras.Model(x, y)
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model.compile(keras.optimizers.Adam(rate), keras.losses.mean_squared_error, [keras.metrics.MeanSquaredError(), "mae"])
    model.save(tmp_path / "model.keras")
    assert gw.count_parameters(tmp_path / "model.keras").trainable == model.count_params()
