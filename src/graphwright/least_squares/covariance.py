"""The covariance of fitted parameters, including parameters that the data do not determine."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]


def inverse_gram(factor: Matrix, *, is_gram: bool, free: NDArray[np.bool_]) -> tuple[Matrix, int]:
    """Return the inverse of the Gram matrix J'J (n, n), and its rank among the free parameters.

    Columns are scaled to length one first, so that units do not matter to the rank. Parameters that the data do not determine have
    infinite variances and NaN covariances; those that are not free are constants, with rows and columns of zeros.

    Args:
        factor: the triangle R of J (n, n), or the lower half of the Gram matrix if `is_gram`.
        free: which parameters (n,) vary.

    >>> inverse_gram(np.array([[1.0, 0.0], [0.0, 0.0]]), is_gram=True, free=np.array([True, True]))
    (array([[ 1., nan],
           [nan, inf]]), 1)
    """
    inverse = np.zeros_like(factor)
    if not free.any():
        return inverse, 0
    norms = np.sqrt(np.diag(factor)) if is_gram else np.linalg.norm(factor, axis=0)
    norms = np.where(norms > 0.0, norms, 1.0)[free]
    size = len(norms)
    epsilon = float(np.finfo(factor.dtype).eps)
    if is_gram:
        squares, vectors = np.linalg.eigh(factor[np.ix_(free, free)] / np.outer(norms, norms))
        determined = squares > 10.0 * size * epsilon * squares[-1]
        rows = vectors.T
    else:
        _, singular, rows = np.linalg.svd(factor[:, free] / norms, full_matrices=False)
        squares = singular**2
        determined = singular > 10.0 * size * epsilon * singular[0]
    weighted = rows[determined] / np.sqrt(squares[determined])[:, None]
    block = weighted.T @ weighted / np.outer(norms, norms)
    lost = (np.abs(rows[~determined]) > np.sqrt(epsilon)).any(axis=0)
    block[lost, :] = np.nan
    block[:, lost] = np.nan
    block[lost, lost] = np.inf
    inverse[np.ix_(free, free)] = block
    return inverse, int(determined.sum())
