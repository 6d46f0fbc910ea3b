"""The values of `feeds=`: by argument a shape, a spec, a tensor or a Python value, or a list, tuple or mapping of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar, cast

from graphwright.errors import ArgumentError, ErrorCode, GraphwrightError, UnknownShapeError
from graphwright.ir.dtypes import Shape
from graphwright.source.tensorflow_import import import_tensorflow

Answer = TypeVar("Answer")
Feed = Any
"""A shape as a tuple; a `tf.TensorSpec` where the dtype is not the one of the signature, or float32; a tensor; True, False, None, a number
or a text, which is the value of the argument; or a list, a tuple or a mapping of feeds, where the argument is one."""


def map_feeds(change: Callable[[str, Feed], Any], feeds: Mapping[str, Feed]) -> dict[str, Any]:
    """Return feeds with each leaf replaced by `change(path, leaf)`.

    >>> map_feeds(lambda path, shape: (path, len(shape)), {"x": (8, 3), "pair": [(2,), {"k": ()}]})
    {'x': ('x', 2), 'pair': [('pair[0]', 1), {'k': ('pair[1][k]', 0)}]}
    """
    return {key: _mapped(change, str(key), feed) for key, feed in feeds.items()}


def leaves_of(feeds: Mapping[str, Feed]) -> dict[str, Feed]:
    """Return the leaves of feeds by path, in the order in which TensorFlow flattens arguments.

    >>> leaves_of({"pair": {"b": (8, 3), "a": (2,)}})
    {'pair[a]': (2,), 'pair[b]': (8, 3)}
    """
    leaves: dict[str, Feed] = {}
    map_feeds(leaves.__setitem__, feeds)
    return leaves


def _mapped(change: Callable[[str, Feed], Any], path: str, feed: Feed) -> Any:
    if isinstance(feed, Mapping):
        entries = cast("Mapping[Any, Feed]", feed)
        return {key: _mapped(change, f"{path}[{key}]", entries[key]) for key in sorted(entries)}
    if not is_nested(feed):
        return change(path, feed)
    parts = [_mapped(change, f"{path}[{k}]", part) for k, part in enumerate(feed)]
    return type(feed)(*parts) if hasattr(feed, "_fields") else type(feed)(parts)


def ask_each(questions: Sequence[Callable[[dict[str, Feed] | None], Answer]], feeds: Mapping[str, Feed] | None) -> list[Answer]:
    """Ask a question about several targets, each with the feeds of its own inputs.

    Raises:
        ArgumentError: a feed names an input of none of them; or the error of a question.
    """
    answers: list[Answer] = []
    refused: list[GraphwrightError] = []
    for question in questions:
        own = dict(feeds or {})
        while True:
            try:
                answers.append(question(own or None))
                break
            except GraphwrightError as error:
                if error.code is not ErrorCode.UNKNOWN_INPUT or error.item not in own:
                    raise refused[0] if refused and not own else error from None
                del own[error.item]
                refused.append(error)
    items = [error.item for error in refused]
    for error in refused:
        if items.count(error.item) == len(questions):
            raise error
    return answers


def is_nested(feed: Feed) -> bool:
    """Whether it is a structure of feeds: a mapping, or a list or tuple that is no shape."""
    if not isinstance(feed, list | tuple):
        return isinstance(feed, Mapping)
    parts = cast("list[Any] | tuple[Any, ...]", feed)
    others = [part for part in parts if not isinstance(part, Integral)]  # sizes of NumPy have shapes
    return any(isinstance(part, list | tuple | Mapping) or hasattr(part, "shape") or hasattr(part, "rank") for part in others)


def is_value(feed: Feed) -> bool:
    """Whether it is a Python value for the argument, not a shape."""
    return feed is None or isinstance(feed, bool | int | float | str)


def resized(feed: Feed, shape: Shape) -> Feed:
    """Return a feed with another shape and the same dtype."""
    if isinstance(feed, import_tensorflow().TensorSpec):
        return type(feed)(shape, feed.dtype, feed.name)
    return type(feed)(shape, feed.dtype) if hasattr(feed, "dtype") and not hasattr(feed, "numpy") else shape


def closed(feed: Feed, size: int) -> Feed:
    """Return a shape or spec with this size for each open dimension."""
    shape = feed.shape if isinstance(feed, import_tensorflow().TensorSpec) else feed
    if not isinstance(feed, tuple | list) and (shape is feed or shape.rank is None):
        return feed
    return resized(feed, tuple(size if d is None else d for d in cast("Sequence[int | None]", shape)))


def as_shape(path: str, feed: Feed) -> tuple[int, ...]:
    """Return the shape of a feed; raises `ArgumentError` if a dimension is open."""
    dims = declared_shape(path, feed)
    if dims is None or None in dims:
        raise ArgumentError(f"the feed {dims} leaves a size open", argument="feeds", item=path, remedy="give whole numbers, or batch=...")
    return tuple(d for d in dims if d is not None)


def declared_shape(path: str, feed: Feed) -> Shape:
    """Return the shape of a feed, None for open dimensions, or None for an unknown rank; raises `ArgumentError` if it is none."""
    shape: Any = getattr(feed, "shape", feed)
    if getattr(shape, "rank", 0) is None:
        return None
    try:
        dims: tuple[Any, ...] = tuple(shape.as_list() if hasattr(shape, "as_list") else shape)
        for d in dims:
            if d is not None and (isinstance(d, bool) or not isinstance(d, Integral) or d < 0):
                raise ValueError(d)
        return tuple(d if d is None else int(d) for d in dims)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the feed {feed!r} is not a shape",
            argument="feeds",
            item=path,
            remedy="give a tuple such as (8, 572, 572, 1), None where a dimension is open, or a tf.TensorSpec",
        ) from error


def open_input(what: str, name: str, shape: Shape, *, where: str, cause: str, by_inputs: bool = False) -> UnknownShapeError:
    """Return the error for an input with an open dimension."""
    only_batch = bool(shape) and None not in shape[1:]
    remedy = f"{'give batch=..., or ' if only_batch else ''}bind it: feeds={{{name!r}: (...)}}, or give example inputs"
    if by_inputs:
        only_batch, remedy = False, "give example inputs, inputs=(...), with a tensor for each argument; a command takes none"
    code = ErrorCode.OPEN_BATCH if only_batch else None if by_inputs else ErrorCode.OPEN_INPUT
    return UnknownShapeError(what, argument="feeds", item=name, where=where, cause=cause, remedy=remedy, code=code)


def check_known(feeds: Iterable[str], known: Iterable[str], who: str, what: str = "input") -> None:
    """Raise `ArgumentError` for an unknown feed; `who` takes it, such as "the step has"."""
    names = list(known)
    strange = next((name for name in feeds if name not in names and name.removesuffix(":0") not in names), None)
    if strange is not None:
        remedy = f"it {who.rpartition(' ')[2]} {', '.join(names) or 'none'}"
        raise ArgumentError(f"{who} no {what} {strange!r}", argument="feeds", item=strange, remedy=remedy, code=ErrorCode.UNKNOWN_INPUT)
