"""Residuals and the rows of their Jacobian, chunk by chunk, weighted by a robust loss.

What is a sum over rows (the cost, the gradient, the Gram matrix, a triangular factor) is folded over chunks in a TensorFlow loop, so that
no more than one chunk of the Jacobian exists at a time. A chunk is

- with `data`: `chunk_size` samples, whose residuals must not depend on other samples. Activations too are those of a chunk only;
- without: `chunk_size` rows, found by as many cotangents; the residuals themselves are evaluated as a whole for each chunk.
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


class Rows:
    """The rows of a least-squares problem: residuals f, their Jacobian J, both weighted by the loss.

    Args:
        residuals: `residuals(params, *data)` -> a tensor, or a structure of tensors, of the parameters' type.
        layout: of the parameters.
        data: tensors whose first dimension counts samples, which are independent of each other; empty when the residuals take none.
        chunk_size: samples (with data) or residuals (without) at a time; None for all at once.
        loss: how residuals count.
        mode: how the Jacobian is found; `"auto"` takes what needs fewest passes.
        jacobian: `jacobian(params, *data)` in place of differentiation: a matrix (m, n), or a structure like the parameters whose tensors
            have the shape of the residuals followed by that of the parameter.

    Example:
        >>> from graphwright.least_squares.parameters import flatten_parameters
        >>> layout, x = flatten_parameters(tf.constant([2.0, 1.0], tf.float64))
        >>> t = tf.constant([0.0, 1.0, 2.0], tf.float64)
        >>> rows = Rows(lambda p, t: p[0] * t + p[1], layout, data=(t,), chunk_size=2)
        >>> gradient = rows.fold(x, lambda total, f, J: total + tf.linalg.matvec(J, f, transpose_a=True), tf.zeros_like(x))
        >>> rows.count, float(rows.cost(x)), gradient.numpy().tolist()
        (3, 17.5, [13.0, 9.0])
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
    ) -> None:
        self._residuals = residuals
        self.layout = layout
        self._data = tuple(data)
        self.loss = loss or RobustLoss()
        self._jacobian = jacobian
        self.samples = _samples(self._data)
        self.count = self._count_of(self._data)
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
                remedy="give `data`, whose chunks it is then asked for, or leave out `chunk_size`",
            )

    def residuals(self, x: Any) -> Any:
        """All residuals (m,), not weighted."""
        leaves = self.layout.split(x)
        if self.samples is None or not self.is_chunked:
            return self._evaluate(leaves, self._data)
        per_sample = self.count // self.samples
        found = tf.zeros([self.samples, per_sample], x.dtype)

        def put(found: Any, data: Any, first: Any) -> Any:
            part = tf.reshape(self._evaluate(leaves, data), [-1, per_sample])
            return tf.tensor_scatter_nd_update(found, (first + tf.range(part.shape[0]))[:, tf.newaxis], part)

        return tf.reshape(self._over_samples(put, found), [-1])

    def cost(self, x: Any) -> Any:
        """Half the sum of squares, or of the loss: a scalar."""
        leaves = self.layout.split(x)
        if self.samples is None or not self.is_chunked:
            return self.loss.cost(self._evaluate(leaves, self._data))
        return self._over_samples(lambda total, data, _: total + self.loss.cost(self._evaluate(leaves, data)), tf.zeros([], x.dtype))

    def fold(self, x: Any, body: Callable[[Any, Any, Any], Any], initial: Any) -> Any:
        """`body(so_far, f, J)` over chunks of weighted residuals (c,) and of the weighted Jacobian (c, n), from `initial` on."""
        leaves = self.layout.split(x)

        def weighted(so_far: Any, residuals: Any, matrix: Any) -> Any:
            if self.loss.is_linear:
                return body(so_far, residuals, matrix)
            row, residual = self.loss.weights(residuals)
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
        """The gradient of the cost (n,) and the squared length of the weighted residuals, a scalar; without a Jacobian."""
        leaves = self.layout.split(x)

        def add(so_far: Any, data: Any, _: Any) -> Any:
            linear = self._linear(leaves, data)
            weighted = linear.residuals if self.loss.is_linear else self.loss.weights(linear.residuals)[1] * linear.residuals
            pulled = self.layout.join(linear.pull(self._weighted(weighted, linear)))
            return so_far[0] + pulled, so_far[1] + tf.reduce_sum(tf.square(weighted))

        return self._over_samples(add, (tf.zeros_like(x), tf.zeros([], x.dtype)))

    def gradient_at(self, x: Any) -> Any:
        """The gradient of the cost (n,), by the Jacobian where that is given."""
        if self._jacobian is None:
            return self.gradient(x)[0]

        def add(so_far: Any, residuals: Any, matrix: Any) -> Any:
            return so_far + tf.linalg.matvec(matrix, residuals, transpose_a=True)

        return self.fold(x, add, tf.zeros_like(x))

    def gram_product(self, x: Any, vector: Any) -> Any:
        """The Gram matrix of the weighted Jacobian times a vector (n,), without either."""
        tangents = self.layout.split(vector)

        def along(linear: Linear, _data: Any, _first: Any) -> Any:
            return self._weighted(linear.push(tangents), linear)

        return self._sum_of_pulls(x, along)

    def squared_norm_along(self, x: Any, vector: Any) -> Any:
        """The squared length of the weighted Jacobian times a vector (n,): a scalar, chunk by chunk."""
        leaves, tangents = self.layout.split(x), self.layout.split(vector)

        def add(total: Any, data: Any, _: Any) -> Any:
            linear = self._linear(leaves, data)
            return total + tf.reduce_sum(tf.square(self._weighted(linear.push(tangents), linear)))

        return self._over_samples(add, tf.zeros([], x.dtype))

    def random_column_products(self, x: Any, seed: Any, *, first: Any = 0, total: int | None = None) -> Any:
        """The transposed weighted Jacobian times random signs (n,): its square estimates the squared column norms without bias.

        Each row has a sign of its own, whatever the chunks. The estimator is that of C. Bekas, E. Kokiopoulou, Y. Saad: An estimator for
        the diagonal of a matrix (2007).

        Args:
            seed: two ints.
            first: the number of the first row here, where others are elsewhere.
            total: rows here and elsewhere; None for those here.
        """
        coins = tf.random.stateless_uniform([self.count if total is None else total], seed, 0, 2, tf.int32)

        def signs(linear: Linear, _: Any, sample: Any) -> Any:
            row = first + sample * (self.count // (self.samples or 1))
            return tf.cast(2 * tf.slice(coins, [row], linear.residuals.shape) - 1, x.dtype)

        return self._sum_of_pulls(x, signs)

    def curvature_gradient(self, x: Any, direction: Any) -> Any:
        """The transposed weighted Jacobian times the weighted second derivative of the residuals along `direction`: (n,).

        The second derivative is a central difference over a tenth of the direction, as M. K. Transtrum and J. P. Sethna (2012) use.
        """
        width = tf.constant(0.1, x.dtype)
        ahead, behind = self.layout.split(x + width * direction), self.layout.split(x - width * direction)

        def bend(linear: Linear, data: Any, _: Any) -> Any:
            both = self._evaluate(ahead, data) + self._evaluate(behind, data)
            return self._weighted((both - 2.0 * linear.residuals) / width**2, linear)

        return self._sum_of_pulls(x, bend)

    def _linear(self, leaves: list[Any], data: Sequence[Any]) -> Linear:
        return Linear(lambda parts: self._evaluate(parts, data), leaves)

    def _weighted(self, vector: Any, linear: Linear) -> Any:
        """A vector (m,) times the weights of the Jacobian's rows."""
        return vector if self.loss.is_linear else self.loss.weights(linear.residuals)[0] * vector

    def _sum_of_pulls(self, x: Any, vector: Callable[[Linear, Any, Any], Any]) -> Any:
        """The transposed weighted Jacobian times a vector, summed over chunks of samples (n,).

        Args:
            vector: the linearized residuals of a chunk, its data and the number of its first sample -> what belongs to it of the vector.
        """
        leaves = self.layout.split(x)

        def add(total: Any, data: Any, first: Any) -> Any:
            linear = self._linear(leaves, data)
            return total + self.layout.join(linear.pull(self._weighted(vector(linear, data, first), linear)))

        return self._over_samples(add, tf.zeros_like(x))

    def _over_samples(self, body: Callable[[Any, Any, Any], Any], initial: Any) -> Any:
        """`body(so_far, data, first)` over chunks of samples; over all data at once where there are no chunks of them."""
        if self.samples is None or not self.is_chunked:
            return body(initial, self._data, 0)

        def of_slice(so_far: Any, first: Any, count: int) -> Any:
            def part(tensor: Any) -> Any:
                return tf.slice(tensor, [first] + [0] * (tensor.shape.rank - 1), [count, *tensor.shape[1:]])

            return body(so_far, tf.nest.map_structure(part, self._data), first)

        return _over_chunks(of_slice, initial, self.samples, self.chunk_size)

    def _evaluate(self, leaves: list[Any], data: Sequence[Any]) -> Any:
        """The residuals of these samples as one vector."""
        parts = tf.nest.flatten(self._residuals(self.layout.pack(leaves), *data))
        if not parts or any(part is None for part in parts):
            raise ArgumentError("nothing is returned", argument="residuals", remedy="return a tensor, or a structure of tensors")
        vectors = [tf.reshape(part, [-1]) for part in parts]
        for vector in vectors:
            self._check_type(vector.dtype, "residuals", "argument 'residuals'")
        return vectors[0] if len(vectors) == 1 else tf.concat(vectors, axis=0)

    def _check_type(self, dtype: Any, what: str, where: str) -> None:
        if dtype != self.layout.dtype:
            raise ArgumentError(
                f"{what} of type {dtype.name} of parameters of type {self.layout.dtype.name}",
                where=where,
                remedy="make parameters, data and residuals of one type",
            )

    def _linearize(self, leaves: list[Any], data: Sequence[Any]) -> tuple[Any, Any]:
        """Residuals (c,) and Jacobian (c, n) of these samples."""
        if self._jacobian is not None:
            return self._evaluate(leaves, data), self._given_jacobian(leaves, data)
        if self.mode == "per_sample":
            return per_sample_jacobian(self._evaluate, leaves, data)
        function = forward_jacobian if self.mode == "forward" else reverse_jacobian
        return function(lambda parts: self._evaluate(parts, data), leaves)

    def _given_jacobian(self, leaves: list[Any], data: Sequence[Any]) -> Any:
        assert self._jacobian is not None
        found = tf.nest.flatten(self._jacobian(self.layout.pack(leaves), *data))
        if not found or any(part is None for part in found):
            raise ArgumentError("nothing is returned", argument="jacobian", remedy="return a matrix, or a structure of tensors")
        parts = [as_data(part, self.layout.dtype) for part in found]
        for part in parts:
            self._check_type(part.dtype, "a Jacobian", "argument 'jacobian'")
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
        """Residuals of these samples; the function is traced for their shape."""
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
    """What a function that takes the tensor is traced with."""
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _is_jacobian(found: Any, rows: int, parameter: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape holds the derivatives of so many residuals with respect to a parameter of that shape."""
    behind = len(found) - len(parameter)
    return behind >= 0 and tuple(found[behind:]) == parameter and math.prod(found[:behind]) == rows


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
            "data of which the number of samples is not known while the graph is built",
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
    """`body(so_far, first, size)` for each chunk: whole ones in a loop that runs one at a time, then what is left."""
    whole, rest = divmod(count, chunk_size)

    def is_left(i: Any, _: Any) -> Any:
        return i < whole

    def fold_one(i: Any, so_far: Any) -> tuple[Any, Any]:
        return i + 1, body(so_far, i * chunk_size, chunk_size)

    _, so_far = tf.while_loop(is_left, fold_one, (tf.constant(0), initial), parallel_iterations=1)
    return body(so_far, tf.constant(whole * chunk_size), rest) if rest else so_far
