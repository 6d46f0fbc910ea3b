"""How much memory this process may still take."""

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int | None:
    """Return the bytes of host memory left by the machine, the control group and the limits of this process; None if no limit is known."""
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    machine = _field(Path("/proc/meminfo"), "MemAvailable")
    if machine is not None:
        yield machine
    with suppress(OSError, ValueError):  # no control group, or one without a limit ("max")
        yield int((_CONTROL_GROUP / "memory.max").read_text()) - int((_CONTROL_GROUP / "memory.current").read_text())
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    taken = _field(Path("/proc/self/status"), "VmSize")
    if limit != resource.RLIM_INFINITY and taken is not None:
        yield limit - taken


def _field(file: Path, name: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
