"""Copies, copies with other inputs, and replaced tensors."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as gde
from graphwright.ir.verify import verify
from tests.editor.graphs import close, run

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def graph():
    """o = Const_2 + (Const_1 + (Const + Input)), with a note on the first constant."""
    with tf.Graph().as_default() as tf_graph:
        constants = [tf.constant(1.0, shape=[10], name="Const") for _ in range(3)]
        total = tf.constant(np.arange(10.0, dtype=np.float32), name="Input")
        for constant in constants:
            total = tf.add(constant, total)
        tf.identity(total, name="o")
    graph = gde.Graph(tf_graph)
    graph["Const"].add_attr("_foo", "foo")
    return graph


def test_a_whole_graph(graph):
    target = gde.Graph()
    view, info = gde.copy(graph, target)
    assert list(target.node_names) == list(graph.node_names)
    assert view.graph is target
    for things in (graph.nodes, graph.tensors):
        for thing in things:
            copied = info.transformed(thing)
            assert copied in (*target.nodes, *target.tensors)
            assert copied.name == thing.name
            assert info.original(copied) == thing
    assert target.to_graph_def() == graph.to_graph_def()
    assert info.transformed([graph["o"], graph["o:0"]]) == [target["o"], target["o:0"]]
    assert "o => o" in str(info)
    verify(target.ir)


def test_within_one_graph(graph):
    view, info = gde.copy(gde.sgv(graph["Add_1"], graph["Add_2"]), dst_scope="again")
    assert [n.name for n in view.ops] == ["again/Add_1", "again/Add_2"]
    assert [t.name for t in view.inputs] == ["again/geph__Const_1_0:0", "again/geph__Add_0:0", "again/geph__Const_2_0:0"]
    assert [t.name for t in view.outputs] == ["again/Add_2:0"]
    assert info.transformed(graph["o"]) is None
    assert info.transformed(graph["o"], lambda node: node.name) == "o"
    with pytest.raises(TypeError, match=r"gde\.Tensor or a gde\.Node"):
        info.transformed(3)
    second, _ = gde.copy(graph["o"], dst_scope="again")
    assert second.ops[0].name == "again_1/o"
    third, _ = gde.copy(graph["Add"], dst_scope="again", reuse_dst_scope=True)
    assert third.ops[0].name == "again/Add"
    verify(graph.ir)


def test_scopes_of_the_source():
    with tf.Graph().as_default() as tf_graph, tf.name_scope("here"):
        tf.identity(tf.constant(1.0, name="a"), name="b")
    graph, target = gde.Graph(tf_graph), gde.Graph()
    gde.copy(graph, target, dst_scope="there", src_scope="here")
    assert list(target.node_names) == ["there/a", "there/b"]
    with pytest.raises(ValueError, match="does not belong to source scope"):
        gde.copy(graph, target, src_scope="elsewhere")
    with pytest.raises(TypeError, match=r"gde\.Graph"):
        gde.copy(graph, tf_graph.as_graph_def())
    view, _ = gde.copy(graph, tf_graph, dst_scope="live")  # a live graph may be copied into, too
    assert [op.name for op in view.ops] == ["live/here/a", "live/here/b"]
    assert tf_graph.get_tensor_by_name("live/here/b:0").op is view.ops[1]


def test_other_inputs(graph):
    ten = gde.make_const(graph, "Ten", np.arange(10, 20, dtype=np.float32)).output(0)
    top = graph["o"].inputs[0].node
    view, _ = gde.copy_with_input_replacements([graph["o"], top], {top.inputs[1]: ten})
    assert list(view.inputs) == [top.inputs[0], ten]
    close(run(graph, view.outputs[0].name), np.arange(11.0, 21.0))
    close(run(graph, "o:0"), np.arange(3.0, 13.0))


def test_shapes_of_a_copy_follow_other_inputs():
    with tf.Graph().as_default() as tf_graph:
        x = tf.placeholder(tf.float32, [None, 3], name="x")
        tf.identity(tf.nn.relu(tf.multiply(x, 2.0, name="scaled"), name="relu"), name="y")
    graph = gde.Graph(tf_graph)
    four = gde.make_placeholder(graph, "four", tf.float32, [4, 3]).output(0)
    replaced = gde.graph_replace(graph["y:0"], {graph["x:0"]: four}, dst_scope="of_four")
    assert replaced.name == "of_four/y:0"
    assert replaced.shape.as_list() == [4, 3]
    assert graph["of_four/relu:0"].shape.as_list() == [4, 3]
    assert graph["y:0"].shape.as_list() == [None, 3]
    verify(graph.ir)


def test_collections_are_taken_along():
    with tf.Graph().as_default() as tf_graph:
        tf.add_to_collection("answers", tf.constant(42, name="a"))
        tf.add_to_collection("losses", tf.constant(43, name="b").op)
    graph, target = gde.Graph(tf_graph), gde.Graph()
    gde.copy(graph, target, dst_scope="there")
    assert set(target.get_all_collection_keys()) == {"there/answers", "losses"}
    assert target.get_collection_by_name("there/answers") == [target["there/a:0"]]


def test_colocation_follows():
    with tf.Graph().as_default() as tf_graph:
        a = tf.constant(1.0, name="a")
        with tf.colocate_with(a):
            tf.constant(2.0, name="b")
    graph, target = gde.Graph(tf_graph), gde.Graph()
    gde.copy(graph, target, dst_scope="there")
    assert target["there/b"].colocation_groups == ("there/a",)
    copied, _ = gde.copy(graph["b"], dst_scope="here")
    assert copied.ops[0].colocation_groups == ("a",)


@pytest.mark.parametrize("loop", [True, False])
def test_functions_are_taken_along(loop):
    with tf.Graph().as_default() as tf_graph:
        x = tf.placeholder(tf.int32, (), name="x")
        if loop:
            result = tf.while_loop(lambda i, s: i <= x, lambda i, s: (i + 1, s + i), [tf.constant(1), tf.constant(0)])[1]
        else:
            result = tf.cond(x > 0, lambda: x * 10, lambda: x - 1)
        tf.identity(result, name="result")
    graph, target = gde.Graph(tf_graph), gde.Graph()
    _, info = gde.copy(graph, target, dst_scope="imported")
    assert target.function_names
    got, fed = info.transformed(graph["result:0"]).name, info.transformed(graph["x:0"]).name
    assert [run(target, got, {fed: k}) for k in (4, -3)] == ([10, 0] if loop else [40, -4])
