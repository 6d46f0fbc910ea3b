"""Graphs without their checks and prints: the same numbers, and effects in the same order."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.ir.edit.library import reached_functions
from graphwright.ir.verify import verify
from graphwright.ir.walk import backward_reachable
from graphwright.transform.inline_calls import inline_calls
from graphwright.transform.remove_debug_ops import DEBUG_OPS, remove_debug_ops
from tests.transform.serving import built, random, serve, traced

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1


def kinds(graph):
    return {n.op_type for n in (*graph.nodes, *(n for f in graph.functions.values() for n in f.body.nodes))}


def test_checks_prints_and_identities_go(capfd):
    def build():
        x = v1.placeholder(tf.float32, [None], name="x")
        y = tf.identity(tf.identity(tf.debugging.check_numerics(x, "bad")))
        y = v1.Print(y, [y], "value")
        v1.summary.histogram("histogram", y)
        tf.nn.relu(y, name="y")

    graph, original = (built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"}) for _ in range(2))
    assert remove_debug_ops(graph) > 5
    assert {n.op_type for n in graph} == {"Placeholder", "Relu"}
    x = random(4)
    np.testing.assert_array_equal(serve(graph, {"x": x})["y"], serve(original, {"x": x})["y"])
    assert np.isnan(serve(graph, {"x": x * np.nan})["y"]).all()
    with pytest.raises(tf.errors.InvalidArgumentError):
        serve(original, {"x": x * np.nan})


def test_an_assertion_goes_with_its_condition():
    def build():
        x = v1.placeholder(tf.float32, [None], name="x")
        with tf.control_dependencies([v1.assert_positive(x), v1.assert_less(x, 100.0)]):
            tf.sqrt(x, name="y")

    graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    assert remove_debug_ops(graph) > 10
    assert {n.op_type for n in graph} <= {"Placeholder", "Sqrt", "Const"}
    assert not any(n.control_inputs or (n.op_type == "Const" and n.outputs[0].uses) for n in graph)
    np.testing.assert_allclose(serve(graph, {"x": np.array([4.0], np.float32)})["y"], [2.0])


def test_the_order_of_effects_stays():
    """y waits for an assertion on what a print with effects comes before: a write to a variable."""

    def build():
        x = v1.placeholder(tf.float32, [], name="x")
        total = v1.get_variable("total", [], use_resource=True)
        written = total.assign_add(x, read_value=False)
        with tf.control_dependencies([written]):
            check = tf.raw_ops.Assert(condition=x > 0.0, data=[x])
        with tf.control_dependencies([check]):
            total.read_value()
            tf.identity(total.read_value(), name="y")

    graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    assert any("Assert" in n.op_type for n in graph)
    remove_debug_ops(graph)
    verify(graph)
    assert not any("Assert" in n.op_type for n in graph)
    [write] = [n for n in graph if n.op_type == "AssignAddVariableOp"]
    assert write in backward_reachable([graph.outputs[0].producer])


def test_checks_in_functions_of_tf2():
    def function(x):
        tf.debugging.assert_greater(x, 0.0)
        tf.debugging.Assert(tf.reduce_all(x < 100.0), [x])
        tf.print("value", x)
        return tf.sqrt(tf.debugging.check_numerics(x, "bad"))

    spec = tf.TensorSpec([None], tf.float32, "x")
    x = np.array([4.0, 9.0], np.float32)
    graph = traced(function, spec)
    remove_debug_ops(graph)
    reached = kinds(graph)
    assert not {"Assert", "PrintV2", "CheckNumerics"} & reached
    np.testing.assert_array_equal(serve(graph, {"x": x})["output_0"], [2.0, 3.0])
    flat = traced(function, spec)
    inline_calls(flat)
    remove_debug_ops(flat)
    assert sorted(n.op_type for n in flat if n.op_type != "Const") == ["Identity", "Placeholder", "Sqrt"]  # the Identity is returned
    np.testing.assert_array_equal(serve(flat, {"x": x})["output_0"], [2.0, 3.0])


def test_what_is_returned_stays_under_its_name():
    def build():
        x = v1.placeholder(tf.float32, [None], name="x")
        tf.debugging.check_numerics(x, "bad", name="y")

    graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    remove_debug_ops(graph)
    assert graph.outputs[0].name == "y:0"
    assert np.isnan(serve(graph, {"x": np.array([np.nan], np.float32)})["y"]).all()


def test_branches_of_tf1_keep_their_anchors():
    """A constant in a branch waits for an Identity that says whether the branch runs."""

    def build():
        v1.disable_control_flow_v2()
        x = v1.placeholder(tf.float32, [], name="x")
        y = v1.cond(x > 0.0, lambda: x * 2.0, lambda: tf.constant(7.0))
        tf.identity(y, name="y")

    try:
        graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    finally:
        v1.enable_control_flow_v2()
    assert "Switch" in kinds(graph)
    remove_debug_ops(graph)
    assert [serve(graph, {"x": x})["y"] for x in (3.0, -3.0)] == [6.0, 7.0]


def checked_loop(x):
    @tf.function
    def deep(h):
        tf.print("deep", tf.shape(h), output_stream="file:///dev/null")
        return tf.debugging.check_numerics(h * 2.0, "deep")

    def step(k, h):
        tf.debugging.assert_less(k, 10)
        h = tf.debugging.check_numerics(deep(h) * 0.3, "h")
        with tf.control_dependencies([tf.debugging.assert_rank(h, 2), tf.print(k, output_stream="file:///dev/null")]):
            return k + 1, tf.identity(h)

    return tf.while_loop(lambda k, _: k < 3, step, [0, x])[1]


def checked_branch(x):
    def yes():
        tf.debugging.assert_non_negative(tf.reduce_sum(tf.abs(x)))
        return tf.debugging.check_numerics(x, "yes") * 2.0

    return tf.cond(tf.reduce_sum(x) > -1e9, yes, lambda: tf.debugging.check_numerics(x, "no"))


@pytest.mark.parametrize("function", [checked_loop, checked_branch])
def test_checks_in_bodies_of_loops_and_branches(function):
    spec = tf.TensorSpec([None, 3], tf.float32, "x")
    graph, original = traced(function, spec), traced(function, spec)
    assert remove_debug_ops(graph) > 3
    bodies = [graph, *(graph.functions[name].body for name in reached_functions(graph, graph.nodes))]
    assert len(bodies) > 2
    assert not [node for body in bodies for node in body if node.op_type in DEBUG_OPS]
    x = random(4, 3)
    np.testing.assert_array_equal(serve(graph, {"x": x})["output_0"], serve(original, {"x": x})["output_0"])
