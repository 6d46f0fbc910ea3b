"""Large symmetric matrices as blocks of rows of their lower half; sums of products in that form, and Cholesky factors.

TensorFlow computes and stores symmetric matrices whole, and its Cholesky kernel makes two copies beside the result. Here block i holds
rows `a` to `b` up to column `b`, where its diagonal block ends: about half of the matrix, for half of the work of a sum of products. The
Cholesky factor is computed block by block (left-looking; G. H. Golub, C. F. Van Loan: Matrix Computations, section 4.2.9).
"""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

tf: Any = importlib.import_module("tensorflow")

SMALLEST_BLOCK = 384
MOST_BLOCKS = 12
"""More blocks save little memory, and make graphs large."""

Blocks = tuple[Any, ...]
"""The lower half: tensors (b - a, b)."""


class RootBlock(NamedTuple):
    """Some rows of a lower triangular matrix: the columns before the diagonal block (None in the first), and the diagonal block."""

    left: Any | None
    diagonal: Any


def block_bounds(size: int) -> list[tuple[int, int]]:
    """Return first row and end of each block of a matrix of `size` rows."""
    count = min(MOST_BLOCKS, -(-size // SMALLEST_BLOCK))
    rows = -(-size // count)
    return [(first, min(first + rows, size)) for first in range(0, size, rows)]


def zero_blocks(size: int, dtype: Any) -> Blocks:
    # Not `tf.zeros`: TensorFlow would fold them into constants, which stay in memory as long as the function.
    return tuple(tf.raw_ops.Empty(shape=[end - first, end], dtype=dtype, init=True) for first, end in block_bounds(size))


def plus_products(blocks: Blocks, matrix: Any) -> Blocks:
    """Return A + M'M for a matrix M (m, n)."""
    sums: list[Any] = []
    for block, (first, end) in _with_bounds(blocks):
        with tf.control_dependencies(sums[-1:]):  # or the executor would copy the columns for all blocks at once
            rows, columns = matrix[:, first:end], matrix[:, :end]
        sums.append(block + tf.matmul(rows, columns, transpose_a=True))
    return tuple(sums)


def diagonal(blocks: Blocks) -> Any:
    return tf.concat([tf.linalg.diag_part(block[:, first:]) for block, (first, _) in _with_bounds(blocks)], axis=0)


def quadratic_form(blocks: Blocks, vector: Any) -> Any:
    """Return v'Av, a scalar."""
    parts: list[Any] = []
    for block, (first, end) in _with_bounds(blocks):
        here = vector[first:end]
        image = tf.linalg.matvec(block, vector[:end])
        if first:  # the part left of the diagonal counts twice, for its mirror image
            image = 2.0 * image - tf.linalg.matvec(block[:, first:], here)
        parts.append(tf.tensordot(here, image, 1))
    return tf.add_n(parts)


def lower_half(blocks: Blocks) -> Any:
    """Return a matrix (n, n) with the lower half of A, and zeros above the diagonal blocks."""
    size = blocks[-1].shape[1]
    return tf.concat([tf.pad(block, [[0, 0], [0, size - end]]) for block, (_, end) in _with_bounds(blocks)], axis=0)


def cholesky(blocks: Blocks, scale: Any, shift: Any) -> tuple[RootBlock, ...]:
    """Return the lower triangular root of `S A S + shift I`, S diagonal; not finite if that is not positive definite."""
    roots: list[RootBlock] = []
    for block, (first, end) in _with_bounds(blocks):
        # One block after another: the executor would scale all of them at once, which is a copy of the matrix.
        with tf.control_dependencies([roots[-1].diagonal] if roots else []):
            scaled = block * scale[first:end, tf.newaxis] * scale[tf.newaxis, :end]
        left = _left_of_diagonal(scaled, roots)
        rest = scaled[:, first:]
        if left is not None:
            rest -= tf.matmul(left, left, transpose_b=True)
        roots.append(RootBlock(left, tf.linalg.cholesky(tf.linalg.set_diag(rest, tf.linalg.diag_part(rest) + shift))))
    return tuple(roots)


def _left_of_diagonal(block: Any, roots: Sequence[RootBlock]) -> Any | None:
    left: Any | None = None
    first = 0
    for above in roots:
        end = first + above.diagonal.shape[0]
        rest = block[:, first:end]
        if left is not None:
            rest -= tf.matmul(left, above.left, transpose_b=True)
        part = tf.transpose(tf.linalg.triangular_solve(above.diagonal, tf.transpose(rest)))
        left = part if left is None else tf.concat([left, part], axis=1)
        first = end
    return left


def cholesky_solve(roots: Sequence[RootBlock], vector: Any) -> Any:
    """Return the x (n,) with L L' x = b, for the root L of `cholesky`."""
    solved: list[Any] = []
    first = 0
    for root in roots:
        end = first + root.diagonal.shape[0]
        rest = vector[first:end]
        if root.left is not None:
            rest -= tf.linalg.matvec(root.left, tf.concat(solved, axis=0))
        solved.append(_triangular(root.diagonal, rest, adjoint=False))
        first = end
    half = tf.concat(solved, axis=0)
    solution: list[Any] = []
    for root in reversed(roots):
        end = half.shape[0]
        first = end - root.diagonal.shape[0]
        solution.insert(0, _triangular(root.diagonal, half[first:], adjoint=True))
        if root.left is not None:
            half = half[:first] - tf.linalg.matvec(root.left, solution[0], transpose_a=True)
    return tf.concat(solution, axis=0)


def _triangular(matrix: Any, vector: Any, *, adjoint: bool) -> Any:
    return tf.linalg.triangular_solve(matrix, vector[:, tf.newaxis], lower=True, adjoint=adjoint)[:, 0]


def _with_bounds(blocks: Blocks) -> list[tuple[Any, tuple[int, int]]]:
    return [(block, (block.shape[1] - block.shape[0], block.shape[1])) for block in blocks]
