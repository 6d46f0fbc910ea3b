"""The folder of a SavedModel: variables, assets and other files beside its graph."""

import os
import re
import shutil
from collections.abc import Collection
from os import PathLike, fspath
from pathlib import Path

from graphwright.errors import ArgumentError, ErrorCode, FileFormatError
from graphwright.files import put_back

KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
PREFIX = Path("variables") / "variables"
"""Of the names of the files that hold the values of variables."""

_MOST_SHARDS = 100_000
_GRAPH_FILES = frozenset({"saved_model.pb", "saved_model.pbtxt", "saved_model.cpb", "fingerprint.pb"})


def is_model_folder(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _GRAPH_FILES)


def check_is_model(folder: Path) -> None:
    if not is_model_folder(folder):
        remedy = "give the folder that tf.saved_model.save wrote"
        raise FileFormatError("there is no saved_model.pb in the folder", where=str(folder), remedy=remedy)


def leaves_folder(name: str) -> bool:
    """Return whether the path of a file, as another file states it, leads out of its folder."""
    parts = name.replace("\\", "/").split("/")
    return not parts[0] or ".." in parts or ":" in parts[0]


def refuse_remote(path: str | PathLike[str]) -> None:
    """Refuse a path that is not on this machine: `pathlib` would change it into another one."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", fspath(path)):
        raise ArgumentError(
            f"{fspath(path)!r} is not a file of this machine",
            remedy="copy it first, for example with gcloud storage cp -r or tf.io.gfile.copy",
        )


def check_target(path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Raise `ArgumentError` where `write` would, before the work is done."""
    refuse_remote(path)
    target = Path(path)
    put_back(target)
    if (target.exists() or target.is_symlink()) and not overwrite:
        raise ArgumentError(f"there is something at {str(target)!r} already", remedy="give overwrite=True", code=ErrorCode.EXISTS)
    folder = target.absolute().parent
    if not folder.is_dir():
        raise ArgumentError(f"there is no folder {str(folder)!r} to write {target.name!r} into", remedy="make it first")
    if not os.access(folder, os.W_OK):
        raise ArgumentError(f"nothing can be written into the folder {str(folder)!r}", cause="it belongs to somebody else, or is read-only")
    if target.is_dir() and not is_model_folder(target) and any(target.iterdir()):
        raise ArgumentError(
            f"{str(target)!r} holds something else than a SavedModel, and would be lost",
            remedy="give another name, or remove the folder first",
        )
    if target.suffix in KERAS_SUFFIXES:
        raise ArgumentError(f"{target.name!r} is the name of a file of Keras", remedy="give a folder, or a .pb, .pbtxt or .meta file")
    if target.is_dir() == is_graph_file(target) and target.exists():
        raise ArgumentError(
            f"{str(target)!r} is a {'folder' if is_graph_file(target) else 'file'}", remedy="give another name, or remove it first"
        )


def is_graph_file(target: Path) -> bool:
    return target.suffix in (".pb", ".pbtxt")


def copy_around(source: Path, target: Path, *, skip: Collection[str] = ()) -> None:
    """Copy all files except the graph and what is named in `skip`; refuse links that lead out of the folder, nowhere, or to a folder."""
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
        if entry.is_symlink():
            _check_link(entry, source, root)
        if entry.is_dir():
            (target / relative).mkdir(parents=True, exist_ok=True)
        elif entry.is_file():
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(entry, target / relative)


def _check_link(entry: Path, source: Path, root: Path) -> None:
    target = entry.resolve()
    if not target.is_relative_to(root):
        what, cause = "a link that leaves the folder of the SavedModel", "the folder was made to reach other files"
    elif not target.exists():
        what, cause = "a link to nothing", "what it points to was removed"
    elif target.is_dir():
        what, cause = "a link to a folder", "TensorFlow does not write such links"
    else:
        return
    raise FileFormatError(
        f"{str(entry.relative_to(source))!r} is {what}", where=str(source), cause=cause, remedy="replace the link by what it points to"
    )


def check_variables(folder: Path, *, needed: bool) -> None:
    """Refuse a checkpoint that lacks files; with `needed`, also a missing checkpoint."""
    variables = folder / PREFIX.parent
    has_index = (folder / f"{PREFIX}.index").is_file()
    shards = {path.name for path in variables.glob(f"{PREFIX.name}.data-*") if path.is_file()} if variables.is_dir() else set[str]()
    missing: list[str] = []
    if not has_index and (shards or needed):
        missing.append(f"{PREFIX.name}.index")
    counts = {count for name in shards if (count := name.rpartition("-of-")[2]).isdecimal()}
    for count in counts:
        expected = {f"{PREFIX.name}.data-{k:05d}-of-{count}" for k in range(min(int(count), _MOST_SHARDS))}
        missing += sorted(expected - shards)
    if has_index and not shards:
        missing.append(f"{PREFIX.name}.data-00000-of-...")
    if missing:
        raise FileFormatError(
            f"the checkpoint lacks {missing[0]!r}" + (f" and {len(missing) - 1} more files" if len(missing) > 1 else ""),
            where=str(variables),
            cause="the folder was copied in part, or large files were not fetched",
            remedy="copy the whole folder of the SavedModel",
        )
