"""Reading a part of a graph that is being built, and adding to it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from graphwright.source.live_graph import handles_touched_elsewhere, needed_operations, read_live_graph, write_live_graph

v1: Any = tf.compat.v1


def test_only_what_is_needed_is_read_in_the_order_of_building() -> None:
    with tf.Graph().as_default() as live:
        x = v1.placeholder(tf.float32, [4, 4], name="x")
        w = v1.get_variable("w", (4, 4), use_resource=True)
        tf.tanh(x, name="aside")
        y = tf.matmul(tf.sin(x, name="sin"), w, name="y")
    graph = read_live_graph(live, [y.op], [y])
    assert "aside" not in graph
    names = [node.name for node in graph.nodes]
    assert names == [op.name for op in live.get_operations() if op.name in names]
    assert {op.name for op in needed_operations([y.op])} == set(names)
    assert {value.producer.name for value in graph.inputs} == {"x", "w"}
    (variable,) = graph.variables.values()
    assert variable.shape == (4, 4)
    assert [value.name for value in graph.outputs] == ["y:0"]


def test_what_was_added_to_the_ir_becomes_operations() -> None:
    with tf.Graph().as_default() as live:
        x = tf.constant([0.5, 1.0], name="x")
        a = tf.sin(x, name="a")
        b = tf.tanh(a, name="b")
        last = tf.exp(b, name="last")
        graph = read_live_graph(live, [last.op], [last])
        clone = graph.add_node("Sin", "again", inputs=[graph.value("x:0")], output_types=[(graph.value("a:0").dtype, (2,))])
        graph.replace_input(graph["b"], 0, clone.outputs[0])
        graph.add_control_input(clone, graph["a"])
        graph.sort_nodes([graph[name] for name in ("x", "a", "again", "b", "last")])
        made = write_live_graph(live, graph, {"again": "a"}, fixed=frozenset({"x", "a"}))
    again = live.get_operation_by_name("again")
    assert made[clone.outputs[0]].op is again
    assert [tensor.name for tensor in b.op.inputs] == ["again:0"]
    assert [op.name for op in again.control_inputs] == ["a"]
    with v1.Session(graph=live) as session:
        one, other = session.run([last, b])
    assert abs(one[0] - 2.718281828 ** other[0]) < 1e-5


def test_handles_that_something_else_writes() -> None:
    written, read = tf.Variable(1.0), tf.Variable(1.0)
    found: list[set[str]] = []

    @tf.function
    def step() -> Any:
        y = written * read
        graph = read_live_graph(y.graph, [y.op], [y])
        handles = {tensor.op.name for tensor in y.graph.inputs}
        written.assign(2.0)
        touched = handles_touched_elsewhere(y.graph, graph)
        found.extend((handles, touched))
        return y

    step()
    handles, touched = found
    assert len(touched) == 1
    assert touched < handles
