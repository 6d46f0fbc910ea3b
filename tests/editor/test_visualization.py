"""Pictures in the words of graph_def_editor."""

from __future__ import annotations

import re

import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as gde
from graphwright.editor.visualization import Digraph
from tests.programs import needs_dot

pytestmark = pytest.mark.tensorflow


def arrows(picture):
    return set(re.findall(r'"?([^\s"]+)"? -> "?([^\s"]+)"?', picture.source))


def test_outermost_scopes_are_boxes(graph):
    picture = graph.visualize()
    assert isinstance(picture, Digraph)
    assert arrows(picture) == {("a", "foo")}
    assert "a -> foo [label=2]" in picture.source
    assert "subgraph" not in picture.source


def test_more_levels(graph):
    picture = graph.visualize(depth=2)
    assert ("a", "foo/c") in arrows(picture)
    assert ("foo/c", "foo/bar") in arrows(picture)
    assert picture.source.count("subgraph") == 1
    deepest = graph.visualize(depth=3)
    assert ("foo/bar/f", "foo/bar/h") in arrows(deepest)
    assert deepest.source.count("subgraph") == 2


def test_which_nodes_are_drawn(graph):
    assert arrows(graph.visualize(depth=3, name_regex="^foo/bar", negative_name_regex="g$")) == {("foo/bar/f", "foo/bar/h")}


def test_functions_of_the_caller(graph):
    seen = []

    def frame(name=None, name_scope=None, style=True):
        seen.append((name_scope, style))
        return Digraph(name)

    picture = graph.visualize(
        depth=2,
        style=False,
        add_digraph_func=frame,
        add_digraph_node_func=lambda digraph, name, op: digraph.node(name, shape="box" if op is None else "oval"),
        add_digraph_edge_func=lambda digraph, tail, head, label=None: digraph.edge(tail, head, color="red"),
    )
    assert seen == [(None, False), ("foo", False)]
    assert '"foo/bar" [shape=box]' in picture.source
    assert '"foo/c" [shape=oval]' in picture.source
    assert '"foo/c" -> "foo/bar" [color=red]' in picture.source


def test_scopes_with_very_many_nodes_are_drawn_in_groups():
    with tf.Graph().as_default() as tf_graph, tf.name_scope("wide"):
        for k in range(400):
            tf.constant(1.0, name=f"c{k}")
    source = gde.Graph(tf_graph).visualize(depth=2).source
    assert source.count('tooltip="wide/c') == 400
    assert source.count("subgraph") == 1


@needs_dot
def test_formats(graph):
    assert graph.visualize(format="png").startswith(b"\x89PNG")
    assert "<svg" in graph.visualize(format="jupyter_svg")._repr_html_()
    interactive = graph.visualize(format="jupyter_interactive")._repr_html_()
    assert "<script>" in interactive
    assert "http" not in interactive.partition("<script>")[2]
    assert "<svg" in graph.visualize()._repr_mimebundle_()["image/svg+xml"]
    with pytest.raises(ValueError, match="unknown format"):
        graph.visualize(format="no such format")


@needs_dot
def test_a_function_as_json():
    @tf.function
    def times_ten(x):
        return tf.constant(10.0, name="multiplier") * x

    with tf.Graph().as_default() as tf_graph:
        times_ten(tf.placeholder(tf.float32, [], name="x"))
    graph = gde.Graph(tf_graph)
    body = graph.get_function_graph_by_name(graph.function_names[0])
    drawn = gde.util.parse_graphviz_json(body.visualize(format="json").decode())
    assert drawn == {"x": ["mul"], "multiplier": ["mul"], "mul": ["Identity"], "Identity": []}
    assert "f:" in graph.visualize().source


def test_a_node_and_its_neighbors(graph, t):
    picture = t.c.op.visualize()
    assert arrows(picture) == {("a", "foo/c"), ("foo/b", "foo/c")} | {
        (f"foo/{tail}", f"foo/bar/{head}") for tail, head in (("c", "e"), ("c", "f"), ("c", "g"))
    } | {("a", "foo/bar/g"), ("foo/bar/f", "foo/bar/h"), ("foo/bar/g", "foo/bar/h")}
    assert re.search(r'"foo/c" \[.*fillcolor=yellow', picture.source)
    assert picture.source.count("yellow") == 1
    assert "foo/d" not in picture.source


def test_how_far_from_a_node(t):
    assert arrows(t.h.op.visualize(depth_before=0)) == set()
    assert arrows(t.h.op.visualize(None, 1)) == set()  # one box
    two = t.h.op.visualize(None, depth_before=2, name_regex="^foo", add_digraph_node_func=lambda digraph, name, op: digraph.node(name))
    assert ("foo/d", "foo/bar/f") in arrows(two)
    assert "yellow" not in two.source
    assert "foo/b" not in re.findall(r"foo/\w+", two.source)
