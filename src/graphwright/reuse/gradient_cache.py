"""`GradientCache`: exact gradients of a loss over all representations of a batch, in the memory of one chunk.

The gradient of a contrastive loss needs the whole batch, but the loss depends on the encoder through the representations only. Therefore
representations are computed chunk by chunk, without residuals; the loss of all and its gradients with respect to them, the *cotangents*,
are computed at once; then each chunk is encoded again, with the same random numbers, and its cotangents are pulled back to the variables.
The sum over chunks is the exact gradient, for one more forward pass. Source: L. Gao, Y. Zhang, J. Han, J. Callan: Scaling Deep
Contrastive Learning Batch Size under Memory Limited Setup, 2021.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.reuse.chunk_loops import ChunkedEncoder, plain_variable, rows, samples_of
from graphwright.reuse.encoders import Encoder, examine
from graphwright.source.private_tensorflow import call_flat, not_recorded
from graphwright.source.tensorflow_import import import_keras, left_alone

if TYPE_CHECKING:
    from graphwright.reuse.gradient_cache_model import GradientCacheModel

tf: Any = importlib.import_module("tensorflow")


class GradientCacheResult(NamedTuple):
    """The result of a `GradientCache`.

    Attributes:
        loss: a scalar.
        gradients: per variable of `GradientCache.variables`, a tensor of its shape and dtype; None if the loss does not depend on it.
        representations: of all samples, in the structure of the encoders, without a gradient.
    """

    loss: Any
    gradients: tuple[Any, ...]
    representations: Any


class GradientCache:
    """Loss and exact gradients of a batch whose residuals would not fit: contrastive learning, retrieval, metric learning.

    Call it with the inputs, then with the loss's other arguments; eagerly, in a `tf.function`, or in replicas of a `tf.distribute`
    strategy. Dropout draws the same numbers in both passes, and its generators advance as in one pass over the chunks. Gradient tapes do
    not record a call.

    In replicas, representations and the loss's other tensors are gathered along their first axis, so each replica computes the loss of
    the global batch, and gradients whose *sum* over replicas is its gradient, as Keras optimizers and `strategy.reduce("SUM", ...)`
    expect.

    Args:
        encoders: one Keras layer or function of tensors, or a tuple, list or mapping of several, such as for queries and documents; one
            may appear twice. Inputs and representations have samples in their first dimension.
        loss: takes the representations of each encoder (or their mapping) and the other arguments of a call; returns a scalar. It may be
            a Keras layer, and have variables such as a temperature.
        chunk_size: samples encoded at once; the last chunk may be smaller. One number, or one per encoder.
        variables: the variables to differentiate with respect to; by default all trainable variables that encoders and loss read.
        jit_compile: compile eager calls with XLA.
        assume_independent: skip the proof that the representation of a sample depends on that sample only.

    Raises:
        ArgumentError: wrong encoders or sizes; at a call: inputs that do not fit, a loss that is not a scalar or does not depend on the
            representations.
        UnsupportedError: (at a call) an encoder changes a variable (batch normalization in training), draws random numbers that cannot
            be drawn again, adds losses of its own, or cannot be shown to keep samples independent.

    >>> import tensorflow as tf
    >>> weight = tf.Variable([[1.0], [2.0]])
    >>> cache = GradientCache(lambda x: x @ weight, lambda rows: tf.reduce_sum(rows @ tf.transpose(rows)), chunk_size=2)
    >>> result = cache(tf.ones((5, 2)))
    >>> float(result.loss), result.gradients[0].numpy().tolist(), result.representations.shape
    (225.0, [[150.0], [150.0]], TensorShape([5, 1]))
    """

    def __init__(
        self,
        encoders: Any,
        loss: Callable[..., Any],
        chunk_size: int | Sequence[int] | Mapping[str, int],
        *,
        variables: Sequence[Any] | None = None,
        jit_compile: bool = False,
        assume_independent: bool = False,
    ) -> None:
        self.encoders = encoders
        self.loss = loss
        self._by_key = _by_key(encoders)
        for encoder in self._by_key.values():
            if not callable(encoder):
                got = type(encoder).__name__
                raise ArgumentError(f"a {got} in place of an encoder", argument="encoders", remedy="give Keras layers or functions")
        if not callable(loss):
            raise ArgumentError(f"a {type(loss).__name__} in place of a loss", argument="loss", remedy="give a function")
        self._sizes = _sizes(chunk_size, self._by_key)
        self._requested = None if variables is None else tuple(variables)
        self._assume_independent = assume_independent
        self._variables: tuple[Any, ...] | None = None
        self._compiled = tf.function(left_alone(self.trace), jit_compile=jit_compile or None)
        self._compiled_forward = tf.function(left_alone(self._trace_forward), jit_compile=jit_compile or None)

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables of the gradients, in order; known after the first call, or if they were given."""
        variables = self._requested if self._requested is not None else self._variables
        if variables is None:
            raise ArgumentError(
                "the variables are known only after the first call", argument="variables", remedy="call it once, or give variables="
            )
        return variables

    @left_alone
    def __call__(self, inputs: Any, *others: Any, training: bool = True) -> GradientCacheResult:
        """Return loss, gradients and representations of a batch.

        Args:
            inputs: the argument of the encoder, a structure of tensors with samples in their first dimension; one per encoder if there
                are several, in the structure of the encoders.
            others: other arguments of the loss, such as labels: structures of tensors.
            training: passed to encoders and loss if they take it.
        """
        return _called(self.trace, self._compiled, inputs, others, training)

    @left_alone
    def forward(self, inputs: Any, *others: Any, training: bool = False) -> GradientCacheResult:
        """Return loss and representations without gradients, for evaluation."""
        return _called(self._trace_forward, self._compiled_forward, inputs, others, training)

    def model(self, **keywords: Any) -> GradientCacheModel:
        """Return a Keras model that trains the encoders with `compile` and `fit`.

        `fit(x)` or `fit(x, y)`: x are the inputs, y is passed to the loss after the representations. A call and `predict` return
        representations, `evaluate` the loss.

        Args:
            keywords: of `keras.Model`, such as `name`.

        Raises:
            ArgumentError: an encoder is not a Keras layer.
        """
        from graphwright.reuse.gradient_cache_model import GradientCacheModel  # imports this module

        return GradientCacheModel(self, **keywords)

    def trace(
        self,
        inputs: Any,
        others: Any,
        training: bool,
        scale_loss: Callable[[Any], Any] | None = None,
        extra: Callable[[], Any] | None = None,
    ) -> GradientCacheResult:
        """Compute the result of a call in the graph that is being traced, for the scaled loss plus an extra term of variables only."""
        towers = self._towers(inputs, training)
        own = _represent(towers)
        replicas = _Replicas()
        gathered = replicas.gather(own)
        leaves = [leaf for leaf in tf.nest.flatten(gathered) if leaf.dtype.is_floating or leaf.dtype.is_complex]
        with tf.GradientTape() as tape:
            tape.watch([*leaves, *map(plain_variable, self._requested or ())])
            loss = self._loss_of(gathered, replicas.gather(others), training)
            total = loss if extra is None else loss + tf.cast(extra(), loss.dtype)
            total = total if scale_loss is None else scale_loss(total)
        states = {id(state): state for tower in towers for state in tower.encoder.states}
        after = [(state, state.read_value()) for state in states.values()]  # an encoder and the loss may share one
        in_loss = [*tape.watched_variables()]
        variables = self._requested or _distinct([*self._layer_variables(), *(v for t in towers for v in t.encoder.trainable), *in_loss])
        plain = [plain_variable(variable) for variable in variables]
        gradients = tape.gradient(total, [*leaves, *plain])
        cotangents = {id(leaf): cotangent for leaf, cotangent in zip(leaves, gradients, strict=False)}
        if all(cotangent is None for cotangent in cotangents.values()):
            raise ArgumentError("the loss does not depend on the representations", argument="loss", remedy="compute it from its arguments")
        pulled = _pull(towers, gathered, cotangents, plain, gradients[len(leaves) :], replicas)
        for state, value in after:
            state.assign(value)
        self._variables = tuple(variables)
        return GradientCacheResult(loss, tuple(pulled), self._packed(own))

    def _trace_forward(self, inputs: Any, others: Any, training: bool) -> GradientCacheResult:
        own = _represent(self._towers(inputs, training))
        replicas = _Replicas()
        loss = self._loss_of(replicas.gather(own), replicas.gather(others), training)
        return GradientCacheResult(loss, (), self._packed(own))

    def _towers(self, inputs: Any, training: bool) -> list[_Tower]:
        parts = {None: inputs} if None in self._by_key else _by_key(inputs)
        if parts.keys() != self._by_key.keys():
            raise ArgumentError(
                f"inputs of type {type(inputs).__name__} with parts {[*parts]} for encoders {[*self._by_key]}",
                argument="inputs",
                remedy="give them in the structure of the encoders",
            )
        towers: list[_Tower] = []
        for key, encoder in self._by_key.items():
            where = "encoder" if key is None else f"encoder {key!r}"
            count = samples_of(tf.nest.flatten(parts[key]), where)
            size = self._sizes[key] if count is None else min(self._sizes[key], count)
            specs = tf.nest.map_structure(partial(_chunk_spec, size=max(size, 2)), parts[key])
            examined = examine(encoder, specs, training=training, assume_independent=self._assume_independent, where=where)
            towers.append(_Tower(examined, ChunkedEncoder(examined, parts[key], size, where)))
        return towers

    def _layer_variables(self) -> list[Any]:
        layers: list[Any] = [*self._by_key.values(), self.loss]
        return [v for layer in layers if isinstance(layer, import_keras().layers.Layer) for v in layer.trainable_variables]

    def _loss_of(self, representations: Sequence[Any], others: Sequence[Any], training: bool) -> Any:
        arguments = [self._packed(representations)] if isinstance(self.encoders, Mapping) else representations
        options = {"training": training} if isinstance(self.loss, import_keras().layers.Layer) else {}
        loss = tf.convert_to_tensor(self.loss(*arguments, *others, **options))
        if loss.shape.rank != 0 or not loss.dtype.is_floating:
            raise ArgumentError(
                f"the loss gives {loss.dtype.name} of shape {loss.shape}",
                argument="loss",
                remedy="let it give one real number for the batch",
            )
        return loss

    def _packed(self, parts: Sequence[Any]) -> Any:
        if isinstance(self.encoders, Mapping):
            return dict(zip(self._by_key, parts, strict=True))
        return parts[0] if None in self._by_key else tuple(parts)


