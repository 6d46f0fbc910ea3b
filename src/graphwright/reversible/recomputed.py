"""`RecomputedLayer`: a layer without inverse as a part of a reversible sequence."""

from __future__ import annotations

import importlib
from typing import Any

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.reversible.engine import BackwardRun, ForwardRun, InverseRun, Streams
from graphwright.reversible.residual import ResidualFunction
from graphwright.reversible.stream_layer import StreamLayer

keras: Any = importlib.import_module("keras")


@keras.saving.register_keras_serializable(package="graphwright")
class RecomputedLayer(StreamLayer):
    """A layer between reversible blocks that has no inverse: a sequence stores its inputs and recomputes the rest.

    An example is the first unit of a stage, which halves the images. Like the functions of a `ReversibleBlock`, the layer may contain
    batch normalization and dropout.

    Args:
        layer: a Keras layer that takes a pair of tensors and returns a pair of tensors.
        **kwargs: arguments of a Keras layer.

    >>> import numpy as np
    >>> inputs = (keras.Input((4,)), keras.Input((4,)))
    >>> halves = keras.Model(inputs, tuple(keras.layers.Dense(2)(x) for x in inputs))
    >>> layer = RecomputedLayer(halves)
    >>> [tuple(y.shape) for y in layer((np.ones((1, 4)), np.ones((1, 4))))]
    [(1, 2), (1, 2)]
    """

    is_invertible = False

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer = layer
        self._function = ResidualFunction(layer, f"argument 'layer' of {self.name!r}")
        if not self._function.is_layer:
            raise ArgumentError(f"a {type(layer).__name__} was given", where=self._function.where, remedy="give a Keras layer")

    @property
    def functions(self) -> list[ResidualFunction]:
        return [self._function]

    def output_stream_shapes(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        result: Any = self.layer(tuple(keras.KerasTensor(tuple(shape), self.stream_dtype) for shape in shapes))
        both = keras.tree.flatten(result)
        if len(both) != 2:
            raise ArgumentError("it does not return a pair of tensors", where=self._function.where, remedy="return two tensors")
        return tuple(both[0].shape), tuple(both[1].shape)

    def stream_forward(self, x: Streams, run: ForwardRun) -> Streams:
        """Return the streams after the layer."""
        return tuple(run(self._function, x))  # pyright: ignore[reportReturnType]

    def stream_inverse(self, y: Streams, run: InverseRun) -> Streams:  # noqa: ARG002
        """Raise: there is no inverse."""
        raise UnsupportedError(
            f"layer {self.name!r} has no inverse",
            where="inverse",
            cause="it loses information, such as the size of images",
            remedy="use InvertibleDownsampling where images get smaller",
        )

    def stream_backward(self, y: Streams, dy: Streams, run: BackwardRun, x: Streams | None) -> tuple[Streams, Streams]:  # noqa: ARG002
        """Return the streams before the layer, and their gradients."""
        assert x is not None, "the engine stores the inputs of layers without inverse"
        _, pull = run(self._function, x)
        return x, pull(dy)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RecomputedLayer:
        return cls(**(config | {"layer": keras.saving.deserialize_keras_object(config["layer"])}))
