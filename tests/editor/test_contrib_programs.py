"""Programs as they were written for `tf.contrib.graph_editor`, on live graphs: only the import is another.

They go through what its guide and its tests covered: edit, reroute, select, subgraph, transform, util, match.
"""

from __future__ import annotations

import collections
import functools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as ge  # was: from tensorflow.contrib import graph_editor as ge

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def s():
    r"""Constants a, foo/b, foo/d and sums; h = f + g waits for c."""
    found = SimpleNamespace(graph=tf.Graph())
    with found.graph.as_default():
        found.a = tf.constant([1.0, 1.0], name="a")
        with tf.name_scope("foo"):
            found.b = tf.constant([2.0, 2.0], name="b")
            found.c = tf.add(found.a, found.b, name="c")
            found.d = tf.constant([3.0, 3.0], name="d")
            with tf.name_scope("bar"):
                found.e = tf.add(found.c, found.d, name="e")
                found.f = tf.add(found.c, found.d, name="f")
                found.g = tf.add(found.c, found.a, name="g")
                with tf.control_dependencies([found.c.op]):
                    found.h = tf.add(found.f, found.g, name="h")
    return found


def names(things):
    return [thing.name for thing in things]


def value(graph, fetches, feeds=None):
    with tf.Session(graph=graph) as session:
        return session.run(fetches, feeds)


# edit


def test_detach(s):
    view, before, behind = ge.detach(ge.sgv(s.c.op, s.a.op), control_ios=ge.util.ControlOutputs(s.graph))
    assert ge.OpMatcher("^foo/c$").input_ops("a", "geph__b_0")(s.c.op)
    assert all(isinstance(t, tf.Tensor) and t.graph is s.graph for t in [*before, *behind])
    assert not s.h.op.control_inputs
    assert view.graph is s.graph
    np.testing.assert_array_equal(value(s.graph, s.c, {before[0]: [5.0, 6.0]}), [6.0, 7.0])


# reroute


@pytest.fixture
def r():
    found = SimpleNamespace(graph=tf.Graph())
    with found.graph.as_default():
        for k, size in enumerate((2, 2, 3)):
            a, b = tf.constant(1.0 + 2 * k, shape=[size], name=f"a{k}"), tf.constant(2.0 + 2 * k, shape=[size], name=f"b{k}")
            vars(found).update({f"a{k}": a, f"b{k}": b, f"c{k}": tf.add(a, b, name=f"c{k}")})
    return found


def test_swap_and_reroute(r):
    assert ge.swap_ts([r.a0, r.b0], [r.a1, r.b1]) == 4
    assert ge.OpMatcher("c0").input_ops("a1", "b1")(r.c0.op)
    assert ge.OpMatcher("c1").input_ops("a0", "b0")(r.c1.op)
    assert ge.reroute.reroute_ts([r.a0, r.b0], [r.a1, r.b1]) == 2
    assert ge.OpMatcher("c0").input_ops("a0", "b0")(r.c0.op)
    assert ge.OpMatcher("c1").input_ops("a0", "b0")(r.c1.op)
    assert value(r.graph, [r.c0, r.c1])[1].tolist() == [3.0, 3.0]


# select


# subgraph


# transform


@pytest.fixture
def t():
    found = SimpleNamespace(graph=tf.Graph())
    with found.graph.as_default():
        c = [tf.constant(1.0, shape=[10], name="Const") for _ in range(3)]
        c[0].op._set_attr("_foo", tf.AttrValue(s=b"foo"))
        i = tf.constant(1.0, shape=[10], name="Input")
        found.o = tf.add(c[2], tf.add(c[1], tf.add(c[0], i)))
    return found


def test_copy(t):
    graph = tf.Graph()
    view, info = ge.copy(t.graph, graph)
    assert set(names(t.graph.get_operations())) == set(names(graph.get_operations()))
    for op in t.graph.get_operations():
        op_ = info.transformed(op)
        assert op_ in graph.get_operations()
        assert (op.name, op.type, info.original(op_)) == (op_.name, op_.type, op)
    for tensor, tensor_ in zip(ge.util.get_tensors(t.graph), ge.util.get_tensors(graph), strict=True):
        assert info.transformed(tensor) is tensor_
        assert info.original(tensor_) is tensor
        assert tensor.shape == tensor_.shape
    assert view.graph is graph
    assert graph.get_operation_by_name("Const").get_attr("_foo") == b"foo"
    np.testing.assert_array_equal(value(graph, info.transformed(t.o)), np.full(10, 4.0))


