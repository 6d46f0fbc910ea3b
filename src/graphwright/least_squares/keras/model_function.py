"""A Keras model as a function of its trainable tensors, the same function at every evaluation within a step.

Within a step, a damped problem is linearized at one point and the cost evaluated at others. All of them must be of one function:

- **random layers** (dropout, noise): what Keras keeps of a random number generator is a variable; each step reads it once, so that all
  evaluations draw the same masks, and advances it once. Samples that are evaluated in chunks draw from streams of their own.
- **moving statistics** (batch normalization): read once, and written once per accepted step, as the forward pass from the step's start
  leaves them.
- **samples that depend on each other** (batch normalization in training): the batch is evaluated as a whole.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphwright.errors import UnsupportedError
from graphwright.least_squares.keras.dense_jacobian import dense_layers
from graphwright.least_squares.parameters import ParameterLayout
from graphwright.source.private_keras import all_layers, mask_of

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

_SEED_NAME = "seed_generator_state"


class ModelFunction:
    """A built Keras model as a pure function.

    Args:
        model: a built model whose variables are float32 or float64.
        solve_dtype: of the vector of all parameters, at least as wide as the variables'.

    Raises:
        UnsupportedError: nothing to train, variables of other types, or losses that layers add.

    Attributes:
        layout: of the trainable variables in the vector of all parameters.
        is_random: whether layers draw random numbers in training.
        dense_layers: those that hold all trainable variables, where Jacobians per sample follow from them; else None.
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
        widest = tf.as_dtype(dtypes.pop())
        self.layout = ParameterLayout(
            structure=[0] * len(self.variables),
            shapes=tuple(tuple(variable.shape) for variable in self.variables),
            dtype=tf.as_dtype(solve_dtype) if solve_dtype is not None and tf.as_dtype(solve_dtype).size > widest.size else widest,
            labels=tuple(str(variable.path) for variable in self.variables),
        )
        self._seeds = frozenset(i for i, variable in enumerate(self.state_variables) if str(variable.name).endswith(_SEED_NAME))
        self.is_random = bool(self._seeds)
        layers = all_layers(model)
        self.couples_samples = any(isinstance(layer, keras.layers.BatchNormalization) and layer.trainable for layer in layers)
        self.has_einsum = any(isinstance(layer, keras.layers.EinsumDense) for layer in layers)
        self._has_own_layers = any(not type(layer).__module__.startswith("keras.") for layer in layers)
        self.dense_layers = dense_layers(model)
        parameters = inspect.signature(model.call).parameters
        self._takes_training = "training" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def examine(self, x: Any) -> Any:
        """Run the model once on a batch, to see whether its samples depend on each other; the structure of its outputs.

        Raises:
            UnsupportedError: the model adds losses of its own, or masks its outputs.
        """
        where = f"model {self.model.name!r}"
        values = [variable.value for variable in self.variables]
        state = self.state()
        outputs, _, losses = self._call(values, state, x, return_losses=True)
        if losses:
            raise UnsupportedError(
                f"the model adds {len(losses)} losses of its own, such as of regularizers",
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
            self.couples_samples = self._has_own_layers  # no way to tell for layers that are not known
            return outputs
        half = tf.nest.map_structure(first_samples(samples // 2), x)
        fewer, _, _ = self._call(values, state, half, return_losses=True)
        for one, other in zip(tf.nest.flatten(outputs), tf.nest.flatten(fewer), strict=True):
            if one.shape[:1] != (samples,):
                raise UnsupportedError(f"an output of shape {tuple(one.shape)} for {samples} samples", where=where)
            first, second = one[: samples // 2].numpy(), other.numpy()
            if not np.allclose(first, second, rtol=1e-2, atol=1e-3 * (1e-30 + float(np.abs(first).max()))):
                self.couples_samples = True
        return outputs

    def point(self) -> Any:
        """The values of the trainable variables, as one vector."""
        return self.layout.join([tf.cast(tf.convert_to_tensor(variable.value), self.layout.dtype) for variable in self.variables])

    def state(self) -> list[Any]:
        """The values of the other variables: moving statistics, random number generators."""
        return [tf.identity(tf.convert_to_tensor(variable.value)) for variable in self.state_variables]

    def outputs(self, leaves: Sequence[Any], state: Sequence[Any], x: Any, streams: Any = None) -> tuple[list[Any], list[Any]]:
        """All outputs in training, flat, and the other variables afterwards.

        Args:
            leaves: values of the trainable variables.
            state: values of the others.
            x: the inputs.
            streams: numbers of the samples, ints (samples,), the first of which sets this evaluation's random numbers apart; or nothing.
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

    def chosen_state(self, accepted: Any, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
        """The other variables after a step: random number generators go on in any case, statistics where it was accepted."""
        return [new if i in self._seeds else tf.where(accepted, new, old) for i, (old, new) in enumerate(zip(before, after, strict=True))]

    def _call(self, values: Sequence[Any], state: Sequence[Any], x: Any, *, return_losses: bool) -> tuple[Any, Any, Any]:
        keywords = {"training": True} if self._takes_training else {}
        found = self.model.stateless_call(list(values), list(state), x, return_losses=return_losses, **keywords)
        return (*found[:2], found[2] if return_losses else [])

    def _of_stream(self, seed: Any, stream: Any) -> Any:
        return tf.stack([seed[0] + tf.cast(stream, seed.dtype), seed[1]])


def first_samples(count: int) -> Callable[[Any], Any]:
    """A function of a tensor: its first samples."""

    def cut(tensor: Any) -> Any:
        return None if tensor is None else tensor[:count]

    return cut
