"""What `feeds=` holds: by argument a shape, a spec, a tensor or a Python value, or a list, a tuple or a mapping of such."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from graphwright.errors import ArgumentError
from graphwright.source.tensorflow_import import import_tensorflow

Feed = Any
"""A shape as a tuple; a `tf.TensorSpec` where the dtype is not the one of the signature, or float32; a tensor; True, False, None, a float
or a text for what is not a tensor; or a list, a tuple or a mapping of feeds, where the argument is one."""


def map_feeds(change: Callable[[str, Feed], Any], feeds: Mapping[str, Feed]) -> dict[str, Any]:
    """Feeds with each shape, spec, tensor or Python value replaced by what `change` makes of its path and itself.

    >>> map_feeds(lambda path, shape: (path, len(shape)), {"x": (8, 3), "pair": [(2,), {"k": ()}]})
    {'x': ('x', 2), 'pair': [('pair[0]', 1), {'k': ('pair[1][k]', 0)}]}
    """
    return {key: _mapped(change, str(key), feed) for key, feed in feeds.items()}


def leaves_of(feeds: Mapping[str, Feed]) -> dict[str, Feed]:
    """The shapes, specs, tensors and Python values in feeds by path, in the order in which TensorFlow flattens the arguments.

    >>> leaves_of({"pair": {"b": (8, 3), "a": (2,)}})
    {'pair[a]': (2,), 'pair[b]': (8, 3)}
    """
    found: dict[str, Feed] = {}
    map_feeds(found.__setitem__, feeds)
    return found


def _mapped(change: Callable[[str, Feed], Any], path: str, feed: Feed) -> Any:
    if isinstance(feed, Mapping):
        entries = cast("Mapping[Any, Feed]", feed)
        return {key: _mapped(change, f"{path}[{key}]", entries[key]) for key in sorted(entries)}
    if not is_nested(feed):
        return change(path, feed)
    parts = [_mapped(change, f"{path}[{k}]", part) for k, part in enumerate(feed)]
    return type(feed)(*parts) if hasattr(feed, "_fields") else type(feed)(parts)


def is_nested(feed: Feed) -> bool:
    """Whether it is a structure of feeds: a mapping, or a list or a tuple in which not all are sizes."""
    if not isinstance(feed, list | tuple):
        return isinstance(feed, Mapping)
    parts = cast("list[Any] | tuple[Any, ...]", feed)
    return any(isinstance(part, list | tuple | Mapping) or hasattr(part, "shape") or hasattr(part, "rank") for part in parts)


def is_value(feed: Feed) -> bool:
    """Whether it is a Python value that the argument gets, in place of a shape."""
    return feed is None or isinstance(feed, bool | float | str)


def closed(feed: Feed, size: int) -> Feed:
    """A shape or a spec with this size where a dimension is open."""
    tf = import_tensorflow()
    if isinstance(feed, tf.TensorSpec):
        return feed if feed.shape.rank is None else tf.TensorSpec([size if d is None else d for d in feed.shape], feed.dtype, feed.name)
    if not isinstance(feed, tuple | list):
        return feed
    return tuple(size if d is None else d for d in cast("Sequence[int | None]", feed))


def as_shape(path: str, feed: Feed) -> tuple[int, ...]:
    """The shape of a feed, all of whose dimensions are known.

    Raises:
        ArgumentError: it is not a shape, or leaves a dimension open.
    """
    try:
        dims = declared_shape(feed)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the feed {feed!r} is not a shape",
            argument="feeds",
            item=path,
            remedy="give a tuple such as (8, 572, 572, 1), or a tf.TensorSpec",
        ) from error
    known: list[Any] = [None] if dims is None else [*dims]
    for d in known:
        if not isinstance(d, int) or isinstance(d, bool) or d < 0:
            raise ArgumentError(
                f"the feed {dims} holds {d!r}, which is not a dimension", argument="feeds", item=path, remedy="give whole numbers"
            )
    return tuple(known)


def declared_shape(feed: Feed) -> tuple[int | None, ...] | None:
    """The shape of a feed; None where not even the number of dimensions is given.

    Raises:
        TypeError, ValueError: it is not a shape.
    """
    shape: Any = getattr(feed, "shape", feed)
    if getattr(shape, "rank", 0) is None:
        return None
    return tuple(shape.as_list() if hasattr(shape, "as_list") else shape)
