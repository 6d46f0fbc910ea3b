"""Times that plans are priced by: only ratios count."""

import pytest

from graphwright.analyze.time_model import estimated_time_s
from graphwright.ir.graph import DTYPES, Graph
from graphwright.ir.text import from_text

SIZE = (1024, 1024)


def time_of(op_type, dtype, result=None):
    graph = Graph()
    a, b = (graph.add_node("Placeholder", name, output_types=[(DTYPES[dtype], SIZE)]).outputs[0] for name in "ab")
    return estimated_time_s((graph.add_node(op_type, "c", inputs=[a, b], output_types=[(DTYPES[result or dtype], SIZE)]),))


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_products_gain_by_16_bits_and_arithmetic_by_elements_does_not(narrow):
    assert time_of("MatMul", narrow) < 0.5 * time_of("MatMul", "float32")
    for op_type, result in (("Mul", None), ("AddV2", None), ("GreaterEqual", "bool")):
        assert time_of(op_type, narrow, result) > 2 * time_of(op_type, "float32", result)


def test_time_grows_with_the_work_and_never_vanishes():
    def time_of(size: int) -> float:
        graph = from_text(f'graph "g"\n%a = Const() : float32[{size},{size}]\n%y = MatMul(%a:0, %a:0) : float32[{size},{size}]')
        return estimated_time_s((graph["y"],))

    assert 0 < time_of(1) < time_of(100) < time_of(1000)
    assert 800 < time_of(4000) / time_of(400) < 1000
    unknown = from_text('graph "g"\n%y = Mystery() : float32[?]')["y"]
    assert estimated_time_s((unknown,)) > 0
    assert estimated_time_s((unknown, unknown)) == 2 * estimated_time_s((unknown,))