@dataclass(frozen=True)
class _Tower:
    encoder: Encoder
    chunks: ChunkedEncoder


class _Replicas:
    """The replicas of the current strategy, or a single one."""

    def __init__(self) -> None:
        self._context: Any = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        if tf.distribute.has_strategy() and self._context is None:
            raise UnsupportedError(
                "it was called outside of the replicas of a strategy",
                where=f"strategy {type(tf.distribute.get_strategy()).__name__}",
                remedy="call it in the function that strategy.run is given",
            )
        self.count = 1 if self._context is None else int(self._context.num_replicas_in_sync)

    def gather(self, structure: Any) -> Any:
        """Concatenate the tensors of all replicas along their first axis. Scalars stay as they are."""
        if self.count == 1:
            return structure

        def gathered(leaf: Any) -> Any:
            return self._context.all_gather(leaf, axis=0) if leaf.shape.rank else leaf

        return tf.nest.map_structure(gathered, structure)

    def first(self, samples: Any) -> Any:
        """Return the index of this replica's first sample in gathered tensors."""
        if self.count == 1:
            return 0
        sizes = self._context.all_gather(tf.reshape(tf.cast(samples, tf.int32), [1]), axis=0)
        return tf.reduce_sum(sizes[: self._context.replica_id_in_sync_group])

    def own(self, gathered: Any, first: Any, samples: Any) -> Any:
        """Return this replica's part of a gathered tensor; None stays None."""
        if gathered is None:
            return None
        gathered = tf.convert_to_tensor(gathered)
        return gathered if self.count == 1 else rows(gathered, first, samples)


