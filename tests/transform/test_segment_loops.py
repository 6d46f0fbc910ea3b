"""A loop in segments leaves what the loop leaves, bit for bit; the proof says so, and does not say it of anything else."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from graphwright.analyze.loop_pairs import find_pairs, loop_functions
from graphwright.ir.constants import tensor_attribute
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph, Node
from graphwright.ir.verify import verify as verify_graph
from graphwright.run.verify import verify
from graphwright.source.concrete_function import to_concrete_function
from graphwright.step.flatten import FlatStep, flat_step
from graphwright.step.keras_step import keras_data
from graphwright.step.targets import trace
from graphwright.transform.segment_loops import Segments, segment_loops
from graphwright.transform.segments_proof import segments_difference
from tests.transform import loops

pytestmark = pytest.mark.tensorflow

tf: Any = importlib.import_module("tensorflow")
Changes = Callable[[Graph], None]


def in_segments(flat: FlatStep, first: int | None = None) -> tuple[Graph, list[str]]:
    """A copy of the graph with the first rounds of all its pairs in segments of three, and the names of the loops."""
    graph = copy_graph(flat.graph).graph
    pairs, refused = find_pairs(graph, flat.purity.of(graph))
    assert pairs
    assert not refused
    segment_loops(graph, dict.fromkeys(pairs, Segments(3, first)))
    return graph, [pair.forward.name for pair in pairs]


def check(target: Any, inputs: Any, arguments: Any, first: int | None = None) -> None:
    traced = trace(target, inputs=inputs)
    flat = flat_step(traced)
    graph, names = in_segments(flat, first)
    verify_graph(graph)
    assert segments_difference(flat.graph, flat.purity, graph, names) == ""
    found = verify(traced.function, to_concrete_function(graph, flat.binding), arguments)
    assert str(found).startswith("equal bit for bit"), str(found)


@pytest.mark.parametrize("name", loops.FUNCTIONS)
def test_loops_in_segments_leave_the_same_bits(name: str) -> None:
    step, arguments = loops.function_step(name)
    check(step, arguments, arguments)


@pytest.mark.parametrize("first", [3, 12])
@pytest.mark.parametrize("name", ["counted", "early exit", "branches, loops"])
def test_the_first_rounds_in_segments_leave_the_same_bits(name: str, first: int) -> None:
    """Also where the loop ends before they do."""
    step, arguments = loops.function_step(name)
    check(step, arguments, arguments, first)


@pytest.mark.parametrize("name", ["GRU", *(pytest.param(name, marks=pytest.mark.slow) for name in loops.LAYERS if name != "GRU")])
def test_layers_in_segments_leave_the_same_bits(name: str) -> None:
    model, data = loops.layer_model(name)
    check(model, data, keras_data(model, "train", data, are_specs=False))


@pytest.mark.parametrize(
    ("loss_of", "reason"),
    [
        (loops.hidden_counter, "draws random numbers from a hidden state"),
        (loops.list_of_results, "a round needs a value of the former round that is no tensor"),
    ],
)
def test_loops_that_cannot_be_run_again_are_refused(loss_of: Callable[[Any, Any], Any], reason: str) -> None:
    step, arguments = loops.refused_step(loss_of)
    flat = flat_step(trace(step, inputs=arguments))
    pairs, refused = find_pairs(flat.graph, flat.purity)
    assert not pairs
    assert reason in " ".join(refused.values())


def test_a_variable_that_changes_between_loop_and_gradient_is_refused() -> None:
    weight, scale = tf.Variable(tf.ones((4, 4))), tf.Variable(1.0)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.tanh(y @ weight) * scale), (0, x))[1]
            loss = tf.reduce_mean(y)
        scale.assign(2.0)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    flat = flat_step(trace(step, inputs=(tf.ones((4, 4)),)))
    pairs, refused = find_pairs(flat.graph, flat.purity)
    assert not pairs
    assert "may write" in " ".join(refused.values())


def test_lists_that_two_loops_pop_are_refused() -> None:
    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.tanh(y)), (0, x))[1]
            one, two = tf.reduce_mean(y), tf.reduce_sum(y * y)
        return tape.gradient(one, x), tape.gradient(two, x)

    flat = flat_step(trace(step, inputs=(tf.ones((4, 4)),)))
    pairs, refused = find_pairs(flat.graph, flat.purity)
    assert not pairs
    assert refused


# What the proof sees


def _gradient(graph: Graph, ending: str) -> Graph:
    return next(f.body for name, f in graph.functions.items() if "body" in name and "_grad_" in name and name.endswith(ending))


def _other_length(graph: Graph) -> None:
    """The gradient's segments are longer than those of the loop."""
    bodies = [f.body for f in graph.functions.values() if "length" in f.body]
    bodies[-1].set_attr(bodies[-1]["length"], "value", tensor_attribute(np.int32(4)))


