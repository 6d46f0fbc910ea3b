"""Which lines of Python made the operations of a function that is still there."""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LIBRARIES = ("tensorflow", "keras", "tf_keras", "graphwright")


def creation_lines(function: Any) -> dict[str, tuple[tuple[str, int, str], ...]]:
    """File, line and function of the calls that made each operation of a function, or of a `tf.Graph`, the outermost first.

    Frames of TensorFlow, Keras, graphwright and of what runs Python itself are left out, and those that asked graphwright to trace. What
    was read from a file, or made in C++, has no lines. Operations of functions that it calls are not listed; the call is.

    >>> import tensorflow as tf
    >>> def double(x):
    ...     return x + x
    >>> lines = creation_lines(tf.function(double, autograph=False).get_concrete_function(tf.TensorSpec([2])))
    >>> lines["add"][-1][1:]
    (2, 'double')
    """
    inner, python = _folders(), f"{sysconfig.get_paths()['stdlib']}/"
    tracing = tuple(f"{Path(__file__).parent.parent / room}/" for room in ("source", "step"))
    kept: dict[str, bool] = {}
    found: dict[str, tuple[tuple[str, int, str], ...]] = {}
    for operation in getattr(function, "graph", function).get_operations():
        lines: list[tuple[str, int, str]] = []
        for frame in operation.traceback or ():
            file = str(frame.filename)
            if file not in kept:
                kept[file] = not file.startswith(inner) and (not file.startswith(python) or "-packages/" in file)
            if file.startswith(tracing):
                lines.clear()
            if kept[file]:
                lines.append((file, int(frame.lineno), str(frame.name)))
        if lines:
            found[operation.name] = tuple(lines)
    return found


def innermost_lines(function: Any) -> dict[str, str]:
    """By operation the line of the user's that made it, as `net.py:12 call`; files below the current folder relative to it."""
    here, found = f"{Path.cwd()}/", dict[str, str]()
    for name, lines in creation_lines(function).items():
        file, line, caller = lines[-1]
        found[name] = f"{file.removeprefix(here) if file.startswith(here) else '/'.join(Path(file).parts[-2:])}:{line} {caller}"
    return found


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
