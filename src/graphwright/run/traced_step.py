"""A user's step in one form: a concrete function and the tensors to call it with."""

from __future__ import annotations

import importlib
import inspect as python_inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from graphwright.analyze.device_models import DeviceModel
from graphwright.errors import ArgumentError
from graphwright.source.concrete_function import argument_names, arguments_of, plain_name
from graphwright.source.private_tensorflow import bind_arguments, call_flat
from graphwright.source.rebuild import is_jit_compiled, variable_behind
from graphwright.source.tensorflow_import import import_keras
from graphwright.source.tracebacks import user_code

tf: Any = importlib.import_module("tensorflow")


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step, traced for one set of shapes: analyzed and planned, and run if it has tensors to be called with.

    Attributes:
        function: the `tf.types.experimental.ConcreteFunction`.
        shapes: shape by flat argument, without captures, with the feeds bound.
        arguments: tensors for the flat arguments; empty if only shapes are known.
        owner: the object that keeps the variables alive; a `ConcreteFunction` does not.
        device: the GPU of the figures, which need not be present; None for this process's own devices.
        fed: numbers of scalar arguments by position, from feeds.
    """

    name: str
    function: Any
    shapes: tuple[tuple[int, ...], ...] = ()
    arguments: tuple[Any, ...] = ()
    owner: Any = None
    grappler_disabled: bool = False
    device: DeviceModel | None = None
    fed: Mapping[int, float] = field(default_factory=dict[int, float])

    @classmethod
    def called(cls, name: str, function: Any, arguments: Sequence[Any], **options: Any) -> TracedStep:
        return cls(name, function, tuple(tuple(int(d) for d in tensor.shape) for tensor in arguments), tuple(arguments), **options)

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles it: it is marked so, or its figures are for a GPU."""
        return self.device is not None or is_jit_compiled(self.function)

    @property
    def is_runnable(self) -> bool:
        return len(self.arguments) == len(self.shapes) and not any(map(tf.is_symbolic_tensor, self.arguments))

    @property
    def numbers(self) -> dict[int, float]:
        tensors = enumerate(self.arguments if self.is_runnable else ())
        return {**self.fed, **{k: number for k, tensor in tensors if (number := number_of_tensor(tensor)) is not None}}

    def run(self) -> Any:
        with user_code(f"running {self.name!r}"):
            return call_flat(self.function, self.arguments)

    @property
    def names(self) -> tuple[str, ...]:
        return argument_names(self.function)[: len(self.shapes)]

    @property
    def feeds(self) -> dict[str, tuple[int, ...]]:
        return dict(zip(self.names, self.shapes, strict=True))

    @property
    def captures(self) -> list[tuple[Any, Any]]:
        return list(self.function.graph.captures)

    @property
    def given(self) -> list[tuple[Any, Any]]:
        return [*self.captures, *zip(self.arguments, self.function.inputs, strict=False)]

    @property
    def call_time_captures(self) -> list[tuple[Any, Any]]:
        """Pairs of a closure that returns a tensor for each call (the keys of collectives) and its placeholder in the graph."""
        graph = self.function.graph
        return list(zip(graph.deferred_external_captures, graph.deferred_internal_captures, strict=True))

    def variable_handles(self) -> dict[str, Any]:
        """Return the handles of captured or given variables, each once, by a unique readable name."""
        named = {id(variable.handle): str(variable.name) for variable in self.function.graph.variables}
        ambiguous = {name for name, count in Counter(named.values()).items() if count > 1}
        handles: dict[str, Any] = {}
        seen: set[int] = set()
        for external, internal in self.given:
            if id(external) in seen or variable_behind(external) is None:
                continue
            seen.add(id(external))
            name = named.get(id(external)) or str(internal.op.name)
            # Keras calls every kernel "kernel"; where it is read says which layer it belongs to.
            handles[f"{name} (as {internal.op.name})" if name in ambiguous or name in handles else name] = external
        return handles


def number_of_tensor(tensor: Any) -> float | None:
    """Return the number of a scalar that has a value, or None."""
    if isinstance(tensor, int | float):
        return tensor
    if not tf.is_tensor(tensor) or tf.is_symbolic_tensor(tensor) or tensor.shape.rank != 0:
        return None
    return tensor.numpy().item() if tensor.dtype.is_integer or tensor.dtype.is_floating or tensor.dtype.is_bool else None


@dataclass(frozen=True, slots=True)
class Call:
    """The positional and keyword arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def bind(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Return the arguments of a call as a `tf.function` binds them, with its default values.

    Args:
        function: a `tf.function`, or an object that optimizes one (its `original`); other functions leave the arguments as they are.
    """
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        try:
            bound = bind_arguments(function, args, dict(kwargs))
        except (TypeError, ValueError) as error:
            name = getattr(function, "__name__", "function")
            takes = python_inspect.signature(function.python_function)
            raise _misfit(error, name, f"give the arguments of one call: {name}{takes}") from error
        return Call(tuple(bound.args), dict(bound.kwargs))
    original = getattr(function, "original", None)
    return Call(args, dict(kwargs)) if original is None else bind(original, args, kwargs)


def _misfit(error: Exception, name: str, remedy: str) -> ArgumentError:
    """Return the error for arguments that a step does not take, without TensorFlow's quotations of their values."""
    what = re.sub(r"(?s).*failed due to `(.*?)`\..*", r"\1", str(error))
    return ArgumentError(f"the inputs do not fit the step: {what}", argument="inputs", where=f"step {name!r}", remedy=remedy)


