"""Linearized problems and their damped steps: the h that minimizes `|J h + f|**2 + damping * |S h|**2`, S a diagonal scale.

| class | stores | solves | for |
|---|---|---|---|
| `QrSystem` | triangular factor of [J f] | QR of the augmented matrix [R; sqrt(damping) S] | small and ill-conditioned |
| `CholeskySystem` | half of the Gram matrix | its Cholesky factor, scaled and damped | many residuals, up to some 10,000 parameters |
| `DualSystem` | J (m, n) | Cholesky of the damped J J' (m, m) | more parameters than residuals |
| `CgSystem` | nothing | products with J and J' | large models |

The accuracy of QR depends on the condition number of J, the accuracy of the others on its square. The first two are folded over chunks of
rows and never hold the Jacobian.
"""

import importlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from graphwright.least_squares import symmetric_blocks
from graphwright.least_squares.curvature import Curvature, curved_step
from graphwright.least_squares.krylov import conjugate_gradients
from graphwright.least_squares.rows import Rows
from graphwright.least_squares.symmetric_blocks import Blocks

tf: Any = importlib.import_module("tensorflow")

MethodName = Literal["qr", "cholesky", "dual", "cg"]
Method = Literal["auto", "qr", "cholesky", "dual", "cg"]
Solve = Callable[[Any], Any]

QR_PARAMETERS = 200
"""Most parameters for which `"auto"` chooses QR."""
DENSE_BYTES = 2**30
"""Largest matrix of a method that `"auto"` chooses."""
PROBES = 16
"""Random vectors from which `"cg"` estimates column norms."""


class Linearization(NamedTuple):
    """A problem linearized at one point: gradient (n,), column norms (n,), length of the residuals, tensors of the system.

    `column_norms` is an estimate if the Jacobian is never formed.
    """

    gradient: Any
    column_norms: Any
    residual_norm: Any
    factor: tuple[Any, ...]


class LinearSystem:
    """One way to linearize and to solve for damped steps."""

    smallest_damping: float
    """Below it, rounding would dominate the step."""

    def __init__(self, rows: Rows, smallest_damping: float) -> None:
        """`smallest_damping` is in units of the type's epsilon."""
        self._rows = rows
        self.smallest_damping = smallest_damping * float(np.finfo(rows.layout.dtype.as_numpy_dtype).eps)

    def linearize(self, x: Any) -> Linearization:
        raise NotImplementedError

    def step(self, x: Any, at: Linearization, scale: Any, damping: Any, free: Any) -> tuple[Any, Solve | None]:
        """Return the damped step h (n,); and a solver of (J'J + damping S'S) a = b, if there is one.

        `free` (n,) is 0 for parameters that must not move, else 1.
        """
        raise NotImplementedError

    def undamped(self, x: Any, at: Linearization, scale: Any, free: Any) -> Any | None:
        """Return the Gauss-Newton step (n,), with as little damping as rounding permits; None if it is not exact enough."""
        return self.step(x, at, scale, tf.constant(self.smallest_damping, x.dtype), free)[0]

    def half_square(self, x: Any, at: Linearization, step: Any) -> Any:
        raise NotImplementedError


