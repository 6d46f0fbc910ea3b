"""Values as JSON holds them: dataclasses as objects, tuples as lists, and no number that JSON has not. Results as a prompt shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast


def number(figure: float) -> float | int | None:
    """A figure for JSON: null for nan, and a whole number where it is one."""
    if not math.isfinite(figure):
        return None
    return int(figure) if figure == int(figure) else figure


def plain(value: Any) -> Any:
    """A value as JSON can hold it: what it says itself in `to_json`, else its fields, its items, or its text.

    >>> plain({"peak": 2.0, "time": math.nan, "shape": (8, None)})
    {'peak': 2, 'time': None, 'shape': [8, None]}
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    if hasattr(value, "to_json"):
        return plain(value.to_json())
    return fields_json(value) if is_dataclass(value) else str(value)


def fields_json(value: Any, *left_out: str, **called: str) -> dict[str, Any]:
    """The fields of a dataclass by name.

    Args:
        left_out: fields that do not appear.
        called: by field, under which other key it appears.
    """
    return {called.get(own.name, own.name): plain(getattr(value, own.name)) for own in fields(value) if own.name not in left_out}


class Result:
    """A value that users get: at a prompt it shows the first paragraph of its text, of at most five lines.

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
        """Its fields as plain numbers and text."""
        return fields_json(self)
