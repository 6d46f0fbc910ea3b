"""What counts as pure, as a view, as written. An op that nobody knows has effects."""

from __future__ import annotations

import pytest

from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text
from graphwright.ir.traits.control_flow import result_functions
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import SAME_NUMBERS, origin
from graphwright.ir.traits.variables import resource_of, written_references, written_resources
from graphwright.ir.traits.views import is_view

STATEFUL = {"Relu": False, "Neg": False, "MatMul": False, "Custom": True, "RandomUniform": True, "TensorListReserve": False}


def graph_of(line: str, functions: str = "") -> Graph:
    return from_text(f"""
        graph "g"
        %x = Placeholder() : float32[4]
        %w = Placeholder() : resource[]
        {line}
        {functions}
        """)


def is_pure(line: str, functions: str = "") -> bool:
    graph = graph_of(line, functions)
    return Purity(graph, STATEFUL).is_pure(graph["y"])


PURE_BODY = """
        function "f"
        inputs %a:0
        %a = _Arg() : float32[4]
        %r = Relu(%a:0) : float32[4]
"""


@pytest.mark.parametrize(
    ("line", "functions", "expected"),
    [
        ("%y = Relu(%x:0) : float32[4]", "", True),
        ("%y = Unheard(%x:0) : float32[4]", "", False),
        ("%y = Custom(%x:0) : float32[4]", "", False),
        ("%y = RandomUniform(%x:0) : float32[4]", "", False),
        ("%y = ReadVariableOp(%w:0) : float32[4]", "", True),
        ("%y = ResourceGather(%w:0, %x:0) : float32[4]", "", True),
        ("%y = AssignAddVariableOp(%w:0, %x:0)", "", False),
        ("%y = Relu(%w:0) : float32[4]", "", False),
        ("%y = If(%x:0) {then_branch = @f, else_branch = @f} : float32[4]", PURE_BODY, True),
        ("%y = Case(%x:0) {branches = [@f, @f 0x0a0166]} : float32[4]", PURE_BODY, True),
        ("%y = While(%x:0) {body = @f, cond = @lost} : float32[4]", PURE_BODY, False),
        ("%y = Case(%x:0) : float32[4]", "", False),  # nothing is known of its branches
        ("%y = MapDefun(%x:0) {f = @f} : float32[4]", PURE_BODY, False),
        ("%y = If(%x:0) {then_branch = @f, else_branch = @f} : float32[4]", PURE_BODY + "%n = Custom(%a:0)", False),
        ("%y = If(%x:0) {then_branch = @f, else_branch = @f} : float32[4]", PURE_BODY + "%n = If(%a:0) {then_branch = @f}", False),
        ("%y = StatefulPartitionedCall(%x:0) {f = @f} : float32[4]", PURE_BODY, True),
    ],
)
def test_purity(line, functions, expected):
    assert is_pure(line, functions) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%y = Reshape(%x:0, %x:0) : float32[2,2]", True),
        ("%y = Cast(%x:0) : float32[4]", True),
        ("%y = Cast(%x:0) : int32[4]", False),
        ("%y = Sum(%x:0) : float32[]", False),
        ("%y = Sum(%x:0) : float32[4]", True),
        ("%y = StridedSlice(%x:0) : float32[4]", True),
        ("%y = StridedSlice(%x:0) : float32[2,2]", False),
        ("%y = Relu(%x:0) : float32[4]", False),
    ],
)
def test_views(line, expected):
    assert is_view(graph_of(line)["y"]) == expected


def test_resources_are_followed_to_their_source():
    graph = graph_of("%i = Identity(%w:0) : resource[]\n%l = While(%x:0, %i:0) : float32[4], resource[]\n%y = AssignVariableOp(%l:1, %x:0)")
    assert resource_of(graph["y"].inputs[0]) is graph["w"].outputs[0]
    assert written_resources(graph["y"]) == (graph["l"].outputs[1],)
    assert written_resources(graph["i"]) == ()


def test_an_optimizer_kernel_writes_all_of_its_resources():
    graph = graph_of("%m = Placeholder() : resource[]\n%y = ResourceApplyMomentum(%w:0, %m:0, %x:0)")
    assert [v.name for v in written_resources(graph["y"])] == ["w:0", "m:0"]


def test_the_functions_that_give_a_node_its_results():
    graph = from_text("""
        graph "g"
        %call = PartitionedCall() {f = @inner, other = @unused}
        %named = inner()
        %if = StatelessIf() {then_branch = @inner, else_branch = @outer}
        %case = Case() {branches = [@inner, @outer]}
        %loop = While() {cond = @outer, body = @inner}
        %map = MapDataset() {f = @inner}

        function "inner"

        function "outer"
        """)
    found = {node.name: result_functions(node) for node in graph}
    assert found.pop("map") == ("MapDataset",)
    assert found == {
        "call": ("inner",),
        "named": ("inner",),
        "if": ("inner", "outer"),
        "case": ("inner", "outer"),
        "loop": ("inner",),
    }


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("Assign", 1),
        ("AssignSub", 1),
        ("ScatterNdUpdate", 1),
        ("StridedSliceAssign", 1),
        ("CountUpTo", 1),
        ("ApplyMomentum", 2),
        ("SparseApplyAdagrad", 2),
        ("ScatterNd", 0),
        ("Add", 0),
    ],
)
def test_what_is_written_by_reference(op_type, expected):
    node = graph_of(f"%v = VariableV2() : float32[4]\n%y = {op_type}(%v:0, %x:0) : float32[4]")["y"]
    assert written_references(node) == node.inputs[:expected]


def test_a_variable_with_a_handle_is_not_written_by_reference():
    assert written_references(graph_of("%y = AssignAddVariableOp(%w:0, %x:0)")["y"]) == ()


def test_a_value_is_followed_through_each_output_of_its_own():
    graph = graph_of(
        "%i = IdentityN(%x:0, %w:0) : float32[4], resource[]\n%r = Reshape(%i:0) : float32[2,2]\n%s = Switch(%r:0) : float32[2,2]"
    )
    assert origin(graph["i"].outputs[1]) is graph["w"].outputs[0]
    assert origin(graph["r"].outputs[0]) is graph["r"].outputs[0]
    assert origin(graph["r"].outputs[0], SAME_NUMBERS) is graph["x"].outputs[0]
    assert origin(graph["s"].outputs[0], SAME_NUMBERS) is graph["s"].outputs[0]
