"""The least-squares problem of one batch: on one device, or shared by the replicas of a strategy.

The residuals of `graphwright.least_squares.rows` are the roots of the losses. The cost is the loss that Keras defines for the batch.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from graphwright.least_squares.keras.compiled_losses import CompiledLosses
from graphwright.least_squares.keras.decisions import Decisions
from graphwright.least_squares.keras.model_function import ModelFunction
from graphwright.least_squares.keras.patch_convolutions import convolutions_by_patches
from graphwright.least_squares.rows import Rows

tf: Any = importlib.import_module("tensorflow")

_STREAMS_OF_A_REPLICA = 2**20


class Batch(NamedTuple):
    """The samples of a batch, by output where there are several; `()` where there is none. `streams` separates random numbers."""

    x: Any
    targets: Any
    weights: Any
    streams: Any


class BatchRows(Rows):
    """Residuals and Jacobian of a model's losses on the batch of one device."""

    def __init__(
        self,
        function: ModelFunction,
        losses: CompiledLosses,
        batch: Batch,
        factors: Sequence[Any],
        state: Sequence[Any],
        decisions: Decisions,
    ) -> None:
        dtype = function.layout.dtype
        self._function, self._batch, self._state = function, batch, list(state)
        self.method = decisions.method

        def roots(leaves: Sequence[Any], x: Any, targets: Any, weights: Any, streams: Any) -> Any:
            outputs, _ = function.outputs(leaves, state, x, streams)
            return losses.roots(targets, outputs, weights, factors, dtype)

        # Not a method: the object would refer to itself, and all tensors of the trace would live until garbage is collected.
        def roots_of_all(leaves: Sequence[Any]) -> Any:
            return roots(leaves, *batch)

        def total(leaves: Sequence[Any], x: Any, targets: Any, weights: Any, streams: Any) -> Any:
            outputs, _ = function.outputs(leaves, state, x, streams)
            return losses.total(targets, outputs, weights, factors, dtype)

        self._total = total
        super().__init__(
            roots_of_all if function.couples_samples else roots,
            function.layout,
            data=() if function.couples_samples else tuple(batch),
            chunk_size=decisions.chunk_size,
            mode=decisions.jacobian_mode,
            count=decisions.residuals,
        )

    def forward(self, point: Any) -> tuple[Any, list[Any]]:
        """Return all outputs (flat), and the state variables after the forward pass."""
        return self._function.outputs(self.layout.split(point), self._state, self._batch.x)

    def _cost_of(self, leaves: list[Any], data: Sequence[Any]) -> Any:
        return self._total(leaves, *(data or self._batch))

    def _linearize(self, leaves: list[Any], data: Sequence[Any]) -> tuple[Any, Any]:
        if self.mode != "per_sample":
            return super()._linearize(leaves, data)
        with convolutions_by_patches(self._function.model):
            return super()._linearize(leaves, data)


def local_rows(
    function: ModelFunction, losses: CompiledLosses, data: Any, state: Sequence[Any], decide: Callable[[int], Decisions]
) -> BatchRows:
    """Return the rows of a batch (inputs, targets, sample weights) on one device; `decide` maps the number of samples to decisions."""
    samples, dtype = sample_count(data[0]), function.layout.dtype
    factors = losses.factors(losses.denominators(losses.sample_weights(data[2]), samples, dtype))
    batch = batch_of(losses, data, dtype, streams=tf.range(samples) if function.is_random else ())
    return BatchRows(function, losses, batch, factors, state, decide(samples))


