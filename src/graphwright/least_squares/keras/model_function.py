"""A Keras model as a function of its trainable tensors, the same function at every evaluation within a step.

- **random layers** (dropout, noise): each step reads the state of a random number generator once, so all evaluations draw the same masks,
  and advances it once. Chunks of samples draw from separate streams.
- **moving statistics** (batch normalization): read once, and written once per accepted step, with the values at the step's start.
- **samples that depend on each other** (batch normalization in training): the batch is evaluated as a whole.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphwright.errors import UnsupportedError
from graphwright.least_squares.parameters import ParameterLayout
from graphwright.source.private_keras import all_layers, mask_of

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

_SEED_NAME = "seed_generator_state"


class ModelFunction:
    """A built Keras model as a pure function.

    Attributes:
        layout: of the trainable variables in the vector of all parameters.
        is_random: whether layers draw random numbers in training.
        has_einsum: whether there is an `EinsumDense`, as in attention.
        couples_samples: whether the outputs of a sample depend on other samples of the batch; see `examine`.
    """

    def __init__(self, model: Any, solve_dtype: Any = None) -> None:
        self.model = model
        self.variables = tuple(model.trainable_variables)
        self.state_variables = tuple(model.non_trainable_variables)
        where = f"model {model.name!r}"
        if not self.variables:
            raise UnsupportedError("the model has no trainable variables", where=where)
        dtypes = {str(variable.dtype) for variable in self.variables}
        if not dtypes <= {"float32", "float64"} or len(dtypes) > 1:
            raise UnsupportedError(
                f"variables of type {', '.join(sorted(dtypes))}", where=where, remedy="make all of them float32, or float64"
            )
        dtype = tf.as_dtype(dtypes.pop())
        self.layout = ParameterLayout(
            structure=[0] * len(self.variables),
            shapes=tuple(tuple(variable.shape) for variable in self.variables),
            dtype=tf.as_dtype(solve_dtype) if solve_dtype is not None and tf.as_dtype(solve_dtype).size > dtype.size else dtype,
            labels=tuple(str(variable.path) for variable in self.variables),
        )
        self._seeds = frozenset(i for i, variable in enumerate(self.state_variables) if str(variable.name).endswith(_SEED_NAME))
        self.is_random = bool(self._seeds)
        layers = all_layers(model)
        self.couples_samples = any(isinstance(layer, keras.layers.BatchNormalization) and layer.trainable for layer in layers)
        self.has_einsum = any(isinstance(layer, keras.layers.EinsumDense) for layer in layers)
        self._has_own_layers = any(not type(layer).__module__.startswith("keras.") for layer in layers)
        parameters = inspect.signature(model.call).parameters
        self._takes_training = "training" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def examine(self, x: Any) -> Any:
        """Run the model once on a batch to see whether its samples depend on each other; return the structure of its outputs."""
        where = f"model {self.model.name!r}"
        values = [variable.value for variable in self.variables]
        state = self.state()
        outputs, _, losses = self._call(values, state, x, return_losses=True)
        if losses:
            raise UnsupportedError(
                f"the model adds {len(losses)} losses, for example of regularizers",
                where=where,
                cause="they are no sum over samples",
                remedy="leave regularizers and add_loss out; damping keeps steps short",
            )
        if any(mask_of(output) is not None for output in tf.nest.flatten(outputs)):
            raise UnsupportedError("the outputs carry a mask", where=where, remedy="give sample weights of zero instead of a mask")
        samples = tf.nest.flatten(x)[0].shape[0]
        if self.couples_samples or samples < 2:
            return outputs
        if self.is_random:
            self.couples_samples = self._has_own_layers  # two runs draw different numbers, so they prove nothing
            return outputs
        half = tf.nest.map_structure(first_samples(samples // 2), x)
        fewer, _, _ = self._call(values, state, half, return_losses=True)
        for all_rows, half_rows in zip(tf.nest.flatten(outputs), tf.nest.flatten(fewer), strict=True):
            if all_rows.shape[:1] != (samples,):
                raise UnsupportedError(f"an output of shape {tuple(all_rows.shape)} for {samples} samples", where=where)
            first, second = all_rows[: samples // 2].numpy(), half_rows.numpy()
            if not np.allclose(first, second, rtol=1e-2, atol=1e-3 * (1e-30 + float(np.abs(first).max()))):
                self.couples_samples = True
        return outputs

    def point(self) -> Any:
        return self.layout.join([tf.cast(tf.convert_to_tensor(variable.value), self.layout.dtype) for variable in self.variables])

    def state(self) -> list[Any]:
        return [tf.identity(tf.convert_to_tensor(variable.value)) for variable in self.state_variables]

    def outputs(self, leaves: Sequence[Any], state: Sequence[Any], x: Any, streams: Any = None) -> tuple[list[Any], list[Any]]:
        """Return all outputs in training, flat, and the other variables afterwards.

        `streams` numbers the samples (samples,); the first number selects the stream of random numbers.
        """
        values = [tf.cast(leaf, variable.dtype) for leaf, variable in zip(leaves, self.variables, strict=True)]
        if tf.is_tensor(streams) and self.is_random:
            state = [self._of_stream(value, streams[0]) if i in self._seeds else value for i, value in enumerate(state)]
        outputs, after, _ = self._call(values, state, x, return_losses=False)
        return tf.nest.flatten(outputs), list(after)

    def assign(self, point: Any, state: Sequence[Any]) -> None:
        for variable, value in zip(self.variables, self.layout.split(point), strict=True):
            variable.assign(tf.cast(value, variable.dtype))
        for variable, value in zip(self.state_variables, state, strict=True):
            variable.assign(value)

    def state_after(self, accepted: Any, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
        """Return the other variables after a step: generators advance in any case, statistics only if the step was accepted."""
        return [new if i in self._seeds else tf.where(accepted, new, old) for i, (old, new) in enumerate(zip(before, after, strict=True))]

    def _call(self, values: Sequence[Any], state: Sequence[Any], x: Any, *, return_losses: bool) -> tuple[Any, Any, Any]:
        keywords = {"training": True} if self._takes_training else {}
        results = self.model.stateless_call(list(values), list(state), x, return_losses=return_losses, **keywords)
        return (*results[:2], results[2] if return_losses else [])

    def _of_stream(self, seed: Any, stream: Any) -> Any:
        return tf.stack([seed[0] + tf.cast(stream, seed.dtype), seed[1]])


def first_samples(count: int) -> Callable[[Any], Any]:
    """Return a function that cuts a tensor to its first samples."""

    def cut(tensor: Any) -> Any:
        return None if tensor is None else tensor[:count]

    return cut
