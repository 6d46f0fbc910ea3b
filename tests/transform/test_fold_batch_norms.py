"""Folded graphs agree with the originals, and what must not be folded is not."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import graphwright as gw
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
    assert len(fold_batch_norms(graph).folded) == 1
    assert len(graph) < size
    assert len(fold_batch_norms(graph).folded) == 0
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
    assert len(fold_batch_norms(first).folded) == len(fold_batch_norms(last).folded) == 1
    from graphwright.ir.constants import constant_array

    for graph in (first, last):
        assert [n.attrs["data_format"] for n in graph if n.op_type == "BiasAdd"] == [b"NCHW" if graph is first else b"NHWC"]
    pairs = [[constant_array(n) for n in g if n.op_type == "Const"] for g in (first, last)]
    for ours, theirs in zip(*pairs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# Before a convolution, transposed convolutions, concatenations, and why something is left


def agree(build, shape, *, folded, left=0, tolerance=1e-5):
    """Fold and serve; returns the folded graph and the report."""
    graph, original = (built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"}) for _ in range(2))
    report = fold_batch_norms(graph)
    assert (len(report.folded), len(report.left)) == (folded, left), str(report)
    x = random(*shape, seed=11)
    expected = serve(original, {"x": x})["y"].astype(np.float64)
    got = serve(graph, {"x": x})["y"].astype(np.float64)
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()
    assert np.abs(expected).max() > 0.1
    return graph, report


def norm_of(y, kind="fused", *, offset=True):
    gamma, beta, mean, variance = statistics(int(y.shape[-1]))
    if not offset:
        beta, mean = np.zeros_like(beta), np.zeros_like(mean)
    if kind == "fused":
        return v1.nn.fused_batch_norm(y, gamma, beta, mean, variance, epsilon=1e-3, is_training=False)[0]
    return tf.nn.batch_normalization(y, tf.constant(mean), tf.constant(variance), tf.constant(beta), tf.constant(gamma), 1e-3)


LINEAR = {
    "Conv2D": lambda x, padding: tf.nn.conv2d(x, random(3, 3, 4, 5), [1, 1, 1, 1], padding),
    "grouped": lambda x, padding: tf.nn.conv2d(x, random(3, 3, 2, 6), [1, 1, 1, 1], padding),
    "1 x 1": lambda x, padding: tf.nn.conv2d(x, random(1, 1, 4, 5), [1, 2, 2, 1], padding),
    "depthwise": lambda x, padding: tf.nn.depthwise_conv2d(x, random(3, 3, 4, 2), [1, 1, 1, 1], padding),
    "transposed": lambda x, padding: tf.nn.conv2d_transpose(
        x, random(3, 3, 5, 4), [2, *([12, 12] if padding == "SAME" else [13, 13]), 5], [1, 2, 2, 1], padding
    ),
}


def read_twice(x):
    y = tf.linalg.matmul(x, tf.constant(random(4, 3))) * random(3, seed=1)
    tf.add(tf.nn.relu(y + random(3, seed=2)), y, name="y")


def shared_weights(x):
    w = tf.constant(random(4, 3))
    tf.add(tf.linalg.matmul(x, w) * random(3, seed=1), tf.linalg.matmul(x, w), name="y")


def returned_scale(x):
    tf.multiply(tf.linalg.matmul(x, tf.constant(random(4, 3))), random(3, seed=1), name="y")


@pytest.mark.parametrize("function", [read_twice, shared_weights, returned_scale])
def test_factors_of_a_product_are_folded_for_its_reader_alone(function):
    graph, _ = agree(lambda: function(v1.placeholder(tf.float32, [2, 4], name="x")), (2, 4), folded=1)
    assert sum(node.op_type == "Mul" for node in graph) == 0
    assert graph.outputs[0].name == "y:0"


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("linear", LINEAR)
def test_before_a_convolution(linear, offset, padding):
    kind = "fused" if padding == "SAME" else "decomposed"

    def build():
        x = v1.placeholder(tf.float32, [2, 6, 6, 4], name="x")
        tf.nn.relu(LINEAR[linear](norm_of(x, kind, offset=offset), padding), name="y")

    exact = not offset or (linear != "transposed" and (padding == "VALID" or linear == "1 x 1"))
    _, report = agree(build, (2, 6, 6, 4), folded=int(exact), left=int(not exact))
    if exact:
        assert report.folded[0].place == "before"
    else:
        assert "zeros around its input" in report.left[0].reason


@pytest.mark.parametrize("transposed", [False, True])
def test_before_a_product(transposed):
    def build():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        w = random(3, 4) if transposed else random(4, 3)
        tf.nn.relu(tf.matmul(norm_of(x, "decomposed"), w, transpose_b=transposed), name="y")

    agree(build, (5, 4), folded=1)


def test_two_readers_and_a_bias_that_takes_the_offset():
    def build():
        x = v1.placeholder(tf.float32, [None, 6, 6, 4], name="x")
        z = norm_of(x)
        one = tf.nn.bias_add(tf.nn.conv2d(z, random(3, 3, 4, 3), 1, "VALID", name="one"), random(3))
        two = tf.nn.conv2d(z, random(3, 3, 4, 3, seed=2), 1, "VALID", name="two")
        tf.add(tf.nn.relu(one), tf.nn.relu(two), name="y")

    graph, _ = agree(build, (2, 6, 6, 4), folded=1)
    assert sum(node.op_type == "BiasAdd" for node in graph) == 2
    assert graph["two"].op_type == "BiasAdd"


def test_a_convolution_between_two_norms_takes_both():
    def build():
        x = v1.placeholder(tf.float32, [None, 6, 6, 4], name="x")
        tf.nn.relu(norm_of(tf.nn.conv2d(norm_of(x), random(3, 3, 4, 3), 1, "VALID")), name="y")

    graph, _ = agree(build, (2, 6, 6, 4), folded=2)
    assert [node.op_type for node in graph if node.op_type not in ("Const", "Placeholder")] == ["Conv2D", "BiasAdd", "Relu"]


@pytest.mark.parametrize("kind", ["transposed", "one dimension", "dilated", "concatenated", "sequence"])
def test_through_what_moves_numbers(kind):
    shape = {"one dimension": (2, 9, 4), "sequence": (2, 5, 4)}.get(kind, (2, 6, 6, 4))

    def build():
        x = v1.placeholder(tf.float32, shape, name="x")
        if kind == "transposed":
            z = norm_of(LINEAR["transposed"](x, "SAME"))
        elif kind == "one dimension":
            z = norm_of(tf.nn.bias_add(tf.nn.conv1d(x, random(3, 4, 5), 1, "SAME"), random(5)), "decomposed")
        elif kind == "dilated":
            z = norm_of(tf.nn.convolution(x, random(3, 3, 4, 5), padding="SAME", dilations=2))
        elif kind == "sequence":
            z = norm_of(tf.reshape(tf.matmul(tf.reshape(x, [-1, 4]), random(4, 3)), [2, 5, 3]), "decomposed")
        else:
            parts = [tf.nn.bias_add(LINEAR["Conv2D"](x, "SAME"), random(5)), LINEAR["depthwise"](x, "SAME"), LINEAR["Conv2D"](x, "SAME")]
            z = norm_of(tf.concat(parts, 3))
        tf.nn.relu(z, name="y")

    graph, _ = agree(build, shape, folded=1)
    assert not {"FusedBatchNormV3", "Rsqrt", "Mul"} & {node.op_type for node in graph}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions(dtype):
    def build():
        x = tf.cast(v1.placeholder(tf.float32, [2, 6, 6, 4], name="x"), dtype)
        z = tf.nn.conv2d(x, tf.cast(random(3, 3, 4, 5), dtype), 1, "SAME") * tf.cast(random(5) + 2, dtype) + tf.cast(random(5), dtype)
        tf.cast(tf.nn.relu(z), tf.float32, name="y")

    graph, _ = agree(build, (2, 6, 6, 4), folded=1, tolerance={"float16": 5e-3, "bfloat16": 4e-2}.get(dtype, 1e-7))
    assert {node.outputs[0].dtype.name for node in graph if node.op_type == "BiasAdd"} == {dtype}


def test_weights_that_would_not_fit_stay():
    def build():
        x = tf.cast(v1.placeholder(tf.float32, [2, 4], name="x"), tf.float16)
        tf.cast(
            tf.matmul(x, tf.constant(random(4, 3), tf.float16)) * tf.constant([6e4, 6e4, 6e4], tf.float16)
            + tf.constant(random(3), tf.float16),
            tf.float32,
            name="y",
        )

    graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    report = fold_batch_norms(graph)
    assert not report.folded
    assert "would not fit in float16" in report.left[0].reason


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("training", "in training mode"),
        ("quantized", "a FakeQuantWithMinMaxVars"),
        ("fed weights", "the weights of .* are no constants, but made by 'w', a Placeholder"),
        ("per pixel", "is not one number per channel"),
        ("quantized weights", "made by .* a FakeQuantWithMinMaxVars"),
        ("fed statistics", "is not a constant, but made by 'mean', a Placeholder"),
        ("read twice", "is read by 2 nodes"),
        ("returned", "is returned"),
        ("waited for", "waits for"),
        ("sum", "before it stands 'sum', a AddV2; behind it stands 'y', a Relu"),
    ],
)
def test_the_report_says_why(kind, reason):
    def build():
        x = v1.placeholder(tf.float32, [2, 6, 6, 4], name="x")
        w = tf.constant(random(3, 3, 4, 4)) if kind != "fed weights" else v1.placeholder(tf.float32, [3, 3, 4, 4], name="w")
        if kind == "quantized weights":
            w = tf.quantization.fake_quant_with_min_max_vars(w, -3.0, 3.0)
        z = tf.nn.conv2d(x, w, 1, "SAME", name="convolution")
        gamma, beta, mean, variance = statistics(4)
        if kind == "quantized":
            z = tf.quantization.fake_quant_with_min_max_vars(z, -3.0, 3.0)
        elif kind == "fed statistics":
            mean = v1.placeholder(tf.float32, [4], name="mean")
        elif kind == "sum":
            z = tf.add(z, x, name="sum")
        with tf.control_dependencies([z] if kind == "waited for" else []):
            tf.no_op("after")
        training = {} if kind == "training" else {"mean": mean, "variance": variance}
        if kind == "per pixel":
            normalized = z * random(6, 6, 4) + beta
        else:
            normalized = v1.nn.fused_batch_norm(z, gamma, beta, is_training=kind == "training", **training)[0]
        tf.nn.relu(normalized + z if kind == "read twice" else normalized, name="y")

    outputs = {"y": "y:0", **({"z": "convolution:0"} if kind == "returned" else {})}
    graph = built(build, inputs={"x": "x:0"}, outputs=outputs)
    report = fold_batch_norms(graph)
    assert not report.folded
    [norm] = report.left
    assert re.search(reason, norm.reason), norm.reason
    assert norm.name in str(report)


def test_variables_of_what_was_loaded_are_frozen_first():
    variables = [tf.Variable(value) for value in statistics(5)]

    def function(x):
        gamma, beta, mean, variance = variables
        return tf.nn.relu(tf.nn.batch_normalization(tf.nn.conv2d(x, random(3, 3, 3, 5), 1, "SAME"), mean, variance, beta, gamma, 1e-3))

    graph = gw.load(tf.function(function).get_concrete_function(tf.TensorSpec([None, 4, 4, 3], tf.float32, "x")))
    report = fold_batch_norms(graph)
    assert (len(report.folded), report.left) == (1, ())


def test_bodies_of_branches_are_folded():
    def function(x):
        def folded():
            return norm_of(tf.nn.conv2d(x, random(3, 3, 3, 5), 1, "SAME"))

        return tf.cond(tf.reduce_sum(x) > -1e6, folded, lambda: tf.zeros([tf.shape(x)[0], 4, 4, 5]))

    spec = tf.TensorSpec([None, 4, 4, 3], tf.float32, "x")
    graph, original = traced(function, spec), traced(function, spec)
    report = fold_batch_norms(graph)
    assert len(report.folded) == 1
    assert report.folded[0].function in graph.functions
    x = random(2, 4, 4, 3)
    np.testing.assert_allclose(serve(graph, {"x": x})["output_0"], serve(original, {"x": x})["output_0"], rtol=1e-5, atol=1e-5)
