"""Targets of questions (a tf.function, a ConcreteFunction, a Keras model, a file), traced to a `ConcreteFunction`."""

from __future__ import annotations

import inspect as python_inspect
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np

from graphwright.analyze.device_models import HERE, find_device
from graphwright.errors import ArgumentError, ErrorCode, UnknownShapeError
from graphwright.ir.dtypes import agree, format_shape
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.report.progress import tell
from graphwright.run.traced_step import TracedStep, check_step, first_batch, name_of, number_of_tensor, resolve, split_inputs, trace_call
from graphwright.source.concrete_function import argument_names, argument_shapes, arguments_of, flat_arguments, sparse_sizes
from graphwright.source.files import load_callable
from graphwright.source.load import made_by
from graphwright.source.private_tensorflow import eager_mode, traces_of
from graphwright.source.static_function import check_has_values
from graphwright.source.tensorflow_import import import_keras, import_tensorflow
from graphwright.source.tracebacks import user_code
from graphwright.source.trust import as_path
from graphwright.step.feeds import (
    Feed,
    as_shape,
    check_known,
    closed,
    declared_shape,
    is_nested,
    is_value,
    leaves_of,
    map_feeds,
    open_input,
)
from graphwright.step.fetches import function_of_graph, is_graph
from graphwright.step.keras_inputs import declared_inputs, feeds_to_give, keras_specs, named_data
from graphwright.step.keras_step import build_as_fit, check_targets, is_keras_model, keras_data, keras_step, mode_of

Mode = Literal["auto", "train", "infer"]
Question = TypeVar("Question", bound=Callable[..., Any])
_LARGEST = 2**31 - 1
_CALL = {
    "target": "a `tf.function`, a `ConcreteFunction`, a Keras model, the path of a `.keras` file, a SavedModel or a graph, or a function "
    "without arguments that makes one",
    "feeds": "shape, `tf.TensorSpec` or tensor by argument name",
    "inputs": "example arguments of one call, instead of feeds; or a `tf.data.Dataset`, a generator, or a `PyDataset`, whose first batch "
    "they are",
    "outputs": "of a graph, what is fetched: names, tensors or operations",
    "mode": 'for a Keras model, its training step ("train") or its inference ("infer"); "auto": the former where it is compiled',
    "batch": "batch size, where the inputs leave it open",
    "device": 'the GPU that peaks are for, which need not be there ("h100", "h200", "b200", "a100", "l4", "t4"): XLA compiles the step for '
    'it; "cpu" for what this process runs on',
}
_OF_GRAPHS = {"target": "; or a `tf.Graph`, a `GraphDef`, a `Graph`", "feeds": " (by placeholder for a graph)"}


def about_a_step(question: Question) -> Question:
    """Add the shared arguments of questions about a step to a docstring, and let the function execute eagerly.

    >>> @about_a_step
    ... def count(target, *, batch=None, depth=1):
    ...     '''Count.
    ...
    ...     Args:
    ...         depth: how deep.
    ...     '''
    >>> print(python_inspect.getdoc(count))  # doctest: +ELLIPSIS
    Count.
    <BLANKLINE>
    Args:
        target: a `tf.function`, ..., or a function without arguments that makes one.
        batch: batch size, where the inputs leave it open.
        depth: how deep.
    """
    parameters = list(python_inspect.signature(question).parameters)
    head, args, rest = python_inspect.cleandoc(question.__doc__ or "").partition("Args:\n")
    own, gap, tail = rest.partition("\n\n")
    extra = _OF_GRAPHS if "outputs" in parameters else {}
    entries = {name: f"    {name}: {text}{extra.get(name, '')}." for name, text in _CALL.items() if name in parameters}
    entries |= {entry.split(":")[0].split(",")[0].strip(): entry for entry in re.split(r"\n(?=    \w)", own)}
    question.__doc__ = head + args + "\n".join(entries[name] for name in sorted(entries, key=parameters.index)) + gap + tail
    return eagerly()(question)


@contextmanager
def eagerly() -> Generator[None]:
    """Execute eagerly inside this block, also in a process of TensorFlow 1."""
    with nullcontext() if import_tensorflow().compat.v1.executing_eagerly_outside_functions() else eager_mode():
        yield


