"""Renaming: everything that names a node follows."""

from __future__ import annotations

import pytest

from graphwright.errors import GraphError
from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text, to_text
from graphwright.ir.verify import verify


@pytest.fixture
def graph() -> Graph:
    return from_text("""
        graph "g"
        signature "s" ("x" = %x:0) ("y" = %a/b/neg:0)
        collection "losses" nodes [%a/b/neg, %x:0]
        %x = Placeholder() : float32[2]
        %a = NoOp()
        %a/relu = Relu(%x:0) ^a {_class = ["loc:@x"]} : float32[2]
        %a/b/neg = Neg(%a/relu:0) {_class = ["loc:@a/relu", "kept"]} : float32[2]
        %ab = NoOp() {_class = ["loc:@a/relu", "loc:@gone"]}
        """)


def test_a_scope_moves_with_all_that_names_it(graph):
    graph.rename_many({node: node.name.replace("a", "z", 1) for node in graph if f"{node.name}/".startswith("a/")})
    assert [node.name for node in graph] == ["x", "z", "z/relu", "z/b/neg", "ab"]
    assert graph["z/b/neg"].attrs["_class"] == (b"loc:@z/relu", b"kept")
    assert graph["ab"].attrs["_class"] == (b"loc:@z/relu", b"loc:@gone")
    assert graph.signatures["s"].outputs["y"].name == "z/b/neg:0"
    assert graph.collections["losses"].items[0].name == "z/b/neg"
    verify(graph)


def test_names_are_exchanged(graph):
    graph.rename_many({graph["x"]: "a", graph["a"]: "x"})
    assert graph["a/relu"].inputs[0].name == "a:0"
    assert graph["a/relu"].attrs["_class"] == (b"loc:@a",)
    verify(graph)


def test_names_that_cannot_be_are_refused_and_nothing_changes(graph):
    before = to_text(graph)
    with pytest.raises(GraphError, match="'a' exists already"):
        graph.rename_many({graph["x"]: "a"})
    with pytest.raises(GraphError, match="cannot both be renamed"):
        graph.rename_many(dict.fromkeys(graph, "same"))
    with pytest.raises(GraphError, match="cannot be the name"):
        graph.rename_many({node: f"{node.name}:0" for node in graph})
    assert to_text(graph) == before


def test_a_removed_node_leaves_colocations_and_collections(graph):
    graph.signatures.clear()
    graph.remove_nodes([graph["a/b/neg"]])
    graph.remove_node(graph["a/relu"])
    assert graph["ab"].attrs["_class"] == (b"loc:@gone",)
    assert [held.name for held in graph.collections["losses"].items] == ["x:0"]
    graph.add_node("NoOp", "late", attrs={"_class": (b"loc:@ab",)})
    graph.rename(graph["ab"], "early")
    assert graph["late"].attrs["_class"] == (b"loc:@early",)
    graph.set_attr(graph["late"], "_class", (b"loc:@x",))
    graph.rename(graph["x"], "y")
    assert graph["late"].attrs["_class"] == (b"loc:@y",)
    verify(graph)
