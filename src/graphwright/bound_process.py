"""Child processes that end with their parent, however it ends: by SIGTERM, SIGKILL or the machine's OOM killer.

`bound(command)` starts the command by way of this file. On Linux the kernel kills it with its parent, which outlives `exec`. Elsewhere a
small process checks, twice a second, whether the parent still exists. The file is run by its path, so that it loads nothing of the
package.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOOK_EVERY_S = 0.5
_MOST_FILES = 256


def bound(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` as long as this process lives, with the same input, output, signals and status.

    >>> import subprocess
    >>> subprocess.run(bound([sys.executable, "-c", "print('done')"]), capture_output=True, text=True, check=True).stdout
    'done\\n'
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def bind_by_kernel() -> None:
    """Make Linux kill this process when the thread that started it ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def bind_by_watching(parent: int) -> None:
    """Fork a process that kills this one when the parent is gone; it ends when this one does."""
    watched = os.getpid()
    if os.fork():
        return
    os.closerange(0, _MOST_FILES)  # who reads what this process writes need not wait for the watcher
    while os.getppid() == watched:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os.kill(watched, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S)
    os._exit(0)


def _main(parent: int, command: Sequence[str]) -> None:
    if sys.platform == "linux":
        bind_by_kernel()
    else:
        bind_by_watching(parent)
    if os.getppid() != parent:  # it ended before
        sys.exit(1)
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
