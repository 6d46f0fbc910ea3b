"""The verbs keep def-use on both sides, and check everything before they change anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphwright.errors import GraphError
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Graph, Variable
from graphwright.ir.shapes import Shapes
from graphwright.ir.signature import Collection, NamedRefs, Signature
from graphwright.ir.text import from_text
from graphwright.ir.verify import verify
from graphwright.ir.walk import topological_order
from tests.ir.graphs import graphs

F32 = (DTYPES["float32"], (2,))
I32 = (DTYPES["int32"], (2,))


def chain() -> Graph:
    """x -> a -> b, b waits for `log` too; b is the output."""
    graph = Graph("chain")
    x = graph.add_node("Placeholder", "x", output_types=[F32])
    log = graph.add_node("Print", "log")
    a = graph.add_node("Relu", "a", inputs=[x.outputs[0]], output_types=[F32])
    b = graph.add_node("Neg", "b", inputs=[a.outputs[0]], control_inputs=[log], output_types=[F32])
    graph.inputs, graph.outputs = [x.outputs[0]], [b.outputs[0]]
    return graph


@given(graphs())
def test_every_removal_in_reverse_order_is_possible(graph):
    graph.inputs, graph.outputs, graph.control_outputs, graph.signatures = [], [], [], {}
    for node in reversed(topological_order(graph)):
        graph.remove_node(node)
        verify(graph)
    assert len(graph) == 0
    assert not graph.variables


def test_lists_of_a_node_cannot_be_assigned_to():
    node = chain()["a"]
    for attribute in ("inputs", "outputs", "control_inputs", "control_consumers", "name"):
        with pytest.raises(AttributeError):
            setattr(node, attribute, ())


def test_removing_a_node_that_is_read_names_its_readers():
    graph = chain()
    with pytest.raises(GraphError, match=r"'a' is still read by b.inputs\[0\]"):
        graph.remove_node(graph["a"])
    with pytest.raises(GraphError, match=r"'log' is still read by b \(control\)"):
        graph.remove_node(graph["log"])
    with pytest.raises(GraphError, match="is an input or output"):
        graph.remove_node(graph["b"])
    with pytest.raises(GraphError, match="still read by b"):
        graph.remove_nodes([graph["a"], graph["log"]])
    assert "a" in graph
    assert "log" in graph


def test_a_removed_node_cannot_be_used_again():
    graph = chain()
    spare = graph.add_node("Const", "spare", output_types=[F32])
    graph.remove_node(spare)
    with pytest.raises(GraphError, match="does not belong"):
        graph.replace_input(graph["a"], 0, spare.outputs[0])
    with pytest.raises(GraphError, match="does not belong"):
        graph.add_control_input(graph["a"], spare)
    with pytest.raises(GraphError, match="does not belong"):
        graph.rename(spare, "other")
    with pytest.raises(GraphError, match="does not belong"):
        graph.outputs = spare.outputs


def test_rerouting_checks_the_dtype():
    graph = chain()
    other = graph.add_node("Const", "other", output_types=[I32])
    with pytest.raises(GraphError, match="insert a Cast"):
        graph.replace_input(graph["a"], 0, other.outputs[0])
    with pytest.raises(GraphError, match="insert a Cast"):
        graph.replace_uses(graph["x"].outputs[0], other.outputs[0])
    with pytest.raises(GraphError, match="insert a Cast"):
        graph.replace_inputs(graph["a"], other.outputs)


def test_replacing_all_uses_covers_graph_outputs_and_refuses_a_loop():
    graph = chain()
    b = graph["b"].outputs[0]
    scaled = graph.add_node("Neg", "scaled", inputs=[b], output_types=[F32]).outputs[0]
    with pytest.raises(GraphError, match="would then read itself"):
        graph.replace_uses(b, scaled)
    assert graph.replace_uses(b, scaled, keep=[scaled.producer]) == 1
    assert graph.outputs == (scaled,)
    assert graph["scaled"].inputs == (b,)
    verify(graph)


def test_replacing_all_inputs_of_a_node_that_reads_a_value_twice():
    graph = chain()
    x, a = graph["x"].outputs[0], graph["a"].outputs[0]
    both = graph.add_node("AddN", "both", inputs=[x, a, x], output_types=[F32])
    graph.replace_inputs(both, [a, a, x])
    assert both.inputs == (a, a, x)
    assert [str(use) for use in x.uses] == ["a.inputs[0]", "both.inputs[2]"]
    verify(graph)


def test_replacing_many_uses_at_once_exchanges_two_values():
    graph = chain()
    x, a = graph["x"].outputs[0], graph["a"].outputs[0]
    both = graph.add_node("AddN", "both", inputs=[x, a, x], output_types=[F32])
    graph.outputs = [a, x]
    assert graph.replace_many_uses({x: a, a: x}, keep=[graph["a"], graph["b"]]) == 5
    assert both.inputs == (a, x, a)
    assert graph.outputs == (x, a)
    verify(graph)


def test_renaming_keeps_the_place_and_the_edges():
    graph = chain()
    graph.rename(graph["a"], "renamed")
    assert [node.name for node in graph] == ["x", "log", "renamed", "b"]
    assert graph["b"].inputs[0].name == "renamed:0"
    assert "a" not in graph
    verify(graph)
    with pytest.raises(GraphError, match="exists already"):
        graph.rename(graph["renamed"], "b")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=60))
def test_unique_names_are_those_of_a_search_from_the_start(steps):
    graph = Graph()
    for kind, number in steps:
        base = ("c", "c_1", "d")[number % 3]
        if kind == 0 and len(graph):
            graph.remove_node(graph.nodes[number % len(graph)])
        elif kind == 1 and len(graph) and base not in graph:
            graph.rename(graph.nodes[number % len(graph)], base)
        else:
            wanted = next(name for name in (base, *(f"{base}_{k}" for k in range(1, 99))) if name not in graph)
            assert graph.unique_name(base) == wanted
            graph.add_node("Const", wanted)


def test_an_input_stands_once_and_a_variable_leaves_with_its_node():
    graph = chain()
    handle = graph.add_node("Placeholder", "w", output_types=[(DTYPES["resource"], ())]).outputs[0]
    graph.variables[handle] = Variable("w", *F32, trainable=True)
    with pytest.raises(GraphError, match="input twice"):
        graph.inputs = [handle, handle]
    graph.remove_node(handle.producer)
    assert not graph.variables
    verify(graph)


def test_sorting_refuses_what_is_no_order():
    graph = chain()
    nodes = list(graph.nodes)
    for order in (nodes[1:], [*nodes[1:], nodes[1]], [*nodes, nodes[0]]):
        with pytest.raises(GraphError, match="list each node once"):
            graph.sort_nodes(order)
    graph.sort_nodes(nodes[::-1])
    assert [node.name for node in graph] == ["b", "a", "log", "x"]
    assert [node.name for node in topological_order(graph)] == ["log", "x", "a", "b"]


def test_what_a_signature_feeds_or_fetches_cannot_be_removed_and_follows():
    graph = chain()
    graph.outputs = []
    x, a, b = (graph[name].outputs[0] for name in "xab")
    graph.inputs = []
    graph.signatures["serve"] = Signature({"image": x}, {"label": b})
    with pytest.raises(GraphError, match="'b' is an input or output of signature 'serve'"):
        graph.remove_node(graph["b"])
    assert graph.is_border(graph["x"])
    graph.rename(graph["b"], "renamed")
    assert graph.signatures["serve"].outputs["label"].name == "renamed:0"
    assert graph.replace_uses(b, a) == 1
    assert graph.signatures["serve"].outputs["label"] is a
    graph.remove_node(b.producer)
    # Whatever way the dictionaries are changed, the graph knows.
    graph.signatures["serve"].outputs.update(label=x)
    graph.remove_node(graph["a"])
    graph.signatures["serve"].inputs = {}
    assert graph.is_border(graph["x"])
    del graph.signatures["serve"].outputs["label"]
    assert not graph.is_border(graph["x"])
    graph.signatures |= {"again": Signature({"x": x}, {})}
    assert graph.is_border(graph["x"])
    graph.signatures = {}
    graph.remove_nodes([graph["x"], graph["log"]])
    verify(graph)


def test_collections_lose_what_is_removed():
    graph = chain()
    graph.outputs = []
    b, log = graph["b"], graph["log"]
    graph.collections["losses"] = Collection("nodes", [b.outputs[0], log, b])
    both = NamedRefs(b"both", {"loss": b.outputs[0], "log": log})
    graph.collections["messages"] = Collection("bytes", [NamedRefs(b"one", {"loss": b}), both, b"plain", NamedRefs(b"none", {})])
    graph.collections["numbers"] = Collection("ints", [1, 2])
    graph.remove_node(b)
    assert graph.collections["losses"].items == [log]
    assert [getattr(item, "serialized", item) for item in graph.collections["messages"].items] == [b"both", b"plain", b"none"]
    assert both.refs == {"log": log}
    assert graph.collections["numbers"].items == [1, 2]
    graph.collections["losses"].items.append(graph["a"].outputs[0])
    graph.remove_nodes([graph["a"], log])
    assert "losses" not in graph.collections
    verify(graph)


def test_inputs_and_outputs_of_a_node_change_in_number():
    graph = chain()
    x, a, b = graph["x"], graph["a"], graph["b"]
    graph.set_inputs(b, [x.outputs[0], a.outputs[0], x.outputs[0]])
    assert [str(use) for use in x.outputs[0].uses] == ["a.inputs[0]", "b.inputs[0]", "b.inputs[2]"]
    graph.set_inputs(b, [])
    assert not a.outputs[0].uses
    more = graph.add_output(a, *I32)
    last = graph.add_output(a, *F32)
    assert (more.name, last.name) == ("a:1", "a:2")
    graph.set_inputs(b, [last])
    graph.remove_output(more)
    assert last.name == "a:1"
    assert b.inputs[0] is a.outputs[1]
    verify(graph)
    with pytest.raises(GraphError, match=r"a:1 is still read by b.inputs\[0\]"):
        graph.remove_output(last)
    with pytest.raises(GraphError, match=r"b:0 is in graph.outputs"):
        graph.remove_output(b.outputs[0])
    with pytest.raises(GraphError, match="is not an output of 'a' any more"):
        graph.remove_output(more)


def test_output_types_are_set_in_place():
    graph = chain()
    a = graph["a"]
    first = a.outputs[0]
    graph.set_output_types(a, [(DTYPES["float32"], (7,)), I32])
    assert a.outputs[0] is first
    assert first.shape == (7,)
    with pytest.raises(GraphError, match="cannot become int32"):
        graph.set_output_types(a, [I32])
    with pytest.raises(GraphError, match="still read"):
        graph.set_output_types(a, [])
    graph.set_output_types(a, [F32])
    assert len(a.outputs) == 1
    graph.set_op_type(a, "Elu")
    assert a.op_type == "Elu"
    with pytest.raises(GraphError, match="cannot be empty"):
        graph.set_op_type(a, "")
    verify(graph)


def test_a_loop_of_tf1_is_in_order():
    graph = Graph("loop")
    merge = graph.add_node("Merge", "merge", output_types=[F32])
    step = graph.add_node("NextIteration", "next", inputs=merge.outputs, output_types=[F32])
    graph.append_input(merge, step.outputs[0])
    verify(graph)
    assert topological_order(graph) == [merge, step]
    relu = graph.add_node("Relu", "relu", inputs=merge.outputs, output_types=[F32])
    graph.append_input(merge, relu.outputs[0])
    with pytest.raises(GraphError, match="wait for each other"):
        verify(graph)


def test_output_types_are_set_at_once_though_the_rule_would_refuse_the_node_half_way():
    graph = chain()
    graph.add_output(graph["x"], *F32)

    def rule(nodes):
        assert all(len(node.outputs) == 1 for node in nodes)
        return [[(9,)] for _ in nodes]

    graph.shapes = Shapes(graph, rule)
    graph.set_attr(graph["x"], "n", 1)
    graph.set_output_types(graph["x"], [(DTYPES["float32"], (5,))])
    assert graph.value("x").shape == (5,)
    assert graph.value("a").shape == (9,)


def test_attributes_change_by_the_verb_only():
    graph = from_text('graph "g"\n%x = Placeholder() {n = 1} : float32[3]')
    attrs = graph["x"].attrs

    def delete() -> None:
        del attrs["n"]

    doors = (
        lambda: attrs.__setitem__("n", 2),
        delete,
        lambda: attrs.update(n=2),
        lambda: attrs.pop("n"),
        attrs.popitem,
        attrs.clear,
        lambda: attrs.setdefault("m", 2),
        lambda: attrs.__ior__({"n": 2}),
    )
    for door in doors:
        with pytest.raises(GraphError, match=r"graph\.set_attr\(node, name, attribute\)"):
            door()
    assert attrs == {"n": 1}
    assert {**attrs, "n": 2} == {"n": 2}
    graph.set_attr(graph["x"], "n", None)
    assert graph["x"].attrs == {}


@pytest.mark.parametrize(("name", "message"), [("a:1", "has 1 outputs, got index 1"), ("a:b", "not the name of a value")])
def test_a_value_that_does_not_exist(name, message):
    with pytest.raises(GraphError, match=message):
        chain().value(name)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("scope/a", "did you mean a?"), ("lgo", "did you mean log?"), ("nothing/like/it", "the last nodes are x, log, a, b")],
)
def test_an_unknown_name_comes_with_those_that_may_have_been_meant(name, remedy):
    with pytest.raises(GraphError, match=f"there is no node named '{name}'(.|\n)*{remedy}"):
        chain()[name]
