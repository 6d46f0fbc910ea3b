"""What `diff` says of two graphs."""

from __future__ import annotations

import random

from graphwright.ir.graph import DTYPES, Function, Graph
from graphwright.ir.signature import Signature
from graphwright.report.diff import diff

F32 = DTYPES["float32"]
TYPES = [(F32, (2,))]


def chain(names: list[str], op_types: list[str] | None = None) -> Graph:
    """x -> first -> second -> ..."""
    graph = Graph("chain")
    value = graph.add_node("Placeholder", "x", output_types=TYPES).outputs[0]
    graph.inputs = [value]
    for name, op_type in zip(names, op_types or ["Relu", "Neg", "Abs", "Tanh"], strict=False):
        value = graph.add_node(op_type, name, inputs=[value], output_types=TYPES).outputs[0]
    graph.outputs = [value]
    return graph


def test_equal_graphs_have_no_difference_whatever_their_order():
    graph, other = chain(["a", "b", "c"]), chain(["a", "b", "c"])
    order = list(other.nodes)
    random.Random(3).shuffle(order)
    other.sort_nodes(order)
    result = diff(graph, other)
    assert not result
    assert "no difference" in str(result)


def test_added_removed_changed_and_rewired():
    before, after = chain(["a", "b", "c"]), chain(["a", "b", "c"])
    after.set_attr(after["a"], "alpha", 0.5)
    after["b"].device = "/device:CPU:0"
    extra = after.add_node("Exp", "extra", inputs=[after.value("a")], output_types=TYPES)
    after.replace_input(after["c"], 0, extra.outputs[0])
    after.add_control_input(after["c"], after["b"])
    result = diff(before, after)
    assert [line.name for line in result.added] == ["extra"]
    assert not result.removed
    assert {(c.name, c.what, c.before, c.after) for c in result.changed} == {
        ("a", "attribute alpha", "none", "0.5"),
        ("b", "device", "none", "/device:CPU:0"),
    }
    assert {(c.name, c.what, c.before, c.after) for c in result.rewired} == {
        ("c", "input 0", "b:0", "extra:0"),
        ("c", "control inputs", "none", "b"),
    }
    backward = diff(after, before)
    assert [line.name for line in backward.removed] == ["extra"]


def test_a_whole_scope_renamed_is_not_rewired():
    names = ["a", "b", "c", "d"]
    result = diff(chain(names), chain([f"scope/{n}" for n in names]))
    assert {(pair.before, pair.after) for pair in result.renamed} == {(n, f"scope/{n}") for n in names}
    assert not result.added
    assert not result.removed
    assert not result.rewired
    assert not result.interface


def test_equal_twins_are_paired_by_their_readers():
    def twins(first: str, second: str) -> Graph:
        graph = Graph("twins")
        x = graph.add_node("Placeholder", "x", output_types=TYPES).outputs[0]
        a, b = (graph.add_node("Relu", n, inputs=[x], output_types=TYPES).outputs[0] for n in (first, second))
        graph.add_node("Sub", "y", inputs=[a, b], output_types=TYPES)
        return graph

    result = diff(twins("a", "b"), twins("left", "right"))
    assert {(pair.before, pair.after) for pair in result.renamed} == {("a", "left"), ("b", "right")}
    assert not result.rewired


def test_a_renamed_node_whose_attribute_changed_is_removed_and_added():
    after = chain(["a", "z"])
    after.set_attr(after["z"], "alpha", 1)
    result = diff(chain(["a", "b"]), after)
    assert [line.name for line in result.removed] == ["b"]
    assert [line.name for line in result.added] == ["z"]


def test_inputs_outputs_and_signatures():
    before, after = chain(["a", "b"]), chain(["a", "b"])
    before.signatures["serve"] = Signature({"x": before.inputs[0]}, {"y": before.outputs[0]})
    after.signatures["serve"] = Signature({"pixels": after.inputs[0]}, {"y": after.value("a")})
    after.signatures["more"] = Signature({}, {})
    after.outputs = [after.value("a")]
    texts = {(c.name, c.what, c.before, c.after) for c in diff(before, after).interface}
    assert texts == {
        ("", "outputs", "b:0 float32[2]", "a:0 float32[2]"),
        ("serve", "input x", "x:0 float32[2]", "none"),
        ("serve", "input pixels", "none", "x:0 float32[2]"),
        ("serve", "output y", "b:0 float32[2]", "a:0 float32[2]"),
        ("more", "signature", "none", "there"),
    }


def test_functions():
    before, after = chain(["a"]), chain(["a"])
    for graph, op_type in ((before, "Relu"), (after, "Elu")):
        body = chain(["inner"], [op_type])
        body.functions = graph.functions
        graph.functions["f"] = Function("f", body)
    after.functions["g"] = Function("g", chain(["other"]))
    result = diff(before, after)
    assert [(c.function, c.name, c.before, c.after) for c in result.changed] == [("f", "inner", "Relu", "Elu")]
    assert [(line.name, line.op_type) for line in result.added] == [("g", "function")]


def test_the_text_fits_80_columns_and_obeys_nothing():
    long = "/".join(["scope[bold]\x1b[31m"] * 20)
    text = str(diff(chain(["a"]), chain(["a", long])))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text
    assert "[bold]" in text
    many = str(diff(Graph(), chain([f"n{k}" for k in range(100)], ["Relu"] * 100)))
    assert "and 61 more" in many
