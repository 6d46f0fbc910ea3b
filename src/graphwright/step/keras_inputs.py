"""The inputs and targets of a Keras model as specs: by its graph, its earlier calls, or the feeds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from graphwright.errors import ArgumentError, ErrorCode
from graphwright.source.private_keras import call_with_specs, called_specs, input_name, input_structure, trained_on
from graphwright.source.tensorflow_import import import_keras, import_tensorflow
from graphwright.step.feeds import check_known, declared_shape, is_nested, leaves_of, map_feeds
from graphwright.step.keras_model import has_call

_WEIGHT = "sample_weight"
_WHOSE = {"y": "the model's targets are", _WEIGHT: "the weights of its examples are"}
_BESIDE_X = tuple(_WHOSE)


def keras_specs(model: Any, mode: Literal["train", "infer"], feeds: Mapping[str, Any], batch: int | None) -> tuple[Any, ...]:
    """Return specs of the arguments of `keras_step`; a model that is not built is built.

    Raises `ArgumentError` if the inputs are unknown, a feed names none of them, or a dimension is unknown.

    Args:
        feeds: shapes by input name, or `x` for all inputs; `y` for the target if the loss does not tell; `sample_weight` if there is one.
        batch: size of the first dimension if it is open, or known only from an earlier call.
    """
    tf = import_tensorflow()
    for path, feed in leaves_of(feeds).items():
        declared_shape(path, feed)
    structure = declared_inputs(model, feeds)
    tensors: list[Any] = tf.nest.flatten(structure)
    fed = inputs_fed(model, structure, feeds)

    flat: list[Any] = [_spec(t, fed.get(t.name), batch, model) for t in tensors]
    _refuse_open(
        model, {t.name: _shape(spec) for t, spec in zip(tensors, flat, strict=True) if not isinstance(fed.get(t.name), tf.TensorSpec)}
    )
    x: Any = tf.nest.pack_sequence_as(structure, flat)
    if mode == "infer":
        return (x,)
    first = flat[0].shape
    before = trained_on(model) if feeds.get("y") is None else None
    if not has_call(model):  # only its training and the feeds say what is beside x
        before = (x, *(_parts_of(feeds) if before is None else before[1:]))
    known = [_shape(t)[1:] for t in tf.nest.flatten(before[0])] if before is not None else []
    if before is not None and known == [_shape(t)[1:] for t in flat]:

        def resized(spec: Any) -> Any:
            return tf.TensorSpec([first[0], *spec.shape[1:]] if spec.shape.rank else spec.shape, spec.dtype)

        rest: Any = tf.nest.map_structure(resized, before[1:])
        weights: Any = rest[1:] or _weights(feeds, next(iter(rest), None), first[0])
        parts = [_parts_fed(what, part, feeds) for what, part in zip(_BESIDE_X, (*rest[:1], *weights), strict=False)]
        return (_packed(x, parts),)
    sparse = "sparse" in _loss_name(model)

    dtype = tf.int32 if sparse else tf.float32

    def target(t: Any) -> Any:
        if feeds.get("y") is not None:
            return _as_spec(feeds["y"], dtype)
        shape = [first[0], *t.shape[1:]]
        return tf.TensorSpec(shape[:-1] if sparse else shape, dtype)

    nested = is_nested(feeds.get("y"))
    y: Any = map_feeds(lambda _, given: _as_spec(given, dtype), feeds)["y"] if nested else tf.nest.map_structure(target, _outputs(model, x))
    parts = [_parts_fed(what, part, feeds) for what, part in zip(_BESIDE_X, (y, *_weights(feeds, y, first[0])), strict=False)]
    return (_packed(x, parts),)


def _packed(x: Any, parts: Sequence[Any]) -> Any:
    return import_keras().utils.pack_x_y_sample_weight(x, *parts)


def _parts_of(feeds: Mapping[str, Any]) -> list[Any]:
    parts: list[Any] = []
    for what in _BESIDE_X:
        one_by_one = [feed for key, feed in feeds.items() if key.startswith(f"{what}_")]
        if what in feeds or one_by_one:
            whole = {what: feeds.get(what, one_by_one)}
            parts.append(map_feeds(lambda _, part: _as_spec(part, import_tensorflow().float32), whole)[what])
    return parts


def named_data(model: Any, data: Any) -> Any:
    """Return specs of example data (as `fit` takes them) with the names of feeds; None if a part is no dense tensor."""
    tf = import_tensorflow()
    parts: list[Any] = list(cast("tuple[Any, ...]", data)) if isinstance(data, tuple) else [data]
    if not all(leaf is None or isinstance(leaf, tf.Tensor | tf.TensorSpec) for leaf in tf.nest.flatten(parts)):
        return None

    def spec(leaf: Any) -> Any:
        return None if leaf is None else tf.TensorSpec(leaf.shape, leaf.dtype)

    x, *rest = (tf.nest.map_structure(spec, part) for part in parts)
    own: list[Any] = tf.nest.flatten(input_structure(model)) if getattr(model, "inputs", None) else []
    if own and len(own) == len(tf.nest.flatten(x)) and not isinstance(x, Mapping):
        named = [tf.TensorSpec(given.shape, given.dtype, input_name(tensor)) for given, tensor in zip(tf.nest.flatten(x), own, strict=True)]
        x = tf.nest.pack_sequence_as(x, named)
    else:
        x = _named(_argument(model), x)
    rest = [_named(what, part, f"{what}_") for what, part in zip(_BESIDE_X, rest, strict=False)]
    return (x, *rest) if isinstance(data, tuple) else x


def _as_spec(given: Any, dtype: Any) -> Any:
    tf = import_tensorflow()
    return given if isinstance(given, tf.TensorSpec) else tf.TensorSpec(given, dtype)


def _weights(feeds: Mapping[str, Any], targets: Any, batch: int) -> tuple[Any, ...]:
    tf = import_tensorflow()
    if not any(_is_part(key, _WEIGHT) for key in feeds):
        return ()
    one, feed = tf.TensorSpec((batch,), tf.float32), feeds.get(_WEIGHT)
    if is_nested(feed):
        return (map_feeds(lambda _, part: _as_spec(part, one.dtype), {_WEIGHT: feed})[_WEIGHT],)

    def same(_: Any) -> Any:
        return one

    return (one if feed is not None else tf.nest.map_structure(same, targets),)


def _is_part(key: str, *whose: str) -> bool:
    return any(key == what or key.startswith(f"{what}_") for what in whose)


def _parts_fed(what: str, parts: Any, feeds: Mapping[str, Any]) -> Any:
    """Return targets or weights under their feed names: `y`; of several `y_0`, `y_1` or `y_KEY`."""
    tf = import_tensorflow()

    def fed(name: str, part: Any) -> Any:
        feed = feeds.get(name)
        spec: Any = feed if isinstance(feed, tf.TensorSpec) else tf.TensorSpec(part.shape if feed is None else feed, part.dtype)
        names.append(name)
        return tf.TensorSpec(spec.shape, spec.dtype, name)

    names: list[str] = []
    result = _named(what, parts, f"{what}_", fed)
    check_known({key: feed for key, feed in feeds.items() if key.startswith(f"{what}_")}, names, _WHOSE[what])
    return result


def declared_inputs(model: Any, feeds: Mapping[str, Any]) -> Any:
    """Return the inputs of a model as named specs, in the structure of its call.

    A subclassed model takes the data of the last `fit`, of its first call, or of the feeds. Raises `ArgumentError` if none is known.
    """
    tf = import_tensorflow()
    if getattr(model, "inputs", None):
        structure = input_structure(model)
        if not isinstance(structure, Mapping) and len(model.inputs) == 1:
            structure = model.inputs[0]
        return tf.nest.map_structure(_own_spec, structure)
    name = _argument(model)
    before, called = trained_on(model), called_specs(model)
    if before is not None or called is not None:
        return _named(name, called if before is None else before[0])
    data = {key: feed for key, feed in feeds.items() if not _is_part(key, *_BESIDE_X)}
    if not data:
        raise ArgumentError(
            "the model's inputs are not known",
            argument="feeds",
            where=f"model {model.name!r}",
            cause="a subclassed model knows them only when it was called or trained",
            remedy='give their shapes, feeds={"x": (8, ...)}, or example inputs, inputs=(x, y)',
            item="x",
            code=ErrorCode.OPEN_INPUT,
        )
    whole = next((data[key] for key in ("x", name) if key in data), None)

    def spec(path: str, feed: Any) -> Any:
        return tf.TensorSpec(declared_shape(path, feed), getattr(feed, "dtype", tf.float32))

    if whole is None:
        return _named(name, map_feeds(spec, data))
    return _named(name, map_feeds(spec, {name: whole})[name])


def inputs_fed(model: Any, structure: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the feed of each input by its name; `x` and the name of the model's argument mean all inputs."""
    tensors: list[Any] = import_tensorflow().nest.flatten(structure)
    names = [str(t.name) for t in tensors]
    check_known(feeds, [*names, *(n for n in feeds if n in ("x", _argument(model)) or _is_part(n, *_BESIDE_X))], "the model has")
    data: Any = next((feeds[key] for key in ("x", _argument(model)) if key in feeds and key not in names), None)
    if isinstance(data, Mapping):
        check_known(cast("Mapping[str, Any]", data), names, "the model has")
        return {**cast("Mapping[str, Any]", data), **feeds}
    if is_nested(data):  # in the order of the inputs
        return {**dict(zip(names, leaves_of({"x": data}).values(), strict=False)), **feeds}
    return {**(dict.fromkeys(names, data) if data is not None else {}), **feeds}


