"""What reversible layers have in common as Keras layers: the split into streams, the call, the inverse."""

# What a Keras layer inherits has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
from typing import Any

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.reversible import engine
from graphwright.source.private_keras import track_parts

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")


class StreamLayer(keras.layers.Layer):
    """Base of reversible layers: takes one tensor or a pair, runs its parts, and gives back the same form.

    Args:
        axis: the axis along which one tensor is split into two streams.
        stream_dtype: dtype of the streams inside; None chooses.
    """

    is_invertible = True
    """Whether the inputs can be had back from the outputs."""

    def __init__(self, *, axis: int = -1, stream_dtype: str | None = None, **kwargs: Any) -> None:
        if keras.backend.backend() != "tensorflow":
            raise UnsupportedError(f"Keras runs on {keras.backend.backend()!r}", remedy="set KERAS_BACKEND=tensorflow")
        super().__init__(**kwargs)
        self.axis = axis
        self.stream_dtype_given = stream_dtype
        self.supports_masking = True
        self.reconstructs = True

    @property
    def stream_dtype(self) -> str:
        """The dtype of the streams inside."""
        if self.stream_dtype_given is not None:
            return keras.backend.standardize_dtype(self.stream_dtype_given)
        mixed = self.compute_dtype in ("float16", "bfloat16") and self.variable_dtype == "float32"
        return "float32" if mixed else self.compute_dtype

    @property
    def functions(self) -> list[Any]:
        """The functions that it calls, in the order of the calls."""
        return []

    def stream_parts(self) -> list[Any]:
        """What it is made of, in order."""
        return [self]

    def kept_parts(self) -> frozenset[int]:
        """The numbers of the parts that keep their inputs."""
        return frozenset()

    def remembering_parts(self) -> frozenset[int]:
        """The numbers of the parts that keep what their functions remember."""
        return frozenset()

    def build_streams(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        """Build the functions for streams of these shapes; gives the shapes behind it."""
        return self.output_stream_shapes(shapes)

    def build(self, input_shape: Any) -> None:
        self.build_streams(self._stream_shapes(input_shape))
        track_parts(self)
        self.built = True

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The outputs; see the class for the form of the inputs."""
        x, mask = self.to_streams(inputs), _one_mask(mask)
        if self.reconstructs:
            streams, losses = engine.run_reversible(
                self.stream_parts(), x, bool(training), mask, self.kept_parts(), self.remembering_parts()
            )
        else:
            streams, losses = engine.run_plain(self.stream_parts(), x, bool(training), mask)
        for loss in losses:
            self.add_loss(loss)
        return self._from_streams(streams, inputs)

    def inverse(self, outputs: Any, training: bool = False, mask: Any = None) -> Any:
        """The inputs that give these outputs, up to rounding.

        Args:
            outputs: what the layer gave: one tensor or a pair.
            training: as in the call that gave them. With `training=True` batch normalization uses the statistics of the batch,
                and dropout draws with the states that the random generators have *now*.
            mask: as in that call.

        Raises:
            ArgumentError: the layer is not built yet.
        """
        if not self.built:
            raise ArgumentError(
                "the layer has no weights yet", where=f"layer {self.name!r}", remedy="call it on some input, or call build(shape), first"
            )

        def cast(y: Any) -> Any:
            return tf.cast(y, self.stream_dtype)

        outputs = tf.nest.map_structure(cast, outputs)
        return self._from_streams(engine.run_inverse(self.stream_parts(), self.to_streams(outputs), training, _one_mask(mask)), outputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shapes of the outputs, in the form of the inputs."""
        shapes = self._stream_shapes(input_shape)
        for part in self.stream_parts():
            shapes = part.output_stream_shapes(shapes)
        if _is_pair(input_shape):
            return tuple(tuple(shape) for shape in shapes)
        joined = list(shapes[0])
        joined[self.axis] = None if None in (joined[self.axis], shapes[1][self.axis]) else joined[self.axis] + shapes[1][self.axis]
        return tuple(joined)

    def output_stream_shapes(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        """Shapes of the streams behind it."""
        return shapes

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:  # noqa: ARG002
        """The mask goes through."""
        return previous_mask

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"axis": self.axis, "stream_dtype": self.stream_dtype_given}

    def _stream_shapes(self, shape: Any) -> tuple[Any, Any]:
        given: Any = shape
        if isinstance(shape, dict) or (_is_pair(given) and len(given) != 2):
            raise ArgumentError(
                f"a {type(given).__name__} of {len(given)} tensors was given",
                where=f"layer {self.name!r}",
                remedy="give one tensor or a pair",
            )
        if _is_pair(shape):
            return tuple(shape[0]), tuple(shape[1])
        if len(shape) < 2 or not -len(shape) <= self.axis < len(shape) or self.axis in (0, -len(shape)):
            raise ArgumentError(
                f"an input of shape {tuple(shape)} cannot be split along axis {self.axis}",
                where=f"layer {self.name!r}",
                remedy="give the axis of the channels, which is not that of the batch",
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
        """The two streams of the inputs, in their dtype."""
        given: Any = inputs
        pair: tuple[Any, ...] = tuple(given) if isinstance(inputs, list | tuple) else tf.split(inputs, 2, self.axis)
        if len(pair) != 2:
            raise ArgumentError(f"{len(pair)} tensors were given", where=f"layer {self.name!r}", remedy="give one tensor or two")
        # Copies of the tensors, not of their memory: Keras hangs a mask on the object, and what is rebuilt has none.
        first, second = (tf.identity(tf.cast(stream, self.stream_dtype)) for stream in pair)
        return first, second

    def _from_streams(self, streams: engine.Streams, like: Any) -> Any:
        first, second = (tf.cast(stream, self.compute_dtype) for stream in streams)
        return (first, second) if isinstance(like, list | tuple) else tf.concat([first, second], self.axis)


def _is_pair(shape: Any) -> bool:
    return len(shape) > 0 and isinstance(shape[0], list | tuple)


def _one_mask(mask: Any) -> Any:
    """Of a pair of tensors, the mask of the first: both streams stand for the same examples."""
    given: Any = mask
    return given[0] if isinstance(mask, list | tuple) else mask
