"""Patterns and what they capture, OpMatcher, and rewriting to a fixed point."""

from __future__ import annotations

import pytest

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.match import Match, find, match_at, one_of, op, value
from graphwright.ir.op_matcher import OpMatcher, op_type
from graphwright.ir.rewrite import Rule, rewrite
from graphwright.ir.signature import Collection, Signature
from graphwright.ir.text import from_text
from graphwright.ir.verify import verify

F32 = DTYPES["float32"]


@pytest.fixture
def graph() -> Graph:
    return from_text("""
        graph "g"
        outputs %sum:0
        %x = Placeholder() : float32[2]
        %w = Const() : float32[2]
        %log = Print()
        %product = Mul(%w:0, %x:0) {T = float32} : float32[2]
        %sum = Add(%x:0, %product:0) ^log : float32[2]
        %other = Neg(%product:0) : float32[2]
        """)


def test_captures_and_equal_names(graph):
    pattern = op("Add", value("x"), op("Mul", value("w"), value("x"), name="product"), name="sum")
    found = match_at(pattern, graph["sum"])
    assert found is not None
    assert found.node("product") is graph["product"]
    assert found.value("product") is graph.value("product")
    assert found.node("x") is graph["x"]
    assert found.nodes == (graph["sum"], graph["product"])
    assert match_at(op("Add", value("x"), op("Mul", value("x"), value("y"))), graph["sum"]) is None


def test_commutative_inputs_are_tried_in_every_order(graph):
    pattern = op("Add", op("Mul", value("x"), value("w")), value("x"), commutative=True)
    assert match_at(pattern, graph["sum"]) is None
    pattern = op("Add", op("Mul", value("x"), value("w"), commutative=True), value("x"), commutative=True)
    found = match_at(pattern, graph["sum"])
    assert found is not None
    assert found.value("w").name == "w:0"


def test_conditions_of_a_pattern(graph):
    product = graph["product"]
    assert match_at(op("Mul"), product)
    assert match_at(op(["Div", "Mul"], ...), product)
    assert match_at(op(None, op("Const"), ...), product)
    assert match_at(op("Mul", attrs={"T": F32}), product)
    assert not match_at(op("Mul", value()), product)
    assert not match_at(op("Mul", attrs={"T": DTYPES["int32"]}), product)
    assert not match_at(op("Mul", where=lambda node: node.device != ""), product)
    assert not match_at(op("Mul", value(where=lambda v: v.dtype.name == "int32"), ...), product)
    assert match_at(op("Add", value(), op("Mul", output=0), control_inputs=[op("Print", name="log")]), graph["sum"])
    assert not match_at(op("Add", value(), op("Mul", output=1)), graph["sum"])
    assert not match_at(op("Add", control_inputs=[op("Const")]), graph["sum"])
    assert match_at(one_of(op("Div"), op("Mul", value("a"), value("b"))), product)
    with pytest.raises(ArgumentError, match="must be the last"):
        op("Add", ..., value())


def test_a_node_that_only_the_match_may_read(graph):
    pattern = op("Add", value("x"), op("Mul", only_use=True))
    assert [m.root.name for m in find(graph, pattern)] == []
    graph.remove_node(graph["other"])
    assert [m.root.name for m in find(graph, pattern)] == ["sum"]
    assert next(find(graph, pattern)).captured == {}
    graph.outputs = [graph.value("product")]
    assert [m.root.name for m in find(graph, pattern)] == []


def test_op_matcher_asks_in_both_directions(graph):
    assert [n.name for n in graph if OpMatcher("o")(n)] == ["log", "product", "other"]
    matches = OpMatcher(op_type("Mul")).input_ops(op_type("Const"), None).output_ops(["sum", OpMatcher(graph["other"])])
    assert [n.name for n in graph if matches(n)] == ["product"]
    assert [n.name for n in graph if OpMatcher(True).output_ops(op_type("Add"))(n)] == []
    assert [n.name for n in graph if OpMatcher(True).control_input_ops("log")(n)] == ["sum"]
    assert not OpMatcher("product").input_ops("w")(graph["product"])
    assert OpMatcher("product").output_ops(None)(graph["product"])


def negation(x: Value) -> Value:
    graph = x.producer.graph
    return graph.add_node("Neg", graph.unique_name("negated"), inputs=[x], output_types=[(x.dtype, x.shape)]).outputs[0]