def _own_spec(tensor: Any) -> Any:
    return import_tensorflow().TensorSpec(tensor.shape, tensor.dtype, input_name(tensor))


def _argument(model: Any) -> str:
    if not has_call(model):
        return "x"
    return next(iter(inspect.signature(model.call).parameters), "x")


def _named(name: str, structure: Any, before_keys: str = "", of: Callable[[str, Any], Any] | None = None) -> Any:
    """Return the specs with names: the key in a mapping, else the argument's name."""
    tf = import_tensorflow()
    if isinstance(structure, tf.TensorSpec):
        return of(name, structure) if of is not None else tf.TensorSpec(structure.shape, structure.dtype, name)
    if isinstance(structure, Mapping):
        parts = cast("Mapping[str, Any]", structure)
        return {key: _named(f"{before_keys}{key}", part, before_keys, of) for key, part in parts.items()}
    if not is_nested(structure):
        return structure
    return type(structure)(_named(f"{name}_{k}", part, before_keys, of) for k, part in enumerate(structure))


def _outputs(model: Any, x: Any) -> Any:
    """Return the model's outputs for these inputs; the sizes of its own outputs may be open."""
    own = getattr(model, "outputs", None)
    if own and all(size is not None for output in own for size in output.shape[1:]):
        return own if len(own) > 1 else own[0]
    return model.compute_output_spec(import_tensorflow().nest.map_structure(_symbolic, x)) if own else call_with_specs(model, x)


