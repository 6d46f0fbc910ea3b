"""The user's lines of Python that made the operations of a live function, or that raised an error."""

import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from graphwright.errors import ArgumentError, GraphwrightError, origin_of
from graphwright.source.tensorflow_import import import_keras, import_tensorflow

_LIBRARIES = ("tensorflow", "keras", "tf_keras", "graphwright", "typer")
_HERE = f"{Path(__file__).parent.parent}/"
_PYTHON = f"{sysconfig.get_paths()['stdlib']}/"
_NOTE = "graphwright was "
_CONVERTED = "__autograph_generated_file"
_FRAME = re.compile(r'( *)File "([^"]+)", line (\d+)(?:, in (\S+))?')


def creation_lines(function: Any) -> Callable[[str], tuple[tuple[str, int, str], ...]]:
    """Return a function from an operation's name to file, line and function of the calls that made it, the outermost first.

    Only the user's frames count. Operations from files or C++, and those of called functions, have no lines. TensorFlow is slow here, so
    each operation is examined on request.
    """
    inner, tracing = _folders(), tuple(f"{_HERE}{room}/" for room in ("source", "step"))
    operations = {operation.name: operation for operation in getattr(function, "graph", function).get_operations()}
    is_users: dict[str, bool | None] = {}  # None for files of graphwright that trace

    @cache
    def lines_of(name: str) -> tuple[tuple[str, int, str], ...]:
        lines: list[tuple[str, int, str]] = []
        for frame in operations[name].traceback.get_user_frames() if name in operations and operations[name].traceback else ():
            file = str(frame.filename)
            if file not in is_users:
                is_users[file] = None if file.startswith(tracing) else _is_of_user(file, inner)
            if is_users[file] is None:
                lines.clear()
            elif is_users[file]:
                lines.append((file, int(frame.lineno), str(frame.name)))
        return tuple(lines)

    return lines_of


def innermost_line(function: Any) -> Callable[[str], str]:
    """Return a function from an operation's name to the user's line that made it or its scope; "" where it is not known.

    A line reads `net.py:12 call`; files below the current folder are relative to it.
    """
    lines_of, place = creation_lines(function), cache(_place)

    def line_of(name: str) -> str:
        frames = next((lines for scope in scopes(name) if (lines := lines_of(scope))), ())
        own = next((frame for frame in reversed(frames) if "-packages/" not in frame[0]), None)
        return "" if own is None else place(*own)

    return line_of


def _place(file: str, line: int | str, caller: str) -> str:
    here = f"{Path.cwd()}/"
    return f"{file.removeprefix(here) if file.startswith(here) else '/'.join(Path(file).parts[-2:])}:{line} {caller}"


def scopes(name: str) -> Iterator[str]:
    """Yield the name and its scopes, the innermost first. Nodes inlined from loops and calls have the scope of these.

    >>> list(scopes("net/dense/MatMul"))
    ['net/dense/MatMul', 'net/dense', 'net']
    """
    name = name.removeprefix("Func/")
    while name:
        yield name
        name = name.rpartition("/")[0]


def _folders() -> tuple[str, ...]:
    modules = [sys.modules[name] for name in _LIBRARIES if name in sys.modules]
    files = [Path(str(module.__file__)).parent for module in modules if getattr(module, "__file__", None)]
    return (*(f"{folder}/" for folder in files), "<frozen ")


def _is_of_user(file: str, inner: tuple[str, ...]) -> bool:
    return not file.startswith(inner) and (not file.startswith(_PYTHON) or "-packages/" in file) and _CONVERTED not in file


class user_code:  # noqa: N801 - it is called like a function
    """Wrap a call of the user's code: its errors keep only the user's frames, and get a note of what graphwright was doing.

    Args:
        doing: the words of that note.
        refused: the message of an `ArgumentError` that replaces errors of TensorFlow or Keras about the values passed to the code.
        words: the arguments of that error.
    """

    def __init__(self, doing: str, refused: str = "", *, where: str = "", **words: Any) -> None:
        self._doing, self._refused, self._where, self._words = doing, refused, where, words

    def __enter__(self) -> None:
        self._filters = [f for f in (import_keras().config, import_tensorflow().debugging) if f.is_traceback_filtering_enabled()]
        for filters in self._filters:  # or nobody knows who raised it
            filters.disable_traceback_filtering()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for filters in self._filters:
            filters.enable_traceback_filtering()
        if not isinstance(error, Exception) or isinstance(error, GraphwrightError) or raised_by_user(error):
            return
        inner = _folders()
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(origin_of(error).__traceback__)]
        last = next((file for file in reversed(files) if not file.startswith((_PYTHON, "<frozen ")) or "-packages/" in file), "")
        of_tensorflow, place = import_tensorflow().errors.OpError, _place_of_error(error)
        if last.startswith(_HERE) or not (self._refused or place or isinstance(error, of_tensorflow)):
            return  # a fault of graphwright
        error.add_note(f"{_NOTE}{self._doing}")
        trace = None
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
            if _is_of_user(frame.f_code.co_filename, inner):
                trace = TracebackType(trace, frame, frame.f_lasti, line)
        error = error.with_traceback(trace)
        is_of_user = _CONVERTED in last or _is_of_user(last, inner)
        if self._refused and isinstance(error, TypeError | ValueError | RuntimeError | of_tensorflow) and not is_of_user:
            reason = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            where = ", ".join(filter(None, (self._where, place)))
            raise ArgumentError(f"{self._refused}: {reason}", where=where, **self._words) from error
        raise error


def raised_by_user(error: BaseException) -> bool:
    return any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ()))


def _place_of_error(error: BaseException) -> str:
    """Return the user's line that raised an error; "" where it is unknown. AutoGraph gives its lines only in the message."""
    matches = _FRAME.finditer("".join(traceback.format_exception(error)))
    inner, place = _folders(), ""
    for frame in matches:
        if _is_of_user(frame[2], inner):
            place = _place(frame[2], frame[3], frame[4] or "")
    return place


def users_traceback(error: BaseException) -> str:
    """Return the traceback of the user's code as Python prints it, without other frames, below graphwright's note."""
    notes, lines, first, hidden, inner = getattr(error, "__notes__", []), list[str](), 0, None, _folders()
    files = [frame.f_code.co_filename.startswith(_HERE) for frame, _ in traceback.walk_tb(error.__traceback__)]
    behind = files[::-1].index(True) if True in files else len(files)
    for line in "".join(traceback.format_exception(error, limit=-behind, chain=False)).splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            hidden = None if _is_of_user(frame[2], inner) else len(frame[1])
            if frame[2].startswith(_HERE):
                del lines[first:]  # what called graphwright
        elif hidden is not None and line and len(line) - len(line.lstrip()) <= hidden:
            hidden = None
        if hidden is None and line not in notes:
            lines.append(re.sub(r"^tensorflow\.[\w.]+\.(MultilineMessage)?", "", line))
            first = first if line.startswith(" ") or not line else len(lines)
    return "\n".join([*(note for note in notes if note.startswith(_NOTE)), *lines])
