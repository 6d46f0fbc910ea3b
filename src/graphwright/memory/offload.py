"""The place of a plan's copies, their price, and the life of their files."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import tempfile
import time as clock
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphwright.analyze.cost import TaskMap
from graphwright.errors import ArgumentError, OffloadError
from graphwright.ir.graph import Graph
from graphwright.ir.traits.values import OFFLOADED
from graphwright.plan.copies import Copies, Copy, copied_buffers
from graphwright.plan.model import CostGraph
from graphwright.report.memory_plan import CopyEngine
from graphwright.report.units import format_bytes
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.flatten import FlatStep
from graphwright.transform.offload import WRITE_BUFFER_BYTES, Carrier, HostCopies, SpillFiles

fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

_SPILLED = "graphwright_spill_"
_DEVICE = re.compile(r"(CPU|GPU):\d+")
_LEAST_BYTES = 1 << 16
"""Smaller buffers are not worth a file."""
_MEASURED_BYTES = 1 << 25
_HOST = CopyEngine(1e10, 1e10, 2e-5, "assumed for PCIe, not measured")


@dataclass(frozen=True)
class Offload:
    """The place of copies."""

    to: str
    engine: CopyEngine

    @property
    def on_disk(self) -> bool:
        return not _DEVICE.fullmatch(self.to)

    def prices(self, flat: FlatStep, tasks: TaskMap) -> Copies:
        """Return the cost of a copy of each buffer that may have one: a dense tensor of known size that only its readers hold."""
        held = {value for values in flat.loops.holds.values() for value in values}
        prices: dict[int, Copy] = {}
        for b, (buffer, value) in enumerate(zip(tasks.costs.buffers, tasks.values, strict=True)):
            is_plain = value.dtype.itemsize is not None and value not in held and value not in flat.graph.at_most
            if buffer.producer is None or buffer.kept or buffer.killed_by is not None or buffer.nbytes < _LEAST_BYTES or not is_plain:
                continue
            write_s, read_s = self.engine.write_s(buffer.nbytes), self.engine.read_s(buffer.nbytes)
            prices[b] = Copy(write_s, read_s, WRITE_BUFFER_BYTES if self.on_disk else 0)
        return prices

    def words(self, before: str, costs: CostGraph, held_bytes: int) -> str:
        buffers = [costs.buffers[b] for b in copied_buffers(costs)]
        where = f"files in {self.to}" if self.on_disk else f"the memory of {self.to}"
        speed = f"{self.engine.write_bytes_per_s / 1e9:.2g} GB/s out and {self.engine.read_bytes_per_s / 1e9:.2g} GB/s back"
        total, most = format_bytes(sum(buffer.nbytes for buffer in buffers)), format_bytes(held_bytes)
        how = f"{len(buffers)} buffers ({total}) copied to {where}, at most {most} at once; priced at {speed} ({self.engine.how})"
        return f"{before}; {how}".removeprefix("; ")

    def carrier(self, graph: Graph) -> Carrier:
        """Return the object that adds copies to a graph.

        The folder of files lives as long as this object. Raises `ArgumentError` if the folder is not writable.
        """
        if not self.on_disk:
            return HostCopies(graph, self.to)
        try:
            folder = _folder(self.to)
            carrier = SpillFiles(graph, folder.path)
            weakref.finalize(carrier, _release, folder).atexit = False
            return carrier
        except OSError as error:
            raise _unusable(self.to, error) from error


def offload_to(place: str | Path | None, engine: CopyEngine | None) -> Offload:
    """Return the place of copies, with their speed; the speed of a disk is measured if it is not given.

    Raises `ArgumentError` if the folder does not exist or is not writable.
    """
    if place is not None and _DEVICE.fullmatch(str(place)):
        if str(place) not in {device.name.removeprefix("/device:") for device in import_tensorflow().config.list_logical_devices()}:
            raise ArgumentError(f"there is no device {place}", argument="offload_to", remedy="give the name of a device, or a folder")
        return Offload(str(place), engine or _HOST)
    folder = str(Path(place or tempfile.gettempdir()).absolute())
    return Offload(folder, engine or _measured(folder))


def tie_files(function: Any, carrier: Carrier | None) -> None:
    """Keep the folder of the files as long as a function needs it, or until the process ends."""
    if isinstance(carrier, SpillFiles):
        weakref.finalize(function, _release, _folder(str(Path(carrier.folder).parent))).atexit = False


def _release(_: _Folder) -> None:
    """Drop the reference; a folder without references is removed."""


def failed_copy(error: Exception, offload: Offload) -> OffloadError | None:
    """Return the error of a step whose copy could not be written or read; None for another error."""
    message = str(error)
    if f"{OFFLOADED}/" not in message or not offload.on_disk:
        return None
    lines = message.splitlines()
    reason = next((line.strip() for line in lines if offload.to in line), lines[0])  # the rest says where the graph was made
    free = format_bytes(shutil.disk_usage(offload.to).free) if Path(offload.to).is_dir() else "nothing: the folder is gone"
    return OffloadError(
        f"a copy of a tensor could not be written to disk, or read back: {reason:.300}",
        where=offload.to,
        cause=f"the disk is full, or the folder was removed or closed; free space: {free}",
        remedy="free space there, or give another folder: offload_to=...",
    )


class _Folder:
    """A folder of this process, removed when nothing refers to it any more."""

    def __init__(self, place: str) -> None:
        for left in Path(place).glob(f"{_SPILLED}*") if fcntl is not None else ():
            with contextlib.suppress(OSError):  # of a process that was killed: nobody holds the lock
                _remove(str(left), os.getpid(), _locked(left))
        self.path = tempfile.mkdtemp(prefix=_SPILLED, dir=place)
        held = _locked(self.path) if fcntl is not None else None
        weakref.finalize(self, _remove, self.path, os.getpid(), held)


def _locked(folder: str | Path) -> int:
    """Return a descriptor that locks a folder until it is closed; raises `OSError` if another process holds the lock."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


