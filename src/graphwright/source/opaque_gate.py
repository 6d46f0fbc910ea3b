"""Tensors held back in a way that XLA cannot undo.

XLA drops control edges, merges what is computed twice from the same operands, and by default looks through its own optimization barrier
before it merges (on the CPU; an XLA that keeps the barrier merges nothing that reads it, but does not order it either). So a gate is
arithmetic: its result is the tensor, or zeros where a condition fails that never fails, and the condition is computed from bits of what
has to be there before. That n (n + 1) is even for every n is nothing that XLA knows. The selection takes no pass over the tensor of its
own where the reader is fused with it.

The idea of an opaque condition is JAX's, which put what `jax.checkpoint` computes again into a conditional or a loop with a random
predicate (`jax/_src/ad_checkpoint.py`, `_remat_translation_using_cond`) before XLA had a barrier.
"""

from collections.abc import Sequence
from typing import Any

from graphwright.source.tensorflow_import import import_tensorflow


def some_bits(tensors: Sequence[Any]) -> Any:
    """A number made of bits of the first elements: whoever reads it has to wait for each of the tensors.

    Args:
        tensors: numeric, of known ranks; empty ones count as zero.

    Returns:
        An int32 scalar without any meaning.

    >>> import tensorflow as tf
    >>> int(some_bits([tf.constant([1.0, 5.0])])) == int(some_bits([tf.constant([1.0, 7.0]), tf.zeros((0, 3))]))
    True
    """
    tf = import_tensorflow()
    result = tf.constant(0)
    for tensor in tensors:
        corner = tf.reduce_sum(_integers(tensor[tuple(slice(0, 1) for _ in tensor.shape)]))
        result = tf.bitwise.bitwise_xor(result, corner)
    return result


def _integers(tensor: Any) -> Any:
    """The bits of each element as an int32, as far as there is room."""
    tf = import_tensorflow()
    if tensor.dtype.is_complex:
        tensor = tf.math.real(tensor)
    if tensor.dtype.is_floating:
        tensor = tf.bitcast(tensor, {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}[tensor.dtype.size])
    return tf.cast(tensor, tf.int32)


def always_true(bits: Any) -> Any:
    """A condition that holds for every number; XLA does not know that.

    >>> import tensorflow as tf
    >>> bool(tf.reduce_all(always_true(tf.constant([0, 1, -1, 2**31 - 1, -(2**31), 12345]))))
    True
    """
    tf = import_tensorflow()
    return tf.equal(tf.bitwise.bitwise_and(bits * (bits + 1), 1), 0)


def held(tensor: Any, condition: Any, *, solid: bool) -> Any:
    """The tensor, to be had only when the condition of `always_true` is there.

    Args:
        solid: whether the result is a buffer of its own, which XLA does not fuse with its readers: a copy. Else it may be fused, and what
            the tensor is made of with it.
    """
    tf = import_tensorflow()
    if solid:
        return tf.cond(condition, lambda: tf.identity(tensor), lambda: tf.zeros_like(tensor))
    return tf.where(condition, tensor, tf.zeros([], tensor.dtype))
