"""Results that are kept in one variable of TensorFlow, so that eager code and graphs find them alike, in any thread.

Terms
-----
chain
    What the variable holds: a list in which each element holds the next (`tf.raw_ops.OptionalFromValue`), the result used last in front.
    It is never changed, only replaced as a whole, so that a thread sees one state or another and never half of one. Two that store at
    the same time may lose one of the two results, which is then computed again.
entry
    What one evaluation left: the tensors that it was computed from (inputs, and values of variables), its results, and its residuals
    where it was evaluated for a gradient. The tensors are held, not copied: one that was read of a variable shares the variable's memory
    until somebody writes to the variable, which TensorFlow then gives memory of its own (`PrepareToUpdateVariable` in
    tensorflow/core/kernels/training_op_helpers.h copies what somebody else holds).
stale
    An entry whose values of variables are not today's. All entries of one function have the same ones: with the first that is found
    stale all of that function go.

An entry serves when its tensors equal those of the call bit for bit, so NaN equals itself and -0.0 is not 0.0. That sees any write,
whoever made it, at the cost of reading the bytes once.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.gradient.arguments import listed
from graphwright.ir.dtypes import DType
from graphwright.source.private_tensorflow import own_variable
from graphwright.source.tensorflow_import import left_alone

tf: Any = importlib.import_module("tensorflow")

_ENTRY = [tf.int64, tf.variant, tf.int64, tf.variant]  # number of the function, entry, bytes, next
_INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64, 16: tf.int64}
_NOT_COMPARED = ("resource", "variant", "int2", "uint2", "int4", "uint4", "float4_e2m1fn")  # nor what is quantized
_UNKNOWN, _FRESH, _STALE = 0, 1, 2
_STRING_BYTES = 24
"""What TensorFlow's string takes beside its characters."""

_UNKNOWN_BYTES = 2**60

Holds = tuple[str, DType] | None
"""What a residual holds that is a variant, as `held_in` says."""
LookUp = Callable[[Sequence[Any], bool], tuple[list[Any], list[Any]]]


