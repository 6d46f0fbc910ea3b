"""Files that a user names: only regular ones are read, since a pipe or a device may never answer, or never end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from graphwright.errors import FileFormatError

_NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # to open a pipe would wait for who writes to it


def read_given(path: Path) -> bytes:
    """The content of a regular file.

    Raises:
        FileFormatError: it cannot be read, or is a folder, a pipe, a socket or a device.

    >>> read_given(Path(os.devnull))
    Traceback (most recent call last):
        ...
    graphwright.errors.FileFormatError: is no regular file, but a device
      where: /dev/null
      remedy: write what it gives to a file, and give that
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | _NO_WAITING), "rb") as stream:
            _check(os.fstat(stream.fileno()).st_mode, path)
            return stream.read()
    except (OSError, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)) from error


def check_given(path: Path) -> None:
    """Refuse what is there and is no regular file, before somebody else opens it.

    Raises:
        FileFormatError: it is a folder, a pipe, a socket or a device.
    """
    if path.exists():
        _check(path.stat().st_mode, path)


def _check(mode: int, path: Path) -> None:
    if stat.S_ISREG(mode):
        return
    kind = "folder" if stat.S_ISDIR(mode) else "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
    remedy = "" if kind == "folder" else "write what it gives to a file, and give that"
    raise FileFormatError(f"is no regular file, but a {kind}", where=str(path), remedy=remedy)
