"""A graph keeps the versions that its file states: TensorFlow runs old ops in old graphs alone."""

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.errors import UnsupportedError
from graphwright.ir.edit import clone
from graphwright.ir.text import from_text, to_text
from tests.ir.outlined import outlined

v1 = tf.compat.v1
OLD_OP = "BatchNormWithGlobalNormalization"
X = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)


def old_graph_def(producer, **versions):
    """x -> an op that was removed in version 9 -> y."""
    numbers = {"m": [1.0, 2.0], "v": [4.0, 9.0], "beta": [0.0, 1.0], "gamma": [2.0, 3.0]}
    with tf.Graph().as_default() as made:
        x = v1.placeholder(tf.float32, [1, 2, 2, 2], name="x")
        for name, value in numbers.items():
            tf.constant(value, name=name)
        tf.nn.relu(x, name="y")
    graph_def = made.as_graph_def()
    (node,) = (node for node in graph_def.node if node.name == "y")
    node.op, node.name = OLD_OP, "norm"
    node.input.extend(numbers)
    node.attr["variance_epsilon"].f, node.attr["scale_after_normalization"].b = 0.0, True
    graph_def.node.add(name="y", op="Neg", input=["norm"]).attr["T"].type = 1
    graph_def.ClearField("versions")
    if producer or versions:
        graph_def.versions.CopyFrom(tf.compat.v1.GraphDef(versions={"producer": producer, **versions}).versions)
    return graph_def


def run(graph_def, fetch="y:0"):
    with tf.Graph().as_default(), v1.Session() as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        return session.run(fetch, {"x:0": X})


def read(path):
    return v1.GraphDef.FromString(path.read_bytes())


EXPECTED = -((X - [1.0, 2.0]) / [2.0, 3.0] * [2.0, 3.0] + [0.0, 1.0])
VERSIONS = [{"producer": 0}, {"producer": 8}, {"producer": 5, "min_consumer": 3, "bad_consumers": [1, 2]}]


@pytest.mark.parametrize("versions", VERSIONS, ids=str)
def test_an_old_frozen_graph_runs_after_it_was_written(versions, tmp_path):
    graph_def = old_graph_def(**versions)
    np.testing.assert_allclose(run(graph_def), EXPECTED, rtol=1e-6)
    (tmp_path / "old.pb").write_bytes(graph_def.SerializeToString())
    graph = gw.load(tmp_path / "old.pb")
    gw.write(graph, tmp_path / "new.pb")
    assert read(tmp_path / "new.pb") == graph_def
    graph.rename(graph["norm"], "renamed")
    assert from_text(to_text(graph)).versions == graph.versions == (versions["producer"], versions.get("min_consumer", 0))
    gw.write(graph, tmp_path / "edited.pbtxt")
    edited = gw.load(tmp_path / "edited.pbtxt")
    gw.write(edited, tmp_path / "edited.pb")
    assert read(tmp_path / "edited.pb").versions == graph_def.versions
    np.testing.assert_allclose(run(read(tmp_path / "edited.pb")), EXPECTED, rtol=1e-6)


def test_what_is_merged_has_the_older_producer(tmp_path):
    old, new = gw.load(old_graph_def(8, min_consumer=3)), gw.load(tf.Graph())
    new.versions = (2000, 5)
    clone(old, into=new)
    assert new.versions == (8, 5)
    gw.write(new, tmp_path / "new.pb")
    np.testing.assert_allclose(run(read(tmp_path / "new.pb")), EXPECTED, rtol=1e-6)
    empty = clone(old).graph  # into itself
    assert empty.versions == (8, 3)


def test_an_old_op_in_a_function_is_refused(tmp_path):
    graph = gw.load(old_graph_def(8))
    outlined([graph["norm"]], "norm_function")
    with pytest.raises(UnsupportedError, match="functions run under the version"):
        gw.write(graph, tmp_path / "new.pb")
    graph = gw.load(old_graph_def(8))
    outlined([graph["y"]], "function")  # of a new op
    gw.write(graph, tmp_path / "new.pb")
    np.testing.assert_allclose(run(read(tmp_path / "new.pb"), "function:0"), EXPECTED, rtol=1e-6)
