"""A function that is traced once per signature, together with its gradients; what `checkpointed` and `cached` share.

For derivatives of the gradients the function itself runs again under two tapes, as it is written: nobody knows how the residuals depend on
the arguments. There nothing is saved, and nothing may be random or stateful.
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
from graphwright.ir.graph import Node
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import COMPUTES_NOTHING
from graphwright.source.concrete_function import from_concrete_function
from graphwright.source.private_tensorflow import has_tangents, is_traced_for_xla, is_watched, not_recorded
from graphwright.source.tensorflow_import import import_keras, left_alone
from graphwright.step.flatten import stateful_op_types
from graphwright.step.signatures import signature_of

tf: Any = importlib.import_module("tensorflow")

_TENSOR_TYPES: tuple[type, ...] = (tf.Tensor, np.ndarray)
"""Types traced as arguments. A variable among the arguments is read where the function reads it."""
_COMPOSITE = (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices, tf.experimental.ExtensionType)


@dataclass(frozen=True)
class Taken:
    """Gradients in the graph in which they were taken: one for each x, or None.

    Attributes:
        early: names of operations that run with the results though only gradients need them.
        failure: why a function with results has no gradient.
    """

    gradients: Sequence[Any]
    early: frozenset[str] = frozenset()
    plan: GradientPlan | None = None
    failure: Exception | None = None


@dataclass(frozen=True)
class Traced:
    """A function with its gradients in one graph.

    *Sources* are the arguments, the tensors that the function closes over, and the variables that it reads and that have a gradient, in
    this order.

    Attributes:
        concrete: takes the tensors among the arguments; returns the results, then the parts of the gradients.
        plain: the function without gradients; returns the results as a flat list.
        given: names of the tensors of the arguments and of the closed-over tensors.
        incoming: names of the placeholders of the incoming gradients.
        differentiable: positions of the results that have an incoming gradient.
        gradients: one per source; None if there is none, else a value of its structure.
        pack: makes the results of a flat list of tensors.
    """

    concrete: Any
    plain: Callable[..., list[Any]]
    given: tuple[str, ...]
    result_count: int
    incoming: tuple[str, ...]
    differentiable: tuple[int, ...]
    gradients: tuple[Any, ...]
    closed_over: tuple[Any, ...]
    variables: tuple[Any, ...]
    taken: Taken
    pack: Callable[[Sequence[Any]], Any]

    def second_gradients(self, arguments: Sequence[Any], incoming: Sequence[Any], upstream: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the gradients of the gradients, by the sources and by `incoming`; None if there is no gradient."""
        if self._not_repeatable is not None:
            raise UnsupportedError(
                "second derivatives of a checkpointed function were requested",
                where=f"gw.checkpointed, operation {self._not_repeatable.name!r} ({self._not_repeatable.op_type})",
                cause="they need the function to run again, and it draws random numbers or changes a variable",
                remedy="use the function without gw.checkpointed where you need second derivatives, or gw.gradients inside a tf.function",
            )
        sources = [*arguments, *self.closed_over, *self.variables]
        present = [k for k, gradient in enumerate(self.gradients) if gradient is not None]
        watched = [tensor for tensor in (*arguments, *self.closed_over) if _is_differentiable(tensor)]
        with tf.GradientTape() as outer:
            outer.watch([*watched, *incoming])
            with tf.GradientTape() as inner:
                inner.watch(watched)
                results = self.plain(*arguments)
            ys = [results[k] for k in self.differentiable]
            gradients = inner.gradient(ys, [sources[k] for k in present], output_gradients=list(incoming))
        pairs = [(_dense(g), _dense(u)) for g, u in zip(gradients, upstream, strict=True) if g is not None]
        by = [*(sources[k] for k in present), *incoming]
        seconds = outer.gradient([g for g, _ in pairs], by, output_gradients=[u for _, u in pairs])
        by_source: list[Any] = [None] * len(sources)
        for k, gradient in zip(present, seconds, strict=False):
            by_source[k] = gradient
        return by_source, list(seconds[len(present) :])

    @functools.cached_property
    def _not_repeatable(self) -> Node | None:
        """A node that must not run twice."""
        graph, _ = from_concrete_function(self.concrete, planned=False)
        purity = Purity(graph, stateful_op_types(graph))
        inputs = {value.producer for value in graph.inputs}
        changing = (node for node in graph.nodes if node not in inputs and node.op_type not in COMPUTES_NOTHING)
        return next((node for node in changing if not purity.is_pure(node)), None)


