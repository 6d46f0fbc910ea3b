"""Conjugate gradients and LSMR as TensorFlow loops, for matrices that are only known by their products."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

tf: Any = importlib.import_module("tensorflow")

Product = Callable[[Any], Any]


def conjugate_gradients(product: Product, right_side: Any, *, tolerance: float, max_iterations: int) -> Any:
    """The solution (n,) of A x = b for a symmetric positive definite A, from zero.

    M. R. Hestenes, E. Stiefel: Methods of conjugate gradients for solving linear systems (1952).

    Args:
        product: (n,) -> A times it.
        right_side: b, (n,).
        tolerance: the residual's length relative to that of b at which it stops.
        max_iterations: products at most.

    >>> matrix = tf.constant([[4.0, 1.0], [1.0, 3.0]], tf.float64)
    >>> right_side = tf.constant([1.0, 2.0], tf.float64)
    >>> found = conjugate_gradients(lambda v: tf.linalg.matvec(matrix, v), right_side, tolerance=1e-12, max_iterations=9)
    >>> found.numpy().round(6).tolist()
    [0.090909, 0.636364]
    """
    squares = tf.tensordot(right_side, right_side, 1)
    enough = squares * tolerance**2

    def unsolved(i: Any, _x: Any, _residual: Any, _direction: Any, squares: Any) -> Any:
        return (i < max_iterations) & (squares > enough)

    def improve(i: Any, x: Any, residual: Any, direction: Any, squares: Any) -> tuple[Any, ...]:
        image = product(direction)
        length = tf.math.divide_no_nan(squares, tf.tensordot(direction, image, 1))
        residual = residual - length * image
        new_squares = tf.tensordot(residual, residual, 1)
        return i + 1, x + length * direction, residual, residual + tf.math.divide_no_nan(new_squares, squares) * direction, new_squares

    start = (tf.constant(0), tf.zeros_like(right_side), right_side, right_side, squares)
    return tf.while_loop(unsolved, improve, start, parallel_iterations=1)[1]


def lsmr(product: Product, transposed: Product, right_side: Any, *, damping: Any, tolerance: float, max_iterations: int) -> Any:
    """The x (n,) that minimizes `|A x - b|**2 + damping**2 * |x|**2`, from zero.

    D. C.-L. Fong, M. Saunders: LSMR, an iterative algorithm for sparse least-squares problems (2011), section 2.8 and 5.

    Args:
        product: (n,) -> A times it, (m,).
        transposed: (m,) -> the transposed A times it, (n,).
        right_side: b, (m,).
        damping: a scalar.
        tolerance: stops when the gradient of the damped problem is this small relative to that at zero.
        max_iterations: pairs of products at most.

    >>> matrix = tf.constant([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], tf.float64)
    >>> products = lambda v: tf.linalg.matvec(matrix, v), lambda u: tf.linalg.matvec(matrix, u, transpose_a=True)
    >>> right_side, damping = tf.constant([1.0, 2.0, 2.0], tf.float64), tf.constant(0.0, tf.float64)
    >>> lsmr(*products, right_side, damping=damping, tolerance=1e-12, max_iterations=9).numpy().round(6).tolist()
    [0.666667, 0.5]
    """
    left, beta = _normalized(right_side)
    right, alpha = _normalized(transposed(left))
    one, zero = tf.ones_like(beta), tf.zeros_like(beta)
    enough = tolerance * alpha * beta

    def unsolved(state: _LsmrState) -> Any:
        return (state.iteration < max_iterations) & (tf.abs(state.zeta_bar) > enough) & (state.alpha > 0.0)

    def improve(state: _LsmrState) -> tuple[_LsmrState]:
        left, beta = _normalized(product(state.right) - state.alpha * state.left)
        right, alpha = _normalized(transposed(left) - beta * state.right)
        # The rotation that takes the damping out, then those of the two QR factorizations of the bidiagonal matrix.
        alpha_hat = tf.sqrt(state.alpha_bar**2 + damping**2)
        rho = tf.sqrt(alpha_hat**2 + beta**2)
        cosine, sine = tf.math.divide_no_nan(alpha_hat, rho), tf.math.divide_no_nan(beta, rho)
        theta = sine * alpha
        theta_bar, rho_scaled = state.sine_bar * rho, state.cosine_bar * rho
        rho_bar = tf.sqrt(rho_scaled**2 + theta**2)
        cosine_bar, sine_bar = tf.math.divide_no_nan(rho_scaled, rho_bar), tf.math.divide_no_nan(theta, rho_bar)
        h_bar = state.h - tf.math.divide_no_nan(theta_bar * rho, state.rho * state.rho_bar) * state.h_bar
        following = _LsmrState(
            iteration=state.iteration + 1,
            x=state.x + tf.math.divide_no_nan(cosine_bar * state.zeta_bar, rho * rho_bar) * h_bar,
            left=left,
            right=right,
            alpha=alpha,
            alpha_bar=cosine * alpha,
            rho=rho,
            rho_bar=rho_bar,
            cosine_bar=cosine_bar,
            sine_bar=sine_bar,
            zeta_bar=-sine_bar * state.zeta_bar,
            h=right - tf.math.divide_no_nan(theta, rho) * state.h,
            h_bar=h_bar,
        )
        return (following,)

    start = _LsmrState(
        iteration=tf.constant(0),
        x=tf.zeros_like(right),
        left=left,
        right=right,
        alpha=alpha,
        alpha_bar=alpha,
        rho=one,
        rho_bar=one,
        cosine_bar=one,
        sine_bar=zero,
        zeta_bar=alpha * beta,
        h=right,
        h_bar=tf.zeros_like(right),
    )
    return tf.while_loop(unsolved, improve, (start,), parallel_iterations=1)[0].x


class _LsmrState(NamedTuple):
    """The names of the paper: bidiagonalization (left, right, alpha), rotations (the bars), search directions (h, h_bar)."""

    iteration: Any
    x: Any
    left: Any
    right: Any
    alpha: Any
    alpha_bar: Any
    rho: Any
    rho_bar: Any
    cosine_bar: Any
    sine_bar: Any
    zeta_bar: Any
    h: Any
    h_bar: Any


def _normalized(vector: Any) -> tuple[Any, Any]:
    """The vector at length one (zero stays zero), and its length."""
    length = tf.norm(vector)
    return tf.math.divide_no_nan(vector, length), length
