"""Inlined graphs compute the same, in the same order of effects."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.ir.attributes import FunctionReference
from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text
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


def test_effects_of_a_body_wait_for_what_the_call_waited_for(capfd):
    @tf.function
    def shout(x):
        tf.print("second", x)
        return x + 1.0

    @tf.function
    def step(x):
        tf.print("first", x)
        y = shout(x)
        tf.print("third", y)
        return y

    function = step.get_concrete_function(tf.TensorSpec(()))
    flat, rewritten = inlined(function)
    prints = [n for n in flat if n.op_type == "PrintV2"]
    assert len(prints) == 3
    for earlier, later in ((prints[0], prints[1]), (prints[1], prints[2])):
        assert waits_for(later, earlier)
    rewritten(tf.constant(1.0))
    assert [line.split()[0] for line in capfd.readouterr().err.splitlines() if line] == ["first", "second", "third"]


def test_pure_nodes_of_a_body_do_not_wait():
    """Else constants could not be folded, and nothing could be planned across calls."""

    @tf.function
    def body(x):
        return x * 2.0 + 1.0

    @tf.function
    def step(x):
        with tf.control_dependencies([tf.print("now")]):
            return body(x)

    flat, _ = inlined(step.get_concrete_function(tf.TensorSpec((3,))))
    assert all(not n.control_inputs for n in flat if n.op_type in ("Mul", "AddV2", "Const"))


def test_control_flow_stays_and_keeps_its_functions():
    @tf.function
    def inner(x):
        return x * 2.0

    @tf.function
    def step(x):
        return tf.while_loop(lambda k, _: k < 3, lambda k, h: (k + 1, inner(h)), (0, tf.cond(x[0] > 0, lambda: inner(x), lambda: x)))[1]

    function = step.get_concrete_function(tf.TensorSpec((2,)))
    flat, rewritten = inlined(function)
    assert {"StatelessWhile", "StatelessIf"} & {n.op_type for n in flat}
    assert verify(function, rewritten, (tf.constant([1.0, 2.0]),)).bitwise


def test_many_effects_before_and_inside_a_call_need_few_edges():
    """40 writes, then a call with 40 writes: edges from each to each would be 1600."""
    variables = [tf.Variable(0.0) for _ in range(80)]

    @tf.function
    def body():
        for variable in variables[40:]:
            variable.assign_add(1.0)

    @tf.function
    def step():
        writes = [variable.assign_add(1.0).op for variable in variables[:40]]
        with tf.control_dependencies(writes):
            body()

    flat, _ = inlined(step.get_concrete_function())
    assert sum(len(n.control_inputs) for n in flat) < 400


LIBRARY = """
graph "g"
inputs %x:0
outputs %call:0
%x = Placeholder() : float32[2]
%call = PartitionedCall(%x:0) {f = @%s} : float32[2]

function "f"
inputs %a:0
outputs %again:0
%a = _Arg() : float32[2]
%again = PartitionedCall(%a:0) {f = @g} : float32[2]

function "g"
inputs %a:0
outputs %again:0
%a = _Arg() : float32[2]
%again = PartitionedCall(%a:0) {f = @f} : float32[2]
"""


def test_the_old_calling_convention_is_inlined_too():
    graph = from_text(LIBRARY.replace("%s", "f"))
    inner = graph.functions["g"].body
    relu = inner.add_node("Relu", "relu", inputs=inner.inputs, output_types=[(inner.inputs[0].dtype, (2,))])
    inner.outputs = relu.outputs
    inner.remove_node(inner["again"])
    old = graph.add_node("g", "old", inputs=graph.outputs, output_types=[(relu.outputs[0].dtype, (2,))])
    graph.outputs = old.outputs
    flat = inline_functions(graph)
    verify_graph(flat)
    assert [n.op_type for n in flat] == ["Placeholder", "Relu", "Relu"]
    assert "f" not in [a.name for n in flat for a in n.attrs.values() if isinstance(a, FunctionReference)]
