"""Nodes and tensors: attributes, inputs, outputs, colocation, and the `NodeDef`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as gde
from graphwright.ir.text import to_text
from graphwright.ir.verify import verify
from tests.editor.graphs import eight_nodes

pytestmark = pytest.mark.tensorflow


def test_views_of_the_same_thing_are_the_same(graph, t):
    assert graph["foo/c"] is graph["foo/c"]
    assert graph["foo/c"] == gde.Graph(graph.ir)["foo/c"]
    assert hash(graph["foo/c:0"]) == hash(gde.Graph(graph.ir)["foo/c:0"])
    assert t.c.node is t.c.op is graph["foo/c"]
    assert graph["foo/c"] != graph["foo/bar/e"]
    assert graph["foo/c"].ir is graph.ir["foo/c"]


def test_what_a_node_and_a_tensor_show(graph, t):
    node = t.h.op
    assert (node.name, node.op_type, node.type, node.device, node.graph) == ("foo/bar/h", "AddV2", "AddV2", "", graph)
    assert node.inputs == (t.f, t.g)
    assert node.control_inputs == (t.c.op,)
    assert t.c.op.control_outputs == (node,)
    assert node.outputs == (t.h,)
    assert repr(node) == "Node[foo/bar/h]"
    assert (t.h.name, t.h.value_index, t.h.dtype, t.h.shape.as_list(), t.h.graph) == ("foo/bar/h:0", 0, tf.float32, [2], graph)
    assert t.h.get_shape() == t.h.shape
    assert str(t.h) == "Tensor 'foo/bar/h:0' (dtype <dtype: 'float32'>, shape (2,))"
    assert t.c.consumers() == [t.e.op, t.f.op, t.g.op]
    ids = [n.id_in_graph for n in graph.nodes]
    assert ids == sorted(set(ids))
    late = graph.add_node("late", "NoOp")
    assert late.id_in_graph > max(ids)


def test_attributes(t):
    node = t.a.op
    assert node.get_attr("dtype") == tf.float32
    assert node.get_attr("value").tolist() == [1.0, 1.0]
    assert set(node.get_attr_keys()) == {"dtype", "value"}
    node.add_attr("_note", "hello")
    node.add_attr("_list", [1, 2])
    assert (node.get_attr("_note"), node.get_attr("_list"), node.has_attr("_note"), node.has_attr("_none")) == (
        "hello",
        [1, 2],
        True,
        False,
    )
    with pytest.raises(ValueError, match="Already have an attribute"):
        node.add_attr("_note", "again")
    node.replace_attr("_note", 3)
    assert node.get_attr("_note") == 3
    with pytest.raises(ValueError, match="no attribute called"):
        node.replace_attr("_none", 3)
    with pytest.raises(ValueError, match="does not have an attribute"):
        node.get_attr("_none")
    with pytest.raises(ValueError, match="cannot be an attribute"):
        node.replace_attr("_note", object())
    node.clear_attrs()
    assert node.get_attr_keys() == ()


def test_inputs(graph, t):
    node = t.h.op
    node.replace_input(1, t.e)
    assert node.inputs == (t.f, t.e)
    with pytest.raises(IndexError, match="input index 2"):
        node.replace_input(2, t.e)
    node.set_inputs([t.e])
    assert node.inputs == (t.e,)
    assert t.f.consumers() == []
    node.set_inputs_from_strings(["foo/c", "a:0", "^foo/d"])
    assert (node.inputs, node.control_inputs) == ((t.c, t.a), (t.d.op,))
    before = to_text(graph.ir)
    for refused in (["foo/c:1"], ["nowhere"], ["^nowhere"]):
        with pytest.raises(ValueError, match=r"[Nn]o"):
            node.set_inputs_from_strings(refused)
    with pytest.raises(ValueError, match="graph"):
        node.set_inputs([eight_nodes()["a:0"]])
    assert to_text(graph.ir) == before
    verify(graph.ir)


def test_outputs_are_set_or_inferred(graph, t):
    node = graph.add_node("product", "MatMul")
    assert node.outputs == ()
    node.set_inputs([gde.make_const(graph, f"m{k}", np.ones((2, 2), np.float32)).output(0) for k in range(2)])
    node.add_attr("T", tf.float32)
    node.infer_outputs()
    tensor = node.output(0)
    assert (tensor.dtype, tensor.shape.as_list()) == (tf.float32, [2, 2])
    node.set_outputs_from_pairs([(tf.float32, tf.TensorShape([2, None]))])
    assert node.output(0) is tensor
    assert tensor.shape.as_list() == [2, None]
    tensor.shape = tf.TensorShape([None, 2])
    assert tensor.shape.as_list() == [None, 2]
    with pytest.raises(NotImplementedError, match="number of output"):
        node.set_outputs_from_pairs([])


def test_inference_that_tensorflow_refuses_changes_nothing(graph, t):
    node = graph.add_node("product", "MatMul")
    node.set_inputs([t.a, t.b])
    node.add_attr("T", tf.float32)
    with pytest.raises(ValueError, match="refuses"):
        node.infer_outputs()
    assert node.outputs == ()
    verify(graph.ir)


def test_shapes_follow_edits(graph, t):
    wide = gde.make_const(graph, "wide", np.ones((3, 2), np.float32)).output(0)
    assert t.h.shape.as_list() == [2]
    t.g.op.replace_input(1, wide)
    assert t.g.shape.as_list() == [3, 2]
    assert t.h.shape.as_list() == [3, 2]


def test_colocation_groups(graph, t):
    node = t.h.op
    node.add_colocation_group("a")
    assert node.colocation_groups == ("a",)
    with pytest.raises(ValueError, match="Already have colocation group"):
        node.add_colocation_group("a")
    with pytest.raises(ValueError, match="nowhere"):
        node.add_colocation_group("nowhere")
    node.add_colocation_group("nowhere", validate=False)
    node.colocation_groups = ["foo/b", "a"]
    assert list(node.to_node_def().attr["_class"].list.s) == [b"loc:@foo/b", b"loc:@a"]
    assert graph.colocation_groups == {"foo/b": {node}, "a": {node}}
    graph.rename_node("a", "z")
    assert node.colocation_groups == ("foo/b", "z")
    other = t.e.op
    other.add_attr("_class", ["loc:@foo/b"])
    assert other.colocation_groups == ("foo/b",)
    assert "_class" not in other.get_attr_keys()
    with pytest.raises(ValueError, match="loc:@"):
        t.f.op.add_attr("_class", ["foo/b"])


def test_node_defs(graph, t):
    node = t.h.op
    definition = node.to_node_def()
    assert (definition.name, definition.op) == ("foo/bar/h", "AddV2")
    assert list(definition.input) == ["foo/bar/f", "foo/bar/g", "^foo/c"]
    assert [d.size for d in definition.attr["_output_shapes"].list.shape[0].dim] == [2]
    assert "_output_shapes" not in node.to_node_def(add_shapes=False).attr
    assert node.node_def == node.to_node_def(add_shapes=False)
    target = tf.NodeDef()
    assert node.to_node_def(target) is target
    definition.name = "copy"
    copied = graph.add_node_from_node_def(definition, set_inputs=True, set_control_inputs=True)
    assert (copied.inputs, copied.control_inputs) == (node.inputs, node.control_inputs)
    assert (copied.output(0).dtype, copied.output(0).shape.as_list()) == (tf.float32, [2])
    bare = tf.NodeDef.FromString(definition.SerializeToString())
    bare.name = "bare"
    assert graph.add_node_from_node_def(bare).inputs == ()
    before = to_text(graph.ir)
    with pytest.raises(ValueError, match="already contains"):
        graph.add_node_from_node_def(definition)
    bare.name = "other"
    bare.input[0] = "nowhere"
    with pytest.raises(ValueError, match="nowhere"):
        graph.add_node_from_node_def(bare, set_inputs=True)
    with pytest.raises(ValueError, match="set_inputs must be True"):
        graph.add_node_from_node_def(bare, set_control_inputs=True)
    assert to_text(graph.ir) == before
    verify(graph.ir)


def test_devices_and_debug_info(graph):
    graph["a"].device = "/device:CPU:0"
    definition = graph["a"].to_node_def()
    assert definition.device == "/device:CPU:0"
    definition.name = "b2"
    definition.experimental_debug_info.original_node_names.append("origin")
    copied = graph.add_node_from_node_def(definition)
    assert copied.to_node_def().experimental_debug_info.original_node_names == ["origin"]
    added = graph.add_node("b3", "NoOp", debug_info=definition.experimental_debug_info)
    assert added.to_node_def().experimental_debug_info.original_node_names == ["origin"]
