"""The lines of Python behind a graph, in the panel of its picture."""

from typing import Any

import tensorflow as tf

import graphwright as gw
from graphwright.report.graph_data import graph_view, served_view
from graphwright.report.served_picture import served_picture

W = tf.Variable(tf.ones((4, 4)))


@tf.function
def scored(x: Any) -> Any:
    y = tf.nn.relu(x @ W)
    return tf.reduce_sum(y)


def first_graph() -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        tf.nn.relu(tf.compat.v1.placeholder(tf.float32, [2], name="x"), name="y")
    return graph


def _lines(view: dict[str, Any]) -> dict[str, str]:
    return {node[0]: node[6]["source line"] for node in view["nodes"] if "source line" in node[6]}


def test_a_picture_of_a_function_or_a_graph_says_who_made_what() -> None:
    first = scored.python_function.__code__.co_firstlineno
    graph = gw.load(scored.get_concrete_function(tf.TensorSpec([2, 4])))
    picture = served_picture(graph)
    assert picture is not None
    found = _lines(served_view(graph, picture, "scored"))
    assert [found[name].rpartition("/")[2] for name in ("Relu", "Sum")] == [f"test_package_lines.py:{first + k} scored" for k in (2, 3)]
    line = first_graph.__code__.co_firstlineno + 3
    assert _lines(graph_view(gw.load(first_graph()), "g"))["y"].endswith(f"test_package_lines.py:{line} first_graph")
