"""Values to run a step with where only shapes are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from graphwright.errors import ArgumentError
from graphwright.run.traced_step import Call, TracedStep, resolve
from graphwright.source.concrete_function import traced_arguments
from graphwright.source.tensorflow_import import import_keras, import_tensorflow


def first_batch(inputs: Any) -> Any:
    """Example arguments of one call: of a dataset, a generator or a `keras.utils.PyDataset` its first batch, anything else as it is.

    A generator gives that batch once, and goes on with the next.

    Raises:
        ArgumentError: it holds none.

    >>> import tensorflow as tf
    >>> [part.shape for part in first_batch(tf.data.Dataset.from_tensors((tf.zeros((8, 3)), tf.zeros((8,)))))]
    [TensorShape([8, 3]), TensorShape([8])]
    """
    if isinstance(inputs, import_tensorflow().data.Dataset | Iterator):
        batch: Any = next(iter(cast("Iterable[Any]", inputs)), None)
    elif isinstance(inputs, import_keras().utils.PyDataset):
        batch = inputs[0] if len(inputs) else None
    else:
        return inputs
    if batch is None:
        raise ArgumentError(f"{type(inputs).__name__} holds no batch", argument="inputs", remedy="give one that is not empty, or one batch")
    return batch


def runnable(traced: TracedStep) -> TracedStep:
    """The step with tensors to be called with: its own, or made-up ones.

    >>> import tensorflow as tf
    >>> from graphwright.step.targets import trace
    >>> made_up = runnable(trace(tf.function(lambda x: x), feeds={"x": (2, 3)}))
    >>> made_up.shapes, made_up.run().shape
    (((2, 3),), TensorShape([2, 3]))
    """
    return traced if traced.is_runnable else resolve(traced, example_inputs(traced))


def example_inputs(target: TracedStep) -> Any:
    """Made-up arguments for one call: numbers between 0 and 1 for floating point, zeros for all else.

    Zeros are valid class labels and valid rows of an embedding whatever their number is. The same target always gives
    the same values.

    Returns:
        What `optimize_memory`, `measure` and `verify` take as `inputs`: a tuple, or a `Call` where there are keyword arguments.

    >>> import tensorflow as tf
    >>> from graphwright.step.targets import trace
    >>> step = tf.function(lambda image, label: (image, label))
    >>> feeds = {"image": (2, 3), "label": tf.TensorSpec((2,), tf.int32)}
    >>> image, label = example_inputs(trace(step, feeds=feeds))
    >>> image.shape, label.numpy().tolist()
    (TensorShape([2, 3]), [0, 0])
    """
    tf = import_tensorflow()
    seeds = iter(range(len(target.shapes)))
    shapes = iter(target.shapes)

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, tf.TensorSpec):
            return leaf
        shape = next(shapes)
        if leaf.dtype.is_floating:
            return tf.cast(tf.random.stateless_uniform(shape, (0, next(seeds))), leaf.dtype)
        return tf.zeros(shape, leaf.dtype)

    args, kwargs = tf.nest.map_structure(filled, traced_arguments(target.function))
    return Call(args, kwargs) if kwargs else args
