"""`GradientCache`: exact gradients of a loss over a whole batch of representations, in the memory of a chunk.

A contrastive loss compares every representation of a batch with every other one, so its gradient needs the whole batch, and the plain
backward pass keeps the residuals of all samples at once. But the loss reaches the encoder through the representations alone. So (L. Gao,
Y. Zhang, J. Han, J. Callan: Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021)

1. representations are computed chunk by chunk, and no residual is kept;
2. the loss of all representations, and its gradient with respect to them, the *cotangents*, are computed at once;
3. each chunk is encoded again, with the random numbers of the first time, and its cotangents are pulled back to the variables.

The sum over chunks is the gradient of the whole batch, not an approximation. It costs one forward pass more.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.reuse.chunk_loops import ChunkedEncoder, rows, samples_of
from graphwright.reuse.encoders import examine
from graphwright.source.private_tensorflow import call_flat, not_recorded
from graphwright.source.tensorflow_import import import_keras, left_alone

if TYPE_CHECKING:
    from graphwright.reuse.gradient_cache_model import GradientCacheModel

tf: Any = importlib.import_module("tensorflow")


class GradientCacheResult(NamedTuple):
    """What a `GradientCache` found.

    Attributes:
        loss: a scalar.
        gradients: per variable of `GradientCache.variables`, a tensor of its shape and dtype; None where the loss does not depend on it.
        representations: of all samples, in the structure of the encoders, without a gradient.
    """

    loss: Any
    gradients: tuple[Any, ...]
    representations: Any


class GradientCache:
    """Loss and exact gradients of a batch whose residuals would not fit: contrastive learning, retrieval, metric learning.

    Call it with the inputs, then with whatever else the loss takes; eagerly, in a `tf.function`, or in the replicas of a
    `tf.distribute` strategy. Dropout draws the same numbers in both passes and its generators go on as after one pass over the chunks.
    A call is not recorded by gradient tapes.

    In replicas the loss compares the representations of all replicas (they, and the loss's other tensors, are gathered along their first
    axis), so each replica finds the loss of the global batch, and gradients of which the *sum* over replicas is its gradient: what Keras
    optimizers and `strategy.reduce("SUM", ...)` make of them.

    Args:
        encoders: one Keras layer or function of tensors, or a tuple, list or mapping of several, such as for queries and documents; the
            same one may appear twice. Inputs and representations have samples in front.
        loss: takes the representations of each encoder (of a mapping: the mapping) and whatever else a call is given; gives a scalar. It
            may be a Keras layer, and have variables such as a temperature.
        chunk_size: samples that are encoded at once; the last chunk may be smaller. One number, or one per encoder.
        variables: what gradients are taken of; by default all trainable ones that encoders and loss read.
        jit_compile: let XLA compile eager calls.
        assume_independent: take it on trust that the representation of a sample depends on that sample alone. By default that is shown on
            the encoder's graph, or refused.

    Raises:
        ArgumentError: not encoders, or sizes that make no sense; when called: inputs that do not fit, a loss that is no scalar or does
            not depend on the representations.
        UnsupportedError: (when called) the encoder changes a variable (batch normalization in training), draws random numbers that cannot
            be drawn again, adds losses of its own, or cannot be shown to keep samples apart.

    >>> import tensorflow as tf
    >>> weight = tf.Variable([[1.0], [2.0]])
    >>> cache = GradientCache(lambda x: x @ weight, lambda rows: tf.reduce_sum(rows @ tf.transpose(rows)), chunk_size=2)
    >>> found = cache(tf.ones((5, 2)))
    >>> float(found.loss), found.gradients[0].numpy().tolist(), found.representations.shape
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
        self._keys = _keys_of(encoders)
        for key in self._keys:
            if not callable(_part(encoders, key)):
                got = type(_part(encoders, key)).__name__
                raise ArgumentError(f"a {got} in place of an encoder", argument="encoders", remedy="give Keras layers or functions")
        if not callable(loss):
            raise ArgumentError(f"a {type(loss).__name__} in place of a loss", argument="loss", remedy="give a function")
        self._sizes = _sizes_of(chunk_size, self._keys)
        self._given = None if variables is None else tuple(variables)
        self._assume_independent = assume_independent
        self._variables: tuple[Any, ...] | None = None
        self._compiled = tf.function(left_alone(self.trace), jit_compile=jit_compile or None)
        self._compiled_forward = tf.function(left_alone(self._trace_forward), jit_compile=jit_compile or None)

    @property
    def variables(self) -> tuple[Any, ...]:
        """What gradients are taken of, in their order.

        Raises:
            ArgumentError: it was not called yet, and nobody said.
        """
        found = self._given if self._given is not None else self._variables
        if found is None:
            raise ArgumentError(
                "which variables are read is known at the first call only",
                argument="variables",
                remedy="call it once, or give variables=",
            )
        return found

    @left_alone
    def __call__(self, inputs: Any, *others: Any, training: bool = True) -> GradientCacheResult:
        """Loss, gradients and representations of a batch.

        Args:
            inputs: for one encoder its argument, a structure of tensors with samples in front; for several, one such per encoder.
            others: what the loss takes besides, such as labels: structures of tensors.
            training: what encoders and loss that take it are told.
        """
        inputs, others = _as_tensors(inputs), _as_tensors(others)
        if not tf.executing_eagerly():
            return self.trace(inputs, others, training)
        return _called(self._compiled, inputs, others, training)

    @left_alone
    def forward(self, inputs: Any, *others: Any, training: bool = False) -> GradientCacheResult:
        """Loss and representations without gradients, which are all None; for evaluation. The arguments are those of a call."""
        inputs, others = _as_tensors(inputs), _as_tensors(others)
        if not tf.executing_eagerly():
            return self._trace_forward(inputs, others, training)
        return _called(self._compiled_forward, inputs, others, training)

    def model(self, **keywords: Any) -> GradientCacheModel:
        """A Keras model that trains the encoders with `compile` and `fit`; the encoders, and a loss with variables, must be Keras layers.

        `fit(x)` or `fit(x, y)`: x are the inputs, y is given to the loss behind the representations. Called, and in `predict`, it gives the
        representations; `evaluate` the loss.

        Args:
            keywords: of `keras.Model`, such as `name`.

        Raises:
            ArgumentError: an encoder is no Keras layer.
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
        """What a call computes, in the graph that is being traced.

        Args:
            scale_loss: makes the loss of which gradients are taken, such as `LossScaleOptimizer.scale_loss`.
            extra: what is added to the loss, a function of variables alone, such as regularizers.
        """
        towers = self._towers(inputs, training)
        own = _represent(towers)
        replicas = _Replicas()
        gathered = replicas.gather(own)
        leaves = [leaf for tower in gathered for leaf in tf.nest.flatten(tower)]
        floats = [leaf for leaf in leaves if leaf.dtype.is_floating or leaf.dtype.is_complex]
        with tf.GradientTape() as tape:
            tape.watch([*floats, *map(_plain, self._given or ())])
            loss = self._loss_of(gathered, replicas.gather(others), training)
            total = loss if extra is None else loss + tf.cast(extra(), loss.dtype)
            total = total if scale_loss is None else scale_loss(total)
        states = {id(state): state for tower in towers for state in tower.encoder.states}
        after = [(state, state.read_value()) for state in states.values()]  # an encoder and the loss may share one
        in_loss = [*tape.watched_variables()]
        variables = self._given or _distinct([*self._own_variables(), *(v for t in towers for v in t.encoder.trainable), *in_loss])
        plain = [_plain(variable) for variable in variables]
        found = tape.gradient(total, [*floats, *plain])
        by_leaf = {id(leaf): cotangent for leaf, cotangent in zip(floats, found, strict=False)}
        if all(by_leaf[id(leaf)] is None for leaf in floats):
            raise ArgumentError("the loss does not depend on the representations", argument="loss", remedy="compute it from its arguments")
        gradients = self._pull(towers, gathered, by_leaf, plain, found[len(floats) :], replicas)
        for state, value in after:
            state.assign(value)
        self._variables = tuple(variables)
        return GradientCacheResult(loss, tuple(gradients), _packed(self.encoders, self._keys, own))

    def _pull(
        self, towers: Sequence[_Tower], gathered: Sequence[Any], by_leaf: Any, variables: Sequence[Any], of_loss: Any, replicas: _Replicas
    ) -> list[Any]:
        """The gradients: what the loss has by itself, then tower by tower what comes through the representations."""
        sums: list[Any] = [None] * len(variables)
        for k, gradient in enumerate(of_loss):
            if gradient is not None:
                sums[k] = tf.cast(tf.convert_to_tensor(gradient), _sum_dtype(variables[k])) / replicas.share(_sum_dtype(variables[k]))
        for tower, representations in zip(towers, gathered, strict=True):
            cotangents = [by_leaf.get(id(leaf)) for leaf in tf.nest.flatten(representations)]
            if all(cotangent is None for cotangent in cotangents):
                continue
            read = [k for k, variable in enumerate(variables) if id(variable.handle) in tower.encoder.read]
            first = replicas.first(tower.chunks.samples)
            parts = [replicas.own(cotangent, first, tower.chunks.samples) for cotangent in cotangents]
            start = [tf.zeros(variables[k].shape, _sum_dtype(variables[k])) if sums[k] is None else sums[k] for k in read]
            done, reached = tower.chunks.pull(parts, [variables[k] for k in read], start)
            for k, total, is_reached in zip(read, done, reached, strict=True):
                sums[k] = total if is_reached else sums[k]
        return [None if total is None else tf.cast(total, v.dtype) for total, v in zip(sums, variables, strict=True)]

    def _trace_forward(self, inputs: Any, others: Any, training: bool) -> GradientCacheResult:
        own = _represent(self._towers(inputs, training))
        replicas = _Replicas()
        loss = self._loss_of(replicas.gather(own), replicas.gather(others), training)
        return GradientCacheResult(loss, (), _packed(self.encoders, self._keys, own))

    def _towers(self, inputs: Any, training: bool) -> list[_Tower]:
        if self._keys != (None,) and (type(inputs) is not type(self.encoders) and _keys_of(inputs) != self._keys):
            raise ArgumentError(
                f"inputs of type {type(inputs).__name__} for {len(self._keys)} encoders",
                argument="inputs",
                remedy="give them in the structure of the encoders",
            )
        if self._keys != (None,) and set(_keys_of(inputs)) != set(self._keys):
            raise ArgumentError(
                f"inputs {_keys_of(inputs)} for encoders {self._keys}",
                argument="inputs",
                remedy="give them in the structure of the encoders",
            )
        towers: list[_Tower] = []
        for key in self._keys:
            where = "encoder" if key is None else f"encoder {key!r}"
            part = inputs if key is None else inputs[key]
            known = samples_of(tf.nest.flatten(part), where)
            size = self._sizes[key] if known is None else min(self._sizes[key], known)
            specs = tf.nest.map_structure(partial(_chunk_spec, size=max(size, 2)), part)
            encoder = examine(_part(self.encoders, key), specs, training=training, assume_independent=self._assume_independent, where=where)
            towers.append(_Tower(encoder, ChunkedEncoder(encoder, part, size, where)))
        return towers

    def _own_variables(self) -> list[Any]:
        layers: list[Any] = [*(_part(self.encoders, key) for key in self._keys), self.loss]
        return [v for layer in layers if isinstance(layer, import_keras().layers.Layer) for v in layer.trainable_variables]

    def _loss_of(self, representations: Sequence[Any], others: Sequence[Any], training: bool) -> Any:
        is_mapping = isinstance(self.encoders, Mapping)
        given = [_packed(self.encoders, self._keys, representations)] if is_mapping else representations
        told = {"training": training} if isinstance(self.loss, import_keras().layers.Layer) else {}
        loss = tf.convert_to_tensor(self.loss(*given, *others, **told))
        if loss.shape.rank != 0 or not loss.dtype.is_floating:
            raise ArgumentError(
                f"the loss gives {loss.dtype.name} of shape {loss.shape}",
                argument="loss",
                remedy="let it give one real number for the batch",
            )
        return loss


class _Tower(NamedTuple):
    encoder: Any
    chunks: ChunkedEncoder


class _Replicas:
    """The replicas of the strategy within which a function is traced; without one, a single one."""

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
        """The tensors of all replicas, one after another along their first axis; numbers stay as they are."""
        if self.count == 1:
            return structure

        def gathered(leaf: Any) -> Any:
            return self._context.all_gather(leaf, axis=0) if leaf.shape.rank else leaf

        return tf.nest.map_structure(gathered, structure)

    def first(self, samples: Any) -> Any:
        """Where the own samples begin among those of all replicas."""
        if self.count == 1:
            return 0
        sizes = self._context.all_gather(tf.reshape(tf.cast(samples, tf.int32), [1]), axis=0)
        return tf.reduce_sum(sizes[: self._context.replica_id_in_sync_group])

    def own(self, gathered: Any, first: Any, samples: Any) -> Any:
        if gathered is None:
            return None
        gathered = tf.convert_to_tensor(gathered)
        return gathered if self.count == 1 else rows(gathered, first, samples)

    def share(self, dtype: Any) -> Any:
        """By what each replica divides what all of them find alike, since their gradients are summed."""
        return tf.cast(self.count, dtype)


def _called(function: Any, inputs: Any, others: Any, training: bool) -> GradientCacheResult:
    """Call a `tf.function` such that no tape of the caller records it; those inside record what they are there for."""
    concrete = function.get_concrete_function(inputs, others, training)
    with not_recorded():
        return call_flat(concrete, tf.nest.flatten((inputs, others), expand_composites=True))


def _represent(towers: Sequence[_Tower]) -> list[Any]:
    found: list[Any] = []
    for tower in towers:
        found.append(tower.chunks.represent(tf.nest.flatten(found)))
    return found


def _sum_dtype(variable: Any) -> Any:
    """Of sums over chunks: half precision would lose what small chunks add."""
    return tf.float32 if variable.dtype in (tf.float16, tf.bfloat16) else variable.dtype


def _plain(variable: Any) -> Any:
    """The `tf.Variable` of a Keras variable."""
    return variable.value if isinstance(variable, import_keras().Variable) else variable


def _distinct(variables: Sequence[Any]) -> list[Any]:
    found: dict[int, Any] = {}
    for variable in variables:
        found.setdefault(id(_plain(variable).handle), variable)
    return list(found.values())


def _as_tensors(structure: Any) -> Any:
    def as_tensor(leaf: Any) -> Any:
        is_composite = isinstance(leaf, tf.RaggedTensor | tf.SparseTensor)
        return leaf if is_composite else tf.convert_to_tensor(leaf)

    return tf.nest.map_structure(as_tensor, structure)


def _keys_of(structure: Any) -> tuple[Any, ...]:
    """The keys of several encoders, or of what is given for them; for one, None."""
    if isinstance(structure, Mapping):
        return tuple(cast("Mapping[str, Any]", structure))
    if isinstance(structure, tuple | list):
        return tuple(range(len(cast("Sequence[Any]", structure))))
    return (None,)


def _chunk_spec(leaf: Any, size: int) -> Any:
    return tf.TensorSpec([size, *leaf.shape[1:]], leaf.dtype)


def _part(structure: Any, key: Any) -> Any:
    return structure if key is None else structure[key]


def _packed(like: Any, keys: Sequence[Any], parts: Sequence[Any]) -> Any:
    if isinstance(like, Mapping):
        return dict(zip(keys, parts, strict=True))
    return tuple(parts) if keys != (None,) else parts[0]


def _sizes_of(chunk_size: Any, keys: tuple[Any, ...]) -> dict[Any, int]:
    given = _keys_of(chunk_size)
    sizes: dict[Any, Any] = dict.fromkeys(keys, chunk_size) if given == (None,) else {key: chunk_size[key] for key in given}
    wrong = [size for size in sizes.values() if isinstance(size, bool) or not isinstance(size, int) or size < 1]
    if set(sizes) != set(keys) or not keys or wrong:
        raise ArgumentError(
            f"chunk_size={chunk_size!r}", argument="chunk_size", remedy="give a whole number of at least 1, or one per encoder"
        )
    return sizes
