"""Values as JSON: dataclasses as objects, tuples as lists, and no number that JSON does not have. A short `repr` of results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

_LARGEST = 2**63


def number(figure: float) -> float | int | None:
    """Convert a figure to JSON: null for nan and infinity, and a whole number where it is one."""
    if not math.isfinite(figure):
        return None
    return int(figure) if figure == int(figure) else figure


def plain(value: Any, *, whole: bool = False) -> Any:
    """Convert a value to JSON: by its `to_json`, else its fields, its items, or its text. With `whole`, all fields appear under their own
    names, whatever `to_json` does, for `from_plain`.

    >>> plain({"peak": 2.0, "time": math.nan, "shape": (8, None)})
    {'peak': 2, 'time': None, 'shape': [8, None]}
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, whole=whole) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item, whole=whole) for item in cast("list[Any]", value)]
    if whole and is_dataclass(value):
        return {own.name: plain(getattr(value, own.name), whole=True) for own in fields(value)}
    if hasattr(value, "to_json"):
        return plain(value.to_json())
    return fields_json(value) if is_dataclass(value) else str(value)


def fields_json(value: Any, *left_out: str, **called: str) -> dict[str, Any]:
    """Return the fields of a dataclass by name, except `left_out`; `called` gives other keys."""
    return {called.get(own.name, own.name): plain(getattr(value, own.name)) for own in fields(value) if own.name not in left_out}


def from_plain(kind: Any, data: Any, place: str = "", **known: Any) -> Any:
    """Make a value of a type from the result of `plain(value, whole=True)`; raise `TypeError` where the data do not fit.

    Args:
        kind: a dataclass, or the annotation of a field.
        place: of the value, for errors.
        known: types by name that annotations name and modules do not.

    >>> from graphwright.analyze.measurement import Measurement
    >>> from_plain(Measurement | None, {"peak_bytes": 5, "resident_bytes": 1, "time_s": None, "how": "by hand"}).time_s
    nan
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if data is None and NoneType in inner:
            return None
        fitting = [of for of in inner if is_dataclass(of) or get_origin(of) or (isinstance(data, of) and not isinstance(data, bool))]
        if fitting:
            return from_plain(fitting[0], data, place, **known)
    elif origin is tuple and isinstance(data, list):
        return tuple(from_plain(inner[0], item, f"{place}[{k}]", **known) for k, item in enumerate(cast("list[Any]", data)))
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, dict):
        return {key: from_plain(inner[1], item, f"{place}.{key}", **known) for key, item in cast("dict[str, Any]", data).items()}
    elif origin is Literal and data in inner:
        return data
    elif is_dataclass(kind) and isinstance(data, dict):
        hints = get_type_hints(kind, localns=known)
        rows = cast("dict[str, Any]", data)
        if unknown := rows.keys() - {own.name for own in fields(kind)}:
            raise TypeError(f"field {place}.{min(unknown)} is not known")
        return cast("Any", kind)(**{name: from_plain(hints[name], item, f"{place}.{name}", **known) for name, item in rows.items()})
    elif isinstance(data, int | float) and not -_LARGEST < data < _LARGEST:  # nan is not either
        pass
    elif kind is float and (data is None or isinstance(data, int | float)) and not isinstance(data, bool):
        return math.nan if data is None else data
    elif isinstance(kind, type) and isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise TypeError(f"field {place} holds {data!r:.60}, not {getattr(kind, '__name__', kind)}")


class Result:
    """A result for users: at a prompt it shows the first paragraph of its text, at most five lines.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Count(Result):
    ...     nodes: tuple[str, ...]
    ...     def __str__(self):
    ...         return f"{len(self.nodes)} nodes.\\n\\n" + "\\n".join(self.nodes)
    >>> Count(("a", "b")), Count(("a",)).to_json()
    (<Count: 2 nodes.>, {'nodes': ['a']})
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = Result.__repr__  # a dataclass would write all of its fields, but keeps what the class has

    def __repr__(self) -> str:
        lines = str(self).partition("\n\n")[0].splitlines()
        return f"<{type(self).__name__}: " + "\n".join(lines[:5]) + (" ...>" if len(lines) > 5 else ">")

    def to_json(self) -> dict[str, object]:
        """Return its fields as plain numbers and text."""
        return fields_json(self)
