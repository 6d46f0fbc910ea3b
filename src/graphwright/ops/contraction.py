"""Matrix products, Einsum and products of sparse matrices: two FLOPs per multiply-add, eight where the numbers are complex.

TensorFlow computes float32 products of two matrices by oneDNN's `dnnl_sgemm`, whose threads pack panels of both operands
(`src/cpu/x64/gemm/gemm_driver.cpp`) unless one side of the output is short. Eigen packs operands too. The scratch of both is a bound.
"""

import math
from collections.abc import Sequence
from string import ascii_letters

import numpy as np

from graphwright.ir.dtypes import byte_count
from graphwright.ir.graph import Node, Value
from graphwright.ops.dimensions import Dimensions, broadcast_labels, labels_of
from graphwright.ops.family import Count, Family, ScratchRules, on_cpu
from graphwright.ops.machine import AMX, AVX512, cpu_has, thread_count
from graphwright.ops.sizes import UnknownSizeError, dims, dims_of, is_floating, item_bytes, output_dims, output_size, size, text_attribute

Names = tuple[str, ...]
_TERMS_AT_ONCE, _ROWS_AT_ONCE, _COLUMNS_PACKED = 384, 384, 10_000  # of the panels that oneDNN packs
_SHORT_SIDE, _SHORT_SIDE_AVX2 = 512, 256  # of an output whose operands oneDNN reads in place
_LEFT_BLOCK, _RIGHT_BLOCK = 512 << 10, 128 << 10  # bytes that a thread repacks at once of a batched product's operands
_EIGEN_TERMS = 640  # that are packed together
_EIGEN_BYTES = 3 << 20  # packed by a thread, the most that was measured


def multiply_add(node: Node) -> float:
    """FLOPs of one multiplication and one addition; of complex numbers, 4 products and 4 sums of real ones."""
    return 8.0 if node.inputs and node.inputs[0].dtype.name.startswith("complex") else 2.0


def matmul(node: Node) -> float:
    a = dims_of(node, 0, 2)
    inner = a[0] if node.attrs.get("transpose_a") is True else a[1]
    return multiply_add(node) * output_size(node) * inner


def batch_matmul(node: Node) -> float:
    a = dims_of(node, 0, 2)
    inner = a[-2] if node.attrs.get("adj_x") is True else a[-1]
    return multiply_add(node) * output_size(node) * inner


def einsum(node: Node) -> float:
    """Contract operands two by two; labels of only one operand are summed first, as in TensorFlow's kernel.

    More than two operands are contracted in the best order (`numpy.einsum_path`, optimal).
    """
    shapes = [dims(v) for v in node.inputs]
    operands, result, sizes = read_equation(text_attribute(node, "equation"), shapes)
    flops = 0.0
    for pair in _path(operands, result, sizes):
        chosen = [operands[k] for k in pair]
        operands = [labels for k, labels in enumerate(operands) if k not in pair]
        remaining = set(result).union(*operands)
        product, count = _contract(chosen, remaining, sizes, multiply_add(node))
        flops += count
        operands.append(product)
    return flops


