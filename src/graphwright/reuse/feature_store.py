"""Arrays by a key of the content that they were computed from, in memory or in an SQLite database."""

from __future__ import annotations

import hashlib
import importlib
import json
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError, FileFormatError
from graphwright.files import check_given

Arrays = tuple[np.ndarray[Any, Any], ...]

_WAIT_S = 60.0
"""How long to wait for another process that writes to the same database."""

_TABLE = """CREATE TABLE IF NOT EXISTS features
    (sample BLOB, number INTEGER, dtype TEXT, shape TEXT, content BLOB, checksum BLOB, PRIMARY KEY (sample, number))"""


def digest(arrays: Iterable[np.ndarray[Any, Any]]) -> bytes:
    """Return 128 bits of a BLAKE2 hash of the contents, dtypes and shapes of arrays."""
    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        state.update(f"{array.dtype.str}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.digest()


class FeatureStore:
    """Arrays in memory, with their size in `nbytes`. Above `max_bytes`, the least recently used ones are dropped."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.nbytes = 0
        self._max_bytes = max_bytes
        self._arrays: OrderedDict[bytes, Arrays] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._arrays)

    def get(self, key: bytes) -> Arrays | None:
        with self._lock:
            if key not in self._arrays:
                return None
            self._arrays.move_to_end(key)
            return self._arrays[key]

    def put(self, rows: Mapping[bytes, Arrays]) -> None:
        with self._lock:
            for key, arrays in rows.items():
                if key not in self._arrays:
                    self._arrays[key] = tuple(array.copy() for array in arrays)  # a view would keep its whole batch
                    self.nbytes += sum(array.nbytes for array in arrays)
            while self._max_bytes is not None and self.nbytes > self._max_bytes:
                self.nbytes -= sum(array.nbytes for array in self._arrays.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._arrays.clear()
            self.nbytes = 0


class FeatureFolder(FeatureStore):
    """Arrays in an SQLite database in a folder, one database per function that computes them (`of`)."""

    def __init__(self, folder: Path, of: str) -> None:
        super().__init__()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"{folder} is no folder and none can be made there: {error.strerror}", argument="folder") from error
        self._path = folder / f"features-{of}.sqlite"
        if self._path.exists():
            check_given(self._path)
        with self._access():
            self._database = sqlite3.connect(self._path, timeout=_WAIT_S, check_same_thread=False)
            self._database.execute("PRAGMA synchronous = OFF")  # what a power failure destroys can be computed again
            self._database.execute(_TABLE)

    def __len__(self) -> int:
        with self._access():
            return int(self._database.execute("SELECT COUNT(DISTINCT sample) FROM features").fetchone()[0])

    def get(self, key: bytes) -> Arrays | None:
        tf: Any = importlib.import_module("tensorflow")
        query = "SELECT dtype, shape, content, checksum FROM features WHERE sample = ? ORDER BY number"
        arrays: list[np.ndarray[Any, Any]] = []
        with self._access():
            for dtype, shape, content, checksum in self._database.execute(query, [key]):
                array = np.frombuffer(content, tf.as_dtype(dtype).as_numpy_dtype).reshape(json.loads(shape))
                if digest([array]) != checksum:
                    raise ValueError("a checksum differs")
                arrays.append(array)
        return tuple(arrays) or None

    def put(self, rows: Mapping[bytes, Arrays]) -> None:
        records = [
            (key, number, array.dtype.name, json.dumps(array.shape), np.ascontiguousarray(array).tobytes(), digest([array]))
            for key, arrays in rows.items()
            for number, array in enumerate(arrays)
        ]
        with self._access(), self._database:
            self._database.executemany("INSERT OR IGNORE INTO features VALUES (?, ?, ?, ?, ?, ?)", records)

    def clear(self) -> None:
        with self._access():
            with self._database:
                self._database.execute("DELETE FROM features")
            self._database.execute("VACUUM")

    @contextmanager
    def _access(self) -> Generator[None]:
        try:
            with self._lock:
                yield
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise FileFormatError(
                f"features cannot be read or written: {error}",
                where=str(self._path),
                cause="the database is damaged or cannot be written, or another process keeps it locked",
                remedy="remove the file; its features are computed again",
            ) from error
