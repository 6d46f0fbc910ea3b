"""Loops that multiply by matrices transposed before them leave what they left; the proof says so, and does not say it of anything else."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import graphwright as gw
from graphwright.analyze.loop_pairs import loop_functions
from graphwright.ir.constants import add_constant
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.edit.insert import add_op
from graphwright.ir.graph import Graph, Node
from graphwright.ir.verify import verify as verify_graph
from graphwright.run.verify import verify
from graphwright.source.concrete_function import to_concrete_function
from graphwright.step.flatten import FlatStep, flat_step
from graphwright.step.keras_step import keras_data
from graphwright.step.targets import trace
from graphwright.transform.transpose_factors import transpose_factors
from graphwright.transform.transposes_proof import transposes_difference
from tests.transform import loops

pytestmark = pytest.mark.tensorflow

tf: Any = importlib.import_module("tensorflow")


_LEFT_ALONE = ("branches, loops", "recurrent dropout")  # loops inside read the matrix, and random numbers have effects


def transposed(flat: FlatStep) -> tuple[Graph, tuple[str, ...]]:
    """A copy of the graph with matrices of any size transposed before its loops, and the names of the loops."""
    graph = copy_graph(flat.graph).graph
    names = transpose_factors(graph, flat.purity.of(graph), least_elements=1)
    verify_graph(graph)
    return graph, names


def check(target: Any, inputs: Any, arguments: Any) -> tuple[str, ...]:
    traced = trace(target, inputs=inputs)
    flat = flat_step(traced)
    graph, names = transposed(flat)
    assert transposes_difference(flat.graph, flat.purity, graph, names) == ""
    found = verify(traced.function, to_concrete_function(graph, flat.binding), arguments, other_sums=True)
    assert found.equal, str(found)
    return names


@pytest.mark.parametrize("name", ["scan", *(pytest.param(name, marks=pytest.mark.slow) for name in loops.FUNCTIONS if name != "scan")])
def test_loops_leave_the_same(name: str) -> None:
    step, arguments = loops.function_step(name)
    assert bool(check(step, arguments, arguments)) == (name not in _LEFT_ALONE)


@pytest.mark.parametrize("name", ["LSTM", *(pytest.param(name, marks=pytest.mark.slow) for name in loops.LAYERS if name != "LSTM")])
def test_layers_leave_the_same(name: str) -> None:
    model, data = loops.layer_model(name)
    assert bool(check(model, data, keras_data(model, "train", data, are_specs=False))) == (name not in _LEFT_ALONE)


def test_a_matrix_that_the_loop_hands_on_is_transposed_too() -> None:
    @tf.function
    def step(x: Any, w: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.tanh(tf.matmul(y, w, transpose_b=True))), (0, x))[1]

    arguments = tf.random.stateless_normal((4, 8), (1, 2)), tf.random.stateless_normal((8, 8), (3, 4))
    assert check(step, arguments, arguments)


def _steps(change: Callable[[Any, Any, Any], Any]) -> FlatStep:
    """A step with a loop whose gradient multiplies by a weight, and something more."""
    weight, x = tf.Variable(tf.ones((8, 8)) * 0.1), tf.ones((4, 8))

    @tf.function
    def step(x: Any) -> Any:
        return change(x, weight, lambda y: tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.tanh(y @ weight)), (0, y))[1])

    return flat_step(trace(step, inputs=(x,)))


def _written_before(x: Any, weight: Any, loop: Any) -> Any:
    weight.assign_add(tf.ones((8, 8)))
    return tf.gradients(loop(x), x)


def _written_between(x: Any, weight: Any, loop: Any) -> Any:
    y = loop(x)
    weight.assign_add(tf.ones((8, 8)))
    return tf.gradients(y, x)


def _list_read(x: Any, weight: Any, loop: Any) -> Any:
    """The gradient's gradient reads lists of the loop, too."""
    (slope,) = tf.gradients(loop(x), x)
    return tf.gradients(tf.reduce_sum(slope**2), x)


@pytest.mark.parametrize("change", [_written_before, _written_between])
def test_what_is_written_before_or_beside_the_loops_stays(change: Callable[[Any, Any, Any], Any]) -> None:
    flat = _steps(change)
    assert any(node.op_type.endswith("While") for node in flat.graph)
    assert not transposed(flat)[1]


def test_gradients_of_gradients_are_proved() -> None:
    flat = _steps(_list_read)
    graph, names = transposed(flat)
    assert transposes_difference(flat.graph, flat.purity, graph, names) == ""


# What the proof sees


def _loop(graph: Graph) -> Node:
    return next(node for node in graph if node.name.endswith("while_grad"))


def _product(graph: Graph) -> Node:
    """The product by the matrix that was transposed."""
    body = loop_functions(graph, _loop(graph))[1]
    return next(node for node in body if node.op_type == "MatMul" and any(v in body.inputs for v in node.inputs))


def _transpose(graph: Graph) -> Node:
    return next(v.producer for v in _loop(graph).inputs if v.producer.op_type == "Transpose")


def _not_transposed(graph: Graph) -> None:
    graph.replace_input(_loop(graph), list(_loop(graph).inputs).index(_transpose(graph).outputs[0]), _transpose(graph).inputs[0])


def _other_order(graph: Graph) -> None:
    graph.replace_input(_transpose(graph), 1, add_constant(graph, "order", np.asarray([0, 1], np.int32)))


def _other_matrix(graph: Graph) -> None:
    matrix = _transpose(graph).inputs[0]
    graph.replace_input(_transpose(graph), 0, add_op(graph, "ZerosLike", "zeros", [matrix], matrix.dtype, matrix.shape))


def _other_body(graph: Graph) -> None:
    body = loop_functions(graph, _loop(graph))[1]
    body.set_op_type(next(node for node in body if node.op_type == "TanhGrad"), "SigmoidGrad")


def _flag(graph: Graph) -> None:
    loop_functions(graph, _loop(graph))[1].set_attr(_product(graph), "transpose_b", True)


def _other_forward(graph: Graph) -> None:
    body = loop_functions(graph, next(node for node in graph if node.op_type == "While"))[1]
    body.set_op_type(next(node for node in body if node.op_type == "Tanh"), "Sin")


@pytest.mark.parametrize("change", [_not_transposed, _other_order, _other_matrix, _other_body, _flag, _other_forward])
def test_the_proof_sees_what_is_something_else(change: Callable[[Graph], None]) -> None:
    step, arguments = loops.function_step("counted")
    flat = flat_step(trace(step, inputs=arguments))
    graph, names = transposed(flat)
    graph.op_rule = graph.shapes = None
    assert transposes_difference(flat.graph, flat.purity, graph, names) == ""
    change(graph)
    assert transposes_difference(flat.graph, flat.purity, graph, names) != ""


@pytest.mark.slow
def test_with_all_verbs_a_plan_transposes_and_is_proved() -> None:
    keras = importlib.import_module("keras")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((40, 16)), keras.layers.LSTM(128), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.ones((64, 40, 16)), tf.ones((64, 1))
    fast = gw.optimize_memory(model, "60%", inputs=data, allow="all", cache_dir=None, verify="run")
    plan = fast.memory_plan()
    assert "transposed" in plan.rewritten
    assert "transpose" not in gw.optimize_memory(model, "60%", inputs=data, cache_dir=None).memory_plan().rewritten
