"""The shapes of calls follow the bodies of the functions that they call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pytest

from graphwright.errors import GraphError
from graphwright.ir import edit
from graphwright.ir.attributes import FunctionReference, ShapeAttribute
from graphwright.ir.dtypes import DTYPES, Shape, common_shape
from graphwright.ir.graph import Function, Graph, Node
from graphwright.ir.shapes import Shapes
from graphwright.ir.text import from_text
from graphwright.ir.traits.control_flow import result_functions

F32 = DTYPES["float32"]


class Rule:
    """Calls give what their functions give, `Twice` doubles the first dimension, all else has the shape of its input."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, nodes: Sequence[Node]) -> list[list[Shape]]:
        answers: list[list[Shape]] = []
        inside: dict[str, Shape] = {}
        for node in nodes:
            self.asked.append(node.name)
            bodies = [node.graph.functions[name].body for name in result_functions(node) if name in node.graph.functions]
            if bodies:
                answers.append([reduce(common_shape, same) for same in zip(*([v.shape for v in b.outputs] for b in bodies), strict=True)])
                continue
            read = [inside.get(v.name, v.shape) for v in node.inputs]
            shape = read[0] if read else node.outputs[0].last_shape
            if node.op_type == "Refused":
                raise ValueError("refused")
            if node.op_type == "Twice" and shape:
                shape = (None if shape[0] is None else 2 * shape[0], *shape[1:])
            answers.append([shape] * len(node.outputs))
            inside.update((v.name, shape) for v in node.outputs)
        return answers


def with_rule(text: str) -> tuple[Graph, Rule]:
    graph, rule = from_text(text), Rule()
    for each in (graph, *(f.body for f in graph.functions.values())):
        each.shapes = Shapes(each, rule)
    return graph, rule


INNER = """
    function "inner"
    inputs %a:0
    outputs %b:0
    %a = Placeholder() : float32[3]
    %b = Relu(%a:0) : float32[3]
    """
ONE_CALL = f"""
    graph "g"
    %x = Placeholder() : float32[3]
    %call = PartitionedCall(%x:0) {{f = @inner}} : float32[3]
    %behind = Twice(%call:0) : float32[6]
    {INNER}
    """


def test_an_edit_of_a_body_reaches_what_reads_its_calls():
    graph, rule = with_rule(ONE_CALL)
    assert graph.value("behind").shape == (6,)
    body = graph.functions["inner"].body
    body.set_op_type(body["b"], "Twice")
    assert graph.value("behind").shape == (12,)
    assert graph.value("call").shape == (6,)
    assert rule.asked == ["b", "call", "behind"]
    rule.asked.clear()
    assert graph.value("behind").shape == (12,)
    assert rule.asked == []


def test_an_assigned_shape_and_other_results_count_too():
    graph, _ = with_rule(ONE_CALL)
    body = graph.functions["inner"].body
    body.value("a").shape = (5,)
    assert graph.value("behind").shape == (10,)
    more = body.add_node("Twice", "more", inputs=[body.value("b")], output_types=[(F32, (10,))])
    body.outputs = more.outputs
    assert graph.value("behind").shape == (20,)


def test_calls_are_not_asked_where_the_results_keep_their_shapes():
    graph, rule = with_rule(ONE_CALL)
    body = graph.functions["inner"].body
    for k in range(3):
        body.set_attr(body["b"], "alpha", k)
        assert graph.value("behind").shape == (6,)
    assert rule.asked == ["b"] * 3


def test_calls_within_functions_hand_it_on():
    graph, _ = with_rule(f"""
        graph "g"
        %x = Placeholder() : float32[3]
        %call = outer(%x:0) : float32[3]

        function "outer"
        inputs %a:0
        outputs %c:0
        %a = Placeholder() : float32[3]
        %b = PartitionedCall(%a:0) {{f = @inner}} : float32[3]
        %c = Relu(%b:0) : float32[3]
        {INNER}
        """)
    body = graph.functions["inner"].body
    for expected in (6, 12):
        body.set_op_type(body.add_node("Twice", f"n{expected}", inputs=[body.outputs[0]], output_types=[(F32, None)]), "Twice")
        body.outputs = body.nodes[-1].outputs
        assert graph.value("call").shape == (expected,)
        assert graph.functions["outer"].body.value("c").shape == (expected,)