@dataclass(frozen=True)
class _Signature:
    """The function that a call with certain shapes runs.

    Attributes:
        without_gradient: variables that the function reads, that are not trainable, and that no tape watched.
        lasting: whether it may serve later calls: it closes over no tensor of a graph that is being traced.
    """

    function: Any
    traced: Traced
    without_gradient: tuple[Any, ...]
    lasting: bool


class TracedFunction(ABC):
    """A function that runs by signature (structure, shapes and dtypes of its arguments), with gradients of its own."""

    word: str
    """The name of such functions in messages."""

    def __init__(self, fn: Any) -> None:
        self.function = getattr(fn, "python_function", fn)  # inside a tf.function of its own, nothing could be planned
        functools.update_wrapper(self, fn, updated=())
        vars(self).pop("__wrapped__")  # or a tf.function with this object among its arguments would call `fn` itself
        self.__name__ = str(getattr(fn, "__name__", None) or getattr(fn, "name", None) or "function")
        with suppress(TypeError, ValueError):  # Keras asks for it, and would not look behind an object
            self.__signature__ = inspect.signature(fn)
        self._methods: dict[int, tuple[Any, TracedFunction]] = {}
        self._signatures: dict[Any, _Signature] = {}
        self._is_method = False

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind a method. Traces for an instance are dropped with the instance."""
        if instance is None:
            return self
        key = id(instance)
        if key not in self._methods:
            try:
                reference = weakref.ref(instance, lambda _: self._methods.pop(key, None))
            except TypeError:
                return MethodType(self, instance)
            method = copy.copy(self)
            method._signatures, method._is_method = {}, True
            method.function = _without_instance(self.function, reference, self.__name__)
            self._methods[key] = reference, method
        return MethodType(self._methods[key][1], instance)

    def taken_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[int, Any], Any]:
        """Return the leaves of a call's arguments, the tensors among them by position, and a key of the signature."""
        leaves = tf.nest.flatten((args, kwargs), expand_composites=True)
        if any(isinstance(leaf, import_keras().KerasTensor) for leaf in leaves):
            raise ArgumentError(
                "a KerasTensor was given, which has no values yet",
                where=f"{self.word} function {self.__name__!r}",
                cause="it is called while a functional model is built",
                remedy="call it in the `call` method of your own layer or model",
            )
        tensors = {k: tf.convert_to_tensor(leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, _TENSOR_TYPES)}
        key = (is_traced_for_xla(), signature_of(args, kwargs, tensor_types=_TENSOR_TYPES))
        return leaves, tensors, key

    @staticmethod
    def filled(structure: Any, leaves: Sequence[Any], tensors: dict[int, Any]) -> Callable[[Sequence[Any]], Any]:

        @left_alone
        def arguments(others: Sequence[Any]) -> Any:
            by_position = dict(zip(tensors, others, strict=True))
            return tf.nest.pack_sequence_as(structure, [by_position.get(k, leaf) for k, leaf in enumerate(leaves)], expand_composites=True)

        return arguments

    @abstractmethod
    def take(self, results: Sequence[Any], xs: Sequence[Any], incoming: Sequence[Any]) -> Taken:
        """Take the gradients of the results by the xs in the graph that is being traced."""

    @abstractmethod
    def join(self, traced: Traced) -> Callable[..., Any]:
        """Return a function of the sources that returns the results and has the traced gradients."""

    @left_alone
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_method:
            args = args[1:]
        leaves, tensors, key = self.taken_apart(args, kwargs)
        signature = self._signatures.get(key)
        if signature is None or not signature.lasting or _watched(signature.without_gradient):
            signature = self._signatures[key] = self._trace((args, kwargs), leaves, tensors)
        traced = signature.traced
        sources = [*tensors.values(), *traced.closed_over, *(tf.convert_to_tensor(variable) for variable in traced.variables)]
        if has_tangents(sources):  # in forward mode there is nothing to save
            return traced.pack(traced.plain(*tensors.values()))
        return traced.pack(listed(signature.function(*sources)))

    def _trace(self, structure: Any, leaves: Sequence[Any], tensors: dict[int, Any], watched: Sequence[Any] = ()) -> _Signature:
        """Trace the function with its gradients, and join them; `watched` variables have a gradient though not trainable."""
        fn, arguments = self.function, self.filled(structure, leaves, tensors)
        details: dict[str, Any] = {}

        @left_alone
        def with_gradients(inputs: Sequence[Any], result: Any, read: Sequence[Any]) -> Any:
            outputs, more = self._with_gradients(inputs, result, read)
            details.update(more)
            return outputs

        def whole(*argument: Any) -> Any:  # the name appears in messages, as `argument_0`
            args, kwargs = arguments(argument)
            with tf.GradientTape() as tape:  # records which variables are read; nobody asks it for gradients
                result = _values_of(fn(*args, **kwargs))
            return with_gradients(argument, result, [*tape.watched_variables(), *watched])

        def results_of(*inputs: Any) -> list[Any]:
            args, kwargs = arguments(inputs)
            return _tensors_of(_values_of(fn(*args, **kwargs)))

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors.values()]
        traced_plain = tf.function(results_of, input_signature=specs)  # for AutoGraph

        @left_alone
        def plain(*inputs: Any) -> list[Any]:
            return (results_of if tf.executing_eagerly() else traced_plain)(*inputs)

        concrete = tf.function(whole).get_concrete_function(*specs)
        names = tuple(tensor.name for tensor in concrete.inputs[: len(specs)])
        traced = Traced(concrete=concrete, plain=plain, given=(*names, *details.pop("closed_over_names")), **details)
        with_gradient = {id(variable) for variable in traced.variables}
        others = tuple(v for v in concrete.graph.variables if not v.trainable and _is_differentiable(v) and id(v) not in with_gradient)
        if _watched(others):
            return self._trace(structure, leaves, tensors, [*watched, *_watched(others)])
        lasting = all(tf.is_symbolic_tensor(capture) is False for capture in concrete.captured_inputs)
        return _Signature(self.join(traced), traced, others, lasting)

    def _with_gradients(self, inputs: Sequence[Any], result: Any, read: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Take the gradients in the graph that is being traced; return its outputs, and fields of `Traced`."""
        graph = tf.compat.v1.get_default_graph()
        results = _tensors_of(result)
        own = {tensor.name for tensor in inputs}
        closed_over = [
            (outer, inner) for outer, inner in graph.captures if inner.dtype not in (tf.resource, tf.variant) and inner.name not in own
        ]
        variables = [variable for variable in read if _is_differentiable(variable)]
        xs = [*inputs, *(inner for _, inner in closed_over), *variables]
        positions = [k for k, x in enumerate(xs) if _is_differentiable(x)]
        differentiable = [k for k, y in enumerate(results) if _is_differentiable(y)]
        incoming = [tf.compat.v1.placeholder(results[k].dtype, results[k].shape, name=f"gradient_of_result_{k}") for k in differentiable]
        gradients: list[Any] = [None] * len(xs)
        taken = Taken(())
        if positions and differentiable:
            taken = self.take([results[k] for k in differentiable], [xs[k] for k in positions], [tf.identity(dy) for dy in incoming])
            for k, gradient in zip(positions, taken.gradients, strict=True):
                gradients[k] = gradient
        parts = tf.nest.flatten([g for g in gradients if g is not None], expand_composites=True)
        return [*results, *parts], {
            "closed_over_names": [inner.name for _, inner in closed_over],
            "result_count": len(results),
            "incoming": tuple(dy.name for dy in incoming),
            "differentiable": tuple(differentiable),
            "gradients": tuple(gradients),
            "closed_over": tuple(outer for outer, _ in closed_over),
            "variables": tuple(variables),
            "taken": taken,
            "pack": _packing(result),
        }


def _without_instance(function: Callable[..., Any], reference: Any, name: str) -> Callable[..., Any]:
    """Return a method without its first argument that does not keep the instance alive."""

    def method(*args: Any, **kwargs: Any) -> Any:
        instance = reference()
        if instance is None:
            raise UnsupportedError("the object of this method no longer exists", where=f"method {name!r}", remedy="keep the object")
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
    """Join two functions into one with a gradient of its own.

    Args:
        forward: takes the sources; returns the results, and a function that returns the residuals.
        backward: takes the residuals, the sources and the incoming gradients; returns the parts of the gradients.
    """
    present = [g for g in traced.gradients if g is not None]
    argument_count = len(traced.gradients) - len(traced.variables) - len(traced.closed_over)

    def pack(parts: Any) -> list[Any]:
        return listed(tf.nest.pack_sequence_as(present, listed(parts), expand_composites=True))

    @tf.custom_gradient
    def run(*sources: Any) -> Any:
        with not_recorded():  # or an eager tape would keep dropped tensors, for a gradient that nobody asks for
            results, residuals = forward(sources)

        @tf.custom_gradient
        def backward_of(*tensors: Any) -> Any:
            """Take sources and incoming gradients as arguments, so that derivatives of the gradients reach both."""
            incoming = tensors[len(sources) :]

            def second(*upstream: Any) -> list[Any]:
                by_sources, by_incoming = traced.second_gradients(tensors[:argument_count], incoming, pack(upstream))
                return [*by_sources, *by_incoming]

            with not_recorded():
                parts = backward(residuals(), tensors[: len(sources)], incoming)
            return parts, second

        def gradient(*incoming: Any) -> Any:
            if traced.taken.failure is not None:
                raise traced.taken.failure
            parts = backward_of(*sources, *(incoming[k] for k in traced.differentiable))
            packed = iter(pack(parts))
            return [None if g is None else next(packed) for g in traced.gradients]

        return results, gradient

    return run


@left_alone
def _values_of(result: Any) -> Any:

    def value_of(leaf: Any) -> Any:
        return tf.convert_to_tensor(leaf) if isinstance(leaf, tf.Variable) else leaf

    return tf.nest.map_structure(value_of, result)


@left_alone
def _tensors_of(result: Any) -> list[Any]:
    return [_tensor(leaf) for leaf in tf.nest.flatten(result, expand_composites=True) if leaf is not None]


def _tensor(leaf: Any) -> Any:
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the function returns a {type(leaf).__name__}, which is no tensor",
            argument="fn",
            remedy="return tensors, alone or in a structure",
        ) from error


def _packing(result: Any) -> Callable[[Sequence[Any]], Any]:
    """Return the inverse of `_tensors_of`, which keeps no tensor of the result alive."""

    def spec_of(leaf: Any) -> Any:
        if leaf is None:
            return None
        return tf.type_spec_from_value(leaf) if isinstance(leaf, _COMPOSITE) else tf.TensorSpec(None)

    specs = tf.nest.map_structure(spec_of, result)

    def pack(tensors: Sequence[Any]) -> Any:
        remaining = iter(tensors)
        parts = [None if spec is None else next(remaining) for spec in tf.nest.flatten(specs, expand_composites=True)]
        return tf.nest.pack_sequence_as(specs, parts, expand_composites=True)

    return pack


def _dense(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _watched(variables: Sequence[Any]) -> list[Any]:
    return [variable for variable in variables if is_watched([variable.handle])]


def _is_differentiable(tensor: Any) -> bool:
    dtype = tf.as_dtype(tensor.dtype)
    return bool(dtype.is_floating or dtype.is_complex)
