"""What users hand in (a tf.function, a ConcreteFunction, a Keras model, a file), traced to a `ConcreteFunction`."""

from __future__ import annotations

import inspect as python_inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from graphwright.errors import ArgumentError, GraphwrightError, UnknownShapeError
from graphwright.ir.dtypes import format_shape
from graphwright.run.callables import resolve, split_inputs
from graphwright.source.concrete_function import argument_shapes
from graphwright.source.files import load_callable
from graphwright.source.private_tensorflow import captures_of
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.train.keras_step import is_keras_model, keras_data, keras_specs, keras_step

Mode = Literal["train", "infer"]
Feed = Any
"""A shape as a tuple; a `tf.TensorSpec` where the dtype is not the one of the signature, or float32; or a tensor."""


@dataclass(frozen=True, slots=True)
class Target:
    """A step, traced.

    Attributes:
        name: what to call it.
        function: the `ConcreteFunction`.
        shapes: per flat argument, its shape with the feeds bound.
        names: per flat argument, its name.
        arguments: example values of the flat arguments, or None.
        owner: what holds the variables, which a `ConcreteFunction` does not keep alive.
    """

    name: str
    function: Any
    shapes: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    arguments: tuple[Any, ...] | None
    owner: Any = None

    @property
    def feeds(self) -> dict[str, tuple[int, ...]]:
        """Shape by argument name."""
        return dict(zip(self.names, self.shapes, strict=True))

    @property
    def shapes_by_position(self) -> dict[int, tuple[int | None, ...]]:
        """Shapes as `flatten` takes them."""
        return dict(enumerate(self.shapes))


def trace(
    target: Any,
    *,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    mode: Mode = "train",
    batch: int | None = None,
    open_batch: int | None = None,
) -> Target:
    """Trace a target for one set of input shapes.

    Args:
        target: a `tf.function`, a `ConcreteFunction`, a Keras model, a path of a `.keras` file, of a SavedModel or of a
            frozen graph, or an object with a method `concrete_function(*inputs)`.
        feeds: shape, `tf.TensorSpec` or tensor by argument name.
        inputs: example arguments of one call, instead of feeds; for a Keras model its data, such as `(x, y)`, or `x` for inference.
        mode: for a Keras model, its training step or its inference.
        batch: batch size of a Keras model's inputs, instead of feeds.
        open_batch: what a dimension gets that the feeds leave open, or a first dimension that the target does, whatever the target is.

    Raises:
        ArgumentError: it is nothing that can be traced, has several signatures and nothing says which, or the feeds do not fit.
        UnknownShapeError: a dimension stays unknown; the message names the argument to bind.
    """
    tf = import_tensorflow()
    owner = target
    if feeds is not None and inputs is not None:
        raise ArgumentError("both feeds and inputs were given", where="arguments 'feeds' and 'inputs'", remedy="give one of them")
    if open_batch is not None and feeds is not None:
        feeds = {key: _closed(feed, open_batch) for key, feed in feeds.items()}
    if isinstance(target, str | Path):
        target = owner = load_callable(Path(target))
    name = str(getattr(target, "__name__", None) or getattr(target, "name", None) or type(target).__name__)
    if is_keras_model(target):
        name = f"{name}, {'training step' if mode == 'train' else 'inference'}"
        target = keras_step(target, mode)
        if inputs is not None:
            return replace(_trace_with_data(owner, target, mode, inputs), name=name, owner=owner)
        inputs = keras_specs(owner, mode, feeds or {}, open_batch if batch is None else batch)
        feeds = None
    elif batch is not None:
        raise ArgumentError(
            f"batch={batch} was given for {type(target).__name__}",
            where="argument 'batch'",
            remedy="a step takes its shapes from feeds or inputs",
        )
    if inputs is not None and not _holds_specs(inputs):
        found = resolve(target, inputs)
        shapes = tuple(tuple(int(d) for d in tensor.shape) for tensor in found.arguments)
        return Target(name, found.concrete, shapes, _names(found.concrete, len(shapes)), found.arguments, owner)
    if inputs is not None:
        positional, keyword = split_inputs(inputs)
        function = target.get_concrete_function(*positional, **keyword)
        return _bound(name, function, {}, owner, open_batch)
    values = {key: value for key, value in (feeds or {}).items() if tf.is_tensor(value)}
    if values and len(values) == len(feeds or {}) and not isinstance(target, tf.types.experimental.ConcreteFunction):
        return trace(target, inputs=values)
    specs = {key: _as_shape(key, value) for key, value in (feeds or {}).items()}
    return _bound(name, _trace_with_feeds(target, feeds or {}), specs, owner, open_batch)


