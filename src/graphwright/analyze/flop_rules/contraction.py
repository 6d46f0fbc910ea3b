"""Matrix products and Einsum: two per multiply-add, eight where the numbers are complex."""

import math
from collections.abc import Sequence
from string import ascii_letters

import numpy as np

from graphwright.analyze.flop_rules.rule import (
    FlopRule,
    UnknownSizeError,
    dims,
    dims_of,
    is_complex,
    is_floating,
    output_dims,
    output_size,
    table,
    text_attribute,
)
from graphwright.ir.graph import Node

Labels = tuple[str, ...]


def multiply_add(node: Node) -> float:
    """FLOPs of one multiplication and one addition; of complex numbers, 4 products and 4 sums of real ones."""
    return 8.0 if node.inputs and is_complex(node.inputs[0]) else 2.0


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
        kept = set(result).union(*operands)
        product, count = _contract(chosen, kept, sizes, multiply_add(node))
        flops += count
        operands.append(product)
    return flops


def read_equation(equation: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Labels], Labels, dict[str, int]]:
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
    operands: list[Labels] = []
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


def _path(operands: Sequence[Labels], result: Labels, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Return the operands that are contracted together, in turn; positions as in `numpy.einsum_path`."""
    if len(operands) < 3:
        return [tuple(range(len(operands)))]
    letters = dict(zip(sizes, ascii_letters, strict=False))
    if len(letters) < len(sizes):
        raise UnknownSizeError
    terms = ["".join(letters[label] for label in labels) for labels in (*operands, result)]
    zero = np.zeros(())
    arrays = [np.broadcast_to(zero, [sizes[label] for label in labels]) for labels in operands]
    found, _ = np.einsum_path(",".join(terms[:-1]) + "->" + terms[-1], *arrays, optimize="optimal" if len(operands) < 8 else "greedy")
    return [tuple(step) for step in found[1:]]


def _contract(operands: Sequence[Labels], kept: set[str], sizes: dict[str, int], factor: float) -> tuple[Labels, float]:
    """Return the labels and the FLOPs of one contraction."""
    flops = 0.0
    reduced: list[Labels] = []
    for k, labels in enumerate(operands):
        once = tuple(dict.fromkeys(labels))  # a repeated label takes the diagonal, which is not an arithmetic
        others = kept.union(*(other for j, other in enumerate(operands) if j != k))
        left = tuple(label for label in once if label in others)
        flops += math.prod(sizes[label] for label in once) - math.prod(sizes[label] for label in left)
        reduced.append(left)
    every = tuple(dict.fromkeys(label for labels in reduced for label in labels))
    product = tuple(label for label in every if label in kept)
    if len(reduced) > 1:
        work = math.prod(sizes[label] for label in every)
        flops += work * (factor if len(product) < len(every) else factor - 1 if factor == 2 else 6) * (len(reduced) - 1)
    return product, flops


def _nonzeros(node: Node) -> float:
    return float(dims_of(node, 1, 1)[0])


def _nonzeros_of_both(node: Node) -> float:
    return float(sum(math.prod(dims(v)) for v in node.inputs if is_floating(v) and len(dims(v)) == 1))


RULES: dict[str, FlopRule] = table(
    {
        "matrix product": [
            ("MatMul SparseMatMul", "2 m n k, of integers too; 8 m n k of complex numbers", matmul),
            ("BatchMatMul BatchMatMulV2 BatchMatMulV3", "2 batch m n k", batch_matmul),
            ("Einsum XlaEinsum", "2 per multiply-add, two operands at a time; labels of one operand alone are summed first", einsum),
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
    }
)