def _pull(
    towers: Sequence[_Tower],
    gathered: Sequence[Any],
    cotangents: Mapping[int, Any],
    variables: Sequence[Any],
    loss_gradients: Sequence[Any],
    replicas: _Replicas,
) -> list[Any]:
    """Return the gradients: of the loss itself, and through the representations, tower by tower.

    Args:
        cotangents: by the `id` of a gathered representation.
        loss_gradients: equal in all replicas, whose gradients are summed, so each takes its share.
    """
    sums: list[Any] = [None] * len(variables)
    for k, gradient in enumerate(loss_gradients):
        if gradient is not None:
            dtype = _sum_dtype(variables[k])
            sums[k] = tf.cast(tf.convert_to_tensor(gradient), dtype) / tf.cast(replicas.count, dtype)
    for tower, representations in zip(towers, gathered, strict=True):
        of_tower = [cotangents.get(id(leaf)) for leaf in tf.nest.flatten(representations)]
        if all(cotangent is None for cotangent in of_tower):
            continue
        read = [k for k, variable in enumerate(variables) if id(variable.handle) in tower.encoder.read]
        first = replicas.first(tower.chunks.samples)
        own = [replicas.own(cotangent, first, tower.chunks.samples) for cotangent in of_tower]
        start = [tf.zeros(variables[k].shape, _sum_dtype(variables[k])) if sums[k] is None else sums[k] for k in read]
        totals, reached = tower.chunks.pull(own, [variables[k] for k in read], start)
        for k, total, is_reached in zip(read, totals, reached, strict=True):
            sums[k] = total if is_reached else sums[k]
    return [None if total is None else tf.cast(total, v.dtype) for total, v in zip(sums, variables, strict=True)]