def _symbolic(spec: Any) -> Any:
    return import_keras().KerasTensor(tuple(spec.shape), spec.dtype.name)


def _shape(spec: Any) -> list[int | None]:
    return spec.shape.as_list()


def _loss_name(model: Any) -> str:
    loss = getattr(model, "loss", None)
    return str(loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")).lower()


def _spec(tensor: Any, given: Any, batch: int | None, model: Any) -> Any:
    tf = import_tensorflow()
    if isinstance(given, tf.TensorSpec):
        return tf.TensorSpec(given.shape, given.dtype, tensor.name)
    shape: list[Any] = tensor.shape.as_list() if given is None else list(given)
    is_earlier = not getattr(model, "inputs", None)
    if given is None and batch is not None and shape and (shape[0] is None or is_earlier):
        shape[0] = batch
    return tf.TensorSpec(shape, tensor.dtype, name=tensor.name)


def feeds_to_give(names: Iterable[str]) -> str:
    """Return how a remedy writes the shapes of inputs.

    >>> feeds_to_give(["x", "mask"])
    "feeds={'x': (...), 'mask': (...)}"
    """
    return f"feeds={{{', '.join(f'{name!r}: (...)' for name in names)}}}"


def _refuse_open(model: Any, shapes: Mapping[str, Sequence[int | None]]) -> None:
    open_shapes = {name: tuple(shape) for name, shape in shapes.items() if None in shape}
    if not open_shapes:
        return
    (first, shape), *others = open_shapes.items()
    only_batch = all(None not in shape[1:] for shape in open_shapes.values())
    also = f"; {', '.join(repr(name) for name, _ in others)} {'leaves' if len(others) == 1 else 'leave'} sizes open, too" if others else ""
    raise ArgumentError(
        f"input {first!r} has the shape {shape}{also}",
        where=f"model {model.name!r}",
        cause="memory depends on the batch size"
        if only_batch
        else "the model leaves more than the batch size open, and memory depends on it",
        remedy=f"{'give batch=..., or ' if only_batch else 'give '}{feeds_to_give(open_shapes)}",
        item=first,
        code=ErrorCode.OPEN_BATCH if only_batch else ErrorCode.OPEN_INPUT,
    )
