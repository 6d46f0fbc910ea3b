"""Selection, walks, and views of subgraphs."""

from __future__ import annotations

import pytest

from graphwright.errors import GraphError
from graphwright.ir.graph import Graph, Node
from graphwright.ir.select import scopes, walk_backward, walk_forward
from graphwright.ir.subgraph import boundary, graph_of
from graphwright.ir.text import from_text


@pytest.fixture
def graph() -> Graph:
    """x -> a -> (b, c) -> d; `log` waits for b; w feeds d."""
    return from_text("""
        graph "g"
        outputs %s/d:0
        %x = Placeholder() : float32[2]
        %w = Placeholder() : float32[2]
        %a = Relu(%x:0) : float32[2], int32[]
        %s/b = Neg(%a:0) : float32[2]
        %s/c = Exp(%a:0) : float32[2]
        %s/d = AddN(%s/b:0, %s/c:0, %w:0) : float32[2]
        %s2/log = Print() ^s/b
        """)


def names(nodes: list[Node]) -> list[str]:
    return [node.name for node in nodes]


def test_scopes_are_counted(graph):
    assert scopes(graph) == {"s": 3, "s2": 1}


def test_walks_go_in_breadth_and_stop_where_they_are_told(graph):
    assert names(walk_forward([graph["a"]])) == ["a", "s/b", "s/c", "s/d"]
    assert names(walk_forward([graph.value("a")], inclusive=False)) == ["s/d"]
    assert names(walk_forward([graph["a"]], control=True)) == ["a", "s/b", "s/c", "s/d", "s2/log"]
    assert names(walk_forward([graph["a"]], stop_at=[graph.value("s/b"), graph["s/c"]])) == ["a", "s/b", "s/c"]
    assert names(walk_forward([graph["a"]], within=lambda node: node.op_type != "Exp")) == ["a", "s/b", "s/d"]
    assert names(walk_backward([graph.value("s/d")])) == ["s/d", "s/b", "s/c", "w", "a", "x"]
    assert names(walk_backward([graph["s/d"]], stop_at=[graph.value("a")], inclusive=False)) == ["s/b", "s/c", "w"]
    assert names(walk_backward([graph["s2/log"]])) == ["s2/log"]
    assert names(walk_backward([graph["s2/log"]], control=True)) == ["s2/log", "s/b", "a", "x"]


def test_the_boundary_of_a_set_of_nodes(graph):
    found = boundary([graph["a"], graph["s/b"]])
    assert [v.name for v in found.inputs] == ["x:0"]
    assert [v.name for v in found.outputs] == ["a:0", "a:1", "s/b:0"]
    assert [v.name for v in found.inside] == ["a:0"]
    assert [v.name for v in boundary([graph["s/d"]]).outputs] == ["s/d:0"]


def test_nodes_of_no_graph_or_of_several_are_refused(graph):
    with pytest.raises(GraphError, match="no nodes were given"):
        graph_of([])
    with pytest.raises(GraphError, match="does not belong"):
        graph_of([graph["x"], Graph("h").add_node("NoOp", "stranger")])