def test_branches_and_loops_follow_and_say_so_in_their_attributes():
    graph, _ = with_rule(f"""
        graph "g"
        %x = Placeholder() : float32[3]
        %p = Placeholder() : bool[]
        %if = If(%p:0, %x:0) {{then_branch = @inner, else_branch = @other, output_shapes = [shape[3]]}} : float32[3]
        %case = StatelessCase(%p:0, %x:0) {{branches = [@inner, @inner]}} : float32[3]
        %while = While(%x:0) {{cond = @other, body = @inner, output_shapes = [shape[3]]}} : float32[3]
        {INNER}
        {INNER.replace("inner", "other")}
        """)
    body = graph.functions["inner"].body
    body.set_op_type(body["b"], "Twice")
    assert graph.value("if").shape == (None,)
    assert graph.value("case").shape == (6,)
    assert graph.value("while").shape == (6,)
    assert graph["if"].attrs["output_shapes"] == (ShapeAttribute((None,)),)
    assert graph["while"].attrs["output_shapes"] == (ShapeAttribute((6,)),)


def test_a_function_that_calls_itself():
    graph, _ = with_rule("""
        graph "g"
        %x = Placeholder() : float32[3]
        %call = f(%x:0) : float32[3]

        function "f"
        inputs %a:0
        outputs %b:0
        %a = Placeholder() : float32[3]
        %again = f(%a:0) : float32[3]
        %b = Relu(%again:0) : float32[3]
        """)
    body = graph.functions["f"].body
    body.value("b").shape = (7,)
    assert graph.value("call").shape == (7,)


def test_calls_that_are_added_and_functions_that_are_exchanged():
    graph, _ = with_rule(ONE_CALL)
    assert graph.value("call").shape == (3,)
    second = graph.add_node("PartitionedCall", "second", inputs=[graph.value("x")], attrs={"f": FunctionReference("inner")})
    graph.add_output(second, F32, (3,))
    body = graph.functions["inner"].body
    body.set_op_type(body["b"], "Twice")
    assert second.outputs[0].shape == (6,)
    other = from_text('graph "h"\ninputs %a:0\noutputs %a:0\n%a = Placeholder() : float32[8]')
    edit.add_function(graph, Function("new", other))
    graph.set_attr(second, "f", FunctionReference("new"))
    assert second.outputs[0].shape == (8,)
    body.set_op_type(body["b"], "Relu")
    assert graph.value("call").shape == (3,)
    assert second.outputs[0].shape == (8,)
    graph.remove_node(second)
    body.set_op_type(body["b"], "Twice")
    assert graph.value("behind").shape == (12,)


def test_a_body_that_is_refused_is_refused_to_its_callers_until_it_is_mended():
    graph, _ = with_rule(ONE_CALL)
    body = graph.functions["inner"].body
    body.set_op_type(body["b"], "Refused")
    for _ in range(2):
        with pytest.raises(GraphError, match="the shapes of 'b' = Refused do not fit"):
            graph.value("call").shape  # noqa: B018 - reading settles
    body.set_op_type(body["b"], "Twice")
    assert graph.value("call").shape == (6,)


def test_shapes_are_right_after_an_edit_was_undone():
    graph, _ = with_rule(ONE_CALL)
    body = graph.functions["inner"].body

    def change() -> None:
        with graph.restored_on_error():
            body.set_op_type(body["b"], "Twice")
            assert graph.value("behind").shape == (12,)
            raise KeyError

    with pytest.raises(KeyError):
        change()
    assert graph.value("behind").shape == (6,)
    body.set_op_type(body["b"], "Twice")
    assert graph.value("behind").shape == (12,)


def test_calls_follow_a_function_that_is_put_into_the_library_directly():
    graph, rule = with_rule(ONE_CALL)
    assert graph.value("behind").shape == (6,)
    wider = from_text(INNER.replace('function "inner"', 'graph "inner"').replace("[3]", "[5]"))
    wider.functions = graph.functions
    wider.shapes = Shapes(wider, rule)
    graph.functions["inner"] = Function("inner", wider)
    assert graph.value("behind").shape == (10,)