class KeptResults:
    """Results of one or several functions, bounded in bytes; those not used for longest go first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        with tf.init_scope():
            self._chain = own_variable(tf.raw_ops.OptionalNone())
            self._counts = own_variable(tf.zeros([3], tf.int64))

    def counts(self) -> tuple[int, int, int]:
        """Hits, misses, and results that were not kept since they alone take more than `max_bytes`."""
        hits, misses, too_large = tf.raw_ops.ReadVariableOp(resource=self._counts.handle, dtype=tf.int64).numpy().tolist()
        return hits, misses, too_large

    def sizes(self) -> list[int]:
        """Bytes of the entries, the one used last first."""
        found: list[int] = []
        chain = self.read()
        while bool(_is_there(chain)):
            _, _, nbytes, chain = _first(chain)
            found.append(int(nbytes))
        return found

    def clear(self) -> None:
        """Forget everything."""
        self.write(tf.raw_ops.OptionalNone())
        tf.raw_ops.AssignVariableOp(resource=self._counts.handle, value=tf.zeros([3], tf.int64))

    def read(self) -> Any:
        """The chain as it is now."""
        chain = tf.raw_ops.ReadVariableOp(resource=self._chain.handle, dtype=tf.variant)
        if not tf.executing_eagerly():
            chain.set_shape([])
        return chain

    def write(self, chain: Any) -> None:
        """Let another chain be there."""
        tf.raw_ops.AssignVariableOp(resource=self._chain.handle, value=chain)

    def count(self, which: int) -> None:
        """Add one to a counter."""
        tf.raw_ops.AssignAddVariableOp(resource=self._counts.handle, value=tf.one_hot(which, 3, dtype=tf.int64))

    def look_up(self, number: int, evaluate: Any, input_count: int, result_count: int, holds: Sequence[Holds]) -> LookUp:
        """What gives the results of a function, kept or new.

        Args:
            number: of the function, among those that are kept here.
            evaluate: a `ConcreteFunction` of inputs and values of variables; returns results, then residuals.
            input_count: how many of its arguments are inputs.
            result_count: how many of its outputs are results.
            holds: for each residual, what it holds if it is a variant.

        Returns:
            A function of the arguments, and of whether residuals are wanted, that gives results and residuals (none if not wanted).
        """
        function = _Function(self, number, evaluate, input_count, result_count, holds)
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in evaluate.inputs]
        traced = {
            wanted: tf.function(functools.partial(function.look_up, wanted), input_signature=specs, autograph=False)
            for wanted in (False, True)
        }

        @left_alone
        def look_up(given: Sequence[Any], residuals: bool) -> tuple[list[Any], list[Any]]:
            outputs = listed(traced[residuals](*given)) if result_count else []
            if not tf.executing_eagerly():  # a tape around a function would look for gradients of residuals in here
                outputs = [tf.stop_gradient(output) for output in outputs]
            return outputs[:result_count], outputs[result_count:]

        return look_up


class _Function:
    """Looks for the results of one function."""

    def __init__(self, kept: KeptResults, number: int, evaluate: Any, input_count: int, result_count: int, holds: Sequence[Holds]) -> None:
        self._kept = kept
        self._holds = holds
        self._number = number
        self._evaluate = evaluate
        self._input_count = input_count
        self._given = [tf.TensorSpec(t.shape, t.dtype) for t in evaluate.inputs]
        # TensorFlow makes zeros like a variant when it differentiates a function that returns one, but not by a known shape.
        outputs = [tf.TensorSpec(None if t.dtype == tf.variant else t.shape, t.dtype) for t in evaluate.outputs]
        self._results, self._residuals = outputs[:result_count], outputs[result_count:]
        for spec in (*self._given, *self._results):
            _check_dtype(spec.dtype)

    def look_up(self, wanted: bool, *given: Any) -> list[Any]:
        """Results, and residuals where they are wanted."""
        kept, wanted = self._kept, wanted and bool(self._residuals)
        found, others, moved = self._search(kept.read(), given)

        def has_all() -> Any:
            return _is_there(self._open(_first(found)[1])[-1]) if wanted else tf.constant(True)

        def hit() -> list[Any]:
            kept.count(0)
            _, entry, nbytes, _ = _first(found)
            _if(moved, lambda: self._store(entry, nbytes, others))
            opened = self._open(entry)
            results = opened[len(given) : -1]
            return [*results, *_values(opened[-1], self._residuals)] if wanted else results

        def miss() -> list[Any]:
            kept.count(1)
            outputs = listed(self._evaluate(*given))
            results = outputs[: len(self._results)]
            residuals = outputs[len(results) :] if wanted else []
            nbytes = _sum([_nbytes(t) for t in (*given[: self._input_count], *results)])
            nbytes += _sum([_nbytes(t, holds) for t, holds in zip(residuals, self._holds, strict=False)])
            rest = tf.raw_ops.OptionalFromValue(components=residuals) if wanted else tf.raw_ops.OptionalNone()
            entry = tf.raw_ops.OptionalFromValue(components=[*given, *results, rest])
            # Others may have stored something while this was computed; and nothing is kept where a check of the function fails.
            with tf.control_dependencies([entry, *(output.op for output in outputs[:1])]):
                now = kept.read()
            _, others, _ = self._search(now, given)
            fits = nbytes <= kept.max_bytes
            _if(tf.logical_not(fits), lambda: kept.count(2))
            _if(fits, lambda: self._store(entry, nbytes, others))
            return [*results, *residuals]

        ready = tf.cond(_is_there(found), has_all, lambda: tf.constant(False))
        return tf.cond(ready, hit, miss)

    def _search(self, chain: Any, given: Sequence[Any]) -> tuple[Any, Any, Any]:
        """The chain from the entry of these tensors on, the chain of all others that are not stale, and whether they moved."""
        inputs, values = range(self._input_count), range(self._input_count, len(given))

        def looking(rest: Any, _passed: Any, found: Any, _known: Any, _gone: Any) -> Any:
            return tf.logical_and(_is_there(rest), tf.logical_not(_is_there(found)))

        def look(rest: Any, passed: Any, found: Any, known: Any, gone: Any) -> tuple[Any, ...]:
            number, entry, nbytes, after = _first(rest)
            own = tf.equal(number, self._number)

            def compare() -> Any:
                return tf.where(self._same(entry, given, values), _FRESH, _STALE)

            known = tf.cond(tf.logical_and(own, tf.equal(known, _UNKNOWN)), compare, lambda: known)
            hit = tf.cond(
                tf.logical_and(own, tf.equal(known, _FRESH)), lambda: self._same(entry, given, inputs), lambda: tf.constant(False)
            )
            stale = tf.logical_and(own, tf.equal(known, _STALE))
            passed = tf.cond(tf.logical_or(hit, stale), lambda: passed, lambda: _put(number, entry, nbytes, passed))
            return after, passed, tf.cond(hit, lambda: rest, lambda: found), known, tf.logical_or(gone, stale)

        none = tf.raw_ops.OptionalNone()
        start = (chain, none, none, tf.constant(_UNKNOWN), tf.constant(False))
        rest, passed, found, _, gone = tf.while_loop(looking, look, start, parallel_iterations=1)
        return found, _put_back(passed, rest), tf.logical_or(gone, _is_there(passed))

    def _same(self, entry: Any, given: Sequence[Any], which: Sequence[int]) -> Any:
        opened = self._open(entry)
        return _all([_is_same(opened[k], given[k]) for k in which])

    def _open(self, entry: Any) -> list[Any]:
        return _values(entry, [*self._given, *self._results, tf.TensorSpec([], tf.variant)])

    def _store(self, entry: Any, nbytes: Any, others: Any) -> None:
        """Put an entry in front of others, of which those at the end go that would be too much."""

        def fits(rest: Any, _passed: Any, room: Any) -> Any:
            return tf.cond(_is_there(rest), lambda: _first(rest)[2] <= room, lambda: tf.constant(False))

        def keep(rest: Any, passed: Any, room: Any) -> tuple[Any, ...]:
            number, other, size, after = _first(rest)
            return after, _put(number, other, size, passed), room - size

        none = tf.raw_ops.OptionalNone()
        _, passed, _ = tf.while_loop(fits, keep, (others, none, self._kept.max_bytes - nbytes), parallel_iterations=1)
        self._kept.write(_put(self._number, entry, nbytes, _put_back(passed, none)))


def _is_there(chain: Any) -> Any:
    return tf.raw_ops.OptionalHasValue(optional=chain)


def _values(optional: Any, specs: Sequence[Any]) -> list[Any]:
    if not specs:
        return []
    return list(
        tf.raw_ops.OptionalGetValue(
            optional=optional, output_types=[spec.dtype for spec in specs], output_shapes=[spec.shape for spec in specs]
        )
    )


def _first(chain: Any) -> list[Any]:
    """Number of the function, entry, bytes, and the rest of the chain."""
    return list(tf.raw_ops.OptionalGetValue(optional=chain, output_types=_ENTRY, output_shapes=[[]] * len(_ENTRY)))


def _put(number: Any, entry: Any, nbytes: Any, chain: Any) -> Any:
    return tf.raw_ops.OptionalFromValue(components=[tf.cast(number, tf.int64), entry, nbytes, chain])


def _put_back(passed: Any, chain: Any) -> Any:
    """The chain with those in front that were passed, which are in reverse order."""

    def some(passed: Any, _chain: Any) -> Any:
        return _is_there(passed)

    def put(passed: Any, chain: Any) -> tuple[Any, Any]:
        number, entry, nbytes, rest = _first(passed)
        return rest, _put(number, entry, nbytes, chain)

    return tf.while_loop(some, put, (passed, chain), parallel_iterations=1)[1]


def _if(condition: Any, effect: Callable[[], None]) -> None:
    def run() -> Any:
        effect()
        return tf.constant(True)

    tf.cond(condition, run, lambda: tf.constant(False))


def _all(conditions: Sequence[Any]) -> Any:
    return tf.reduce_all(tf.stack(conditions)) if conditions else tf.constant(True)


def _sum(numbers: Sequence[Any]) -> Any:
    return tf.add_n(list(numbers)) if numbers else tf.constant(0, tf.int64)


def _is_same(kept: Any, now: Any) -> Any:
    """Whether two tensors have one shape and the same bits."""

    def same_bits() -> Any:
        return tf.reduce_all(tf.equal(_bits(kept), _bits(now)))

    if now.shape.is_fully_defined():
        return same_bits()

    def same_sizes() -> Any:
        return tf.reduce_all(tf.equal(tf.shape(kept), tf.shape(now)))

    same_shape = tf.cond(tf.equal(tf.rank(kept), tf.rank(now)), same_sizes, lambda: tf.constant(False))
    return tf.cond(same_shape, same_bits, lambda: tf.constant(False))


def _bits(tensor: Any) -> Any:
    dtype = tensor.dtype
    return tensor if dtype.is_integer or dtype in (tf.bool, tf.string) else tf.bitcast(tensor, _INTEGERS[dtype.size])


def _check_dtype(dtype: Any) -> None:
    if dtype in (tf.bool, tf.string) or (dtype.size in _INTEGERS and not dtype.is_quantized and dtype.name not in _NOT_COMPARED):
        return
    raise UnsupportedError(
        f"tensors of dtype {dtype.name} cannot be kept",
        where="gw.cached",
        remedy="let the function take and return numbers, booleans or strings",
    )


def _nbytes(tensor: Any, holds: Holds = None) -> Any:
    """Bytes of a tensor, or of what a variant holds; more than any bound where that is not known."""
    if tensor.dtype == tf.string:
        return tf.reduce_sum(tf.cast(tf.strings.length(tensor), tf.int64)) + _STRING_BYTES * tf.size(tensor, tf.int64)
    if tensor.dtype != tf.variant:
        if tensor.shape.is_fully_defined():
            return tf.constant(math.prod(tensor.shape) * tensor.dtype.size, tf.int64)
        return tf.size(tensor, tf.int64) * tensor.dtype.size
    if holds is None:
        return tf.constant(_UNKNOWN_BYTES, tf.int64)
    kind, dtype = holds[0], tf.as_dtype(holds[1].number)
    if kind == "optional":

        def inside() -> Any:
            return _nbytes(_values(tensor, [tf.TensorSpec(None, dtype)])[0])

        return tf.cond(_is_there(tensor), inside, lambda: tf.constant(0, tf.int64))

    def more(k: Any, _nbytes: Any) -> Any:
        return k < tf.raw_ops.TensorListLength(input_handle=tensor)

    def add(k: Any, nbytes: Any) -> tuple[Any, Any]:
        item = tf.raw_ops.TensorListGetItem(input_handle=tensor, index=k, element_shape=-1, element_dtype=dtype)
        return k + 1, nbytes + _nbytes(item)

    return tf.while_loop(more, add, (tf.constant(0), tf.constant(0, tf.int64)), parallel_iterations=1)[1]
