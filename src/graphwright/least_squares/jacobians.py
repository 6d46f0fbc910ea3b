"""Jacobians of a function of several tensors, and products with them.

A function maps n parameter elements (as a list of tensors) to a vector of m residuals. Its Jacobian, m rows by n columns, is computed

- **forward**: n tangents at once, vectorized; the work and memory of n evaluations;
- **reverse**: m cotangents at once by `tf.GradientTape.jacobian`, vectorized; the work and memory of m evaluations;
- **per sample**: where sample i of the data determines row i, each sample's rows come from its own small backward pass, vectorized over the
  samples; the work of one evaluation per residual of *one sample*, whatever the number of samples.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

tf: Any = importlib.import_module("tensorflow")

JacobianMode = Literal["auto", "forward", "reverse", "per_sample"]
LeafFunction = Callable[[list[Any]], Any]
"""Parameter tensors -> residuals (m,)."""


def forward_jacobian(function: LeafFunction, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """Return the value (m,) and the Jacobian (m, n), from one tangent per parameter element, all at once."""
    linear = Linear(function, leaves)
    with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
        cotangent = tf.zeros_like(linear.residuals)
        tape.watch(cotangent)
        joined = tf.concat([tf.reshape(gradient, [-1]) for gradient in linear.pull(cotangent)], axis=0)
    columns = tape.jacobian(joined, cotangent, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return linear.residuals, tf.transpose(columns)


def reverse_jacobian(function: LeafFunction, leaves: Sequence[Any]) -> tuple[Any, Any]:
    """Return the value (m,) and the Jacobian (m, n), from one cotangent per residual, all at once."""
    with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
        tape.watch(list(leaves))
        residuals = function(list(leaves))
    parts = tape.jacobian(residuals, list(leaves), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return residuals, _side_by_side(parts, residuals.shape[0], leaves)


def rows_of_jacobian(function: LeafFunction, leaves: Sequence[Any], first: Any, count: int) -> tuple[Any, Any]:
    """Return all residuals (m,), and rows `first` to `first + count - 1` of the Jacobian (count, n), from `count` cotangents at once.

    The forward pass runs again for each block of rows. Memory holds one evaluation and one block.
    """
    linear = Linear(function, leaves)
    residuals = linear.residuals

    def row(index: Any) -> list[Any]:
        return linear.pull(tf.one_hot(index, residuals.shape[0], dtype=residuals.dtype))

    return residuals, _side_by_side(tf.vectorized_map(row, first + tf.range(count)), count, leaves)


def per_sample_jacobian(function: Callable[[list[Any], Any], Any], leaves: Sequence[Any], data: Any) -> tuple[Any, Any]:
    """Return the value (m,) and the Jacobian (m, n) of a function whose residuals of a sample depend on that sample only.

    `function` maps parameter tensors and data of c samples to c * k residuals, sample by sample.
    """

    def of_sample(sample: Any) -> tuple[Any, list[Any]]:
        batch_of_one = tf.nest.map_structure(_as_batch, sample)
        linear = Linear(lambda parts: function(parts, batch_of_one), leaves)
        residuals = linear.residuals
        if residuals.shape[0] == 1:  # nothing to vectorize, for half of the graph
            return residuals, linear.pull(tf.ones_like(residuals))
        return residuals, tf.vectorized_map(linear.pull, tf.eye(residuals.shape[0], dtype=residuals.dtype))

    residuals, parts = tf.vectorized_map(of_sample, data)
    count = math.prod(residuals.shape)
    return tf.reshape(residuals, [-1]), _side_by_side(parts, count, leaves)


class Linear:
    """A function linearized at a point: its value, and products with its Jacobian J (m, n), from one evaluation."""

    def __init__(self, function: LeafFunction, leaves: Sequence[Any]) -> None:
        self._leaves = list(leaves)
        with tf.GradientTape(watch_accessed_variables=False, persistent=True) as self._tape:
            self._tape.watch(self._leaves)
            self.residuals = function(self._leaves)

    def pull(self, cotangent: Any) -> list[Any]:
        """Return J' times a vector (m,), as tensors like the parameters."""
        return self._tape.gradient(
            self.residuals, self._leaves, output_gradients=cotangent, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )

    def connected(self, tensors: Sequence[Any]) -> list[list[bool]]:
        """Return, per intermediate tensor of the function, which parameters it depends on."""
        return [[gradient is not None for gradient in self._tape.gradient(tensor, self._leaves)] for tensor in tensors]

    def push(self, tangents: Sequence[Any]) -> Any:
        """Return J times a vector, passed as tensors like the parameters: (m,).

        `pull` is linear in its cotangent u, so its derivative in u, applied to a tangent, is J times that tangent (J. Townsend, 2017). It
        traces several times faster than a `tf.autodiff.ForwardAccumulator` and leaves smaller graphs.
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            cotangent = tf.zeros_like(self.residuals)
            tape.watch(cotangent)
            pulled = [tf.convert_to_tensor(gradient) for gradient in self.pull(cotangent)]
        return tape.gradient(pulled, cotangent, output_gradients=list(tangents), unconnected_gradients=tf.UnconnectedGradients.ZERO)


def cheapest_mode(parameters: int, residuals: int, residuals_per_sample: int | None) -> Literal["forward", "reverse", "per_sample"]:
    """Return the mode with the fewest passes through the function.

    Args:
        residuals: of all samples evaluated at once.
        residuals_per_sample: None if samples may depend on each other.
    """
    if residuals_per_sample is not None and residuals_per_sample <= parameters:
        return "per_sample"
    return "forward" if parameters <= residuals else "reverse"


def _side_by_side(parts: Sequence[Any], rows: int, leaves: Sequence[Any]) -> Any:
    return tf.concat([tf.reshape(part, [rows, math.prod(leaf.shape)]) for part, leaf in zip(parts, leaves, strict=True)], axis=1)


def _as_batch(sample: Any) -> Any:
    return tf.expand_dims(sample, 0)
