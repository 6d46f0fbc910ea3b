"""`checkpointed`: a function whose backward pass follows a plan, for `tf.GradientTape`.

The function is traced once for each signature, its gradients are taken and planned by `gradients` in the same graph, and that graph is
split in two: one function gives the results and the residuals that the plan keeps, the other takes these and the incoming gradients,
computes again what the plan says, and gives the gradients of the arguments, of the variables that the function reads, and of the
tensors that it closes over.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.gradient.arguments import Checkpoints, check_mode, check_time_limit, listed, named_checkpoints
from graphwright.gradient.gradients import PLANS, GradientPlan, choose, follow, take
from graphwright.gradient.results import packing, tensors_of, values_of
from graphwright.gradient.second_derivatives import Original
from graphwright.source.private_tensorflow import has_tangents, is_traced_for_xla, is_watched, not_recorded
from graphwright.source.split_function import Split, split_function
from graphwright.source.tensorflow_import import import_keras, left_alone
from graphwright.step.signatures import signature_of

tf: Any = importlib.import_module("tensorflow")

_KNOWN_SHAPES = "call it with tensors of known shapes, such as batches of a dataset with drop_remainder=True"
_TENSOR_TYPES: tuple[type, ...] = (tf.Tensor, np.ndarray)
"""What is traced as an argument; a variable among the arguments is read where the function reads it."""


def checkpointed(fn: Any = None, *, checkpoints: Checkpoints = "memory", time_limit_s: float = 3.0) -> Any:
    """Wrap a function so that its backward pass takes less memory: parts of it are computed again, as a plan says.

    Results and gradients are those of `fn`. Random numbers are drawn once and variables assigned once (dropout keeps its mask, batch
    norm updates its statistics once), which `tf.recompute_grad` does not promise. Works eagerly, inside `tf.function` and under Keras'
    `fit`; use it as a decorator, of methods too. For gradients of the gradients `fn` runs again as it is written, without a plan, where
    it is neither random nor stateful; with a `tf.autodiff.ForwardAccumulator`, too.

    Args:
        fn: takes and returns nested structures of tensors; anything that `tf.function` can trace, such as a Keras layer or model. What
            is no tensor among its arguments counts as a constant.
        checkpoints: "memory" for the least peak of forward and backward pass together at about the time of one forward pass more:
            the choice for a whole model with its loss; "inputs" to keep nothing but the arguments, variables and what may not be
            repeated: the choice for each of many blocks; "speed", "collection" or a budget as `gradients` takes them.
        time_limit_s: seconds for planning, about.

    Returns:
        A callable with the same arguments and results, and `.plans`, one `GradientPlan` for each signature so far.

    Raises:
        ArgumentError: `fn` cannot be called, or `checkpoints` says nothing that is known; when it is called, a `KerasTensor` was given.
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
                "a list of tensors cannot be given: the function's own are made again each time it is traced",
                argument="checkpoints",
                remedy='inside the function, tf.compat.v1.add_to_collection("checkpoints", tensor); here, checkpoints="collection"',
            )
    return Checkpointed(fn, checkpoints, time_limit_s)


@dataclass(frozen=True)
class _Signature:
    """What a call with certain shapes runs.

    Attributes:
        function: a function with a gradient of its own; takes the tensors among the arguments, `closed_over`, the values of `variables`.
        plain: the function as it is written; takes the tensors among the arguments.
        left_out: variables that it reads and that have no gradient, because they are not trainable and no tape watched them.
        pack: makes the results of a flat list of tensors.
        lasting: whether it may serve later calls: it closes over no tensor of a graph that is being traced.
    """

    function: Any
    plain: Any
    closed_over: tuple[Any, ...]
    variables: tuple[Any, ...]
    left_out: tuple[Any, ...]
    pack: Callable[[Sequence[Any]], Any]
    plan: GradientPlan | None
    lasting: bool


