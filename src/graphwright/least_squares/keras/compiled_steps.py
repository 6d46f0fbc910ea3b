"""Functions of batches, compiled for each shape of batch, whose graphs Python does not keep."""

import importlib
from collections.abc import Callable
from typing import Any

from graphwright.source.private_tensorflow import runtime_function

tf: Any = importlib.import_module("tensorflow")


class CompiledSteps:
    """A function of a structure of tensors, compiled for each structure and shape.

    It differs from a `tf.function` in memory: for the step of a small model, the graph that a `tf.function` keeps in Python is larger than
    all tensors. While another graph is built, or with values per replica, the `tf.function` itself runs.

    Args:
        make: returns a new `tf.function` of one structure of tensors.

    >>> added = CompiledSteps(lambda: tf.function(lambda parts: {"sum": parts[0] + parts[1]}))
    >>> int(added((tf.constant(1), tf.constant(2)))["sum"]), len(added.traces)
    (3, 1)
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._function: Any = None
        self.traces: dict[str, tuple[Any, Any]] = {}

    def __call__(self, data: Any) -> Any:
        tensors = [tensor for tensor in tf.nest.flatten(data) if tensor is not None]
        if not tf.executing_eagerly() or not all(isinstance(tensor, tf.Tensor) for tensor in tensors):
            if self._function is None:
                self._function = self._make()
            return self._function(data)
        key = str(tf.nest.map_structure(_kind, data))
        if key not in self.traces:
            concrete = self._make().get_concrete_function(data)
            outputs = tf.nest.pack_sequence_as(concrete.structured_outputs, [0] * len(tf.nest.flatten(concrete.structured_outputs)))
            self.traces[key] = runtime_function(concrete), outputs
        run, outputs = self.traces[key]
        return tf.nest.pack_sequence_as(outputs, run(tensors))


def _kind(tensor: Any) -> Any:
    return None if tensor is None else (tensor.shape, tensor.dtype)
