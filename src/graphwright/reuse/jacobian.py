"""`jacobian`: the Jacobian of a function by chunks of rows or columns, within a peak memory.

`tf.GradientTape.jacobian` pulls all m rows back at once (`pfor`), so every intermediate gradient exists m times. Here a chunk of rows is
pulled back at once, one chunk after another in a `tf.while_loop`. In *forward* mode a chunk of columns is pushed forward instead, which is
cheaper if there are fewer columns than rows. The function runs once, and its residuals serve all chunks.
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
from graphwright.reuse.chunk_loops import joined, loop, plain_variable
from graphwright.source.private_tensorflow import is_watched, not_recorded
from graphwright.source.tensorflow_import import left_alone

tf: Any = importlib.import_module("tensorflow")

JacobianMode = Literal["auto", "forward", "reverse"]
_DEFAULT_CHUNK = 32
_MOST_PREDICTIONS = 4


@dataclass(frozen=True)
class JacobianPlan(Result):
    """How a Jacobian is computed.

    Attributes:
        mode: "forward" by columns, "reverse" by rows.
        chunk: rows or columns at a time.
        rows: elements of the outputs.
        columns: elements of the sources.
        flops: floating-point operations of all products, by mode; empty if the mode was given.
        peak_bytes: predicted; None if no peak was given.
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
    """Return the Jacobian of a function, computed in chunks; equal to `tf.GradientTape.jacobian`.

    Works eagerly, where each call traces the function, and in a `tf.function`.

    Args:
        function: takes `inputs`, returns a structure of floating-point tensors of known shapes.
        inputs: a tuple of its arguments, each a structure of tensors; or its only argument.
        sources: a structure of variables to differentiate with respect to; by default the inputs.
        peak: the peak memory of the computation: bytes, text such as "2GiB", or a share of the peak with all rows at once. The largest
            chunk whose predicted peak fits is taken. Inputs, variables, the Jacobian itself and all temporaries count.
        chunk: rows (reverse) or columns (forward) at a time; 32 if neither is given.
        mode: "reverse" by rows, "forward" by columns; "auto" counts the floating-point operations of both.

    Returns:
        Per output, in their structure, the structure of the sources, each a tensor of shape `output.shape + source.shape` and the source's
        dtype; None if the output does not depend on the source.

    Raises:
        ArgumentError: a tensor is not floating-point or has an unknown shape, or arguments conflict.
        InfeasibleError: even one row at a time exceeds the peak; the error names the smallest peak that works.

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
    """Return the mode, chunk and predicted peak that `jacobian` would use for the same arguments, without computing it.

    >>> import tensorflow as tf
    >>> plan_jacobian(lambda x: tf.concat([x, x**2], 0), tf.ones(50), chunk=10)
    <JacobianPlan: 100 x 50, forward mode, 10 columns at a time>
    """
    return _plan(_Problem(function, inputs, sources), peak, chunk, mode)


class _Problem:
    """The checked arguments: a function of flat sources that returns all outputs as one vector."""

    def __init__(self, function: Callable[..., Any], inputs: Any, sources: Any) -> None:
        if not callable(function):
            raise ArgumentError(
                f"a {type(function).__name__} cannot be called", argument="function", remedy="give a function of the inputs"
            )
        self._function = function
        self._inputs = tf.nest.map_structure(partial(_dense, "inputs"), inputs if isinstance(inputs, tuple) else (inputs,))
        self._of_variables = sources is not None
        name = "sources" if self._of_variables else "inputs"
        structure = sources if self._of_variables else self._inputs
        self.leaves = [plain_variable(leaf) for leaf in tf.nest.flatten(structure)]
        self._structure = structure if self._of_variables or isinstance(inputs, tuple) else structure[0]
        if not self.leaves:
            raise ArgumentError("there is nothing to take the Jacobian with respect to", argument=name, remedy="give at least one")
        for k, leaf in enumerate(self.leaves):
            if self._of_variables and not isinstance(leaf, tf.Variable):
                got = type(leaf).__name__
                raise ArgumentError(f"a {got} was given", argument="sources", item=str(k), remedy="give variables; tensors are for inputs")
            _check(leaf, argument=name, item=str(k))
        self.sizes = [math.prod(leaf.shape) for leaf in self.leaves]
        self.columns = sum(self.sizes)
        self._trace_once(function)
        self.rows = sum(math.prod(spec.shape) for spec in tf.nest.flatten(self._outputs))

    def _trace_once(self, function: Callable[..., Any]) -> None:
        try:
            self.traced(self.vector)
            return
        except tf.errors.OperatorNotAllowedInGraphError:
            self._function = tf.function(function)
        try:
            self.traced(self.vector)
        except tf.errors.OperatorNotAllowedInGraphError as error:
            raise UnsupportedError(
                "AutoGraph cannot convert a loop or a condition over tensors in the function",
                cause="its source is not available (it was typed into an interpreter), or it opts out of AutoGraph",
                remedy="put it into a file, or use tf.while_loop and tf.cond",
            ) from error

    def vector(self, leaves: Sequence[Any]) -> Any:
        """Return all outputs in one vector of their widest dtype."""
        inputs = self._inputs if self._of_variables else tf.nest.pack_sequence_as(self._inputs, list(leaves))
        outputs = tf.nest.map_structure(partial(_dense, "function"), self._function(*inputs))
        self.tensors = tf.nest.flatten(outputs)
        for k, tensor in enumerate(self.tensors):
            _check(tensor, argument="function", where=f"output {k}")
        if not self.tensors:
            raise ArgumentError("the function gives nothing", argument="function", remedy="let it give tensors")
        self._outputs = tf.nest.map_structure(_spec, outputs)
        self.dtype = max((tensor.dtype for tensor in self.tensors), key=lambda dtype: dtype.size)
        return tf.concat([tf.reshape(tf.cast(tensor, self.dtype), [-1]) for tensor in self.tensors], 0)

    def traced(self, of_leaves: Callable[..., Any], *others: Any) -> Any:
        """Return the `ConcreteFunction` of a function of the leaves and other tensors."""
        specs = () if self._of_variables else tuple(_spec(leaf) for leaf in self.leaves)

        @left_alone
        def call(*tensors: Any) -> Any:
            return of_leaves(self.leaves if self._of_variables else list(tensors[: len(specs)]), *tensors[len(specs) :])

        return tf.function(call).get_concrete_function(*specs, *others)

    def called(self, of_leaves: Callable[[Sequence[Any]], Any]) -> Any:
        """Call a function of the leaves, compiled or in the graph that is being traced."""
        if not tf.executing_eagerly():
            return of_leaves(self.leaves)
        concrete = self.traced(of_leaves)  # in which tapes record
        arguments = [] if self._of_variables else self.leaves
        watched = is_watched([*arguments, *concrete.captured_inputs])  # a loss may depend on the Jacobian
        with nullcontext() if watched else not_recorded():
            return concrete(*arguments)

    def packed(self, parts: Sequence[Any], connected: Sequence[Sequence[bool]]) -> Any:
        """Return the Jacobian in the structure of outputs and sources, from a matrix per source; None for unconnected pairs."""
        first = 0
        blocks: list[Any] = []
        for spec, reaches in zip(tf.nest.flatten(self._outputs), connected, strict=True):
            count = math.prod(spec.shape)
            own = [
                tf.cast(tf.reshape(part[first : first + count], [*spec.shape, *leaf.shape]), leaf.dtype) if is_reached else None
                for part, leaf, is_reached in zip(parts, self.leaves, reaches, strict=True)
            ]
            blocks.append(tf.nest.pack_sequence_as(self._structure, own))
            first += count
        return tf.nest.pack_sequence_as(self._outputs, blocks)


def _in_chunks(problem: _Problem, mode: str, chunk: int, leaves: Sequence[Any]) -> Any:
    linear = Linear(problem.vector, leaves)
    connected = linear.connected(problem.tensors)
    count = problem.rows if mode == "reverse" else problem.columns
    shapes = [[size] for size in problem.sizes] if mode == "reverse" else [[problem.rows]]
    dtypes = [leaf.dtype for leaf in leaves] if mode == "reverse" else [problem.dtype]

    def product(index: Any) -> list[Any]:
        if mode == "reverse":
            pulled = linear.pull(tf.one_hot(index, problem.rows, dtype=problem.dtype))
            return [tf.reshape(tf.convert_to_tensor(part), [-1]) for part in pulled]
        unit = tf.split(tf.one_hot(index, problem.columns, dtype=problem.dtype), problem.sizes)
        return [linear.push([tf.cast(tf.reshape(part, leaf.shape), leaf.dtype) for part, leaf in zip(unit, leaves, strict=True)])]

    def products(first: Any, size: int) -> list[Any]:
        if size == 1:
            return [part[tf.newaxis] for part in product(first)]
        return tf.vectorized_map(product, first + tf.range(size))

    parts: list[list[Any]] = []
    for first, rounds, size in ((0, count // chunk, chunk), (count // chunk * chunk, 1, count % chunk)):
        if not rounds or not size:
            continue
        arrays = [tf.TensorArray(dtype, rounds, element_shape=[size, *shape]) for dtype, shape in zip(dtypes, shapes, strict=True)]

        def body(i: Any, carried: Any, first: int = first, size: int = size) -> Any:
            return tuple(array.write(i, part) for array, part in zip(carried, products(first + i * size, size), strict=True))

        after = [leaf for part in parts for leaf in part]
        parts.append([joined(array, rounds * size) for array in loop(rounds, body, tuple(arrays), after)])
    if not parts:
        return problem.packed([tf.zeros([problem.rows, size], problem.dtype) for size in problem.sizes], connected)
    whole = [part[0] if len(part) == 1 else tf.concat(part, 0) for part in zip(*parts, strict=True)]
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
    how = ["floating-point operations counted per product"] if flops else []
    chosen: Any = min(flops, key=flops.__getitem__) if flops else mode
    if chosen == "auto":
        chosen = "forward" if problem.columns < problem.rows else "reverse"
    most = max(problem.rows if chosen == "reverse" else problem.columns, 1)
    size, peak_bytes = min(chunk or _DEFAULT_CHUNK, most), None
    if peak is not None:
        size, peak_bytes = _largest_chunk(problem, chosen, most, Budget.read(peak))
        how.append("peak predicted by simulating TensorFlow's executor, the higher end")
    return JacobianPlan(chosen, size, problem.rows, problem.columns, flops, peak_bytes, "; ".join(how))


def _flops(problem: _Problem) -> dict[str, float]:
    cotangent, tangents = tf.TensorSpec([problem.rows], problem.dtype), [_spec(leaf) for leaf in problem.leaves]

    def pulled(leaves: Sequence[Any], u: Any) -> Any:
        return Linear(problem.vector, leaves).pull(u)

    def pushed(leaves: Sequence[Any], *v: Any) -> Any:
        return Linear(problem.vector, leaves).push(v)

    functions = problem.traced(problem.vector), problem.traced(pulled, cotangent), problem.traced(pushed, *tangents)
    try:
        with tf.init_scope():  # counting runs TensorFlow's preparation, which is not possible while a function is traced
            once, reverse, forward = map(count_flops, functions)
    except GraphwrightError:
        return {}
    if any(count.unknown for count in (once, reverse, forward)):
        return {}
    return {
        "reverse": problem.rows * max(reverse.total - once.total, 1.0),
        "forward": problem.columns * max(forward.total - once.total, 1.0),
    }


def _largest_chunk(problem: _Problem, mode: str, most: int, budget: Budget) -> tuple[int, int]:
    """Return about the largest chunk whose predicted peak fits the budget, and that peak, which grows almost linearly with the chunk."""
    known: dict[int, int] = {}

    def peak_of(chunk: int) -> int:
        if chunk not in known:
            function = problem.traced(partial(_in_chunks, problem, mode, chunk))  # not in an `init_scope`, where no tape records
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
            cause="the Jacobian itself, inputs, variables and residuals of the function are needed for every chunk",
            remedy=f"give a peak of {peak_of(1)} bytes or more, or the other mode",
            smallest_budget_bytes=peak_of(1),
        )
    low, high = 1, most
    for _ in range(_MOST_PREDICTIONS):
        slope = (peak_of(high) - peak_of(low)) / (high - low)
        between = low + int((limit - peak_of(low)) / max(slope, 1e-9))
        between = min(max(between, low + 1), high - 1)
        if between in known or high - low < 2:
            break
        low, high = (between, high) if peak_of(between) <= limit else (low, between)
    return low, peak_of(low)


def _check(tensor: Any, *, argument: str, item: str = "", where: str = "") -> None:
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


def _spec(tensor: Any) -> Any:
    return tf.TensorSpec(tensor.shape, tensor.dtype)
