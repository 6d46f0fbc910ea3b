"""Values to run a step with where only shapes are known."""

from __future__ import annotations

from typing import Any

from graphwright.run.traced_step import Call, TracedStep, resolve
from graphwright.source.concrete_function import traced_arguments
from graphwright.source.tensorflow_import import import_tensorflow

MADE_UP = "made up: numbers between 0 and 1, zeros where they are whole"


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
    """The arguments of one call: those that the step has, or made-up ones: numbers between 0 and 1 for floating point, zeros for all else.

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
    shapes, given = iter(target.shapes), iter(target.arguments if target.is_runnable else ())

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, tf.TensorSpec):
            return leaf
        if target.is_runnable:
            return next(given)
        shape = next(shapes)
        if leaf.dtype.is_floating:
            return tf.cast(tf.random.stateless_uniform(shape, (0, next(seeds))), leaf.dtype)
        return tf.zeros(shape, leaf.dtype)

    args, kwargs = tf.nest.map_structure(filled, traced_arguments(target.function))
    return Call(args, kwargs) if kwargs else args
