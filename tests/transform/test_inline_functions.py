"""Inlined graphs compute the same, in the same order of effects."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity
from graphwright.ir.verify import verify as verify_graph
from graphwright.ir.walk import backward_reachable
from graphwright.run.verify import verify
from graphwright.source.concrete_function import from_concrete_function, to_concrete_function
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.inline_calls import inline_functions

pytestmark = pytest.mark.tensorflow


def inlined(function: Any, *, with_purity: bool = True) -> tuple[Graph, Any]:
    graph, binding = from_concrete_function(function)
    flat = inline_functions(graph, Purity(graph, stateful_op_types(graph)) if with_purity else None)
    verify_graph(flat)
    return flat, to_concrete_function(flat, binding)


def waits_for(node: Any, other: Any) -> bool:
    return other in backward_reachable([node])


@pytest.mark.parametrize("with_purity", [True, False])
def test_nested_calls_that_read_and_write_a_variable(with_purity):
    total = tf.Variable(1.0, name="total")

    @tf.function
    def bump(x):
        total.assign_add(x)
        return total * 2.0

    @tf.function
    def twice(x):
        first = bump(x)
        total.assign(total * 3.0)
        return first + bump(x)

    @tf.function
    def step(x):
        before = total + 0.0
        result = twice(x)
        again = twice(result)
        return before, result, again, total.read_value()

    function = step.get_concrete_function(tf.TensorSpec(()))
    flat, rewritten = inlined(function, with_purity=with_purity)
    assert not any(n.op_type.endswith("PartitionedCall") for n in flat)
    assert verify(function, rewritten, (tf.constant(2.0),), steps=3).bitwise
    # All reads and writes of the variable stand in one line: each waits for the one before.
    touching = [n for n in flat if any(v.dtype.name == "resource" for v in n.inputs)]
    writes = [n for n in touching if n.op_type.startswith("Assign")]
    assert len(writes) == 6
    for node in touching:
        for write in writes:
            assert node is write or waits_for(node, write) or waits_for(write, node)


def test_gradients_of_nested_functions_lie_in_one_graph():
    weight = tf.Variable([[1.0, 2.0], [3.0, 4.0]])

    @tf.function
    def layer(x):
        return tf.tanh(x @ weight)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(layer(x)))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    function = step.get_concrete_function(tf.TensorSpec((2, 2)))
    flat, rewritten = inlined(function)
    assert {n.op_type for n in flat} >= {"Tanh", "TanhGrad", "MatMul"}
    assert verify(function, rewritten, (tf.constant([[1.0, 0.5], [0.25, 2.0]]),), steps=2).bitwise
