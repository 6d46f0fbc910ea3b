"""Bytes moved by one execution of a node."""

from __future__ import annotations

import pytest

from graphwright.ir.text import from_text
from graphwright.ops.traffic import bytes_moved


def moved(line: str, **values: str) -> int | None:
    constants = "\n".join(f"%{name} = Const() : {kind}" for name, kind in values.items())
    return bytes_moved(from_text(f'graph "g"\n{constants}\n%y = {line}')["y"])


@pytest.mark.parametrize(
    ("line", "values", "expected"),
    [
        ("MatMul(%a:0, %b:0) : float32[3,5]", {"a": "float32[3,4]", "b": "float32[4,5]"}, 4 * (12 + 20 + 15)),
        ("Mul(%a:0, %a:0) : float32[6]", {"a": "float32[6]"}, 4 * (6 + 6)),  # one input, read once
        ("Reshape(%a:0, %s:0) : float32[6]", {"a": "float32[2,3]", "s": "int32[1]"}, 0),
        ("GatherV2(%t:0, %i:0) : float32[2,8]", {"t": "float32[1000,8]", "i": "int32[2]"}, 2 * 64 + 8),
        ("Fill(%s:0, %v:0) : float32[10]", {"s": "int32[1]", "v": "float32[]"}, 40),
        ("ResourceApplyAdam(%w:0, %m:0, %v:0, %lr:0, %g:0)", {"w": "resource[]", "m": "resource[]", "v": "resource[]", "lr": "float32[]",
                                                            "g": "float32[10]"}, 40 + 4 + 3 * 2 * 40),
        ("AssignVariableOp(%w:0, %x:0)", {"w": "resource[]", "x": "float32[10]"}, 80),
        ("AssignAddVariableOp(%w:0, %x:0)", {"w": "resource[]", "x": "float32[10]"}, 120),
        ("TensorListPushBack(%l:0, %x:0) : variant[]", {"l": "variant[]", "x": "float32[10]"}, 0),
        ("Relu(%x:0) : float32[?]", {"x": "float32[?]"}, None),
        ("StringLength(%x:0) : int32[5]", {"x": "string[5]"}, 20),
    ],
)  # fmt: skip
def test_bytes(line, values, expected):
    assert moved(line, **values) == expected
