"""Sums of many terms that are added up as the terms come: in the order of the kernel, proved, and in less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text
from graphwright.ir.traits.arithmetic import add_in_kernel_order
from graphwright.ir.traits.effects import Purity
from graphwright.transform.proof import Original, Proof
from graphwright.transform.running_sums import add_up_in_turn, large_sums

F = "{T = float32} : float32[64]"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_sums_of_two_are_the_kernels_sum_bit_for_bit(dtype: str) -> None:
    terms = [tf.cast(tf.random.stateless_normal([37], (k, 0)) * 10.0 ** (k % 5 - 2), dtype) for k in range(34)]
    for count in range(2, len(terms) + 1):
        expected = tf.raw_ops.AddN(inputs=terms[:count]).numpy()
        assert add_in_kernel_order(terms[:count], tf.add).numpy().tobytes() == expected.tobytes(), count


def sum_of(count: int, order: tuple[int, ...] = (), more: str = "") -> Graph:
    ops = [("Exp", "Sin", "Cos", "Tan")[k % 4] for k in range(count)]
    terms = "\n".join(f"%t{k} = {op}(%x:0) {F}" for k, op in enumerate(ops))
    inputs = ", ".join(f"%t{k}:0" for k in order or range(count))
    total = f"%total = AddN({inputs}) {{N = {count}, T = float32}} : float32[64]\n%y = Neg(%total:0) {F}"
    return from_text(f'graph "g"\ninputs %x:0\noutputs %y:0\n%x = Placeholder() : float32[64]\n{terms}\n{total}\n{more}')


def compared(original: Graph, other: Graph) -> Proof:
    pure = dict.fromkeys("Exp Sin Cos Tan AddN Neg Mul".split(), False)
    return Original(original, Purity(original, pure)).compare(other, Purity(other, pure))


@pytest.mark.parametrize("count", [3, 9, 10, 25])
def test_the_sums_are_proved_and_stand_where_their_terms_come(count: int) -> None:
    graph = sum_of(count)
    made = copy_graph(graph).graph
    add_up_in_turn(made, large_sums(made, 1000))
    assert all(len(node.inputs) == 2 for node in made if node.op_type == "AddN")
    assert sum(node.op_type == "AddN" for node in made) == count - 1
    names = [node.name for node in made]
    assert names.index("total_part") == names.index("t1") + 1
    assert compared(graph, made).equal
    assert compared(made, graph).equal


@pytest.mark.parametrize("count", [4, 10])
def test_another_order_is_not_proved(count: int) -> None:
    last = count - 1
    orders = [(*range(count - 2), last, last - 1), (*range(last), 0), tuple(reversed(range(count)))]
    from_behind = sum_of(count)  # a + (b + (c + d))
    total = from_behind["total"]
    types, attrs, inputs = [(total.outputs[0].dtype, (64,))], {**total.attrs, "N": 2}, list(total.inputs)
    while len(inputs) > 2:
        inputs[-2:] = from_behind.add_node("AddN", f"part{len(inputs)}", inputs=inputs[-2:], attrs=attrs, output_types=types).outputs
    from_behind.set_attr(total, "N", 2)
    from_behind.set_inputs(total, inputs)
    for other in (*(sum_of(count, order) for order in orders), from_behind):
        assert not compared(sum_of(count), other).equal


def test_small_sums_lists_and_sums_of_two_stay() -> None:
    graph = sum_of(
        3,
        more="""%two = AddN(%t0:0, %t1:0) {N = 2, T = float32} : float32[64]
        %v = Placeholder() : variant[]
        %lists = AddN(%v:0, %v:0, %v:0) {N = 3, T = variant} : variant[]""",
    )
    assert [node.name for node in large_sums(graph, 4 * 64 * 4)] == ["total"]
    assert not large_sums(graph, 4 * 64 * 4 + 1)


def test_what_waits_for_a_sum_waits_for_all_of_its_terms() -> None:
    graph = sum_of(5, more=f"%first = Exp(%x:0) {F}\n%last = Exp(%x:0) ^total {F}")
    graph.add_control_input(graph["total"], graph["first"])
    add_up_in_turn(graph, large_sums(graph, 1))
    assert graph["total"].control_inputs == (graph["first"],)
    assert graph["last"].control_inputs == (graph["total"],)
    names = [node.name for node in graph]
    assert names.index("last") > names.index("total") > names.index("t4")


def many_branches() -> tuple[Any, Any]:
    w = tf.Variable(tf.random.stateless_normal([64, 64], (0, 0)) * 0.1)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            h = tf.tanh(x @ w)
            loss = tf.add_n([tf.reduce_sum(tf.square(tf.reduce_sum(tf.sin(h * float(k)), 0))) for k in range(1, 13)])
        w.assign_sub(1e-3 * tape.gradient(loss, w))
        return loss

    return step, (tf.random.stateless_normal([4096, 64], (1, 0)),)


def test_a_plan_adds_gradients_as_they_come() -> None:
    step, inputs = many_branches()
    variables = step.get_concrete_function(*inputs).variables
    before = [v.numpy() for v in variables]
    expected = [step(*inputs).numpy(), *(v.numpy() for v in variables)]
    for v, value in zip(variables, before, strict=True):
        v.assign(value)
    fast = gw.optimize_memory(step, "50%", inputs=inputs, cache_dir=None)
    assert "added up as the terms come" in fast.plan.rewritten
    assert fast.plan.peak_bytes <= 0.5 * fast.plan.original_peak_bytes
    assert fast.plan.verification.startswith("equal by structure")
    found = [fast(*inputs).numpy(), *(v.numpy() for v in variables)]
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
