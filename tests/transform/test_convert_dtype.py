"""Weights in 16 bits: half the bytes, and the numbers that rounding the weights gives."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.errors import ArgumentError
from graphwright.ir.constants import add_constant
from graphwright.ir.text import to_text
from graphwright.source.graph_def import to_graph_def
from graphwright.transform.convert_dtype import convert_weights
from tests.transform.serving import built, random, serve, traced

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1

W = random(32, 16, seed=1)


def model():
    def build():
        tf.linalg.matmul(v1.placeholder(tf.float32, [None, 32], name="x"), tf.constant(W), name="y")

    return built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_results_are_those_of_rounded_weights_and_the_file_shrinks(dtype):
    graph = model()
    size = to_graph_def(graph).ByteSize()
    assert convert_weights(graph, dtype) == 1
    assert to_graph_def(graph).ByteSize() < 0.7 * size
    x = random(4, 32, seed=2)
    rounded = tf.cast(tf.cast(W, dtype), tf.float32)
    for grappler in (False, True):
        np.testing.assert_allclose(serve(graph, {"x": x}, grappler=grappler)["y"], tf.linalg.matmul(x, rounded), rtol=1e-6, atol=1e-6)
    assert convert_weights(graph, dtype) == 0


def test_constants_in_functions():
    spec = tf.TensorSpec([None, 32], tf.float32, "x")
    graph = traced(lambda x: tf.linalg.matmul(x, tf.constant(W)), spec)
    assert convert_weights(graph) == 1
    x = random(4, 32, seed=2)
    np.testing.assert_allclose(
        serve(graph, {"x": x})["output_0"], tf.linalg.matmul(x, tf.cast(tf.cast(W, tf.bfloat16), tf.float32)), rtol=1e-6, atol=1e-6
    )


def test_small_constants_and_values_out_of_range_stay():
    graph = model()
    assert convert_weights(graph, smallest=1000) == 0
    [weights] = [n for n in graph if n.op_type == "Const"]
    graph.replace_uses(weights.outputs[0], add_constant(graph, "large", W * 1e6))
    graph.remove_node(weights)
    assert convert_weights(graph, "float16") == 0
    assert convert_weights(graph, "bfloat16") == 1
    with pytest.raises(ArgumentError, match="'int8'"):
        convert_weights(graph, "int8")


def test_one_number_that_stands_for_many_stays_as_it_is():
    def build():
        x = tf.compat.v1.placeholder(tf.float32, [None, 200], name="x")
        proto = tf.make_tensor_proto(1.5, tf.float32, [200])
        many = tf.compat.v1.get_default_graph().create_op(
            "Const", [], [tf.float32], attrs={"dtype": tf.compat.v1.AttrValue(type=1), "value": tf.compat.v1.AttrValue(tensor=proto)}
        )
        tf.multiply(x, many.outputs[0], name="y")

    graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    before = to_text(graph)
    assert convert_weights(graph) == 0
    assert to_text(graph) == before
