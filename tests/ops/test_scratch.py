"""Bounds on what kernels allocate beyond their outputs, held against high-water marks of two threads."""

from __future__ import annotations

import pytest

from graphwright.analyze.cost import build_cost_graph
from graphwright.analyze.time_model import estimated_time_s
from graphwright.errors import UnknownShapeError
from graphwright.ir.text import from_text
from graphwright.ir.traits.effects import Purity
from graphwright.ops.pooling import hidden_output_bytes
from graphwright.ops.scratch import scratch_bytes

MIB = 2**20


@pytest.fixture(autouse=True)
def with_onednn_avx512_and_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("graphwright.ops.machine.cpu_has", lambda any_of: "avx512f" in any_of)
    for module in ("contraction", "convolution"):
        monkeypatch.setattr(f"graphwright.ops.{module}.cpu_has", lambda any_of: "avx512f" in any_of)


def scratch(op_type: str, shapes: str, output: str, dtype: str = "float32", attrs: str = "", *, on_gpu: bool = False) -> int:
    """The scratch of an operation on inputs of shapes that are apart by spaces; "=4" is four sizes."""
    lines = ['graph "g"']
    for k, shape in enumerate(shapes.split()):
        kind = f"int32[{shape[1:]}]" if shape.startswith("=") else f"{dtype}[{shape.strip('()')}]"
        lines.append(f"%x{k} = Placeholder() : {kind}")
    inputs = ", ".join(f"%x{k}:0" for k in range(len(lines) - 1))
    types = ", ".join(f"{dtype}[{shape}]" for shape in output.split())
    node = from_text("\n".join([*lines, f"%y = {op_type}({inputs}) {{{attrs}}} : {types}"]))["y"]
    return scratch_bytes(node, on_gpu=on_gpu)


@pytest.mark.parametrize(
    ("op_type", "shapes", "output", "dtype", "attrs", "measured", "slack"),  # in MiB
    [
        # oneDNN copies filters, into blocks of channels per group.
        ("Conv2D", "2,8,8,8 3,3,8,16", "2,8,8,16", "float32", "", 0.0043, 0.001),
        ("Conv2D", "1,8,8,8 3,3,8,16", "1,8,8,16", "float32", "", 0, 0.005),
        ("Conv2D", "8,16,16,256 3,3,2,256", "8,16,16,256", "float32", "", 1.1, 0.1),
        ("Conv2D", "8,16,16,256 3,3,256,256", "8,16,16,256", "bfloat16", "", 1.1, 0.1),
        ("Conv2DBackpropInput", "=4 5,5,1,768 8,16,16,768", "8,16,16,48", "float32", "", 1.06, 0.15),
        ("Conv2DBackpropFilter", "8,16,16,256 =4 8,16,16,256", "3,3,256,256", "float32", "", 2.21, 0.1),
        ("Conv2DBackpropFilter", "8,16,16,256 =4 8,16,16,256", "3,3,256,256", "bfloat16", "", 3.37, 0.1),
        ("DepthwiseConv2dNative", "8,32,32,128 7,7,128,1", "8,32,32,128", "float32", "", 0.0239, 0.01),
        ("DepthwiseConv2dNative", "8,32,32,64 5,5,64,3", "8,32,32,192", "float32", "", 1.56, 0.1),
        ("DepthwiseConv2dNativeBackpropFilter", "8,7,7,576 =4 8,7,7,576", "5,5,576,1", "float32", "", 14.0, 0.2),
        ("DepthwiseConv2dNativeBackpropFilter", "8,7,7,576 =4 8,7,7,576", "3,3,576,1", "float32", "", 0.019, 0.01),
        # Its threads pack panels of large products.
        ("MatMul", "1024,192 8000,192", "1024,8000", "float32", "transpose_b=true", 6.37, 0.6),
        ("MatMul", "1024,1024 1024,1024", "1024,1024", "float32", "transpose_a=true", 4.12, 1),
        ("MatMul", "20000,128 128,1024", "20000,1024", "float32", "", 1.3, 0.3),
        ("_FusedMatMul", "1024,128 128,20000", "1024,20000", "float32", "", 10.02, 0.3),
        ("MatMul", "600,2000 2000,3000", "600,3000", "float32", "", 0, 6),
        ("MatMul", "64,1024 1024,1024", "64,1024", "float32", "", 0, 0),
        ("_FusedMatMul", "2048,512 512,2048", "2048,2048", "bfloat16", "", 16, 0),
        ("BatchMatMulV2", "4,128,128 4,128,128", "4,128,128", "float32", "adj_x=true", 0.08, 0.06),
        ("BatchMatMulV2", "4,1024,1024 4,1024,1024", "4,1024,1024", "float32", "adj_x=true", 1.25, 0.1),
        ("BatchMatMulV2", "4,128,128 4,128,128", "4,128,128", "float32", "", 0, 0),
        # Without oneDNN, images are unfolded, operands packed, and halves computed in float32.
        ("Conv2DBackpropFilter", "8,16,16,256 =4 8,16,16,64", "3,3,256,64", "float16", "", 11.99, 7),
        ("Conv2DBackpropFilter", "8,28,28,128 =4 8,28,28,128", "3,3,128,128", "float64", "", 27, 30),
        ("MatMul", "2048,512 512,512", "2048,512", "float16", "", 9, 3),
        ("DepthwiseConv2dNativeBackpropFilter", "8,7,7,576 =4 8,7,7,576", "5,5,576,1", "float16", "", 0.24, 0.02),
        ("MaxPoolGrad", "8,32,32,64 8,16,16,64 8,16,16,64", "8,32,32,64", "float16", "", 1.25, 0),
        # Eigen alone.
        ("Cumsum", "64,48 ()", "64,48", "float32", "", 3 / 256, 0),
        ("SoftmaxCrossEntropyWithLogits", "64,48 64,48", "64 64,48", "float32", "", 3 / 256, 0),
        ("LRN", "4,4,4,48", "4,4,4,48", "float32", "", 6 / 256, 0),
        ("Mul", "2048,48 48", "2048,48", "float32", "", 108 / 1024, 0),
        ("Mul", "256,48 48", "256,48", "float32", "", 48 / 1024, 0),
        ("Mul", "6144,48 6144,48", "6144,48", "float32", "", 0, 0),
        ("SelectV2", "6144,48 6144,48 48", "6144,48", "float32", "", 4 * 108 / 1024, 0),
        ("Relu", "6144,48", "6144,48", "float32", "", 0, 0),
        ("MatMul", "?,192 192,8000", "?,8000", "float32", "", 0, 0),
    ],
)
def test_bounds_lie_little_above_what_was_measured(
    op_type: str, shapes: str, output: str, dtype: str, attrs: str, measured: float, slack: float
) -> None:
    assert measured <= scratch(op_type, shapes, output, dtype, attrs) / MIB <= measured + slack


