"""`StreamLayer`, the base of reversible Keras layers: the split into streams, the call, the inverse."""

# What a Keras layer inherits has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.reversible import engine
from graphwright.source.private_keras import track_parts

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

LayerCall = tuple["StreamLayer", Any]
"""A layer and its inputs."""

_recording: ContextVar[list[LayerCall] | None] = ContextVar("graphwright_layer_calls", default=None)


@contextmanager
def recorded_calls() -> Generator[list[LayerCall]]:
    """Collect the calls of all stream layers inside the context."""
    calls: list[LayerCall] = []
    token = _recording.set(calls)
    try:
        yield calls
    finally:
        _recording.reset(token)


class StreamLayer(keras.layers.Layer):
    """A reversible layer: takes one tensor or a pair, runs its parts, and returns the same form.

    Args:
        axis: the axis along which one tensor is split into two streams.
        stream_dtype: dtype of the streams; None selects it by the dtype policy.
    """

    is_invertible = True
    """Whether the inputs can be computed from the outputs."""

    def __init__(self, *, axis: int = -1, stream_dtype: str | None = None, **kwargs: Any) -> None:
        if keras.backend.backend() != "tensorflow":
            raise UnsupportedError(f"Keras runs on {keras.backend.backend()!r}", remedy="set KERAS_BACKEND=tensorflow")
        super().__init__(**kwargs)
        self.axis = axis
        self.stream_dtype_argument = stream_dtype
        self.supports_masking = True
        self.reconstructs = True

    @property
    def stream_dtype(self) -> str:
        """The dtype of the streams."""
        if self.stream_dtype_argument is not None:
            return keras.backend.standardize_dtype(self.stream_dtype_argument)
        mixed = self.compute_dtype in ("float16", "bfloat16") and self.variable_dtype == "float32"
        return "float32" if mixed else self.compute_dtype

    @property
    def functions(self) -> list[Any]:
        """The layer's residual functions, in the order of their calls."""
        return []

    def stream_parts(self) -> list[Any]:
        """Return the layer's parts in order, those of nested sequences included."""
        return [self]

    def kept_parts(self) -> frozenset[int]:
        """Return the numbers of the parts that store their inputs."""
        return frozenset()

    def remembering_parts(self) -> frozenset[int]:
        """Return the numbers of the parts that store remembered tensors."""
        return frozenset()

    def build_streams(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        """Build the functions for streams of these shapes, and return the shapes of the results."""
        return self.output_stream_shapes(shapes)

    def build(self, input_shape: Any) -> None:
        self.build_streams(self._stream_shapes(input_shape))
        track_parts(self)
        self.built = True

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        calls = _recording.get()
        if calls is not None:
            calls.append((self, inputs))
        x, mask = self.to_streams(inputs), _one_mask(mask)
        parts = self.stream_parts()
        if self.reconstructs:
            streams, losses = engine.run_reversible(parts, x, bool(training), mask, self.kept_parts(), self.remembering_parts())
        else:
            streams, losses = engine.run_plain(parts, x, bool(training), mask)
        for loss in losses:
            self.add_loss(loss)
        return self._from_streams(streams, inputs)

    def inverse(self, outputs: Any, training: bool = False, mask: Any = None) -> Any:
        """Return the inputs that give these outputs, up to rounding.

        Args:
            outputs: one tensor or a pair, as the layer returns it.
            training: as in the call that gave the outputs. With `training=True` batch normalization uses the statistics of the
                batch, and dropout draws with the *present* states of the random generators.
            mask: as in that call.

        Raises:
            ArgumentError: the layer is not built yet.
        """
        if not self.built:
            raise ArgumentError(
                "the layer has no weights yet", where=f"layer {self.name!r}", remedy="call it on some input, or call build(shape), first"
            )
        y = self.to_streams(outputs)
        return self._from_streams(engine.run_inverse(self.stream_parts(), y, training, _one_mask(mask)), outputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        shapes = self._stream_shapes(input_shape)
        for part in self.stream_parts():
            shapes = part.output_stream_shapes(shapes)
        if _is_pair(input_shape):
            return tuple(tuple(shape) for shape in shapes)
        joined = list(shapes[0])
        joined[self.axis] = None if None in (joined[self.axis], shapes[1][self.axis]) else joined[self.axis] + shapes[1][self.axis]
        return tuple(joined)

    def output_stream_shapes(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the shapes of the resulting streams for streams of these shapes."""
        return shapes

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:  # noqa: ARG002
        return previous_mask

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"axis": self.axis, "stream_dtype": self.stream_dtype_argument}

    def _stream_shapes(self, shape: Any) -> tuple[Any, Any]:
        if isinstance(shape, dict) or (_is_pair(shape) and len(shape) != 2):
            kind: Any = type(shape)  # pyright: ignore[reportUnknownArgumentType]
            raise ArgumentError(
                f"a {kind.__name__} of {len(shape)} tensors was given",  # pyright: ignore[reportUnknownArgumentType]
                where=f"layer {self.name!r}",
                remedy="give one tensor or a pair",
            )
        if _is_pair(shape):
            return tuple(shape[0]), tuple(shape[1])
        if len(shape) < 2 or not -len(shape) <= self.axis < len(shape) or self.axis in (0, -len(shape)):
            raise ArgumentError(
                f"an input of shape {tuple(shape)} cannot be split along axis {self.axis}",
                where=f"layer {self.name!r}",
                remedy="give the channel axis, which is not the batch axis",
            )
        channels = shape[self.axis]
        if channels is None or channels % 2:
            raise ArgumentError(
                f"an input of shape {tuple(shape)} cannot be split in two along axis {self.axis}",
                where=f"layer {self.name!r}",
                cause="the number of channels is odd or not known",
                remedy="give an even number of channels, or a pair of tensors",
            )
        half = list(shape)
        half[self.axis] = channels // 2
        return tuple(half), tuple(half)

    def to_streams(self, inputs: Any) -> engine.Streams:
        """Split the inputs into two streams of the stream dtype."""
        tensors: Any = inputs if isinstance(inputs, list | tuple) else tf.split(inputs, 2, self.axis)
        if len(tensors) != 2:
            raise ArgumentError(f"{len(tensors)} tensors were given", where=f"layer {self.name!r}", remedy="give one tensor or two")
        # Keras attaches a mask to the tensor object; the copy, which shares the memory, has none, like a rebuilt stream.
        first, second = (tf.identity(tf.cast(stream, self.stream_dtype)) for stream in tensors)
        return first, second

    def _from_streams(self, streams: engine.Streams, like: Any) -> Any:
        first, second = (tf.cast(stream, self.compute_dtype) for stream in streams)
        return (first, second) if isinstance(like, list | tuple) else tf.concat([first, second], self.axis)


def _is_pair(shape: Any) -> bool:
    return len(shape) > 0 and isinstance(shape[0], list | tuple)


def _one_mask(mask: Any) -> Any:
    """Return the mask of the first stream; both streams belong to the same examples."""
    return mask[0] if isinstance(mask, list | tuple) else mask  # pyright: ignore[reportUnknownVariableType]
