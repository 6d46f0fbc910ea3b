"""Boxes and arrows of pictures in the words of graph_def_editor."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

import graphwright as gw
import graphwright.editor as gde

pytestmark = pytest.mark.tensorflow


def arrows(picture):
    boxes = gde.util.parse_graphviz_json(picture.decode())
    return {(tail, head) for tail, heads in boxes.items() for head in heads}


def test_scopes_are_boxes_as_deep_as_asked(graph):
    assert arrows(graph.visualize()) == {("a", "foo")}
    assert {("a", "foo/c"), ("foo/c", "foo/bar")} <= arrows(graph.visualize(depth=2))
    assert ("foo/bar/f", "foo/bar/h") in arrows(graph.visualize(depth=None))
    assert arrows(graph.visualize(depth=3, name_regex="^foo/bar", negative_name_regex="g$")) == {("foo/bar/f", "foo/bar/h")}
    with pytest.raises(gw.UnsupportedError, match=r"graphwright\.draw"):
        graph.visualize(format="png")


def test_scopes_with_very_many_nodes():
    with tf.Graph().as_default() as tf_graph, tf.name_scope("wide"):
        for k in range(400):
            tf.constant(1.0, name=f"c{k}")
    assert len(gde.util.parse_graphviz_json(gde.Graph(tf_graph).visualize(depth=2).decode())) == 400


def test_a_node_and_its_neighbors(t):
    near = {("foo/c", "foo/bar/e"), ("foo/c", "foo/bar/f"), ("foo/c", "foo/bar/g"), ("foo/bar/f", "foo/bar/h"), ("foo/bar/g", "foo/bar/h")}
    assert arrows(t.c.op.visualize()) == near | {("a", "foo/c"), ("foo/b", "foo/c"), ("a", "foo/bar/g")}
    assert arrows(t.h.op.visualize(depth_before=0)) == set()
    assert ("foo/d", "foo/bar/f") in arrows(t.h.op.visualize(depth_before=2, name_regex="^foo"))
