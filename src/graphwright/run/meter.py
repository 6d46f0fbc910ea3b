"""Measure the most memory that this process took during a call, by the kernel's high-water mark.

On Linux, writing 5 to `/proc/self/clear_refs` resets the high-water mark of the resident set (VmHWM) to its size (VmRSS). After the call,
VmHWM less the size before is the growth at the worst moment, by any allocator. The growth is within 2 % of what malloc gave out for tensors
of 100 KiB and more. Whole pages add 7 to 8 % for tensors of 32 KiB, and fragments of the heap up to a quarter below.
`graphwright.run.measure` bounds it by counts (`graphwright.run.allocations`).
"""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from graphwright.errors import MeasurementError

MALLOC_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "32768",  # blocks of 32 KiB and more are mapped, and unmapped when freed
    "MALLOC_TRIM_THRESHOLD_": "0",  # smaller ones go back as soon as they lie at the end of the heap
}
MEMORY_ENVIRONMENT = MALLOC_ENVIRONMENT | {
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"  # oneDNN's tensors through malloc too, not from a pool of its own
}
COUNTING_ENVIRONMENT = MALLOC_ENVIRONMENT | {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(1 << 24)}
"""For `graphwright.run.allocations`."""

_CHECK_BYTES = 32 << 20


def growth_of(call: Callable[[], object]) -> int:
    """Return the bytes by which the resident set grew at most during the call."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # freed memory goes back to the kernel, where the C library can give it
        trim(0)
    _reset_high_water()
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before)


def check() -> None:
    """Raise `MeasurementError` if the meter is off by more than 5 % for a known allocation."""
    seen = growth_of(lambda: np.ones(_CHECK_BYTES, np.uint8).sum())
    if not 0.95 * _CHECK_BYTES < seen < 1.05 * _CHECK_BYTES + (1 << 20):
        raise MeasurementError(
            f"the memory meter saw {seen} bytes where {_CHECK_BYTES} were allocated",
            where="/proc/self/clear_refs",
            cause="this kernel or container does not keep the high-water mark, or another thread allocates",
            remedy="measure on a Linux machine of your own",
        )


def _reset_high_water() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        raise MeasurementError(
            f"the high-water mark cannot be reset: {error}",
            where="/proc/self/clear_refs",
            cause="this is not Linux, or the container forbids it",
            remedy="measure on Linux",
        ) from error


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise MeasurementError(f"the kernel does not report {field}", where="/proc/self/status", remedy="measure on Linux")
