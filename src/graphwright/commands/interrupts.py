"""End the command line within a second of Ctrl-C.

Python raises `KeyboardInterrupt` between two of its own instructions, which a long call of TensorFlow or of a solver delays. So a
separate thread receives the signal and ends the process after a moment, which suffices to remove unfinished files. That thread needs
Python's lock, which a call may hold. So a small process receives the signal first, and kills the process if it is still there a moment
later (exit code 137 then, not 130).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from graphwright.bound_process import bound

EXIT_INTERRUPTED = 130
_GRACE_S = 0.6
_KILL_S = 0.9
_KILLER = """
import os, signal, sys, time
process = int(sys.argv[1])
while heard := os.read(0, 1):
    os.write(1, heard)
    if heard[0] == signal.SIGINT:
        time.sleep(float(sys.argv[2]))
        if os.getppid() == process:
            os.kill(process, signal.SIGKILL)
"""


@contextmanager
def ends_when_interrupted() -> Generator[None]:
    """End the process with exit code 130 when Ctrl-C is pressed inside; only in the main thread, which receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    reader, killer = _behind_a_killer(reader)
    threading.Thread(target=_end_soon, args=(reader,), daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        _end()
    except SystemExit as ending:  # which typer makes of it
        if ending.code == EXIT_INTERRUPTED:
            _end()
        raise
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        if killer is not None:
            killer.wait()  # it ends where nothing more can be heard


def _behind_a_killer(reader: int) -> tuple[int, subprocess.Popen[bytes] | None]:
    """Return where to read signals: from a process that reads them first, and kills this one if it does not end."""
    if os.name == "nt":
        return reader, None
    command = [sys.executable, "-I", "-S", "-c", _KILLER, str(os.getpid()), str(_KILL_S)]
    reader_of_killer, writer = os.pipe()
    try:  # in a session of its own, where Ctrl-C does not reach it
        killer = subprocess.Popen(bound(command), stdin=reader, stdout=writer, stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        os.close(reader_of_killer)
        return reader, None
    finally:
        os.close(writer)
    os.close(reader)
    return reader_of_killer, killer


def _end_soon(reader: int) -> None:
    while (heard := os.read(reader, 1)) and heard[0] != signal.SIGINT:
        pass
    os.close(reader)
    if heard:
        time.sleep(_GRACE_S)
        _end()


def _end() -> None:
    sys.stderr.write("\ninterrupted\n")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)
