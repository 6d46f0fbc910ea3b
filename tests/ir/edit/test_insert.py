"""Inserting nodes, taking them out, cutting and connecting."""

from __future__ import annotations

import pytest

from graphwright.errors import GraphError
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.edit import insert_after, insert_before
from graphwright.ir.graph import Graph
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
