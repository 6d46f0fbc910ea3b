"""A loop pushes nothing that its gradient does not read, and a branch computes no result that nothing reads."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from graphwright.ir.edit.library import reached_functions
from graphwright.ir.traits.control_flow import LOOPS, function_at
from graphwright.ir.traits.rounds import pops, pushes
from graphwright.run.verify import verify
from graphwright.source.concrete_function import to_concrete_function
from graphwright.step.flatten import FlatStep, flat_step
from graphwright.step.targets import trace

pytestmark = pytest.mark.tensorflow

tf: Any = importlib.import_module("tensorflow")


def lists(flat: FlatStep) -> tuple[int, int]:
    """How many values a round pushes, and its gradient pops."""
    bodies = [function.body for n in flat.graph.nodes if n.op_type in LOOPS if (function := function_at(n, "body", flat.graph)) is not None]
    return sum(pushes(n) for body in bodies for n in body.nodes), sum(pops(n) for body in bodies for n in body.nodes)


def step(divisor: Any) -> Any:
    weight = tf.Variable(np.eye(4, dtype=np.float32))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            total = tf.zeros(4)
            for _ in tf.range(3):
                x = tf.tanh(x @ weight)
                total += tf.reduce_mean(x, 0) / (weight[0] + 2.0 if divisor is None else divisor)
            loss = tf.reduce_sum(total)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    return step


@pytest.mark.parametrize(("divisor", "unread"), [(3.0, True), (None, False)], ids=["constant", "trained"])
def test_the_dividend_is_pushed_where_the_gradient_of_the_divisor_is_read(divisor: float | None, unread: bool) -> None:
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32))
    traced = trace(step(divisor), inputs=(x,))
    flat = flat_step(traced)
    pushed, popped = lists(flat)
    assert pushed == popped
    assert (pushed == 3) == unread
    assert str(verify(traced.function, to_concrete_function(flat.graph, flat.binding), (x,))).startswith("equal bit for bit")


def test_a_branch_computes_no_gradient_of_its_input() -> None:
    """TensorFlow makes the gradients of all arguments of a branch; lowered, it runs those that are read."""
    weight = tf.Variable(np.eye(4, dtype=np.float32))

    @tf.function
    def trained(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cond(tf.reduce_sum(x) < 1e9, lambda: tf.tanh(x @ weight), lambda: x * weight))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    x = tf.constant(np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32))
    traced = trace(trained, inputs=(x,))
    flat = flat_step(traced)
    functions = reached_functions(flat.graph, flat.graph.nodes)
    products = [node for name in functions for node in flat.graph.functions[name].body.nodes if node.op_type == "MatMul"]
    assert len(products) == 2  # the product, and the gradient of the weight
    assert str(verify(traced.function, to_concrete_function(flat.graph, flat.binding), (x,))).startswith("equal bit for bit")
