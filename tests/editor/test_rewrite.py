"""Batch sizes, and batch normalization folded into weights: equal to 1e-5 on random input when TensorFlow runs both."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as gde
from graphwright.ir.text import to_text
from graphwright.ir.verify import verify
from tests.editor.graphs import close, run

pytestmark = pytest.mark.tensorflow
RANDOM = np.random.default_rng(7)
START = RANDOM.bit_generator.state


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order():
    """What a test draws does not depend on the tests before it: with some numbers a ReLU lets nothing through."""
    RANDOM.bit_generator.state = START


def random(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def positive(*shape):
    return RANDOM.uniform(0.5, 2.0, shape).astype(np.float32)


def op_types(graph):
    return [n.op_type for n in graph.nodes]


def linear(kind, x, channels=3, name="linear"):
    """A convolution or product with random weights."""
    count = x.shape[-1]
    if kind == "MatMul":
        return tf.matmul(x, random(count, channels), name=name)
    if kind == "DepthwiseConv2dNative":
        return tf.nn.depthwise_conv2d(x, random(2, 2, count, 2), [1, 1, 1, 1], "VALID", name=name)
    return tf.nn.conv2d(x, random(2, 2, count, channels), [1, 1, 1, 1], "VALID", name=name)


def normalized(op_type, x, training=False, name="norm"):
    """A fused batch normalization with random parameters."""
    count = int(x.shape[-1])
    parameters = {"scale": positive(count), "offset": random(count), "mean": random(count), "variance": positive(count)}
    made = getattr(tf.raw_ops, op_type)(x=x, epsilon=1e-5, is_training=training, name=name, **parameters)
    return made[0]


def compare(tf_graph, rewrite, gone, output="out:0", shape=(2, 6, 6, 4), scale=1.0, must_fold=True):
    """Run before and after on the same random input; returns the rewritten graph."""
    graph = gde.Graph(tf_graph)
    feeds = {"x:0": random(*shape) * scale}
    before = run(graph, output, feeds)
    text = to_text(graph.ir)
    rewrite(graph)
    verify(graph.ir)
    if must_fold:
        assert gone not in op_types(graph)
    else:
        assert to_text(graph.ir) == text
    close(run(graph, output, feeds), before)
    return graph


def test_the_oldest_normalization_is_folded():
    with tf.Graph().as_default() as tf_graph:
        linear("Conv2D", tf.placeholder(tf.float32, [2, 6, 6, 4], name="x"), channels=2)
    definition = tf_graph.as_graph_def()
    definition.versions.producer = 8  # the op is older than this
    graph = gde.Graph(definition)
    node = graph.add_node("out", "BatchNormWithGlobalNormalization")
    values = (random(2), positive(2), random(2), positive(2))
    constants = [gde.make_const(graph, f"p{k}", v).output(0) for k, v in enumerate(values)]
    node.set_inputs([graph["linear:0"], *constants])
    node.add_attr("T", tf.float32)
    node.add_attr("variance_epsilon", 0.00001)
    node.add_attr("scale_after_normalization", False)
    node.set_outputs_from_pairs([(t.dtype, t.shape) for t in graph["linear"].outputs])
    feeds = {"x:0": random(2, 6, 6, 4)}
    before = run(graph, "out:0", feeds)
    gde.rewrite.fold_old_batch_norms(graph)
    assert "BatchNormWithGlobalNormalization" not in op_types(graph)
    close(run(graph, "out:0", feeds), before)


@pytest.mark.parametrize("kind", ["Conv2D", "MatMul", "DepthwiseConv2dNative"])
@pytest.mark.parametrize("relu", [None, tf.nn.relu, tf.nn.relu6])
def test_factors_and_offsets_are_folded_into_what_follows(kind, relu):
    with tf.Graph().as_default() as tf_graph:
        x = tf.placeholder(tf.float32, [2, 4] if kind == "MatMul" else [2, 6, 6, 4], name="x")
        spread = tf.add(tf.multiply(x, positive(4)), random(4))
        linear(kind, spread if relu is None else relu(spread, name="relu"), name="out")
    shape = (2, 4) if kind == "MatMul" else (2, 6, 6, 4)
    graph = compare(tf_graph, gde.rewrite.fold_batch_norms_up, "Mul", shape=shape, scale=10.0)
    assert "Relu6" not in op_types(graph)
    assert ("Minimum" in op_types(graph)) == (relu is tf.nn.relu6)


def test_a_node_that_a_signature_names_stays():
    with tf.Graph().as_default() as tf_graph:
        x = tf.placeholder(tf.float32, [2, 6, 6, 4], name="x")
        tf.multiply(linear("Conv2D", x), random(3), name="out")
    graph = gde.Graph(tf_graph)
    for name, tensor in (("inner", "linear:0"), ("outer", "out:0")):
        definition = tf.MetaGraphDef().signature_def["x"]
        definition.inputs["x"].name = "x:0"
        definition.outputs["y"].name = tensor
        graph.signatures[name] = definition
    gde.rewrite.fold_batch_norms(graph)
    assert "Mul" in op_types(graph)
    del graph.signatures["inner"]
    gde.rewrite.fold_batch_norms(graph)
    assert "Mul" not in op_types(graph)
    assert graph.signatures["outer"].outputs["y"].name == "out:0"