def read_target(target: Any, outputs: Any = None, feeds: Any = None, *, runs: bool = False) -> Any:
    """Return a target that can be traced: the content of a file, the function of a graph, the result of a factory, or the target itself.

    Args:
        outputs, feeds: of a graph, the fetched and fed names.
        runs: whether it will be called; a file must be trusted then.
    """
    target = made_by(target)
    if outputs is not None or is_graph(target):
        function = function_of_graph(target, outputs, fed_names(feeds), runs=runs)
        if runs:
            check_has_values(function, function.__name__)
        return function
    return load_callable(as_path(target), runs=runs) if isinstance(target, str | Path) else target


@garbage_collection_paused()
def trace(
    target: Any,
    *,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    outputs: Any = None,
    mode: Mode = "auto",
    batch: int | None = None,
    open_batch: int | None = None,
    runs: bool = False,
    device: str = HERE,
) -> TracedStep:
    """Trace a target for one set of input shapes.

    Args:
        target: a `tf.function`, a `ConcreteFunction`, a Keras model, a path of a `.keras` file, of a SavedModel or of a graph, a graph, or
            an object with a method `concrete_function(*inputs)`; a traced step stays as it is.
        feeds: by argument name, a shape, a `tf.TensorSpec`, a tensor, or a structure of such (`graphwright.step.feeds`).
        inputs: example arguments of one call, instead of feeds; for a Keras model its data, such as `(x, y)`, or `x` for inference. Of a
            dataset, a generator or a `keras.utils.PyDataset` the first batch.
        outputs: of a graph, what is fetched: names, tensors or operations.
        mode: for a Keras model, its training step or its inference; "auto" is training if it is compiled.
        batch: size of the first dimensions that feeds and target leave open; at least one must be open.
        open_batch: the same, but none need be open.
        runs: whether the step will be called; a file must be trusted then.
        device: see `find_device`.

    Raises:
        ArgumentError: the target cannot be traced, has several signatures, or does not fit the feeds.
        UnknownShapeError: a dimension stays unknown; the message names the argument.
    """
    tf = import_tensorflow()
    if isinstance(target, TracedStep):
        return target
    if outputs is not None:
        target = read_target(target, outputs, feeds, runs=runs)
    if isinstance(feeds, Mapping):
        feeds = {_plain_key(key): tf.constant(feed) if isinstance(feed, np.ndarray) else feed for key, feed in feeds.items()}
    model = find_device(device)
    if model is not None:
        return replace(trace(target, feeds=feeds, inputs=inputs, mode=mode, batch=batch, open_batch=open_batch, runs=runs), device=model)
    if feeds is not None and inputs is not None:
        raise both_given()
    tell("tracing the step")
    if mode not in get_args(Mode):
        raise ArgumentError(f"mode={mode!r} was given", argument="mode", remedy='give "train", "infer" or "auto"')
    if not isinstance(cast("object", feeds), Mapping | None):
        what = f"feeds of type {type(feeds).__name__} were given"
        raise ArgumentError(what, argument="feeds", remedy='give a mapping: {"x": (8, 572, 572, 1)}')
    if batch is not None:
        return _trace_with_batch(target, feeds, inputs, mode, batch, runs)
    if open_batch is not None and feeds is not None:
        feeds = map_feeds(lambda _, feed: closed(feed, open_batch), feeds)
    target = owner = read_target(target, None, feeds, runs=runs)
    inputs = one_batch(target, inputs, mode)
    if is_keras_model(target):
        return _trace_model(target, mode_of(target, mode), inputs, feeds or {}, open_batch)
    name = name_of(target)
    if inputs is not None and not _holds_specs(inputs):
        return replace(resolve(target, inputs), name=name, owner=owner)
    if inputs is not None:
        positional, keyword = split_inputs(inputs)
        if isinstance(target, tf.types.experimental.ConcreteFunction):
            by_position = dict(zip(argument_names(target), tf.nest.flatten(positional), strict=False))
            return _bound(
                name, target, {key: feed for key, feed in (by_position | keyword).items() if not is_value(feed)}, owner, open_batch
            )
        return _bound(name, trace_call(target, positional, keyword), {}, owner, open_batch)
    leaves = leaves_of(feeds or {}).values()
    has_values = any(map(tf.is_tensor, leaves)) and all(is_value(feed) or tf.is_tensor(feed) for feed in leaves)
    if has_values and not isinstance(target, tf.types.experimental.ConcreteFunction):
        return trace(target, inputs=feeds)
    step = _bound(name, _trace_with_feeds(target, feeds or {}), feeds or {} if _has_signature(target) else {}, owner, open_batch)
    if has_values and feeds and feeds.keys() == set(step.names):
        values = (tf.convert_to_tensor(feeds[name], tensor.dtype) for name, tensor in zip(step.names, step.function.inputs, strict=False))
        step = replace(step, arguments=tuple(values))
    known = {key: number for key, feed in (feeds or {}).items() if (number := number_of_tensor(feed)) is not None}
    return replace(step, fed={k: known[key] for k, key in enumerate(step.names) if key in known})


