"""`cached`: a function that is evaluated again only if a variable that it reads, or an argument, has changed."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.gradient.arguments import listed
from graphwright.gradient.traced import Taken, Traced, TracedFunction, with_gradient
from graphwright.plan.budget import Budget
from graphwright.reuse.pure_function import pure_function, variant_content
from graphwright.reuse.result_slot import Counters, ResultSlot
from graphwright.source.private_tensorflow import is_gradient_of_loop, is_traced_for_xla, is_vectorized, is_watched
from graphwright.source.rebuild import function_of_values, read_variable
from graphwright.source.split_function import split_function
from graphwright.source.tensorflow_import import left_alone

tf: Any = importlib.import_module("tensorflow")
_outer_trace = threading.local()


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Statistics of a cached function, over all threads, graphs and signatures.

    Attributes:
        hits: calls that were answered with a kept result.
        misses: calls that evaluated the function, including backward passes that evaluated it again for residuals.
        entries: kept results, at most one per signature.
        nbytes: bytes of kept results, of their arguments, and of residuals for gradients. Values of variables share the variables'
            memory until the next write; after it the old value is held until the next call.
        max_bytes: the largest size of one kept result.
        too_large: results that were not kept because they exceed `max_bytes`.
    """

    hits: int
    misses: int
    entries: int
    nbytes: int
    max_bytes: int
    too_large: int


def cached(fn: Any = None, *, max_bytes: int | str = "1GiB") -> Any:
    """Wrap a function so that its result is kept until a variable that it reads changes, or an argument differs.

    Each call compares the values of variables (found in the traced graph, including called functions, branches and loops) and the
    arguments bit for bit with those of the kept result. This detects every write: `assign`, scatter updates, optimizers, restored
    checkpoints, other threads, raw operations. A hit costs one pass over these bytes instead of `fn`.

    One result is kept per signature: structure, shapes and dtypes of the tensors among the arguments, and the values of all others. To
    keep results for several tensors of one shape, wrap one function for each.

    Works eagerly, inside `tf.function` and loops, in threads and in replicas of `tf.distribute`; eager calls and graphs share results.
    Use it as a decorator, also of methods, or on a layer: `gw.cached(layer)`. Inside another cached function, and in
    `tf.vectorized_map`, the plain function is evaluated. Cached methods do not keep their objects alive; counters cover all objects.

    Gradients are those of `fn`. Under a tape the residuals are kept with the result, so each use runs only the backward pass. If no tape
    is visible while a `tf.function` is traced, the first backward pass evaluates `fn` once more (each one does in a loop). For one
    backward pass for many uses, call it once under the tape and use that tensor. Gradients of gradients run `fn` itself.

    Args:
        fn: takes and returns nested structures of tensors; anything that `tf.function` can trace. Arguments that are not tensors count
            as constants, variables by their values.
        max_bytes: the largest size of one result with its arguments and residuals, as an int or text such as "2GiB".

    Returns:
        A callable with the same arguments and results, and `cache_info()`, a `CacheInfo`, and `cache_clear()`. Eager calls in several
        threads wait for each other, so nothing is evaluated twice; graphs that run at the same time may.

    Raises:
        ArgumentError: `fn` cannot be called, or `max_bytes` is not a number of bytes.
        UnsupportedError: (at a call) `fn` draws random numbers, writes to a variable, calls Python, reads a data set or a table, or is
            compiled by XLA; the error names the operation.

    >>> import tensorflow as tf
    >>> w = tf.Variable([[1.0, 2.0], [3.0, 5.0]])
    >>> @cached
    ... def inverse():
    ...     return tf.linalg.inv(w)
    >>> for _ in range(20):
    ...     y = inverse() @ tf.ones((2, 1))
    >>> inverse.cache_info().hits, inverse.cache_info().misses
    (19, 1)
    >>> _ = w[0, 0].assign(2.0)
    >>> inverse().numpy().round(3).tolist(), inverse.cache_info().misses
    ([[1.25, -0.5], [-0.75, 0.5]], 2)
    """
    if fn is None:
        return functools.partial(cached, max_bytes=max_bytes)
    if not callable(fn):
        raise ArgumentError(f"{type(fn).__name__} cannot be called", argument="fn", remedy="give a function of tensors, or a layer")
    budget = Budget.read(max_bytes, "max_bytes")
    if budget.is_share:
        raise ArgumentError(
            f"{max_bytes!r} is a share, and there is no total", argument="max_bytes", remedy='give bytes as an int, or "2GiB"'
        )
    return Cached(fn, budget.nbytes)


