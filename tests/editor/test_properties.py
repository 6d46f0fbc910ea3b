"""Random sequences of the old words keep every invariant of the graph, and a word that raises has changed nothing."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import graphwright.editor as gde
from graphwright.ir.text import to_text
from graphwright.ir.verify import verify
from tests.editor.graphs import eight_nodes

pytestmark = pytest.mark.tensorflow
WORDS = "reroute swap rename remove add_const add_sum control copy detach bypass connect collect view swap_ios".split()


def apply(draw, graph, word):
    """One edit with arguments drawn at random, many of which do not fit."""
    nodes = list(graph.nodes)
    pick = lambda: draw(st.sampled_from(nodes))  # noqa: E731
    tensor = lambda: draw(st.sampled_from([t for t in graph.tensors if t.op.op_type in ("Const", "Placeholder")]))  # noqa: E731
    match word:
        case "reroute":
            gde.reroute_ts(tensor(), tensor(), cannot_modify=[pick()])
        case "swap":
            gde.swap_ts([tensor(), tensor()], [tensor()] * draw(st.integers(1, 2)))
        case "rename":
            graph.rename_node(pick().name, draw(st.sampled_from(["p", "q/r", pick().name])))
        case "remove":
            graph.remove_node_by_name(pick().name)
        case "add_const":
            size = draw(st.integers(2, 3))
            gde.make_const(graph, draw(st.sampled_from(["k", "l"])), np.ones(size, np.float32), uniquify_name=draw(st.booleans()))
        case "add_sum":
            gde.make_simple_binary_op(graph, "s", "AddV2", tensor(), tensor(), uniquify_name=True)
        case "control":
            late, early = pick(), tensor().op
            if late != early and not early.control_inputs:  # no cycles
                gde.add_control_inputs(late, early)
        case "copy":
            gde.copy([pick(), pick()], dst_scope=draw(st.sampled_from(["", "c"])))
        case "detach":
            gde.detach(pick(), control_ios=gde.ControlOutputs(graph))
        case "bypass":
            gde.bypass(gde.sgv(pick()).remap_inputs([0]))
        case "connect":
            gde.connect(tensor().op, gde.sgv(pick()).remap_inputs([0]))
        case "collect":
            pick().add_to_collection("c")
        case "view":
            gde.sgv(pick(), pick()).remap_outputs([0]).remap_inputs([0]).remove_unused_ops()
        case _:
            gde.swap_ios(tensor().op, tensor().op)


@given(st.data())
@settings(max_examples=15)
def test_random_edits(data):
    graph = eight_nodes()
    for _ in range(8):
        before = to_text(graph.ir)
        try:
            apply(data.draw, graph, data.draw(st.sampled_from(WORDS)))
        except ValueError:
            assert to_text(graph.ir) == before
        verify(graph.ir)
    with tf.Graph().as_default():
        tf.import_graph_def(graph.to_graph_def(), name="")
    assert gde.Graph(graph.to_graph_def()).to_graph_def() == graph.to_graph_def()
