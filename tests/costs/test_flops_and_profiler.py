"""Our FLOPs beside those of `tf.compat.v1.profiler`, for each op type that it has a rule for; where they differ, and why."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from graphwright.costs.flops import count_flops  # noqa: E402

pytestmark = pytest.mark.tensorflow

raw = tf.raw_ops


def x(*shape: int, dtype: Any = None) -> Any:
    return tf.compat.v1.placeholder(dtype or tf.float32, shape)


def binary(name: str) -> Callable[[], Any]:
    return lambda: getattr(raw, name)(x=x(5, 7), y=x(5, 7))


def unary(name: str) -> Callable[[], Any]:
    return lambda: getattr(raw, name)(x=x(5, 7))


def pool(name: str) -> Callable[[], Any]:
    key = "value" if name == "AvgPool" else "input"
    return lambda: getattr(raw, name)(**{key: x(2, 8, 8, 3)}, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="SAME")


def assign(name: str) -> Callable[[], Any]:
    def build() -> Any:
        variable = raw.VariableV2(shape=[5, 7], dtype=tf.float32)
        return getattr(raw, name)(ref=variable, value=x(5, 7))

    return build


def product(name: str) -> Callable[[], Any]:
    return lambda: getattr(raw, name)(x=x(3, 4, 6), y=x(3, 6, 5), **({"Tout": tf.float32} if name.endswith("V3") else {}))


WINDOW = {"ksize": [1, 3, 3, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
CONVOLUTION = {"strides": [1, 2, 2, 1], "padding": "SAME"}

BUILDERS: dict[str, Callable[[], Any]] = {
    **{
        name: binary(name)
        for name in (
            "Add AddV2 Sub Mul RealDiv Maximum Minimum Pow Greater GreaterEqual Less LessEqual Equal NotEqual SquaredDifference"
        ).split()
    },
    **{name: unary(name) for name in "Reciprocal Square Log Neg Rsqrt".split()},
    **{name: pool(name) for name in ("MaxPool", "AvgPool")},
    **{name: assign(name) for name in ("AssignAdd", "AssignSub")},
    **{name: product(name) for name in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")},
    "RsqrtGrad": lambda: raw.RsqrtGrad(y=x(5, 7), dy=x(5, 7)),
    "Softmax": lambda: raw.Softmax(logits=x(5, 7)),
    "L2Loss": lambda: raw.L2Loss(t=x(5, 7)),
    "AddN": lambda: raw.AddN(inputs=[x(5, 7), x(5, 7), x(5, 7)]),
    "BiasAdd": lambda: raw.BiasAdd(value=x(5, 7), bias=x(7)),
    "BiasAddGrad": lambda: raw.BiasAddGrad(out_backprop=x(5, 7)),
    "Sum": lambda: raw.Sum(input=x(5, 7), axis=[0]),
    "Mean": lambda: raw.Mean(input=x(5, 7), axis=[0]),
    "ArgMax": lambda: raw.ArgMax(input=x(5, 7), dimension=0),
    "ArgMin": lambda: raw.ArgMin(input=x(5, 7), dimension=0),
    "MatMul": lambda: raw.MatMul(a=x(5, 7), b=x(7, 3)),
    "Conv2D": lambda: raw.Conv2D(input=x(2, 8, 8, 3), filter=x(3, 3, 3, 5), **CONVOLUTION),
    "Conv3D": lambda: raw.Conv3D(input=x(2, 8, 8, 8, 3), filter=x(3, 3, 3, 3, 5), strides=[1, 2, 2, 2, 1], padding="SAME"),
    "DepthwiseConv2dNative": lambda: raw.DepthwiseConv2dNative(input=x(2, 8, 8, 3), filter=x(3, 3, 3, 2), **CONVOLUTION),
    "Dilation2D": lambda: raw.Dilation2D(input=x(2, 8, 8, 3), filter=x(3, 3, 3), strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding="SAME"),
    "Conv2DBackpropInput": lambda: raw.Conv2DBackpropInput(
        input_sizes=[2, 8, 8, 3], filter=x(3, 3, 3, 5), out_backprop=x(2, 4, 4, 5), **CONVOLUTION
    ),
    "Conv2DBackpropFilter": lambda: raw.Conv2DBackpropFilter(
        input=x(2, 8, 8, 3), filter_sizes=[3, 3, 3, 5], out_backprop=x(2, 4, 4, 5), **CONVOLUTION
    ),
    "MaxPoolGrad": lambda: raw.MaxPoolGrad(orig_input=x(2, 8, 8, 3), orig_output=x(2, 4, 4, 3), grad=x(2, 4, 4, 3), **WINDOW),
    "AvgPoolGrad": lambda: raw.AvgPoolGrad(orig_input_shape=[2, 8, 8, 3], grad=x(2, 4, 4, 3), **WINDOW),
}

# op type -> (theirs, ours) on these graphs, and why ours is right.
DIFFERENT: dict[str, tuple[float, float]] = {
    "Rsqrt": (70, 35),  # a transcendental function counts as one, as their own Log, Pow and Sigmoid do
    "L2Loss": (104, 70),  # n squares, n - 1 additions and one half; they count another addition per element
}


def counted(name: str) -> tuple[float, float]:
    """Theirs and ours, of a graph with one node of the type."""
    with tf.Graph().as_default() as graph:
        output = BUILDERS[name]()
        options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
        options["output"] = "none"
        theirs = tf.compat.v1.profiler.profile(graph, options=options).total_float_ops
    return theirs, count_flops(graph, outputs=output.op.name).total


def test_they_take_the_wrong_side_of_a_transposed_product():
    with tf.Graph().as_default() as graph:
        raw.BatchMatMulV2(x=x(3, 6, 4), y=x(3, 6, 5), adj_x=True, name="product")
        options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
        options["output"] = "none"
        theirs = tf.compat.v1.profiler.profile(graph, options=options).total_float_ops
    assert count_flops(graph, outputs="product").total == 2 * 3 * 4 * 5 * 6 != theirs


def test_every_op_type_that_tensorflow_counts_is_here():
    registry = importlib.import_module("tensorflow.python.framework.ops")._stats_registry
    assert {key.split(",")[0] for key in registry._registry} == set(BUILDERS)


@pytest.mark.parametrize("name", BUILDERS)
def test_ours_beside_theirs(name):
    theirs, ours = counted(name)
    assert (theirs, ours) == DIFFERENT.get(name, (theirs, theirs))
    assert ours > 0
