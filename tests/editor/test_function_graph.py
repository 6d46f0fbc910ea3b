"""Functions of the library: looked into, edited, walked through."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as gde
from tests.editor.graphs import run

pytestmark = pytest.mark.tensorflow


def with_function():
    """(x + y) * 10, where a function multiplies."""

    @tf.function
    def multiplier(v):
        return tf.constant(10.0, name="ten") * v

    with tf.Graph().as_default() as tf_graph:
        x, y = tf.placeholder(tf.float32, [], name="x"), tf.placeholder(tf.float32, [], name="y")
        tf.identity(multiplier(tf.add(x, y, name="add")), name="output")
    return gde.Graph(tf_graph)


def with_nested_functions():
    """(x + y) * 10, where a function that adds is called by one that multiplies."""

    @tf.function
    def adder(a, b):
        return a + b

    @tf.function
    def multiplier(a, b):
        return tf.constant(10.0, name="ten") * adder(a, b)

    with tf.Graph().as_default() as tf_graph:
        x, y = tf.placeholder(tf.float32, [], name="x"), tf.placeholder(tf.float32, [], name="y")
        tf.identity(multiplier(x, y), name="output")
    return gde.Graph(tf_graph)


def visited(walk, **arguments):
    found = []
    walk(found.append, **arguments)
    return found


@pytest.fixture
def g():
    return with_function()


@pytest.fixture
def f(g):
    return g.get_function_graph_by_name(g.function_names[0])


def test_a_function_is_found_and_edited(g, f):
    call = g["add"].output(0).consumers()[0]
    assert call.get_attr("f").name == f.name
    assert [n.name for n in f.input_nodes] == ["v"]
    assert [n.name for n in f.output_nodes] == ["Identity"]
    assert f.parent_graph is g
    assert f is g.get_function_graph_by_name(f.name)
    assert f["ten"].get_attr("value") == 10.0
    assert run(g, "output:0", {"x:0": 1.0, "y:0": 2.0}) == 30.0
    f["ten"].replace_attr("value", np.array(1000.0, np.float32))
    assert run(g, "output:0", {"x:0": 1.0, "y:0": 2.0}) == 3000.0
    assert run(gde.Graph(g.to_graph_def()), "output:0", {"x:0": 1.0, "y:0": 2.0}) == 3000.0
    with pytest.raises(ValueError, match="not found"):
        g.get_function_graph_by_name("nowhere")


def test_arguments_have_the_shapes_of_the_calls():
    with tf.Graph().as_default() as tf_graph:
        tf.function(lambda v: v * [[2.0], [3.0]])(tf.placeholder(tf.float32, [4], name="x"))
    g = gde.Graph(tf_graph)
    f = g.get_function_graph_by_name(g.function_names[0])
    assert f.input_nodes[0].output(0).shape.as_list() == [4]
    assert f.output_nodes[0].output(0).shape.as_list() == [2, 4]


def test_a_body_is_edited_with_the_same_words(g, f):
    gde.reroute_ts(f["v:0"], f["ten:0"])
    assert run(g, "output:0", {"x:0": 1.0, "y:0": 2.0}) == 9.0
    definition = f.to_function_graph_def()
    assert definition.signature.name == f.name
    assert "_output_shapes" in definition.node_def[0].attr
    with tf.Session(graph=f.to_tf_function_graph()) as session:
        assert session.run("Identity:0", {"v:0": 3.0}) == 9.0


def test_forward(g, f):
    starts = [g["x"], g["y"]]
    outside = [g["x"], g["y"], g["add"], g["PartitionedCall"]]
    assert visited(g.breadth_first_visitor, starting_nodes=starts) == [*outside, g["output"]]
    inside = visited(g.breadth_first_visitor, starting_nodes=starts, iterate_functions=True)
    assert inside == [*outside, f["mul"], f["Identity"], g["output"]]
    body = [f["ten"], f["mul"], f["Identity"]]
    assert visited(g.breadth_first_visitor, starting_nodes=[f["ten"]]) == body
    assert visited(g.breadth_first_visitor, starting_nodes=[f["ten"]], escape_functions=True) == [*body, g["output"]]


def test_backward(g, f):
    starts = [g["output"]]
    before = [g["add"], g["x"], g["y"]]
    assert visited(g.backwards_breadth_first_visitor, starting_nodes=starts) == [g["output"], g["PartitionedCall"], *before]
    inside = visited(g.backwards_breadth_first_visitor, starting_nodes=starts, iterate_functions=True)
    body = [f["Identity"], f["mul"], f["ten"]]
    assert inside == [g["output"], g["PartitionedCall"], *body, *before]
    assert visited(g.backwards_breadth_first_visitor, starting_nodes=[f["Identity"]]) == body
    escaped = visited(g.backwards_breadth_first_visitor, starting_nodes=[f["Identity"]], escape_functions=True)
    assert escaped == [*body, g["PartitionedCall"], *before]


def test_out_of_nested_functions():
    g = with_nested_functions()
    [add] = list(g.nodes_iterator(lambda n: n.op_type == "AddV2", iterate_functions=True))
    outer = g.get_function_graph_by_name(g["x"].output(0).consumers()[0].get_attr("f").name)
    options = {"starting_nodes": [add], "iterate_functions": True, "escape_functions": True}
    assert visited(g.breadth_first_visitor, **options) == [add, add.graph["Identity"], outer["mul"], outer["Identity"], g["output"]]
    calls = list(g.nodes_iterator(lambda n: n.op_type == "PartitionedCall", iterate_functions=True))
    inner_call = next(n for n in calls if n.get_attr("f").name == add.graph.name)
    outer_call = next(n for n in calls if n is not inner_call)
    assert visited(g.backwards_breadth_first_visitor, **options) == [add, inner_call, outer_call, g["x"], g["y"]]


def test_a_function_that_took_the_place_of_another_is_seen(g):
    name = g.function_names[0]
    before = g.get_function_graph_by_name(name)
    assert before.get_frame_names() == ()
    fresh = gde.Graph(g.to_graph_def())
    g.ir.functions[name] = fresh.ir.functions[name]
    after = g.get_function_graph_by_name(name)
    assert after is not before
    assert after.ir is fresh.ir.functions[name].body