class QrSystem(LinearSystem):
    """QR of the augmented matrix; the Jacobian is reduced to a triangle chunk by chunk.

    The reduction is the sequential TSQR of J. Demmel, L. Grigori, M. Hoemmen, J. Langou (2012), damping by extra rows that of J. J. Moré:
    The Levenberg-Marquardt algorithm (1978).
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows, 10.0 * rows.layout.size)
        self.smallest_damping = self.smallest_damping**2

    def linearize(self, x: Any) -> Linearization:
        size = self._rows.layout.size

        def add(triangle: Any, residuals: Any, matrix: Any) -> Any:
            joined = tf.concat([matrix, tf.expand_dims(residuals, 1)], axis=1)
            return tf.linalg.qr(joined if triangle is None else tf.concat([triangle, joined], axis=0)).r

        at_once = not self._rows.is_chunked and self._rows.count > size
        triangle = self._rows.fold(x, add, None if at_once else tf.zeros([size + 1, size + 1], x.dtype))
        right, rotated = tf.split(triangle, [size, 1], axis=1)
        return Linearization(
            gradient=tf.squeeze(tf.matmul(right, rotated, transpose_a=True), axis=1),
            column_norms=tf.sqrt(tf.reduce_sum(tf.square(right), axis=0)),
            residual_norm=tf.sqrt(2.0 * tf.nn.l2_loss(rotated)),
            factor=(triangle, right),
        )

    def step(self, x: Any, at: Linearization, scale: Any, damping: Any, free: Any) -> tuple[Any, Solve | None]:  # noqa: ARG002
        step, upper = self._triangle(at, scale, damping, free)
        return step, _by_triangle(upper)

    def step_with(self, curvature: Curvature, at: Linearization, scale: Any, damping: Any, free: Any) -> tuple[Any, Solve]:

        def curved() -> tuple[Any, Any]:
            gram = tf.matmul(at.factor[1], at.factor[1], transpose_a=True)
            return curved_step(gram, curvature.matrix, at.gradient, scale, damping, free)

        step, upper = tf.cond(curvature.trusted, curved, lambda: self._triangle(at, scale, damping, free))
        return step, _by_triangle(upper)

    def _triangle(self, at: Linearization, scale: Any, damping: Any, free: Any) -> tuple[Any, Any]:
        """Return the step (n,), and the triangle (n, n) of the augmented matrix."""
        triangle, right = at.factor
        size = right.shape[1]
        above = triangle * tf.concat([free, tf.ones([1], free.dtype)], axis=0)
        below = tf.linalg.diag(tf.sqrt(damping) * scale, num_rows=size, num_cols=size + 1)
        triangle = tf.linalg.qr(tf.concat([above, below], axis=0)).r
        upper, right_side = tf.split(tf.split(triangle, [size, 1], axis=0)[0], [size, 1], axis=1)
        return -tf.squeeze(tf.linalg.triangular_solve(upper, right_side, lower=False), axis=1), upper

    def gram_product(self, at: Linearization, vector: Any) -> Any:
        return tf.linalg.matvec(at.factor[1], tf.linalg.matvec(at.factor[1], vector), transpose_a=True)

    def undamped(self, x: Any, at: Linearization, scale: Any, free: Any) -> Any | None:
        # Without the columns that depend on earlier ones: their share of the residuals would be rounding.
        triangle = tf.linalg.qr(at.factor[1] * free).r
        resolved = np.sqrt(self.smallest_damping) * tf.norm(triangle, axis=0)
        independent = tf.cast(tf.abs(tf.linalg.diag_part(triangle)) > resolved, x.dtype)
        return super().undamped(x, at, scale, free * independent)

    def half_square(self, x: Any, at: Linearization, step: Any) -> Any:  # noqa: ARG002
        return tf.nn.l2_loss(tf.matmul(at.factor[1], tf.expand_dims(step, 1)))


def _by_triangle(upper: Any) -> Solve:

    def solve(vector: Any) -> Any:
        half = tf.linalg.triangular_solve(upper, tf.expand_dims(vector, 1), lower=False, adjoint=True)
        return tf.squeeze(tf.linalg.triangular_solve(upper, half, lower=False), axis=1)

    return solve


class CholeskySystem(LinearSystem):
    """Normal equations: the lower half of the Jacobian's Gram matrix, summed over chunks, and its Cholesky factor."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows, 10.0 * rows.layout.size)

    def linearize(self, x: Any) -> Linearization:
        gram, gradient, squares = gram_matrix(self._rows, x)
        return Linearization(gradient, tf.sqrt(symmetric_blocks.diagonal(gram)), tf.sqrt(squares), gram)

    def step(self, x: Any, at: Linearization, scale: Any, damping: Any, free: Any) -> tuple[Any, Solve | None]:  # noqa: ARG002
        """Solve in columns of length one; the step is not finite if the matrix is not positive definite."""
        inverse = free / scale
        root = symmetric_blocks.cholesky(at.factor, inverse, damping)

        def solve(vector: Any) -> Any:
            return inverse * symmetric_blocks.cholesky_solve(root, inverse * vector)

        return -solve(at.gradient), solve

    def half_square(self, x: Any, at: Linearization, step: Any) -> Any:  # noqa: ARG002
        return 0.5 * symmetric_blocks.quadratic_form(at.factor, step)


