"""Rerouting: who reads the new value, and who does not."""

from __future__ import annotations

import pytest

from graphwright.errors import GraphError
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.edit import replace_node, reroute, reroute_control, set_control_inputs
from graphwright.ir.graph import Graph
from graphwright.ir.signature import Collection, NamedRefs, Signature
from graphwright.ir.text import from_text, to_text
from graphwright.ir.verify import verify


@pytest.fixture
def graph() -> Graph:
    return from_text("""
        graph "g"
        outputs %a:0
        signature "serve" ("x" = %x:0) ("y" = %a:0)
        %x = Placeholder() : float32[2]
        %y = Placeholder() : float32[2]
        %n = Placeholder() : int32[2]
        %a = Relu(%x:0) : float32[2]
        %b = Neg(%a:0) : float32[2]
        %c = Add(%a:0, %a:0) ^b : float32[2]
        """)


def test_readers_and_borders_follow(graph):
    assert reroute(graph.value("y"), graph.value("a")) == 5
    assert [v.name for v in (*graph["b"].inputs, *graph["c"].inputs, *graph.outputs)] == ["y:0"] * 4
    assert graph.signatures["serve"].outputs["y"].name == "y:0"
    verify(graph)


def test_only_some_readers_change_and_then_no_borders(graph):
    assert reroute(graph.value("y"), graph.value("a"), can_modify=[graph["b"]]) == 1
    assert graph["b"].inputs[0].name == "y:0"
    assert graph["c"].inputs[0].name == "a:0"
    assert graph.outputs[0].name == "a:0"
    assert reroute(graph.value("y"), graph.value("a"), cannot_modify=[graph["c"]], borders=False) == 0
    assert reroute(graph.value("y"), graph.value("a"), can_modify=[], borders=True) == 2
    assert graph["c"].inputs[0].name == "a:0"


def test_what_does_not_fit_is_refused_and_nothing_changes(graph):
    before = to_text(graph)
    with pytest.raises(GraphError, match="insert a Cast"):
        reroute([graph.value("y"), graph.value("n")], [graph.value("a"), graph.value("x")])
    with pytest.raises(GraphError, match="2 values cannot take the place of 1"):
        reroute([graph.value("y"), graph.value("x")], graph.value("a"))
    with pytest.raises(GraphError, match="to be rerouted to y:0 and to x:0"):
        reroute([graph.value("y"), graph.value("x")], [graph.value("a"), graph.value("a")])
    with pytest.raises(GraphError, match="would then read itself"):
        reroute(graph.value("b"), graph.value("a"))
    with pytest.raises(GraphError, match="does not belong"):
        reroute(graph.value("y"), from_text('graph "h"\n%z = Placeholder() : float32[2]').value("z"))
    assert to_text(graph) == before


def test_control_edges_are_rerouted_and_set(graph):
    assert reroute_control(graph["y"], graph["b"]) == 1
    assert graph["c"].control_inputs == (graph["y"],)
    set_control_inputs(graph, graph["c"], [graph["x"], graph["b"]])
    assert graph["c"].control_inputs == (graph["x"], graph["b"])
    with pytest.raises(GraphError, match="its own control input"):
        set_control_inputs(graph, graph["c"], [graph["c"]])
    verify(graph)


def test_control_edges_go_to_several_nodes_or_to_none(graph):
    graph.control_outputs = [graph["b"], graph["n"]]
    assert reroute_control([graph["y"], graph["x"], graph["b"]], graph["b"]) == 1
    assert graph["c"].control_inputs == (graph["y"], graph["x"])
    assert graph.control_outputs == (graph["y"], graph["x"], graph["n"])
    with pytest.raises(GraphError, match="does not belong"):
        reroute_control([graph["n"], Graph("h").add_node("NoOp", "stranger")], graph["y"])
    assert graph["c"].control_inputs == (graph["y"], graph["x"])
    assert reroute_control([], graph["y"]) == 1
    assert (graph["c"].control_inputs, graph.control_outputs) == ((graph["x"],), (graph["x"], graph["n"]))
    verify(graph)


def test_a_node_takes_the_place_of_another_everywhere(graph):
    graph.set_attr(graph["c"], "_class", (b"loc:@a",))
    graph.collections["losses"] = Collection("nodes", [graph["a"], graph.value("a"), graph["b"]])
    graph.collections["variables"] = Collection("bytes", [NamedRefs(b"v", {"variable_name": graph["a"]})])
    graph.add_control_input(graph["c"], graph["a"])
    graph.add_control_input(graph["a"], graph["y"])
    new = graph.add_node("Elu", "elu", inputs=[graph.value("x")], output_types=[(v.dtype, v.shape) for v in graph["a"].outputs])
    replace_node(graph["a"], new)
    verify(graph)
    assert graph["a"] is new
    assert new.control_inputs == (graph["y"],)
    assert graph["c"].attrs["_class"] == (b"loc:@a",)
    assert new in graph["c"].control_inputs
    assert graph.outputs == new.outputs
    assert graph.signatures["serve"].outputs["y"] is new.outputs[0]
    assert graph.collections["losses"].items == [new, new.outputs[0], graph["b"]]
    assert graph.collections["variables"].items[0].refs["variable_name"] is new


def test_a_fed_node_can_be_replaced(graph):
    graph.inputs = [graph.value("x")]
    graph.set_attr(graph["b"], "_class", (b"loc:@x",))
    new = graph.add_node("Decode", "decoded", inputs=[graph.value("n")], output_types=[(v.dtype, v.shape) for v in graph["x"].outputs])
    replace_node(graph["x"], new)
    assert graph.inputs == new.outputs
    assert graph.signatures["serve"].inputs["x"] is new.outputs[0]
    assert graph["b"].attrs["_class"] == (b"loc:@x",)
    assert graph["x"] is new
    verify(graph)


def test_a_replacement_that_cannot_stand_in_is_refused(graph):
    before = to_text(graph)
    with pytest.raises(GraphError, match="n:0 has dtype int32, a:0 float32"):
        replace_node(graph["a"], graph["n"])
    with pytest.raises(GraphError, match="reads 'a'"):
        replace_node(graph["a"], graph["b"])
    assert to_text(graph) == before


def test_replaced_outputs_of_signatures_need_no_reader():
    graph = Graph("g")
    graph = from_text('graph "g"\n%x = Placeholder() : float32[2]\n%y = Placeholder() : float32[2]')
    graph.signatures["s"] = Signature({}, {"x": graph.value("x")})
    assert graph.replace_uses(graph.value("x"), graph.value("y")) == 1
    assert graph.signatures["s"].outputs["x"].name == "y:0"


def test_only_outputs_that_are_needed_must_have_a_counterpart():
    graph = from_text("""
        graph "g"
        outputs %norm:0
        signature "serve" () ("y" = %norm:0)
        %x = Placeholder() : float32[2]
        %norm = Norm(%x:0) : float32[2], float32[2], int32[]
        """)
    for k, types in enumerate(([], [(DTYPES["int32"], ())])):
        new = graph.add_node("Relu", f"wrong{k}", inputs=[graph.value("x")], output_types=types)
        with pytest.raises(GraphError, match="norm:0"):
            replace_node(graph["norm"], new)
    new = graph.add_node("Relu", "new", inputs=[graph.value("x")], output_types=[(DTYPES["float32"], (2,))])
    replace_node(graph["norm"], new)
    assert graph["norm"] is new
    assert graph.signatures["serve"].outputs["y"] is new.outputs[0]
    verify(graph)
