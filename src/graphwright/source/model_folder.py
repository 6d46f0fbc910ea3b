"""What lies in the folder of a SavedModel beside its graph: variables, assets, and whatever else."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from graphwright.errors import FileFormatError

_GRAPH_FILES = frozenset({"saved_model.pb", "saved_model.pbtxt", "saved_model.cpb", "fingerprint.pb"})


def copy_around(source: Path, target: Path, *, skip: Collection[str] = ()) -> None:
    """Copy all files but those that hold the graph.

    Args:
        source: folder of a SavedModel.
        target: an existing folder.
        skip: names of files and folders at the top that are left out.

    Raises:
        FileFormatError: the folder is gone, or a link in it leads out of it.
    """
    if not source.is_dir():
        raise FileFormatError(
            "the folder that the graph was read from is gone; its variables and assets are needed to write it",
            where=str(source),
            remedy="keep the folder until the graph is written",
        )
    root = source.resolve()
    for entry in sorted(source.rglob("*")):
        relative = entry.relative_to(source)
        if relative.parts[0] in skip or (len(relative.parts) == 1 and relative.name in _GRAPH_FILES):
            continue
        if entry.is_symlink() and not entry.resolve().is_relative_to(root):
            raise FileFormatError(
                f"{str(relative)!r} is a link that leaves the folder of the SavedModel",
                where=str(source),
                cause="the folder was made to reach other files",
                remedy="replace the link by what it points to",
            )
        if entry.is_dir():
            (target / relative).mkdir(parents=True, exist_ok=True)
        elif entry.is_file():
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(entry, target / relative)
