"""Which lines of Python made the operations of a function that is still there."""

import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

_LIBRARIES = ("tensorflow", "keras", "tf_keras", "graphwright")


def creation_lines(function: Any) -> Callable[[str], tuple[tuple[str, int, str], ...]]:
    """A function that gives file, line and function of the calls that made an operation, the outermost first, by the operation's name.

    Frames of TensorFlow, Keras, graphwright and of what runs Python itself are left out, and those that asked graphwright to trace. What
    was read from a file, or made in C++, has no lines. Operations of functions that are called have none; the call has. Each operation
    is looked at when it is asked for, as TensorFlow takes long to tell the lines of all.

    Args:
        function: a `ConcreteFunction` or a `tf.Graph`.

    >>> import tensorflow as tf
    >>> def double(x):
    ...     return x + x
    >>> lines_of = creation_lines(tf.function(double, autograph=False).get_concrete_function(tf.TensorSpec([2])))
    >>> lines_of("add")[-1][1:], lines_of("sub")
    ((2, 'double'), ())
    """
    inner, python = _folders(), f"{sysconfig.get_paths()['stdlib']}/"
    tracing = tuple(f"{Path(__file__).parent.parent / room}/" for room in ("source", "step"))
    operations = {operation.name: operation for operation in getattr(function, "graph", function).get_operations()}
    kept: dict[str, bool] = {}

    @cache
    def lines_of(name: str) -> tuple[tuple[str, int, str], ...]:
        lines: list[tuple[str, int, str]] = []
        for frame in operations[name].traceback.get_user_frames() if name in operations and operations[name].traceback else ():
            file = str(frame.filename)
            if file not in kept:
                kept[file] = not file.startswith(inner) and (not file.startswith(python) or "-packages/" in file)
            if file.startswith(tracing):
                lines.clear()
            if kept[file]:
                lines.append((file, int(frame.lineno), str(frame.name)))
        return tuple(lines)

    return lines_of


def innermost_line(function: Any) -> Callable[[str], str]:
    """A function that gives the user's line that made an operation, or the scope that it lies in, by name; "" where it is not known.

    A line reads `net.py:12 call`; files below the current folder are relative to it.

    >>> import tensorflow as tf
    >>> def double(x):
    ...     return x + x
    >>> line_of = innermost_line(tf.function(double, autograph=False).get_concrete_function(tf.TensorSpec([2])))
    >>> line_of("add/inner").endswith(":2 double"), line_of("sub")
    (True, '')
    """
    here, lines_of = f"{Path.cwd()}/", creation_lines(function)

    def line_of(name: str) -> str:
        found = next((lines for scope in scopes(name) if (lines := lines_of(scope))), None)
        if found is None:
            return ""
        file, line, caller = found[-1]
        return f"{file.removeprefix(here) if file.startswith(here) else '/'.join(Path(file).parts[-2:])}:{line} {caller}"

    return line_of


def scopes(name: str) -> Iterator[str]:
    """The name and the scopes in which it lies, the innermost first. Loops and calls leave theirs to what was in them.

    >>> list(scopes("net/dense/MatMul"))
    ['net/dense/MatMul', 'net/dense', 'net']
    """
    name = name.removeprefix("Func/")
    while name:
        yield name
        name = name.rpartition("/")[0]


def _folders() -> tuple[str, ...]:
    """Where frames of the libraries lie that make operations for the user."""
    modules = [sys.modules[name] for name in _LIBRARIES if name in sys.modules]
    files = [Path(str(module.__file__)).parent for module in modules if getattr(module, "__file__", None)]
    return (*(f"{folder}/" for folder in files), "<frozen ")
