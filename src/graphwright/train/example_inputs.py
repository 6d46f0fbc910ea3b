"""Values to run a step with where only shapes are known."""

from __future__ import annotations

from typing import Any

from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.train.targets import Target


def example_inputs(target: Target) -> Any:
    """Made-up arguments for one call: numbers between 0 and 1 for floating point, zeros for all else.

    Zeros are valid class labels and valid rows of an embedding whatever their number is. The same target always gives
    the same values.

    Returns:
        What `optimize_memory`, `measure` and `verify` take as `inputs`: a tuple, or a mapping for keyword arguments.

    >>> import tensorflow as tf
    >>> from graphwright.train.targets import trace
    >>> step = tf.function(lambda image, label: (image, label))
    >>> feeds = {"image": (2, 3), "label": tf.TensorSpec((2,), tf.int32)}
    >>> image, label = example_inputs(trace(step, feeds=feeds))
    >>> image.shape, label.numpy().tolist()
    (TensorShape([2, 3]), [0, 0])
    """
    tf = import_tensorflow()
    seeds = iter(range(len(target.shapes)))
    shapes = iter(target.shapes)

    def value(leaf: Any) -> Any:
        if not isinstance(leaf, tf.TensorSpec):
            return leaf  # a Python value that the function was traced with
        shape = next(shapes)
        if leaf.dtype.is_floating:
            return tf.cast(tf.random.stateless_uniform(shape, (0, next(seeds))), leaf.dtype)
        return tf.zeros(shape, leaf.dtype)

    signature = target.function.structured_input_signature
    if signature is None:  # of a graph that was wrapped, which takes its inputs one by one
        signature: Any = (tuple(tf.TensorSpec(t.shape, t.dtype) for t in target.function.inputs[: len(target.shapes)]), {})
    args, kwargs = tf.nest.map_structure(value, signature)
    return dict(kwargs) if kwargs else tuple(args)