_folders: weakref.WeakValueDictionary[tuple[str, int], _Folder] = weakref.WeakValueDictionary()


def _folder(place: str) -> _Folder:
    key = str(Path(place).absolute()), os.getpid()
    folder = _folders.get(key)
    if folder is None:
        folder = _folders[key] = _Folder(place)
    return folder


def _remove(folder: str, process: int, held: int | None) -> None:
    if os.getpid() == process:
        if held is not None:
            os.close(held)
        shutil.rmtree(folder, ignore_errors=True)


def _measured(folder: str) -> CopyEngine:
    tf: Any = import_tensorflow()
    try:
        with tempfile.TemporaryDirectory(prefix="graphwright_", dir=folder) as inner, tf.init_scope(), tf.device("/device:CPU:0"):
            prefix, one = f"{inner}/speed", {"tensor_names": ["tensor"], "shape_and_slices": [""]}
            value = tf.random.stateless_uniform([_MEASURED_BYTES // 8], (1, 2), None, None, tf.int64)
            small = min(_timed(tf.raw_ops.SaveV2, prefix=prefix, tensors=[value[:8]], **one) for _ in range(2))
            write_s = _timed(tf.raw_ops.SaveV2, prefix=prefix, tensors=[value], **one)
            [data] = Path(inner).glob("speed.data*")
            with data.open("rb") as stream:
                write_s += _timed(os.fsync, stream.fileno())
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            read_s = _timed(tf.raw_ops.RestoreV2, prefix=prefix, dtypes=[tf.int64], **one)
    except (OSError, tf.errors.OpError) as error:
        raise _unusable(folder, error) from error
    return CopyEngine(_MEASURED_BYTES / write_s, _MEASURED_BYTES / read_s, small, f"measured with {_MEASURED_BYTES >> 20} MiB")


def _timed(call: Any, *args: Any, **options: Any) -> float:
    begun = clock.perf_counter()
    call(*args, **options)
    return clock.perf_counter() - begun


def _unusable(folder: str, error: Exception) -> ArgumentError:
    return ArgumentError(
        f"nothing can be written to {folder!r}: {error}",
        argument="offload_to",
        cause="the folder is not there, may not be written to, or its disk is full",
        remedy="give a folder on a disk with space: offload_to=...",
    )