@pytest.mark.parametrize(
    ("shapes", "output", "measured"), [("1,100,100,64 3,3,64,128", "1,98,98,128", 20.97), ("1,100,100,96 3,3,96,64", "1,98,98,64", 0.09)]
)
def test_without_avx512_a_single_image_is_unfolded_if_the_filter_is_large(
    shapes: str, output: str, measured: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphwright.ops.convolution.cpu_has", lambda any_of: False)
    assert measured <= scratch("Conv2D", shapes, output) / MIB <= measured + 0.3


def test_a_gpu_copies_filters_and_packs_no_products() -> None:
    assert scratch("Conv2D", "2,8,8,8 3,3,8,16", "2,8,8,16", on_gpu=True) == 3 * 3 * 8 * 16 * 4
    assert scratch("MatMul", "1024,192 192,8000", "1024,8000", on_gpu=True) == 0


def test_bfloat16_is_onednns_where_the_processor_has_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scratch("MatMul", "2048,512 512,512", "2048,512", "bfloat16") == 0
    monkeypatch.setattr("graphwright.ops.machine.cpu_has", lambda any_of: False)
    assert scratch("MatMul", "2048,512 512,512", "2048,512", "bfloat16") > 9 * MIB


@pytest.mark.parametrize(("dtype", "onednn", "hidden"), [("float32", "1", 131072), ("float32", "0", 0), ("float16", "1", 0)])
def test_only_onednn_notes_where_maxima_lie(dtype: str, onednn: str, hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", onednn)
    graph = from_text(f"""graph "g"
        %x = Placeholder() : {dtype}[8,32,32,64]
        %dy = Placeholder() : {dtype}[8,16,16,64]
        %y = MaxPool(%x:0) : {dtype}[8,16,16,64]
        %g = MaxPoolGrad(%x:0, %y:0, %dy:0) : {dtype}[8,32,32,64]
        """)
    assert hidden_output_bytes(graph["y"].outputs[0]) == hidden


SIZES = dict(zip("abcdehinsu", (512, 8, 512, 32, 4, 128, 256, 4, 128, 128), strict=True), t=1024)


@pytest.mark.parametrize(
    ("equation", "measured", "slack"),  # KiB
    [
        ("th,ehi->eti", 512 + 4096, 0),  # weights of each expert, and the product, which has the tokens first
        ("eti,ehi->th", 4096 + 512, 512),
        ("eti,eih->eht", 2048, 0),
        ("bshd,buhd->bhsu", 16384 + 16384, 0),
        ("bsnd,bsh->hnd", 64, 64),
        ("...sh,hi->...si", 0, 0),
        ("bac->bca", 0, 0),
        ("bac,ac->bc", 8192, 1100),
    ],
)
@pytest.mark.parametrize("onednn", ["0", "1"])
def test_einsum_copies_what_is_in_another_order_than_its_kernel_needs(
    equation: str, measured: int, slack: int, onednn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", onednn)
    inputs, output = equation.replace("...", "b").split("->")
    shapes = [",".join(str(SIZES[label]) for label in labels) for labels in (*inputs.split(","), output)]
    counted = scratch("Einsum", " ".join(shapes[:-1]), shapes[-1], attrs=f'equation="{equation}"')
    assert measured <= counted / 1024 <= measured + slack


NORM = """graph "g"
inputs %x:0, %s:0
outputs %y:0
%x = Placeholder() : float32[32,8,8,8]
%s = Placeholder() : float32[8]
%y = {op_type}(%x:0, %s:0, %s:0, %s:0, %s:0) : float32[32,8,8,8], float32[8], float32[8], float32[8], float32[8], float32[?]
"""


def test_only_the_scratch_of_batch_norms_may_have_no_known_size() -> None:
    graph = from_text(NORM.format(op_type="FusedBatchNormV3"))
    tasks = build_cost_graph(graph, Purity(graph, {"FusedBatchNormV3": False}), estimated_time_s)
    assert sum(b.nbytes for b in tasks.costs.buffers) < 33 * 8 * 8 * 8 * 4
    graph = from_text(NORM.format(op_type="Other"))
    with pytest.raises(UnknownShapeError, match="y:5"):
        build_cost_graph(graph, Purity(graph, {"Other": False}), estimated_time_s)
