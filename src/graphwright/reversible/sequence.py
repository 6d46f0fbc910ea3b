"""`ReversibleSequence`: consecutive blocks that store the last output only."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.reversible.stream_layer import StreamLayer

keras: Any = importlib.import_module("keras")


@keras.saving.register_keras_serializable(package="graphwright")
class ReversibleSequence(StreamLayer):
    """Consecutive reversible layers. In training the memory for activations does not grow with their number.

    The forward pass frees everything but the output. The backward pass rebuilds the inputs of one block after another and computes
    the gradients in the same calls.

    Args:
        layers: `ReversibleBlock`s, `InvertibleDownsampling`s, `RecomputedLayer`s or other sequences.
        axis: the axis along which one input tensor is split into the two streams. They are joined after the last layer only.
        stream_dtype: dtype of the streams; overrides the `stream_dtype` of the layers. None selects the compute dtype, or float32
            under a mixed policy.
        kept_blocks: the number of last blocks that store their inputs and the tensors that their functions pass through
            `graphwright.train.remember`. This saves a part of the second forward pass. Its memory does not grow with depth.
        remembering_blocks: the number of last blocks that store remembered tensors; None for `kept_blocks`.
        **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Input: one tensor with an even number of channels, or a pair of tensors. Output: the same form.

    Raises:
        ArgumentError: no layers, a layer that is not reversible, or a number of blocks that is not a whole number of at least 0.

    >>> import numpy as np
    >>> from graphwright.reversible.block import ReversibleBlock
    >>> def dense():
    ...     return keras.layers.Dense(2, activation="tanh")
    >>> sequence = ReversibleSequence([ReversibleBlock(dense(), dense()) for _ in range(10)])
    >>> x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    >>> np.round(sequence.inverse(sequence(x)), 4)
    array([[1., 2., 3., 4.]], dtype=float32)
    """

    def __init__(
        self,
        layers: Sequence[Any],
        axis: int = -1,
        *,
        stream_dtype: str | None = None,
        kept_blocks: int = 0,
        remembering_blocks: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(axis=axis, stream_dtype=stream_dtype, **kwargs)
        for name, count in (("kept_blocks", kept_blocks), ("remembering_blocks", remembering_blocks or 0)):
            if not isinstance(count, int) or count < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ArgumentError(f"{name}={count!r} was given", argument=name, remedy="give a whole number of at least 0")
        self.layers, self.kept_blocks, self.remembering_blocks = list(layers), kept_blocks, remembering_blocks
        if not self.layers:
            raise ArgumentError("no layers were given", argument="layers", remedy="give at least one ReversibleBlock")
        for number, layer in enumerate(self.layers):
            if not isinstance(layer, StreamLayer):
                raise ArgumentError(
                    f"layer {number} is a {type(layer).__name__}, which is not reversible",
                    argument="layers",
                    remedy="wrap residual functions in a ReversibleBlock, and layers that change shapes in a RecomputedLayer",
                )

    @property
    def functions(self) -> list[Any]:
        return [function for part in self.stream_parts() for function in part.functions]

    def stream_parts(self) -> list[Any]:
        return [part for layer in self.layers for part in layer.stream_parts()]

    def kept_parts(self) -> frozenset[int]:
        return self._last_blocks(self.kept_blocks, "kept_parts")

    def remembering_parts(self) -> frozenset[int]:
        return self._last_blocks(self.kept_blocks if self.remembering_blocks is None else self.remembering_blocks, "remembering_parts")

    def _last_blocks(self, count: int, method: str) -> frozenset[int]:
        """Return the numbers of the last `count` parts with functions, and of those that a nested sequence selects by `method`."""
        blocks: list[int] = []
        nested: set[int] = set()
        start = 0
        for layer in self.layers:
            parts = layer.stream_parts()
            blocks += [start + number for number, part in enumerate(parts) if part.functions]
            nested |= {start + number for number in getattr(layer, method)()}
            start += len(parts)
        return frozenset(nested.union(blocks[max(len(blocks) - count, 0) :]))

    def build_streams(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        for layer in self.layers:
            layer.stream_dtype_argument = self.stream_dtype
            shapes = layer.build_streams(shapes)
            layer.built = True
        return shapes

    def output_stream_shapes(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        for layer in self.layers:
            shapes = layer.output_stream_shapes(shapes)
        return shapes

    def get_config(self) -> dict[str, Any]:
        layers = [keras.saving.serialize_keras_object(layer) for layer in self.layers]
        own = {"layers": layers, "kept_blocks": self.kept_blocks, "remembering_blocks": self.remembering_blocks}
        return super().get_config() | own

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ReversibleSequence:
        layers: Any = [keras.saving.deserialize_keras_object(layer) for layer in config["layers"]]
        return cls(**(config | {"layers": layers}))
