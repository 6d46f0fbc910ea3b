"""`graph.write` and `graph.draw`, the words of the package on the graph itself."""

from __future__ import annotations

import tensorflow as tf

import graphwright as gw


def small_graph() -> gw.Graph:
    with tf.Graph().as_default() as graph:
        tf.nn.relu(tf.compat.v1.placeholder(tf.float32, [None, 3], name="x"), name="y")
    return gw.load(graph)


def test_a_graph_writes_and_draws_itself(tmp_path):
    graph = small_graph()
    graph.write(tmp_path / "model.pb")
    assert [node.name for node in gw.load(tmp_path / "model.pb").nodes] == ["x", "y"]
    page = graph.draw(tmp_path / "model.html")
    assert page == tmp_path / "model.html"
    assert "Relu" in page.read_text(encoding="utf-8")
