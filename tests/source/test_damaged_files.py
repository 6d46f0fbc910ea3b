"""Damaged and hostile files give an error that says where and why; nothing crashes, hangs, or fills memory or disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

import graphwright as gw
from graphwright.errors import ArgumentError, FileFormatError, GraphError, GraphwrightError, UnsupportedError
from graphwright.reuse.feature_store import FeatureFolder
from graphwright.source import protobuf_files
from graphwright.source.attributes import array_of
from graphwright.source.files import load_callable
from graphwright.source.join_checkpoints import stored_values
from graphwright.source.load import load
from graphwright.source.variable_values import variable_values
from graphwright.source.write import write
from tests.corpus.graphs import CORPUS
from tests.source.fuzz import OTHERS

ROOT = Path(__file__).parent.parent.parent


def fuzz(first: int, count: int, *forms: str) -> str:
    path = os.pathsep.join([*sys.path, str(ROOT)])
    command = [sys.executable, "-m", "tests.source.fuzz", str(first), str(count), *forms]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def test_mutated_files():
    assert "tried 50: " in fuzz(0, 50)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "count"), [(500, 300), *(pytest.param(k, 1_000, marks=pytest.mark.thorough) for k in range(1_000, 7_000, 1_000))]
)
def test_many_mutated_files(first, count):
    assert f"tried {count}: " in fuzz(first, count)


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_file_cut_off(size, tmp_path):
    case = CORPUS["module_with_several_signatures"](tmp_path)
    file = case.path / "saved_model.pb"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(FileFormatError):
        load(case.path)


@pytest.mark.parametrize(("name", "content"), [("a.pb", b""), ("a.pb", b"\xff" * 50), ("a.pbtxt", b"node {"), ("a.pbtxt", b"\xff\xfe")])
def test_no_graph_in_the_file(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileFormatError):
        load(tmp_path / name)


def test_nothing_there(tmp_path):
    with pytest.raises(ArgumentError, match="there is no file or folder"):
        load(tmp_path / "missing.pb")
    with pytest.raises(FileFormatError, match=r"no saved_model\.pb"):
        load(tmp_path)
    with pytest.raises(ArgumentError, match="int holds no graph"):
        load(3)


def test_a_recursion_bomb(tmp_path):
    depth = 100_000
    (tmp_path / "bomb.pbtxt").write_text(
        'node { name: "a" op: "NoOp" attr { key: "f" value ' + "{ func { attr { value " * depth + "}}}" * depth
    )
    with pytest.raises(FileFormatError, match="nested more than"):
        load(tmp_path / "bomb.pbtxt")
    inner = b""
    for _ in range(5_000):  # NameAttrList of AttrValue of NameAttrList ...
        entry = b"\x12" + varint(len(inner)) + inner
        inner = b"\x52" + varint(len(entry) + 2) + b"\x12" + varint(len(entry)) + entry
    node = b"\x0a\x01a\x12\x04NoOp\x2a" + varint(len(inner) + 8) + b"\x0a\x01f\x12" + varint(len(inner)) + inner
    (tmp_path / "bomb.pb").write_bytes(b"\x0a" + varint(len(node)) + node)
    with pytest.raises(FileFormatError):
        load(tmp_path / "bomb.pb")


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def test_a_count_that_would_fill_memory(tmp_path):
    graph_def = tf.compat.v1.GraphDef()
    x = graph_def.node.add(name="x", op="Placeholder")
    x.attr["dtype"].type = 1
    node = graph_def.node.add(name="many", op="Unpack", input=["x"])
    node.attr["T"].type, node.attr["num"].i = 1, 2**40
    (tmp_path / "a.pb").write_bytes(graph_def.SerializeToString())
    with pytest.raises(GraphError, match="is not a count"):
        load(tmp_path / "a.pb")


def edited(tmp_path: Path, name: str) -> tuple[Path, Any]:
    case = CORPUS[name](tmp_path)
    return case.path, saved_model_pb2.SavedModel.FromString((case.path / "saved_model.pb").read_bytes())


def refused(path: Path, saved_model: Any, error: type[Exception], match: str) -> None:
    (path / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    with pytest.raises(error, match=match):
        load(path)


@pytest.mark.parametrize("filename", ["../../secret", "/etc/passwd", "a/../../b", "..\\b", "C:\\b", ""])
def test_an_asset_that_leaves_its_folder(filename, tmp_path):
    path, saved_model = edited(tmp_path, "table_from_a_file")
    saved_model.meta_graphs[0].asset_file_def[0].filename = filename
    refused(path, saved_model, FileFormatError, "leaves the folder")


def test_a_link_that_leaves_its_folder(tmp_path):
    case = CORPUS["table_from_a_file"](tmp_path)
    (case.path / "assets" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(FileFormatError, match="is a link that leaves"):
        write(load(case.path), tmp_path / "written")
    assert not (tmp_path / "written").exists()


def test_a_missing_function(tmp_path):
    path, saved_model = edited(tmp_path, "branches_and_loops")
    library = saved_model.meta_graphs[0].graph_def.library.function
    k = next(k for k, f in enumerate(library) if "while_body" in f.signature.name)
    del library[k]
    refused(path, saved_model, GraphError, "is not in the library")


def test_a_function_that_is_there_twice(tmp_path):
    path, saved_model = edited(tmp_path, "branches_and_loops")
    library = saved_model.meta_graphs[0].graph_def.library.function
    library.append(library[0])
    refused(path, saved_model, GraphError, "two functions are named")


def test_a_signature_of_nothing(tmp_path):
    path, saved_model = edited(tmp_path, "mutable_state")
    saved_model.meta_graphs[0].signature_def["serving_default"].outputs["calls"].name = "gone:0"
    refused(path, saved_model, FileFormatError, "'gone:0', which does not exist")


def test_objects_that_do_not_exist(tmp_path):
    path, saved_model = edited(tmp_path, "mutable_state")
    saved_model.meta_graphs[0].object_graph_def.nodes[0].children[0].node_id = 10**6
    refused(path, saved_model, FileFormatError, "a child that does not exist")


def test_an_op_that_is_not_known(tmp_path):
    path, saved_model = edited(tmp_path, "tf1_variables")
    next(n for n in saved_model.meta_graphs[0].graph_def.node if n.op == "BiasAdd").op = "MyBiasAdd"
    refused(path, saved_model, UnsupportedError, "(?s)op type 'MyBiasAdd' is not known.*node 'y'")


def test_tags(tmp_path):
    case = CORPUS["tf1_two_meta_graphs"](tmp_path)
    assert len(load(case.path, tags="train")) > 0
    with pytest.raises(ArgumentError, match="0 MetaGraphs have the tags"):
        load(case.path, tags=["tpu"])


# Keras archives


def archive(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize("read", [load, load_callable])
def test_a_zip_bomb(read, tmp_path):
    path = archive(tmp_path / "bomb.keras", {"config.json": b"{}", "model.weights.h5": bytes(300 * 2**20)})
    with pytest.raises(FileFormatError, match="would unpack to"):
        read(path)


@pytest.mark.parametrize("read", [load, load_callable])
@pytest.mark.parametrize("name", ["../config.json", "/etc/cron.d/x", "a/../../b", "C:/x"])
def test_an_archive_that_writes_elsewhere(read, name, tmp_path):
    with pytest.raises(FileFormatError, match="leaves the archive"):
        read(archive(tmp_path / "a.keras", {"config.json": b"{}", name: b"x"}))


@pytest.mark.parametrize("entries", [{}, {"config.json": b"{"}, {"config.json": b"{}", "metadata.json": b"{}", "model.weights.h5": b"x"}])
def test_an_archive_that_is_no_model(entries, tmp_path):
    with pytest.raises(FileFormatError):
        load(archive(tmp_path / "a.keras", entries))
    (tmp_path / "b.keras").write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(FileFormatError, match=r"no \.keras archive"):
        load(tmp_path / "b.keras")


@pytest.mark.parametrize("name", ["..", ".", "a.b"])
def test_a_model_whose_name_leads_out_of_its_folder(name, tmp_path, monkeypatch):
    import keras

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)], name=name).save(tmp_path / "a.keras")
    graph = load(tmp_path / "a.keras")
    assert "serving_default" in graph.signatures
    assert not any((tmp_path / "temporary").glob("*.pb"))
    assert not any((tmp_path / "temporary").glob("graphwright-*/saved_model.pb"))


# Writing


def test_writing_refuses_what_is_there_and_leaves_nothing_behind(tmp_path):
    case = CORPUS["module_with_several_signatures"](tmp_path)
    graph = load(case.path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("keep me")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArgumentError, match="there is something"):
        write(graph, tmp_path / "there")
    with pytest.raises(ArgumentError, match="there is no folder"):
        write(graph, tmp_path / "no" / "folder")
    (tmp_path / "x.pb").mkdir()
    with pytest.raises(ArgumentError, match="is a folder"):
        write(graph, tmp_path / "x.pb", overwrite=True)
    (tmp_path / "x.pb").rmdir()
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(ArgumentError, match="holds something else than a SavedModel"):
        write(graph, tmp_path / "there", overwrite=True)
    assert (tmp_path / "there" / "mine").read_text() == "keep me"
    write(load(case.path), case.path, overwrite=True)  # in its own place
    assert sorted(tf.saved_model.load(str(case.path)).signatures) == ["decode", "encode", "serving_default"]
    assert sorted(tmp_path.iterdir()) == before


def test_a_graph_without_signatures_is_no_saved_model(tmp_path):
    graph = load(CORPUS["frozen_graph"](tmp_path).path)
    with pytest.raises(ArgumentError, match="needs a signature"):
        write(graph, tmp_path / "model")


def test_more_than_a_protobuf_can_hold(tmp_path, monkeypatch):
    path = CORPUS["frozen_graph"](tmp_path).path
    graph = load(path)
    monkeypatch.setattr(protobuf_files, "PROTOBUF_LIMIT_BYTES", 100)
    with pytest.raises(FileFormatError, match="protobuf reads at most 100"):
        load(path)
    with pytest.raises(UnsupportedError, match="larger than the 100 bytes"):
        write(graph, tmp_path / "written.pb")
    assert not (tmp_path / "written.pb").exists()


# Files beside the graph


def variables_of(path: Path) -> list[Path]:
    return sorted((path / "variables").iterdir())


@pytest.mark.parametrize("suffix", ["data-00000-of-00001", "index"])
def test_a_missing_file_of_the_checkpoint(suffix, tmp_path):
    case = CORPUS["module_with_several_signatures"](tmp_path)
    graph = load(case.path)
    (case.path / "variables" / f"variables.{suffix}").unlink()
    with pytest.raises(FileFormatError, match=f"the checkpoint lacks 'variables.{suffix[:10]}"):
        write(graph, tmp_path / "written")
    assert not (tmp_path / "written").exists()


def test_a_missing_shard(tmp_path):
    case = CORPUS["module_with_several_signatures"](tmp_path)
    data = case.path / "variables" / "variables.data-00000-of-00001"
    data.rename(data.with_name("variables.data-00002-of-00003"))
    with pytest.raises(FileFormatError, match=r"lacks 'variables\.data-00000-of-00003' and 1 more files"):
        write(load(case.path), tmp_path / "written")
    with pytest.raises(FileFormatError, match="the checkpoint cannot be read"):
        variable_values(load(case.path))


def test_a_checkpoint_of_another_model(tmp_path):
    for part in ("one", "other"):
        (tmp_path / part).mkdir()
    case = CORPUS["module_with_several_signatures"](tmp_path / "one")
    other = CORPUS["mutable_state"](tmp_path / "other")
    for ours, theirs in zip(variables_of(case.path), variables_of(other.path), strict=True):
        ours.write_bytes(theirs.read_bytes())
    with pytest.raises(FileFormatError, match="has no value for the variable 'weight'"):
        variable_values(load(case.path))


@pytest.mark.parametrize(("target", "what"), [("gone", "a link to nothing"), ("assets", "a link to a folder")])
def test_links_that_would_lose_files(target, what, tmp_path):
    case = CORPUS["table_from_a_file"](tmp_path)
    (case.path / "extra").symlink_to(case.path / target)
    with pytest.raises(FileFormatError, match=f"'extra' is {what}"):
        write(load(case.path), tmp_path / "written")


def test_an_asset_of_tf1_that_leaves_its_folder(tmp_path):
    path, saved_model = edited(tmp_path, "tf1_table")
    items = saved_model.meta_graphs[0].collection_def["saved_model_assets"].any_list.value
    asset = meta_graph_pb2.AssetFileDef.FromString(items[0].value)
    asset.filename = "../../../etc/passwd"
    items[0].value = asset.SerializeToString()
    refused(path, saved_model, FileFormatError, "leaves the folder")


def test_an_object_graph_without_a_root(tmp_path):
    path, saved_model = edited(tmp_path, "ragged_strings")
    objects = saved_model.meta_graphs[0].object_graph_def
    objects.Clear()
    objects.SetInParent()
    refused(path, saved_model, FileFormatError, "it has no root")


@pytest.mark.slow
@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.thorough)])
def test_mutated_files_of_other_formats(count):
    said = fuzz(0, count, *OTHERS)
    assert [f"{form}: tried {count}: " in said for form in OTHERS] == [True] * len(OTHERS)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, pytest.param(1_000, marks=pytest.mark.thorough)])
def test_costs_of_mutated_files(count):
    assert f"costs: tried {count}: " in fuzz(0, count, "costs")


def pipe_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_a_pipe_among_the_files_of_a_checkpoint(suffix, tmp_path):
    case = CORPUS["module_with_several_signatures"](tmp_path)
    graph = load(case.path)
    pipe_instead(case.path / "variables" / f"variables.{suffix}")
    with pytest.raises(FileFormatError, match="the checkpoint lacks"):
        write(graph, tmp_path / "written")
    if suffix != "index":
        with pytest.raises(FileFormatError, match="is no regular file, but a pipe"):
            variable_values(graph)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_among_features(tmp_path):
    os.mkfifo(tmp_path / "features-x.sqlite")
    with pytest.raises(FileFormatError, match="is no regular file, but a pipe"):
        FeatureFolder(tmp_path, "x")


@pytest.mark.parametrize(
    "damage", [lambda data: data[:100], lambda data: b"x" * 100, lambda data: data.replace(b"*" * 64, b"*" * 63 + b"+")]
)
def test_damaged_features(damage, tmp_path):
    FeatureFolder(tmp_path, "x").put({b"key": (np.full([128], ord("*"), np.uint8),)})
    [path] = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FileFormatError, match="features cannot be read"):
        FeatureFolder(tmp_path, "x").get(b"key")


@pytest.mark.parametrize("how", ["cut", "index of a larger one"])
def test_a_checkpoint_that_holds_less_than_it_states(how, tmp_path):
    for name, size in (("small", 4), ("large", 1_000)):
        tf.train.Checkpoint(v=tf.Variable(tf.ones([size]))).write(str(tmp_path / name))
    data = tmp_path / "small.data-00000-of-00001"
    if how == "cut":
        data.write_bytes(data.read_bytes()[:10])
    else:
        (tmp_path / "small.index").write_bytes((tmp_path / "large.index").read_bytes())
    with pytest.raises(FileFormatError, match="the checkpoint cannot be read"):
        stored_values(tmp_path / "small")
    assert [value.shape for value in stored_values(tmp_path / "large").values()].count((1_000,)) == 1


@pytest.mark.parametrize("lie", ["too little content", "an unknown dtype", "2^62 elements", "a size below zero", "one value for 2^40"])
def test_constants_that_lie(lie, tmp_path):
    tensor = tf.make_tensor_proto(np.arange(6, dtype=np.float32).reshape(2, 3))
    dims = tensor.tensor_shape.dim
    match lie:
        case "too little content":
            tensor.tensor_content = tensor.tensor_content[:7]
        case "an unknown dtype":
            tensor.dtype = 77
        case "2^62 elements":
            dims[0].size = dims[1].size = 2**31
        case "a size below zero":
            dims[0].size = -2
        case _:
            dims[0].size, dims[1].size, tensor.tensor_content = 2**20, 2**20, b""
            tensor.float_val.append(1.0)
    assert array_of(tensor) is None
    graph_def = tf.compat.v1.GraphDef()
    node = graph_def.node.add(name="c", op="Const")
    node.attr["dtype"].type = 1
    node.attr["value"].tensor.CopyFrom(tensor)
    shape = graph_def.node.add(name="s", op="Reshape", input=["c", "c"])
    shape.attr["T"].type = shape.attr["Tshape"].type = 1
    (tmp_path / "a.pb").write_bytes(graph_def.SerializeToString())
    for read in (gw.load, gw.count_flops, gw.inspect):
        with contextlib.suppress(GraphwrightError):
            read(tmp_path / "a.pb")


@pytest.mark.parametrize("size", [2**31, 2**62, 2**63 - 1])
def test_sizes_that_no_machine_has(size, tmp_path):
    graph_def = tf.compat.v1.GraphDef()
    x = graph_def.node.add(name="x", op="Placeholder")
    x.attr["dtype"].type = 1
    for _ in range(2):
        x.attr["shape"].shape.dim.add().size = size
    y = graph_def.node.add(name="y", op="MatMul", input=["x", "x"])
    y.attr["T"].type = 1
    (tmp_path / "a.pb").write_bytes(graph_def.SerializeToString())
    for read in (gw.load, gw.count_flops, gw.infer_shapes, gw.predict_peak, gw.inspect):
        with contextlib.suppress(GraphwrightError):
            str(read(tmp_path / "a.pb"))


def large_constants(path: Path, count: int, *, same: bool = False) -> Path:
    """A graph of products with weights of 2 MiB in its file."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 512], name="x")
        weights = [np.random.default_rng(0 if same else k).random((512, 1024), np.float32) for k in range(count)]
        tf.add_n([tf.matmul(x, tf.constant(weight, name=f"w{k}")) for k, weight in enumerate(weights)], name="y")
    graph_def = graph.as_graph_def()
    graph_def.node[0].attr["_note"].s = bytes(3 * 2**20)
    path.write_bytes(graph_def.SerializeToString())
    return path


