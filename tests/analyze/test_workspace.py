"""What kernels allocate beyond their outputs."""

from __future__ import annotations

import pytest

from graphwright.analyze.cost import build_cost_graph
from graphwright.analyze.time_model import estimated_time_s
from graphwright.analyze.workspace import workspace_bytes
from graphwright.errors import UnknownShapeError
from graphwright.ir.text import from_text
from graphwright.ir.traits import Purity

FILTER_BYTES = 3 * 3 * 8 * 16 * 4
CONVOLUTION = """graph "g"
inputs %x:0, %w:0
outputs %y:0
%x = Placeholder() : {dtype}[{batch},8,8,8]
%w = Placeholder() : {dtype}[3,3,8,16]
%y = {op_type}(%x:0, %w:0) : {dtype}[{batch},8,8,16]
"""
NORM = """graph "g"
inputs %x:0, %s:0
outputs %y:0
%x = Placeholder() : float32[32,8,8,8]
%s = Placeholder() : float32[8]
%y = {op_type}(%x:0, %s:0, %s:0, %s:0, %s:0) : float32[32,8,8,8], float32[8], float32[8], float32[8], float32[8], float32[?]
"""


@pytest.mark.parametrize(
    ("op_type", "dtype", "batch", "copied"),
    [
        ("Conv2D", "float32", 2, FILTER_BYTES),
        ("Conv2D", "float32", 1, 0),
        ("_FusedConv2D", "float32", 1, 0),
        ("Conv2D", "bfloat16", 1, FILTER_BYTES // 2),
        ("DepthwiseConv2dNative", "float32", 1, FILTER_BYTES),
        ("Relu", "float32", 2, 0),
    ],
)
def test_a_convolution_copies_its_filter_but_for_a_single_image(op_type: str, dtype: str, batch: int, copied: int) -> None:
    graph = from_text(CONVOLUTION.format(op_type=op_type, dtype=dtype, batch=batch))
    assert workspace_bytes(graph["y"]) == copied


def test_only_the_scratch_of_batch_norms_may_have_no_known_size() -> None:
    graph = from_text(NORM.format(op_type="FusedBatchNormV3"))
    tasks = build_cost_graph(graph, Purity(graph, {"FusedBatchNormV3": False}), estimated_time_s)
    assert sum(b.nbytes for b in tasks.costs.buffers) < 33 * 8 * 8 * 8 * 4
    graph = from_text(NORM.format(op_type="Other"))
    with pytest.raises(UnknownShapeError, match="y:5"):
        build_cost_graph(graph, Purity(graph, {"Other": False}), estimated_time_s)