class Checkpointed:
    """A function whose backward pass follows a plan; made by `checkpointed`."""

    def __init__(self, fn: Any, checkpoints: Checkpoints, time_limit_s: float) -> None:
        self._fn = getattr(fn, "python_function", fn)  # inside a tf.function of its own, nothing could be planned
        self._checkpoints = checkpoints
        self._time_limit_s = time_limit_s
        self._signatures: dict[Any, _Signature] = {}
        functools.update_wrapper(self, fn, updated=())
        self.__name__ = str(getattr(fn, "__name__", None) or getattr(fn, "name", None) or "function")
        with suppress(TypeError, ValueError):  # Keras asks for it, and would not look behind an object
            self.__signature__ = inspect.signature(fn)

    @property
    def plans(self) -> tuple[GradientPlan, ...]:
        """The plans, in the order in which they were made; none for a signature without gradients or with nothing to save."""
        return tuple(s.plan for s in self._signatures.values() if s.plan is not None)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    @left_alone
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = tf.nest.flatten((args, kwargs), expand_composites=True)
        if any(isinstance(leaf, import_keras().KerasTensor) for leaf in leaves):
            raise ArgumentError(
                "a KerasTensor was given, which has no values yet",
                where=f"checkpointed function {self.__name__!r}",
                cause="it is called while a functional model is put together",
                remedy="call it in the `call` of a layer or a model of your own",
            )
        tensors = {k: tf.convert_to_tensor(leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, _TENSOR_TYPES)}
        key = (is_traced_for_xla(), signature_of(args, kwargs, tensor_types=_TENSOR_TYPES))
        signature = self._signatures.get(key)
        if signature is None or not signature.lasting or _watched(signature.left_out):
            signature = self._signatures[key] = self._trace((args, kwargs), leaves, tensors)
        values = [tf.convert_to_tensor(variable) for variable in signature.variables]
        given = [*tensors.values(), *signature.closed_over, *values]
        if has_tangents(given):  # forward mode, where there is nothing to keep
            return signature.pack(signature.plain(*tensors.values()))
        return signature.pack(listed(signature.function(*given)))

    def _trace(self, structure: Any, leaves: Sequence[Any], tensors: dict[int, Any], watched: Sequence[Any] = ()) -> _Signature:
        """Trace the function with its gradients, plan, and split.

        Args:
            watched: variables that are not trainable and have a gradient all the same.
        """
        fn = self._fn
        traced: list[_Traced] = []

        @left_alone
        def arguments(given: Sequence[Any]) -> Any:
            filled = dict(zip(tensors, given, strict=True))
            return tf.nest.pack_sequence_as(structure, [filled.get(k, leaf) for k, leaf in enumerate(leaves)], expand_composites=True)

        @left_alone
        def finish(given: Sequence[Any], result: Any, read: Sequence[Any]) -> Any:
            traced.append(_with_gradients(given, result, read, self._checkpoints, self._time_limit_s))
            return traced[-1].outputs

        def whole(*argument: Any) -> Any:
            args, kwargs = arguments(argument)
            with tf.GradientTape() as tape:  # it tells which variables are read, and is not asked for gradients
                result = values_of(fn(*args, **kwargs))
            return finish(argument, result, [*tape.watched_variables(), *watched])

        def results_of(*given: Any) -> list[Any]:
            args, kwargs = arguments(given)
            return tensors_of(values_of(fn(*args, **kwargs)))

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors.values()]
        traced_plain = tf.function(results_of, input_signature=specs)  # for AutoGraph

        @left_alone
        def plain(*given: Any) -> list[Any]:
            return (results_of if tf.executing_eagerly() else traced_plain)(*given)

        concrete = tf.function(whole).get_concrete_function(*specs)
        found = traced[-1]
        known = {id(variable) for variable in found.variables}
        left_out = tuple(v for v in concrete.graph.variables if not v.trainable and _is_differentiable(v) and id(v) not in known)
        if _watched(left_out):
            return self._trace(structure, leaves, tensors, [*watched, *_watched(left_out)])
        split = split_function(
            concrete,
            inputs=[t.name for t in concrete.inputs[: len(specs)]] + [inner for _, inner in found.closed_over],
            incoming=found.incoming,
            result_count=found.result_count,
            early=found.early,
            name=self.__name__,
        )
        closed_over = tuple(outer for outer, _ in found.closed_over)
        lasting = all(tf.is_symbolic_tensor(capture) is False for capture in concrete.captured_inputs)
        present = tuple(k for k, gradient in enumerate(found.gradients) if gradient is not None)
        original = Original(plain, concrete, closed_over, found.variables, found.differentiable, present)
        return _Signature(_joined(split, found, original), plain, closed_over, found.variables, left_out, found.pack, found.plan, lasting)


