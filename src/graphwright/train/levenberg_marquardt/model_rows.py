"""The least-squares problem of one batch: on one device, or shared by the replicas of a strategy.

Rows are those of `damped_least_squares.rows`, whose residuals are the roots of the losses; the cost is the loss itself, as Keras defines it
for the whole batch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from graphwright.train.damped_least_squares.parameters import ParameterLayout
from graphwright.train.damped_least_squares.robust_losses import RobustLoss
from graphwright.train.damped_least_squares.rows import Rows
from graphwright.train.levenberg_marquardt.compiled_losses import CompiledLosses
from graphwright.train.levenberg_marquardt.decisions import Decisions
from graphwright.train.levenberg_marquardt.model_function import ModelFunction
from graphwright.train.levenberg_marquardt.patch_convolutions import convolutions_by_patches

tf: Any = importlib.import_module("tensorflow")


class Batch(NamedTuple):
    """The samples of a batch: tensors whose first dimension counts them.

    Attributes:
        x: inputs.
        targets: by output.
        scales: what the loss of each element is multiplied with, by output.
        streams: numbers that set the random numbers of samples apart.
    """

    x: Any
    targets: Any
    scales: Any
    streams: Any


class ModelRows(Rows):
    """Residuals and Jacobian of a model's losses on one batch.

    Args:
        function: the model.
        losses: of its outputs.
        batch: the samples.
        state: values of the model's other variables.
        decisions: how to compute the Jacobian.
    """

    def __init__(self, function: ModelFunction, losses: CompiledLosses, batch: Batch, state: Sequence[Any], decisions: Decisions) -> None:
        self._function = function
        self._losses = losses
        self._batch = batch
        self._state = list(state)
        self._decisions = decisions
        coupled = function.couples_samples
        super().__init__(
            self._roots_of_all if coupled else self._roots,
            function.layout,
            data=() if coupled else tuple(batch),
            chunk_size=decisions.chunk_size,
            mode=decisions.jacobian_mode,
        )

    def cost(self, x: Any) -> Any:
        """The loss of the batch: a scalar."""
        leaves = self.layout.split(x)

        def add(total: Any, data: Any, _: Any) -> Any:
            return total + self._total(leaves, *(data or self._batch))

        return self._over_samples(add, tf.zeros([], x.dtype))

    def _count_of(self, data: Sequence[Any]) -> int:
        del data  # known without tracing the model
        return self._decisions.residuals

    def _linearize(self, leaves: list[Any], data: Sequence[Any]) -> tuple[Any, Any]:
        with convolutions_by_patches(self._function.model) if self.mode == "per_sample" else nullcontext():
            return super()._linearize(leaves, data)

    def _total(self, leaves: Sequence[Any], x: Any, targets: Any, scales: Any, streams: Any) -> Any:
        outputs, _ = self._function.outputs(leaves, self._state, x, streams)
        return self._losses.total(targets, outputs, scales, self.layout.dtype)

    def _roots_of_all(self, leaves: Sequence[Any]) -> Any:
        return self._roots(leaves, *self._batch)

    def _roots(self, leaves: Sequence[Any], x: Any, targets: Any, scales: Any, streams: Any) -> Any:
        outputs, _ = self._function.outputs(leaves, self._state, x, streams)
        return self._losses.roots(targets, outputs, scales, self.layout.dtype)


class LocalBatch:
    """A batch on one device.

    Args:
        function: the model.
        losses: of its outputs.
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
        denominators = losses.denominators(weights, samples, function.layout.dtype)
        self.rows = ModelRows(function, losses, batch_of(losses, data, denominators, function.layout.dtype, 0), state, decide(samples))

    def forward(self, point: Any) -> tuple[Any, list[Any]]:
        """All outputs (flat), and the state variables after the forward pass."""
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

        def denominators_here(data: Any) -> Any:
            return losses.denominators(losses.sample_weights(data[2]), sample_count(data[0]), dtype)

        denominators = [reduced(strategy, value) for value in strategy.run(denominators_here, args=(data,))]

        def rows_here(data: Any) -> Rows:
            context = tf.distribute.get_replica_context()
            first = tf.cast(context.replica_id_in_sync_group, tf.int32) * 2**20
            batch = batch_of(losses, data, denominators, dtype, first)
            if sample_count(data[0]) == 0:  # the last batch may leave a replica without samples: one that does not count
                batch = tf.nest.map_structure(_one_of_zeros, batch)
            return ModelRows(function, losses, batch, state, decide(sample_count(batch.x)))

        self.rows = ReplicatedRows(strategy, function.layout, data, rows_here, jit_compile=jit_compile)

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
        strategy: whose replicas they are.
        layout: of the parameters.
        data: per replica.
        rows_here: data of a replica -> its rows.
        jit_compile: let XLA compile what each replica sums; the sums themselves are reduced outside.
    """

    def __init__(
        self, strategy: Any, layout: ParameterLayout, data: Any, rows_here: Callable[[Any], Rows], *, jit_compile: bool = False
    ) -> None:
        self.layout = layout
        self.loss = RobustLoss()
        self._strategy, self._data, self._rows_here, self._jit_compile = strategy, data, rows_here, jit_compile

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
        """The transposed Jacobian times random signs (n,), other ones on each replica."""

        def here(rows: Rows) -> Any:
            replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)
            return rows.random_column_products(x, tf.stack([replica, seed[0] + 1000 * seed[1]]))

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


def batch_of(losses: CompiledLosses, data: Any, denominators: Sequence[Any], dtype: Any, first_stream: Any) -> Batch:
    """The samples of `data`, with scales that make the sum of losses what Keras reports for the whole batch."""
    x, y, sample_weight = data
    samples = sample_count(x)
    scales = losses.scales(losses.sample_weights(sample_weight), denominators, samples, dtype)
    streams = first_stream + tf.range(samples)
    targets = [streams if target is None else target for target in losses.targets(y)]  # an output without a loss has no target
    return Batch(x, targets, scales, streams)


def _one_of_zeros(tensor: Any) -> Any:
    return tf.zeros([1, *tensor.shape[1:]], tensor.dtype)


def sample_count(x: Any) -> int:
    """Samples of a structure of tensors of static shape."""
    return int(tf.nest.flatten(x)[0].shape[0])


def reduced(strategy: Any, value: Any) -> Any:
    """The sum over replicas."""
    return strategy.reduce("SUM", value, axis=None)