class Cached(TracedFunction):
    """A function whose results are kept; made by `cached`."""

    word = "cached"

    def __init__(self, fn: Any, max_bytes: int) -> None:
        super().__init__(fn)
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._slots: WeakSet[ResultSlot] = WeakSet()
        self._counters: list[Counters] = []  # empty before the first call: a decorator must not prevent the setup of devices

    def cache_info(self) -> CacheInfo:
        hits, misses, too_large = self._counters[0].values() if self._counters else (0, 0, 0)
        sizes = [nbytes for slot in self._slots if (nbytes := slot.nbytes) is not None]
        return CacheInfo(hits, misses, len(sizes), sum(sizes), self._max_bytes, too_large)

    def cache_clear(self) -> None:
        for clearable in (*self._slots, *self._counters):
            clearable.clear()

    @left_alone
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(_outer_trace, "is_active", False) or is_vectorized():
            return tf.function(self.function)(*args, **kwargs)  # for AutoGraph
        if is_traced_for_xla():
            raise UnsupportedError(
                "a cached function was called in a function that XLA compiles",
                where=f"cached function {self.__name__!r}",
                cause="jit_compile=True, which Keras' compile() may set by default; XLA cannot hold a result between calls",
                remedy="use jit_compile=False (for Keras: model.compile(..., jit_compile=False)), or give the result as an argument",
            )
        with self._lock if tf.executing_eagerly() else nullcontext():
            return super().__call__(*args, **kwargs)

    def _trace(self, structure: Any, leaves: Sequence[Any], tensors: dict[int, Any], watched: Sequence[Any] = ()) -> Any:
        before = getattr(_outer_trace, "is_active", False)
        _outer_trace.is_active = True  # cached functions called meanwhile become part of this one
        try:
            return super()._trace(structure, leaves, tensors, watched)
        finally:
            _outer_trace.is_active = before

    def take(self, results: Sequence[Any], xs: Sequence[Any], incoming: Sequence[Any]) -> Taken:
        try:
            return Taken(tf.gradients(results, xs, incoming))
        except LookupError as error:
            return Taken([None] * len(xs), failure=error)

    def join(self, traced: Traced) -> Callable[..., Any]:
        pure = pure_function(traced.concrete, traced.given, where=f"gw.cached, function {self.__name__!r}")
        graph = pure.graph
        whole = function_of_values(graph, graph.inputs, graph.outputs, (), graph.control_outputs, name=self.__name__)
        names, count = [value.name for value in graph.inputs], traced.result_count
        split = split_function(whole, inputs=names, incoming=traced.incoming, result_count=count, early=frozenset(), name=self.__name__)
        argument_count = len(traced.given)
        holds = [variant_content(graph, graph.value(t.name)) for t in split.forward.outputs[traced.result_count :]]
        slot = ResultSlot(split.forward, argument_count, traced.result_count, holds, self._max_bytes, self._counter())
        self._slots.add(slot)
        by_handle = {id(variable.handle): k for k, variable in enumerate(traced.variables, argument_count)}

        def inputs_of(tensors: Sequence[Any]) -> list[Any]:
            values = [tensors[by_handle[id(h)]] if id(h) in by_handle else read_variable(h) for h in pure.handles]
            return [*tensors[:argument_count], *values]

        def late_residuals(inputs: Sequence[Any]) -> list[Any]:
            if is_gradient_of_loop() or is_vectorized():
                return listed(split.forward(*inputs))[traced.result_count :]
            return slot.look_up(inputs, True)[1]

        def differentiable(residuals: bool) -> Callable[..., Any]:
            def forward(tensors: Sequence[Any]) -> tuple[list[Any], Callable[[], Sequence[Any]]]:
                inputs = inputs_of(tensors)
                results, early = slot.look_up(inputs, residuals)
                return results, lambda: [*(early if residuals else late_residuals(inputs)), *(inputs[k] for k in split.needed_inputs)]

            def backward(residuals: Sequence[Any], _tensors: Sequence[Any], incoming: Sequence[Any]) -> list[Any]:
                return listed(split.backward(*residuals, *incoming))

            return with_gradient(traced, forward, backward)

        run = {residuals: differentiable(residuals) for residuals in (False, True)}

        @left_alone
        def call(*tensors: Any) -> Any:
            return run[is_watched(list(tensors))](*tensors)

        return call

    def _counter(self) -> Counters:
        if not self._counters:
            with tf.init_scope():
                if not tf.executing_eagerly():
                    raise UnsupportedError(
                        "a cached function was called in a tf.Graph of TensorFlow 1",
                        where=f"cached function {self.__name__!r}",
                        cause="a result would be kept only as long as the session",
                        remedy="call it eagerly or in a tf.function",
                    )
                self._counters.append(Counters())
        return self._counters[0]