@dataclass(frozen=True)
class _Traced:
    outputs: list[Any]  # results, then the parts of the gradients
    result_count: int
    pack: Callable[[Sequence[Any]], Any]
    incoming: tuple[str, ...]
    differentiable: tuple[int, ...]  # positions of the results that have an incoming gradient
    gradients: tuple[Any, ...]  # per input, its gradient, or None; a tensor stands for its place among the outputs
    closed_over: tuple[tuple[Any, str], ...]
    variables: tuple[Any, ...]
    early: frozenset[str]
    plan: GradientPlan | None


def _with_gradients(given: Sequence[Any], result: Any, read: Sequence[Any], checkpoints: Any, time_limit_s: float) -> _Traced:
    """Take the gradients of results in the graph that is being traced, and let them follow a plan."""
    graph = tf.compat.v1.get_default_graph()
    results = tensors_of(result)
    own = {tensor.name for tensor in given}
    closed_over = [
        (outer, inner) for outer, inner in graph.captures if inner.dtype not in (tf.resource, tf.variant) and inner.name not in own
    ]
    variables = [variable for variable in read if _is_differentiable(variable)]
    xs = [*given, *(inner for _, inner in closed_over), *variables]
    places = [k for k, x in enumerate(xs) if _is_differentiable(x)]
    differentiable = [k for k, y in enumerate(results) if _is_differentiable(y)]
    incoming = [tf.compat.v1.placeholder(results[k].dtype, results[k].shape, name=f"gradient_of_result_{k}") for k in differentiable]
    gradients: list[Any] = [None] * len(xs)
    early: frozenset[str] = frozenset()
    plan = None
    if places and differentiable:
        chosen = [xs[k] for k in places]
        taken = take([results[k] for k in differentiable], chosen, [tf.identity(dy) for dy in incoming], {}, {})
        found = taken.gradients
        if taken.joint is not None:
            early = frozenset(taken.joint.fixed)
            named = named_checkpoints(graph, checkpoints) if checkpoints == "collection" else []
            found = follow(taken, choose(taken.joint, checkpoints, named, time_limit_s, remedy=_KNOWN_SHAPES), chosen)
            plans = graph.get_collection(PLANS)
            plan = plans[-1] if plans else None
        for k, gradient in zip(places, found, strict=True):
            gradients[k] = gradient
    parts = tf.nest.flatten([g for g in gradients if g is not None], expand_composites=True)
    return _Traced(
        [*results, *parts],
        len(results),
        packing(result),
        tuple(dy.name for dy in incoming),
        tuple(differentiable),
        tuple(gradients),
        tuple((outer, inner.name) for outer, inner in closed_over),
        tuple(variables),
        early,
        plan,
    )


def _joined(split: Split, traced: _Traced, original: Original) -> Callable[..., Any]:
    """Both functions as one with a gradient of its own."""
    inputs = len(traced.gradients) - len(traced.variables)
    present = [g for g in traced.gradients if g is not None]

    def pack(parts: Any) -> list[Any]:
        return listed(tf.nest.pack_sequence_as(present, listed(parts), expand_composites=True))

    @tf.custom_gradient
    def run(*tensors: Any) -> Any:
        with not_recorded():  # or an eager tape would keep what the plan drops, for a gradient that nobody asks
            outputs = listed(split.forward(*tensors[:inputs]))
        results, residuals = outputs[: traced.result_count], outputs[traced.result_count :]

        @tf.custom_gradient
        def backward(*given: Any) -> Any:
            """From what `run` was given, so that derivatives of the gradients reach it, and the incoming gradients."""
            incoming = given[len(tensors) :]

            def second(*upstream: Any) -> list[Any]:
                by_tensors, by_incoming = original.second(given[: inputs - len(original.closed_over)], incoming, pack(upstream))
                return [*by_tensors, *by_incoming]

            with not_recorded():
                parts = listed(split.backward(*residuals, *(given[k] for k in split.needed_inputs), *incoming))
            return parts, second

        def gradient(*incoming: Any) -> Any:
            parts = backward(*tensors, *(incoming[k] for k in traced.differentiable))
            packed = iter(pack(parts))
            return [None if g is None else next(packed) for g in traced.gradients]

        return results, gradient

    return run


def _watched(variables: Sequence[Any]) -> list[Any]:
    """Those that a tape was told to watch."""
    return [variable for variable in variables if is_watched([variable.handle])]


def _is_differentiable(tensor: Any) -> bool:
    dtype = tf.as_dtype(tensor.dtype)
    return bool(dtype.is_floating or dtype.is_complex)
