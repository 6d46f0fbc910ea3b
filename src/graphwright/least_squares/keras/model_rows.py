"""The least-squares problem of one batch: on one device, or shared by the replicas of a strategy.

Rows are those of `graphwright.least_squares.rows`, whose residuals are the roots of the losses; the cost is the loss itself, as Keras
defines it for the whole batch.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from graphwright.least_squares.keras.compiled_losses import CompiledLosses
from graphwright.least_squares.keras.decisions import Decisions
from graphwright.least_squares.keras.dense_jacobian import dense_jacobian
from graphwright.least_squares.keras.model_function import ModelFunction
from graphwright.least_squares.keras.patch_convolutions import convolutions_by_patches
from graphwright.least_squares.parameters import ParameterLayout
from graphwright.least_squares.robust_losses import RobustLoss
from graphwright.least_squares.rows import Rows

tf: Any = importlib.import_module("tensorflow")


class Batch(NamedTuple):
    """The samples of a batch: tensors whose first dimension counts them.

    Attributes:
        x: inputs.
        targets: by output; `()` where an output is not trained.
        weights: of the samples, by output; `()` where all count the same.
        streams: numbers that set the random numbers of samples apart; `()` where there are none.
    """

    x: Any
    targets: Any
    weights: Any
    streams: Any


class ModelRows(Rows):
    """Residuals and Jacobian of a model's losses on one batch.

    Args:
        factors: what the losses of the outputs are multiplied with.
        state: values of the model's other variables.
        decisions: how to compute the Jacobian.
    """

    def __init__(
        self,
        function: ModelFunction,
        losses: CompiledLosses,
        batch: Batch,
        factors: Sequence[Any],
        state: Sequence[Any],
        decisions: Decisions,
    ) -> None:
        self._function = function
        self._losses = losses
        self._batch = batch
        self._factors = list(factors)
        self.forwarded: tuple[list[Any], list[Any]] | None = None
        """Outputs and state after them, where the last linearization evaluated all samples at once, and with the random numbers of all."""
        self._state = list(state)
        self._decisions = decisions
        coupled = function.couples_samples

        def roots(leaves: Sequence[Any], x: Any, targets: Any, weights: Any, streams: Any) -> Any:
            outputs, _ = function.outputs(leaves, state, x, streams)
            return losses.roots(targets, outputs, weights, factors, function.layout.dtype)

        # No methods of this object: it would hold itself, and all tensors of the trace, until Python looks for reference cycles.
        def roots_of_all(leaves: Sequence[Any]) -> Any:
            return roots(leaves, *batch)

        super().__init__(
            roots_of_all if coupled else roots,
            function.layout,
            data=() if coupled else tuple(batch),
            chunk_size=decisions.chunk_size,
            mode=decisions.jacobian_mode,
        )

    def cost(self, x: Any) -> Any:
        """The loss of the batch: a scalar."""
        leaves = self.layout.split(x)
        if not self.is_chunked or self.samples is None:
            return self._total(leaves, *self._batch)
        return self._over_samples(lambda total, data, _: total + self._total(leaves, *data), tf.zeros([], x.dtype))

    def _count_of(self, data: Sequence[Any]) -> int:  # noqa: ARG002
        return self._decisions.residuals  # known without tracing the model

    def _linearize(self, leaves: list[Any], data: Sequence[Any]) -> tuple[Any, Any]:
        if self.mode != "per_sample":
            return super()._linearize(leaves, data)
        dense = self._function.dense_layers
        if dense is None:
            with convolutions_by_patches(self._function.model):
                return super()._linearize(leaves, data)

        def vector_of_roots(parts: list[Any]) -> Any:
            self.forwarded = self._function.outputs(parts, self._state, data[0], data[3])
            return tf.reshape(self._losses.roots(data[1], self.forwarded[0], data[2], self._factors, self.layout.dtype), [-1])

        found = dense_jacobian(vector_of_roots, leaves, dense, self._function.variables, samples=sample_count(data[0]))
        if self.is_chunked:
            self.forwarded = None
        return found

    def _total(self, leaves: Sequence[Any], x: Any, targets: Any, weights: Any, streams: Any) -> Any:
        outputs, _ = self._function.outputs(leaves, self._state, x, streams)
        return self._losses.total(targets, outputs, weights, self._factors, self.layout.dtype)


class LocalBatch:
    """A batch on one device.

    Args:
        data: inputs, targets and sample weights.
        state: values of the model's other variables.
        decide: the number of samples -> how to compute.
    """

    def __init__(
        self, function: ModelFunction, losses: CompiledLosses, data: Any, state: Sequence[Any], decide: Callable[[int], Decisions]
    ) -> None:
        self._function, self._state = function, state
        self._x = data[0]
        samples = sample_count(data[0])
        weights = losses.sample_weights(data[2])
        factors = losses.factors(losses.denominators(weights, samples, function.layout.dtype))
        batch = batch_of(losses, data, function.layout.dtype, streams=tf.range(samples) if function.is_random else ())
        self.rows = ModelRows(function, losses, batch, factors, state, decide(samples))

    def forward(self, point: Any) -> tuple[Any, list[Any]]:
        """All outputs (flat), and the state variables after the forward pass; at the point where the rows were linearized last."""
        if self.rows.forwarded is not None:
            return self.rows.forwarded
        return self._function.outputs(self._function.layout.split(point), self._state, self._x)


class ReplicatedBatch:
    """A batch shared by the replicas of a strategy: each sums over its samples, and the sums are reduced.

    To be used in the cross-replica context; see `LocalBatch`.
    """

    def __init__(
        self,
        strategy: Any,
        function: ModelFunction,
        losses: CompiledLosses,
        data: Any,
        state: Sequence[Any],
        decide: Callable[[int], Decisions],
        *,
        jit_compile: bool,
    ) -> None:
        self._strategy, self._function, self._state, self._data = strategy, function, state, data
        dtype = function.layout.dtype
        most = decide(max(sample_count(x) for x in strategy.experimental_local_results(data[0])))

        def denominators_here(data: Any) -> Any:
            found = losses.denominators(losses.sample_weights(data[2]), sample_count(data[0]), dtype)
            return [tf.convert_to_tensor(value, dtype) for value in found]

        factors = losses.factors([reduced(strategy, value) for value in strategy.run(denominators_here, args=(data,))])

        def rows_here(data: Any) -> Rows:
            context = tf.distribute.get_replica_context()
            first = tf.cast(context.replica_id_in_sync_group, tf.int32) * 2**20
            streams = first + tf.range(sample_count(data[0])) if function.is_random else ()
            batch = batch_of(losses, data, dtype, streams=streams)
            if sample_count(data[0]) == 0:  # the last batch may leave a replica without samples: one that does not count
                batch = tf.nest.map_structure(_one_of_zeros, batch)._replace(weights=[tf.zeros([1], dtype)] * len(losses.names))
            return ModelRows(function, losses, batch, factors, state, decide(sample_count(batch.x)))

        self.rows = ReplicatedRows(strategy, function.layout, data, rows_here, most=most.residuals, jit_compile=jit_compile)

    def forward(self, point: Any) -> tuple[Any, list[Any]]:
        """All outputs, per replica; and the state variables after the forward pass, means over replicas."""
        leaves = self._function.layout.split(point)

        def here(data: Any) -> Any:
            return self._function.outputs(leaves, self._state, data[0])

        outputs, after = self._strategy.run(here, args=(self._data,))
        merged: list[Any] = []
        for value in after:
            local = self._strategy.experimental_local_results(value)
            merged.append(self._strategy.reduce("MEAN", value, axis=None) if local[0].dtype.is_floating else local[0])
        return outputs, merged


class ReplicatedRows:
    """The rows of all replicas, as far as they are needed as sums.

    Args:
        data: per replica.
        rows_here: data of a replica -> its rows.
        most: residuals of the replica that has most of them.
        jit_compile: let XLA compile what each replica sums; the sums themselves are reduced outside.
    """

    def __init__(
        self,
        strategy: Any,
        layout: ParameterLayout,
        data: Any,
        rows_here: Callable[[Any], Rows],
        *,
        most: int,
        jit_compile: bool = False,
    ) -> None:
        self.layout = layout
        self.loss = RobustLoss()
        self._strategy, self._data, self._rows_here, self._jit_compile = strategy, data, rows_here, jit_compile
        self._most = most

    def cost(self, x: Any) -> Any:
        """The loss of the whole batch: a scalar."""
        return self._sum(lambda rows: rows.cost(x))

    def fold(self, x: Any, body: Callable[[Any, Any, Any], Any], initial: Any) -> Any:
        """As of `Rows`, for bodies that only add to what is zero at first."""
        return self._sum(lambda rows: rows.fold(x, body, initial))

    def gradient(self, x: Any) -> tuple[Any, Any]:
        """The gradient (n,), and the squared length of the residuals, a scalar."""
        return self._sum(lambda rows: rows.gradient(x))

    def gram_product(self, x: Any, vector: Any) -> Any:
        """The Gram matrix times a vector (n,)."""
        return self._sum(lambda rows: rows.gram_product(x, vector))

    def squared_norm_along(self, x: Any, vector: Any) -> Any:
        """The squared length of the Jacobian times a vector (n,): a scalar."""
        return self._sum(lambda rows: rows.squared_norm_along(x, vector))

    def random_column_products(self, x: Any, seed: Any) -> Any:
        """The transposed Jacobian times random signs (n,): those that one device with the samples of all replicas would draw."""
        total = self._most * int(self._strategy.num_replicas_in_sync)

        def here(rows: Rows) -> Any:
            replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)
            return rows.random_column_products(x, seed, first=replica * self._most, total=total)

        return self._sum(here)

    def residuals(self, x: Any) -> Any:
        """One residual, as long as all together: what matrix-free systems ask for is the length."""
        return tf.sqrt(self._sum(lambda rows: tf.reduce_sum(tf.square(rows.residuals(x)))))[tf.newaxis]

    def _sum(self, function: Callable[[Rows], Any]) -> Any:
        def sums(data: Any) -> Any:
            return function(self._rows_here(data))

        compiled = tf.function(sums, autograph=False, jit_compile=True) if self._jit_compile else sums

        def here(data: Any) -> Any:  # a tf.function that is given to `run` itself would be one for all replicas
            return compiled(data)

        parts = self._strategy.run(here, args=(self._data,))
        return tf.nest.pack_sequence_as(parts, [reduced(self._strategy, value) for value in tf.nest.flatten(parts)])


def batch_of(losses: CompiledLosses, data: Any, dtype: Any, *, streams: Any = ()) -> Batch:
    """The samples of `data`: inputs, targets and sample weights as a user gives them."""
    x, y, sample_weight = data
    weights = [() if weight is None else tf.cast(weight, dtype) for weight in losses.sample_weights(sample_weight)]
    return Batch(x, [() if target is None else target for target in losses.targets(y)], weights, streams)


def _one_of_zeros(tensor: Any) -> Any:
    return tf.zeros([1, *tensor.shape[1:]], tensor.dtype)


def sample_count(x: Any) -> int:
    """Samples of a structure of tensors of static shape."""
    return int(tf.nest.flatten(x)[0].shape[0])


def reduced(strategy: Any, value: Any) -> Any:
    """The sum over replicas."""
    return strategy.reduce("SUM", value, axis=None)
