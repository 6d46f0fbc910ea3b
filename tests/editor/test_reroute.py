"""Who reads which tensor, in the old words and the old order of arguments."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as gde
from graphwright.ir.verify import verify

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def graph():
    """c0 = a0 + b0, c1 = a1 + b1, and c2 = a2 + b2 of another shape; n is an integer."""
    with tf.Graph().as_default() as tf_graph:
        for k, size in ((0, 2), (1, 2), (2, 3)):
            tf.add(tf.constant(1.0, shape=[size], name=f"a{k}"), tf.constant(2.0, shape=[size], name=f"b{k}"), name=f"c{k}")
        tf.constant([1, 2], name="n")
    return gde.Graph(tf_graph)


def ts(graph, *names):
    return [graph[name].output(0) for name in names]


def reads(graph, name, *sources):
    return gde.OpMatcher(name).input_ops(*(s if isinstance(s, gde.OpMatcher) else f"^{s}$" for s in sources))(graph[name])


def test_swap_of_several_against_one(graph):
    a3 = gde.make_const(graph, "a3", np.full([2], 3.0, np.float32))
    gde.swap_ios(gde.sgv(a3).remap_outputs([0, 0]), gde.sgv(graph["a0"], graph["a1"]))
    assert reads(graph, "c0", "a3", "b0")
    assert reads(graph, "c1", "a3", "b1")


def test_the_new_tensor_comes_first(graph):
    assert gde.reroute_ts(ts(graph, "a0", "b0"), ts(graph, "a1", "b1")) == 2
    assert reads(graph, "c0", "a0", "b0")
    assert reads(graph, "c1", "a0", "b0")
    assert graph["a1"].output(0).consumers() == []
    gde.reroute_ts(ts(graph, "a1", "b1"), ts(graph, "a0", "b0"))
    assert reads(graph, "c0", "a1", "b1")
    assert reads(graph, "c1", "a1", "b1")


def test_who_may_be_changed(graph):
    gde.reroute_ts(ts(graph, "b0"), ts(graph, "a0"), cannot_modify=[graph["c0"]])
    assert reads(graph, "c0", "a0", "b0")
    gde.reroute_ts(ts(graph, "b0"), ts(graph, "a0"), can_modify=[graph["c1"]])
    assert reads(graph, "c0", "a0", "b0")
    gde.reroute_ts(ts(graph, "b0"), ts(graph, "a0"), can_modify=graph["c0"])
    assert reads(graph, "c0", "b0", "b0")
    with pytest.raises(TypeError, match="Expected a type"):
        gde.reroute_ts(ts(graph, "b0"), ts(graph, "a0"), can_modify=ts(graph, "c0"))


def test_inputs_of_views(graph):
    view0, view1 = gde.swap_inputs(graph["c0"], graph["c1"])
    assert reads(graph, "c0", "a1", "b1")
    assert reads(graph, "c1", "a0", "b0")
    assert [t.name for t in view0.inputs] == ["a1:0", "b1:0"]
    assert [t.name for t in view1.inputs] == ["a0:0", "b0:0"]
    gde.reroute_inputs(graph["c0"], graph["c1"])
    assert reads(graph, "c1", "a1", "b1")
    gde.swap_inputs(graph["c0"], ts(graph, "a0", "b0"))
    assert reads(graph, "c0", "a0", "b0")


def test_outputs_of_views(graph):
    gde.reroute_outputs(graph["a0"], graph["b0"])
    assert reads(graph, "c0", "a0", "a0")
    gde.reroute_ios(gde.sgv(graph["a1"]), gde.sgv(graph["b1"]))
    assert reads(graph, "c1", "a1", "a1")


def test_control_inputs(graph):
    c0, a1, b1 = graph["c0"], graph["a1"], graph["b1"]
    gde.add_control_inputs(c0, [a1, b1])
    assert c0.control_inputs == (a1, b1)
    with pytest.raises(ValueError, match="already a control_input"):
        gde.add_control_inputs(c0, a1)
    gde.remove_control_inputs(c0, a1)
    assert c0.control_inputs == (b1,)
    with pytest.raises(ValueError, match="not a control_input"):
        gde.remove_control_inputs(c0, [b1, a1])
    assert c0.control_inputs == (b1,)
    with pytest.raises(TypeError, match=r"Expected a gde\.Node"):
        gde.add_control_inputs(c0.output(0), a1)
    verify(graph.ir)