class ReplicatedRows:
    """The rows of a batch shared by replicas, as sums over them, for the cross-replica context.

    XLA compiles the sums of each replica if `jit_compile`.
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
        self.layout = function.layout
        self._strategy, self._function, self._losses, self._data, self._state = strategy, function, losses, data, state
        self._decide, self._jit_compile = decide, jit_compile
        largest = decide(max(sample_count(x) for x in strategy.experimental_local_results(data[0])))
        self.method = largest.method
        self._most = largest.residuals
        dtype = self.layout.dtype

        def denominators(data: Any) -> Any:
            return losses.denominators(losses.sample_weights(data[2]), sample_count(data[0]), dtype)

        self._factors = losses.factors([self._reduced(value) for value in strategy.run(denominators, args=(data,))])

    def cost(self, x: Any) -> Any:
        return self._sum(lambda rows: rows.cost(x))

    def fold(self, x: Any, body: Callable[[Any, Any, Any], Any], initial: Any) -> Any:
        """See `Rows.fold`; for bodies that only add to an initial value of zero."""
        return self._sum(lambda rows: rows.fold(x, body, initial))

    def gradient(self, x: Any) -> tuple[Any, Any]:
        return self._sum(lambda rows: rows.gradient(x))

    def gram_product(self, x: Any, vector: Any) -> Any:
        return self._sum(lambda rows: rows.gram_product(x, vector))

    def squared_norm_along(self, x: Any, vector: Any) -> Any:
        return self._sum(lambda rows: rows.squared_norm_along(x, vector))

    def random_column_products(self, x: Any, seed: Any) -> Any:
        """See `Rows.random_column_products`; with the signs that one device with all samples would draw."""
        total = self._most * int(self._strategy.num_replicas_in_sync)
        return self._sum(lambda rows: rows.random_column_products(x, seed, first=_replica() * self._most, total=total))

    def forward(self, point: Any) -> tuple[Any, list[Any]]:
        """Return all outputs, per replica, and the state variables after the forward pass, means over replicas."""
        leaves = self.layout.split(point)

        def outputs(data: Any) -> Any:
            return self._function.outputs(leaves, self._state, data[0])

        results, after = self._strategy.run(outputs, args=(self._data,))
        merged: list[Any] = []
        for value in after:
            local = self._strategy.experimental_local_results(value)
            merged.append(self._strategy.reduce("MEAN", value, axis=None) if local[0].dtype.is_floating else local[0])
        return results, merged

    def _rows(self, data: Any) -> Rows:
        function, samples, dtype = self._function, sample_count(data[0]), self.layout.dtype
        streams = _replica() * _STREAMS_OF_A_REPLICA + tf.range(samples) if function.is_random else ()
        batch = batch_of(self._losses, data, dtype, streams=streams)
        if samples == 0:  # the last batch may leave a replica without samples: add one of weight zero
            batch = tf.nest.map_structure(_one_of_zeros, batch)._replace(weights=[tf.zeros([1], dtype)] * len(self._losses.names))
        return BatchRows(function, self._losses, batch, self._factors, self._state, self._decide(sample_count(batch.x)))

    def _sum(self, function: Callable[[Rows], Any]) -> Any:
        def sums(data: Any) -> Any:
            return function(self._rows(data))

        compiled = tf.function(sums, autograph=False, jit_compile=True) if self._jit_compile else sums

        def on_replica(data: Any) -> Any:  # a tf.function given to `run` itself would be one function for all replicas
            return compiled(data)

        parts = self._strategy.run(on_replica, args=(self._data,))
        return tf.nest.map_structure(self._reduced, parts)

    def _reduced(self, value: Any) -> Any:
        return self._strategy.reduce("SUM", value, axis=None)


def batch_of(losses: CompiledLosses, data: Any, dtype: Any, *, streams: Any = ()) -> Batch:
    x, y, sample_weight = data
    weights = [() if weight is None else tf.cast(weight, dtype) for weight in losses.sample_weights(sample_weight)]
    return Batch(x, [() if target is None else target for target in losses.targets(y)], weights, streams)


def sample_count(x: Any) -> int:
    return int(tf.nest.flatten(x)[0].shape[0])


def _replica() -> Any:
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)


def _one_of_zeros(tensor: Any) -> Any:
    return tf.zeros([1, *tensor.shape[1:]], tensor.dtype)
