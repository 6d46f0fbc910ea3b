"""`cached`: a function that is evaluated again only when a variable that it reads, or an argument, has changed."""

from __future__ import annotations

import functools
import importlib
import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.gradient.arguments import listed
from graphwright.gradient.traced import Taken, Traced, TracedFunction, with_gradient
from graphwright.plan.budget import Budget
from graphwright.reuse.kept import KeptResults
from graphwright.reuse.pure_function import held_in, pure_function
from graphwright.source.graph_def import to_graph_def
from graphwright.source.private_tensorflow import is_gradient_of_loop, is_traced_for_xla, is_vectorized, is_watched
from graphwright.source.rebuild import rebuild_concrete_function, variable_behind
from graphwright.source.split_function import split_function
from graphwright.source.tensorflow_import import left_alone

tf: Any = importlib.import_module("tensorflow")
_kept_by_another = threading.local()


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cached function did so far, in all threads and graphs.

    Attributes:
        hits: calls that were answered with a kept result.
        misses: calls that evaluated the function; backward passes that evaluated it again for their residuals count too.
        entries: results that are kept.
        nbytes: bytes of kept results, of their inputs, and of the residuals for gradients. The values of variables that results are kept
            for share the variables' memory until these are written to; after a write each is held beside the new one till the next call.
        max_bytes: what `nbytes` does not exceed.
        too_large: results that were not kept since one alone takes more than `max_bytes`.
    """

    hits: int
    misses: int
    entries: int
    nbytes: int
    max_bytes: int
    too_large: int


def cached(fn: Any = None, *, max_bytes: int | str = "1GiB") -> Any:
    """Wrap a function so that its result is kept until a variable that it reads changes, or an argument differs.

    Exact: at each call the values of the variables (found in the traced graph, in called functions, branches and loops too) and the
    arguments are compared bit for bit with those that the result was computed from. So any write is seen: `assign`, scatter updates,
    optimizers, a restored checkpoint, other functions and threads, raw operations. A call with a kept result costs that comparison, one
    pass over these bytes, instead of `fn`.

    Works eagerly, inside `tf.function` and loops of TensorFlow, in threads and in the replicas of `tf.distribute`; a result that a graph
    computed serves eager calls, and the other way round. Use it as a decorator, of methods too, or on a layer: `gw.cached(layer)`. A
    cached function that another one calls is part of that one, and in `tf.vectorized_map`, which takes no writes, it is evaluated as it is
    written. Objects may go whose methods are cached; `max_bytes` and the counters are those of all of them together.

    Gradients by arguments and variables are those of `fn`. Under a tape the residuals are kept with the result: the forward pass is
    evaluated once for all uses, and each use has its backward pass of `fn`, without a forward pass. Where it is not seen that a gradient
    will be taken (a tape around a `tf.function` that was traced without one), the first backward pass evaluates `fn` once more; in a loop
    there, each does. To have one backward pass
    for many uses, call it once under the tape and use that tensor. Gradients of gradients run `fn` as it is written.

    Args:
        fn: takes and returns nested structures of tensors; anything that `tf.function` can trace. What is no tensor among its arguments
            counts as a constant, variables by what they hold.
        max_bytes: bytes of kept results, inputs and residuals, as an int or a text such as "2GiB"; those not used for longest go first.

    Returns:
        A callable with the same arguments and results, and `cache_info()`, a `CacheInfo`, and `cache_clear()`. Eager calls in several
        threads wait for each other, so that nothing is evaluated twice; graphs that run at the same time may.

    Raises:
        ArgumentError: `fn` cannot be called, or `max_bytes` is no number of bytes.
        UnsupportedError: (at a call) `fn` draws random numbers, writes to a variable, calls Python, reads a data set or a table, or XLA is
            to compile it; the error names the operation.

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
    try:
        budget = Budget.read(max_bytes)
    except ArgumentError as error:
        raise ArgumentError(error.what, argument="max_bytes", remedy='give bytes as an int, or "2GiB"') from error
    if budget.is_share:
        raise ArgumentError(f"{max_bytes!r} is a share of nothing", argument="max_bytes", remedy='give bytes as an int, or "2GiB"')
    return Cached(fn, budget.nbytes)