def _trace_with_data(model: Any, step: Any, mode: Mode, inputs: Any) -> Target:
    """The step of a Keras model, traced with its data."""
    tf = import_tensorflow()
    wanted = "(x, y)" if mode == "train" else "x"
    try:
        return trace(step, inputs=keras_data(model, mode, inputs, are_specs=_holds_specs(inputs)))
    except GraphwrightError:
        raise
    except (TypeError, ValueError, tf.errors.OpError) as error:
        raise ArgumentError(
            f"the model cannot be traced with these inputs: {_reason(error)}",
            where=f"argument 'inputs', model {model.name!r}",
            cause="they are not what its inputs, its loss or its metrics take",
            remedy=f"give the data as fit takes it: inputs={wanted}",
        ) from error


def _reason(error: Exception) -> str:
    """The line of an error raised while tracing that says why; Keras lists the arguments of the call after it."""
    text = re.sub(r"\x1b\[\d*m", "", str(error))  # Keras prints in bold
    lines = [line.strip() for line in text.partition("Arguments received by")[0].splitlines()]
    return next((line for line in reversed(lines) if line), type(error).__name__)


def _closed(feed: Feed, size: int) -> Feed:
    """A shape or a spec with this size where a dimension is open."""
    if isinstance(feed, tuple | list):
        return tuple(size if d is None else d for d in cast("Sequence[int | None]", feed))
    tf = import_tensorflow()
    if isinstance(feed, tf.TensorSpec) and feed.shape.rank is not None:
        return tf.TensorSpec([size if d is None else d for d in feed.shape], feed.dtype, feed.name)
    return feed


def _holds_specs(inputs: Any) -> bool:
    tf = import_tensorflow()
    return any(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(inputs))


def _as_shape(name: str, feed: Feed) -> tuple[int, ...]:
    shape: Any = getattr(feed, "shape", feed)
    try:
        dims = tuple(shape.as_list()) if hasattr(shape, "as_list") else tuple(shape)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the feed {feed!r} is no shape", where=f"feeds[{name!r}]", remedy="give a tuple such as (8, 572, 572, 1), or a tf.TensorSpec"
        ) from error
    for d in dims:
        if not isinstance(d, int) or isinstance(d, bool) or d < 0:
            raise ArgumentError(
                f"the feed {dims} holds {d!r}, which is no dimension", where=f"feeds[{name!r}]", remedy="give whole numbers"
            )
    return dims


