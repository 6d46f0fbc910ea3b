"""Ctrl-C ends the command line within a second, whatever runs.

Python raises `KeyboardInterrupt` between two of its own instructions. A call of TensorFlow or of a solver that lasts keeps it waiting, and
so do threads that the end of the process waits for. So a thread of its own hears of the signal, and where the process is still there after
a moment, which suffices to take away files that are not finished, ends it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

EXIT_INTERRUPTED = 130
_GRACE_S = 0.6


@contextmanager
def ends_when_interrupted() -> Generator[None]:
    """End the process with exit code 130 when Ctrl-C is pressed inside; only in the main thread, which alone hears of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
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


def _end_soon(reader: int) -> None:
    while (heard := os.read(reader, 1)) and heard[0] != signal.SIGINT:
        pass
    os.close(reader)
    if heard:
        time.sleep(_GRACE_S)
        _end()


def _end() -> None:
    """What the process would do at its end, wait for its threads, is left out."""
    sys.stderr.write("\ninterrupted\n")
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)
