"""Loops run in parts of the batch: what is split, that results are those of the whole, and that the proof finds what was changed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from graphwright.analyze.splitting import find_splitting
from graphwright.ir.constants import constant_array, tensor_attribute
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.arithmetic import SUMS
from graphwright.ir.traits.control_flow import LOOPS, function_at
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import IDENTITIES, PART, PART_OF
from graphwright.run.verify import verify
from graphwright.source.concrete_function import to_concrete_function
from graphwright.step.flatten import FlatStep, flat_step, stateful_op_types
from graphwright.step.targets import trace
from graphwright.transform.proof import Original, Proof
from graphwright.transform.split_batch import split_batch
from tests.transform.loops import SIZE, function_step, layer_model, refused_step

pytestmark = pytest.mark.tensorflow

keras: Any = importlib.import_module("keras")
tf: Any = importlib.import_module("tensorflow")


def _purity(graph: Graph) -> Purity:
    return Purity(graph, stateful_op_types(graph))


def _in_parts(flat: FlatStep, parts: int) -> tuple[Graph, list[str], Proof]:
    """The step in parts, the loops that run whole in it, and its proof."""
    original = Original(flat.graph, _purity(flat.graph), parts=True)
    graph = copy_graph(flat.graph).graph
    splitting = find_splitting(graph, _purity(graph), graph.inputs[: flat.binding.argument_count])
    assert splitting is not None
    whole = [node.name for node in graph.nodes if node.op_type in LOOPS and node not in splitting.nodes]
    split_batch(graph, _purity(graph), splitting, parts)
    return graph, whole, original.compare(graph, _purity(graph))


def _check(step: Any, inputs: tuple[Any, ...], parts: int = 3, tolerance: float = 1e-5) -> None:
    """The batch of four in uneven parts."""
    flat = flat_step(trace(step, inputs=inputs))
    graph, whole, proof = _in_parts(flat, parts)
    assert not whole
    assert proof.equal, proof.difference
    verdict = verify(step, to_concrete_function(graph, flat.binding), inputs, rtol=tolerance, atol=tolerance)
    assert verdict, verdict


def _gradients_of(name: str) -> tuple[Any, tuple[Any, ...]]:
    model, (x, y) = layer_model(name, rounds=6)
    weights = model.trainable_variables

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        return loss, tape.gradient(loss, weights)

    return step, (tf.constant(x), tf.constant(y))


def _iterated(x: Any, w: Any) -> Any:
    """A residual block that is iterated, with a loop and dropout inside."""
    for i in tf.range(5):
        y = x
        for _ in tf.range(3):
            y = tf.tanh(y @ w)
        x += tf.nn.experimental.stateless_dropout(y, 0.3, seed=tf.stack([i, 3]))
    return tf.reduce_mean(x * x)


def _scaled_sums(x: Any, w: Any) -> Any:
    """What the weight gets in a round goes through everything that is linear before it is added up."""
    wide = tf.concat([w, tf.transpose(w)], axis=1)
    for i in tf.range(4):
        one, other = tf.split(x @ tf.reshape(wide * tf.cast(i + 1, tf.float32), (SIZE, 2 * SIZE)), 2, axis=1)
        x = tf.tanh(one @ w[:, ::1] - other @ (tf.linalg.matrix_transpose(w) / 2.0))
    return tf.reduce_mean(x * x)


def _moved(x: Any, w: Any) -> Any:
    """What a round moves about, with sizes that its gradient computes, reads by its number, and writes for later rounds."""
    array = tf.TensorArray(tf.float32, 5, element_shape=(4, SIZE), clear_after_read=False)
    for i in tf.range(5):
        x = tf.concat([tf.tanh(x @ w)[:, :5], tf.sin(x[:, 5:])], 1)
        x = tf.pad(tf.transpose(tf.matmul(w, x, transpose_a=True, transpose_b=True))[:, 1:], [[0, 0], [1, 0]]) + w[i]
        array = array.write(i, x)
        x += array.read(i // 2)
    return tf.reduce_mean(array.stack() ** 2)


def _losses(x: Any, w: Any) -> Any:
    """Each round adds a mean over the batch, and one over its halves."""
    loss, each = tf.constant(0.0), tf.zeros(2)
    for _ in tf.range(5):
        x = tf.tanh(x @ w)
        loss += tf.reduce_mean(x * x)
        each += tf.reduce_mean(tf.reshape(x, (4, 2, SIZE // 2)), (0, 2)) / 2.0
    return loss + tf.reduce_sum(each**2)


@pytest.mark.parametrize("name", ["counted", "attention"])
def test_loops_in_parts(name: str) -> None:
    _check(*function_step(name))


@pytest.mark.parametrize("loss_of", [_iterated, _scaled_sums, _losses, _moved], ids=lambda f: f.__name__.strip("_"))
def test_loops_in_loops_and_sums_that_change(loss_of: Callable[[Any, Any], Any]) -> None:
    _check(*refused_step(loss_of))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GRU", "SimpleRNN", "masked, both ways", "recurrent dropout", "both ways, twice"])
def test_more_layers_in_parts(name: str) -> None:
    _check(*_gradients_of(name))


def test_layers_in_parts() -> None:
    _check(*_gradients_of("LSTM"))


def test_in_float64_sums_differ_by_their_last_bits() -> None:
    weight = tf.Variable(np.random.default_rng(0).normal(0, 0.4, (8, 8)))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for _ in tf.range(9):
                y = tf.tanh(y @ weight)
            loss = tf.reduce_mean(y * y)
        return loss, tape.gradient(loss, weight)

    _check(step, (tf.constant(np.random.default_rng(1).normal(size=(4, 8))),), tolerance=1e-13)


def _ends_by_the_data(x: Any, w: Any) -> Any:
    body = lambda i, y: (i + 1, tf.tanh(y @ w) * 0.7)  # noqa: E731 - a loop's body
    y = tf.while_loop(lambda _, y: tf.reduce_sum(y * y) > 0.5, body, (0, x), maximum_iterations=13)[1]
    return tf.reduce_mean(tf.tanh(x) * y)


def _meets_in_every_round(x: Any, w: Any) -> Any:
    y = x
    for _ in tf.range(5):
        y = tf.tanh(y @ w)
        y -= tf.reduce_mean(y, 0)
    return tf.reduce_mean(tf.tanh(x) * y)


def _starts_from_something(x: Any, w: Any) -> Any:
    """A sum over the batch that is not 0 before the loop."""
    y, total = x, tf.reduce_sum(w, 0)
    for _ in tf.range(5):
        y = tf.tanh(y @ w)
        total += tf.reduce_sum(y, 0)
    return tf.reduce_mean(tf.tanh(x) * y) + tf.reduce_mean(total**2)


def _carried(x: Any, w: Any) -> Any:
    """A loop that only hands on what is split."""

    def body(i: Any, y: Any, total: Any) -> Any:
        return i + 1, y, total + tf.reduce_sum(w * tf.cast(i, tf.float32), 0)

    _, y, total = tf.while_loop(lambda i, *_: i < 4, body, (0, tf.tanh(x), tf.zeros(SIZE)))
    return tf.reduce_mean(y * total)


@pytest.mark.parametrize(
    "loss_of", [_ends_by_the_data, _meets_in_every_round, _starts_from_something, _carried], ids=lambda f: f.__name__.strip("_")
)
def test_a_loop_that_gains_nothing_or_needs_the_whole_batch_runs_whole_and_the_rest_in_parts(loss_of: Callable[[Any, Any], Any]) -> None:
    step, inputs = refused_step(loss_of)
    flat = flat_step(trace(step, inputs=inputs))
    graph, whole, proof = _in_parts(flat, 2)
    assert whole
    assert any(PART_OF in node.attrs for node in graph.nodes)
    assert proof.equal, proof.difference
    assert verify(step, to_concrete_function(graph, flat.binding), inputs, rtol=1e-5, atol=1e-6)


# What was changed behind the rewrite


def _faults(body: Graph) -> Iterator[Callable[[], None]]:
    """Changes of a function's body, one after another, each of which makes it compute something else."""
    for node in list(body.nodes):
        array = constant_array(node)
        if array is not None and array.size and array.dtype.kind in "if" and any(value.uses for value in node.outputs):
            yield lambda node=node, array=array: body.set_attr(node, "value", tensor_attribute(array + 1))
        types = [(value.dtype, value.shape) for value in node.inputs[:2]]
        if len(node.inputs) == 2 and types[0] == types[1] and node.inputs[0] is not node.inputs[1] and node.op_type not in {*SUMS, "Mul"}:
            yield lambda node=node: body.replace_inputs(node, node.inputs[::-1])
        if PART in node.attrs and node.op_type not in IDENTITIES:  # which hand on what they read, whatever they say
            start, stop, batch, *kinds = node.attrs[PART]
            yield lambda node=node, said=(start, stop - 1, batch, *kinds): body.set_attr(node, PART, said)
            yield lambda node=node, said=(start, stop, batch, *(kind + 1 for kind in kinds)): body.set_attr(node, PART, said)
    for k, value in enumerate(body.outputs):
        others = [v for v in body.outputs if v is not value and (v.dtype, v.shape) == (value.dtype, value.shape)]
        if others:
            yield lambda k=k, other=others[0]: setattr(body, "outputs", [*body.outputs[:k], other, *body.outputs[k + 1 :]])


