"""Residuals and the rows of their Jacobian, chunk by chunk, weighted by a robust loss.

Sums over rows and a triangular factor are folded over chunks in a TensorFlow loop, with one chunk of the Jacobian at a time. A chunk is

- with `data`: `chunk_size` samples, whose residuals must not depend on other samples;
- without: `chunk_size` rows, computed from as many cotangents. All residuals are evaluated again for each chunk.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from graphwright.errors import ArgumentError, GraphwrightError
from graphwright.least_squares.arguments import as_data, tracing_error
from graphwright.least_squares.jacobians import (
    JacobianMode,
    Linear,
    cheapest_mode,
    forward_jacobian,
    per_sample_jacobian,
    reverse_jacobian,
    rows_of_jacobian,
)
from graphwright.least_squares.parameters import ParameterLayout
from graphwright.least_squares.robust_losses import RobustLoss

tf: Any = importlib.import_module("tensorflow")


class Chunk(Linear):
    """The weighted residuals of some samples from number `first` on, linearized."""

    def __init__(self, evaluate: Callable[[list[Any]], Any], layout: ParameterLayout, loss: RobustLoss, x: Any, first: Any) -> None:
        super().__init__(evaluate, layout.split(x))
        self.evaluate, self.first = evaluate, first
        self._layout = layout
        self._row_weights, residual_weights = loss.weights(self.residuals)
        self.weighted_residuals = self.residuals if residual_weights is None else residual_weights * self.residuals

    def weighted(self, vector: Any) -> Any:
        return vector if self._row_weights is None else self._row_weights * vector

    def along(self, direction: Any) -> Any:
        return self.weighted(self.push(self._layout.split(direction)))

    def transposed(self, vector: Any) -> Any:
        return self._layout.join(self.pull(self.weighted(vector)))


class Rows:
    """The rows of a least-squares problem: residuals f and their Jacobian J, both weighted by the loss.

    Args:
        residuals: `residuals(params, *data)` -> a tensor, or a structure of tensors, of the parameters' type.
        layout: of the parameters.
        data: tensors whose first dimension counts independent samples; empty if the residuals take none.
        chunk_size: samples (with data) or residuals (without) at a time; None for all at once.
        jacobian: replaces differentiation: a matrix (m, n), or a structure like the parameters whose tensors have the shape of the
            residuals followed by the shape of the parameter.
        cost: `cost(params, *data)`, a sum over samples, which replaces half the sum of squares.
        count: number of residuals, if known; otherwise the residuals are traced for it.
    """

    def __init__(
        self,
        residuals: Callable[..., Any],
        layout: ParameterLayout,
        *,
        data: Sequence[Any] = (),
        chunk_size: int | None = None,
        loss: RobustLoss | None = None,
        mode: JacobianMode = "auto",
        jacobian: Callable[..., Any] | None = None,
        cost: Callable[..., Any] | None = None,
        count: int | None = None,
    ) -> None:
        self._residuals = residuals
        self._cost = cost
        self.layout = layout
        self._data = tuple(data)
        self.loss = loss or RobustLoss()
        self._jacobian = jacobian
        self.samples = _samples(self._data)
        self.count = self._count_of(self._data) if count is None else count
        whole = self.count if self.samples is None else self.samples
        self.chunk_size = whole if chunk_size is None else min(int(chunk_size), whole)
        self.is_chunked = self.chunk_size < whole
        if self.is_chunked and self.samples is not None and self.count % self.samples:
            raise ArgumentError(
                f"{self.count} residuals of {self.samples} samples",
                argument="residuals",
                cause="in chunks of samples, each sample must have residuals of its own",
                remedy="return as many for each sample, or leave out `chunk_size`",
            )
        self.mode = self._mode(mode)
        if jacobian is not None and self.samples is None and self.is_chunked:
            raise ArgumentError(
                "a Jacobian of your own in chunks of residuals",
                argument="chunk_size",
                cause="it comes as a whole",
                remedy="give `data`, so that it is called for chunks of samples, or leave out `chunk_size`",
            )

    def residuals(self, x: Any) -> Any:
        leaves = self.layout.split(x)
        if self.samples is None or not self.is_chunked:
            return self._evaluate(leaves, self._data)
        per_sample = self.count // self.samples

        def put(table: Any, data: Any, first: Any) -> Any:
            part = tf.reshape(self._evaluate(leaves, data), [-1, per_sample])
            return tf.tensor_scatter_nd_update(table, (first + tf.range(part.shape[0]))[:, tf.newaxis], part)

        return tf.reshape(self._over_samples(put, tf.zeros([self.samples, per_sample], x.dtype)), [-1])

    def cost(self, x: Any) -> Any:
        leaves = self.layout.split(x)
        if self.samples is None or not self.is_chunked:
            return self._cost_of(leaves, self._data)
        return self._over_samples(lambda total, data, _: total + self._cost_of(leaves, data), tf.zeros([], x.dtype))

    def fold(self, x: Any, body: Callable[[Any, Any, Any], Any], initial: Any) -> Any:
        """Apply `body(so_far, f, J)` to each chunk of weighted residuals (c,) and of the weighted Jacobian (c, n), from `initial` on."""
        leaves = self.layout.split(x)

        def weighted(so_far: Any, residuals: Any, matrix: Any) -> Any:
            row, residual = self.loss.weights(residuals)
            if row is None:
                return body(so_far, residuals, matrix)
            return body(so_far, residual * residuals, row[:, tf.newaxis] * matrix)

        if not self.is_chunked:
            return weighted(initial, *self._linearize(leaves, self._data))
        if self.samples is not None:
            return self._over_samples(lambda so_far, data, _: weighted(so_far, *self._linearize(leaves, data)), initial)

        def of_rows(so_far: Any, first: Any, count: int) -> Any:
            residuals, matrix = rows_of_jacobian(lambda parts: self._evaluate(parts, ()), leaves, first, count)
            return weighted(so_far, residuals[first : first + count], matrix)

        return _over_chunks(of_rows, initial, self.count, self.chunk_size)

    def gradient(self, x: Any) -> tuple[Any, Any]:
        """Return the gradient of the cost (n,) and the squared length of the weighted residuals (a scalar), without a Jacobian."""

        def add(so_far: Any, chunk: Chunk) -> Any:
            residuals = chunk.weighted_residuals
            return so_far[0] + chunk.transposed(residuals), so_far[1] + tf.reduce_sum(tf.square(residuals))

        return self._over_linear(x, add, (tf.zeros_like(x), tf.zeros([], x.dtype)))

    def gradient_at(self, x: Any) -> Any:
        """Return the gradient of the cost (n,), computed from the user's Jacobian if there is one."""
        if self._jacobian is None:
            return self.gradient(x)[0]

        def add(total: Any, residuals: Any, matrix: Any) -> Any:
            return total + tf.linalg.matvec(matrix, residuals, transpose_a=True)

        return self.fold(x, add, tf.zeros_like(x))

    def gram_product(self, x: Any, vector: Any) -> Any:
        return self._over_linear(x, lambda total, chunk: total + chunk.transposed(chunk.along(vector)), tf.zeros_like(x))

    def squared_norm_along(self, x: Any, vector: Any) -> Any:
        return self._over_linear(x, lambda total, chunk: total + tf.reduce_sum(tf.square(chunk.along(vector))), tf.zeros([], x.dtype))

    def random_column_products(self, x: Any, seed: Any, *, first: Any = 0, total: int | None = None) -> Any:
        """Return the transposed weighted Jacobian times random signs (n,): its square estimates the squared column norms.

        Each row has its own sign, whatever the chunks; `first` and `total` number the rows of several replicas. The estimator is due to C.
        Bekas, E. Kokiopoulou, Y. Saad: An estimator for the diagonal of a matrix (2007).
        """
        coins = tf.random.stateless_uniform([self.count if total is None else total], seed, 0, 2, tf.int32)

        def add(so_far: Any, chunk: Chunk) -> Any:
            row = first + chunk.first * (self.count // (self.samples or 1))
            return so_far + chunk.transposed(tf.cast(2 * tf.slice(coins, [row], chunk.residuals.shape) - 1, x.dtype))

        return self._over_linear(x, add, tf.zeros_like(x))

    def curvature_gradient(self, x: Any, direction: Any) -> Any:
        """Return the transposed weighted Jacobian times the second derivative of the residuals along `direction`: (n,).

        It is a central difference over a tenth of the direction, as in M. K. Transtrum and J. P. Sethna (2012).
        """
        width = tf.constant(0.1, x.dtype)
        ahead, behind = self.layout.split(x + width * direction), self.layout.split(x - width * direction)

        def add(total: Any, chunk: Chunk) -> Any:
            both = chunk.evaluate(ahead) + chunk.evaluate(behind)
            return total + chunk.transposed(chunk.weighted((both - 2.0 * chunk.residuals) / width**2))

        return self._over_linear(x, add, tf.zeros_like(x))

    def _over_linear(self, x: Any, body: Callable[[Any, Chunk], Any], initial: Any) -> Any:

        def linearized(so_far: Any, data: Any, first: Any) -> Any:
            return body(so_far, Chunk(lambda parts: self._evaluate(parts, data), self.layout, self.loss, x, first))

        return self._over_samples(linearized, initial)

    def _over_samples(self, body: Callable[[Any, Any, Any], Any], initial: Any) -> Any:
        """Apply `body(so_far, data, first)` to each chunk of samples, or to all data at once without chunks of samples."""
        if self.samples is None or not self.is_chunked:
            return body(initial, self._data, 0)

        def of_slice(so_far: Any, first: Any, count: int) -> Any:
            def part(tensor: Any) -> Any:
                return tf.slice(tensor, [first] + [0] * (tensor.shape.rank - 1), [count, *tensor.shape[1:]])

            return body(so_far, tf.nest.map_structure(part, self._data), first)

        return _over_chunks(of_slice, initial, self.samples, self.chunk_size)

    def _cost_of(self, leaves: list[Any], data: Sequence[Any]) -> Any:
        if self._cost is not None:
            return self._cost(self.layout.pack(leaves), *data)
        return self.loss.cost(self._evaluate(leaves, data))

    def _evaluate(self, leaves: list[Any], data: Sequence[Any]) -> Any:
        parts = self._parts("residuals", self._residuals(self.layout.pack(leaves), *data))
        vectors = [tf.reshape(part, [-1]) for part in parts]
        return vectors[0] if len(vectors) == 1 else tf.concat(vectors, axis=0)

    def _parts(self, argument: str, result: Any) -> list[Any]:
        parts = tf.nest.flatten(result)
        if not parts or any(part is None for part in parts):
            raise ArgumentError("nothing is returned", argument=argument, remedy="return a tensor, or a structure of tensors")
        tensors = [as_data(part, self.layout.dtype) for part in parts]
        for tensor in tensors:
            if tensor.dtype != self.layout.dtype:
                what = "a Jacobian" if argument == "jacobian" else argument
                raise ArgumentError(
                    f"{what} of type {tensor.dtype.name} of parameters of type {self.layout.dtype.name}",
                    where=f"argument {argument!r}",
                    remedy="make parameters, data and residuals of one type",
                )
        return tensors

    def _linearize(self, leaves: list[Any], data: Sequence[Any]) -> tuple[Any, Any]:
        if self._jacobian is not None:
            return self._evaluate(leaves, data), self._users_jacobian(self._jacobian, leaves, data)
        if self.mode == "per_sample":
            return per_sample_jacobian(self._evaluate, leaves, data)
        function = forward_jacobian if self.mode == "forward" else reverse_jacobian
        return function(lambda parts: self._evaluate(parts, data), leaves)

    def _users_jacobian(self, jacobian: Callable[..., Any], leaves: list[Any], data: Sequence[Any]) -> Any:
        parts = self._parts("jacobian", jacobian(self.layout.pack(leaves), *data))
        rows = self._count_of(data)
        if len(parts) == 1 and tuple(parts[0].shape) == (rows, self.layout.size):
            return parts[0]
        shapes = self.layout.shapes
        if len(parts) != len(shapes) or not all(_is_jacobian(part.shape, rows, shape) for part, shape in zip(parts, shapes, strict=True)):
            raise ArgumentError(
                f"a Jacobian of shape {', '.join(str(tuple(part.shape)) for part in parts)}",
                argument="jacobian",
                remedy=f"return a matrix of shape {(rows, self.layout.size)}, or a structure like the parameters, "
                "of tensors with the shape of the residuals followed by that of the parameter",
            )
        return tf.concat([tf.reshape(part, [rows, -1]) for part in parts], axis=1)

    def _count_of(self, data: Sequence[Any]) -> int:
        specs = [tf.TensorSpec(shape, self.layout.dtype) for shape in self.layout.shapes]
        shape_only = tf.function(self._evaluate, autograph=False)
        data_specs = tf.nest.map_structure(spec_of, tuple(data))
        try:
            output = shape_only.get_concrete_function(specs, data_specs).outputs[0]
        except GraphwrightError:
            raise
        except (TypeError, ValueError, NotImplementedError, tf.errors.InvalidArgumentError) as error:
            others = {spec.dtype for spec in tf.nest.flatten(data_specs) if spec.dtype.is_floating} - {self.layout.dtype}
            raise tracing_error(error, self.layout.dtype, others) from error
        if output.shape[0] is None:
            raise ArgumentError(
                "the number of residuals is not known before they are computed",
                argument="residuals",
                remedy="return a tensor of static shape; a residual that does not count can be zero",
            )
        if output.shape[0] == 0:
            raise ArgumentError("there are no residuals", argument="residuals")
        return int(output.shape[0])

    def _mode(self, mode: JacobianMode) -> str:
        if self.samples is None and self.is_chunked:
            if mode not in ("auto", "reverse"):
                raise ArgumentError(
                    f"{mode} Jacobians in chunks of residuals", argument="jacobian_mode", remedy='"reverse", or give `data`'
                )
            return "reverse"
        if mode != "auto":
            if mode == "per_sample" and self.samples is None:
                raise ArgumentError("per-sample Jacobians without samples", argument="jacobian_mode", remedy="give `data`")
            return mode
        if self.samples is None:
            return cheapest_mode(self.layout.size, self.count, None)
        each = self.count // self.samples
        return cheapest_mode(self.layout.size, each * self.chunk_size, each if self.count == each * self.samples else None)


def spec_of(tensor: Any) -> Any:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _is_jacobian(shape: Any, rows: int, parameter: tuple[int, ...]) -> bool:
    behind = len(shape) - len(parameter)
    return behind >= 0 and tuple(shape[behind:]) == parameter and math.prod(shape[:behind]) == rows


def _samples(data: Sequence[Any]) -> int | None:
    if any(tensor.shape.rank == 0 for tensor in tf.nest.flatten(data)):
        raise ArgumentError(
            "data without a dimension of samples",
            argument="data",
            cause="a single number, or a list of numbers, each of which counts as data",
            remedy="give arrays whose first dimension counts samples (np.asarray of a list)",
        )
    if any(tensor.shape.rank is None or tensor.shape[0] is None for tensor in tf.nest.flatten(data)):
        raise ArgumentError(
            "data whose number of samples is not known while the graph is built",
            argument="data",
            remedy="give the tf.function an input_signature with static shapes, or set_shape",
        )
    sizes = {int(tensor.shape[0] or 0) for tensor in tf.nest.flatten(data)}
    if not sizes:
        return None
    if len(sizes) > 1 or 0 in sizes:
        raise ArgumentError(
            f"data of {' and '.join(map(str, sorted(sizes)))} samples",
            argument="data",
            remedy="give tensors whose first dimension is the same number of samples",
        )
    return sizes.pop()


def _over_chunks(body: Callable[[Any, Any, int], Any], initial: Any, count: int, chunk_size: int) -> Any:
    """Apply `body(so_far, first, size)` to whole chunks in a sequential loop, then to the rest."""
    whole, rest = divmod(count, chunk_size)

    def is_left(i: Any, _: Any) -> Any:
        return i < whole

    def fold_one(i: Any, so_far: Any) -> tuple[Any, Any]:
        return i + 1, body(so_far, i * chunk_size, chunk_size)

    _, so_far = tf.while_loop(is_left, fold_one, (tf.constant(0), initial), parallel_iterations=1)
    return body(so_far, tf.constant(whole * chunk_size), rest) if rest else so_far
