"""How long the simulated executor takes kernels to run."""

from __future__ import annotations

import pytest

from graphwright.ir.graph import DTYPES, Graph
from graphwright.step.executor_peak import _time_of  # pyright: ignore[reportPrivateUsage]

F32, BOOL, I32, VARIANT = (DTYPES[name] for name in ("float32", "bool", "int32", "variant"))


@pytest.mark.parametrize("op_type", ["NextIteration", "Merge", "Switch", "Identity", "TensorListPopBack"])
def test_what_hands_on_a_reference_takes_no_longer_for_a_large_tensor(op_type: str) -> None:
    """The way of a weight's gradient round a loop; the sum itself takes time by its bytes."""
    times: dict[str, list[float]] = {op_type: [], "AddN": []}
    for rows in (1, 1024):
        graph = Graph()
        kind = (F32, (rows, 1024))
        x = graph.add_node("_Arg", "x", output_types=[kind]).outputs[0]
        flag = graph.add_node("_Arg", "flag", output_types=[(BOOL, ())]).outputs[0]
        held = graph.add_node("_Arg", "held", output_types=[(VARIANT, ())]).outputs[0]
        given = {"Switch": [x, flag], "TensorListPopBack": [held, flag], "Merge": [x, x]}.get(op_type, [x])
        made = {"Switch": [kind, kind], "TensorListPopBack": [(VARIANT, ()), kind], "Merge": [kind, (I32, ())]}.get(op_type, [kind])
        times[op_type].append(_time_of(graph.add_node(op_type, "handed_on", inputs=given, output_types=made)))
        times["AddN"].append(_time_of(graph.add_node("AddN", "sum", inputs=[x, x], output_types=[kind])))
    assert times[op_type][0] == times[op_type][1] < times["AddN"][0]
    assert times["AddN"][1] > 10 * times["AddN"][0]
