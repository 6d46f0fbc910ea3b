"""Shapes that follow from other shapes of the inputs."""

from __future__ import annotations

import pytest
import tensorflow as tf

from graphwright.errors import UnknownShapeError
from graphwright.source.concrete_function import from_concrete_function
from graphwright.source.import_graph import infer_shapes
from graphwright.source.load import load


def graph_of(function, *shapes):
    return from_concrete_function(tf.function(function).get_concrete_function(*(tf.TensorSpec(shape) for shape in shapes)))[0]


def test_shapes_follow_from_feeds():
    weight = tf.Variable(tf.ones((3, 2)))
    graph = graph_of(lambda x: tf.nn.relu(x @ weight), (None, 3))
    assert graph.outputs[0].shape == (None, 2)
    infer_shapes(graph, {0: (7, 3)})
    assert graph.inputs[0].shape == (7, 3)
    assert graph.outputs[0].shape == (7, 2)
    assert graph.outputs[0].nbytes == 7 * 2 * 4
    with pytest.raises(UnknownShapeError, match="cannot take these shapes"):
        infer_shapes(graph, {0: (7, 4)})
    assert graph.inputs[0].shape == (7, 3)


def test_what_one_inference_says_is_not_asked_again():
    """Each value was assigned by itself, and whoever read it was asked again before its own turn."""

    def deep(x):
        for _ in range(20):
            x = tf.nn.relu(x) + tf.reshape(x, tf.shape(x))
        return x

    graph = load(tf.function(deep).get_concrete_function(tf.TensorSpec((None, 3))))
    rule, asked = graph.shapes.rule, []
    graph.shapes.rule = lambda nodes: asked.append(nodes) or rule(nodes)
    infer_shapes(graph, {0: (7, 3)})
    assert {node.outputs[0].shape for node in graph if node.op_type in ("Relu", "AddV2")} == {(7, 3)}
    assert not asked
    graph.inputs[0].shape = (8, 3)
    assert graph.outputs[0].shape == (8, 3)
    assert asked
