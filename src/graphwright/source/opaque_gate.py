"""Gates that hold tensors back in a way that XLA cannot undo.

XLA drops control edges, merges equal computations, and looks through its own optimization barrier on the CPU. So a gate is arithmetic: its
result is the tensor, or zeros where a condition fails that never fails: n (n + 1) is even for every n, made of bits of the tensors that it
waits for. JAX used an opaque condition before XLA had a barrier (`jax/_src/ad_checkpoint.py`, `_remat_translation_using_cond`).
"""

from collections.abc import Sequence
from typing import Any

from graphwright.source.tensorflow_import import import_tensorflow


def some_bits(tensors: Sequence[Any]) -> Any:
    """Return an int32 scalar made of bits of the first elements of numeric tensors, each of which it depends on. Empty ones count as 0."""
    tf = import_tensorflow()
    result = tf.constant(0)
    for tensor in tensors:
        corner = tf.reduce_sum(_integers(tensor[tuple(slice(0, 1) for _ in tensor.shape)]))
        result = tf.bitwise.bitwise_xor(result, corner)
    return result


def _integers(tensor: Any) -> Any:
    tf = import_tensorflow()
    if tensor.dtype.is_complex:
        tensor = tf.math.real(tensor)
    if tensor.dtype.is_floating:
        tensor = tf.bitcast(tensor, {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}[tensor.dtype.size])
    return tf.cast(tensor, tf.int32)


def always_true(bits: Any) -> Any:
    """Return a condition that holds for every number, which XLA does not know."""
    tf = import_tensorflow()
    return tf.equal(tf.bitwise.bitwise_and(bits * (bits + 1), 1), 0)


def held(tensor: Any, condition: Any, *, solid: bool) -> Any:
    """Return the tensor, available only after the condition of `always_true`. A solid result is a copy that XLA does not fuse with its
    readers.
    """
    tf = import_tensorflow()
    if solid:
        return tf.cond(condition, lambda: tf.identity(tensor), lambda: tf.zeros_like(tensor))
    return tf.where(condition, tensor, tf.zeros([], tensor.dtype))
