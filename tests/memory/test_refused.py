"""Steps that TensorFlow refuses to run: none is made by an order, and none is handed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.ir.edit.insert import insert_before
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.merging import merge_partners
from graphwright.ops.machine import onednn_enabled
from graphwright.plan.model import Waits
from graphwright.run.executed_graph import refusal
from graphwright.run.traced_step import resolve
from graphwright.source.concrete_function import from_concrete_function, to_concrete_function
from graphwright.transform import keep_order, rematerialize

pytestmark = pytest.mark.skipif(not onednn_enabled(), reason="oneDNN's pass merges nothing")
OPTIONS: dict[str, Any] = {"strides": [1, 1, 1, 1], "padding": "VALID"}
X, KERNEL, D = (2, 8, 8, 4), (3, 3, 4, 4), (2, 6, 6, 4)


def kernel_gradient(x: Any, d: Any, name: str) -> Any:
    return tf.raw_ops.Conv2DBackpropFilter(input=x, filter_sizes=KERNEL, out_backprop=d, name=name, **OPTIONS)


def gradients(x: Any, kernel: Any, d: Any, bias: Any) -> Any:
    """The kernel's gradient reads what is made after the bias gradient is done, as where two convolutions read one gradient."""
    b = tf.raw_ops.BiasAddGrad(out_backprop=d, name="first")
    return b, kernel_gradient(tf.raw_ops.Relu(features=x, name="between"), d, "second")


def two_biases(x: Any, kernel: Any, d: Any, bias: Any) -> Any:
    """Of two bias gradients the first one is made before."""
    b = tf.raw_ops.BiasAddGrad(out_backprop=d, name="first")
    return (
        b,
        tf.raw_ops.BiasAddGrad(out_backprop=d, name="beside"),
        kernel_gradient(tf.raw_ops.Relu(features=x, name="between"), d, "second"),
    )


def one_of_several(x: Any, kernel: Any, d: Any, bias: Any) -> Any:
    """Both gradients read parts of what one node makes, which the pass takes for the same."""
    parts = tf.split(tf.concat([d, d], 0), 2)
    b = tf.raw_ops.BiasAddGrad(out_backprop=parts[0], name="first")
    return b, kernel_gradient(tf.raw_ops.Relu(features=x, name="between"), parts[1], "second")


def padding(x: Any, kernel: Any, d: Any, bias: Any) -> Any:
    """A kernel that is made while its input is padded already."""
    padded = tf.raw_ops.Pad(input=x, paddings=[[0, 0], [1, 1], [1, 1], [0, 0]], name="first")
    return tf.raw_ops.Conv2D(input=padded, filter=tf.raw_ops.Relu(features=kernel, name="between"), name="second", **OPTIONS)


def bias_made_late(x: Any, kernel: Any, d: Any, bias: Any) -> Any:
    """A bias that is made after the convolution."""
    y = tf.raw_ops.Conv2D(input=x, filter=kernel, name="first", **OPTIONS)
    return tf.raw_ops.BiasAdd(value=y, bias=tf.raw_ops.Relu(features=bias, name="between"), name="second")


def fused(graph: Graph) -> None:
    """The second node as Grappler makes it of a convolution, a bias and an activation."""
    conv = graph["second"]
    bias = graph["bias"].outputs[0]
    attrs = {**conv.attrs, "num_args": 1, "fused_ops": [b"BiasAdd", b"Relu"], "TArgs": [bias.dtype]}
    types = [(value.dtype, value.shape) for value in conv.outputs]
    made = graph.add_node("_FusedConv2D", "fused", inputs=[*conv.inputs, bias], attrs=attrs, output_types=types)
    graph.replace_uses(conv.outputs[0], made.outputs[0])
    graph.remove_node(conv)
    graph.rename(made, "second")


def refused(function: Callable[..., Any], change: Callable[[Graph], None] | None = None) -> str:
    """What TensorFlow says of the function with an order: its node "first", then "between", then "second"."""
    step = resolve(tf.function(function), [tf.ones(shape) for shape in (X, KERNEL, D, (4,))])
    graph, binding = from_concrete_function(step.function)
    if change is not None:
        change(graph)
    steps = [(graph[name],) for name in ("first", "between", "second")]
    keep_order.keep_order(graph, steps, [(), ((0,),), ()])
    assert all(set(merge_partners(node)[1]) <= set(nodes) for nodes in steps for node in nodes) == (keep_order._hide_partners is HIDE)
    return refusal(replace(step, function=to_concrete_function(graph, binding)))


