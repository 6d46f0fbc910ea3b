"""JSON files that are checked field by field when they are read, and replaced as a whole when they are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from graphwright.errors import FileFormatError
from graphwright.files import read_given, replaced_file

_NUMBER = (int, float)
LARGEST = 2**63
"""Below it are all numbers in a file: bytes of a buffer, seconds of a task."""


def read_json(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
        FileFormatError: naming the file, and the line where it is not JSON.
    """
    try:
        data: Any = json.loads(read_given(path).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FileFormatError("is not UTF-8 text", where=str(path)) from error
    except json.JSONDecodeError as error:
        raise FileFormatError(f"is not JSON: {error.msg}", where=f"{path}, line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise FileFormatError("is nested too deeply", where=str(path), cause="the file was made to do harm") from error
    except ValueError as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError("holds a number of thousands of digits", where=str(path)) from error  # which Python refuses to read
    if not isinstance(data, dict):
        raise FileFormatError(f"holds a {type(data).__name__}, not an object", where=str(path))
    return cast(dict[str, Any], data)


def write_json(path: Path, data: Mapping[str, object], *, indent: int | None = None) -> Path:
    """Write an object; a file that was there is replaced as a whole, or stays as it was."""
    with replaced_file(path) as stream:
        json.dump(data, stream, indent=indent, separators=(",", ":") if indent is None else None)
    return path


class FieldReader:
    """Typed access to the fields of a file; every failure names file and field."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fail(self, field: str, what: str) -> FileFormatError:
        """The error that says what is wrong with a field."""
        return FileFormatError(f"field '{field}' {what}", where=str(self.path))

    def get(self, data: dict[str, Any], name: str, field: str) -> Any:
        """A field that must be there; `field` is how messages name it."""
        if name not in data:
            raise self.fail(field, "is missing")
        return data[name]

    def items(self, value: Any, field: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.fail(field, f"must be a list, it is {value!r:.60}")
        return cast(list[Any], value)

    def record(self, value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(field, f"must be an object, it is {value!r:.60}")
        return cast(dict[str, Any], value)

    def integer(self, value: Any, field: str, *, low: int = 0, high: int = LARGEST) -> int:
        """A whole number from `low` on, below `high`."""
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
            raise self.fail(field, f"must be an integer from {low} to {high - 1}, it is {value!r:.60}")
        return value

    def number(self, value: Any, field: str) -> float:
        """A number that is not negative, below `LARGEST`: sums of them stay finite."""
        if isinstance(value, bool) or not isinstance(value, _NUMBER) or not 0 <= value < LARGEST:
            raise self.fail(field, f"must be a finite number that is not negative, it is {value!r:.60}")
        return value

    def text(self, value: Any, field: str) -> str:
        """Text that can be written as UTF-8: JSON can spell halves of characters, which are none."""
        if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
            raise self.fail(field, f"must be text of whole characters, it is {value!a:.60}")
        return value

    def flag(self, value: Any, field: str) -> bool:
        if not isinstance(value, bool):
            raise self.fail(field, f"must be true or false, it is {value!r:.60}")
        return value

    def indices(self, value: Any, field: str, count: int) -> tuple[int, ...]:
        """A list of whole numbers below `count`."""
        return tuple(self.integer(item, f"{field}[{place}]", high=count) for place, item in enumerate(self.items(value, field)))

    def pair(self, value: Any, field: str, count: int) -> tuple[int, int]:
        """Two whole numbers below `count`."""
        found = self.indices(value, field, count)
        if len(found) != 2:
            raise self.fail(field, f"must be a pair of indices, it is {value!r:.60}")
        return found[0], found[1]
