"""Arguments and results of functions that While, If and Case call: all that is called together changes together, or nothing does."""

from __future__ import annotations

import pytest

from graphwright.errors import GraphError, GraphwrightError, UnsupportedError
from graphwright.ir import edit
from graphwright.ir.attributes import FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Graph, Value
from graphwright.ir.text import from_text, to_text
from graphwright.ir.verify import verify

F32, I32, RESOURCE = DTYPES["float32"], DTYPES["int32"], DTYPES["resource"]


@pytest.fixture
def graph() -> Graph:
    """An If whose first branch is called elsewhere, a Case that shares a branch with it, and a While in the second branch of the If."""
    return from_text("""
        graph "g"
        inputs %x:0, %p:0
        outputs %if:0, %case:0
        %x = Placeholder() : float32[2]
        %p = Placeholder() : bool[]
        %k = Placeholder() : int32[]
        %if = If(%p:0, %x:0) {Tcond = bool, Tin = [float32], Tout = [float32], else_branch = @b, output_shapes = [shape[2]], then_branch = @a} : float32[2]
        %case = Case(%k:0, %x:0) {Tin = [float32], Tout = [float32], branches = [@a, @c, @a]} : float32[2]
        %call = PartitionedCall(%x:0) {Tin = [float32], Tout = [float32], f = @a} : float32[2]

        function "a"
        inputs %i:0
        outputs %r:0
        %i = _Arg() {T = float32, index = 0} : float32[2]
        %r = Relu(%i:0) : float32[2]

        function "b"
        inputs %i:0
        outputs %loop:0
        %i = _Arg() {T = float32, index = 0} : float32[2]
        %loop = While(%i:0, %i:0) {T = [float32, float32], _num_original_outputs = 2, body = @body, cond = @cond, output_shapes = [shape[2], shape[2]]} : float32[2], float32[2]

        function "c"
        inputs %i:0
        outputs %i:0
        %i = _Arg() {T = float32, index = 0} : float32[2]

        function "cond"
        inputs %s:0, %t:0
        outputs %less:0
        %s = _Arg() : float32[2]
        %t = _Arg() : float32[2]
        %less = Less(%s:0) : bool[]

        function "body"
        inputs %s:0, %t:0
        outputs %n:0, %u:0
        %s = _Arg() : float32[2]
        %t = _Arg() : float32[2]
        %n = Neg(%s:0) : float32[2]
        %u = AddV2(%t:0, %s:0) : float32[2]
        """)  # noqa: E501


def test_all_functions_that_are_called_together_get_the_argument(graph):
    asked = []

    def passed(node):
        asked.append(node.name)
        return node.graph.value("p")

    added = edit.add_argument(graph, "c", "flag", DTYPES["bool"], (), passed)
    verify(graph)
    assert sorted(asked) == ["call", "case", "if"]
    assert added is graph.functions["c"].body.inputs[1]
    for name in "abc":
        assert [v.dtype for v in graph.functions[name].body.inputs] == [F32, DTYPES["bool"]]
    assert graph["if"].attrs["Tin"] == graph["case"].attrs["Tin"] == graph["call"].attrs["Tin"] == (F32, DTYPES["bool"])
    assert [v.name for v in graph["case"].inputs] == ["k:0", "x:0", "p:0"]
    assert len(graph.functions["cond"].body.inputs) == 2
    edit.remove_argument(graph, "a", 1)
    verify(graph)
    assert [v.name for v in graph["if"].inputs] == ["p:0", "x:0"]


def test_an_argument_before_others(graph):
    edit.add_argument(graph, "a", "first", F32, (2,), lambda node: graph.value("x"), index=0)
    body = graph.functions["a"].body
    assert [(v.producer.name, v.producer.attrs["index"]) for v in body.inputs] == [("first", 0), ("i", 1)]
    verify(graph)
    with pytest.raises(UnsupportedError, match="at the end"):
        edit.add_argument(graph, "body", "first", F32, (2,), lambda node: node.graph.value("i"), index=0)