def test_a_handler_that_builds_with_tensorflow(t):
    def with_noise(info, op, new_inputs):
        op_, outputs_ = ge.transform.copy_op_handler(info, op, new_inputs)
        if not op.name.startswith("Add"):
            return op_, outputs_
        with info.graph_.as_default():
            return op_, [tf.add(tf.constant(1.0, shape=[10], name="Noise"), op_.outputs[0], name="AddNoise")]

    transformer = ge.Transformer()
    transformer.transform_op_handler = with_noise
    graph = tf.Graph()
    transformer(t.graph, graph, "", "")
    inner = ge.OpMatcher("^AddNoise$").input_ops("Noise", ge.OpMatcher("Add").input_ops("Const", "Input"))
    middle = ge.OpMatcher("AddNoise_1").input_ops("Noise_1", ge.OpMatcher("Add_1").input_ops("Const_1", inner))
    outer = ge.OpMatcher("AddNoise_2").input_ops("Noise_2", ge.OpMatcher("Add_2").input_ops("Const_2", middle))
    [top] = ge.select_ops("^AddNoise_2$", graph=graph)
    assert outer(top)
    np.testing.assert_array_equal(value(graph, top.outputs[0]), np.full(10, 7.0))


def test_a_handler_that_changes_the_node_def(t):
    def marked(node_def):
        node_def.attr.pop("_foo", None)
        node_def.attr["_bar"].s = b"bar"
        return node_def

    transformer = ge.Transformer()
    transformer.transform_op_handler = functools.partial(ge.transform.copy_op_handler, nodedef_fn=marked)
    graph = tf.Graph()
    transformer(t.graph, graph, "", "")
    with pytest.raises(ValueError, match="_foo"):
        graph.get_operation_by_name("Const").get_attr("_foo")
    assert {op.get_attr("_bar") for op in graph.get_operations()} == {b"bar"}


def test_a_handler_that_fails_leaves_the_destination_as_it_was(t):
    def fails(info, op, new_inputs):
        raise RuntimeError("no")

    transformer = ge.Transformer()
    transformer.transform_op_handler = fails
    graph = tf.Graph()
    with pytest.raises(RuntimeError, match="no"):
        transformer(t.graph, graph, "", "")
    assert graph.get_operations() == []
    assert len(ge.copy(t.graph, graph)[0].ops) == 7


@pytest.mark.parametrize("tree", [lambda c: c, lambda c: {"c": c}, lambda c: collections.OrderedDict(c=c), lambda c: [c], lambda c: (c,)])
def test_graph_replace(tree):
    with tf.Graph().as_default() as graph:
        a, b, eps = tf.constant(1.0, name="a"), tf.Variable(1.0, name="b"), tf.constant(0.001, name="eps")
        c = tf.identity(a + b + eps, name="c")
        a_new = tf.constant(2.0, name="a_new")
        replaced = ge.graph_replace(tree(c), {a: a_new})
        assert type(replaced) is type(tree(c))
        with tf.Session(graph=graph) as session:
            session.run(tf.global_variables_initializer())
            old, [new] = session.run(c), tf.nest.flatten(session.run(replaced))
    np.testing.assert_allclose([old, new], [2.001, 3.001])


def test_graph_replace_of_gradients():
    with tf.Graph().as_default() as graph:
        w = tf.Variable(0.0, name="w", use_resource=False)
        y = tf.multiply(tf.multiply(w, w, name="mul1"), w, name="mul2")
        [g] = tf.gradients(y, w, name="grad")
        found = ge.graph_replace(g, {w.value(): g}, dst_scope="res")
        assert graph.get_operation_by_name("res/grad/mul1_grad/Mul_1")
        assert found.name != g.name
        with tf.Session(graph=graph) as session:
            session.run(tf.global_variables_initializer())
            assert session.run([g, found]) == [0.0, 0.0]
        copied = graph.get_operation_by_name("res/grad/mul1_grad/Mul_1")
        assert copied._original_op is graph.get_operation_by_name("res/mul1")
        assert graph.get_operation_by_name("grad/mul1_grad/Mul_1")._original_op.name == "mul1"


