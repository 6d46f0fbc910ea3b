"""What is read from a GraphDef is written back, field by field, and what cannot be read says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.verify import verify
from graphwright.source.attributes import from_attr_value, tensor_from_attribute, write_attr_value
from graphwright.source.graph_def import from_graph_def, to_graph_def


def keras_step() -> Any:
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    step.keep = model
    return step.get_concrete_function(tf.TensorSpec((None, 8, 8, 3)))


def control_flow() -> Any:
    @tf.function
    def double(x: Any) -> Any:
        return x + x

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(lambda k, _: k < 3, lambda k, h: (k + 1, double(h) * tf.cond(k > 1, lambda: h, lambda: double(h))), (0, x))[1]
            y = tf.switch_case(tf.cast(tf.reduce_sum(y), tf.int32) % 3, [lambda: y, lambda: double(y), lambda: y * 3.0])
        with tf.control_dependencies([tf.debugging.assert_all_finite(y, "finite")]):
            return tape.gradient(y, x), tf.map_fn(double, y)

    return step.get_concrete_function(tf.TensorSpec((4,)))


def odd_attributes() -> Any:
    @tf.function
    def step(x: Any, text: Any) -> Any:
        values, where = tf.unique(tf.cast(x, tf.int32))
        a, b = tf.split(x, 2)
        parsed = tf.io.decode_raw(text, tf.uint8)
        ragged = tf.strings.split([text, "a b"]).values
        return values, where, a + b, parsed, ragged, tf.constant(np.arange(12, dtype=np.float64).reshape(3, 4)), tf.zeros((0, 2))

    return step.get_concrete_function(tf.TensorSpec((4,)), tf.TensorSpec((), tf.string))


@pytest.mark.parametrize("make", [keras_step, control_flow, odd_attributes])
@pytest.mark.parametrize("shapes", [False, True])
def test_nothing_is_lost_on_the_way(make, shapes):
    function = make()
    graph_def = function.graph.as_graph_def(add_shapes=shapes)
    graph = from_graph_def(graph_def)
    verify(graph)
    written = to_graph_def(graph)
    assert {n.name: _fields(n) for n in written.node} == {n.name: _fields(n) for n in graph_def.node}
    assert written.versions == graph_def.versions
    ours = {f.signature.name: f for f in written.library.function}
    theirs = {f.signature.name: f for f in graph_def.library.function}
    assert set(ours) <= set(theirs)
    for name, function_def in ours.items():
        _assert_same_function(function_def, theirs[name])


def _fields(node_def: Any) -> dict[str, Any]:
    # Control inputs are a set; TensorFlow lists them in no particular order.
    data = [i for i in node_def.input if not i.startswith("^")]
    return {
        "op": node_def.op,
        "device": node_def.device,
        "inputs": [i.removesuffix(":0") for i in data],
        "control": {i for i in node_def.input if i.startswith("^")},
        "attr": dict(node_def.attr),
        "debug": node_def.experimental_debug_info,
        "type": node_def.experimental_type,
    }


def _assert_same_function(ours: Any, theirs: Any) -> None:
    assert {n.name: _function_node(n) for n in ours.node_def} == {n.name: _function_node(n) for n in theirs.node_def}
    a, b = type(ours)(), type(theirs)()
    a.CopyFrom(ours)
    b.CopyFrom(theirs)
    a.ClearField("node_def")
    b.ClearField("node_def")
    assert a == b


def _function_node(node_def: Any) -> dict[str, Any]:
    return {**_fields(node_def), "inputs": [i for i in node_def.input if not i.startswith("^")]}


def test_a_graph_in_any_order_is_read():
    function = control_flow()
    graph_def = function.graph.as_graph_def()
    turned = type(graph_def)()
    turned.CopyFrom(graph_def)
    del turned.node[:]
    turned.node.extend(reversed(graph_def.node))
    graph = from_graph_def(turned)
    verify(graph)
    seen: set[Any] = set()
    for node in graph:
        assert {v.producer for v in node.inputs} <= seen
        seen.add(node)


def _graph_def(*nodes: tuple[str, str, list[str]]) -> Any:
    graph_def = tf.compat.v1.GraphDef()
    for op, name, inputs in nodes:
        node = graph_def.node.add(op=op, name=name, input=inputs)
        node.attr["T"].type = node.attr["dtype"].type = 1
    return graph_def


@pytest.mark.parametrize(
    ("nodes", "error", "message"),
    [
        ([("Relu", "a", ["b"])], GraphError, "input 'b' does not exist"),
        ([("Const", "a", []), ("Const", "a", [])], GraphError, "two nodes are named 'a'"),
        ([("Relu", "a", ["b"]), ("Relu", "b", ["a"])], GraphError, "is in a cycle"),
        ([("Placeholder", "x", []), ("Relu", "a", ["x:1"])], GraphError, "'x' has 1 outputs"),
        ([("NoSuchOp", "a", [])], UnsupportedError, "op type 'NoSuchOp' is not known"),
        ([("NextIteration", "n", ["m"]), ("Relu", "m", ["n"])], GraphError, "is in a cycle"),
        ([("Relu", "a", [])], GraphError, "Relu reads 1 inputs, got 0"),
        ([("Placeholder", "x", []), ("LogicalNot", "a", ["x"])], GraphError, "input 0 has dtype float32 .x:0., LogicalNot reads bool"),
        ([("Placeholder", "x", []), ("Relu", "a", ["^x", "x"])], GraphError, "comes after a control input"),
        ([("Placeholder", "x", []), ("Relu", "a", ["x:-1"])], GraphError, "does not exist"),
        ([("Placeholder", "x", []), ("Unpack", "a", ["x"])], GraphError, "'num' of argument 'output' is not a count"),
    ],
)
def test_what_cannot_be_read_says_why(nodes, error, message):
    with pytest.raises(error, match=message):
        from_graph_def(_graph_def(*nodes))


def test_attributes_of_every_kind_come_back():
    value = tf.compat.v1.AttrValue
    function = value(func={"name": "f"})
    function.func.attr["T"].type = 1
    functions = value()
    functions.list.func.add(name="g")
    functions.list.func.add(name="h").attr["k"].i = 3
    named = value()
    named.shape.dim.add(size=3, name="rows")
    shapes = value()
    shapes.list.shape.add().CopyFrom(tf.TensorShape([None, 2]).as_proto())
    shapes.list.shape.add(unknown_rank=True)
    empty, tensor = value(), value()
    empty.list.SetInParent()
    tensor.tensor.CopyFrom(tf.make_tensor_proto([[1.5, 2.5]]))
    cases = [
        value(i=-3),
        value(f=0.1),
        value(b=False),
        value(s=b"\xff"),
        value(type=1),
        value(type=101),
        value(type=9999),
        value(placeholder="T"),
        value(),
        function,
        functions,
        named,
        shapes,
        empty,
        tensor,
    ]
    for items in ({"i": [1, 2]}, {"f": [0.5]}, {"b": [True, False]}, {"s": [b"a", b""]}, {"type": [1, 3]}):
        listed = value()
        for key, entries in items.items():
            getattr(listed.list, key).extend(entries)
        cases.append(listed)
    for case in cases:
        again = value()
        write_attr_value(from_attr_value(case), again)
        assert again == case
    assert tensor_from_attribute(from_attr_value(tensor)).tolist() == [[1.5, 2.5]]
    assert tensor_from_attribute(from_attr_value(empty)) is None
    assert tensor_from_attribute(3) is None


def loop_of_tf1() -> Any:
    with tf.Graph().as_default() as graph:
        tf.compat.v1.disable_control_flow_v2()
        x = tf.compat.v1.placeholder(tf.float32, [3], name="x")
        counter, y = tf.compat.v1.while_loop(lambda k, _: k < 5, lambda k, h: (k + 1, h * 2.0), [0, x])
        tf.identity(y, name="y")
        tf.compat.v1.cond(counter > 3, lambda: y + 1.0, lambda: y, name="choice")
        tf.compat.v1.enable_control_flow_v2()
    return graph.as_graph_def()


@pytest.mark.parametrize("turned", [False, True])
def test_loops_of_tf1_go_round(turned):
    graph_def = loop_of_tf1()
    if turned:
        nodes = list(graph_def.node)[::-1]
        del graph_def.node[:]
        graph_def.node.extend(nodes)
    graph = from_graph_def(graph_def, file_order=True)
    verify(graph)
    merge = next(n for n in graph if n.op_type == "Merge" and n.inputs[1].producer.op_type == "NextIteration")
    assert [str(u) for u in merge.inputs[1].uses] == [f"{merge.name}.inputs[1]"]
    written = to_graph_def(graph)
    assert [n.name for n in written.node] == [n.name for n in graph_def.node]
    assert {n.name: _fields(n) for n in written.node} == {n.name: _fields(n) for n in graph_def.node}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.graph_util.import_graph_def(written, name="")
        assert session.run("y:0", {"x:0": [1.0, 2.0, 3.0]}).tolist() == [32.0, 64.0, 96.0]


def test_templates_are_carried_through():
    graph_def = tf.compat.v1.GraphDef()
    template = graph_def.library.function.add()
    template.signature.name = "twice"
    template.signature.attr.add(name="T", type="type")
    template.signature.input_arg.add(name="x", type_attr="T")
    template.signature.output_arg.add(name="y", type_attr="T")
    node = template.node_def.add(name="sum", op="AddV2", input=["x", "x"])
    node.attr["T"].placeholder = "T"
    template.ret["y"] = "sum:z:0"
    x = graph_def.node.add(name="x", op="Placeholder")
    x.attr["dtype"].type = 1
    call = graph_def.node.add(name="call", op="twice", input=["x"])
    call.attr["T"].type = 1
    graph = from_graph_def(graph_def)
    assert [v.dtype.name for v in graph["call"].outputs] == ["float32"]
    written = to_graph_def(graph)
    assert written.library == graph_def.library
    assert {n.name: _fields(n) for n in written.node} == {n.name: _fields(n) for n in graph_def.node}
