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


def read_json(path: Path) -> Record:
    """Return the object in a file; raise `FileFormatError` with the file, and the line that is not JSON."""
    try:
        data: Any = json.loads(read_given(path).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FileFormatError("the file is not UTF-8 text", where=str(path)) from error
    except json.JSONDecodeError as error:
        raise FileFormatError(f"the file is not JSON: {error.msg}", where=f"{path}, line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise FileFormatError("the file is nested too deeply", where=str(path), cause="the file may be malicious") from error
    except ValueError as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError("the file holds a number of thousands of digits", where=str(path)) from error  # which Python refuses to read
    if not isinstance(data, dict):
        raise FileFormatError(f"the file holds a {type(data).__name__}, not an object", where=str(path))
    return Record(path, data)


def write_json(path: Path, data: Mapping[str, object], *, indent: int | None = None) -> Path:
    with replaced_file(path) as stream:
        json.dump(data, stream, indent=indent, separators=(",", ":") if indent is None else None)
    return path


class Record:
    """An object in a file, whose fields are read by name and type; every error names file and field."""

    def __init__(self, path: Path, data: Any, place: str = "") -> None:
        self.path, self._place = path, place
        if not isinstance(data, dict):
            raise FileFormatError(f"field '{place}' must be an object, it is {data!r:.60}", where=str(path))
        self.data = cast(dict[str, Any], data)

    def fail(self, name: str, what: str) -> FileFormatError:
        return FileFormatError(f"field '{self._at(name)}' {what}", where=str(self.path))

    def value(self, name: str) -> Any:
        if name not in self.data:
            raise self.fail(name, "is missing")
        return self.data[name]

    def record(self, name: str) -> Record:
        return Record(self.path, self.value(name), self._at(name))

    def records(self, name: str) -> list[Record]:
        return [Record(self.path, row, self._at(f"{name}[{k}]")) for k, row in enumerate(self.items(name))]

    def items(self, name: str) -> list[Any]:
        return self._list(self.value(name), name)

    def integer(self, name: str) -> int:
        return self._integer(self.value(name), name, LARGEST)

    def number(self, name: str) -> float:
        """Return a number from 0 to below `LARGEST`, so that sums stay finite."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, _NUMBER) or not 0 <= value < LARGEST:
            raise self.fail(name, f"must be a finite number that is not negative, it is {value!r:.60}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return text that is valid UTF-8 (JSON can spell lone surrogates)."""
        value = self.value(name) if default is None else self.data.get(name, default)
        if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
            raise self.fail(name, f"must be text of whole characters, it is {value!a:.60}")
        return value

    def indices(self, name: str, count: int) -> tuple[int, ...]:
        return self._integers(self.value(name), name, count)

    def pairs(self, name: str, count: int) -> tuple[tuple[int, int], ...]:
        pairs: list[tuple[int, int]] = []
        for k, value in enumerate(self.items(name)):
            pair = self._integers(value, f"{name}[{k}]", count)
            if len(pair) != 2:
                raise self.fail(f"{name}[{k}]", f"must be a pair of indices, it is {value!r:.60}")
            pairs.append((pair[0], pair[1]))
        return tuple(pairs)

    def _at(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _list(self, value: Any, name: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.fail(name, f"must be a list, it is {value!r:.60}")
        return cast(list[Any], value)

    def _integers(self, value: Any, name: str, count: int) -> tuple[int, ...]:
        return tuple(self._integer(item, f"{name}[{k}]", count) for k, item in enumerate(self._list(value, name)))

    def _integer(self, value: Any, name: str, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < high:
            raise self.fail(name, f"must be an integer from 0 to {high - 1}, it is {value!r:.60}")
        return value
