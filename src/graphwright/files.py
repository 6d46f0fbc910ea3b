"""Atomic writes: a file or folder is written whole or stays as it was, whatever ends the process: an error, a signal, a power cut.

The new content is written beside its place under a hidden name, synced to disk, and takes its place in one step. Folders are exchanged
(`renameat2` of Linux, `renamex_np` of macOS). Where the file system cannot do that, the old folder is set aside as `.<name>.before` for
the moment between two renames; the next write there restores it.

Only regular files that a user names are read, since a pipe or a device may never answer, or never end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from platformdirs import user_cache_path

from graphwright.errors import ArgumentError, FileFormatError

_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_IN_THIS_FOLDER = -100  # AT_FDCWD of Linux
_NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # to open a pipe would wait for who writes to it


def cache_directory() -> Path:
    """Return `$GRAPHWRIGHT_CACHE_DIR`, else `graphwright/plans` in the user's cache folder (on Linux `$XDG_CACHE_HOME` or `~/.cache`)."""
    given = os.environ.get("GRAPHWRIGHT_CACHE_DIR")
    return Path(given) if given else user_cache_path("graphwright", appauthor=False) / "plans"


@contextmanager
def replaced_file(path: Path) -> Generator[TextIO]:
    """Open a stream for the new content of a file, which replaces the old one when the block ends, unless it raises. Bytes go to
    `stream.buffer`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "notes.txt"
    ...     with replaced_file(path) as stream:
    ...         _ = stream.write("all of it")
    ...     path.read_text(), len(list(Path(folder).iterdir()))
    ('all of it', 1)
    """
    temporary = _beside(path)
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())  # or the name could be on disk before the content
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.absolute().parent)


@contextmanager
def file_for_user(path: Path) -> Generator[TextIO]:
    """As `replaced_file`, for a path that a user gave.

    Raises:
        ArgumentError: it is a folder, lies in no folder, or cannot be written.
    """
    check_file_for_user(path)
    try:
        with replaced_file(path) as stream:
            yield stream
    except OSError as error:
        raise ArgumentError(f"{path} cannot be written: {error.strerror}", argument="path") from error


def check_file_for_user(path: Path) -> None:
    """Raise where a file that a user named cannot be written: before the work for it is done.

    Raises:
        ArgumentError: it is a folder, lies in no folder, or in one that takes no file.
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder", argument="path", remedy="name the file to write")
    if not folder.is_dir():
        raise ArgumentError(f"there is no folder {path.parent}", argument="path", remedy="create it, or name another")
    if not os.access(folder, os.W_OK):
        raise ArgumentError(f"{path} cannot be written: the folder {folder} takes no files", argument="path", remedy="name another folder")


@contextmanager
def replaced_folder(path: Path) -> Generator[Path]:
    """Make an empty folder to fill, which replaces the one at the path when the block ends, unless it raises.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as around:
    ...     for text in ("old", "new"):
    ...         with replaced_folder(Path(around) / "model") as folder:
    ...             _ = (folder / "notes.txt").write_text(text)
    ...     [entry.name for entry in Path(around).iterdir()], (Path(around) / "model" / "notes.txt").read_text()
    (['model'], 'new')
    """
    put_back(path)
    temporary = _beside(path)
    temporary.mkdir()
    try:
        yield temporary
        for entry in (*temporary.rglob("*"), temporary):
            _sync(entry)
        if not os.path.lexists(path):
            temporary.rename(path)
        elif not _exchange(temporary, path):
            aside = path_before(path)
            path.rename(aside)
            try:
                temporary.rename(path)
            except BaseException:
                aside.rename(path)
                raise
            temporary = aside
        _sync(path.absolute().parent)
    finally:
        _remove(temporary)  # what is new and did not get there, or what was there


def path_before(path: Path) -> Path:
    """Return where a folder is set aside for the moment in which another one replaces it."""
    whole = path.absolute()
    return whole.parent / f".{whole.name}.before"


def put_back(path: Path) -> None:
    """Restore a folder that was set aside by a process that was stopped before the new one took its place."""
    aside = path_before(path)
    if not os.path.lexists(aside):
        return
    if os.path.lexists(path):
        _remove(aside)
    else:
        aside.rename(path)


def _beside(path: Path) -> Path:
    whole = path.absolute()
    return whole.parent / f".{whole.name}.{secrets.token_hex(4)}.tmp"


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; return False, without any change, where the system cannot."""
    if sys.platform not in ("linux", "darwin"):
        return False
    libc: Any = ctypes.CDLL(None)
    paths = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        return hasattr(libc, "renamex_np") and libc.renamex_np(*paths, _EXCHANGE) == 0
    return hasattr(libc, "renameat2") and libc.renameat2(_IN_THIS_FOLDER, paths[0], _IN_THIS_FOLDER, paths[1], _EXCHANGE) == 0


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk. Windows does so automatically; some file systems refuse folders."""
    if os.name == "nt":
        return
    with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read_given(path: Path) -> bytes:
    """Return the content of a regular file; raise `FileFormatError` where it cannot be read or is something else.

    >>> read_given(Path(os.devnull))
    Traceback (most recent call last):
        ...
    graphwright.errors.FileFormatError: is no regular file, but a device
      where: /dev/null
      remedy: write what it gives to a file, and give that
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | _NO_WAITING), "rb") as stream:
            _check_regular(os.fstat(stream.fileno()).st_mode, path)
            return stream.read()
    except (OSError, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)) from error


def check_given(path: Path) -> None:
    """Refuse an existing path that is not a regular file, before somebody else opens it."""
    if path.exists():
        _check_regular(path.stat().st_mode, path)


def _check_regular(mode: int, path: Path) -> None:
    if stat.S_ISREG(mode):
        return
    kind = "folder" if stat.S_ISDIR(mode) else "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
    remedy = "" if kind == "folder" else "write what it gives to a file, and give that"
    raise FileFormatError(f"is no regular file, but a {kind}", where=str(path), remedy=remedy)