def read_equation(equation: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Names], Names, dict[str, int]]:
    """Return the labels of the operands and of the result, and the size of each label.

    An ellipsis becomes labels `0`, `1`, ... from the right.

    >>> read_equation("...ij,jk->...ik", [(5, 2, 3), (3, 4)])
    ([('0', 'i', 'j'), ('j', 'k')], ('0', 'i', 'k'), {'0': 5, 'i': 2, 'j': 3, 'k': 4})
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(shapes):
        raise UnknownSizeError
    sizes: dict[str, int] = {}
    operands: list[Names] = []
    most = 0
    for text, shape in zip(texts, shapes, strict=True):
        before, dots, after = text.partition("...")
        extra = len(shape) - len(before) - len(after)
        if extra < 0 or (extra and not dots):
            raise UnknownSizeError
        most = max(most, extra)
        labels = (*before, *(str(extra - 1 - k) for k in range(extra)), *after)
        for label, d in zip(labels, shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), d)
        operands.append(labels)
    if not arrow:
        flat = [label for labels in operands for label in labels if label.isalpha()]
        right = ("..." if most else "") + "".join(sorted(label for label in set(flat) if flat.count(label) == 1))
    before, dots, after = right.partition("...")
    return operands, (*before, *(str(most - 1 - k) for k in range(most if dots else 0)), *after), sizes


def _path(operands: Sequence[Names], result: Names, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    if len(operands) < 3:
        return [tuple(range(len(operands)))]
    letters = dict(zip(sizes, ascii_letters, strict=False))
    if len(letters) < len(sizes):
        raise UnknownSizeError
    terms = ["".join(letters[label] for label in labels) for labels in (*operands, result)]
    zero = np.zeros(())
    arrays = [np.broadcast_to(zero, [sizes[label] for label in labels]) for labels in operands]
    steps, _ = np.einsum_path(",".join(terms[:-1]) + "->" + terms[-1], *arrays, optimize="optimal" if len(operands) < 8 else "greedy")
    return [tuple(step) for step in steps[1:]]


def _contract(operands: Sequence[Names], remaining: set[str], sizes: dict[str, int], factor: float) -> tuple[Names, float]:
    flops = 0.0
    reduced: list[Names] = []
    for k, labels in enumerate(operands):
        once = tuple(dict.fromkeys(labels))  # a repeated label takes the diagonal, which is not an arithmetic
        others = remaining.union(*(other for j, other in enumerate(operands) if j != k))
        left = tuple(label for label in once if label in others)
        flops += math.prod(sizes[label] for label in once) - math.prod(sizes[label] for label in left)
        reduced.append(left)
    every = tuple(dict.fromkeys(label for labels in reduced for label in labels))
    product = tuple(label for label in every if label in remaining)
    if len(reduced) > 1:
        work = math.prod(sizes[label] for label in every)
        flops += work * (factor if len(product) < len(every) else factor - 1 if factor == 2 else 6) * (len(reduced) - 1)
    return product, flops


def _nonzeros(node: Node) -> float:
    return float(dims_of(node, 1, 1)[0])


def _nonzeros_of_both(node: Node) -> float:
    return float(sum(math.prod(dims(v)) for v in node.inputs if is_floating(v) and len(dims(v)) == 1))


def with_fused(product: Count, after: int = 0) -> Count:
    """Count the product, and per output so many and those of the attribute `fused_ops`."""

    def count(node: Node) -> float | None:
        first = product(node)
        fused = node.attrs.get("fused_ops")
        names = [name.decode() for name in fused if isinstance(name, bytes)] if isinstance(fused, tuple) else []
        return None if first is None else first + (after + sum(_FUSED_COST.get(name, 1) for name in names)) * output_size(node)

    return count


_FUSED_COST = {"FusedBatchNorm": 3, "GeluApproximate": 8, "GeluExact": 5, "_MklSwish": 2, "Mish": 4, "_FusedSwish": 2}
"""Per element of the output; everything else (a bias, an addition, an activation) counts 1."""


def matrix_product(node: Node) -> Dimensions:
    """Two matrices, or broadcast batches of them."""
    a, b, result = dims_of(node, 0, 2), dims_of(node, 1, 2), output_dims(node)
    flip_a = node.attrs.get("transpose_a") is True or node.attrs.get("adj_x") is True
    flip_b = node.attrs.get("transpose_b") is True or node.attrs.get("adj_y") is True
    batch = labels_of("batch", len(result) - 2)
    left = broadcast_labels(batch, result[:-2], a[:-2]) + (("k", "m") if flip_a else ("m", "k"))
    right = broadcast_labels(batch, result[:-2], b[:-2]) + (("n", "k") if flip_b else ("k", "n"))
    return Dimensions((left, right), (*batch, "m", "n"), sums=True)


def _split_einsum(node: Node) -> Dimensions:
    equation = text_attribute(node, "equation")
    if "." in equation:
        raise UnknownSizeError
    operands, result, _ = read_equation(equation, [dims(value) for value in node.inputs])
    if any(len(set(labels)) != len(labels) for labels in (*operands, result)):  # a diagonal
        raise UnknownSizeError
    return Dimensions(tuple(operands), result, sums=True)


def _product_sizes(node: Node) -> tuple[int, int, int]:
    a, (rows, columns) = dims_of(node, 0, 2), output_dims(node, 0, 2)[-2:]
    return rows, a[-2] if node.attrs.get("transpose_a") is True or node.attrs.get("adj_x") is True else a[-1], columns


def packed_by_eigen(rows: int, terms: int, columns: int, item: int) -> int:
    """Return an upper bound on the packed operands of one product."""
    return min((rows + columns) * min(terms, _EIGEN_TERMS) * item, thread_count() * _EIGEN_BYTES)


def in_float32(output: Value, packed: int) -> int:
    """Return the scratch of a half that is computed in float32 and written after the packed operands are free."""
    return 4 * size(output) + max(packed - (output.nbytes or 0), 0)


def _product_by_eigen(node: Node) -> int:
    output = node.outputs[0]
    packed = packed_by_eigen(*_product_sizes(node), max(item_bytes(output), 4))
    return packed if item_bytes(output) > 2 else sum(4 * size(v) for v in node.inputs[:2]) + in_float32(output, packed)


def _product_by_onednn(node: Node) -> int:
    rows, terms, columns = _product_sizes(node)
    if node.outputs[0].dtype.name == "bfloat16":  # a fused one adds up in float32 (`gemm_bf16_inner_product.cpp`)
        return 4 * output_size(node) if node.op_type == "_FusedMatMul" and not cpu_has(AMX) else 0
    if min(rows, columns) < (_SHORT_SIDE if cpu_has(AVX512) else _SHORT_SIDE_AVX2):
        return 0
    threads = thread_count()  # they share the longer side
    rows, columns = (rows, -(-columns // threads)) if columns > rows else (-(-rows // threads), columns)
    return threads * 4 * min(terms, _TERMS_AT_ONCE) * (min(columns, _COLUMNS_PACKED) + min(rows, _ROWS_AT_ONCE))


def _batch_by_onednn(node: Node) -> int:
    """Return the matrices that the threads repack, of transposed or broadcast operands."""
    if not any(node.attrs.get(name) is True for name in ("adj_x", "adj_y")) and dims_of(node, 0)[:-2] == dims_of(node, 1)[:-2]:
        return 0
    matrices = [byte_count(value.dtype, dims(value)[-2:]) or 0 for value in node.inputs]
    return sum(min(matrix, thread_count() * block) for matrix, block in zip(matrices, (_LEFT_BLOCK, _RIGHT_BLOCK), strict=True))


def _copies_of_einsum(node: Node) -> int:
    """Return the copies of operands, and of the product, whose dimensions lie in another order than the kernel's (`einsum_op_impl.h`).

    That order is batch, free, contracted, or batch, contracted, free; within each the order of the equation decides.
    """
    operands, result, sizes = read_equation(text_attribute(node, "equation"), [dims(value) for value in node.inputs])
    every = list(dict.fromkeys(label for labels in operands for label in labels))
    kinds = {x: 0 if x.isdigit() else 1 + 2 * (x not in result) + (sum(x in labels for labels in operands) == 1) for x in every}
    copied = 0
    for labels in operands:  # of an ellipsis 0, batch 1, free 2, contracted 3, summed up before 4
        orders = [sorted(labels, key=lambda x: (places[kinds[x]], every.index(x))) for places in ((0, 1, 2, 3, 4), (0, 1, 3, 2, 4))]
        copied += 0 if list(labels) in orders else math.prod(sizes[x] for x in labels)
    if sorted((x for x in every if kinds[x] < 3), key=lambda x: (kinds[x], every.index(x))) != list(result) and len(operands) > 1:
        copied += output_size(node)
    return copied * item_bytes(node.outputs[0])


FAMILY = Family(
    flops={
        "matrix product": [
            ("MatMul SparseMatMul", "2 m n k, of integers too; 8 m n k of complex numbers", matmul),
            ("BatchMatMul BatchMatMulV2 BatchMatMulV3", "2 batch m n k", batch_matmul),
            ("Einsum XlaEinsum", "2 per multiply-add, two operands at a time; labels of one operand alone are summed first", einsum),
        ],
        "fused": [
            ("_FusedMatMul", "the product + 1 per output for each fused op", with_fused(matmul)),
            ("_FusedBatchMatMulV2", "the product + 1 per output for each fused op", with_fused(batch_matmul)),
        ],
        "sparse": [
            ("SparseTensorDenseMatMul", "2 nonzeros columns", lambda n: multiply_add(n) * _nonzeros(n) * output_dims(n, 0, 2)[1]),
            ("SparseDenseCwiseMul SparseDenseCwiseAdd SparseDenseCwiseDiv", "1 per nonzero", _nonzeros),
            ("SparseReduceSum SparseReduceMax SparseReduceSumSparse SparseReduceMaxSparse", "1 per nonzero", _nonzeros),
            ("SparseAdd SparseSparseMaximum SparseSparseMinimum", "1 per nonzero of both", _nonzeros_of_both),
            ("SparseTensorDenseAdd", "1 per nonzero", _nonzeros),
            ("SparseSoftmax", "5 per nonzero", lambda node: 5 * _nonzeros(node)),
            ("SparseBincount", "1 per nonzero", _nonzeros),
        ],
    },
    splits={"MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3": matrix_product, "Einsum": _split_einsum},
    scratch={
        "MatMul _FusedMatMul": ScratchRules(_product_by_eigen, _product_by_onednn),
        "BatchMatMul BatchMatMulV2 BatchMatMulV3": ScratchRules(_product_by_eigen, _batch_by_onednn, _batch_by_onednn),
        "Einsum": on_cpu(_copies_of_einsum),
    },
    weights={
        "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 SparseMatMul": (0, 1),
        "_FusedMatMul": tuple(range(1, 12)),
        "Einsum": (),
        "SparseTensorDenseMatMul": (3,),
    },
    products="MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum _FusedMatMul _FusedBatchMatMulV2",
)