def test_an_argument_that_one_branch_reads_stays(graph):
    before = to_text(graph)
    with pytest.raises(GraphError, match="argument 'i' of function 'a' is read"):
        edit.remove_argument(graph, "c", 0)
    assert to_text(graph) == before


def test_a_loop_variable_comes_and_goes_everywhere(graph):
    loop = graph.functions["b"].body["loop"]
    body, cond = graph.functions["body"].body, graph.functions["cond"].body
    added = edit.add_argument(graph, "cond", "fresh", F32, (2,), lambda node: node.graph.value("i"))
    verify(graph)
    assert added is cond.inputs[2]
    assert body.outputs[2] is body.inputs[2]
    assert [v.name for v in loop.outputs] == ["loop:0", "loop:1", "loop:2"]
    assert loop.attrs["T"] == (F32, F32, F32)
    assert loop.attrs["output_shapes"] == (ShapeAttribute((2,)),) * 3
    assert loop.attrs["_num_original_outputs"] == 3
    edit.remove_argument(graph, "body", 1)  # only its own next value reads it
    verify(graph)
    assert "u" not in body
    assert [v.producer.name for v in body.inputs] == ["s", "fresh"]
    assert loop.attrs["_num_original_outputs"] == 2
    before = to_text(graph)
    cond.replace_input(cond["less"], 0, cond.value("fresh"))
    with pytest.raises(GraphError, match=r"loop:0 is an output of the graph"):
        edit.remove_argument(graph, "body", 0)
    cond.replace_input(cond["less"], 0, cond.value("s"))
    assert to_text(graph) == before


def test_what_others_need_of_a_loop_stays(graph):
    loop, body = graph.functions["b"].body["loop"], graph.functions["body"].body
    graph.functions["b"].body.outputs = [loop.outputs[1]]
    before = to_text(graph)
    with pytest.raises(GraphError, match="argument 's' of function 'cond' is read"):
        edit.remove_argument(graph, "body", 0)
    graph.functions["cond"].body.replace_input(graph.functions["cond"].body["less"], 0, graph.functions["cond"].body.value("t"))
    before = to_text(graph)
    with pytest.raises(GraphError, match="argument 's' of function 'body' is read"):
        edit.remove_argument(graph, "body", 0)  # the other variable grows by it
    assert to_text(graph) == before
    body.outputs = (body.outputs[0], body.value("t"))
    edit.remove_argument(graph, "body", 0)
    verify(graph)
    assert [node.name for node in body] == ["t"]


def test_the_next_value_of_a_loop_variable_must_fit(graph):
    before = to_text(graph)
    body = graph.functions["body"].body

    def wrong(value: Value) -> Value:
        return body.add_node("Size", "size", inputs=[value], output_types=[(I32, ())]).outputs[0]

    with pytest.raises(GraphError, match="cannot be the next round's 'fresh' of dtype float32"):
        edit.add_argument(graph, "body", "fresh", F32, (2,), lambda node: node.graph.value("i"), next_value=wrong)
    with pytest.raises(GraphError, match="not part of a loop"):
        edit.add_argument(graph, "a", "fresh", F32, (2,), lambda node: graph.value("x"), next_value=wrong)
    assert to_text(graph) == before


def test_results_of_branches(graph):
    a, c = (graph.functions[name].body for name in "ac")
    before = to_text(graph)
    with pytest.raises(GraphError, match="what 'b' returns"):
        edit.add_result(graph, "a", a.value("i"), others={"c": c.value("i")})
    with pytest.raises(GraphError, match="is not in the body of function 'b'"):
        edit.add_result(graph, "a", a.value("i"), others={"c": c.value("i"), "b": a.value("i")})
    assert to_text(graph) == before
    made = edit.add_result(graph, "a", a.value("i"), others=lambda body: body.inputs[0])
    verify(graph)
    assert {node.name: value.name for node, value in made.items()} == {"if": "if:1", "case": "case:1", "call": "call:1"}
    assert graph["if"].attrs["Tout"] == (F32, F32)
    assert graph["if"].attrs["output_shapes"] == (ShapeAttribute((2,)), ShapeAttribute((2,)))
    number = {name: graph.functions[name].body.add_node("Size", "n", output_types=[(I32, ())]).outputs[0] for name in "abc"}
    with pytest.raises(GraphError, match="result 1 of 'a', 'c' is float32"):
        edit.set_result(graph, "b", 1, number["b"])
    edit.set_result(graph, "b", 1, number["b"], others=number)
    assert graph["case"].attrs["Tout"] == (F32, I32)
    edit.remove_result(graph, "c", 1)
    verify(graph)
    assert graph["case"].attrs["Tout"] == (F32,)
    with pytest.raises(GraphError, match="an output of the graph"):
        edit.remove_result(graph, "a", 0)


