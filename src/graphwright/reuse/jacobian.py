"""`jacobian`: the Jacobian of a function by chunks of rows or columns, within a stated peak.

`tf.GradientTape.jacobian` pulls all m rows back at once (`pfor`), so every intermediate gradient exists m times. Here a chunk of rows is
pulled back at once, one chunk after another in a `tf.while_loop`; or, in *forward* mode, a chunk of columns is pushed forward, which is
cheaper where there are fewer columns than rows. The function runs once, and what it keeps serves all chunks.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from graphwright.costs.flops import count_flops
from graphwright.costs.peak import predict_peak
from graphwright.errors import ArgumentError, GraphwrightError, InfeasibleError, UnsupportedError, in_words
from graphwright.least_squares.jacobians import Linear
from graphwright.plain import Result
from graphwright.plan.budget import Budget
from graphwright.report.units import format_bytes
from graphwright.reuse.chunk_loops import joined, loop
from graphwright.source.private_tensorflow import is_watched, not_recorded
from graphwright.source.tensorflow_import import import_keras, left_alone

tf: Any = importlib.import_module("tensorflow")

JacobianMode = Literal["auto", "forward", "reverse"]
_CHUNK = 32  # where nobody says
_TRIES = 4


@dataclass(frozen=True)
class JacobianPlan(Result):
    """How a Jacobian is found.

    Attributes:
        mode: "forward" by columns, "reverse" by rows.
        chunk: rows or columns at a time.
        rows: elements of the outputs.
        columns: elements of what the Jacobian is with respect to.
        flops: by mode, the floating-point operations of all its products; empty where the mode was given.
        peak_bytes: predicted; None where no peak was asked for.
        how: how the figures were obtained.
    """

    mode: Literal["forward", "reverse"]
    chunk: int
    rows: int
    columns: int
    flops: dict[str, float]
    peak_bytes: int | None
    how: str

    def __str__(self) -> str:
        peak = "" if self.peak_bytes is None else f", predicted peak {format_bytes(self.peak_bytes)}"
        kind = "rows" if self.mode == "reverse" else "columns"
        return f"{self.rows:,} x {self.columns:,}, {self.mode} mode, {self.chunk:,} {kind} at a time{peak}"


@left_alone
def jacobian(
    function: Callable[..., Any],
    inputs: Any,
    *,
    sources: Any = None,
    peak: int | float | str | None = None,
    chunk: int | None = None,
    mode: JacobianMode = "auto",
) -> Any:
    """The Jacobian of a function, in chunks: equal to `tf.GradientTape.jacobian`, in the memory that there is.

    Eagerly or in a `tf.function`; there it is traced once, here at each call.

    Args:
        function: takes `inputs`, gives a structure of floating-point tensors of known shapes.
        inputs: a tuple of its arguments, each a structure of tensors; or its one argument.
        sources: what the Jacobian is with respect to: a structure of variables that the function reads; by default the inputs.
        peak: what the computation may take: bytes, text such as "2GiB", or a share of the peak with all rows at once. The largest chunk
            that is predicted to keep it is taken. Counted are inputs, variables, the Jacobian itself, and all between.
        chunk: rows (reverse) or columns (forward) at a time; 32 where neither is given.
        mode: "reverse" by rows, "forward" by columns; "auto" counts the floating-point operations of both.

    Returns:
        Per output, in their structure, the structure of the sources, each with a tensor of shape `output.shape + source.shape` and the
        source's dtype; None where the output does not depend on the source.

    Raises:
        ArgumentError: what is no floating-point tensor of known shape, or arguments that make no sense.
        InfeasibleError: not even one row at a time keeps the peak; it names the smallest known to work.

    >>> import tensorflow as tf
    >>> jacobian(lambda x: x**2, tf.constant([1.0, 3.0]), chunk=1).numpy().tolist()
    [[2.0, 0.0], [0.0, 6.0]]
    """
    problem = _Problem(function, inputs, sources)
    plan = _plan(problem, peak, chunk, mode)
    return problem.called(partial(_in_chunks, problem, plan.mode, plan.chunk))


@left_alone
def plan_jacobian(
    function: Callable[..., Any],
    inputs: Any,
    *,
    sources: Any = None,
    peak: int | float | str | None = None,
    chunk: int | None = None,
    mode: JacobianMode = "auto",
) -> JacobianPlan:
    """What `jacobian` would do with the same arguments, and the peak that is predicted for it. Nothing is computed.

    Raises:
        ArgumentError, InfeasibleError: see `jacobian`.

    >>> import tensorflow as tf
    >>> plan_jacobian(lambda x: tf.concat([x, x**2], 0), tf.ones(50), chunk=10)
    <JacobianPlan: 100 x 50, forward mode, 10 columns at a time>
    """
    return _plan(_Problem(function, inputs, sources), peak, chunk, mode)


class _Problem:
    """What is asked for, checked: a function of flat sources that gives all outputs as one vector."""

    def __init__(self, function: Callable[..., Any], inputs: Any, sources: Any) -> None:
        if not callable(function):
            raise ArgumentError(
                f"a {type(function).__name__} cannot be called", argument="function", remedy="give a function of the inputs"
            )
        self._function = function
        self._inputs = tf.nest.map_structure(partial(_dense, "inputs"), inputs if isinstance(inputs, tuple) else (inputs,))
        self._of_variables = sources is not None
        self._name = "sources" if self._of_variables else "inputs"
        structure = sources if self._of_variables else self._inputs
        self.leaves = [_plain(leaf) for leaf in tf.nest.flatten(structure)]
        self._structure = structure if self._of_variables or isinstance(inputs, tuple) else structure[0]
        if not self.leaves:
            raise ArgumentError("there is nothing to take the Jacobian with respect to", argument=self._name, remedy="give at least one")
        for k, leaf in enumerate(self.leaves):
            if self._of_variables and not isinstance(leaf, tf.Variable):
                got = type(leaf).__name__
                raise ArgumentError(f"a {got} was given", argument="sources", item=str(k), remedy="give variables; tensors are for inputs")
            _check(leaf, self._name, k)
        self.sizes = [math.prod(leaf.shape) for leaf in self.leaves]
        self.columns = sum(self.sizes)
        self._outputs: Any = None
        try:
            self.traced(self.vector)  # the outputs are known now
        except tf.errors.OperatorNotAllowedInGraphError:  # a loop over tensors, which AutoGraph converts
            self._function = tf.function(function)
            try:
                self.traced(self.vector)
            except tf.errors.OperatorNotAllowedInGraphError as error:
                raise UnsupportedError(
                    "AutoGraph cannot convert a loop or a condition over tensors in the function",
                    cause="its source is not at hand (it was typed into an interpreter), or it opts out of AutoGraph",
                    remedy="put it into a file, or use tf.while_loop and tf.cond",
                ) from error
        self.rows = sum(math.prod(spec.shape) for spec in tf.nest.flatten(self._outputs))

    def vector(self, leaves: Sequence[Any]) -> Any:
        """All outputs, one behind another, in the widest of their types."""
        inputs = self._inputs if self._of_variables else tf.nest.pack_sequence_as(self._inputs, list(leaves))
        found = tf.nest.map_structure(partial(_dense, "function"), self._function(*inputs))
        self.tensors = tf.nest.flatten(found)
        for k, tensor in enumerate(self.tensors):
            _check(tensor, "function", k)
        if not self.tensors:
            raise ArgumentError("the function gives nothing", argument="function", remedy="let it give tensors")
        self._outputs = tf.nest.map_structure(_spec, found)
        self.dtype = max((tensor.dtype for tensor in self.tensors), key=lambda dtype: dtype.size)
        return tf.concat([tf.reshape(tf.cast(tensor, self.dtype), [-1]) for tensor in self.tensors], 0)

    def traced(self, of_leaves: Callable[..., Any], *others: Any) -> Any:
        """The `ConcreteFunction` of a function of the leaves and other tensors."""
        tensors = () if self._of_variables else tuple(_spec(leaf) for leaf in self.leaves)

        @left_alone
        def call(*given: Any) -> Any:
            return of_leaves(self.leaves if self._of_variables else list(given[: len(tensors)]), *given[len(tensors) :])

        return tf.function(call).get_concrete_function(*tensors, *others)

    def called(self, of_leaves: Callable[[Sequence[Any]], Any]) -> Any:
        """What a function of the leaves gives: compiled, or in the graph that is being traced."""
        if not tf.executing_eagerly():
            return of_leaves(self.leaves)
        concrete = self.traced(of_leaves)  # in which tapes record
        given = [] if self._of_variables else self.leaves
        watched = is_watched([*given, *concrete.captured_inputs])  # a loss may be made of the Jacobian
        with nullcontext() if watched else not_recorded():
            return concrete(*given)

    def packed(self, parts: Sequence[Any], connected: Sequence[Sequence[bool]]) -> Any:
        """The Jacobian in the structure of the outputs and sources, of a matrix (rows, elements) per source."""
        first, found = 0, list[Any]()
        for spec, reaches in zip(tf.nest.flatten(self._outputs), connected, strict=True):
            count = math.prod(spec.shape)
            own = [
                tf.cast(tf.reshape(part[first : first + count], [*spec.shape, *leaf.shape]), leaf.dtype) if is_reached else None
                for part, leaf, is_reached in zip(parts, self.leaves, reaches, strict=True)
            ]
            found.append(tf.nest.pack_sequence_as(self._structure, own))
            first += count
        return tf.nest.pack_sequence_as(self._outputs, found)


def _in_chunks(problem: _Problem, mode: str, chunk: int, leaves: Sequence[Any]) -> Any:
    linear = Linear(problem.vector, leaves)
    connected = linear.connected(problem.tensors)
    count = problem.rows if mode == "reverse" else problem.columns
    shapes = [[size] for size in problem.sizes] if mode == "reverse" else [[problem.rows]]
    dtypes = [leaf.dtype for leaf in leaves] if mode == "reverse" else [problem.dtype]

    def one(index: Any) -> list[Any]:
        if mode == "reverse":
            pulled = linear.pull(tf.one_hot(index, problem.rows, dtype=problem.dtype))
            return [tf.reshape(tf.convert_to_tensor(part), [-1]) for part in pulled]
        unit = tf.split(tf.one_hot(index, problem.columns, dtype=problem.dtype), problem.sizes)
        return [linear.push([tf.cast(tf.reshape(part, leaf.shape), leaf.dtype) for part, leaf in zip(unit, leaves, strict=True)])]

    def some(first: Any, size: int) -> list[Any]:
        if size == 1:
            return [part[tf.newaxis] for part in one(first)]
        return tf.vectorized_map(one, first + tf.range(size))

    parts: list[list[Any]] = []
    for first, rounds, size in ((0, count // chunk, chunk), (count // chunk * chunk, 1, count % chunk)):
        if not rounds or not size:
            continue
        arrays = [tf.TensorArray(dtype, rounds, element_shape=[size, *shape]) for dtype, shape in zip(dtypes, shapes, strict=True)]

        def body(i: Any, carried: Any, first: int = first, size: int = size) -> Any:
            return tuple(array.write(i, part) for array, part in zip(carried, some(first + i * size, size), strict=True))

        after = [leaf for done in parts for leaf in done]
        parts.append([joined(array, rounds * size) for array in loop(rounds, body, tuple(arrays), after)])
    if not parts:
        return problem.packed([tf.zeros([problem.rows, size], problem.dtype) for size in problem.sizes], connected)
    whole = [done[0] if len(done) == 1 else tf.concat(done, 0) for done in zip(*parts, strict=True)]
    if mode == "forward":
        whole = [tf.transpose(part) for part in tf.split(whole[0], problem.sizes)]
    return problem.packed(whole, connected)


def _plan(problem: _Problem, peak: Any, chunk: Any, mode: str) -> JacobianPlan:
    if mode not in get_args(JacobianMode):
        raise ArgumentError(f"mode={mode!r}", argument="mode", remedy=f"one of {', '.join(get_args(JacobianMode))}")
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise ArgumentError(f"chunk={chunk!r}", argument="chunk", remedy="give a whole number of at least 1")
    if chunk is not None and peak is not None:
        raise ArgumentError(f"chunk={chunk} and peak={peak!r}", argument="chunk", remedy="give one of the two: the peak decides the chunk")
    flops = _flops(problem) if mode == "auto" else {}
    chosen: Any = min(flops, key=flops.__getitem__) if flops else mode
    if chosen == "auto":
        chosen = "forward" if problem.columns < problem.rows else "reverse"
    most = max(problem.rows if chosen == "reverse" else problem.columns, 1)
    how = "floating-point operations counted per product" if flops else ""
    if peak is None:
        return JacobianPlan(chosen, min(chunk or _CHUNK, most), problem.rows, problem.columns, flops, None, how)
    size, peak_bytes = _largest_chunk(problem, chosen, most, Budget.read(peak))
    told = "peak predicted by simulating TensorFlow's executor, the higher end"
    return JacobianPlan(chosen, size, problem.rows, problem.columns, flops, peak_bytes, "; ".join(filter(None, (how, told))))


def _flops(problem: _Problem) -> dict[str, float]:
    """By mode, the operations of all products; empty where an operation is not known, and one mode has to be taken by its dimension."""
    cotangent, tangents = tf.TensorSpec([problem.rows], problem.dtype), [_spec(leaf) for leaf in problem.leaves]

    def pulled(leaves: Sequence[Any], u: Any) -> Any:
        return Linear(problem.vector, leaves).pull(u)

    def pushed(leaves: Sequence[Any], *v: Any) -> Any:
        return Linear(problem.vector, leaves).push(v)

    once, pull, push = problem.traced(problem.vector), problem.traced(pulled, cotangent), problem.traced(pushed, *tangents)
    try:
        with tf.init_scope():  # within a function that is being traced nothing can be prepared to run
            once, reverse, forward = (count_flops(function) for function in (once, pull, push))
    except GraphwrightError:
        return {}
    if any(count.unknown for count in (once, reverse, forward)):
        return {}
    return {
        "reverse": problem.rows * max(reverse.total - once.total, 1.0),
        "forward": problem.columns * max(forward.total - once.total, 1.0),
    }


def _largest_chunk(problem: _Problem, mode: str, most: int, budget: Budget) -> tuple[int, int]:
    """The largest chunk that is predicted to keep the budget, about, and its peak: the peak grows with the chunk, nearly in a line."""
    known: dict[int, int] = {}

    def peak_of(chunk: int) -> int:
        if chunk not in known:
            function = problem.traced(partial(_in_chunks, problem, mode, chunk))  # not in an `init_scope`, in which no tape records
            try:
                with tf.init_scope():
                    known[chunk] = predict_peak(function, order="executor").peak_bytes
            except (GraphwrightError, ValueError, TypeError) as error:
                raise ArgumentError(
                    "the peak cannot be predicted",
                    argument="peak",
                    cause=in_words(error),
                    remedy="give chunk=, or let the function close over no tensor of a graph that is being traced",
                ) from error
        return known[chunk]

    limit = budget.of(peak_of(most)) if budget.is_share else budget.nbytes
    if peak_of(most) <= limit:
        return most, peak_of(most)
    if peak_of(1) > limit:
        raise InfeasibleError(
            f"one at a time takes {format_bytes(peak_of(1))}, {format_bytes(limit)} may be taken",
            where=f"Jacobian of {problem.rows:,} x {problem.columns:,} in {mode} mode",
            cause="the Jacobian itself, inputs, variables, and what the function keeps for its derivative are there whatever the chunk",
            remedy=f"give a peak of {peak_of(1)} bytes or more, or the other mode",
            smallest_budget_bytes=peak_of(1),
        )
    low, high = 1, most
    for _ in range(_TRIES):
        slope = (peak_of(high) - peak_of(low)) / (high - low)
        between = low + int((limit - peak_of(low)) / max(slope, 1e-9))
        between = min(max(between, low + 1), high - 1)
        if between in known or high - low < 2:
            break
        low, high = (between, high) if peak_of(between) <= limit else (low, between)
    return low, peak_of(low)


def _check(tensor: Any, argument: str, k: int) -> None:
    """Raise for what has no Jacobian here, or one of unknown size."""
    item = "" if argument == "function" else str(k)
    where = f"output {k}" if argument == "function" else ""
    if not tensor.dtype.is_floating:
        remedy = "take real and imaginary parts as tensors of their own" if tensor.dtype.is_complex else "leave it out, or make it float"
        raise ArgumentError(f"a tensor of type {tensor.dtype.name}", where=where, argument=argument, item=item, remedy=remedy)
    if not tensor.shape.is_fully_defined():
        remedy = "give shapes: the size of the Jacobian follows from them"
        raise ArgumentError(f"a tensor of shape {tensor.shape}", where=where, argument=argument, item=item, remedy=remedy)


def _dense(argument: str, value: Any) -> Any:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"a {type(value).__name__} is no dense tensor", argument=argument, remedy="give and return tensors") from error


def _plain(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, import_keras().Variable) else leaf


def _spec(tensor: Any) -> Any:
    return tf.TensorSpec(tensor.shape, tensor.dtype)
