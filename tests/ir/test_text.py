"""What is printed is parsed again, and what cannot be parsed says where and why."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from graphwright.errors import FileFormatError
from graphwright.ir.attributes import SerializedAttribute
from graphwright.ir.constants import array_of, tensor_attribute
from graphwright.ir.graph import Graph
from graphwright.ir.text import format_attribute, from_text, to_text
from graphwright.ir.verify import verify
from tests.ir.graphs import graphs


@given(graphs())
def test_the_text_form_holds_all_of_a_graph(graph):
    again = from_text(to_text(graph))
    verify(again)
    assert to_text(again) == to_text(graph)
    for ours, theirs in zip(graph, again, strict=True):
        assert (ours.name, ours.op_type, ours.attrs, ours.device, ours.extra) == (
            theirs.name,
            theirs.op_type,
            theirs.attrs,
            theirs.device,
            theirs.extra,
        )
        assert [(v.dtype, v.shape) for v in ours.outputs] == [(v.dtype, v.shape) for v in theirs.outputs]
    assert {v.name: variable for v, variable in graph.variables.items()} == {v.name: variable for v, variable in again.variables.items()}
    assert [(f.name, f.definition) for f in graph.functions.values()] == [(f.name, f.definition) for f in again.functions.values()]


def test_what_a_person_may_write():
    graph = from_text("""
        # a comment, blank lines, lines in another order than the edges, spaces
        graph "g"

        inputs   %x:0
        outputs %y:0
        %y = AddN(%x:0,%c:0)^log{N=2}:float32[2]     # to the right too
        %log = Print()
        %c = Const() {value = tensor float32[2] [1, -0.5]} : float32[2]
        %x = Placeholder() : float32[*]
        """)
    assert [node.name for node in graph] == ["y", "log", "c", "x"]
    assert graph["y"].control_inputs == (graph["log"],)
    assert graph["x"].outputs[0].shape is None
    assert array_of(graph["c"].attrs["value"]).tolist() == [1.0, -0.5]
    verify(graph)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 2)])
def test_constant_tensors_show_their_elements(dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) / 3).astype(dtype).reshape(shape)
    attribute = tensor_attribute(array)
    text = format_attribute(attribute)
    assert text.startswith(f"tensor {dtype}[")
    again = from_text(f'graph ""\n%c = Const() {{value = {text}}}')["c"].attrs["value"]
    assert again == attribute


@pytest.mark.parametrize("array", [np.array([np.nan], np.float32), np.array([1j], np.complex64)])
def test_constants_that_decimals_cannot_hold_stay_bytes(array):
    assert format_attribute(tensor_attribute(array)).startswith("0x")


@pytest.mark.parametrize("data", [b"", b"\x0a", b"\x42\x01", b"\x42\x04\x08\x03\x22\x01\x00", b"\xff" * 12])
def test_bytes_that_are_no_tensor_stay_bytes(data):
    assert array_of(SerializedAttribute(data)) is None
    assert format_attribute(SerializedAttribute(data)) == f"0x{data.hex()}"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "the text holds no graph"),
        ("%a = Const()", "does not start with a line"),
        ('graph "g"\nnodes 3', "neither a node nor a line"),
        ('graph "g"\n%a = Const() : float31[2]', "there is no data type 'float31'"),
        ('graph "g"\n%a = Const( : float32[2]', r"`%` is expected here"),
        ('graph "g"\n%a = Const() : float32[2', r"`\]` is expected here"),
        ('graph "g"\n%a = Const() : float32[2]]', "the line goes on after its end"),
        ('graph "g"\n%a = Neg(%b:0) : float32[2]', "there is no node %b"),
        ('graph "g"\n%b = Const()\n%a = Neg(%b:0) : float32[2]', r"there is no value %b:0"),
        ('graph "g"\n%a = Neg(%b:0) : int32[]\n%b = Neg(%a:0) : int32[]', "nodes wait for each other"),
        ('graph "g"\n%a = NoOp()\n%a = NoOp()', "two nodes are named 'a'"),
        ('graph "g"\noutputs %a:0', "there is no node %a"),
        ('graph "g"\ncontrol_outputs %a', "there is no node %a"),
        ('graph "g"\nfunction "f"\nfunction "f"', "two functions are named 'f'"),
        ('graph "g"\n%a = Const() {value = tensor int32[3] [1, 2]}', "these elements make no tensor"),
        ('graph "g"\n%a = Const() {value = tensor int32[?] [1, 2]}', "must be known"),
        ('graph "g"\n%a = Const() {s = "open}', "an attribute or type is expected|a string in double quotes is expected"),
    ],
)
def test_errors_name_the_line(lines, message):
    with pytest.raises(FileFormatError, match=message) as caught:
        from_text(lines)
    assert "line" in str(caught.value)


@pytest.mark.parametrize(
    "line", ["outputs %lost:0", "control_outputs %lost", 'signature "s" () ("y" = %lost:0)', 'collection "c" nodes [%lost]', "%a = A() ^a"]
)
def test_what_a_line_names_is_looked_up_for_that_line(line):
    with pytest.raises(FileFormatError) as caught:
        from_text(f'graph "g"\n\n# a comment\n{line}\n%x = NoOp()')
    assert "line 4" in str(caught.value)


def test_the_text_of_an_empty_graph():
    assert to_text(Graph()) == 'graph ""\n\n'
    assert to_text(from_text(to_text(Graph()))) == 'graph ""\n\n'