def test_results_of_loops_are_loop_variables(graph):
    body, cond = graph.functions["body"].body, graph.functions["cond"].body
    for verb in (lambda: edit.add_result(graph, "body", body.value("s")), lambda: edit.remove_result(graph, "body", 1)):
        with pytest.raises(UnsupportedError, match=r"belongs to 'loop' = While.*\n.*\n.*a loop variable"):
            verb()
    edit.set_result(graph, "body", 1, body.value("s"))
    assert body.outputs[1] is body.value("s")
    with pytest.raises(GraphError, match="cannot be whether the loop goes on of dtype bool"):
        edit.set_result(graph, "cond", 0, cond.value("s"))


def test_a_changed_argument_is_undone_where_one_branch_cannot_follow(graph):
    before = to_text(graph)
    number = graph.add_node("Size", "number", output_types=[(I32, ())]).outputs[0]
    asked = []

    def convert(value: Value) -> Value:
        body = value.producer.graph
        asked.append(body.name)
        if len(asked) == 3:
            raise GraphwrightError("the third body is too much")
        return body.add_node("Cast", "cast", inputs=[value], output_types=[(F32, (2,))]).outputs[0]

    with pytest.raises(GraphwrightError, match="too much"):
        edit.change_argument(graph, "a", 0, I32, (), convert=convert, values=lambda node: number)
    graph.remove_node(number.producer)
    assert sorted(asked) == ["a", "b", "c"]
    assert to_text(graph) == before
    with pytest.raises(GraphError, match=r"'case', 'call'"):
        edit.change_argument(graph, "a", 0, I32, (), convert=convert)


def test_numbers_of_inputs_follow_when_one_goes(graph):
    graph.set_attr(graph["call"], "_read_only_resource_inputs", (0, 2))
    for name in ("second", "third"):
        handle = graph.add_node("VarHandleOp", name, output_types=[(RESOURCE, ())]).outputs[0]
        edit.add_argument(graph, "a", name, RESOURCE, (), lambda node, handle=handle: handle)
    edit.remove_argument(graph, "a", 1)
    assert graph["call"].attrs["_read_only_resource_inputs"] == (0, 1)
    edit.remove_argument(graph, "a", 1)
    graph.set_attr(graph["call"], "_read_only_resource_inputs", (1,))
    edit.add_argument(graph, "a", "again", RESOURCE, (), lambda node: graph.value("third"))
    edit.remove_argument(graph, "a", 1)
    assert graph["call"].attrs["_read_only_resource_inputs"] == SerializedAttribute(b"\x0a\x00")
    verify(graph)


def test_what_else_names_a_function_fixes_it(graph):
    graph.add_node("MapDataset", "map", attrs={"f": FunctionReference("a")})
    before = to_text(graph)
    for verb in (
        lambda: edit.add_argument(graph, "c", "more", F32, (2,), lambda node: graph.value("x")),
        lambda: edit.change_argument(graph, "b", 0, F32, (3,)),
        lambda: edit.set_result(graph, "a", 0, graph.functions["a"].body.value("i")),
    ):
        with pytest.raises(UnsupportedError, match="function 'a' belongs to 'map' = MapDataset"):
            verb()
    assert to_text(graph) == before


def test_the_body_of_a_loop_that_is_a_branch_too_is_refused(graph):
    graph.set_attr(graph["case"], "branches", (FunctionReference("a"), FunctionReference("body")))
    with pytest.raises(GraphwrightError, match="'case' has 1 arguments"):
        edit.add_argument(graph, "body", "more", F32, (2,), lambda node: graph.value("x"))
