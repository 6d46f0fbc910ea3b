"""Files are read, never run, unless the user allows it: `trust(path)`, on the command line `--trust`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphwright.errors import ArgumentError, ErrorCode

if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(Path())  # until Python 3.12 only the class of this system can be derived from


class TrustedPath(_Path):
    """A path whose file may run."""


def trust(path: str | PathLike[str]) -> TrustedPath:
    """Allow the contents of a file to run: its graph, its initializers, the Python code of its Lambda layers.

    Reading, inspecting, counting and editing run nothing from a file. `profile`, `measure=True` and Lambda layers do, and need this.

    Args:
        path: of a `.keras` or `.h5` file, a SavedModel, or a graph.

    Returns:
        The path, to be given wherever a path is. A path made from it, as by `pathlib.Path(...)`, is an ordinary one again.

    >>> trust("model.keras").name
    'model.keras'
    """
    return TrustedPath(path)


def as_path(path: str | PathLike[str]) -> Path:
    return path if isinstance(path, Path) else Path(path)


def check_trusted(target: Any, what: str) -> None:
    """Refuse to run the contents of an ordinary path; `what` is the subject of the message. Objects of this process may run."""
    if isinstance(target, str | Path) and not isinstance(target, TrustedPath):
        raise ArgumentError(
            f"{what} runs code of the file",
            where=f"{str(target)!r}",
            cause="a model is a program that may write or send files; graphwright reads files without running them",
            remedy="if you trust where it comes from, give graphwright.trust(path)",
            code=ErrorCode.UNTRUSTED,
        )
