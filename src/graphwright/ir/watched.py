"""Dictionaries and lists that count their changes, so that an index computed from them is known to be out of date.

A graph must find out in O(1) whether a signature or a collection holds a node, while users change these as plain dictionaries and lists.
They change rarely, so one clock for all of them is enough.
"""

from typing import Any, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Clock:
    """A number that increases with each change."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time = 0


CLOCK = Clock()
"""Increases with each change of a signature or collection."""


class WatchedDict(dict[_K, _V]):
    """A dictionary that calls `changed` before each change."""

    def changed(self) -> None:
        CLOCK.time += 1


class WatchedList(list[_V]):
    """A list that calls `changed` before each change."""

    def changed(self) -> None:
        CLOCK.time += 1


def _watch(kind: type, names: str) -> None:
    for name in names.split():
        setattr(kind, name, _watched(getattr(kind, name)))


def _watched(method: Any) -> Any:
    def changing(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.changed()
        return method(self, *args, **kwargs)

    changing.__name__ = method.__name__
    changing.__doc__ = method.__doc__
    return changing


_watch(WatchedDict, "__setitem__ __delitem__ __ior__ clear pop popitem setdefault update")
_watch(WatchedList, "__setitem__ __delitem__ __iadd__ __imul__ append clear extend insert pop remove reverse sort")
