"""Count the allocations of TensorFlow's allocator during a call.

With `meter.COUNTING_ENVIRONMENT`, set before the process starts, TensorFlow's BFC allocator reports each allocation and release to the
profiler. The requested bytes are added up as malloc would round them. Memory that kernels ask of malloc is not seen here.
"""

import importlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphwright.analyze.storages import allocated_bytes
from graphwright.errors import MeasurementError
from graphwright.source.private_tensorflow import read_xspace

tf: Any = importlib.import_module("tensorflow")

_CHECK_BYTES = 32 << 20
_SMALL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Counted:
    """Bytes that an allocator gave out at most, above what it had given out before.

    Attributes:
        tensors_bytes: outputs of operations; these are written.
        all_bytes: with scratch of kernels, part of which may never be written.
        held: bytes by address that were given out during the call and not returned, in blocks of 4 KiB and more.
        returned: bytes by address that were given out before the call and returned during it.
        changes: seconds since the first change, and the bytes of tensors and scratch from then on.
    """

    tensors_bytes: int
    all_bytes: int
    held: Mapping[int, int]
    returned: Mapping[int, int]
    changes: tuple[tuple[float, int], ...] = ()


def count_allocations(call: Callable[[], object]) -> Counted:
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=1, python_tracer_level=0, device_tracer_level=0)
    with tempfile.TemporaryDirectory(prefix="graphwright_") as logs:
        try:
            tf.profiler.experimental.start(logs, options)
        except tf.errors.AlreadyExistsError as error:
            raise MeasurementError("another profiler runs in this process", where="tf.profiler", remedy="stop it first") from error
        try:
            call()
        finally:
            tf.profiler.experimental.stop()
        return highest(_events(read_xspace(next(Path(logs).rglob("*.xplane.pb")).read_bytes()).planes))


def check_counting() -> None:
    tf.fill([_CHECK_BYTES], tf.constant(1, tf.uint8))
    seen = count_allocations(lambda: tf.fill([_CHECK_BYTES], tf.constant(1, tf.uint8))).tensors_bytes
    if not _CHECK_BYTES <= seen < 1.05 * _CHECK_BYTES:
        raise MeasurementError(
            f"TensorFlow's allocator recorded {seen} bytes where {_CHECK_BYTES} were allocated",
            where="the profiler's records",
            cause="this version of TensorFlow names its allocations differently",
            remedy="report this with the version of TensorFlow",
        )


def highest(events: Iterable[tuple[int, bool, int, int, str]]) -> Counted:
    """Return the most bytes that were given out."""
    returned: dict[int, int] = {}
    scratch: set[int] = set()
    held: dict[int, int] = {}
    now = most = now_all = most_all = 0
    changes: list[tuple[int, int]] = []
    for when, released, address, asked, region in sorted(events):
        nbytes = allocated_bytes(asked)
        if released:
            if held.pop(address, None) is None:
                returned.setdefault(address, asked)
        else:
            held[address] = asked
        if region == "temp":
            scratch.add(address)
        change = -nbytes if released else nbytes
        now_all += change
        changes.append((when, now_all))
        if address not in scratch:
            now += change
        elif released:
            scratch.discard(address)
        most, most_all = max(most, now), max(most_all, now_all)
    large = [{address: nbytes for address, nbytes in blocks.items() if nbytes >= _SMALL_BYTES} for blocks in (held, returned)]
    return Counted(most, most_all, large[0], large[1], tuple(((when - changes[0][0]) * 1e-12, nbytes) for when, nbytes in changes))


def kept_bytes(first: Counted, second: Counted) -> int:
    """Return the bytes that the first call of a step took and the second did not return: values that the runtime computes once and keeps.

    An updated variable gets a new buffer and returns its old one, so it does not count.
    """
    still = sum(nbytes for address, nbytes in first.held.items() if address not in second.returned)
    return max(0, still - sum(first.returned.values()))


def _events(planes: Iterable[Any]) -> Iterable[tuple[int, bool, int, int, str]]:
    for plane in planes:
        names = {key: entry.name for key, entry in plane.event_metadata.items()}
        keys = {key: entry.name for key, entry in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name = names[event.metadata_id]
                if name not in ("MemoryAllocation", "MemoryDeallocation"):
                    continue
                stats = {keys[s.metadata_id]: s for s in event.stats}
                region = stats.get("region_type")
                use = "" if region is None else region.str_value or keys.get(region.ref_value, "")
                when, asked = line.timestamp_ns * 1000 + event.offset_ps, _integer(stats["requested_bytes"])
                yield when, name == "MemoryDeallocation", _integer(stats["addr"]), asked, use


def _integer(stat: Any) -> int:
    return int(getattr(stat, stat.WhichOneof("value")))