def fed_names(feeds: Any) -> list[str]:
    return [_plain_key(key) for key in cast("Mapping[Any, Any]", feeds)] if isinstance(feeds, Mapping) else []


def _plain_key(key: Any) -> str:
    return str(getattr(key, "name", key)).removesuffix(":0")


def both_given() -> ArgumentError:
    return ArgumentError("both feeds and inputs were given", where="arguments 'feeds' and 'inputs'", remedy="give one of them")


def one_batch(target: Any, inputs: Any, mode: Mode) -> Any:
    """Return example arguments of one call (`first_batch`); for the inference of a Keras model only x."""
    data = first_batch(inputs)
    if data is not inputs and is_keras_model(target) and mode_of(target, mode) == "infer":
        return import_keras().utils.unpack_x_y_sample_weight(data)[0]
    return data


def _trace_with_batch(target: Any, feeds: Mapping[str, Feed] | None, inputs: Any, mode: Mode, batch: int, runs: bool) -> TracedStep:
    if inputs is not None:
        raise ArgumentError("both inputs and a batch size were given", argument="batch", remedy="leave it out: inputs have their own")
    if not isinstance(cast("object", batch), Integral) or isinstance(batch, bool):
        raise ArgumentError(f"a {type(batch).__name__} was given", argument="batch", remedy="give a size; a batch itself goes in inputs")
    if batch < 1:
        raise ArgumentError(f"batch={batch} was given", argument="batch", remedy="give 1 or more")
    for path, feed in leaves_of(feeds or {}).items():
        shape = None if is_value(feed) else declared_shape(path, feed)
        if shape and shape[0] not in (batch, None):
            raise ArgumentError(
                f"the feed {format_shape(shape)} has another batch size than batch={batch}",
                argument="feeds",
                item=path,
                remedy="give the batch size, or feeds; both only where feeds leave it open",
            )
    traced = trace(target, feeds=feeds, mode=mode, open_batch=batch, runs=runs)
    check_batch_is_taken(batch, traced.feeds, traced.name)
    return traced


def check_batch_is_taken(batch: int, feeds: Mapping[str, tuple[int, ...]], name: str) -> None:
    if all(not shape or shape[0] != batch for shape in feeds.values()):
        known = ", ".join(f"{name} {shape}" for name, shape in feeds.items()) or "there are none"
        raise ArgumentError(
            f"batch={batch} was given, and no input leaves its first dimension open: {known}",
            argument="batch",
            where=f"step {name!r}",
            remedy="leave it out, or give a target that leaves it open",
        )


