"""Text files that are replaced as a whole or stay as they were: written beside their place, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def replaced_file(path: Path) -> Generator[TextIO]:
    """A stream to write the new content of a file to; the file has it when the block ends, and is as before when the block raises.

    Raises:
        OSError: the folder does not exist or cannot be written to, or the path is a folder.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "notes.txt"
    ...     with replaced_file(path) as stream:
    ...         _ = stream.write("all of it")
    ...     path.read_text(), len(list(Path(folder).iterdir()))
    ('all of it', 1)
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
        # `mkstemp` makes files for their owner alone; this one gets the rights of any new file.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
