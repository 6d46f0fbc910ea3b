"""Shapes of a graph that comes without them are inferred when somebody reads one that depends on them, and not for the whole graph."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as gde
from graphwright.ir.edit import insert_after, reroute
from graphwright.ir.graph import Graph
from graphwright.source.load import load


def chain(length: int, known: Sequence[int] = ()) -> Any:
    """A `GraphDef` without shapes but for a few: transposes of a (2, 3), one after the other."""
    with tf.Graph().as_default() as graph:
        last = tf.placeholder(tf.float32, [2, 3], name="x")
        order = tf.constant([1, 0], name="order")
        for k in range(length):
            last = tf.transpose(last, order, name=f"t{k}")
    graph_def = graph.as_graph_def(add_shapes=True)
    for node in graph_def.node:
        if node.name not in {f"t{k}" for k in known}:
            del node.attr["_output_shapes"]
    return graph_def


class Counted:
    """A rule for shapes that notes how many nodes each question is about."""

    def __init__(self, graph: Graph) -> None:
        self.questions: list[int] = []
        assert graph.shapes is not None
        self._rule = graph.shapes.rule
        graph.shapes.rule = self

    def __call__(self, nodes: Any) -> Any:
        self.questions.append(len(nodes))
        return self._rule(nodes)


def test_loading_rerouting_and_writing_infer_nothing():
    g = gde.Graph(chain(300))
    rule = Counted(g.ir)
    assert gde.reroute_ts(g["t10:0"], g["t200:0"]) == 1
    written = g.to_graph_def()
    assert rule.questions == []
    assert {n.name for n in written.node if "_output_shapes" in n.attr} == {"x"}
    assert g["t299:0"].shape.as_list() == [2, 3]  # an even number of transposes less
    with tf.Graph().as_default() as theirs:
        tf.import_graph_def(written, name="")
    assert theirs.get_tensor_by_name("t299:0").shape.as_list() == g["t299:0"].shape.as_list()


def test_a_shape_costs_what_it_depends_on():
    g = gde.Graph(chain(300))
    rule = Counted(g.ir)
    assert g["t9:0"].shape.as_list() == [2, 3]
    assert sum(rule.questions) <= 15
    written = {n.name: n for n in g.to_graph_def().node}
    assert [d.size for d in written["t8"].attr["_output_shapes"].list.shape[0].dim] == [3, 2]
    assert "_output_shapes" not in written["t250"].attr
    assert sum(rule.questions) <= 15


def test_reading_all_shapes_takes_few_questions():
    graph = load(chain(300))
    rule = Counted(graph)
    shapes = [value.shape for node in graph for value in node.outputs]
    assert shapes[2:] == [(3, 2), (2, 3)] * 150
    assert len(rule.questions) <= 12
    assert sum(rule.questions) <= 320


def test_an_edit_is_inferred_where_shapes_were_read_and_no_further():
    g = gde.Graph(chain(300))
    assert g["t99:0"].shape.as_list() == [2, 3]
    rule = Counted(g.ir)
    wide = gde.make_placeholder(g, "wide", tf.float32, [7, 5])
    g["t96"].replace_input(0, wide.output(0))
    g.to_graph_def()
    assert 0 < sum(rule.questions) <= 40
    assert [g[f"t{k}:0"].shape.as_list() for k in (95, 96, 97, 99, 299)] == [[2, 3], [5, 7], [7, 5], [7, 5], [7, 5]]


def test_shapes_that_do_not_fit_are_refused_as_far_as_they_are_known():
    g = gde.Graph(chain(40))
    odd, even = g["t10:0"], g["t21:0"]
    assert gde.reroute_ts(odd, even) == 1  # both unknown, as they would be to TensorFlow
    g = gde.Graph(chain(40))
    g.infer_shapes_and_dtypes()
    with pytest.raises(ValueError, match="not compatible"):
        gde.reroute_ts(g["t10:0"], g["t21:0"])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("read", [gde.Graph, load])
def test_whatever_is_edited_and_read_in_between_the_shapes_are_tensorflows(read, seed):
    rng = random.Random(seed)
    graph_def = chain(25, rng.sample(range(25), 3 * seed))
    graph = gde.Graph(graph_def).ir if read is gde.Graph else load(graph_def)
    for step in range(20):
        values = [value for node in graph for value in node.outputs if value.dtype.name == "float32"]
        value = rng.choice(values)
        kind = rng.randrange(4)
        if kind == 0:
            assert value.shape is not None
        elif kind == 1:
            insert_after(value, rng.choice(["Neg", "Identity"]), f"new{step}")
        elif kind == 2:
            axis = graph.add_node("Const", f"axis{step}", attrs={"value": np.int32(0), "dtype": "int32"})
            graph.add_node("ExpandDims", f"wider{step}", inputs=[value, axis.outputs[0]])
        else:
            later = [v for v in values if v.producer.op_type == "Transpose"]
            reader = rng.choice(later).producer
            place = graph.nodes.index(reader)
            before = [v for v in values if graph.nodes.index(v.producer) < place and not v.producer.name.startswith(("new", "wider"))]
            reroute(rng.choice(before), reader.inputs[0], can_modify=[reader])
    written = gde.Graph(graph).to_graph_def()  # with the shapes that are known so far
    found = {value.name: value.shape for node in reversed(graph) for value in node.outputs}
    with tf.Graph().as_default() as theirs:
        tf.import_graph_def(written, name="")
    assert found == {name: tuple(theirs.get_tensor_by_name(name).shape.as_list()) for name in found}
