"""What Grappler makes of a step is planned in its place, where it can stand for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import graphwright as gw
from graphwright.errors import UnsupportedError
from graphwright.ir.edit.library import bodies
from graphwright.ir.text import to_text
from graphwright.ir.verify import verify as verify_graph
from graphwright.memory.planning import follow_schedule, map_tasks
from graphwright.plan.model import Schedule
from graphwright.run.call_options import grappler_disabled
from graphwright.run.executed_graph import read_optimized_graph, recorded_graphs
from graphwright.run.verify import verify
from graphwright.step.example_inputs import runnable
from graphwright.step.flatten import FlatStep, flat_step
from graphwright.step.grappler_step import grappler_step
from graphwright.step.targets import trace
from tests.transform.steps import STEPS

pytestmark = pytest.mark.tensorflow
LOWERED = ("branch", "loop")


def optimized(function: Any, inputs: Any) -> tuple[FlatStep, FlatStep]:
    """A step as it was traced, and as Grappler leaves it."""
    traced = trace(function, inputs=inputs)
    flat = flat_step(traced)
    return flat, grappler_step(traced, flat, recorded_graphs(traced, like=flat.graph)).found


def own_order(flat: FlatStep) -> Any:
    tasks = map_tasks(flat)
    return follow_schedule(flat, tasks, Schedule(tasks.costs.order))


def convolution() -> tuple[Any, Any]:
    """A convolution with bias and activation, which Grappler fuses, and a scale that it folds."""
    random = np.random.default_rng(3)
    kernel = tf.Variable(random.normal(size=(3, 3, 3, 8)).astype(np.float32))
    bias = tf.Variable(random.normal(size=8).astype(np.float32))

    @tf.function
    def step(image: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(image, kernel, 1, "SAME"), bias))
            loss = tf.reduce_mean(tf.reduce_sum(y * y, axis=(1, 2)) / 7.0 * 3.0)
        for variable, gradient in zip((kernel, bias), tape.gradient(loss, (kernel, bias)), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step, (tf.constant(random.normal(size=(4, 16, 16, 3)).astype(np.float32)),)


@pytest.mark.parametrize("name", [name for name in STEPS if name not in LOWERED])
def test_it_gives_the_bits_of_the_step_with_grappler(name: str) -> None:
    function, x = STEPS[name]()
    step = tf.function(function)
    flat, found = optimized(step, (x,))
    verify_graph(found.graph)
    assert [value.name for value in found.graph.inputs] == [value.name for value in flat.graph.inputs]
    result = verify(step, own_order(found), (x,), steps=2)
    assert result.bitwise, result
    assert "Grappler on for the original" in result.how


def test_fused_kernels_stay() -> None:
    step, inputs = convolution()
    flat, found = optimized(step, inputs)
    assert "_FusedConv2D" in {node.op_type for node in found.graph}
    assert len(found.graph) < len(flat.graph)
    result = verify(step, own_order(found), inputs, steps=3)
    assert result.bitwise, result
    with grappler_disabled():
        assert not verify(step, tf.function(lambda image: step(image) * 1.0000002), inputs).bitwise  # the negative control


def test_the_same_graph_comes_out_each_time() -> None:
    step, inputs = convolution()
    first, second = (optimized(step, inputs)[1].graph for _ in range(2))
    assert to_text(first) == to_text(second)


def test_large_sums_are_planned_as_sums() -> None:
    """Grappler's memory optimizer would have them added to a temporary variable, an effect."""
    weight = tf.Variable(np.full((512, 512), 0.01, np.float32))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.tanh(x @ weight)
            loss = tf.add_n([tf.reduce_sum(tf.sin(y * factor)) for factor in (1.0, 2.0, 3.0)])
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    traced = trace(step, feeds={"x": (16384, 512)})
    flat = flat_step(traced)
    records = recorded_graphs(runnable(traced), like=flat.graph)
    assert "TemporaryVariable" in {node.op_type for node in read_optimized_graph(records, like=flat.graph).nodes}
    found, how = grappler_step(traced, flat, records)
    assert [node.op_type for node in found.graph.nodes if len(node.inputs) == 3 and node.op_type == "AddN"]
    assert "but for sums of three large gradients and more" in how