class Cached(TracedFunction):
    """A function whose results are kept; made by `cached`."""

    word = "cached"

    def __init__(self, fn: Any, max_bytes: int) -> None:
        super().__init__(fn)
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._made: list[KeptResults] = []  # no variable before the first call: who only decorates may still set up devices

    def cache_info(self) -> CacheInfo:
        """Hits, misses, and what is kept now."""
        if not self._made:
            return CacheInfo(0, 0, 0, 0, self._max_bytes, 0)
        hits, misses, too_large = self._made[0].counts()
        sizes = self._made[0].sizes()
        return CacheInfo(hits, misses, len(sizes), sum(sizes), self._max_bytes, too_large)

    def cache_clear(self) -> None:
        """Forget all results, and set the counters to zero."""
        for made in self._made:
            made.clear()

    @left_alone
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(_kept_by_another, "is_traced", False) or is_vectorized():
            return tf.function(self.function)(*args, **kwargs)  # for AutoGraph
        if is_traced_for_xla():
            raise UnsupportedError(
                "a cached function was called in a function that XLA compiles",
                where=f"cached function {self.__name__!r}",
                cause="jit_compile=True, which Keras' compile() sets by default where it can; XLA cannot hold what is kept",
                remedy="use jit_compile=False (for Keras: model.compile(..., jit_compile=False)), or give the result as an argument",
            )
        with self._lock if tf.executing_eagerly() else nullcontext():
            return super().__call__(*args, **kwargs)

    def _trace(self, structure: Any, leaves: Sequence[Any], tensors: dict[int, Any], watched: Sequence[Any] = ()) -> Any:
        before = getattr(_kept_by_another, "is_traced", False)
        _kept_by_another.is_traced = True  # cached functions that are called meanwhile are part of this one
        try:
            return super()._trace(structure, leaves, tensors, watched)
        finally:
            _kept_by_another.is_traced = before

    def take(self, results: Sequence[Any], xs: Sequence[Any], incoming: Sequence[Any]) -> Taken:
        """Plain gradients; a function without them may be kept all the same."""
        try:
            return Taken(tf.gradients(results, xs, incoming))
        except LookupError as error:
            return Taken([None] * len(xs), failure=error)

    def join(self, traced: Traced) -> Callable[..., Any]:
        """Look for what is kept of the same values; evaluate if there is nothing."""
        where = f"gw.cached, function {self.__name__!r}"
        pure = pure_function(traced.concrete, traced.given, where=where)
        names = [value.name for value in pure.graph.inputs]
        whole = rebuild_concrete_function(
            to_graph_def(pure.graph),
            inputs=names,
            outputs=[value.name for value in pure.graph.outputs],
            control_outputs=[node.name for node in pure.graph.control_outputs],
            name=self.__name__,
        )
        split = split_function(
            whole, inputs=names, incoming=traced.incoming, result_count=traced.result_count, early=frozenset(), name=self.__name__
        )
        holds = [held_in(pure.graph, pure.graph.value(t.name)) for t in split.forward.outputs[traced.result_count :]]
        look_up = self._kept().look_up(next(self._numbers), split.forward, len(traced.given), traced.result_count, holds)
        by_handle = {id(variable.handle): k for k, variable in enumerate(traced.variables, len(traced.given))}

        def arguments(tensors: Sequence[Any]) -> list[Any]:
            values = [tensors[by_handle[id(h)]] if id(h) in by_handle else _read(h) for h in pure.handles]
            return [*tensors[: len(traced.given)], *values]

        def evaluated(given: Sequence[Any]) -> list[Any]:
            """The residuals where the forward part did not ask for them."""
            if is_gradient_of_loop() or is_vectorized():
                return listed(split.forward(*given))[traced.result_count :]
            return look_up(given, True)[1]

        def looking(residuals: bool) -> Callable[..., Any]:
            def forward(tensors: Sequence[Any]) -> tuple[list[Any], Callable[[], Sequence[Any]]]:
                given = arguments(tensors)
                results, kept = look_up(given, residuals)
                return results, lambda: [*(kept if residuals else evaluated(given)), *(given[k] for k in split.needed_inputs)]

            def backward(residuals: Sequence[Any], _given: Sequence[Any], incoming: Sequence[Any]) -> list[Any]:
                return listed(split.backward(*residuals, *incoming))

            return with_gradient(traced, forward, backward)

        run = {residuals: looking(residuals) for residuals in (False, True)}

        @left_alone
        def call(*tensors: Any) -> Any:
            return run[is_watched(list(tensors))](*tensors)

        return call

    def _kept(self) -> KeptResults:
        if not self._made:
            with tf.init_scope():
                if not tf.executing_eagerly():
                    raise UnsupportedError(
                        "a cached function was called in a tf.Graph of TensorFlow 1",
                        where=f"cached function {self.__name__!r}",
                        cause="what is kept lives as long as the session there",
                        remedy="call it eagerly or in a tf.function",
                    )
                self._made.append(KeptResults(self._max_bytes))
        return self._made[0]


def _read(handle: Any) -> Any:
    behind = variable_behind(handle)
    assert behind is not None
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=behind[1])