def _other_start(graph: Graph) -> None:
    """A segment is run again from what the gradient is, which has the same shape."""
    body = _gradient(graph, "_segments")
    again = next(node for node in body if node.op_type == "While")
    k = next(k for k, v in enumerate(again.inputs) if v.producer.op_type == "TensorListPopBack" and v.dtype.name == "float32")
    body.replace_input(again, k, next(v for v in body.inputs if v.dtype.name == "float32"))


def _other_body(graph: Graph) -> None:
    """The body that runs again computes something else."""
    for function in graph.functions.values():
        for node in function.body:
            if node.op_type == "Tanh" and function.name.endswith("_segment_1"):
                function.body.set_op_type(node, "Sin")


def _other_gradient(graph: Graph) -> None:
    body = _gradient(graph, "_segment")
    node = next(node for node in body if node.op_type == "MatMul")
    body.set_attr(node, "transpose_a", True)


def _other_counter(graph: Graph) -> None:
    """The gradient takes one round more than the segment had."""
    body = _gradient(graph, "_segment")
    body.set_attr(body["one"], "value", tensor_attribute(np.int32(0)))


def _no_empty_lists(graph: Graph) -> None:
    """Elements of former segments stay in the lists."""
    body = _gradient(graph, "_segments")
    inner = [node for node in body if node.op_type == "StatelessWhile"][-1]
    outputs = list(body.outputs)
    k = next(k for k, v in enumerate(outputs) if v.dtype.name == "variant" and v in body.inputs)
    outputs[k] = inner.outputs[2 + k]
    body.outputs = outputs


def _outside(graph: Graph) -> None:
    """Something outside of the loops."""
    node = next(node for node in graph if node.op_type == "Mean")
    graph.set_op_type(node, "Sum")


def _last(graph: Graph) -> tuple[Node, Node]:
    """The loop that goes on behind the segments, and its gradient loop."""
    last = next(node for node in graph if node.op_type == "While" and node.inputs[0].producer.op_type == "While")
    return last, next(use.node for value in last.outputs for use in value.uses if value.dtype.name == "variant")


def _other_last_body(graph: Graph) -> None:
    body = loop_functions(graph, _last(graph)[0])[1]
    body.set_op_type(next(node for node in body if node.op_type == "Tanh"), "Sin")


def _other_last_gradient(graph: Graph) -> None:
    body = loop_functions(graph, _last(graph)[1])[1]
    body.set_attr(next(node for node in body if node.op_type == "MatMul"), "transpose_a", True)


def _begins_again(graph: Graph) -> None:
    """The last rounds start from what the segments started from."""
    last = _last(graph)[0]
    k = next(k for k, v in enumerate(last.inputs) if v.dtype.name == "float32")
    graph.replace_input(last, k, last.inputs[0].producer.inputs[k])


def _other_rounds(graph: Graph) -> None:
    """The gradient of the last rounds takes all rounds."""
    left = next(node for node in graph if node.name.endswith("/last_rounds"))
    graph.replace_input(_last(graph)[1], [v.producer for v in _last(graph)[1].inputs].index(left), left.inputs[0])


def _former_gradient(graph: Graph) -> None:
    """The gradient of the segments starts from what that of the last rounds started from."""
    rest = _last(graph)[1]
    back = next(use.node for use in rest.outputs[0].uses)
    k = next(k for k, v in enumerate(back.inputs) if v.producer is rest and v.dtype.name == "float32")
    graph.replace_input(back, k, rest.inputs[k])


@pytest.mark.parametrize(
    ("change", "first"),
    [
        *(
            (change, None)
            for change in (_other_length, _other_start, _other_body, _other_gradient, _other_counter, _no_empty_lists, _outside)
        ),
        *((change, 6) for change in (_other_length, _other_body, _outside)),
        *((change, 6) for change in (_other_last_body, _other_last_gradient, _begins_again, _other_rounds, _former_gradient)),
    ],
    ids=lambda change: getattr(change, "__name__", change),
)
def test_the_proof_sees_what_is_something_else(change: Changes, first: int | None) -> None:
    step, arguments = loops.function_step("counted")
    flat = flat_step(trace(step, inputs=arguments))
    graph, names = in_segments(flat, first)
    graph.op_rule = graph.shapes = None
    assert segments_difference(flat.graph, flat.purity, graph, names) == ""
    change(graph)
    assert segments_difference(flat.graph, flat.purity, graph, names) != ""
