"""Which linear solver: chosen by sizes, and made for some rows."""

from typing import Any, Literal

from graphwright.least_squares.linear_systems import (
    CgSystem,
    CholeskySystem,
    DualSystem,
    LinearSystem,
    MethodName,
    QrSystem,
)

Method = Literal["auto", "qr", "cholesky", "dual", "cg"]

QR_PARAMETERS = 200
"""Most parameters that `"auto"` gives to QR."""
DENSE_BYTES = 2**30
"""Largest matrix that `"auto"` lets a method hold."""


def linear_system(method: MethodName, rows: Any, *, krylov_tolerance: float, krylov_iterations: int) -> LinearSystem:
    """The solver of that name for these rows; the last two arguments are for `"cg"`."""
    if method == "cg":
        return CgSystem(rows, tolerance=krylov_tolerance, max_iterations=int(krylov_iterations))
    return {"qr": QrSystem, "cholesky": CholeskySystem, "dual": DualSystem}[method](rows)


def choose_method(parameters: int, residuals: int, itemsize: int, *, chunked: bool) -> tuple[MethodName, str]:
    """The linear solver for a problem of this size, and why.

    Args:
        itemsize: bytes of a number.
        chunked: whether the Jacobian comes in chunks.

    >>> choose_method(4, 100, 8, chunked=False)
    ('qr', '4 parameters: small enough for the most exact solver')
    >>> choose_method(100_000, 50, 8, chunked=False)[0], choose_method(5000, 60_000, 8, chunked=True)[0]
    ('dual', 'cholesky')
    >>> choose_method(1_000_000, 60_000, 4, chunked=True)[0]
    'cg'
    """
    if parameters <= QR_PARAMETERS and (chunked or parameters * residuals * itemsize <= DENSE_BYTES):
        return "qr", f"{parameters} parameters: small enough for the most exact solver"
    if residuals < parameters and not chunked and parameters * residuals * itemsize <= DENSE_BYTES:
        return "dual", f"{parameters} parameters, but only {residuals} residuals"
    if parameters**2 * itemsize <= DENSE_BYTES and (chunked or parameters * residuals * itemsize <= DENSE_BYTES):
        return "cholesky", f"the Gram matrix of {parameters} parameters fits into memory"
    large = f"matrices of {parameters} parameters and {residuals} residuals are larger than {DENSE_BYTES >> 20} MiB"
    return "cg", large
