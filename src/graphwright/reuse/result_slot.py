"""The latest result of one traced function, held in a variable of TensorFlow, so that eager code and graphs share it in any thread.

The variable holds a `tf.raw_ops.OptionalFromValue` that is replaced as a whole: the size of the result, the tensors that it was computed
from (arguments and values of variables), the result, and an optional with the residuals of an evaluation under a tape. A result is reused
if its tensors equal those of the call bit for bit. Tensors are held, not copied: a value read from a variable shares the variable's
memory until the next write (`PrepareToUpdateVariable` in tensorflow/core/kernels/training_op_helpers.h).
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.gradient.arguments import listed
from graphwright.ir.dtypes import DType
from graphwright.source.private_tensorflow import own_variable
from graphwright.source.tensorflow_import import left_alone

tf: Any = importlib.import_module("tensorflow")

_INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64, 16: tf.int64}
_NOT_COMPARABLE = ("resource", "variant", "int2", "uint2", "int4", "uint4", "float4_e2m1fn")
_STRING_BYTES = 24
"""Bytes of an empty TensorFlow string."""

_UNKNOWN_BYTES = 2**60

Holds = tuple[str, DType] | None
"""The content of a variant residual, as `pure_function.variant_content` returns it."""


class Counters:
    """Hits, misses, and results that were too large to keep, counted in one variable."""

    HIT, MISS, TOO_LARGE = range(3)

    def __init__(self) -> None:
        self._variable = own_variable(tf.zeros([3], tf.int64))

    def add(self, which: int) -> None:
        tf.raw_ops.AssignAddVariableOp(resource=self._variable.handle, value=tf.one_hot(which, 3, dtype=tf.int64))

    def values(self) -> tuple[int, int, int]:
        hits, misses, too_large = tf.raw_ops.ReadVariableOp(resource=self._variable.handle, dtype=tf.int64).numpy().tolist()
        return hits, misses, too_large

    def clear(self) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._variable.handle, value=tf.zeros([3], tf.int64))


class ResultSlot:
    """The latest result of one function.

    Args:
        evaluate: a `ConcreteFunction` of arguments and values of variables; returns results, then residuals.
        argument_count: the number of its inputs that are arguments.
        result_count: the number of its outputs that are results.
        holds: per residual, its content if it is a variant.
        max_bytes: larger results are not kept.
        counters: shared by all slots of a cached function.
    """

    def __init__(
        self, evaluate: Any, argument_count: int, result_count: int, holds: Sequence[Holds], max_bytes: int, counters: Counters
    ) -> None:
        self._evaluate, self._argument_count, self._holds = evaluate, argument_count, holds
        self._max_bytes, self._counters = max_bytes, counters
        self._inputs = [tf.TensorSpec(t.shape, t.dtype) for t in evaluate.inputs]
        # To differentiate a function that returns a variant, TensorFlow makes zeros like it, which fails for a known shape.
        outputs = [tf.TensorSpec(None if t.dtype == tf.variant else t.shape, t.dtype) for t in evaluate.outputs]
        self._results, self._residuals = outputs[:result_count], outputs[result_count:]
        for spec in (*self._inputs, *self._results):
            _check_dtype(spec.dtype)
        with tf.init_scope():
            self._variable = own_variable(tf.raw_ops.OptionalNone())
        self._traced = {
            wanted: tf.function(functools.partial(self._look_up, wanted), input_signature=self._inputs, autograph=False)
            for wanted in (False, True)
        }

    @property
    def nbytes(self) -> int | None:
        entry = self._read()
        return int(self._open(entry)[0]) if bool(_has_value(entry)) else None

    def clear(self) -> None:
        self._write(tf.raw_ops.OptionalNone())

    @left_alone
    def look_up(self, inputs: Sequence[Any], residuals: bool) -> tuple[list[Any], list[Any]]:
        """Return results and residuals (empty unless wanted) for arguments and values of variables, kept or computed."""
        outputs = listed(self._traced[residuals](*inputs)) if self._results else []
        if not tf.executing_eagerly():  # otherwise a tape around a function would look for gradients of residuals here
            outputs = [tf.stop_gradient(output) for output in outputs]
        return outputs[: len(self._results)], outputs[len(self._results) :]

    def _look_up(self, wanted: bool, *inputs: Any) -> list[Any]:
        wanted = wanted and bool(self._residuals)
        entry = self._read()

        def is_current() -> Any:
            _, *tensors, residuals = self._open(entry)
            same = [_is_same(old, new) for old, new in zip(tensors, inputs, strict=False)]
            return tf.reduce_all(tf.stack([*same, _has_value(residuals) if wanted else tf.constant(True)]))

        def hit() -> list[Any]:
            self._counters.add(Counters.HIT)
            _, *tensors, residuals = self._open(entry)
            results = tensors[len(inputs) :]
            return [*results, *_values(residuals, self._residuals)] if wanted else results

        def miss() -> list[Any]:
            self._counters.add(Counters.MISS)
            outputs = listed(self._evaluate(*inputs))
            results = outputs[: len(self._results)]
            residuals = outputs[len(results) :] if wanted else []
            self._store(inputs, results, residuals)
            return [*results, *residuals]

        return tf.cond(tf.cond(_has_value(entry), is_current, lambda: tf.constant(False)), hit, miss)

    def _store(self, inputs: Sequence[Any], results: Sequence[Any], residuals: Sequence[Any]) -> None:
        sizes = [_nbytes(tensor) for tensor in (*inputs[: self._argument_count], *results)]
        sizes += [_nbytes(tensor, holds) for tensor, holds in zip(residuals, self._holds, strict=False)]
        nbytes = tf.add_n(sizes)

        def keep() -> Any:
            rest = tf.raw_ops.OptionalFromValue(components=residuals) if residuals else tf.raw_ops.OptionalNone()
            self._write(tf.raw_ops.OptionalFromValue(components=[nbytes, *inputs, *results, rest]))
            return tf.constant(True)

        def refuse() -> Any:
            self._counters.add(Counters.TOO_LARGE)
            return tf.constant(False)

        with tf.control_dependencies([results[0]]):  # a failed check of the function prevents this
            tf.cond(nbytes <= self._max_bytes, keep, refuse)

    def _read(self) -> Any:
        entry = tf.raw_ops.ReadVariableOp(resource=self._variable.handle, dtype=tf.variant)
        if not tf.executing_eagerly():
            entry.set_shape([])
        return entry

    def _write(self, entry: Any) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._variable.handle, value=entry)

    def _open(self, entry: Any) -> list[Any]:
        size, rest = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.variant)
        return _values(entry, [size, *self._inputs, *self._results, rest])


def _has_value(optional: Any) -> Any:
    return tf.raw_ops.OptionalHasValue(optional=optional)


def _values(optional: Any, specs: Sequence[Any]) -> list[Any]:
    dtypes, shapes = [spec.dtype for spec in specs], [spec.shape for spec in specs]
    return list(tf.raw_ops.OptionalGetValue(optional=optional, output_types=dtypes, output_shapes=shapes))


def _is_same(old: Any, new: Any) -> Any:
    def same_bits() -> Any:
        return tf.reduce_all(tf.equal(_bits(old), _bits(new)))

    if new.shape.is_fully_defined():
        return same_bits()

    def same_sizes() -> Any:
        return tf.reduce_all(tf.equal(tf.shape(old), tf.shape(new)))

    same_shape = tf.cond(tf.equal(tf.rank(old), tf.rank(new)), same_sizes, lambda: tf.constant(False))
    return tf.cond(same_shape, same_bits, lambda: tf.constant(False))


def _bits(tensor: Any) -> Any:
    dtype = tensor.dtype
    return tensor if dtype.is_integer or dtype in (tf.bool, tf.string) else tf.bitcast(tensor, _INTEGERS[dtype.size])


def _check_dtype(dtype: Any) -> None:
    if dtype in (tf.bool, tf.string) or (dtype.size in _INTEGERS and not dtype.is_quantized and dtype.name not in _NOT_COMPARABLE):
        return
    raise UnsupportedError(
        f"tensors of dtype {dtype.name} cannot be kept",
        where="gw.cached",
        remedy="let the function take and return numbers, booleans or strings",
    )


def _nbytes(tensor: Any, holds: Holds = None) -> Any:
    """Return the bytes of a tensor or of a variant's content, or `_UNKNOWN_BYTES`."""
    if tensor.dtype == tf.string:
        return tf.reduce_sum(tf.cast(tf.strings.length(tensor), tf.int64)) + _STRING_BYTES * tf.size(tensor, tf.int64)
    if tensor.dtype != tf.variant:
        if tensor.shape.is_fully_defined():
            return tf.constant(math.prod(tensor.shape) * tensor.dtype.size, tf.int64)
        return tf.size(tensor, tf.int64) * tensor.dtype.size
    if holds is None:
        return tf.constant(_UNKNOWN_BYTES, tf.int64)
    kind, dtype = holds[0], tf.as_dtype(holds[1].number)
    return _optional_bytes(tensor, dtype) if kind == "optional" else _list_bytes(tensor, dtype)


def _optional_bytes(optional: Any, dtype: Any) -> Any:
    def inside() -> Any:
        return _nbytes(_values(optional, [tf.TensorSpec(None, dtype)])[0])

    return tf.cond(_has_value(optional), inside, lambda: tf.constant(0, tf.int64))


def _list_bytes(tensors: Any, dtype: Any) -> Any:
    def more(k: Any, _nbytes: Any) -> Any:
        return k < tf.raw_ops.TensorListLength(input_handle=tensors)

    def add(k: Any, nbytes: Any) -> tuple[Any, Any]:
        item = tf.raw_ops.TensorListGetItem(input_handle=tensors, index=k, element_shape=-1, element_dtype=dtype)
        return k + 1, nbytes + _nbytes(item)

    return tf.while_loop(more, add, (tf.constant(0), tf.constant(0, tf.int64)), parallel_iterations=1)[1]
