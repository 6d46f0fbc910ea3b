"""Inserting nodes, taking them out, cutting and connecting."""

from __future__ import annotations

import pytest

from graphwright.errors import GraphError
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.edit import bypass, connect, detach, insert_after, insert_before
from graphwright.ir.graph import Graph
from graphwright.ir.subgraph import Subgraph
from graphwright.ir.text import from_text, to_text
from graphwright.ir.verify import verify


@pytest.fixture
def graph() -> Graph:
    return from_text("""
        graph "g"
        inputs %x:0
        outputs %c:0
        %x = Placeholder() : float32[2]
        %log = Print()
        %a = Relu(%x:0) ^log on "/device:CPU:0" : float32[2]
        %b = Neg(%a:0) : float32[2]
        %c = Add(%a:0, %b:0) ^a : float32[2]
        """)


def test_a_node_on_one_edge(graph):
    made = insert_before(graph, graph["c"], 0, "Square", more_inputs=[graph.value("x")], attrs={"k": 1})
    assert [v.name for v in made.inputs] == ["a:0", "x:0"]
    assert [v.name for v in graph["c"].inputs] == ["c/Square:0", "b:0"]
    assert graph["b"].inputs[0].name == "a:0"
    verify(graph)


def test_a_node_behind_a_value(graph):
    made = insert_after(graph.value("a"), "Square", "a")
    assert made.name == "a_1"
    assert made.device == "/device:CPU:0"
    assert [v.name for v in (*graph["b"].inputs, *graph["c"].inputs)] == ["a_1:0", "a_1:0", "b:0"]
    verify(graph)


def test_an_insertion_with_another_dtype_is_refused(graph):
    before = to_text(graph)
    with pytest.raises(GraphError, match="the first output would be int32 where a:0 is float32"):
        insert_after(graph.value("a"), "Cast", output_types=[(DTYPES["int32"], (2,))])
    with pytest.raises(GraphError, match="has 2 inputs, got index 2"):
        insert_before(graph, graph["c"], 2, "Cast")
    assert to_text(graph) == before


def test_a_bypassed_node_goes_and_what_waited_for_it_waits_for_what_it_waited_for(graph):
    assert [n.name for n in bypass(graph["a"])] == ["a"]
    assert "a" not in graph
    assert [v.name for v in graph["c"].inputs] == ["x:0", "b:0"]
    assert {n.name for n in graph["c"].control_inputs} == {"x", "log"}
    verify(graph)


def test_a_bypass_needs_a_value_for_each_output(graph):
    graph.outputs = [graph.value("a"), graph.value("c")]
    before = to_text(graph)
    with pytest.raises(GraphError, match=r"1 inputs and 2 outputs, so nothing can stand for c:0"):
        bypass([graph["a"], graph["b"], graph["c"]])
    with pytest.raises(GraphError, match="is an input of the graph"):
        bypass(graph["x"])
    assert to_text(graph) == before
    x = graph.value("x")
    bypass([graph["a"], graph["b"], graph["c"]], replacements={graph.value("a"): x, graph.value("c"): x})
    assert graph.outputs == (x, x)
    assert len(graph) == 2


def test_detached_nodes_read_placeholders_on_both_sides(graph):
    found = detach(graph["a"], control=True)
    assert [v.name for v in found.view.inputs] == ["detached/x:0"]
    assert graph["b"].inputs[0].name == "detached/a:0"
    assert not graph["a"].control_inputs
    assert not graph["c"].control_inputs
    assert {old.name: new.name for old, new in (found.inputs | found.outputs).items()} == {"x:0": "detached/x:0", "a:0": "detached/a:0"}
    verify(graph)


def test_connecting_two_parts(graph):
    other = graph.add_node("Tanh", "tanh", inputs=[graph.value("x")], output_types=[(DTYPES["float32"], (2,))])
    view = connect(Subgraph.of(other), Subgraph.of(graph["b"]))
    assert graph["b"].inputs == other.outputs
    assert graph["c"].inputs[0].name == "a:0"
    assert view.inputs == other.outputs
    with pytest.raises(GraphError, match="1 outputs cannot be connected to 2 inputs"):
        connect(Subgraph.of(other), Subgraph.of(graph["c"]))
    with pytest.raises(GraphError, match="in both subgraphs"):
        connect(Subgraph.of(other), Subgraph.of(other))
    verify(graph)


def test_connecting_may_cut_first(graph):
    other = graph.add_node("Tanh", "tanh", inputs=[graph.value("x")], output_types=[(DTYPES["float32"], (2,))])
    reader = graph.add_node("Relu", "reader", inputs=other.outputs, output_types=[(DTYPES["float32"], (2,))])
    connect(Subgraph.of(other), Subgraph.of(graph["b"]), detach_first=True)
    assert graph["b"].inputs == other.outputs
    assert reader.inputs[0].name == "detached/tanh:0"
    verify(graph)
