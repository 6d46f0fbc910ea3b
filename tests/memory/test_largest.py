"""One operation needs more than the budget, and splitting the batch is no way: what the largest values are for runs in parts."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import graphwright as gw
from graphwright.analyze.splitting import LARGE, QUITE_LARGE, find_splitting_of_largest
from graphwright.errors import InfeasibleError
from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text
from graphwright.ir.traits.effects import Purity

pytestmark = pytest.mark.tensorflow

tf: Any = importlib.import_module("tensorflow")
Made = tuple[Any, tuple[Any, ...]]


def _train(loss_of: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    """A step that descends along the gradients of weights of these shapes."""
    weights = [tf.Variable(tf.random.stateless_normal(shape, (k, 0), stddev=0.1)) for k, shape in enumerate(shapes)]

    def step(*given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(*given, *weights)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return tf.function(step)


def _normal(*shape: int) -> Any:
    return tf.random.stateless_normal(shape, (len(shape), 1))


def edges(summary: Callable[..., Any]) -> Made:
    """Each node of a graph takes together what its edges bring."""
    nodes, rng = 100, np.random.default_rng(0)
    ends = [tf.constant(rng.integers(0, nodes, 6000).astype(np.int32)) for _ in range(2)]

    def loss_of(x: Any, source: Any, target: Any, w: Any) -> Any:
        messages = tf.tanh(tf.gather(x @ w, source)) * tf.gather(x @ w, target)
        return tf.reduce_mean(tf.square(summary(messages, target, nodes)))

    return _train(loss_of, (16, 32)), (_normal(nodes, 16), *ends)


def wide_block() -> Made:
    """One image; a block with many more channels inside than outside."""

    def loss_of(x: Any, wide: Any, deep: Any, narrow: Any) -> Any:
        h = tf.nn.relu6(tf.nn.conv2d(x, wide, 1, "SAME"))
        h = tf.nn.relu6(tf.nn.depthwise_conv2d(h, deep, (1, 1, 1, 1), "SAME"))
        return tf.reduce_mean(tf.square(x + tf.nn.conv2d(h, narrow, 1, "SAME")))

    return _train(loss_of, (1, 1, 4, 64), (3, 3, 64, 1), (1, 1, 64, 4)), (_normal(1, 40, 40, 4),)


def pairs() -> Made:
    """The distance of each to each."""

    def loss_of(x: Any, y: Any, w: Any) -> Any:
        z = x @ w
        return tf.reduce_mean(tf.exp(-tf.reduce_sum(tf.square(z[:, None] - z[None]), -1)) * y)

    return _train(loss_of, (8, 16)), (_normal(160, 8), _normal(160, 160))


def heads() -> Made:
    """Attention over one sequence."""

    def loss_of(x: Any, *weights: Any) -> Any:
        q, k, v = (tf.reshape(x @ w, (400, 4, 8)) for w in weights)
        return tf.reduce_mean(tf.square(tf.einsum("hqk,khd->qhd", tf.nn.softmax(tf.einsum("qhd,khd->hqk", q, k)), v)))

    return _train(loss_of, *[(32, 32)] * 3), (_normal(400, 32),)


@pytest.mark.parametrize(
    ("make", "budget"),
    [
        (lambda: edges(tf.math.unsorted_segment_sum), 0.35),
        (wide_block, 0.35),
        (pairs, 0.5),
        pytest.param(lambda: edges(tf.math.unsorted_segment_max), 0.5, marks=pytest.mark.slow),
        pytest.param(heads, 0.35, marks=pytest.mark.slow),
    ],
)
def test_an_operation_that_alone_needs_more_runs_in_parts(make: Callable[[], Made], budget: float) -> None:
    """Where parts are not allowed, the error names them."""
    step, inputs = make()
    options: dict[str, Any] = {"inputs": inputs, "cache_dir": None, "time_limit_s": 0.5}
    with pytest.raises(
        InfeasibleError, match=r'(?s)need.* this much.*allow="all" \(.* in 4 parts, one after another, takes .* more time\)'
    ):
        gw.optimize_memory(step, budget, **options)
    plan = gw.optimize_memory(step, budget, allow="all", verify="run", **options).plan
    assert plan.peak_bytes <= budget * plan.original_peak_bytes
    assert " parts, one after another" in plan.rewritten
    assert plan.verification.startswith("equal")


def test_the_axis_is_that_without_sums_and_what_is_quite_large_follows() -> None:
    graph = from_text("""graph "edges"
    inputs %table:0, %ids:0, %scale:0
    outputs %total:0
    %table = Placeholder() : float32[30,8,4]
    %ids = Placeholder() : int32[600]
    %scale = Placeholder() : float32[600,8]
    %zero = Const() {dtype = int32, value = tensor int32[] [0]} : int32[]
    %count = Const() {dtype = int32, value = tensor int32[] [30]} : int32[]
    %rows = GatherV2(%table:0, %ids:0, %zero:0) {batch_dims = 0} : float32[600,8,4]
    %half = Exp(%scale:0) : float32[600,8]
    %sines = Sin(%rows:0) : float32[600,8,4]
    %total = UnsortedSegmentSum(%sines:0, %ids:0, %count:0) : float32[30,8,4]""")
    found = {by: _found(graph, by) for by in (LARGE, QUITE_LARGE)}
    assert found[LARGE] == (8, {"rows": 1, "sines": 1, "total": 1})
    assert found[QUITE_LARGE] == (8, {"rows": 1, "half": 1, "sines": 1, "total": 1})


def _found(graph: Graph, by: int) -> tuple[int, dict[str, int]]:
    splitting = find_splitting_of_largest(graph, Purity(graph, dict.fromkeys((n.op_type for n in graph.nodes), False)), by)
    assert splitting is not None
    return splitting.batch, {node.name: how.outputs[0] for node, how in splitting.nodes.items()}