def test_what_is_looked_at_holds_no_large_constants(tmp_path):
    path = large_constants(tmp_path / "a.pb", 3)
    assert load_callable(path).graph.as_graph_def().ByteSize() < 10_000
    assert len(load(path)["w0"].attrs["value"].data) > 2**21, "what is written again keeps its values"
    live = gw.inspect(load_callable(path, runs=False), {"x": (4, 512)})
    assert gw.inspect(path).peak_bytes == live.peak_bytes
    assert gw.count_flops(path).total == 3 * 2 * 4 * 512 * 1024 + 2 * 4 * 1024
    read = gw.load(large_constants(tmp_path / "same.pb", 3, same=True))
    different = {node.attrs["value"] for node in load(path).nodes if node.op_type == "Const"}
    assert (len(different), len({node.attrs["value"] for node in read.nodes if node.op_type == "Const"})) == (3, 1)


CHAIN = """
import sys
import tensorflow as tf
import graphwright as gw
graph_def = tf.compat.v1.GraphDef()
node = graph_def.node.add(name="c", op="Const")
node.attr["dtype"].type = 3
node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([2, 3], tf.int32))
for k in range(60_000):
    node = graph_def.node.add(name=f"n{k}", op=sys.argv[1], input=[f"n{k - 1}" if k else "c"])
    node.attr["T"].type = 3
node = graph_def.node.add(name="x", op="Placeholder")
node.attr["dtype"].type = 3
node = graph_def.node.add(name="y", op="AddV2", input=["x", "n59999"])
node.attr["T"].type = 3
with open(sys.argv[2], "wb") as stream:
    stream.write(graph_def.SerializeToString())
print(gw.inspect(sys.argv[2], {"x": (2048, 2)}).peak_bytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("op_type", ["Identity", pytest.param("Neg", marks=pytest.mark.thorough)])
def test_a_long_chain_on_constants(op_type, tmp_path):
    command = [sys.executable, "-c", CHAIN, op_type, str(tmp_path / "chain.pb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 0
