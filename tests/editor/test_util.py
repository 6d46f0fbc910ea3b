"""Lists of nodes and tensors, scopes, placeholders, and nodes that are often made."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as gde
from tests.editor.graphs import run

pytestmark = pytest.mark.tensorflow


def two_constants_and_a_sum():
    with tf.Graph().as_default() as tf_graph:
        a, b, x = tf.constant(1, name="a"), tf.constant(2, name="b"), tf.constant(3, name="x")
        with tf.control_dependencies([x.op]):
            tf.add(a, b, name="c")
    return gde.Graph(tf_graph)


@pytest.fixture
def graph():
    return two_constants_and_a_sum()


def test_lists_that_cannot_be_changed():
    content = [0, 1, 2]
    view = gde.util.ListView(content)
    assert (len(view), view[0], view[2], list(view), bool(view)) == (3, 0, 2, content, True)
    assert view + (3,) == [0, 1, 2, 3]  # noqa: RUF005 - the operator is what is tested
    with pytest.raises(TypeError):
        view[0] = 7
    with pytest.raises(TypeError, match="Expected a list"):
        gde.util.ListView((1, 2))


def test_what_can_be_iterated(graph):
    assert gde.util.is_iterable([0, 1])
    for single in (3, graph, graph["a"], graph["a"].output(0)):
        assert not gde.util.is_iterable(single)


def test_lists_of_nodes_and_tensors(graph):
    a, b = graph["a"], graph["b"]
    assert len(gde.make_list_of_op(graph)) == 4
    assert gde.make_list_of_op((a, b)) == [a, b]
    assert gde.make_list_of_op(a) == [a]
    assert gde.make_list_of_op([a, b.output(0)], ignore_ts=True) == [a]
    assert len(gde.make_list_of_t(graph)) == 4
    assert gde.make_list_of_t((a.output(0), a, b.output(0)), ignore_ops=True) == [a.output(0), b.output(0)]
    assert gde.get_tensors(graph) == graph.tensors
    with pytest.raises(TypeError, match="allow_graph"):
        gde.make_list_of_op(graph, allow_graph=False)
    with pytest.raises(TypeError, match="Expected a type"):
        gde.make_list_of_op([a.output(0)])


def test_makers_and_readers(graph):
    a, b, c = (graph[name].output(0) for name in "abc")
    assert gde.get_generating_ops([a, b]) == [a.op, b.op]
    assert gde.get_consuming_ops([a, b]) == [c.op]
    assert gde.get_consuming_ops([c]) == []


def test_control_outputs_are_those_of_now(graph):
    control = gde.ControlOutputs(graph)
    assert control.get_all() == {graph["x"]: [graph["c"]]}
    assert list(control.get_all()[graph["x"]])[0] is graph["c"]  # noqa: RUF015
    assert control.get(graph["a"]) == ()
    assert control.graph is graph
    gde.add_control_inputs(graph["c"], graph["a"])
    assert control.update().get(graph["a"]) == (graph["c"],)
    with pytest.raises(TypeError, match=r"gde\.Graph"):
        gde.ControlOutputs(graph["a"])


def test_scopes():
    assert gde.util.scope_finalize("foo/bar") == "foo/bar/"
    assert gde.util.scope_finalize("") == ""
    assert gde.util.scope_dirname("foo/bar/op") == "foo/bar/"
    assert gde.util.scope_basename("foo/bar/op") == "op"
    assert (gde.util.scope_dirname("op"), gde.util.scope_basename("op")) == ("", "op")


def test_placeholder_names(graph):
    a = graph["a"].output(0)
    names = gde.placeholder_name(a), gde.placeholder_name(None), gde.placeholder_name(a, scope="foo/"), gde.placeholder_name(a, scope="foo")
    assert names == ("geph__a_0", "geph", "foo/geph__a_0", "foo/geph__a_0")
    assert (gde.placeholder_name(scope="foo/"), gde.placeholder_name(scope="foo")) == ("foo/geph", "foo/geph")
    assert gde.placeholder_name(a, prefix="p") == "p__a_0"
    placeholder = gde.make_placeholder_from_tensor(graph, a)
    assert gde.placeholder_name(placeholder.output(0), scope="foo") == "foo/geph__a_0"
    with pytest.raises(TypeError, match=r"gde\.Tensor"):
        gde.placeholder_name(graph["a"])


def test_placeholders(graph):
    first = gde.make_placeholder_from_tensor(graph, graph["a"].output(0))
    assert (first.name, first.output(0).dtype, first.output(0).shape.as_list()) == ("geph__a_0", tf.int32, [])
    second = gde.ph(graph, dtype=tf.float32)
    assert (second.name, second.output(0).shape.rank) == ("geph", None)
    assert gde.ph(graph, tf.float32, [2]).name == "geph_1"
    # The convention of contrib.graph_editor: no graph, and the tensor is returned.
    third = gde.make_placeholder_from_tensor(graph["b"].output(0), "foo")
    assert (third.name, third.graph) == ("foo/geph__b_0:0", graph)
    named = gde.make_placeholder(graph, "x9", tf.float32, [None, 2])
    assert run(graph, "x9:0", {"x9:0": [[1.0, 2.0]]}).tolist() == [[1.0, 2.0]]
    with pytest.raises(ValueError, match="already contains"):
        gde.make_placeholder(graph, named.name, tf.float32, None)


def test_constants(graph):
    gde.make_const(graph, "k", np.array([[1.5, 2.5]], np.float32))
    gde.make_const(graph, "text", np.array(["a", "b"]))
    again = gde.make_const(graph, "k", np.array(7), uniquify_name=True)
    assert again.name == "k_1"
    assert (graph["k:0"].dtype, graph["k:0"].shape.as_list()) == (tf.float32, [1, 2])
    k, text, number = run(graph, ["k:0", "text:0", "k_1:0"])
    assert (k.tolist(), text.tolist(), int(number)) == ([[1.5, 2.5]], [b"a", b"b"], 7)


def test_identities_and_sums(graph):
    same = gde.make_identity(graph, "same", graph["b"].output(0))
    total = gde.make_simple_binary_op(graph, "total", "Mul", same.output(0), graph["x"].output(0))
    assert (total.output(0).dtype, total.output(0).shape.as_list()) == (tf.int32, [])
    assert run(graph, ["same:0", "total:0"]) == [2, 6]


def test_trees():
    pair = namedtuple("pair", "left right")  # noqa: PYI024 - users hand in such
    tree = OrderedDict(x=[1, (2, 3)], y=pair(4, {"z": 5}))
    assert gde.util.flatten_tree(tree) == [1, 2, 3, 4, 5]
    negative = gde.util.transform_tree(tree, lambda n: -n)
    assert negative == OrderedDict(x=[-1, (-2, -3)], y=pair(-4, {"z": -5}))
    assert isinstance(negative, OrderedDict)
    assert isinstance(negative["y"], pair)


def test_counterparts_in_another_graph(graph):
    other = gde.Graph()
    gde.copy(graph, other, dst_scope="there")
    found = gde.util.find_corresponding([graph["a"], graph["c"].output(0)], other, dst_scope="there")
    assert found == [other["there/a"], other["there/c:0"]]
    assert gde.util.find_corresponding_elem(other["there/a"], graph, src_scope="there") == graph["a"]
    with pytest.raises(ValueError, match="does not start"):
        gde.util.find_corresponding_elem(graph["a"], other, src_scope="there")
    with pytest.raises(TypeError, match="Expected"):
        gde.util.find_corresponding_elem("a", other)


@pytest.mark.parametrize(
    "value",
    ["text", True, 3, 2.5, [1, 2], ["a", "b"], [True, False], [0.5], [], tf.float32, [tf.int32, tf.string], b"\xff\xfe"],
    ids=repr,
)
def test_attributes_there_and_back(value):
    there = gde.util.python_type_to_attr_value(value)
    assert gde.util.attr_value_to_python_type(there) == value


def test_attributes_that_are_no_plain_values():
    shape = gde.util.attr_value_to_python_type(gde.util.python_type_to_attr_value(tf.TensorShape([None, 3])))
    assert shape.as_list() == [None, 3]
    array = gde.util.attr_value_to_python_type(gde.util.python_type_to_attr_value(np.array([[1.5]])))
    assert array.tolist() == [[1.5]]
    with pytest.raises(ValueError, match="cannot be an attribute"):
        gde.util.python_type_to_attr_value(object())