def _trace_with_feeds(target: Any, feeds: Mapping[str, Feed]) -> Any:
    tf = import_tensorflow()
    if isinstance(target, tf.types.experimental.ConcreteFunction):
        return target
    if not hasattr(target, "get_concrete_function"):
        raise ArgumentError(
            f"{type(target).__name__} cannot be traced",
            where="argument 'target'",
            remedy="give a tf.function (decorate the step with @tf.function), a ConcreteFunction, a compiled Keras model, or a file",
        )
    if getattr(target, "input_signature", None) is not None:
        return target.get_concrete_function()
    traced = list_signatures(target)
    if not feeds:
        if len(traced) == 1:
            return traced[0]
        if traced:
            listed = "; ".join(", ".join(f"{t.name.split(':')[0]}{format_shape(tuple(t.shape))}" for t in _arguments(f)) for f in traced)
            raise ArgumentError(
                f"the step was called with {len(traced)} signatures: {listed}",
                where="argument 'target'",
                cause="a tf.function is traced anew for each set of shapes and dtypes",
                remedy="say which one, with inputs=(...) or feeds={name: shape}",
            )
        raise ArgumentError(
            "the step has not been traced yet, so the shapes of its inputs are not known",
            where="arguments 'feeds' and 'inputs'",
            remedy='give example inputs, inputs=(x, y), or shapes, feeds={"x": (8, 572, 572, 1)}',
        )
    parameters = list(python_inspect.signature(target.python_function).parameters.values())
    known = [p.name for p in parameters]
    strange = [key for key in feeds if key not in known]
    if strange:
        raise ArgumentError(f"the step has no argument {strange[0]!r}", where=f"feeds[{strange[0]!r}]", remedy=f"it has {', '.join(known)}")
    missing = [
        p.name for p in parameters if p.name not in feeds and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    missing = [m for m in missing if m != "self"]
    if missing:
        raise UnknownShapeError(
            f"the shape of argument {missing[0]!r} is not known",
            where=f"argument {missing[0]!r}",
            remedy=f"add it to feeds: {{{missing[0]!r}: (...)}}",
        )
    dtypes = {t.name.split(":")[0]: t.dtype for f in traced for t in _arguments(f)}
    specs = {
        key: feed if isinstance(feed, tf.TensorSpec) else tf.TensorSpec(_as_shape(key, feed), dtypes.get(key, tf.float32), name=key)
        for key, feed in feeds.items()
    }
    try:
        return target.get_concrete_function(**specs)
    except (TypeError, ValueError) as error:
        guessed = [key for key, feed in feeds.items() if not isinstance(feed, tf.TensorSpec) and key not in dtypes]
        raise ArgumentError(
            f"the step cannot be traced with these feeds: {_reason(error)}",
            where="argument 'feeds'",
            cause=f"the dtype of {', '.join(guessed)} was taken for float32" if guessed else "",
            remedy='give the dtype too: feeds={"y": tf.TensorSpec((8,), tf.int32)} (--feed y=8:int32), or example inputs',
        ) from error


def declared_shapes(target: Any, feeds: Mapping[str, Feed]) -> dict[str, tuple[int | None, ...] | None]:
    """Shape by argument, as feeds and the target itself say; None for a dimension, or a shape, that both leave open.

    Args:
        target: a `tf.function` or a `ConcreteFunction`.

    Raises:
        ArgumentError: it cannot be traced, or the feeds do not fit it.
    """
    tf = import_tensorflow()
    given = {key: declared_shape(feed) for key, feed in feeds.items()}
    has_signature = isinstance(target, tf.types.experimental.ConcreteFunction) or getattr(target, "input_signature", None) is not None
    if given and not has_signature:
        return given
    function = _trace_with_feeds(target, {})
    shapes = argument_shapes(function)
    declared = dict(zip(_names(function, len(shapes)), shapes, strict=True))
    strange = [key for key in given if key not in declared]
    if strange:
        raise ArgumentError(
            f"the step has no argument {strange[0]!r}", where=f"feeds[{strange[0]!r}]", remedy=f"it has {', '.join(declared)}"
        )
    return declared | given


def declared_shape(feed: Feed) -> tuple[int | None, ...] | None:
    """The shape of a feed; None where not even the number of dimensions is given.

    Raises:
        TypeError, ValueError: it is no shape.
    """
    shape: Any = getattr(feed, "shape", feed)
    if getattr(shape, "rank", 0) is None:
        return None
    return tuple(shape.as_list() if hasattr(shape, "as_list") else shape)


def list_signatures(function: Any) -> list[Any]:
    """The concrete functions that a `tf.function` holds. Private in TensorFlow: `tests/train/test_targets.py` fails when it moves."""
    return list(function._list_all_concrete_functions())


def _arguments(function: Any) -> Sequence[Any]:
    return function.inputs[: len(function.inputs) - len(captures_of(function))]


def _names(function: Any, count: int) -> tuple[str, ...]:
    return tuple(t.name.split(":")[0] for t in function.inputs[:count])


def _bound(name: str, function: Any, feeds: Mapping[str, tuple[int, ...]], owner: Any, open_batch: int | None) -> Target:
    shapes = argument_shapes(function)
    names = _names(function, len(shapes))
    strange = [key for key in feeds if key not in names]
    if strange:
        raise ArgumentError(f"the step has no argument {strange[0]!r}", where=f"feeds[{strange[0]!r}]", remedy=f"it has {', '.join(names)}")
    bound: list[tuple[int, ...]] = []
    for key, shape in zip(names, shapes, strict=True):
        given = feeds.get(key)
        if given is not None and shape is not None and not _fits(given, shape):
            raise ArgumentError(f"the feed {given} does not fit {format_shape(shape)}", where=f"feeds[{key!r}]")
        shape = given if given is not None else shape
        if shape and shape[0] is None and open_batch is not None:
            shape = (open_batch, *shape[1:])
        if shape is None or None in shape:
            raise UnknownShapeError(
                f"argument {key!r} has the shape {format_shape(shape)}",
                where=f"argument {key!r} of {name!r}",
                cause="the signature leaves dimensions open, and memory depends on them",
                remedy=f"bind it: feeds={{{key!r}: (...)}}, or give example inputs",
            )
        bound.append(tuple(d for d in shape if d is not None))
    return Target(name, function, tuple(bound), names, None, owner)


def _fits(given: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(given) == len(shape) and all(d is None or d == e for d, e in zip(shape, given, strict=True))
