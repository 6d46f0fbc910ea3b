"""A function that is traced once for each signature, with its gradients, and then runs in parts that somebody else makes of it.

What `checkpointed` and `cached` have in common: which tensors and variables a call depends on, one graph that gives results and gradients,
and the two as one function with a gradient of its own, for `tf.GradientTape`.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.gradient.arguments import listed
from graphwright.gradient.gradients import GradientPlan
from graphwright.gradient.results import packing, tensors_of, values_of
from graphwright.gradient.second_derivatives import Original
from graphwright.source.private_tensorflow import has_tangents, is_traced_for_xla, is_watched, not_recorded
from graphwright.source.tensorflow_import import import_keras, left_alone
from graphwright.step.signatures import signature_of

tf: Any = importlib.import_module("tensorflow")

_TENSOR_TYPES: tuple[type, ...] = (tf.Tensor, np.ndarray)
"""What is traced as an argument; a variable among the arguments is read where the function reads it."""


@dataclass(frozen=True)
class Taken:
    """Gradients in the graph in which they were taken.

    Attributes:
        gradients: one for each x, or None.
        early: names of operations that run with the results though only gradients need them.
        failure: why no gradient can be taken of a function that has results all the same.
    """

    gradients: Sequence[Any]
    early: frozenset[str] = frozenset()
    plan: GradientPlan | None = None
    failure: Exception | None = None


@dataclass(frozen=True)
class Traced:
    """A function with its gradients in one graph.

    Attributes:
        concrete: takes the tensors among the arguments; returns the results, then the parts of the gradients.
        given: names of the tensors that stand for the arguments, then for what is closed over.
        incoming: names of the placeholders of the incoming gradients.
        differentiable: positions of the results that have an incoming gradient.
        gradients: of what is given and of `variables`, in a row; None where there is none, else anything of the structure that it has.
        closed_over: tensors from outside that it reads without being given them.
        variables: that it reads and that have a gradient.
        pack: makes the results of a flat list of tensors.
        original: what runs again for gradients of the gradients.
    """

    concrete: Any
    given: tuple[str, ...]
    result_count: int
    incoming: tuple[str, ...]
    differentiable: tuple[int, ...]
    gradients: tuple[Any, ...]
    closed_over: tuple[Any, ...]
    variables: tuple[Any, ...]
    taken: Taken
    pack: Callable[[Sequence[Any]], Any]
    original: Original


@dataclass(frozen=True)
class _Signature:
    """What a call with certain shapes runs.

    Attributes:
        function: a function with a gradient of its own; takes the tensors among the arguments, `closed_over`, the values of `variables`.
        plain: the function as it is written; takes the tensors among the arguments.
        left_out: variables that it reads and that have no gradient, because they are not trainable and no tape watched them.
        lasting: whether it may serve later calls: it closes over no tensor of a graph that is being traced.
    """

    function: Any
    plain: Any
    traced: Traced
    left_out: tuple[Any, ...]
    lasting: bool


class TracedFunction(ABC):
    """A function that runs by signature (structure, shapes and dtypes of its arguments), with gradients of its own."""

    word: str
    """What users call such a function."""

    def __init__(self, fn: Any) -> None:
        self.function = getattr(fn, "python_function", fn)  # inside a tf.function of its own, nothing could be planned
        functools.update_wrapper(self, fn, updated=())
        vars(self).pop("__wrapped__")  # or a tf.function that is given this object as an argument would call `fn` itself
        self.__name__ = str(getattr(fn, "__name__", None) or getattr(fn, "name", None) or "function")
        with suppress(TypeError, ValueError):  # Keras asks for it, and would not look behind an object
            self.__signature__ = inspect.signature(fn)
        self._of_instances: dict[int, tuple[Any, _Method]] = {}
        self._signatures: dict[Any, _Signature] = {}

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method; what is traced for an instance goes when the instance goes."""
        if instance is None:
            return self
        key = id(instance)
        held = self._of_instances.get(key)
        if held is None:
            try:
                reference = weakref.ref(instance, lambda _: self._of_instances.pop(key, None))
            except TypeError:
                return MethodType(self, instance)
            own = copy.copy(self)
            own._signatures = {}
            own.function = _without_instance(self.function, reference, self.__name__)
            held = self._of_instances.setdefault(key, (reference, _Method(own)))
        return MethodType(held[1], instance)

    def taken_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[int, Any], Any]:
        """The leaves of the arguments of a call, those that are tensors by their places among the leaves, and a key of the signature."""
        leaves = tf.nest.flatten((args, kwargs), expand_composites=True)
        if any(isinstance(leaf, import_keras().KerasTensor) for leaf in leaves):
            raise ArgumentError(
                "a KerasTensor was given, which has no values yet",
                where=f"{self.word} function {self.__name__!r}",
                cause="it is called while a functional model is put together",
                remedy="call it in the `call` of a layer or a model of your own",
            )
        tensors = {k: tf.convert_to_tensor(leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, _TENSOR_TYPES)}
        key = (is_traced_for_xla(), signature_of(args, kwargs, tensor_types=_TENSOR_TYPES))
        return leaves, tensors, key

    @staticmethod
    def filled(structure: Any, leaves: Sequence[Any], tensors: dict[int, Any]) -> Callable[[Sequence[Any]], Any]:
        """Makes the arguments of a call with other tensors."""

        @left_alone
        def arguments(given: Sequence[Any]) -> Any:
            filled = dict(zip(tensors, given, strict=True))
            return tf.nest.pack_sequence_as(structure, [filled.get(k, leaf) for k, leaf in enumerate(leaves)], expand_composites=True)

        return arguments

    @abstractmethod
    def take(self, results: Sequence[Any], xs: Sequence[Any], incoming: Sequence[Any]) -> Taken:
        """Take the gradients of the results by the xs in the graph that is being traced."""

    @abstractmethod
    def join(self, traced: Traced) -> Callable[..., Any]:
        """Results of what was traced, with its gradients: a function of what is given and of the values of the variables."""

    @left_alone
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tensors, key = self.taken_apart(args, kwargs)
        signature = self._signatures.get(key)
        if signature is None or not signature.lasting or _watched(signature.left_out):
            signature = self._signatures[key] = self._trace((args, kwargs), leaves, tensors)
        traced = signature.traced
        values = [tf.convert_to_tensor(variable) for variable in traced.variables]
        given = [*tensors.values(), *traced.closed_over, *values]
        if has_tangents(given):  # forward mode, where there is nothing to keep
            return traced.pack(signature.plain(*tensors.values()))
        return traced.pack(listed(signature.function(*given)))

    def _trace(self, structure: Any, leaves: Sequence[Any], tensors: dict[int, Any], watched: Sequence[Any] = ()) -> _Signature:
        """Trace the function with its gradients, and let `join` make something of it.

        Args:
            watched: variables that are not trainable and have a gradient all the same.
        """
        fn, arguments = self.function, self.filled(structure, leaves, tensors)
        found: list[Callable[..., Traced]] = []

        @left_alone
        def finish(given: Sequence[Any], result: Any, read: Sequence[Any]) -> Any:
            outputs, traced = self._with_gradients(given, result, read)
            found.append(traced)
            return outputs

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
        traced = found[-1](concrete, plain, len(specs))
        known = {id(variable) for variable in traced.variables}
        left_out = tuple(v for v in concrete.graph.variables if not v.trainable and _is_differentiable(v) and id(v) not in known)
        if _watched(left_out):
            return self._trace(structure, leaves, tensors, [*watched, *_watched(left_out)])
        lasting = all(tf.is_symbolic_tensor(capture) is False for capture in concrete.captured_inputs)
        return _Signature(self.join(traced), plain, traced, left_out, lasting)

    def _with_gradients(self, given: Sequence[Any], result: Any, read: Sequence[Any]) -> tuple[list[Any], Callable[..., Traced]]:
        """Take the gradients of results in the graph that is being traced; what it returns, and what makes the rest of a `Traced`."""
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
        taken = Taken(())
        if places and differentiable:
            taken = self.take([results[k] for k in differentiable], [xs[k] for k in places], [tf.identity(dy) for dy in incoming])
            for k, gradient in zip(places, taken.gradients, strict=True):
                gradients[k] = gradient
        parts = tf.nest.flatten([g for g in gradients if g is not None], expand_composites=True)
        pack = packing(result)

        def traced(concrete: Any, plain: Any, argument_count: int) -> Traced:
            outer = tuple(outer for outer, _ in closed_over)
            present = tuple(k for k, gradient in enumerate(gradients) if gradient is not None)
            return Traced(
                concrete,
                (*(t.name for t in concrete.inputs[:argument_count]), *(inner.name for _, inner in closed_over)),
                len(results),
                tuple(dy.name for dy in incoming),
                tuple(differentiable),
                tuple(gradients),
                outer,
                tuple(variables),
                taken,
                pack,
                Original(plain, concrete, outer, tuple(variables), tuple(differentiable), present),
            )

        return [*results, *parts], traced


