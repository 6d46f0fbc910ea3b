"""How much memory this process took at most during a call: the kernel's own high-water mark.

On Linux, writing 5 to `/proc/self/clear_refs` sets the high-water mark of the resident set (VmHWM) to the present size
(VmRSS). After the call, VmHWM minus the size before it is the growth at the worst moment, whoever allocated: TensorFlow,
oneDNN's scratch, Eigen, NumPy. TensorFlow's own counter (`get_memory_info('CPU:0')`) sees its own allocator only.

For the resident set to follow what the program holds, freed memory must go back to the kernel at once. That is asked of
glibc's malloc by `MALLOC_ENVIRONMENT`, which must be set before the process starts.

Against a hook that counts every malloc (`tests/run/malloc_hook.c`) the growth is within 2 % where most bytes lie in tensors
of 100 KiB and more (dense, convolutional, attention). A mapped block takes whole pages, which adds 7 to 8 % where most
tensors have 32 KiB (an LSTM), and below that size the heap's fragments may add a quarter.
`graphwright.run.measure` holds it between bounds that are counted (`graphwright.run.allocations`).

The meter checks itself: `check` allocates a known amount and raises when the meter does not see it, so that a kernel that
ignores `clear_refs` can not pass for a step without memory.
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
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",  # oneDNN's tensors through malloc too, not from a pool of its own
}
COUNTING_ENVIRONMENT = MALLOC_ENVIRONMENT | {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(1 << 24)}
"""For `graphwright.run.allocations`."""

_CHECK_BYTES = 32 << 20


def growth_of(call: Callable[[], object]) -> int:
    """Bytes by which the resident set grew at most during the call, above its size just before.

    Raises:
        MeasurementError: the kernel does not offer the high-water mark.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # freed memory goes back to the kernel, where the C library can give it
        trim(0)
    _reset_high_water()
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before)


def check() -> None:
    """Measure a known allocation.

    Raises:
        MeasurementError: the meter is off by more than 5 %.
    """
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
            f"the high-water mark cannot be set back: {error}",
            where="/proc/self/clear_refs",
            cause="this is not Linux, or the container forbids it",
            remedy="measure on Linux",
        ) from error


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise MeasurementError(f"the kernel does not tell {field}", where="/proc/self/status", remedy="measure on Linux")