def test_copies_know_what_they_are_the_gradient_of():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [2], name="x")
        y = tf.square(tf.sin(x, name="sin"), name="square")
        tf.gradients(y, x, name="grad")
        names = ("grad/sin_grad/mul", "grad/square_grad/Mul_1")
        view = [graph.get_operation_by_name(name) for name in names]
        of_gradient, _ = ge.copy(view, dst_scope="alone")
        assert {o._original_op.name for o in of_gradient.ops if o._original_op} == {"sin", "square"}  # those are not copied
        copier = ge.Transformer()
        copier.transform_original_op_handler = lambda info, op: None if op.name == "sin" else op
        _, info = copier(view, graph, "other")
        assert [getattr(info.transformed(o)._original_op, "name", None) for o in view] == [None, "square"]
        other = tf.Graph()
        _, info = ge.copy(graph, other)
        assert info.transformed(view[0])._original_op is info.transformed(y.op.inputs[0].op)
    assert other.get_operation_by_name("sin")._original_op is None


def test_loops_and_branches_are_copied():
    tf.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            most = tf.placeholder(tf.int32, [])
            _, total = tf.while_loop(lambda i, _: i <= most, lambda i, s: (i + 1, s + i), [tf.constant(1), tf.constant(0)])
            choice = tf.placeholder(tf.bool, [])
            chosen = tf.cond(choice, lambda: total, lambda: -total)
    finally:
        tf.enable_control_flow_v2()  # what other tests in this process build is of TF2
    other = tf.Graph()
    _, info = ge.copy(graph, dst_graph=other, dst_scope="imported")
    feeds = {info.transformed(most): 10}
    assert value(other, info.transformed(chosen), {**feeds, info.transformed(choice): True}) == 55
    assert value(other, info.transformed(chosen), {**feeds, info.transformed(choice): False}) == -55
    assert value(graph, chosen, {most: 10, choice: True}) == 55


# util, match


# What is live stays live


def test_edits_and_building_take_turns(s):
    view = ge.sgv(s.h.op)
    with s.graph.as_default():
        more = tf.multiply(s.h, 10.0, name="more")
        late = tf.constant([100.0, 100.0], name="late")
    assert view.consumers() == [more.op]
    ge.reroute_ts(late, s.c, can_modify=[s.f.op])
    with s.graph.as_default():
        last = tf.add(more, late, name="last")
    np.testing.assert_array_equal(value(s.graph, last), [1170.0, 1170.0])
    assert value(ge.Graph(s.graph).to_tf_graph(), "last:0").tolist() == [1170.0, 1170.0]


def test_a_graph_that_is_traced():
    @tf.function
    def step(x):
        y = tf.nn.relu(x, name="y")
        z = tf.negative(y, name="z")
        ge.reroute_ts(x, y, can_modify=[z.op])
        assert ge.select_ops("^z$", graph=z.graph) == [z.op]
        return z

    np.testing.assert_array_equal(step(tf.constant([-1.0, 2.0])), [1.0, -2.0])


def test_views_without_live_graphs_are_as_they_were(s):
    g = ge.Graph(s.graph)
    view = ge.sgv(g["foo/c"])
    assert type(view) is ge.SubGraphView
    assert all(isinstance(node, ge.Node) for node in view.ops)
    with pytest.raises(ValueError, match="graph"):
        ge.reroute_ts(g["a:0"], s.b)


ITERABLES = {
    "view of keys": lambda things: dict.fromkeys(things).keys(),
    "view of values": lambda things: dict(enumerate(things)).values(),
    "set": set,
    "generator": lambda things: (thing for thing in things),
    "deque": collections.deque,
}


@pytest.mark.parametrize("collect", ITERABLES.values(), ids=ITERABLES)
def test_words_take_any_iterable_of_live_objects(s, collect):
    assert ge.reroute_ts(collect([s.f]), collect([s.g]), can_modify=collect([s.h.op])) == 1
    assert ge.swap_ts(collect([s.a]), collect([s.b])) > 0
    ge.add_control_inputs(s.e.op, collect([s.d.op]))
    assert names(s.e.op.control_inputs) == ["foo/d"]
    assert names(ge.sgv(collect([s.e.op])).ops) == ["foo/bar/e"]
    assert ge.get_backward_walk_ops(collect([s.c.op]), within_ops=collect([s.c.op, s.a.op, s.b.op]))