def test_a_replacement_takes_name_readers_order_signatures_and_collections(graph):
    graph.signatures["s"] = Signature({}, {"y": graph.value("sum")})
    graph.collections["losses"] = Collection("nodes", [graph["sum"]])
    after = graph.add_node("NoOp", "after", control_inputs=[graph["sum"]])

    def replace(match: Match) -> Value:
        x, w = match.value("x"), match.value("w")
        types = [(x.dtype, x.shape)]
        return graph.add_node("Fused", graph.unique_name("fused"), inputs=[x, w], output_types=types).outputs[0]

    assert rewrite(graph, [Rule(op("Add", value("x"), op("Mul", value("w"), value("x"))), replace)]) == 1
    verify(graph)
    assert str(graph["sum"]) == "<Node sum = Fused(x:0, w:0)>"
    assert graph["sum"].control_inputs == (graph["log"],)
    assert after.control_inputs == (graph["sum"],)
    assert graph.signatures["s"].outputs["y"] is graph.outputs[0]
    assert graph.collections["losses"].items == [graph["sum"]]
    assert "product" in graph  # `other` reads it


def test_what_remains_waits_for_what_the_removed_nodes_waited_for():
    graph = from_text("""
        graph "g"
        outputs %c:0
        %x = Placeholder() : float32[2]
        %log = Print()
        %a = Neg(%x:0) ^log : float32[2]
        %b = Neg(%a:0) : float32[2]
        %c = Relu(%b:0) : float32[2]
        """)
    double = Rule(op("Neg", op("Neg", value("x"))), lambda match: match.value("x"))
    assert rewrite(graph, [double]) == 1
    assert str(graph["c"]) == "<Node c = Relu(x:0)>"
    assert graph["c"].control_inputs == (graph["log"],)


def test_a_rewrite_may_make_room_for_another():
    graph = Graph("g")
    node = graph.add_node("Placeholder", "x", output_types=[(F32, (2,))])
    for k in range(9):
        node = graph.add_node("Neg", f"n{k}", inputs=node.outputs, output_types=[(F32, (2,))])
    graph.outputs = node.outputs
    double = Rule(op("Neg", op("Neg", value("x"), only_use=True)), lambda match: match.value("x"))
    assert rewrite(graph, [double]) == 4
    assert [n.op_type for n in graph] == ["Placeholder", "Neg"]
    verify(graph)


def test_the_last_other_reader_leaves_and_the_pattern_fits():
    graph = from_text("""
        graph "g"
        outputs %b:0, %d:0
        %x = Placeholder() : float32[2]
        %a = Exp(%x:0) : float32[2]
        %b = Log(%a:0) : float32[2]
        %c = Neg(%a:0) : float32[2]
        %d = Zero(%c:0) : float32[2]
        """)
    fused = Rule(op("Log", op("Exp", value("x"), only_use=True)), lambda match: match.value("x"))

    def zero(match: Match) -> Value:
        return graph.add_node("Const", "zero", output_types=[(F32, (2,))]).outputs[0]

    assert rewrite(graph, [fused, Rule(op("Zero", op("Neg", value("x"))), zero)]) == 2
    assert [v.name for v in graph.outputs] == ["x:0", "d:0"]
    assert "a" not in graph


def test_rules_that_do_not_come_to_rest_are_named(graph):
    there = Rule(op("Neg", value("x"), name="n"), lambda m: negation(m.value("x")))
    with pytest.raises(GraphError, match="do not come to rest after 20 rewrites"):
        rewrite(graph, [there], most=20)
    verify(graph)
    assert graph.touched is None


def test_effects_are_not_removed_and_none_means_nothing(graph):
    printed = graph.add_node("Print", "printed", inputs=[graph.value("x")], output_types=[(F32, (2,))])
    reader = graph.add_node("Neg", "reader", inputs=printed.outputs, output_types=[(F32, (2,))])
    assert rewrite(graph, [Rule(op("Neg", op("Print", value("x"))), lambda m: None)]) == 0
    assert rewrite(graph, [Rule(op("Neg", op("Print", value("x"))), lambda m: {m.root.outputs[0]: m.value("x")})]) == 1
    assert "printed" in graph
    assert not graph.owns(reader)


def test_a_long_chain_is_rewritten_in_few_looks():
    graph = Graph("g")
    node = graph.add_node("Placeholder", "x", output_types=[(F32, (2,))])
    for k in range(2000):
        attrs: dict[str, Attribute] = {"k": k}
        node = graph.add_node("Relu", f"n{k}", inputs=node.outputs, attrs=attrs, output_types=[(F32, (2,))])
    graph.outputs = node.outputs
    looks: list[Node] = []

    def counted(seen: Node) -> bool:
        looks.append(seen)
        return True

    once = Rule(op("Relu", op("Relu", value("x"), name="inner"), where=counted), lambda m: m.value("inner"))
    assert rewrite(graph, [once]) == 1999
    assert len(graph) == 2
    assert len(looks) < 10_000
