"""Graphs that several tests of the editor look at."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import graphwright.editor as gde


def eight_nodes() -> gde.Graph:
    r"""Constants a, foo/b, foo/d and sums of them; h waits for c.

    a   b      c = a + b
     \ / \     e = c + d, f = c + d, g = c + a
      c   d    h = f + g
    """
    with tf.Graph().as_default() as tf_graph:
        a = tf.constant([1.0, 1.0], name="a")
        with tf.name_scope("foo"):
            b = tf.constant([2.0, 2.0], name="b")
            c = tf.add(a, b, name="c")
            d = tf.constant([3.0, 3.0], name="d")
            with tf.name_scope("bar"):
                tf.add(c, d, name="e")
                f = tf.add(c, d, name="f")
                g = tf.add(c, a, name="g")
                with tf.control_dependencies([c.op]):
                    tf.add(f, g, name="h")
    return gde.Graph(tf_graph)


class Named:
    """The tensors of `eight_nodes` by their last letter: `named.h` is `foo/bar/h:0`."""

    def __init__(self, graph: gde.Graph) -> None:
        self.graph = graph

    def __getattr__(self, letter: str) -> gde.Tensor:
        [node] = [n for n in self.graph.nodes if n.name.split("/")[-1] == letter]
        return node.output(0)


def run(graph: gde.Graph, fetches: Any, feeds: dict[str, Any] | None = None, initialize: bool = False) -> Any:
    """What TensorFlow computes for names of tensors."""
    tf_graph = graph.to_tf_graph()
    with tf.Session(graph=tf_graph) as session:
        if initialize:
            with tf_graph.as_default():
                session.run(tf.global_variables_initializer())
        return session.run(fetches, feeds)


def close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Equal up to a tolerance relative to the largest value, and not trivially so."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert np.ptp(expected) > 0
    assert np.max(np.abs(actual - expected)) <= tolerance * max(1.0, float(np.max(np.abs(expected))))