def resolve(function: Any, inputs: Any) -> TracedStep:
    """Return a step in the form of a `TracedStep`.

    Args:
        function: a `tf.function`, a `ConcreteFunction`, a `TracedStep`, or an object with a method `concrete_function(*inputs)` (and
            maybe an attribute `grappler_disabled`).
        inputs: a tuple or list of positional arguments, a mapping of keyword ones, a `Call`, or one tensor; None for those of a
            `TracedStep`.
    """
    if isinstance(function, TracedStep) and inputs is None:
        return function
    call = bind(function, *split_inputs(inputs))
    positional, keyword = call.args, call.kwargs
    name = name_of(function)
    if isinstance(function, TracedStep):
        concrete = function.function
    elif isinstance(function, tf.types.experimental.ConcreteFunction):
        check_step(function, "step")
        concrete = function
    elif hasattr(function, "concrete_function"):
        concrete = function.concrete_function(*positional, **keyword)
    else:
        concrete = trace_call(function, positional, keyword)
    try:
        arguments = _flat_arguments(concrete, positional, keyword)
    except (TypeError, ValueError) as error:
        raise _misfit(error, name, "give the arguments of one call, as a tuple") from error
    owner = function.owner if isinstance(function, TracedStep) else function
    off = bool(getattr(function, "grappler_disabled", False))
    return TracedStep.called(name, concrete, arguments, owner=owner, grappler_disabled=off)


def trace_call(function: Any, positional: Sequence[Any], keyword: Mapping[str, Any]) -> Any:
    check_step(function, "step")
    arguments = tf.nest.flatten([positional, dict(keyword)])  # a model has a dtype, and no shape
    leaves = [f"{tf.as_dtype(x.dtype).name} {tf.TensorShape(x.shape)}" for x in arguments if hasattr(x, "dtype") and hasattr(x, "shape")]
    with user_code(
        f"tracing {name_of(function)!r}",
        "the step cannot be traced with these inputs",
        argument="inputs",
        cause=f"they are {', '.join(leaves)}",
        remedy="give arguments of the dtypes and shapes that the step computes with",
    ):
        return function.get_concrete_function(*positional, **keyword)


def check_step(target: Any, argument: str) -> None:
    if not hasattr(target, "get_concrete_function") and not isinstance(target, tf.types.experimental.ConcreteFunction):
        raise ArgumentError(
            f"{type(target).__name__} cannot be traced",
            argument=argument,
            remedy="give inputs=..., or the step that was optimized: .original"
            if hasattr(target, "original")
            else "give a tf.function (decorate the step with @tf.function), a ConcreteFunction, a compiled Keras model, or a file",
        )
    try:
        _ = getattr(target, "graph", None) and target.graph.variables
    except AssertionError as error:
        raise ArgumentError(
            "the variables of the ConcreteFunction are gone",
            argument=argument,
            cause="it does not keep them alive: the tf.function or the model that made them is no longer referred to",
            remedy="give that tf.function or model, or keep it in a name",
        ) from error


def name_of(target: Any) -> str:
    """Return its name for users; the names that TensorFlow gives functions have additions."""
    return plain_name(str(getattr(target, "__name__", None) or getattr(target, "name", None) or type(target).__name__))


def first_batch(inputs: Any) -> Any:
    """Return example arguments of one call: the first batch of a dataset, a generator or a `PyDataset`; anything else unchanged.

    A generator loses that batch.
    """
    with user_code("reading the first batch of the data"):
        if isinstance(inputs, tf.data.Dataset | Iterator):
            batch: Any = next(iter(cast("Iterable[Any]", inputs)), None)
        elif isinstance(inputs, import_keras().utils.PyDataset):
            batch = inputs[0] if len(inputs) else None
        else:
            return inputs
    if batch is None:
        raise ArgumentError(f"{type(inputs).__name__} holds no batch", argument="inputs", remedy="give one that is not empty, or one batch")
    return batch


def split_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments of a call."""
    if isinstance(inputs, Call):
        return inputs.args, inputs.kwargs
    if isinstance(inputs, Mapping):
        return (), dict(cast("Mapping[str, Any]", inputs))
    if isinstance(inputs, tuple | list):
        return tuple(cast("Sequence[Any]", inputs)), {}
    return (inputs,), {}


def _flat_arguments(concrete: Any, positional: Sequence[Any], keyword: Mapping[str, Any]) -> list[Any]:
    """Return the tensors of the call. Arguments that were Python values during tracing may be left out."""
    function_type = concrete.function_type
    if not function_type.parameters and not keyword:  # a graph that was wrapped: its inputs are all there is
        placeholders = arguments_of(concrete)
        if len(positional) != len(placeholders):
            raise TypeError(f"{len(positional)} given, {len(placeholders)} needed")
        return [tf.convert_to_tensor(value, placeholder.dtype) for value, placeholder in zip(positional, placeholders, strict=True)]
    parameters = list(function_type.parameters.values())
    if positional and all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters):  # the signature of a file
        if len(parameters) > 1 or len(positional) > 1:
            names = ", ".join(repr(parameter.name) for parameter in parameters)
            raise TypeError(f"it takes them by name, inputs={{...}}: {names}")
        positional, keyword = (), {parameters[0].name: positional[0]}
    literals = {
        parameter.name: parameter.type_constraint.value
        for parameter in function_type.parameters.values()
        if hasattr(parameter.type_constraint, "value")
    }
    bound = function_type.bind_partial(*positional, **keyword)
    missing = {name: value for name, value in literals.items() if name not in bound.arguments}
    bound.arguments.update(missing)
    return list(function_type.unpack_inputs(bind_arguments(concrete, bound.args, bound.kwargs)))
