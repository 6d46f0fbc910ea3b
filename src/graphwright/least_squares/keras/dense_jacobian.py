"""Per-sample Jacobians of models whose weights are all in dense layers, from one backward pass for all samples.

Where samples do not depend on each other, the derivative of a sum over samples in a layer's outputs z = a W + b has the derivative of each
sample in its own row, d; and the rows of the Jacobian are the products a' d for W, and d itself for b (I. Goodfellow: Efficient
per-example gradient computations, 2015). Vectorizing a backward pass over samples, which serves any model, takes several times the
operations, and makes small products of large ones.
"""

import importlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from graphwright.source.private_keras import layer_module

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

_CORE = ("InputLayer", "Dense", "Identity", "Embedding")
_KINDS = ("activations", "reshaping", "merging", "pooling", "regularization", "convolutional")
"""Folders of Keras whose layers keep samples in the first dimension, and apart."""


class _Call(NamedTuple):
    """A call of a dense layer: what it was given, and its outputs before the activation."""

    layer: Any
    inputs: Any
    outputs: Any


def dense_layers(model: Any) -> tuple[Any, ...] | None:
    """The dense layers of a model that has no other weights to train, and whose layers are known to keep samples apart; else None.

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    >>> [layer.units for layer in dense_layers(model)]
    [3, 1]
    >>> dense_layers(keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(1, 3)])) is None
    True
    """
    layers = _layers(model)
    if layers is None:
        return None
    dense = tuple({id(layer): layer for layer in layers if type(layer) is keras.layers.Dense and layer.trainable_variables}.values())
    if not all(_is_plain(layer) for layer in dense):
        return None
    own = {id(variable) for layer in dense for variable in layer.trainable_variables}
    return dense if {id(variable) for variable in model.trainable_variables} <= own else None


def _layers(model: Any) -> list[Any] | None:
    """All layers of a model and of the models within it; None where an operation is not known to keep samples apart."""
    if type(model) is not keras.Sequential and type(model).__name__ != "Functional":
        return None
    found: list[Any] = []
    for layer in model.layers if type(model) is keras.Sequential else model.operations:
        if isinstance(layer, keras.Model):
            within = _layers(layer)
            if within is None:
                return None
            found += within
            continue
        if type(layer).__name__ not in _CORE and layer_module(layer).split(".")[0] not in _KINDS:
            return None
        found.append(layer)
    return found


def _is_plain(layer: Any) -> bool:
    """Whether a dense layer computes what its class says, in the type of its variables."""
    return (
        layer.quantization_mode is None
        and not layer.lora_enabled
        and layer.activation is not None
        and layer.compute_dtype == layer.variable_dtype
        and len(layer.trainable_variables) == 1 + layer.use_bias
    )


def dense_jacobian(
    function: Callable[[list[Any]], Any], leaves: Sequence[Any], layers: Sequence[Any], variables: Sequence[Any], samples: int
) -> tuple[Any, Any]:
    """The value (m,) and the Jacobian (m, n) of a function that calls these layers, and whose samples do not depend on each other.

    Args:
        function: parameter tensors -> a vector of residuals (m,), sample by sample.
        leaves: the parameter tensors.
        layers: from `dense_layers`.
        variables: those that the parameter tensors stand for.
        samples: in the first dimension of what layers are given.
    """
    with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape, _recorded(layers, tape) as calls:
        residuals = function(list(leaves))
    ends = [call.outputs for call in calls]
    each = residuals.shape[0] // samples

    def pull(cotangent: Any) -> list[Any]:
        return tape.gradient(residuals, ends, output_gradients=cotangent, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    if each == 1:
        slopes = pull(tf.ones_like(residuals))
    else:
        ones = tf.ones([samples, 1], residuals.dtype)

        def of_one(which: Any) -> list[Any]:
            return pull(tf.reshape(ones * which, [-1]))

        slopes = tf.vectorized_map(of_one, tf.eye(each, dtype=residuals.dtype))
        slopes = [tf.transpose(slope, [1, 0, *range(2, slope.shape.rank)]) for slope in slopes]  # sample by sample
    columns: dict[int, Any] = {}
    for call, slope in zip(calls, slopes, strict=True):
        for variable, part in zip(call.layer.trainable_variables, _columns(call, slope, each), strict=False):
            columns[id(variable)] = part if id(variable) not in columns else columns[id(variable)] + part
    parts: list[Any] = []
    for variable, leaf in zip(variables, leaves, strict=True):
        found = columns.get(id(variable))
        shape = [residuals.shape[0], leaf.shape.num_elements()]
        if found is None:
            parts.append(tf.zeros(shape, leaf.dtype))
        else:
            parts.append(found if found.shape == shape else tf.reshape(found, shape))
    return residuals, tf.concat([tf.cast(part, residuals.dtype) for part in parts], axis=1)


def _columns(call: _Call, slope: Any, each: int) -> tuple[Any, Any]:
    """The Jacobian's columns of the kernel (samples, each, inputs, units) and of the bias (samples, each, units).

    Dimensions of one element are left out where that makes the graph smaller.
    """
    inputs = tf.cast(call.inputs, slope.dtype)
    if each > 1:
        inputs = tf.expand_dims(inputs, 1)
    if call.inputs.shape.rank == 2 and 1 in (inputs.shape[-1], slope.shape[-1]):
        return inputs * slope, slope
    if call.inputs.shape.rank == 2:
        return tf.expand_dims(inputs, -1) * tf.expand_dims(slope, -2), slope
    behind = 1 + (each > 1)  # what a layer is applied to many times, as of a sequence, adds up
    inputs = tf.reshape(inputs, [*inputs.shape[:behind], -1, inputs.shape[-1]])
    slope = tf.reshape(slope, [*slope.shape[:behind], -1, slope.shape[-1]])
    return tf.matmul(inputs, slope, transpose_a=True), tf.reduce_sum(slope, axis=-2)


@contextmanager
def _recorded(layers: Sequence[Any], tape: Any) -> Generator[list[_Call]]:
    """While the context is open, calls of these layers are recorded, and their outputs watched by the tape."""
    calls: list[_Call] = []
    activations = [layer.activation for layer in layers]
    for layer in layers:
        recorder = _Recorder(layer, calls, tape)
        object.__setattr__(layer, "call", recorder.call)
        object.__setattr__(layer, "activation", recorder.activation)
    try:
        yield calls
    finally:
        for layer, activation in zip(layers, activations, strict=True):
            object.__delattr__(layer, "call")
            object.__setattr__(layer, "activation", activation)


class _Recorder:
    """What a dense layer calls in place of itself and of its activation."""

    def __init__(self, layer: Any, calls: list[_Call], tape: Any) -> None:
        self._layer, self._calls, self._tape = layer, calls, tape
        self._call, self._activation = layer.call, layer.activation
        self._inputs: Any = None

    def call(self, inputs: Any, training: Any = None) -> Any:
        self._inputs = inputs
        return self._call(inputs, training=training)

    def activation(self, outputs: Any) -> Any:
        self._tape.watch(outputs)
        self._calls.append(_Call(self._layer, self._inputs, outputs))
        return self._activation(outputs)