class DualSystem(LinearSystem):
    """The m by m system of J J', for more parameters than residuals: h = -S^-2 J' (J S^-2 J' + damping)^-1 f."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows, 10.0 * rows.count)

    def linearize(self, x: Any) -> Linearization:
        residuals, matrix = self._rows.fold(x, lambda _, residuals, matrix: (residuals, matrix), None)
        gradient = tf.linalg.matvec(matrix, residuals, transpose_a=True)
        return Linearization(gradient, tf.norm(matrix, axis=0), tf.norm(residuals), (matrix, residuals))

    def step(self, x: Any, at: Linearization, scale: Any, damping: Any, free: Any) -> tuple[Any, Solve | None]:  # noqa: ARG002
        matrix, residuals = at.factor
        inverse = free / scale
        scaled = matrix * inverse
        kernel = tf.matmul(scaled, scaled, transpose_b=True)
        size = tf.reduce_max(tf.linalg.diag_part(kernel))
        # Damping is relative to columns of length one; the shift must not vanish beside the kernel's entries.
        shift = tf.maximum(damping, self.smallest_damping * size)
        root = tf.linalg.cholesky(tf.linalg.set_diag(kernel, tf.linalg.diag_part(kernel) + shift))
        weights = tf.linalg.cholesky_solve(root, residuals[:, tf.newaxis])[:, 0]
        return -tf.linalg.matvec(scaled, weights, transpose_a=True) * inverse, None

    def half_square(self, x: Any, at: Linearization, step: Any) -> Any:  # noqa: ARG002
        return tf.nn.l2_loss(tf.linalg.matvec(at.factor[0], step))


class CgSystem(LinearSystem):
    """Conjugate gradients on the damped normal equations, by products with the Gram matrix; column norms from random probes."""

    def __init__(self, rows: Rows, *, tolerance: float, max_iterations: int) -> None:
        super().__init__(rows, 10.0)
        self._tolerance, self._max_iterations = tolerance, max_iterations

    def linearize(self, x: Any) -> Linearization:
        def is_left(probe: Any, _: Any) -> Any:
            return probe < PROBES

        def add(probe: Any, squares: Any) -> tuple[Any, Any]:
            return probe + 1, squares + tf.square(self._rows.random_column_products(x, (7, probe)))

        squares = tf.while_loop(is_left, add, (tf.constant(0), tf.zeros_like(x)), parallel_iterations=1)[1]
        norms = tf.sqrt(squares / PROBES)
        # Probes may miss most of a column: norms count as at least a thousandth of their root mean square, unless they are zero.
        shortest = 1e-3 * tf.sqrt(tf.reduce_mean(tf.square(norms)))
        norms = tf.where(norms > 0.0, tf.maximum(norms, shortest), norms)
        gradient, squares = self._rows.gradient(x)
        return Linearization(gradient, norms, tf.sqrt(squares), ())

    def undamped(self, x: Any, at: Linearization, scale: Any, free: Any) -> Any | None:  # noqa: ARG002
        return None

    def half_square(self, x: Any, at: Linearization, step: Any) -> Any:  # noqa: ARG002
        return 0.5 * self._rows.squared_norm_along(x, step)

    def step(self, x: Any, at: Linearization, scale: Any, damping: Any, free: Any) -> tuple[Any, Solve | None]:
        inverse = free / scale

        def product(vector: Any) -> Any:
            return inverse * self._rows.gram_product(x, inverse * vector) + damping * vector

        solution = conjugate_gradients(product, -inverse * at.gradient, tolerance=self._tolerance, max_iterations=self._max_iterations)
        return inverse * solution, None


def gram_matrix(rows: Rows, x: Any) -> tuple[Blocks, Any, Any]:
    """Return the lower half of J'J in blocks of rows, J'f (n,) and f'f, with one chunk of the Jacobian at a time."""
    size = rows.layout.size

    def add(so_far: tuple[Blocks, Any, Any], residuals: Any, matrix: Any) -> tuple[Blocks, Any, Any]:
        gram, gradient, squares = so_far
        return (
            symmetric_blocks.plus_products(gram, matrix),
            gradient + tf.linalg.matvec(matrix, residuals, transpose_a=True),
            squares + tf.reduce_sum(tf.square(residuals)),
        )

    return rows.fold(x, add, (symmetric_blocks.zero_blocks(size, x.dtype), tf.zeros([size], x.dtype), tf.zeros([], x.dtype)))


def linear_system(method: MethodName, rows: Any, *, krylov_tolerance: float, krylov_iterations: int) -> LinearSystem:
    if method == "cg":
        return CgSystem(rows, tolerance=krylov_tolerance, max_iterations=int(krylov_iterations))
    return {"qr": QrSystem, "cholesky": CholeskySystem, "dual": DualSystem}[method](rows)


def choose_method(parameters: int, residuals: int, itemsize: int, *, chunked: bool) -> tuple[MethodName, str]:
    """Choose the linear solver for a problem of this size, and the reason."""
    jacobian_fits = parameters * residuals * itemsize <= DENSE_BYTES
    if parameters <= QR_PARAMETERS and (chunked or jacobian_fits):
        return "qr", f"{parameters} parameters: small enough for the most exact solver"
    if residuals < parameters and not chunked and jacobian_fits:
        return "dual", f"{parameters} parameters, but only {residuals} residuals"
    if parameters**2 * itemsize <= DENSE_BYTES and (chunked or jacobian_fits):
        return "cholesky", f"the Gram matrix of {parameters} parameters fits into memory"
    return "cg", f"matrices of {parameters} parameters and {residuals} residuals are larger than {DENSE_BYTES >> 20} MiB"
