"""Each invariant that `verify` lists, broken on purpose behind the graph's back."""

from __future__ import annotations

import pytest
from hypothesis import given

from graphwright.errors import GraphError
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Function, Graph, Variable
from graphwright.ir.signature import Collection, NamedRefs, Signature
from graphwright.ir.text import from_text
from graphwright.ir.verify import verify
from tests.ir.graphs import graphs

F32 = (DTYPES["float32"], (2,))


@pytest.fixture
def graph() -> Graph:
    return from_text("""
        graph "g"
        inputs %x:0
        outputs %b:0
        control_outputs %log
        %x = Placeholder() : float32[2]
        %log = Print()
        %a = Relu(%x:0) : float32[2]
        %b = Neg(%a:0) ^log : float32[2]
        """)


@given(graphs())
def test_random_graphs_are_well_formed(graph):
    verify(graph)


def test_a_node_under_another_name(graph):
    graph["a"]._links.name = "z"
    with pytest.raises(GraphError, match="'z' is not found under its name"):
        verify(graph)


def test_a_node_of_another_graph(graph):
    graph["a"].graph = Graph("elsewhere")
    with pytest.raises(GraphError, match="says that it belongs to graph 'elsewhere'"):
        verify(graph)


def test_a_value_at_another_place(graph):
    graph["a"].outputs[0].index = 1
    with pytest.raises(GraphError, match="output 0 of 'a' says that it is a:1"):
        verify(graph)


def test_an_input_from_elsewhere(graph):
    stranger = Graph().add_node("Const", "stranger", output_types=[F32])
    graph["b"]._links.inputs = stranger.outputs
    with pytest.raises(GraphError, match=r"b.inputs\[0\] is stranger:0, which is not in the graph"):
        verify(graph)


def test_an_input_whose_value_does_not_know(graph):
    graph["b"]._links.inputs = graph["x"].outputs
    with pytest.raises(GraphError, match=r"b.inputs\[0\] is x:0, which does not list that use") as caught:
        verify(graph)
    assert "%b = Neg(%x:0) ^log : float32[2]" in str(caught.value)


def test_a_use_that_is_none(graph):
    graph["a"].outputs[0]._uses[graph["x"], 0] = None
    with pytest.raises(GraphError, match=r"a:0 lists the use x.inputs\[0\], which does not read it"):
        verify(graph)


def test_control_edges_of_one_side(graph):
    del graph["log"]._links.control_consumers[graph["b"]]
    with pytest.raises(GraphError, match="'b' waits for 'log', which does not know it"):
        verify(graph)
    graph["log"]._links.control_consumers[graph["b"]] = None
    graph["log"]._links.control_consumers[graph["a"]] = None
    with pytest.raises(GraphError, match="'log' lists 'a', which does not wait for it"):
        verify(graph)


def test_control_edges_that_lead_nowhere(graph):
    graph["b"]._links.control_inputs[graph["b"]] = None
    with pytest.raises(GraphError, match="'b' waits for itself"):
        verify(graph)
    del graph["b"]._links.control_inputs[graph["b"]]
    graph["b"]._links.control_inputs[Graph().add_node("NoOp", "stranger")] = None
    with pytest.raises(GraphError, match="'b' waits for 'stranger', which is not in the graph"):
        verify(graph)


def test_borders_from_elsewhere(graph):
    stranger = Graph().add_node("Const", "stranger", output_types=[F32])
    graph._outputs = stranger.outputs
    with pytest.raises(GraphError, match="the output stranger:0 is not in the graph"):
        verify(graph)
    graph._outputs = ()
    graph._inputs = (graph["x"].outputs[0],) * 2
    with pytest.raises(GraphError, match="an input twice"):
        verify(graph)
    graph._inputs = ()
    graph._control_outputs = (stranger,)
    with pytest.raises(GraphError, match="the control output 'stranger' is not in the graph"):
        verify(graph)


def test_a_variable_behind_no_resource(graph):
    graph.variables[graph["x"].outputs[0]] = Variable("w", *F32, trainable=True)
    with pytest.raises(GraphError, match="variable 'w' stands behind x:0, which is not a resource"):
        verify(graph)


def test_signatures_and_collections_from_elsewhere(graph):
    stranger = Graph().add_node("Const", "stranger", output_types=[F32])
    graph.signatures["s"] = Signature({"x": stranger.outputs[0]}, {})
    with pytest.raises(GraphError, match="input 'x' of signature 's' is stranger:0, which is not in the graph"):
        verify(graph)
    graph.signatures["s"] = Signature({}, {"y": graph.value("b")})
    verify(graph)
    for item in (stranger, stranger.outputs[0]):
        graph.collections["c"] = Collection("nodes", [item])
        with pytest.raises(GraphError, match="collection 'c' holds 'stranger"):
            verify(graph)
    graph.collections["c"] = Collection("bytes", [b"plain", NamedRefs(b"", {"p": graph["a"], "q": stranger})])
    with pytest.raises(GraphError, match="collection 'c' holds 'stranger'"):
        verify(graph)


def test_a_cycle_names_its_nodes_in_order(graph):
    graph.add_control_input(graph["a"], graph["b"])
    with pytest.raises(GraphError, match=r"wait for each other: (a -> b|b -> a)\n") as caught:
        verify(graph)
    assert "%a = Relu(%x:0) ^b" in str(caught.value)


def test_functions_of_the_library(graph):
    graph.set_attr(graph["a"], "f", FunctionReference("f"))
    with pytest.raises(GraphError, match="function 'f' is not in the library"):
        verify(graph)
    body = Graph("f", functions=graph.functions)
    graph.functions["f"] = Function("f", body)
    verify(graph)
    node = body.add_node("While", "loop", attrs={"branches": (FunctionReference("lost"),)})
    with pytest.raises(GraphError, match="function 'lost' is not in the library"):
        verify(graph)
    body.remove_node(node)
    graph.functions["f"].name = "g"
    with pytest.raises(GraphError, match="function 'g' is in the library as 'f'"):
        verify(graph)
    graph.functions["f"] = Function("f", Graph("f"))
    with pytest.raises(GraphError, match="has another library"):
        verify(graph)
