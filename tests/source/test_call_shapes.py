"""With TensorFlow's own rule, the shapes of calls, branches and loops follow edits of their functions."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.constants import tensor_attribute
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import is_control_flow
from graphwright.source.graph_def import to_graph_def
from graphwright.source.load import load


@tf.function(input_signature=[tf.TensorSpec([2])])
def _tiled(x):
    return tf.tile(x, tf.constant([2], name="times"))


@tf.function(input_signature=[tf.TensorSpec([2]), tf.TensorSpec([], tf.bool)])
def _step(x, p):
    called = _tiled(x) + 1.0
    chosen = tf.cond(p, lambda: _tiled(x) * 2.0, lambda: tf.concat([x, x], 0))
    _, looped = tf.while_loop(lambda k, v: k < 3, lambda k, v: (k + 1, _tiled(v[:2])), (tf.constant(0), called))
    return called, chosen, looped


def _the(graph: Graph, kinds: tuple[str, ...]) -> Node:
    (found,) = [node for node in graph if node.op_type in kinds]
    return found


def test_calls_branches_and_loops_follow_their_functions():
    graph = load(_step.get_concrete_function())
    assert [v.shape for v in graph.outputs] == [(4,), (4,), (4,)]
    chosen, loop = _the(graph, ("If", "StatelessIf")), _the(graph, ("While", "StatelessWhile"))
    for function in graph.functions.values():
        for node in function.body:
            if node.name.endswith("times"):
                function.body.set_attr(node, "value", tensor_attribute(np.array([3], np.int32)))
    called = graph.outputs[0]
    assert called.shape == (6,)
    # One branch is still of four elements.
    assert chosen.outputs[0].shape == (None,)
    assert chosen.attrs["output_shapes"] == (ShapeAttribute((None,)),)
    (k,) = [k for k, v in enumerate(loop.outputs) if v.dtype.name == "float32" and v.shape not in ((), (2,))]
    assert loop.outputs[k].shape == (6,)
    # TensorFlow reads the same from the file that it would make of this.
    with tf.Graph().as_default() as theirs:
        tf.graph_util.import_graph_def(to_graph_def(graph, every_function=True), name="")
    for node in (n for n in graph if is_control_flow(n)):
        shapes = [tensor.shape for tensor in theirs.get_operation_by_name(node.name).outputs]
        assert [None if s.rank is None else tuple(s.as_list()) for s in shapes] == [v.shape for v in node.outputs]
