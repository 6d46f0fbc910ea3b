"""Parts of models whose ends are named in every way."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import graphwright as gw
from graphwright.errors import ArgumentError
from graphwright.ir.text import to_text
from graphwright.source.variable_values import variable_values
from graphwright.transform.extract_submodel import extract_submodel
from tests.transform.serving import random, serve, traced

pytestmark = pytest.mark.tensorflow
X = random(2, 3)


def nested():
    @tf.function
    def inner(x):
        return tf.nn.relu(tf.multiply(x, 3.0, name="tripled"))

    return traced(lambda x: inner(x + 1.0) - 1.0, tf.TensorSpec([None, 3], tf.float32, "x"))


def test_a_value_of_the_graph_and_a_name_inside_of_its_functions():
    graph = nested()
    before = to_text(graph)
    call = next(node for node in graph if node.op_type.endswith("PartitionedCall"))
    inside = f"{call.name}/PartitionedCall/tripled"
    part = extract_submodel(graph, {"x": graph.inputs[0]}, {"tripled": inside, "result": graph.outputs[0]})
    assert to_text(graph) == before
    answers = serve(part, {"x": X})
    np.testing.assert_allclose(answers["tripled"], (X + 1) * 3, rtol=1e-6)
    np.testing.assert_allclose(answers["result"], np.maximum((X + 1) * 3, 0) - 1, rtol=1e-6)
    rest = extract_submodel(graph, {"h": inside}, {"y": graph.outputs[0]})
    np.testing.assert_allclose(serve(rest, {"h": X})["y"], np.maximum(X, 0) - 1, rtol=1e-6)


def test_variables_that_a_function_captured_come_along():
    weight = tf.Variable(random(3, 2))
    concrete = tf.function(lambda x: tf.nn.relu(tf.matmul(x, weight, name="product"))).get_concrete_function(
        tf.TensorSpec([None, 3], tf.float32, name="x")
    )
    graph = gw.load(concrete)
    part = extract_submodel(graph, ["x"], ["product"])
    gw.freeze_variables(part, variable_values(graph))
    np.testing.assert_allclose(serve(part, {"x": X})["product"], X @ weight.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (["nobody"], ["result_0"], "'nobody'"),
        (["x"], [], "no output"),
        ({"a": "x", "b": "x"}, ["result_0"], "an input twice"),
        (["x"], ["PartitionedCall/sub", "PartitionedCall/tripled"], "PartitionedCall/tripled"),
        (["x"], ["PartitionedCall/PartitionedCall/tripled", "PartitionedCall/PartitionedCall/tripled:0"], "two values would be called"),
    ],
)
def test_what_cannot_be_leaves_the_graph_as_it_was(inputs, outputs, message):
    graph = nested()
    before = to_text(graph)
    with pytest.raises(ArgumentError, match=message):
        extract_submodel(graph, inputs, outputs)
    assert to_text(graph) == before


def test_a_value_of_another_graph():
    with pytest.raises(ArgumentError, match="does not belong"):
        extract_submodel(nested(), ["x"], [nested().outputs[0]])
