"""Arrays by the content of what they were computed from: in memory, or in TFRecord files of a folder.

A record is a `tf.train.Example` with the bytes feature `key` and one bytes feature `value_0`, `value_1`, ... for each array
(`tf.io.serialize_tensor`), so `tf.data.TFRecordDataset` reads the files too. What is new is written under a hidden name, which is
renamed when it is whole.
"""

from __future__ import annotations

import hashlib
import importlib
import secrets
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError, FileFormatError
from graphwright.files import check_given
from graphwright.source.attributes import array_of
from graphwright.source.named_refs import parsed
from graphwright.source.private_tensorflow import message_class

Arrays = tuple[np.ndarray[Any, Any], ...]
_HEADER, _FOOTER = 12, 4  # bytes of a TFRecord before and behind its data: a length and its checksum; a checksum


def digest(arrays: Iterable[np.ndarray[Any, Any]]) -> bytes:
    """A number of 128 bits for the contents, dtypes and shapes of arrays; no two that differ are known to share one.

    >>> import numpy as np
    >>> digest([np.zeros(2)]) == digest([np.zeros(2)]), digest([np.zeros(2)]) == digest([np.zeros((2, 1))])
    (True, False)
    """
    made = hashlib.blake2b(digest_size=16)
    for array in arrays:
        made.update(f"{array.dtype.str}{array.shape}".encode())
        made.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return made.digest()


class FeatureStore:
    """Arrays in memory; where these are more bytes than is allowed, those go that were not asked for the longest.

    Attributes:
        nbytes: what is held in memory, in bytes.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self.nbytes = 0
        self._max_bytes = max_bytes
        self._held: OrderedDict[bytes, Arrays] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: bytes) -> Arrays | None:
        """What is kept under a key."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key]

    def put(self, key: bytes, arrays: Arrays) -> None:
        """Keep arrays, which are copied."""
        with self._lock:
            if key in self._held:
                return
            self._held[key] = tuple(array.copy() for array in arrays)  # a row would keep its whole batch
            self.nbytes += sum(array.nbytes for array in arrays)
            while self._max_bytes is not None and self.nbytes > self._max_bytes:
                self.nbytes -= sum(array.nbytes for array in self._held.popitem(last=False)[1])

    def clear(self) -> None:
        """Let all go."""
        with self._lock:
            self._held.clear()
            self.nbytes = 0

    def flush(self) -> None:
        """Nothing, in memory."""


class FeatureFolder(FeatureStore):
    """Arrays in TFRecord files of a folder.

    Args:
        folder: is made where it is not there.
        of: what the arrays are of; files of something else in the folder are left alone.

    Raises:
        ArgumentError: the folder is a file, or cannot be made.
    """

    def __init__(self, folder: Path, of: str) -> None:
        super().__init__()
        self._folder, self._of = folder, of
        self._places: dict[bytes, tuple[Path, int]] = {}
        self._writer: Any = None
        self._new, self._new_bytes = Path(), 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"{folder} is no folder and none can be made there: {error.strerror}", argument="folder") from error
        for path in sorted(folder.glob(f"features-{of}-*.tfrecord")):
            self._read(path)

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: bytes) -> Arrays | None:
        """What is kept under a key, read from disk."""
        with self._lock:
            if key not in self._places:
                return None
            path, offset = self._places[key]
            if path == self._new:
                self._writer.flush()
            try:
                with path.open("rb") as stream:
                    stream.seek(offset)
                    (length,) = struct.unpack("<Q", stream.read(8))
                    stream.seek(offset + _HEADER)
                    return _arrays(stream.read(min(length, path.stat().st_size)))
            except (OSError, struct.error, LookupError, ValueError) as error:
                raise FileFormatError(
                    f"features cannot be read: {error}",
                    where=str(path),
                    cause="the file was damaged or removed since it was opened",
                    remedy="remove the file; its features are computed again",
                ) from error

    def put(self, key: bytes, arrays: Arrays) -> None:
        """Write arrays to the disk."""
        tf: Any = importlib.import_module("tensorflow")
        with self._lock:
            if key in self._places:
                return
            if self._writer is None:
                self._new, self._new_bytes = self._folder / f".features-{self._of}-{secrets.token_hex(8)}.tfrecord", 0
                self._writer = tf.io.TFRecordWriter(str(self._new))
            record = _record(tf, key, arrays)
            self._writer.write(record)
            self._places[key] = self._new, self._new_bytes
            self._new_bytes += _HEADER + len(record) + _FOOTER

    def flush(self) -> None:
        """Give what was written its name."""
        with self._lock:
            if self._writer is None:
                return
            self._writer.close()
            named = self._new.with_name(self._new.name.removeprefix("."))
            self._new.rename(named)
            self._places = {key: (named if path == self._new else path, offset) for key, (path, offset) in self._places.items()}
            self._writer, self._new = None, Path()

    def clear(self) -> None:
        """Remove the files."""
        self.flush()
        with self._lock:
            for path in {path for path, _ in self._places.values()}:
                path.unlink(missing_ok=True)
            self._places = {}

    def _read(self, path: Path) -> None:
        """Note where each record of a file is; of a file that was cut short or damaged, those before that."""
        tf: Any = importlib.import_module("tensorflow")
        offset = 0
        check_given(path)
        try:
            for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
                self._places[_key(record)] = path, offset
                offset += _HEADER + len(record) + _FOOTER
        except (tf.errors.OpError, LookupError, ValueError):
            return


def _record(tf: Any, key: bytes, arrays: Sequence[np.ndarray[Any, Any]]) -> bytes:
    values = {f"value_{place}": tf.io.serialize_tensor(array).numpy() for place, array in enumerate(arrays)}
    features = {name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for name, value in {"key": key, **values}.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _key(record: bytes) -> bytes:
    return _features(record)["key"].bytes_list.value[0]


def _arrays(record: bytes) -> Arrays:
    feature, kind = _features(record), message_class("framework.tensor", "TensorProto")
    values = [feature[f"value_{place}"].bytes_list.value[0] for place in range(len(feature) - 1)]
    arrays = [array_of(parsed(kind, value, "a file of features")) for value in values]
    if any(array is None for array in arrays):
        raise ValueError("an array does not fit its shape")
    return tuple(array for array in arrays if array is not None)


def _features(record: bytes) -> Any:
    return parsed(importlib.import_module("tensorflow").train.Example, record, "a file of features").features.feature