@pytest.mark.parametrize("name", LOWERED)
def test_bodies_of_loops_and_branches_are_those_of_grappler(name: str) -> None:
    function, x = STEPS[name]()
    flat, found = optimized(step := tf.function(function), (x,))
    verify_graph(found.graph)
    assert sum(len(body) for body in bodies(found.graph)) < sum(len(body) for body in bodies(flat.graph))
    result = verify(step, own_order(found), (x,), steps=2)
    assert result.bitwise, result


def operations(op_types: Iterable[str]) -> Counter[str]:
    """Count operations that compute, which lowering a branch does not change."""
    not_counted = {"Const", "Identity", "NoOp", "If", "Merge", "Switch", "Placeholder", "_Arg", "_Retval"}
    return Counter(op_type for op_type in op_types if op_type not in not_counted)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_bodies_run_what_the_step_runs(scale: float) -> None:
    """A division of ones, a square of a power, and a fused product in a branch, which take shapes of arguments and variables."""
    weights, bias, divisor = tf.Variable(tf.ones((8, 8))), tf.Variable(tf.zeros(8)), tf.Variable(2.0)

    @tf.function
    def step(x: Any, wanted: Any) -> Any:
        def inside() -> Any:
            h = tf.nn.relu(tf.nn.bias_add(x @ weights, bias)) / divisor
            return scale / tf.sqrt(tf.reduce_sum(tf.pow(h, 2.0))) * 1.0

        weights.assign_sub(x)
        return tf.cond(wanted, inside, lambda: tf.reduce_sum(x) + 0.0)

    inputs = (tf.ones((8, 8)), tf.constant(True))
    flat, found = optimized(step, inputs)
    records = map(tf.compat.v1.RunMetadata.FunctionGraphs.FromString, recorded_graphs(trace(step, inputs=inputs), like=flat.graph))
    lowered = max((record.post_optimization_graph.node for record in records), key=len)
    assert operations(node.op_type for body in bodies(found.graph) for node in body) == operations(node.op for node in lowered)
    assert {"_FusedMatMul", "Square"} <= {node.op for node in lowered}


def test_a_step_whose_gradient_may_be_asked_for_is_planned_as_traced() -> None:
    """Kernels that Grappler fused have no gradient, and a function that changes nothing may be a part of something larger."""
    weights, bias = tf.ones([64, 64]), tf.ones([64])
    with pytest.raises(UnsupportedError, match="_FusedMatMul"):
        optimized(tf.function(lambda x: tf.nn.relu(tf.nn.bias_add(x @ weights, bias))), (tf.ones([64, 64]),))


def test_a_plan_says_of_which_graph_it_is() -> None:
    step, inputs = convolution()
    fast = gw.optimize_memory(step, "100%", inputs=inputs, verify="run", cache_dir=None, time_limit_s=0.5)
    assert fast.plan.how["graph"].startswith("of the graph that TensorFlow runs for the step")
    assert fast.plan.verification.startswith("equal bit for bit; 1 step, Grappler on for the original")
    assert "as in Grappler's graph" in fast.plan.verification
    again = gw.optimize_memory(step, "100%", inputs=inputs, cache_dir=None, time_limit_s=0.5, allow="all")
    assert again.plan.how["graph"] == fast.plan.how["graph"]  # what the default plans is planned with all verbs, too
    split = gw.optimize_memory(step, 0.3, inputs=inputs, cache_dir=None, time_limit_s=0.5, allow="all")
    assert split.plan.rewritten
    assert split.plan.how["graph"].startswith("of the graph that Grappler makes of the split step")


def test_where_the_user_has_switched_grappler_off_the_traced_graph_is_planned() -> None:
    step, inputs = convolution()
    with grappler_disabled():
        plan = gw.optimize_memory(step, "100%", inputs=inputs, cache_dir=None, time_limit_s=0.5).plan
    assert plan.how["graph"].endswith("the step runs without Grappler")
