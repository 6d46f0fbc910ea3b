"""Which values are the same whatever nodes make them."""

from __future__ import annotations

import pytest

from graphwright.ir.text import from_text
from graphwright.ir.traits.effects import Purity
from graphwright.transform.cancel_reshapes import cancel_reshapes
from graphwright.transform.proof import Original

BACK = """
graph "back"
inputs %x:0, %s:0, %t:0
outputs %relu:0
%x = Placeholder() : float32[6]
%s = Placeholder() : int32[2]
%t = Placeholder() : int32[1]
%y = Reshape(%x:0, %s:0) {T = float32, Tshape = int32} : float32[2,3]
%z = Reshape(%INNER:0, %t:0) {T = float32, Tshape = int32} : float32[6]
%relu = Relu(%z:0) {T = float32} : float32[6]
"""
TURNED = """%p = Placeholder() : int32[2]
%u = Transpose(%y:0, %p:0) {T = float32, Tperm = int32} : float32[3,2]
%z ="""


@pytest.mark.parametrize(("text", "cancelled"), [(BACK.replace("INNER", "y"), 1), (BACK.replace("%z =", TURNED).replace("INNER", "u"), 0)])
def test_a_reshape_that_leads_back_is_what_it_was_before(text: str, cancelled: int) -> None:
    graph = from_text(text)
    original = Original(graph, Purity(graph, {}))
    assert cancel_reshapes(graph) == cancelled
    assert original.compare(graph, Purity(graph, {})).equal
    graph.replace_inputs(graph["relu"], [graph.value("x")])
    for value in (value for node in graph for value in node.outputs):
        value.shape = None  # what the original knows of shapes is enough
    assert original.compare(graph, Purity(graph, {})).equal == bool(cancelled)
