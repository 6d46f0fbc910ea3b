"""The second-order part of the Hessian, which Gauss-Newton leaves out.

**Approximated.** Where residuals stay large, J'J is far from the Hessian, and damped steps crawl. The loop therefore keeps a symmetric
matrix C that satisfies the secant equation of the last step h, `C h = (change of the gradient) - J'J h`, with the least change: J. E.
Dennis, D. M. Gay, R. E. Welsch: An adaptive nonlinear least-squares algorithm (1981), section 3, with their sizing. A step uses C if C
predicted the last reduction better than J'J did; at first, twice as well, so that small residuals keep the accuracy of QR.

**Measured.** Where no step lowers the cost any more, the Hessian is computed once, by central differences of the gradient, to find how far
the minimum is (`newton_offset`); rounding of the cost hides a gradient of the square root of that rounding (J. E. Dennis, R. B. Schnabel:
Numerical methods for unconstrained optimization and nonlinear equations, 1983, sections 5.4 and 7.2).
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

tf: Any = importlib.import_module("tensorflow")

_BETTER = 0.5
"""C comes into use if the error of the prediction with C is below this share of the error without C."""


class Curvature(NamedTuple):
    """The matrix C (n, n), and whether steps use it. Tensors."""

    matrix: Any
    trusted: Any

    def half_form(self, step: Any) -> Any:
        added = 0.5 * tf.tensordot(step, tf.linalg.matvec(self.matrix, step), 1)
        return tf.where(self.trusted, added, tf.zeros_like(added))


def no_curvature(x: Any) -> Curvature:
    return Curvature(tf.zeros([x.shape[0], x.shape[0]], x.dtype), tf.constant(False))


def updated_curvature(known: Curvature, step: Any, gradient: Any, change: Any, half_square: Any, image: Any, reduction: Any) -> Curvature:
    """Update the curvature after an accepted step (n,).

    Args:
        gradient: of the cost at the start of the step (n,).
        change: of the gradient over the step (n,).
        half_square: |J step|**2 / 2 at the start.
        image: J'J step at the end (n,).
        reduction: of the cost.
    """
    product = tf.linalg.matvec(known.matrix, step)
    form, target = tf.tensordot(step, product, 1), change - image
    without = tf.tensordot(gradient, step, 1) + half_square + reduction
    margin = tf.where(known.trusted, tf.ones_like(without), _BETTER * tf.ones_like(without))
    better = tf.abs(without + 0.5 * form) < margin * tf.abs(without)
    size = tf.math.divide_no_nan(tf.abs(tf.tensordot(step, target, 1)), tf.abs(form))
    sized = tf.where(form == 0.0, tf.ones_like(size), tf.minimum(size, 1.0))
    missing = target - sized * product
    along = tf.tensordot(change, step, 1)
    weight = change / along
    outer = missing[:, tf.newaxis] * weight[tf.newaxis, :]
    update = outer + tf.transpose(outer) - tf.tensordot(step, missing, 1) * weight[:, tf.newaxis] * weight[tf.newaxis, :]
    usable = (along > 0.0) & tf.reduce_all(tf.math.is_finite(update))
    matrix = sized * known.matrix + tf.where(usable, update, tf.zeros_like(update))
    return Curvature(matrix, tf.where(reduction > 0.0, better, known.trusted))


def curved_step(gram: Any, curvature: Any, gradient: Any, scale: Any, damping: Any, free: Any) -> tuple[Any, Any]:
    """Solve (J'J + C + damping S'S) h = -gradient; return h (n,), and the upper triangle U (n, n) with U'U = the matrix.

    `free` is 1 where a parameter may move, else 0. The step is not finite if the matrix is not positive definite.
    """
    inverse = free / scale
    matrix = (gram + curvature) * inverse[:, tf.newaxis] * inverse[tf.newaxis, :]
    matrix = tf.linalg.set_diag(
        matrix, tf.linalg.diag_part(matrix) + tf.where(free > 0.0, damping * tf.ones_like(free), tf.ones_like(free))
    )
    root = tf.linalg.cholesky(matrix)
    solved = tf.linalg.cholesky_solve(root, (inverse * gradient)[:, tf.newaxis])[:, 0]
    return -inverse * solved, tf.transpose(root) * scale


def newton_offset(gradient_at: Callable[[Any], Any], x: Any, gradient: Any, column_norms: Any, residual_norm: Any, free: Any) -> Any:
    """Return the relative offset by the whole Hessian: the root of a Newton step's relative reduction of the cost, a scalar.

    It is infinite if the Hessian is not positive definite beyond the error of the differences.

    Args:
        gradient_at: parameters (n,) -> the gradient of the cost (n,). Called 2 n times.
        x: the point (n,).
        gradient: at x (n,).
        column_norms: of the Jacobian (n,).
        free: 1 where a parameter may move, else 0 (n,).
    """
    epsilon = float(np.finfo(x.dtype.as_numpy_dtype).eps)
    norms = tf.where(column_norms > 0.0, column_norms, tf.ones_like(column_norms))
    widths = epsilon ** (1.0 / 3.0) * tf.where(x == 0.0, residual_norm / norms, tf.abs(x))

    def column(i: Any) -> Any:
        width = tf.one_hot(i, x.shape[0], dtype=x.dtype) * widths[i]
        return (gradient_at(x + width) - gradient_at(x - width)) / (2.0 * widths[i])

    inverse = free / norms
    columns = tf.map_fn(column, tf.range(x.shape[0]), fn_output_signature=x.dtype, parallel_iterations=1)
    hessian = columns * inverse[:, tf.newaxis] * inverse[tf.newaxis, :]
    hessian = tf.linalg.set_diag(0.5 * (hessian + tf.transpose(hessian)), tf.where(free > 0.0, tf.linalg.diag_part(hessian), 1.0))
    known = tf.reduce_all(tf.math.is_finite(hessian))
    values, vectors = tf.linalg.eigh(tf.where(known, hessian, tf.zeros_like(hessian)))
    least = 10.0 * x.shape[0] * epsilon ** (2.0 / 3.0) * tf.reduce_max(tf.abs(values))
    parts = tf.linalg.matvec(vectors, inverse * gradient, transpose_a=True)
    offset = tf.sqrt(tf.reduce_sum(tf.square(parts) / tf.maximum(values, least))) / residual_norm
    definite = (values[0] > least) & tf.math.is_finite(offset)
    return tf.where(definite, offset, tf.constant(np.inf, x.dtype))
