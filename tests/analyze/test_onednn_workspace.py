"""What oneDNN's kernels allocate beyond their outputs, products of two matrices above all."""

from __future__ import annotations

import pytest

from graphwright.analyze.onednn_workspace import gemm_workspace_bytes, onednn_workspace_bytes
from graphwright.analyze.workspace import workspace_bytes
from graphwright.ir.graph import Node
from graphwright.ir.text import from_text

MIB = 2**20
PRODUCT = """graph "g"
inputs %a:0, %b:0
outputs %c:0
%a = Placeholder() : {dtype}[{first}]
%b = Placeholder() : {dtype}[{second}]
%c = {op_type}(%a:0, %b:0){attrs} : {dtype}[{rows},{columns}]
"""


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def product(rows: int | str, inner: int, columns: int, flags: str = "", dtype: str = "float32", op_type: str = "MatMul") -> Node:
    first = f"{inner},{rows}" if "a" in flags else f"{rows},{inner}"
    second = f"{columns},{inner}" if "b" in flags else f"{inner},{columns}"
    attrs = f" {{transpose_a={str('a' in flags).lower()}, transpose_b={str('b' in flags).lower()}}}"
    text = PRODUCT.format(dtype=dtype, first=first, second=second, op_type=op_type, attrs=attrs, rows=rows, columns=columns)
    return from_text(text)["c"]


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "flags", "threads", "asked"),  # asked of malloc in MiB, counted by a hook; 0.15 of it is not written
    [
        (1024, 192, 8000, "b", 2, 6.52),
        (1024, 192, 8000, "", 1, 6.18),
        (1024, 1024, 1024, "a", 2, 4.27),
        (1024, 1024, 1024, "b", 1, 2.14),
        (2048, 2048, 512, "b", 1, 1.36),
        (4096, 256, 4096, "", 2, 8.86),
        (2000, 300, 2000, "a", 2, 5.54),
        (20000, 128, 1024, "", 2, 1.45),
        (1024, 128, 20000, "", 2, 10.17),
        (700, 128, 20000, "", 2, 10.17),
        (1024, 512, 1024, "", 2, 2.86),
        (192, 1024, 8000, "a", 2, 0),
        (600, 2000, 3000, "", 2, 0),
        (64, 1024, 1024, "b", 2, 0),
        (3000, 4000, 48, "", 2, 0),
        (1, 1024, 8192, "b", 2, 0),
    ],
)
def test_the_bound_of_packed_panels_covers_what_was_counted(
    rows: int, inner: int, columns: int, flags: str, threads: int, asked: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: threads)
    bound = gemm_workspace_bytes(product(rows, inner, columns, flags)) / MIB
    assert asked - 0.15 <= bound <= asked + 6
    assert gemm_workspace_bytes(product(rows, inner, columns, flags, op_type="_FusedMatMul")) == bound * MIB


@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "window", "stride", "measured"),
    [
        (1, 64, 128, 3, 1, 20.97),
        (1, 128, 64, 3, 1, 42.03),
        (1, 64, 64, 4, 1, 36.64),
        (1, 512, 64, 2, 1, 76.39),
        (1, 128, 64, 3, 2, 10.49),
        (1, 96, 64, 3, 1, 0.09),  # its filter is less than half of the cache
        (1, 32, 64, 5, 1, 0.22),
        (1, 512, 64, 1, 1, 0.0),  # patches of one are the image
        (4, 128, 64, 3, 1, 0.28),  # the filter in blocks
    ],
)
def test_patches_of_one_image_are_a_matrix_without_avx512(
    batch: int, channels: int, outputs: int, window: int, stride: int, measured: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sysconf", lambda _: 512 << 10)
    side = (100 - window) // stride + 1
    graph = from_text(f"""graph "g"
        inputs %x:0, %w:0
        outputs %y:0
        %x = Placeholder() : float32[{batch},100,100,{channels}]
        %w = Placeholder() : float32[{window},{window},{channels},{outputs}]
        %y = Conv2D(%x:0, %w:0) : float32[{batch},{side},{side},{outputs}]
        """)
    assert onednn_workspace_bytes(graph["y"], avx512=False) / MIB == pytest.approx(measured, abs=0.25)
    assert onednn_workspace_bytes(graph["y"]) == (0 if batch == 1 else graph["w"].outputs[0].nbytes)


def test_a_short_side_is_read_in_place_unless_its_columns_lie_a_page_apart() -> None:
    assert gemm_workspace_bytes(product(200, 600, 1024)) == 0
    assert gemm_workspace_bytes(product(200, 600, 1024, "a")) > 0


def test_bfloat16_adds_up_in_float32_where_a_bias_is_fused() -> None:
    fused = product(2048, 512, 2048, dtype="bfloat16", op_type="_FusedMatMul")
    assert gemm_workspace_bytes(fused) == 4 * 2048 * 2048
    assert gemm_workspace_bytes(fused, amx=True) == 0
    assert gemm_workspace_bytes(product(2048, 512, 2048, dtype="bfloat16")) == 0


def test_only_a_cpu_packs_and_only_what_has_a_known_shape() -> None:
    logits = product(1024, 192, 8000, "b")
    assert workspace_bytes(logits) >= 8000 * 192 * 4
    assert onednn_workspace_bytes(logits) == 0  # which holds for a GPU too
    assert workspace_bytes(product("?", 192, 8000)) == 0
    assert gemm_workspace_bytes(product(0, 192, 8000)) == gemm_workspace_bytes(product(1024, 0, 8000)) == 0


BATCHED = """graph "g"
inputs %a:0, %b:0
outputs %c:0
%a = Placeholder() : float32[4,{n},{n}]
%b = Placeholder() : float32[4,{n},{n}]
%c = BatchMatMulV2(%a:0, %b:0) {{adj_x={adj_x}, adj_y={adj_y}}} : float32[4,{n},{n}]
"""


@pytest.mark.parametrize(
    ("n", "adj_x", "asked"),
    [(128, True, 0.14), (256, True, 0.51), (512, True, 1.30), (1024, True, 1.30), (128, False, 0.08), (1024, False, 0.26)],
)
def test_a_batched_product_repacks_no_more_than_its_threads_take_at_once(n: int, adj_x: bool, asked: float) -> None:
    node = from_text(BATCHED.format(n=n, adj_x=str(adj_x).lower(), adj_y=str(not adj_x).lower()))["c"]
    assert asked - 0.06 <= workspace_bytes(node) / MIB <= asked