HIDE = keep_order._hide_partners
KINDS = {
    "gradients": (gradients, None),
    "two biases": (two_biases, None),
    "one of several": (one_of_several, None),
    "padding": (padding, None),
    "fused": (padding, fused),
    "bias": (bias_made_late, None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_order_makes_a_kernel_wait_for_itself(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """TensorFlow would merge the nodes around the one in between."""
    assert refused(*KINDS[kind]) == ""
    monkeypatch.setattr(keep_order, "_hide_partners", lambda *_: None)
    assert "cycle" in refused(*KINDS[kind])


@pytest.fixture
def training_step() -> tuple[Any, tuple[Any, ...]]:
    kernels = [tf.Variable(tf.random.stateless_uniform((3, 3, 8, 8), (k, 1), -0.1, 0.1)) for k in range(8)]
    biases = [tf.Variable(tf.zeros(8)) for _ in kernels]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for kernel, bias in zip(kernels, biases, strict=True):
                x = tf.nn.sigmoid(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
            loss = tf.reduce_mean(tf.square(x))
        for variable, gradient in zip(kernels + biases, tape.gradient(loss, kernels + biases), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step, (tf.random.stateless_uniform((16, 16, 16, 8), (0, 2)),)


def close_cycles(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Let the first so many rewritten steps have an order edge over which the kernel of two gradients waits for itself."""
    made: list[int] = []

    def kept(graph: Graph, steps: Sequence[tuple[Node, ...]], waits: Sequence[Waits]) -> None:
        keep_order.keep_order(graph, steps, waits)
        made.append(len(waits))
        if len(made) <= times:
            bias, kernel = next((n, m) for n in graph for m in merge_partners(n)[1] if n.op_type == "BiasAddGrad")
            late = insert_before(graph, kernel, 0, "Identity", "late", attrs={"T": kernel.inputs[0].dtype})
            graph.add_control_input(late, bias)

    monkeypatch.setattr(rematerialize, "keep_order", kept)
    return made


@pytest.mark.parametrize(
    ("times", "allow", "made"),
    [
        pytest.param(1, ("recompute",), 2, id="the same plan without overlap"),
        pytest.param(2, "all", 3, id="the next candidate", marks=pytest.mark.slow),
    ],
)
def test_the_next_plan_is_handed_over(
    monkeypatch: pytest.MonkeyPatch, training_step: tuple[Any, tuple[Any, ...]], times: int, allow: Any, made: int
) -> None:
    step, inputs = training_step
    rewritten = close_cycles(monkeypatch, times)
    fast = gw.optimize_memory(step, 0.6, inputs=inputs, allow=allow, cache_dir=None, time_limit_s=0.1)
    assert len(rewritten) == made
    assert "where steps overlap: " in fast.plan.how["refused"]
    assert fast.plan.how["refused"].count("TensorFlow refuses to run it: ") == fast.plan.how["refused"].count(" cycle") == times
    assert fast.plan.peak_bytes <= fast.plan.budget_bytes
    assert fast.plan.verification.startswith("equal")
    fast(*inputs)


@pytest.mark.slow
def test_where_all_are_refused_the_error_says_why(monkeypatch: pytest.MonkeyPatch, training_step: tuple[Any, tuple[Any, ...]]) -> None:
    step, inputs = training_step
    close_cycles(monkeypatch, 99)
    with pytest.raises(gw.VerificationError, match=r"TensorFlow refuses to run it: .* cycle"):
        gw.optimize_memory(step, 0.6, inputs=inputs, cache_dir=None, time_limit_s=0.1)


def test_what_is_handed_over_is_built_already(training_step: tuple[Any, tuple[Any, ...]]) -> None:
    """The first call finds what TensorFlow has built, and nothing has run by then."""
    step, inputs = training_step
    before = [variable.numpy() for variable in step.get_concrete_function(*inputs).variables]
    fast = gw.optimize_memory(step, 0.6, inputs=inputs, cache_dir=None, time_limit_s=0.1)
    assert "refused" not in fast.plan.how
    for variable, value in zip(step.get_concrete_function(*inputs).variables, before, strict=True):
        assert (variable.numpy() == value).all()
