"""Factorizations, solvers and Fourier transforms. Counts of factorizations: Golub and Van Loan, *Matrix Computations*, 4th edition.

Iterative algorithms (singular values, eigenvalues) have the counts of the book. Lower-order terms are left out.
"""

import math
from collections.abc import Iterable

from graphwright.ir.constants import constant_array
from graphwright.ir.graph import Node
from graphwright.ops.family import Count, Family, per_output
from graphwright.ops.sizes import UnknownSizeError, dims_of, output_dims, output_size

_RANKS = ((1, ""), (2, "2D"), (3, "3D"))
_REAL_TO_COMPLEX = 0.5  # of the work of a complex transform


def _cubic(factor: float, values_alone: float | None = None) -> Count:
    """Count so many times n cubed per matrix, and another factor for eigenvalues without vectors."""

    def count(node: Node) -> float:
        shape = dims_of(node, 0, 2)
        one = factor if values_alone is None or node.attrs.get("compute_v") is not False else values_alone
        return one * math.prod(shape[:-2]) * shape[-1] ** 3

    return count


def _solve(node: Node) -> float:
    """Count an LU factorization, then two triangular solutions per column."""
    shape, columns = dims_of(node, 0, 2), dims_of(node, 1, 2)[-1]
    n = shape[-1]
    return math.prod(shape[:-2]) * (2 / 3 * n**3 + 2.0 * n**2 * columns)


def _triangular_solve(node: Node) -> float:
    shape = output_dims(node, 0, 2)
    return float(math.prod(shape[:-2]) * shape[-2] ** 2 * shape[-1])


def _least_squares(node: Node) -> float:
    """Count normal equations if `fast`, else a complete orthogonal decomposition."""
    shape, columns = dims_of(node, 0, 2), dims_of(node, 1, 2)[-1]
    m, n = max(shape[-2:]), min(shape[-2:])
    count = math.prod(shape[:-2])
    if node.attrs.get("fast") is not False:
        return count * (m * n**2 + n**3 / 3 + 2.0 * m * n * columns + 2.0 * n**2 * columns)
    return count * (2.0 * m * n**2 - 2 / 3 * n**3 + 4.0 * m * n * columns)


def _qr(node: Node) -> float:
    """Count Householder's R and the same again for Q; more for a square Q."""
    shape = dims_of(node, 0, 2)
    m, n = max(shape[-2:]), min(shape[-2:])
    r = 2.0 * m * n**2 - 2 / 3 * n**3
    q = 4.0 * (m * m * n - m * n * n + n**3 / 3) if node.attrs.get("full_matrices") is True else r
    return math.prod(shape[:-2]) * (r + q)


def _svd(node: Node) -> float:
    shape = dims_of(node, 0, 2)
    m, n = max(shape[-2:]), min(shape[-2:])
    if node.attrs.get("compute_uv") is False:
        one = 4.0 * m * n**2 - 4 / 3 * n**3
    elif node.attrs.get("full_matrices") is True:
        one = 4.0 * m * m * n + 8.0 * m * n**2 + 9.0 * n**3
    else:
        one = 14.0 * m * n**2 + 8.0 * n**3
    return math.prod(shape[:-2]) * one


def _fourier(rank: int | None, share: float = 1.0, *, inverse_real: bool = False) -> Count:
    """Count 5 n log2 n per transform over the last axes, or constant ones (Cooley and Tukey with radix 2); half if one side is real."""

    def count(node: Node) -> float:
        axes = range(-rank, 0) if rank is not None else _constant_axes(node)
        shape = (output_dims if inverse_real or share == 1.0 else dims_of)(node, 0, rank or 0)
        n = math.prod(shape[int(a)] for a in axes)
        return share * 5.0 * math.prod(shape) * (math.log2(n) if n > 1 else 0.0)

    return count


def _constant_axes(node: Node) -> Iterable[int]:
    axes = constant_array(node.inputs[2].producer) if len(node.inputs) > 2 else None
    if axes is None:
        raise UnknownSizeError
    return axes.ravel()


FAMILY = Family(
    flops={
        "linear algebra": [
            ("Cholesky BatchCholesky", "n^3 / 3", _cubic(1 / 3)),
            ("CholeskyGrad BatchCholeskyGrad", "2 n^3 / 3", _cubic(2 / 3)),
            ("Lu MatrixDeterminant LogMatrixDeterminant BatchMatrixDeterminant", "2 n^3 / 3", _cubic(2 / 3)),
            ("MatrixInverse BatchMatrixInverse", "2 n^3", _cubic(2)),
            ("MatrixSolve BatchMatrixSolve", "2 n^3 / 3 + 2 n^2 columns", _solve),
            ("MatrixTriangularSolve BatchMatrixTriangularSolve", "n^2 columns", _triangular_solve),
            ("BandedTriangularSolve", "2 bands n columns", lambda node: 2.0 * dims_of(node, 0, 2)[-2] * output_size(node)),
            ("MatrixSolveLs BatchMatrixSolveLs", "m n^2 + n^3 / 3 + 2 m n columns + 2 n^2 columns when fast", _least_squares),
            ("Qr", "4 m n^2 - 4 n^3 / 3; more for a square Q", _qr),
            ("Svd BatchSvd", "14 m n^2 + 8 n^3; values alone 4 m n^2 - 4 n^3 / 3", _svd),
            ("SelfAdjointEig BatchSelfAdjointEig", "9 n^3", _cubic(9)),
            ("SelfAdjointEigV2 BatchSelfAdjointEigV2", "9 n^3; values alone 4 n^3 / 3", _cubic(9, 4 / 3)),
            ("Eig", "25 n^3; values alone 10 n^3", _cubic(25, 10)),
            ("MatrixSquareRoot", "28 n^3 (Higham)", _cubic(28)),
            ("MatrixLogarithm", "25 n^3: the Schur form", _cubic(25)),
            ("MatrixExponential", "20 n^3: Pade of degree 13 with scaling", _cubic(20)),
            ("TridiagonalMatMul", "5 per output", per_output(5)),
            ("TridiagonalSolve", "8 per output", per_output(8)),
        ],
        "Fourier transform": [
            ("FFT BatchFFT IFFT BatchIFFT", "5 n log2 n for each transform", _fourier(1)),
            ("FFT2D BatchFFT2D IFFT2D BatchIFFT2D", "5 n log2 n, n the product of both", _fourier(2)),
            ("FFT3D BatchFFT3D IFFT3D BatchIFFT3D", "5 n log2 n, n the product of all three", _fourier(3)),
            *((f"RFFT{name}", "2.5 n log2 n", _fourier(rank, _REAL_TO_COMPLEX)) for rank, name in _RANKS),
            *((f"IRFFT{name}", "2.5 n log2 n", _fourier(rank, _REAL_TO_COMPLEX, inverse_real=True)) for rank, name in _RANKS),
            ("FFTND IFFTND", "5 n log2 n over constant axes", _fourier(None)),
            ("RFFTND", "2.5 n log2 n over constant axes", _fourier(None, _REAL_TO_COMPLEX)),
            ("IRFFTND", "2.5 n log2 n over constant axes", _fourier(None, _REAL_TO_COMPLEX, inverse_real=True)),
        ],
    }
)
