"""`checkpointed`: a function whose backward pass follows a plan, for `tf.GradientTape`.

The function is traced once per signature. `gradients` takes and plans its gradients in the same graph, and that graph is split in two. One
function returns the results and the residuals that the plan keeps. The other takes these and the incoming gradients, recomputes as the
plan says, and returns the gradients of the arguments, of variables, and of tensors that the function closes over.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.gradient.arguments import Checkpoints, check_mode, check_time_limit, listed, named_checkpoints
from graphwright.gradient.gradients import PLANS, GradientPlan, choose, follow, take
from graphwright.gradient.traced import Taken, Traced, TracedFunction, with_gradient
from graphwright.source.split_function import split_function

tf: Any = importlib.import_module("tensorflow")

_KNOWN_SHAPES = "call it with tensors of known shapes, such as batches of a dataset with drop_remainder=True"


def checkpointed(fn: Any = None, *, checkpoints: Checkpoints = "memory", time_limit_s: float = 3.0) -> Any:
    """Wrap a function so that its backward pass takes less memory: parts of it are recomputed by a plan.

    Results and gradients are those of `fn`. Random numbers are drawn once and variables assigned once (dropout keeps its mask, batch
    norm updates its statistics once), which `tf.recompute_grad` does not promise. It works eagerly, inside `tf.function` and under Keras'
    `fit`, as a decorator of functions and methods. For gradients of the gradients, and with a `tf.autodiff.ForwardAccumulator`, `fn` runs
    as it is written, without a plan; the former require that it is neither random nor stateful.

    Args:
        fn: takes and returns nested structures of tensors; anything that `tf.function` can trace, such as a Keras layer or model.
            Arguments other than tensors count as constants.
        checkpoints: "memory" for the least peak of forward and backward pass together at about the time of one forward pass more:
            the choice for a whole model with its loss; "inputs" to keep only the arguments, variables and tensors that cannot be
            recomputed: the choice for each of many blocks; "speed", "collection" or a budget as `gradients` takes them.
        time_limit_s: approximate seconds for planning.

    Returns:
        A callable with the same arguments and results, and `.plans`, one `GradientPlan` for each signature so far.

    Raises:
        ArgumentError: `fn` cannot be called, or `checkpoints` is unknown; when it is called, an argument is a `KerasTensor`.
        UnsupportedError: (when gradients of gradients are taken) the function draws random numbers or changes a variable.

    >>> import tensorflow as tf
    >>> @checkpointed
    ... def deep(x):
    ...     for _ in range(20):
    ...         x = tf.sin(x)
    ...     return x
    >>> x = tf.zeros((100, 100))
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = deep(x)
    >>> bool(tf.reduce_all(tape.gradient(y, x) == 1.0))
    True
    """
    if fn is None:
        return functools.partial(checkpointed, checkpoints=checkpoints, time_limit_s=time_limit_s)
    if not callable(fn):
        raise ArgumentError(f"{type(fn).__name__} cannot be called", argument="fn", remedy="give a function of tensors, or a layer")
    check_time_limit(time_limit_s)
    if checkpoints != "inputs":
        checkpoints = check_mode(checkpoints)
        if not isinstance(checkpoints, str | int | float):
            raise ArgumentError(
                "checkpoints cannot be a list of tensors: the function creates new tensors each time it is traced",
                argument="checkpoints",
                remedy='inside the function, tf.compat.v1.add_to_collection("checkpoints", tensor); here, checkpoints="collection"',
            )
    return Checkpointed(fn, checkpoints, time_limit_s)


class Checkpointed(TracedFunction):
    """A function whose backward pass follows a plan; made by `checkpointed`."""

    word = "checkpointed"

    def __init__(self, fn: Any, checkpoints: Checkpoints, time_limit_s: float) -> None:
        super().__init__(fn)
        self._checkpoints = checkpoints
        self._time_limit_s = time_limit_s

    @property
    def plans(self) -> tuple[GradientPlan, ...]:
        return tuple(plan for s in self._signatures.values() if (plan := s.traced.taken.plan) is not None)

    def take(self, results: Sequence[Any], xs: Sequence[Any], incoming: Sequence[Any]) -> Taken:
        graph, checkpoints = tf.compat.v1.get_default_graph(), self._checkpoints
        taken = take(results, xs, incoming, {}, {})
        if taken.joint is None:
            return Taken(taken.gradients)
        early = frozenset(taken.joint.fixed)
        named = named_checkpoints(graph, checkpoints) if checkpoints == "collection" else []
        gradients = follow(taken, choose(taken.joint, checkpoints, named, self._time_limit_s, remedy=_KNOWN_SHAPES), xs)
        plans = graph.get_collection(PLANS)
        return Taken(gradients, early, plans[-1] if plans else None)

    def join(self, traced: Traced) -> Callable[..., Any]:
        split = split_function(
            traced.concrete,
            inputs=traced.given,
            incoming=traced.incoming,
            result_count=traced.result_count,
            early=traced.taken.early,
            name=self.__name__,
        )
        inputs = len(traced.given)

        def forward(tensors: Sequence[Any]) -> tuple[list[Any], Callable[[], Sequence[Any]]]:
            outputs = listed(split.forward(*tensors[:inputs]))
            return outputs[: traced.result_count], lambda: outputs[traced.result_count :]

        def backward(residuals: Sequence[Any], sources: Sequence[Any], incoming: Sequence[Any]) -> list[Any]:
            return listed(split.backward(*residuals, *(sources[k] for k in split.needed_inputs), *incoming))

        return with_gradient(traced, forward, backward)