class _Method:
    """Takes an instance, as a method does, which the function does not need."""

    def __init__(self, function: TracedFunction) -> None:
        self._function = function

    @left_alone
    def __call__(self, _instance: Any, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_function"], name)


def _without_instance(function: Callable[..., Any], reference: Any, name: str) -> Callable[..., Any]:
    """A method that does not keep its instance."""

    def method(*args: Any, **kwargs: Any) -> Any:
        instance = reference()
        if instance is None:
            raise UnsupportedError("the object is gone of which this is a method", where=f"method {name!r}", remedy="keep the object")
        return function(instance, *args, **kwargs)

    with suppress(TypeError, ValueError):
        first, *others = inspect.signature(function).parameters.values()
        if first.kind is not first.VAR_POSITIONAL:
            method.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
    return method


def with_gradient(
    traced: Traced,
    forward: Callable[[Sequence[Any]], tuple[list[Any], Callable[[], Sequence[Any]]]],
    backward: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]],
) -> Callable[..., Any]:
    """Two functions as one with a gradient of its own.

    Args:
        forward: takes what `Traced.gradients` is by; returns the results, and what gives what the backward part needs, when it is called.
        backward: takes that, what `forward` was given, and the incoming gradients; returns the parts of the gradients.
    """
    inputs = len(traced.gradients) - len(traced.variables)
    present = [g for g in traced.gradients if g is not None]
    original = traced.original

    def pack(parts: Any) -> list[Any]:
        return listed(tf.nest.pack_sequence_as(present, listed(parts), expand_composites=True))

    @tf.custom_gradient
    def run(*tensors: Any) -> Any:
        with not_recorded():  # or an eager tape would keep what the plan drops, for a gradient that nobody asks
            results, residuals = forward(tensors)

        @tf.custom_gradient
        def backward_of(*given: Any) -> Any:
            """From what `run` was given, so that derivatives of the gradients reach it, and the incoming gradients."""
            incoming = given[len(tensors) :]

            def second(*upstream: Any) -> list[Any]:
                by_tensors, by_incoming = original.second(given[: inputs - len(original.closed_over)], incoming, pack(upstream))
                return [*by_tensors, *by_incoming]

            with not_recorded():
                parts = backward(residuals(), given[: len(tensors)], incoming)
            return parts, second

        def gradient(*incoming: Any) -> Any:
            if traced.taken.failure is not None:
                raise traced.taken.failure
            parts = backward_of(*tensors, *(incoming[k] for k in traced.differentiable))
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
