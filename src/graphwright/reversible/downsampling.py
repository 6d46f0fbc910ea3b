"""`InvertibleDownsampling`: half the height and width, four times the channels, no loss of information."""

from __future__ import annotations

import importlib
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.reversible.engine import BackwardRun, ForwardRun, InverseRun, Streams
from graphwright.reversible.stream_layer import StreamLayer

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")


@keras.saving.register_keras_serializable(package="graphwright")
class InvertibleDownsampling(StreamLayer):
    """Move each block of pixels into the channels of one pixel: a permutation, so the inverse is exact in every dtype.

    Args:
        block_size: pixels on a side of a block.
        **kwargs: arguments of a Keras layer.

    Raises:
        ArgumentError: a block size that is not a whole number of at least 2, or images that it does not divide.

    Input: images `[batch, height, width, channels]`, one tensor or a pair. One tensor is split into two streams, which are rearranged
    and joined.

    Source: J.-H. Jacobsen, A. Smeulders, E. Oyallon, "i-RevNet: Deep Invertible Networks", ICLR 2018, section 2.1.

    >>> import numpy as np
    >>> layer = InvertibleDownsampling()
    >>> x = np.arange(32, dtype=np.float32).reshape(1, 4, 4, 2)
    >>> layer(x).shape.as_list()
    [1, 2, 2, 8]
    >>> bool((layer.inverse(layer(x)).numpy() == x).all())
    True
    """

    def __init__(self, block_size: int = 2, **kwargs: Any) -> None:
        if not isinstance(block_size, int) or block_size < 2:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"block_size={block_size!r} was given", argument="block_size", remedy="give a whole number from 2 on")
        super().__init__(**kwargs)
        self.block_size = block_size

    def output_stream_shapes(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        first, second = (self._smaller(shape) for shape in shapes)
        return first, second

    def stream_forward(self, x: Streams, run: ForwardRun) -> Streams:  # noqa: ARG002
        """Return the streams after the layer."""
        return tf.nn.space_to_depth(x[0], self.block_size), tf.nn.space_to_depth(x[1], self.block_size)

    def stream_inverse(self, y: Streams, run: InverseRun | BackwardRun) -> Streams:  # noqa: ARG002
        """Return the streams before the layer."""
        return tf.nn.depth_to_space(y[0], self.block_size), tf.nn.depth_to_space(y[1], self.block_size)

    def stream_backward(self, y: Streams, dy: Streams, run: BackwardRun, x: Streams | None) -> tuple[Streams, Streams]:  # noqa: ARG002
        """Apply the inverse, which is the gradient of a permutation."""
        return self.stream_inverse(y, run), self.stream_inverse(dy, run)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"block_size": self.block_size}

    def _smaller(self, shape: Any) -> tuple[int | None, ...]:
        size = self.block_size
        if len(shape) != 4 or self.axis not in (-1, 3) or any(side is not None and side % size for side in shape[1:3]):
            raise ArgumentError(
                f"images of shape {tuple(shape)} cannot be divided into blocks of {size}x{size} pixels",
                where=f"layer {self.name!r}",
                remedy=f"give [batch, height, width, channels] with sides that are multiples of {size}, and axis=-1",
            )
        batch, height, width, channels = shape
        return batch, height and height // size, width and width // size, channels and channels * size * size