def _trace_model(model: Any, mode: Literal["train", "infer"], inputs: Any, feeds: Mapping[str, Feed], batch: int | None) -> TracedStep:
    tf = import_tensorflow()
    name = f"{name_of(model)} ({'training step' if mode == 'train' else 'inference'})"
    step = keras_step(model, mode)
    remedy = f"give the data as fit takes it: inputs={'(x, y)' if mode == 'train' else 'x'}, or a dataset of such batches"

    if inputs is None:
        declared = tf.nest.flatten(declared_inputs(model, feeds))
        remedy = f"give shapes that go together: {feeds_to_give(spec.name for spec in declared)}"
    cause = "they are not what its inputs, its loss or its metrics take"
    if batch is not None and batch > _LARGEST:
        cause, remedy = f"operations of TensorFlow count to {_LARGEST}", "give a smaller batch, or a smaller budget"
    with user_code(
        f"tracing {name}",
        "the model cannot be traced with these inputs",
        argument="feeds" if inputs is None else "inputs",
        where=f"model {model.name!r}",
        cause=cause,
        remedy=remedy,
    ):
        named = None
        if inputs is None:
            data = keras_specs(model, mode, feeds, batch)
            if mode == "train":
                # TensorFlow traces a function that makes variables a second time.
                with suppress(Exception):  # whatever is wrong, tracing says it
                    build_as_fit(model, data[0])
        else:
            check_targets(model, mode, inputs)
            data = keras_data(model, mode, inputs, are_specs=_holds_specs(inputs))
            named = named_data(model, data[0])
        signature = data if named is None else (named,)
        step.get_concrete_function(*signature)
    traced = trace(step, inputs=signature)
    if named is not None and not _holds_specs(inputs):
        traced = resolve(traced, data)
    for variable in model.variables:  # one that was made while tracing has lost its layer's name
        variable.value.path = variable.path
    return replace(traced, name=name, owner=model)


def _holds_specs(inputs: Any) -> bool:
    tf = import_tensorflow()
    return any(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(split_inputs(inputs)))


def _trace_with_feeds(target: Any, feeds: Mapping[str, Feed]) -> Any:
    tf = import_tensorflow()
    check_step(target, "target")
    if isinstance(target, tf.types.experimental.ConcreteFunction):
        return target
    if getattr(target, "input_signature", None) is not None:
        return target.get_concrete_function()
    traced = traces_of(target)
    signature = python_inspect.signature(target.python_function)
    parameters = list(signature.parameters.values())
    known, variadic = [p.name for p in parameters], (python_inspect.Parameter.VAR_POSITIONAL, python_inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic and p.name != "self"]
    if not feeds:
        if len(traced) == 1:
            return traced[0]
        if traced:
            listed = "; ".join(", ".join(f"{t.name.split(':')[0]}{format_shape(tuple(t.shape))}" for t in arguments_of(f)) for f in traced)
            raise ArgumentError(
                f"the step was called with {len(traced)} signatures: {listed}",
                argument="target",
                cause="a tf.function is traced again for each set of shapes and dtypes",
                remedy="say which one, with inputs=(...) or feeds={name: shape}",
                code=ErrorCode.OPEN_INPUT,
            )
        if needed:
            raise ArgumentError(
                "the step has not been traced yet, so the shapes of its inputs are not known",
                argument="feeds",
                cause="a batch size alone does not say the other sizes",
                remedy=f"give {feeds_to_give(needed)}, or example inputs",
                item=needed[0],
                code=ErrorCode.OPEN_INPUT,
            )
    strange = [key for key in feeds if key not in known]
    others = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
    if not others:
        check_known(strange, known, "the step has", "argument")
    missing = [name for name in needed if name not in feeds]
    if missing:
        raise UnknownShapeError(
            f"the shape of argument {missing[0]!r} is not known",
            argument="feeds",
            item=missing[0],
            remedy=f"add it to feeds: {{{missing[0]!r}: (...)}}",
            code=ErrorCode.OPEN_INPUT,
        )
    dtypes = {t.name.split(":")[0]: t.dtype for f in traced for t in arguments_of(f)}

    def spec(path: str, feed: Feed) -> Any:
        if isinstance(feed, tf.TypeSpec) or is_value(feed):
            return feed
        name = re.sub(r"\W+", "_", path).strip("_")
        return tf.TensorSpec(as_shape(path, feed), getattr(feed, "dtype", dtypes.get(name, tf.float32)), name=name)

    specs = map_feeds(spec, feeds)
    arguments = {key: specs[key] for key in specs if key not in strange} | (
        {others: {key: specs[key] for key in strange}} if strange else {}
    )
    call = python_inspect.BoundArguments(signature, arguments)

    guessed = [path for path, feed in leaves_of(feeds).items() if not (hasattr(feed, "dtype") or is_value(feed)) and path not in dtypes]
    causes = [f"the dtype of {', '.join(guessed)} was taken for float32"] if guessed else []
    causes += [f"{path}={feed} was taken as a number, not as a shape" for path, feed in leaves_of(feeds).items() if is_value(feed)]
    with user_code(
        f"tracing {name_of(target)!r}",
        "the step cannot be traced with these feeds",
        argument="feeds",
        cause="; ".join(causes),
        remedy='give shapes that fit, and dtypes other than float32: feeds={"y": tf.TensorSpec((8,), tf.int32)}, or example inputs',
        item=next(iter(feeds)) if len(feeds) == 1 else "",
        code=ErrorCode.UNKNOWN_DTYPE,
    ):
        return target.get_concrete_function(*call.args, **call.kwargs)


