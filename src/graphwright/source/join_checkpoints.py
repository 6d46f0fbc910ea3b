"""Reads checkpoints, and writes one checkpoint from several: values are copied in pieces. Keys are names of variables (TF1), or paths in
the object graph (TF2), which is stored in the checkpoint under a key of its own.
"""

import contextlib
import glob
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from graphwright.errors import FileFormatError, first_line
from graphwright.files import check_given
from graphwright.source.model_folder import PREFIX
from graphwright.source.named_refs import parsed
from graphwright.source.private_tensorflow import message_class
from graphwright.source.tensorflow_import import import_tensorflow

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_PIECE_BYTES = 256 * 2**20
"""About how much is held in memory at a time."""


def has_checkpoint(folder: Path | None) -> bool:
    return folder is not None and (folder / f"{PREFIX}.index").is_file()


@contextlib.contextmanager
def readable(folder: Path, prefix: Path = PREFIX) -> Generator[Any]:
    """Open a checkpoint in a folder, by default that of a SavedModel; raise `FileFormatError` where it cannot be read, also later."""
    tf = import_tensorflow()
    where = folder / prefix
    files = list(where.iterdir() if where.is_dir() else where.parent.glob(f"{glob.escape(where.name)}.*"))
    for path in files:
        if not path.is_dir():
            check_given(path)
    try:
        reader = tf.train.load_checkpoint(str(where))
        _check_sizes(reader, sum(path.stat().st_size for path in files))
        yield reader
    except (tf.errors.OpError, RuntimeError, ValueError, LookupError, ArithmeticError, MemoryError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(
            f"the checkpoint cannot be read: {first_line(error)}",
            where=str(folder / (prefix.parent if prefix == PREFIX else prefix)),
            cause="a file is damaged or missing",
        ) from error


def _check_sizes(reader: Any, most_bytes: int) -> None:
    """Refuse a checkpoint whose index states more bytes than its files hold, before memory is allocated."""
    dtypes = reader.get_variable_to_dtype_map()
    stated = sum(math.prod(shape) * (dtypes[key].size or 0) for key, shape in reader.get_variable_to_shape_map().items())
    if stated > most_bytes:
        raise ValueError(f"its index states values of {stated} bytes, and its files have {most_bytes}")


def stored_values(checkpoint: Path) -> dict[str, Any]:
    """Return the arrays of a checkpoint by name of the variable, as `tf.compat.v1.train.Saver` wrote them. The path is that given to
    `Saver.save`, or its folder, for the latest checkpoint.
    """
    with readable(checkpoint.parent, Path(checkpoint.name)) as reader:
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name != OBJECT_GRAPH}


def checkpoint_keys(folder: Path | None) -> frozenset[str]:
    if folder is None or not has_checkpoint(folder):
        return frozenset()
    with readable(folder) as reader:
        return frozenset(reader.get_variable_to_shape_map()) - {OBJECT_GRAPH}


def stored_objects(folder: Path | None) -> Any:
    """Return the `TrackableObjectGraph` of a checkpoint, or one with only a root."""
    kind = message_class("protobuf.trackable_object_graph", "TrackableObjectGraph")
    if folder is not None and has_checkpoint(folder):
        with readable(folder) as reader:
            if reader.has_tensor(OBJECT_GRAPH):
                return parsed(kind, reader.get_tensor(OBJECT_GRAPH), "the checkpoint")
    empty: Any = kind()
    empty.nodes.add()
    return empty


def join_checkpoints(parts: Sequence[tuple[Path | None, Callable[[str], str]]], object_graph: bytes, target: Path) -> None:
    """Write the values of several SavedModel folders into another one. `parts` gives the new key of each key, where an empty one drops
    the value; `object_graph` is the serialized `TrackableObjectGraph` of all, empty where variables are identified by name.
    """
    tf = import_tensorflow()
    (target / PREFIX).parent.mkdir(exist_ok=True)
    pieces: list[str] = []
    with tf.device("/CPU:0"):
        for folder, key_of in parts:
            if folder is None or not has_checkpoint(folder):
                continue
            with readable(folder) as reader:
                types = reader.get_variable_to_dtype_map()
                for keys in _pieces(reader, key_of):
                    values = tf.raw_ops.RestoreV2(
                        prefix=str(folder / PREFIX),
                        tensor_names=keys,
                        shape_and_slices=[""] * len(keys),
                        dtypes=[types[key] for key in keys],
                    )
                    pieces.append(_save(target, len(pieces), [key_of(key) for key in keys], values))
        if object_graph:
            pieces.append(_save(target, len(pieces), [OBJECT_GRAPH], [tf.constant(object_graph)]))
        if pieces:
            tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=pieces, destination_prefix=str(target / PREFIX), delete_old_dirs=False)


def _pieces(reader: Any, key_of: Callable[[str], str]) -> Iterator[list[str]]:
    types, keys, size = reader.get_variable_to_dtype_map(), list[str](), 0
    for key, shape in sorted(reader.get_variable_to_shape_map().items()):
        if key == OBJECT_GRAPH or not key_of(key):
            continue
        nbytes = math.prod(shape) * max(types[key].size or 1, 1)
        if keys and size + nbytes > _PIECE_BYTES:
            yield keys
            keys, size = [], 0
        keys.append(key)
        size += nbytes
    if keys:
        yield keys


def _save(target: Path, number: int, keys: Sequence[str], values: Sequence[Any]) -> str:
    prefix = str(target / PREFIX.parent / f"piece_{number}")
    import_tensorflow().raw_ops.SaveV2(prefix=prefix, tensor_names=list(keys), shape_and_slices=[""] * len(keys), tensors=list(values))
    return prefix
