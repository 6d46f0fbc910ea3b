"""Made-up values for a step whose shapes are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphwright.run.traced_step import Call, TracedStep, resolve
from graphwright.source.concrete_function import sparse_sizes, traced_arguments
from graphwright.source.tensorflow_import import import_tensorflow

MADE_UP = "made up: floats between 0 and 1, integers 0"
_ALIGNED = 64


def runnable(traced: TracedStep) -> TracedStep:
    """Return the step with tensors to call it with, its own or made-up ones.

    >>> import tensorflow as tf
    >>> from graphwright.step.targets import trace
    >>> made_up = runnable(trace(tf.function(lambda x: x), feeds={"x": (2, 3)}))
    >>> made_up.shapes, made_up.run().shape
    (((2, 3),), TensorShape([2, 3]))
    """
    return traced if traced.is_runnable else resolve(traced, example_inputs(traced))


def preparable(traced: TracedStep) -> TracedStep:
    """Return the step with tensors to prepare it with, not to run it: zeros in untouched pages, which take no memory.

    TensorFlow's allocator keeps memory for good, so real inputs of a large batch would stay.

    >>> import tensorflow as tf
    >>> from graphwright.step.targets import trace
    >>> looked_at = preparable(trace(tf.function(lambda x: x), feeds={"x": (2, 3)}))
    >>> looked_at.shapes, looked_at.is_runnable
    (((2, 3),), True)
    """
    return traced if traced.is_runnable else resolve(traced, _filled(traced, _untouched))


def example_inputs(target: TracedStep) -> Any:
    """Return the arguments of one call, the step's own or made-up ones: floats between 0 and 1, zeros for all other dtypes.

    Zeros are valid class labels and embedding rows. The same target always gives the same values.

    Returns:
        The `inputs` of `optimize_memory`, `measure` and `verify`: a tuple, or a `Call` with keyword arguments.

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

    def made_up(shape: Sequence[int], dtype: Any) -> Any:
        if dtype.is_floating:
            return tf.cast(tf.random.stateless_uniform(shape, (0, next(seeds))), dtype)
        return tf.zeros(shape, dtype)

    return _filled(target, made_up)


def _filled(target: TracedStep, make: Callable[[Sequence[int], Any], Any]) -> Any:
    tf = import_tensorflow()
    shapes, arguments = enumerate(target.shapes), iter(target.arguments if target.is_runnable else ())
    numbers = {**sparse_sizes(target.function)[1], **target.fed}

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, tf.TensorSpec):
            return leaf
        if target.is_runnable:
            return next(arguments)
        k, shape = next(shapes)
        return tf.cast(numbers[k], leaf.dtype) if k in numbers else make(shape, leaf.dtype)

    args, kwargs = tf.nest.map_structure(filled, traced_arguments(target.function), expand_composites=True)
    return Call(args, kwargs) if kwargs else args


def _untouched(shape: Sequence[int], dtype: Any) -> Any:
    """Return zeros in pages that the system has not allocated yet, if TensorFlow accepts them."""
    tf = import_tensorflow()
    as_native = np.dtype(dtype.as_numpy_dtype)
    if as_native.kind not in "fiuc" and dtype != tf.bfloat16:
        return tf.cast(tf.zeros(shape), dtype) if dtype.is_floating else tf.zeros(shape, dtype)
    lent = np.dtype(np.uint16) if dtype == tf.bfloat16 else as_native
    nbytes = math.prod(shape) * lent.itemsize
    pages = np.zeros(nbytes + _ALIGNED, np.uint8)
    start = -pages.ctypes.data % _ALIGNED
    array = pages[start : start + nbytes].view(lent).reshape(shape)
    tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())  # shares the pages, where `tf.constant` copies them
    return tensor if lent is as_native else tf.bitcast(tensor, dtype)
