"""A job that raises halfway leaves the graph as it was: the same text, made of the same objects."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import graphwright as gw
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph
from graphwright.ir.signature import Collection
from graphwright.ir.text import to_text
from graphwright.ir.verify import verify
from graphwright.source.variable_values import variable_values
from tests.transform.serving import random

pytestmark = pytest.mark.tensorflow

VERBS = (
    "add_node add_output append_input replace_input replace_inputs set_inputs replace_uses replace_many_uses add_control_input "
    "remove_control_input remove_node remove_nodes rename rename_many set_attr set_op_type set_output_type sort_nodes"
).split()


def model():
    """A convolution with a batch norm, assertions, a branch that reads a variable, a reshape and a gradient that nobody fetches."""
    weight = tf.Variable(random(3, 3, 3, 4), name="weight")
    gamma = tf.Variable(np.abs(random(4)) + 0.5, name="gamma")

    @tf.function
    def inner(x):
        tf.debugging.assert_greater(tf.reduce_sum(x), -1e6)
        y = tf.nn.conv2d(x, weight, 1, "SAME") * gamma + tf.constant(random(4, seed=3))
        return tf.reshape(tf.debugging.check_numerics(y, "y"), [2, 64])

    def function(x):
        y = inner(tf.stop_gradient(x))
        return tf.cond(tf.reduce_sum(y) > 0, lambda: tf.nn.relu(y) * gamma[0], lambda: tf.debugging.check_numerics(y, "z"))

    concrete = tf.function(function).get_concrete_function(tf.TensorSpec([2, 4, 4, 3], tf.float32, name="x"))
    graph = gw.load(concrete)
    graph.collections["mine"] = Collection(kind="nodes", items=[graph.inputs[0].producer, graph.outputs[0]])
    graph.collections["losses"] = Collection(kind="nodes", items=[graph.outputs[0].producer])
    return graph, variable_values(graph)


def constants_only():
    graph, values = model()
    gw.freeze_variables(graph, values)
    return graph, values


def called(**names):
    return lambda graph, _: gw.rename_inputs(graph, names)


JOBS = {
    "freeze_variables": (model, gw.freeze_variables),
    "fold_batch_norms": (constants_only, lambda graph, _: gw.fold_batch_norms(graph)),
    "change_batch_size": (model, lambda graph, _: gw.change_batch_size(graph, 5)),
    "convert_weights": (constants_only, lambda graph, _: gw.convert_weights(graph, smallest=4)),
    "remove_debug_ops": (model, lambda graph, _: gw.remove_debug_ops(graph)),
    "replace_op_type": (model, lambda graph, _: gw.replace_op_type(graph, "Mul", "MulNoNan", drop_attrs=["x"])),
    "strip_training": (model, lambda graph, _: gw.strip_training(graph)),
    "rename_inputs": (model, called(x="image")),
    "rename_outputs": (model, lambda graph, _: gw.rename_outputs(graph, {graph.outputs[0].name: "scores"})),
    "extract_submodel": (model, lambda graph, _: gw.extract_submodel(graph, ["x"], [graph.outputs[0].producer.inputs[0]])),
}


def state(graph):
    """The text, and every object that a user may hold."""
    graphs = [graph, *(function.body for function in graph.functions.values())]
    return (
        to_text(graph),
        [node for g in graphs for node in g],
        [value for g in graphs for node in g for value in node.outputs],
        {key: (id(s), dict(s.inputs), dict(s.outputs)) for key, s in graph.signatures.items()},
        {key: (id(c), list(c.items)) for key, c in graph.collections.items()},
        {name: (id(function), id(function.body)) for name, function in graph.functions.items()},
        [(g.inputs, g.outputs, g.control_outputs, dict(g.variables)) for g in graphs],
        [(node.op_type, node.device, dict(node.attrs)) for g in graphs for node in g],
    )


class LateError(Exception):
    """What the verb raises that fails."""


def fail_at(monkeypatch, last):
    """Let the verb with this number raise instead of editing; returns how many were called so far."""
    count = [0]
    depth = [0]
    for name in VERBS:
        verb = getattr(Graph, name)

        def counted(*arguments, _verb=verb, **options):
            if not depth[0]:
                count[0] += 1
                if count[0] == last:
                    raise LateError
            depth[0] += 1
            try:
                return _verb(*arguments, **options)
            finally:
                depth[0] -= 1

        monkeypatch.setattr(Graph, name, counted)
    return count


@pytest.mark.parametrize("job", JOBS)
def test_a_job_that_fails_late_has_done_nothing(job, monkeypatch):
    make, run = JOBS[job]
    original, values = make()
    graph = copy_graph(original).graph
    with monkeypatch.context() as patch:
        count = fail_at(patch, -1)
        run(graph, values)
        total = count[0]
    assert total
    for last in sorted({1, max(total // 2, 1), max(total - 1, 1), total}):
        graph = copy_graph(original).graph  # whose functions have the same names, in the same order
        before = state(graph)
        with monkeypatch.context() as patch:
            fail_at(patch, last)
            with pytest.raises(LateError):
                run(graph, values)
        assert state(graph) == before
        verify(graph)
        run(graph, values)  # and it can be done after all
        verify(graph)