def _has_signature(target: Any) -> bool:
    """Whether the target declares its arguments, so that feeds only bind open dimensions."""
    concrete = isinstance(target, import_tensorflow().types.experimental.ConcreteFunction)
    return concrete or getattr(target, "input_signature", None) is not None


def declared_shapes(target: Any, feeds: Mapping[str, Feed]) -> dict[str, tuple[int | None, ...] | None]:
    """Return the shape by argument, as feeds and target declare it; None for an open dimension or an open shape.

    Raises `ArgumentError` if the target cannot be traced, or does not fit the feeds.
    """
    fed_shapes = {path: declared_shape(path, feed) for path, feed in leaves_of(feeds).items() if not is_value(feed)}
    if fed_shapes and not _has_signature(target):
        return fed_shapes
    function = _trace_with_feeds(target, {})
    shapes = argument_shapes(function)
    declared = dict(zip(argument_names(function), shapes, strict=True))
    check_known(fed_shapes, declared, "the step has", "argument")
    return declared | fed_shapes


def _bound(name: str, function: Any, feeds: Mapping[str, Feed], owner: Any, open_batch: int | None) -> TracedStep:
    shapes = argument_shapes(function)
    names = argument_names(function)
    parts, (entries, _) = flat_arguments(function), sparse_sizes(function)
    fed: dict[int, tuple[int, ...]] = {}
    for key, feed in feeds.items():
        where = [names.index(key)] if key in names and not is_nested(feed) else [k for k, part in enumerate(parts) if part[0] == key]
        given = {path: leaf for path, leaf in leaves_of({key: feed}).items() if where or not is_value(leaf)}
        leaves = {path: () if is_value(leaf) else as_shape(path, leaf) for path, leaf in given.items()}
        if len(where) != len(leaves) or not (where or key in function.function_type.parameters):
            raise ArgumentError(
                f"argument {key!r} holds {len(where)} tensors, and the feed {len(leaves)}"
                if where
                else f"the step has no argument {key!r}",
                argument="feeds",
                item=key,
                remedy=f"it has {', '.join(names)}",
                code=None if where else ErrorCode.UNKNOWN_INPUT,
            )
        fed.update(zip(where, leaves.values(), strict=True))
    bound: list[tuple[int, ...]] = []
    for k, (key, shape) in enumerate(zip(names, shapes, strict=True)):
        given = fed.get(k)
        if not agree(given, shape):
            raise ArgumentError(f"the feed {given} does not fit {format_shape(shape)}", argument="feeds", item=key)
        feed: Any = feeds.get(key)
        own = function.inputs[k].dtype
        if isinstance(feed, import_tensorflow().TensorSpec) and feed.dtype != own:
            raise ArgumentError(f"the feed is of type {feed.dtype.name}, and the step takes {own.name}", argument="feeds", item=key)
        shape = given if given is not None else entries.get(k, shape)
        if shape and shape[0] is None and open_batch is not None:
            shape = (open_batch, *shape[1:])
        if shape is None or None in shape:
            cause, what = "the signature leaves dimensions open, and memory depends on them", f"has the shape {format_shape(shape)}"
            composite = k < len(parts) and not isinstance(parts[k][1], import_tensorflow().TensorSpec)
            if composite:
                key, spec, _ = parts[k]
                cause, what = "how many values it holds, and in which rows, is known from data alone", f"is {spec}, which leaves sizes open"
            raise open_input(f"argument {key!r} {what}", key, shape, where=f"step {name!r}", cause=cause, by_inputs=composite)
        bound.append(tuple(d for d in shape if d is not None))
    return TracedStep(name, function, tuple(bound), owner=owner)
