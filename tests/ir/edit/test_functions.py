"""Functions: the library, their arguments and results, outlining and inlining."""

from __future__ import annotations

import pytest

from graphwright.errors import GraphError
from graphwright.ir import edit
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Function, Graph
from graphwright.ir.text import from_text, to_text
from graphwright.ir.verify import verify
from graphwright.ir.walk import backward_reachable

F32, U8, I32 = DTYPES["float32"], DTYPES["uint8"], DTYPES["int32"]


@pytest.fixture
def graph() -> Graph:
    return from_text("""
        graph "g"
        inputs %x:0
        outputs %last:0
        %x = Placeholder() : float32[2]
        %bytes = Placeholder() : uint8[2]
        %log = Print()
        %call = StatefulPartitionedCall(%x:0) ^log {Tin = [float32], Tout = [float32], f = @body} : float32[2]
        %direct = body(%call:0) : float32[2]
        %last = Relu(%direct:0) ^call : float32[2]

        function "body"
        inputs %a:0
        outputs %n:0
        control_outputs %print
        %a = _Arg() {T = float32, index = 0} : float32[2]
        %n = Neg(%a:0) : float32[2]
        %print = Print(%n:0)

        function "loop body"
        inputs %i:0
        outputs %i:0
        %i = _Arg() {T = float32, index = 0} : float32[2]
        """)


def test_what_a_loop_needs_is_not_changed(graph):
    attrs = {"body": FunctionReference("loop body"), "cond": FunctionReference("loop body")}
    graph.add_node("While", "while", inputs=[graph.value("x")], attrs=attrs, output_types=[(F32, (2,))])
    before = to_text(graph)
    with pytest.raises(GraphError, match="is called by 'while'"):
        edit.remove_function(graph, "loop body")
    assert to_text(graph) == before


def test_the_library_is_edited_by_name(graph):
    edit.rename_functions(graph, {"body": "loop body", "loop body": "body"})
    verify(graph)
    assert graph["call"].attrs["f"] == FunctionReference("loop body")
    assert graph["direct"].op_type == "loop body"
    assert edit.remove_unused_functions(graph) == ["body"]
    with pytest.raises(GraphError, match="cannot be renamed"):
        edit.rename_functions(graph, {"loop body": ""})
    extra = Graph("extra")
    extra.add_node("PartitionedCall", "inner", attrs={"f": FunctionReference("lost")})
    with pytest.raises(GraphError, match="'lost' is not in the library"):
        edit.add_function(graph, Function("extra", extra))
    extra.set_attr(extra["inner"], "f", FunctionReference("loop body"))
    edit.add_function(graph, Function("extra", extra))
    verify(graph)
    assert {node.name for node in edit.call_sites(graph, "loop body")} == {"call", "direct", "inner"}
    edit.remove_function(graph, "extra")
    assert edit.unique_function_name(graph, "loop body") == "loop body_1"


def test_inlining_keeps_order_and_effects(graph):
    found = edit.inline(graph["call"])
    verify(graph)
    negated, printed = graph["call/n"], graph["call/print"]
    assert found.nodes == (negated, printed)
    assert (negated.control_inputs, printed.control_inputs) == ((), (graph["log"],))  # what is pure need not wait
    assert graph["direct"].inputs[0].producer.control_inputs == (printed,)  # who fetches the result of a call runs its effects
    assert set(graph["last"].control_inputs) == {printed}
    edit.inline(graph["direct"])
    assert [v.name for v in graph["last"].inputs] == ["direct/result:0"]
    with pytest.raises(GraphError, match="is not a call"):
        edit.inline(graph["last"])
    verify(graph)


def test_what_waits_for_a_pure_call_waits_for_what_came_before_it():
    graph = from_text("""
        graph "g"
        %first = Print() : float32[2]
        %made = PyFunc() : float32[2]
        %call = PartitionedCall(%made:0) ^first {f = @f} on "/device:CPU:1" : float32[2]
        %after = NoOp() ^call

        function "f"
        inputs %a:0
        outputs %r:0
        %a = _Arg() : float32[2]
        %r = Relu(%a:0) : float32[2]
        """)
    edit.inline(graph["call"])
    assert graph["call/r"].device == "/device:CPU:1"
    (done,) = graph["after"].control_inputs
    assert set(done.control_inputs) == {graph["first"], graph["made"]}
    verify(graph)


def test_many_effects_and_many_who_wait_need_few_edges():
    """20 before the call, 20 inside in two chains of 10, 20 results, 20 behind: each to each would be hundreds."""
    body = Graph("f")
    for chain in "ab":
        for k in range(10):
            before = [body[f"{chain}{k - 1}"]] if k else []
            body.add_node("Print", f"{chain}{k}", control_inputs=before, output_types=[(F32, (2,))])
    body.outputs = [node.outputs[0] for node in body]
    body.control_outputs = body.nodes
    graph = Graph("g", functions={"f": Function("f", body)})
    body.functions = graph.functions
    first = [graph.add_node("Print", f"first{k}") for k in range(20)]
    types = [(F32, (2,))] * 20
    attrs = {"f": FunctionReference("f")}
    call = graph.add_node("StatefulPartitionedCall", "call", control_inputs=first, attrs=attrs, output_types=types)
    for k, value in enumerate(call.outputs):
        graph.add_node("Neg", f"after{k}", inputs=[value], control_inputs=[call], output_types=[(F32, (2,))])
    edit.inline(call)
    verify(graph)
    edges = sum(len(node.control_inputs) for node in graph)
    assert edges <= 20 + 2 + 18 + 20 + 20 + 20
    for k in range(20):
        reached = backward_reachable([graph[f"after{k}"].inputs[0].producer])
        assert reached.issuperset(first)
        assert all(graph[f"call/{node.name}"] in reached for node in body)


def test_functions_of_old_list_no_effects_and_have_them_all_the_same():
    """A branch of TF1 in the body: nothing outside waits for what may be dead, but for the Merge behind it."""
    graph = from_text("""
        graph "g"
        outputs %call:0
        %x = Placeholder() : float32[2]
        %p = Placeholder() : bool[]
        %log = Print()
        %call = f(%x:0, %p:0) ^log : float32[2]
        %after = NoOp() ^call

        function "f"
        inputs %a:0, %c:0
        outputs %r:0
        %a = _Arg() : float32[2]
        %c = _Arg() : bool[]
        %r = Relu(%a:0) : float32[2]
        %switch = Switch(%a:0, %c:0) : float32[2], float32[2]
        %print = Print(%switch:1) : float32[2]
        %merge = Merge(%switch:0, %print:0) : float32[2], int32[]
        """)
    edit.inline(graph["call"])
    verify(graph)
    assert graph.outputs[0].producer.control_inputs == (graph["call/merge"],)
    assert graph["log"] in graph["call/switch"].control_inputs
    assert not graph["call/print"].control_inputs
    assert not graph["call/print"].control_consumers
    assert graph["call/merge"] in backward_reachable([graph["after"]])


def test_a_function_that_returns_its_argument_leaves_nothing_behind():
    graph = from_text("""
        graph "g"
        outputs %call:0
        %x = Placeholder() : float32[2]
        %call = PartitionedCall(%x:0) {f = @same} : float32[2]
        %after = NoOp() ^call

        function "same"
        inputs %i:0
        outputs %i:0
        %i = _Arg() : float32[2]
        """)
    edit.inline(graph["call"])
    assert graph.outputs == graph["x"].outputs
    assert graph["after"].control_inputs == (graph["x"],)
    verify(graph)