def _called(trace: Callable[..., Any], compiled: Any, inputs: Any, others: Any, training: bool) -> GradientCacheResult:
    """Trace in the current graph, or call the compiled function so that no tape of the caller records it."""
    inputs, others = _as_tensors(inputs), _as_tensors(others)
    if not tf.executing_eagerly():
        return trace(inputs, others, training)
    concrete = compiled.get_concrete_function(inputs, others, training)
    with not_recorded():
        return call_flat(concrete, tf.nest.flatten((inputs, others), expand_composites=True))


def _represent(towers: Sequence[_Tower]) -> list[Any]:
    representations: list[Any] = []
    for tower in towers:
        representations.append(tower.chunks.represent(tf.nest.flatten(representations)))
    return representations


def _sum_dtype(variable: Any) -> Any:
    return tf.float32 if variable.dtype in (tf.float16, tf.bfloat16) else variable.dtype


def _distinct(variables: Sequence[Any]) -> list[Any]:
    by_handle: dict[int, Any] = {}
    for variable in variables:
        by_handle.setdefault(id(plain_variable(variable).handle), variable)
    return list(by_handle.values())


def _as_tensors(structure: Any) -> Any:
    def as_tensor(leaf: Any) -> Any:
        is_composite = isinstance(leaf, tf.RaggedTensor | tf.SparseTensor)
        return leaf if is_composite else tf.convert_to_tensor(leaf)

    return tf.nest.map_structure(as_tensor, structure)


def _by_key(structure: Any) -> dict[Any, Any]:
    """Return the parts of a mapping, tuple or list by key or position; of anything else, the thing itself by None."""
    if isinstance(structure, Mapping):
        return dict(cast("Mapping[str, Any]", structure))
    if isinstance(structure, tuple | list):
        return dict(enumerate(cast("Sequence[Any]", structure)))
    return {None: structure}


def _chunk_spec(leaf: Any, size: int) -> Any:
    return tf.TensorSpec([size, *leaf.shape[1:]], leaf.dtype)


def _sizes(chunk_size: Any, encoders: Mapping[Any, Any]) -> dict[Any, int]:
    sizes = _by_key(chunk_size)
    if None in sizes:
        sizes = {key: chunk_size for key in encoders}  # noqa: C420 - a type checker knows this one
    wrong = [size for size in sizes.values() if isinstance(size, bool) or not isinstance(size, int) or size < 1]
    if sizes.keys() != encoders.keys() or not encoders or wrong:
        raise ArgumentError(
            f"chunk_size={chunk_size!r}", argument="chunk_size", remedy="give a whole number of at least 1, or one per encoder"
        )
    return sizes
