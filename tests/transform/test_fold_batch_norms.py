"""Folded graphs agree with the originals, and what must not be folded is not."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.transform.fold_batch_norms import fold_batch_norms
from tests.transform.serving import built, random, serve, traced

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1


def statistics(channels):
    return (
        random(channels, seed=1) + 2.0,  # gamma
        random(channels, seed=2),  # beta
        random(channels, seed=3),  # mean
        np.abs(random(channels, seed=4)) + 0.1,  # variance
    )


def convolution(x, kind, layout):
    weights = {
        "Conv2D": (3, 3, 3, 8),
        "DepthwiseConv2dNative": (3, 3, 3, 2),
        "MatMul": (3, 8),
        "MatMulTransposed": (8, 3),
        "Conv3D": (1, 3, 3, 3, 8),
    }[kind]
    w = tf.constant(random(*weights, seed=7))
    strides = [1, 1, 1, 1]
    match kind:
        case "Conv2D":
            return tf.nn.conv2d(x, w, strides, "SAME", data_format=layout)
        case "Conv3D":
            return tf.nn.conv3d(x[:, None], w, [1, 1, 1, 1, 1], "SAME")
        case "DepthwiseConv2dNative":
            return tf.nn.depthwise_conv2d(x, w, strides, "VALID")
        case "MatMul":
            return tf.linalg.matmul(x, w)
        case _:
            return tf.linalg.matmul(x, w, transpose_b=True)


def batch_norm(y, kind, layout):
    channels = y.shape[1 if layout == "NCHW" else -1]
    gamma, beta, mean, variance = statistics(channels)
    if kind == "fused":
        return v1.nn.fused_batch_norm(y, gamma, beta, mean, variance, epsilon=1e-3, is_training=False, data_format=layout)[0]
    if layout == "NCHW":
        gamma, beta, mean, variance = (a.reshape(-1, 1, 1) for a in (gamma, beta, mean, variance))
    if kind == "divided":
        return (y - mean) / np.sqrt(variance + 1e-3)
    return tf.nn.batch_normalization(y, tf.constant(mean), tf.constant(variance), tf.constant(beta), tf.constant(gamma), 1e-3)


def model(conv, norm, *, bias=True, layout="NHWC"):
    shape = [4, 3] if conv.startswith("MatMul") else [2, 6, 6, 3] if layout == "NHWC" else [2, 3, 6, 6]

    def build():
        x = v1.placeholder(tf.float32, shape, name="x")
        y = convolution(x, conv, layout)
        if bias:
            y = tf.nn.bias_add(y, random(y.shape[1 if layout == "NCHW" else -1], seed=9), data_format=layout if y.shape.rank == 4 else None)
        tf.nn.relu(batch_norm(y, norm, layout), name="y")

    return built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"}), shape


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("conv", "norm"),
    [
        ("Conv2D", "fused"),
        ("Conv2D", "decomposed"),
        ("Conv2D", "divided"),
        ("DepthwiseConv2dNative", "fused"),
        ("DepthwiseConv2dNative", "decomposed"),
        ("MatMul", "decomposed"),
        ("MatMulTransposed", "decomposed"),
        ("Conv3D", "decomposed"),
    ],
)
def test_folded_and_original_agree(conv, norm, bias):
    (graph, shape), (original, _) = model(conv, norm, bias=bias), model(conv, norm, bias=bias)
    size = len(graph)
    assert fold_batch_norms(graph) == 1
    assert len(graph) < size
    assert fold_batch_norms(graph) == 0
    kinds = [n.op_type for n in graph]
    assert not {"FusedBatchNormV3", "Rsqrt", "Mul", "RealDiv", "Sub"} & set(kinds)
    x = random(*shape, seed=11)
    expected = serve(original, {"x": x})["y"]
    np.testing.assert_allclose(serve(graph, {"x": x})["y"], expected, rtol=1e-5, atol=1e-5)
    assert np.abs(expected).max() > 0.1


def test_channels_first():
    """The CPU has no convolution for it: the weights and the offset are compared with those of the other layout."""
    first, _ = model("Conv2D", "decomposed", layout="NCHW")
    last, _ = model("Conv2D", "decomposed")
    assert fold_batch_norms(first) == fold_batch_norms(last) == 1
    from graphwright.transform.constant_arrays import constant_array

    for graph in (first, last):
        assert [n.attrs["data_format"] for n in graph if n.op_type == "BiasAdd"] == [b"NCHW" if graph is first else b"NHWC"]
    pairs = [[constant_array(n) for n in g if n.op_type == "Const"] for g in (first, last)]
    for ours, theirs in zip(*pairs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_chain_that_is_read_twice_is_folded_up_to_there():
    def build():
        x = v1.placeholder(tf.float32, [2, 4], name="x")
        y = tf.linalg.matmul(x, tf.constant(random(4, 3))) * random(3, seed=1)
        tf.add(tf.nn.relu(y + random(3, seed=2)), y, name="y")

    graph, original = (built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"}) for _ in range(2))
    assert fold_batch_norms(graph) == 1
    assert sum(n.op_type == "Mul" for n in graph) == 0
    assert sum(n.op_type == "AddV2" for n in graph) == 2
    x = random(2, 4, seed=6)
    np.testing.assert_allclose(serve(graph, {"x": x})["y"], serve(original, {"x": x})["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reason", ["output", "read twice", "per pixel", "training", "weights"])
def test_what_must_not_be_folded(reason):
    def build():
        x = v1.placeholder(tf.float32, [2, 4, 4, 3], name="x")
        w = tf.constant(random(3, 3, 3, 5)) if reason != "weights" else v1.placeholder(tf.float32, [3, 3, 3, 5], name="w")
        y = tf.nn.conv2d(x, w, [1, 1, 1, 1], "SAME", name="convolution")
        if reason == "per pixel":
            z = y * random(4, 4, 5)
        elif reason == "training":
            z = v1.nn.fused_batch_norm(y, *statistics(5)[:2], is_training=True)[0]
        else:
            z = v1.nn.fused_batch_norm(y, *statistics(5), is_training=False)[0]
        if reason == "read twice":
            z = z + y
        tf.nn.relu(z, name="y")

    outputs = {"y": "y:0", "conv": "convolution:0"} if reason == "output" else {"y": "y:0"}
    graph = built(build, inputs={"x": "x:0"}, outputs=outputs)
    assert fold_batch_norms(graph) == 0


def test_weights_that_two_convolutions_share_are_folded_for_each_alone():
    def build():
        x = v1.placeholder(tf.float32, [2, 4], name="x")
        w = tf.constant(random(4, 3))
        tf.add(tf.linalg.matmul(x, w) * random(3, seed=1), tf.linalg.matmul(x, w), name="y")

    graph, original = (built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"}) for _ in range(2))
    assert fold_batch_norms(graph) == 1
    x = random(2, 4, seed=6)
    np.testing.assert_allclose(serve(graph, {"x": x})["y"], serve(original, {"x": x})["y"], rtol=1e-5, atol=1e-5)


def test_a_scale_that_is_returned_keeps_its_name():
    def build():
        x = v1.placeholder(tf.float32, [2, 4], name="x")
        tf.multiply(tf.linalg.matmul(x, tf.constant(random(4, 3))), random(3, seed=1), name="y")

    graph, original = (built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"}) for _ in range(2))
    assert fold_batch_norms(graph) == 1
    assert graph.outputs[0].name == "y:0"
    x = random(2, 4, seed=6)
    np.testing.assert_allclose(serve(graph, {"x": x})["y"], serve(original, {"x": x})["y"], rtol=1e-5, atol=1e-5)


def test_a_model_inside_a_function():
    w = random(3, 3, 3, 5)

    def function(x):
        y = tf.nn.conv2d(x, w, [1, 1, 1, 1], "SAME")
        return tf.nn.relu(v1.nn.fused_batch_norm(y, *statistics(5), is_training=False)[0])

    spec = tf.TensorSpec([None, 4, 4, 3], tf.float32, "x")
    graph, original = traced(function, spec), traced(function, spec)
    assert fold_batch_norms(graph) == 1
    x = random(2, 4, 4, 3)
    np.testing.assert_allclose(serve(graph, {"x": x})["output_0"], serve(original, {"x": x})["output_0"], rtol=1e-5, atol=1e-5)
