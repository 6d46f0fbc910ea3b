"""Copies: into the same graph and into others, with what they call and what they are next to."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from graphwright.errors import GraphError
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.edit import clone, copy_graph, prune, remove_unused_functions, rename_functions
from graphwright.ir.edit.clone import copy_collections
from graphwright.ir.graph import Function, Graph, Value
from graphwright.ir.shapes import Shapes
from graphwright.ir.signature import Collection, NamedRefs, Signature
from graphwright.ir.text import from_text, to_text
from graphwright.ir.verify import verify
from graphwright.ir.wire import message_field

SOURCE = """
    graph "g"
    inputs %x:0, %w:0
    outputs %b:0
    variable %w:0 = "w" : float32[2] trainable
    %x = Placeholder() {dtype = float32} : float32[2]
    %w = Placeholder() : resource[]
    %log = Print()
    %a = Relu(%x:0) ^log {_class = ["loc:@x"]} on "/device:CPU:0" : float32[2]
    %b = Call(%a:0, %w:0) ^a {_class = ["loc:@a", "loc:@x", "other"], f = @outer} : float32[2]

    function "inner"
    inputs %i:0
    outputs %i:0
    %i = _Arg() : float32[2]

    function "outer"
    inputs %o:0
    outputs %call:0
    %o = _Arg() : float32[2]
    %call = inner(%o:0) : float32[2]
    """


@pytest.fixture
def graph() -> Graph:
    return from_text(SOURCE)


def test_in_the_same_graph_what_lies_outside_is_shared(graph):
    found = clone([graph["a"], graph["b"]], scope="copy", input_map={})
    a, b = graph["copy/a"], graph["copy/b"]
    assert found.node_of == {graph["a"]: a, graph["b"]: b}
    assert found.value_of[graph.value("b")] is b.outputs[0]
    assert (a.inputs[0].name, a.control_inputs, a.device) == ("x:0", (graph["log"],), "/device:CPU:0")
    assert (b.inputs[0].name, b.inputs[1].name, b.control_inputs) == ("copy/a:0", "w:0", (a,))
    assert a.attrs["_class"] == (b"loc:@x",)
    assert b.attrs["_class"] == (b"loc:@copy/a", b"loc:@x", b"other")
    verify(graph)


def test_an_input_map_takes_other_values_also_inside(graph):
    found = clone([graph["a"], graph["b"]], scope="copy", input_map={graph.value("a"): graph.value("x")})
    assert found.node_of[graph["b"]].inputs[0].name == "x:0"
    before = to_text(graph)
    with pytest.raises(GraphError, match="insert a Cast"):
        clone([graph["b"]], input_map={graph.value("a"): graph.value("w")})
    with pytest.raises(GraphError, match="cannot be the name"):
        clone([graph["a"], graph["b"]], rename=lambda name: "" if name == "b" else "ok")
    assert to_text(graph) == before


def test_into_another_graph_functions_come_along_under_free_names(graph):
    other = from_text("""
        graph "other"
        %y = Placeholder() : float32[2]
        %b = Placeholder() : float32[2]

        function "inner"
        """)
    found = clone([graph["a"], graph["b"], graph["w"]], into=other, input_map={graph.value("x"): other.value("y")})
    verify(other)
    assert found.functions == {"inner": "inner_1"}
    assert list(other.functions) == ["inner", "inner_1", "outer"]
    assert other.functions["outer"].body["call"].op_type == "inner_1"
    assert found.node_of[graph["b"]].name == "b_1"
    assert found.node_of[graph["b"]].attrs["_class"] == (b"loc:@a", b"other")
    assert "_class" not in other["a"].attrs
    assert not other["a"].control_inputs
    assert other.variables[other.value("w")].name == "w"
    again = clone([graph["b"]], into=other, input_map={graph.value("a"): other.value("y"), graph.value("w"): other.value("w")})
    assert again.functions == {"inner": "inner_2", "outer": "outer_1"}  # `inner` is another one here, so `outer` differs too
    before = to_text(graph)
    clone([graph["b"]], into=graph)
    assert "b_1" in graph
    assert to_text(graph) != before


def test_equal_functions_are_shared(graph):
    other = from_text(SOURCE)
    found = clone([graph["b"]], into=other, input_map={graph.value("a"): other.value("a"), graph.value("w"): other.value("w")})
    assert found.functions == {}
    assert list(other.functions) == ["inner", "outer"]


def test_an_input_that_is_nowhere_is_named_and_nothing_changes(graph):
    other = Graph("other")
    with pytest.raises(GraphError, match=r"replaces a:0, w:0"):
        clone([graph["b"]], into=other)
    assert len(other) == 0
    assert not other.functions


def test_collections_follow_where_all_that_they_name_is_copied(graph):
    graph.collections["nodes"] = Collection("nodes", [graph["a"], graph.value("b"), graph["x"]])
    graph.collections["variables"] = Collection(
        "bytes", [NamedRefs(b"1", {"p": graph["a"]}), NamedRefs(b"2", {"p": graph["a"], "q": graph["x"]})]
    )
    found = clone([graph["a"], graph["b"]], scope="copy")
    copy_collections(graph, found)
    a, b = found.node_of.values()
    assert graph.collections["nodes"].items[3:] == [a, b.outputs[0]]
    assert [item.serialized for item in graph.collections["variables"].items] == [b"1", b"2", b"1"]
    verify(graph)


def test_a_loop_of_tf1_is_copied_with_its_back_edge():
    graph = from_text("""
        graph "g"
        %x = Placeholder() : float32[2]
        %enter = Enter(%x:0) : float32[2]
        %merge = Merge(%next:0, %enter:0) : float32[2]
        %next = NextIteration(%merge:0) : float32[2]
        """)
    loop = [graph["enter"], graph["merge"], graph["next"]]
    found = clone(loop, scope="copy")
    assert [v.name for v in graph["copy/merge"].inputs] == ["copy/next:0", "copy/enter:0"]
    verify(graph)
    other = from_text('graph "o"\n%z = Placeholder() : float32[2]')
    clone(loop, into=other, input_map={graph.value("x"): other.value("z")})
    verify(other)
    assert [v.name for v in other["merge"].inputs] == ["next:0", "enter:0"]
    assert len(found.nodes) == 3


def test_pruning_keeps_what_signatures_and_collections_need(graph):
    graph.signatures["s"] = Signature({"x": graph.value("x")}, {"b": graph.value("b")})
    graph.collections["losses"] = Collection("nodes", [graph.value("b")])
    a = graph.value("a")
    assert prune(graph, [a]) == 0
    assert prune(graph, [a], signatures=False) == 0
    assert list(graph.signatures) == ["s"]
    assert prune(graph, [a], signatures=False, collections=False) == 1
    assert "b" not in graph
    assert not graph.signatures
    assert not graph.collections
    assert graph.outputs == (a,)
    verify(graph)


def test_a_graph_is_copied_with_all_that_stands_around_it(graph):
    """Plain items of collections, functions that nothing calls, what files hold besides; an edit of the copy does not show."""
    graph.functions["lonely"] = Function("lonely", Graph("lonely", functions=graph.functions), b"definition")
    graph.signatures["s"] = Signature({"x": graph.value("x")}, {"y": graph.value("b")}, "method", b"extra")
    graph.collections["mixed"] = Collection("bytes", [b"plain", NamedRefs(b"1", {"p": graph["a"]}), NamedRefs(b"2", {})])
    graph.collections["empty"] = Collection("ints")
    argument = graph.functions["outer"].body.value("o")
    graph.package = Held({graph.value("w"): 1, argument: 2})
    graph.control_outputs = [graph["log"]]
    before = to_text(graph)
    found = copy_graph(graph)
    copy = found.graph
    verify(copy)
    assert to_text(copy) == before
    assert copy.functions["lonely"].definition == b"definition"
    assert copy.functions["outer"].body.functions is copy.functions
    assert (copy.signatures["s"].method_name, copy.signatures["s"].extra) == ("method", b"extra")
    assert copy.package.ids == {copy.value("w"): 1, copy.functions["outer"].body.value("o"): 2}
    for node in copy.nodes:
        copy.rename(node, f"new/{node.name}")
    copy.signatures.clear()
    copy.collections["mixed"].items.clear()
    copy.functions["inner"].body.outputs = []
    del copy.functions["lonely"]
    assert to_text(graph) == before


def test_a_copy_may_come_in_an_order_in_which_it_cannot_run(graph):
    graph.sort_nodes(graph.nodes[::-1])
    body = graph.functions["outer"].body
    body.sort_nodes(body.nodes[::-1])
    copy = copy_graph(graph).graph
    verify(copy)
    assert to_text(copy) == to_text(graph)


def test_shapes_that_are_out_of_date_are_not_settled_by_a_copy(graph):
    graph.shapes = Shapes(graph, lambda nodes: [[(3,)] * len(node.outputs) for node in nodes])
    graph.refresh_shapes([graph["a"]])
    copy = copy_graph(graph).graph
    assert list(graph.shapes.stale) == [graph["a"]]
    assert graph.value("a").last_shape == copy.value("a").last_shape == (2,)
    assert copy.value("a").shape == (3,)
    assert graph.value("a").last_shape == (2,)


def test_functions_that_are_named_in_messages_come_along():
    """`forward_function_name` in a definition, and a function in the attributes of a reference."""
    graph = from_text(SOURCE)
    deep = message_field(10, message_field(1, b"deep"))
    inside = message_field(1, b"outer") + message_field(2, message_field(1, b"k") + message_field(2, deep))
    graph.set_attr(graph["b"], "f", FunctionReference("outer", inside))
    for name in ("deep", "backward"):
        graph.functions[name] = Function(name, Graph(name, functions=graph.functions))
    text = message_field(5, message_field(1, b"backward_function_name") + message_field(2, message_field(2, b"backward")))
    graph.functions["deep"].definition = text
    other = from_text('graph "other"\n%y = Placeholder() : float32[2]\n%w = Placeholder() : resource[]\nfunction "backward"\n%n = NoOp()')
    found = clone([graph["b"]], into=other, input_map={graph.value("a"): other.value("y"), graph.value("w"): other.value("w")})
    assert found.functions == {"backward": "backward_1"}
    assert b"backward_1" in other.functions["deep"].definition
    assert remove_unused_functions(other) == ["backward"]
    rename_functions(other, {"deep": "deeper"})
    assert b"deeper" in other["b"].attrs["f"].serialized
    verify(other)


@dataclass
class Held:
    ids: dict[Value, int]