def _bodies(graph: Graph) -> list[tuple[Node, str]]:
    loops = [node for node in graph.nodes if node.op_type in LOOPS and node.name.endswith("part1")]
    return [(loop, attribute) for loop in loops for attribute in ("cond", "body")]


@pytest.mark.parametrize("name", ["counted", pytest.param("attention", marks=pytest.mark.slow)])
def test_a_fault_in_a_part_of_a_loop_is_found(name: str) -> None:
    step, inputs = function_step(name)
    flat = flat_step(trace(step, inputs=inputs))
    graph, _, _ = _in_parts(flat, 2)
    original = Original(flat.graph, _purity(flat.graph), parts=True)
    found, missed = 0, list[str]()
    for place, (loop, attribute) in enumerate(_bodies(graph)):
        count = len(list(_faults(_body(graph, place))))
        for number in range(count):
            changed = copy_graph(graph).graph
            list(_faults(_body(changed, place)))[number]()
            found += 1
            if original.compare(changed, _purity(changed)).equal:
                missed.append(f"{loop.name} {attribute} {number}")
    assert found > 30
    assert not missed


def _body(graph: Graph, place: int) -> Graph:
    loop, attribute = _bodies(graph)[place]
    function = function_at(loop, attribute, graph)
    assert function is not None
    return function.body
