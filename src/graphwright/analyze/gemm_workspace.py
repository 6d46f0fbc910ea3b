"""Bytes that oneDNN's products of two matrices allocate beyond the output.

TensorFlow computes float32 `MatMul` and `_FusedMatMul` on the CPU by `dnnl_sgemm`, whose kernels read the operands where they lie, or each
thread packs panels of both. Which, and how large, is read off oneDNN's `src/cpu/x64/gemm/gemm_driver.cpp` (`nocopy_checker_avx512`,
`nocopy_checker_avx2`, `set_thread_opts_nopack`, `gemm_kernel_driver`) and `gemm_info.cpp`, for threads that do not wait for each other, as
TensorFlow's; and checked against measurements (docs/predicting-peaks.md has the table). Counted is what is written when all threads run
at once. In bfloat16 a `_FusedMatMul` without AMX adds up in float32 (`gemm_bf16_inner_product.cpp`); a `MatMul` takes little.

oneDNN sees matrices by columns, so its first matrix is TensorFlow's second: here `m` are the output's columns, `n` its rows, and `k` is
what is summed over.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from graphwright.ir.graph import Node

_FLOAT32 = 4
_COLUMNS_AT_ONCE, _COLUMNS_OF_SHORT_SUMS, _SHORT_SUM = 384, 24, 48
_MANY = 378  # rows, columns or terms for each thread from which on packing pays


class _Cpu(NamedTuple):
    """Constants of oneDNN's kernels: `least` is the sum 1/m + 1/n from which on nothing is packed."""

    least: float
    lanes: int
    rows: int  # that a kernel computes at once
    rows_packed: int
    terms_packed: int
    terms_undivided: int


_AVX512 = _Cpu(least=0.00196, lanes=16, rows=48, rows_packed=9984, terms_packed=384, terms_undivided=384)
_AVX2 = _Cpu(least=0.0038, lanes=8, rows=24, rows_packed=10000, terms_packed=192, terms_undivided=256)


def gemm_workspace_bytes(node: Node, *, avx512: bool = True, amx: bool = False) -> int:
    """Bytes allocated while a `MatMul` or `_FusedMatMul` runs under oneDNN; 0 for other nodes, and for unknown shapes.

    `avx512` and `amx` say what the processor has; without AVX-512 it is taken to have AVX2.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> a = g.add_node("Const", "a", output_types=[(f32, (1024, 192))]).outputs[0]
    >>> b = g.add_node("Const", "b", output_types=[(f32, (8000, 192))]).outputs[0]
    >>> logits = g.add_node("MatMul", "c", inputs=[a, b], attrs={"transpose_b": True}, output_types=[(f32, (1024, 8000))])
    >>> b.nbytes < gemm_workspace_bytes(logits) < 1.2 * b.nbytes
    True
    """
    if node.op_type not in ("MatMul", "_FusedMatMul"):
        return 0
    first, out = node.inputs[0].shape, node.outputs[0].shape
    if first is None or out is None or None in (*first, *out):
        return 0
    transposed = node.attrs.get("transpose_a") is True
    m, n, k = out[1] or 0, out[0] or 0, first[0 if transposed else 1] or 0
    dtype = node.outputs[0].dtype.name
    if dtype == "float32":
        return _packed_bytes(m, n, k, node.attrs.get("transpose_b") is True, transposed, _AVX512 if avx512 else _AVX2)
    return _FLOAT32 * m * n if dtype == "bfloat16" and node.op_type == "_FusedMatMul" and not amx else 0


def _packed_bytes(m: int, n: int, k: int, trans_a: bool, trans_b: bool, cpu: _Cpu) -> int:
    threads = os.cpu_count() or 1
    if min(m, n) <= 1 or k == 0 or _reads_in_place(m, n, k, trans_a, trans_b, threads, cpu):
        return 0
    m, n = _share(m, n, threads, cpu)
    terms = k if k <= cpu.terms_undivided else -(-k // 2) if k < 2 * cpu.terms_packed else cpu.terms_packed
    columns = min(n, _COLUMNS_OF_SHORT_SUMS if k < _SHORT_SUM else _COLUMNS_AT_ONCE)
    rows = min(m, cpu.rows_packed) if columns < n else min(m, cpu.rows)  # kept for the next columns, if there are any
    return threads * _FLOAT32 * terms * (rows + columns)


def _reads_in_place(m: int, n: int, k: int, trans_a: bool, trans_b: bool, threads: int, cpu: _Cpu) -> bool:
    lda, ldb = k if trans_a else m, n if trans_b else k
    wide = cpu is _AVX512
    awkward = wide and not trans_a and lda % 1024 == 0  # what is read together falls into the same few lines of the cache
    alone = wide and threads == 1 and trans_a and not trans_b and m > 100
    if alone and ((m < 1200 and n < 200 and k < 1200) or lda % 256 == ldb % 256 == 0):
        return False
    if awkward and not trans_b and threads <= 8 and k > 500 and n > 100:
        return False
    if 1 / m + 1 / n >= cpu.least and not (awkward and trans_b):
        return True
    if wide and 0 in (lda % 256, ldb % 256, m % 256) and m >= 32 and n > 16:
        return False
    if k >= threads * _MANY and (m >= threads * _MANY or max(m, n) <= _MANY):
        return False
    if wide:
        few = 28 * threads
        return n <= few or k <= threads or (m <= few and (not trans_b or m >= n))
    return n <= threads or k <= threads if trans_b else n <= 16 * threads or k <= 2 * threads


def _share(m: int, n: int, threads: int, cpu: _Cpu) -> tuple[int, int]:
    """Rows and columns of the part of one thread."""
    both = m >= 768 and (n > threads * 384 or n <= threads * 192)
    if cpu is _AVX512:
        both &= m < 1000 or n < threads * 96
    else:
        both &= (n > 384 or m < threads * 384) and (m < 1000 or n < 4000)
    by_rows = 1
    if both:
        by_columns = threads
        while by_columns % 2 == 0 and (n // threads > 384 or n // by_columns <= 192) and m // by_rows >= 768 and by_rows < 4:
            by_rows, by_columns = 2 * by_rows, by_columns // 2
    elif m > n and (m >= threads * cpu.lanes or n < threads):
        by_rows = threads
    return -(-m // by_rows), -(-n // max(threads // by_rows, 1))
