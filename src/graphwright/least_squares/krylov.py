"""Conjugate gradients as a TensorFlow loop, for matrices that are only known by their products."""

import importlib
from collections.abc import Callable
from typing import Any

tf: Any = importlib.import_module("tensorflow")

Product = Callable[[Any], Any]


def conjugate_gradients(product: Product, right_side: Any, *, tolerance: float, max_iterations: int) -> Any:
    """Solve A x = b for a symmetric positive definite A, from zero; return x (n,).

    M. R. Hestenes, E. Stiefel: Methods of conjugate gradients for solving linear systems (1952). `tolerance` is the largest length of the
    residual relative to b, `max_iterations` the limit of products.
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
