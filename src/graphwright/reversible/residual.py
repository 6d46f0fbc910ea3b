"""Residual functions of reversible blocks, called without side effects and with equal results each time.

A Keras layer (or model) is called inside a `keras.StatelessScope`: the values of its variables are arguments, and its assignments (moving
statistics, states of random generators) are results. The second call gets the values of the first, so a dropout mask is the same. Another
callable of one tensor is called directly; if it assigns to variables or draws random numbers, it is refused.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.source.private_keras import without_autocast

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

Values = Mapping[int, Any]
"""Values of variables, by the `id` of the variable."""


class ResidualFunction:
    """A function of one stream; `where` is its place in error messages."""

    def __init__(self, function: Any, where: str) -> None:
        if not callable(function):
            raise ArgumentError(f"{function!r} cannot be called", where=where, remedy="give a Keras layer, or a function of one tensor")
        self.function: Any = function
        self.where = where
        self.is_layer: bool = isinstance(function, keras.layers.Layer)
        self._takes = _parameters(self.function.call if self.is_layer else self.function) & {"training", "mask"}

    @property
    def trainable(self) -> list[Any]:
        return list(self.function.trainable_variables) if self.is_layer else []

    @property
    def state(self) -> list[Any]:
        """The layer's other variables: moving statistics, states of random generators, frozen weights."""
        return list(self.function.non_trainable_variables) if self.is_layer else []

    def __call__(self, x: Any, values: Values, states: Values, training: Any, mask: Any) -> tuple[Any, dict[int, Any], list[Any]]:
        """Call the function without side effects, with the values of trainable variables and the states of others; read missing states.

        Return the result; the states of `states` and of assigned variables after the call; the losses added by `add_loss`.
        """
        keywords = {"training": training, "mask": mask}
        named = {name: keywords[name] for name in self._takes}
        if not self.is_layer:
            return self.function(x, **named), {}, []
        state = self.state
        mapping = [(v, values[id(v)]) for v in self.trainable] + [(v, states[id(v)]) for v in state if id(v) in states]
        with without_autocast(), keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            result = self.function(x, **named)
        after = {id(v): scope.get_current_value(v) for v in state}
        return result, {key: value for key, value in after.items() if value is not None}, list(scope.losses)

    def build(self, shape: tuple[int | None, ...], dtype: str, result_shape: tuple[int | None, ...]) -> None:
        """Create the variables for an argument of this shape and dtype, and check the shape of the result."""
        if self.is_layer:
            result = self.function(keras.KerasTensor(shape, dtype))
        else:
            spec = tf.TensorSpec(shape, dtype)
            named = {"training": True} if "training" in self._takes else {}

            def call(x: Any) -> Any:
                return self.function(x, **named)

            traced = tf.function(call, autograph=False).get_concrete_function(spec)
            self._check_pure(traced.graph)
            result = traced.structured_outputs
        got = getattr(result, "shape", None)
        if got is None:
            raise ArgumentError(f"it returns a {type(result).__name__}", where=self.where, remedy="return one tensor")
        if not _fits(tuple(got), result_shape):
            raise ArgumentError(
                f"it turns shape {shape} into {tuple(got)}; {result_shape} is needed",
                where=self.where,
                cause="its result is merged with the other stream, so it must have that stream's shape "
                "(with coupling='affine' twice its channels)",
                remedy="use padding='same' and strides=1, and as many filters or units as needed",
            )

    def _check_pure(self, graph: Any) -> None:
        for operation in graph.get_operations():
            if operation.op_def.is_stateful and operation.type not in _HARMLESS:
                raise UnsupportedError(
                    f"it runs {operation.type}, which has an effect or gives another result the second time",
                    where=f"{self.where}, node {operation.name!r}",
                    cause="the backward pass calls the function again, and states can be restored only for Keras layers",
                    remedy="make it a Keras layer: keras.layers.Dropout, or a keras.random function with a keras.random.SeedGenerator",
                )


_HARMLESS = frozenset({"ReadVariableOp", "Placeholder", "VarHandleOp", "ResourceGather", "Assert"})
"""Stateful operations that may run twice."""


def _parameters(function: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # builtins have no signature
        return frozenset()


def _fits(got: tuple[int | None, ...], needed: tuple[int | None, ...]) -> bool:
    return len(got) == len(needed) and all(g is None or n is None or g == n for g, n in zip(got, needed, strict=True))
