"""Shapes follow edits when someone reads them: only where they must, and not at all where the rule refuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphwright.errors import GraphError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.dtypes import DTYPES, Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.shapes import Shapes
from graphwright.ir.text import from_text
from graphwright.ir.walk import topological_order

F32 = DTYPES["float32"]


class Rule:
    """`Add` asks for equal shapes, `Twice` doubles the first dimension, `Merge` keeps what its inputs agree on, others pass on."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, nodes: Sequence[Node]) -> list[list[Shape]]:
        inside: dict[Value, Shape] = {}
        answers: list[list[Shape]] = []
        for node in nodes:
            self.asked.append(node.name)
            read = [inside.get(v, v.shape) for v in node.inputs]
            answers.append([self._shape(node, read)] * len(node.outputs))
            inside.update(zip(node.outputs, answers[-1], strict=True))
        return answers

    def _shape(self, node: Node, read: list[Shape]) -> Shape:
        known = [shape for shape in read if shape is not None]
        if not read:
            attribute = node.attrs.get("shape")
            return attribute.shape if isinstance(attribute, ShapeAttribute) else None
        if node.op_type == "Merge":
            return read[0] if all(shape == read[0] for shape in read) else None
        if node.op_type == "Add" and any(shape != known[0] for shape in known):
            raise ValueError(f"shapes {known} differ")
        if node.op_type == "Twice" and read[0]:
            return (None if read[0][0] is None else 2 * read[0][0], *read[0][1:])
        return read[0]


def graph_with_rule(text: str) -> tuple[Graph, Rule]:
    graph, rule = from_text(text), Rule()
    graph.shapes = Shapes(graph, rule)
    return graph, rule


CHAIN = """
    graph "g"
    outputs %d:0
    %x = Placeholder() {shape = shape[3]} : float32[3]
    %y = Placeholder() {shape = shape[5]} : float32[5]
    %a = Relu(%x:0) : float32[3]
    %b = Twice(%a:0) : float32[6]
    %c = Relu(%b:0) {_output_shapes = [shape[6]]} : float32[6]
    %d = Relu(%c:0) : float32[6]
    """


def test_nothing_is_asked_where_nothing_was_edited():
    graph, rule = graph_with_rule(CHAIN)
    assert graph.value("d").shape == (6,)
    graph.rename(graph["d"], "end")
    graph.add_control_input(graph["end"], graph["y"])
    assert graph.value("end").shape == (6,)
    assert rule.asked == []


def test_an_edit_without_effect_on_shapes_asks_for_one_node():
    graph, rule = graph_with_rule(CHAIN)
    graph.set_attr(graph["a"], "alpha", 0.5)
    assert graph.value("d").shape == (6,)
    assert rule.asked == ["a"]


def test_what_reads_small_integers_is_asked_though_their_shape_stays():
    graph, rule = graph_with_rule("""
        graph "g"
        %x = Placeholder() {shape = shape[2]} : float32[2]
        %one = Const() {shape = shape[2]} : int32[2]
        %two = Const() {shape = shape[2]} : int32[2]
        %dims = Relu(%one:0) : int32[2]
        %reshaped = Relu(%x:0, %dims:0) : float32[2]
        %behind = Relu(%reshaped:0) : float32[2]
        """)
    graph.replace_input(graph["dims"], 0, graph.value("two"))
    assert graph.value("behind").shape == (2,)
    assert rule.asked == ["dims", "reshaped"]


def test_a_rule_that_raises_names_the_node_and_leaves_the_shapes():
    graph, rule = graph_with_rule(CHAIN)
    total = graph.add_node("Add", "total", inputs=[graph.value("d"), graph.value("c")], output_types=[(F32, (6,))])
    graph.outputs = total.outputs
    graph.replace_input(graph["a"], 0, graph.value("y"))
    graph.replace_input(total, 1, graph.value("y"))
    before = [value.last_shape for node in graph for value in node.outputs]
    with pytest.raises(GraphError, match=r"the shapes of 'total' = Add do not fit: shapes \[\(\d+,\), \(5,\)\] differ") as caught:
        graph.value("total").shape  # noqa: B018 - reading settles
    assert isinstance(caught.value.__cause__, ValueError)
    assert [value.last_shape for node in graph for value in node.outputs] == before
    assert graph["c"].attrs["_output_shapes"] == (ShapeAttribute((6,)),)
    assert set(graph.shapes.stale) == {graph["a"], total}
    graph.replace_input(total, 1, graph.value("c"))
    assert graph.value("total").shape == (10,)
    assert rule.asked


def test_a_rule_with_too_few_answers_is_refused():
    graph, _ = graph_with_rule(CHAIN)
    graph.shapes = Shapes(graph, lambda nodes: [[] for _ in nodes])
    graph.set_attr(graph["a"], "alpha", 0.5)
    with pytest.raises(GraphError, match="other numbers of shapes"):
        graph.settle_shapes()


def test_a_loop_of_tf1_comes_to_rest():
    graph, _ = graph_with_rule("""
        graph "g"
        outputs %exit:0
        %x = Placeholder() {shape = shape[3]} : float32[3]
        %y = Placeholder() {shape = shape[5]} : float32[5]
        %enter = Enter(%x:0) : float32[3]
        %merge = Merge(%enter:0, %next:0) : float32[3]
        %body = Twice(%merge:0) : float32[6]
        %next = NextIteration(%body:0) : float32[6]
        %exit = Exit(%merge:0) : float32[3]
        """)
    graph.replace_input(graph["enter"], 0, graph.value("y"))
    assert graph.value("exit").shape is None
    assert graph.value("enter").shape == (5,)


@st.composite
def layered(draw: st.DrawFn) -> Graph:
    graph = Graph("g")
    for k in range(3):
        graph.add_node("Placeholder", f"x{k}", attrs={"shape": ShapeAttribute((k, 2))}, output_types=[(F32, (k, 2))])
    for k in range(draw(st.integers(1, 12))):
        inputs = [draw(st.sampled_from(graph.nodes)).outputs[0] for _ in range(draw(st.integers(1, 2)))]
        graph.add_node(draw(st.sampled_from(["Relu", "Twice", "Merge"])), f"n{k}", inputs=inputs, output_types=[(F32, None)])
    graph.shapes = Shapes(graph, Rule())
    graph.refresh_shapes()
    return graph


@given(layered(), st.data())
def test_shapes_after_edits_are_those_of_the_whole_graph_in_order(graph, data):
    inner = [node for node in graph if node.inputs]
    for _ in range(data.draw(st.integers(1, 6))):
        node = data.draw(st.sampled_from(inner))
        before = graph.nodes[: graph.nodes.index(node)]
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            graph.append_input(node, data.draw(st.sampled_from(before)).outputs[0])
        elif kind == 1:
            graph.set_op_type(node, data.draw(st.sampled_from(["Relu", "Twice", "Merge"])))
        else:
            graph.replace_input(node, 0, data.draw(st.sampled_from(before)).outputs[0])
        if data.draw(st.booleans()):
            assert node.outputs[0].shape == node.outputs[0].last_shape
    settled = [node.outputs[0].shape for node in graph]
    whole = dict(zip(topological_order(graph), Rule()(topological_order(graph)), strict=True))
    assert settled == [whole[node][0] for node in graph]
