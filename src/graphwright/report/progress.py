"""Progress of long work: the work reports it, and its caller decides how it is shown.

Work that may take seconds calls `tell`. The innermost `shown` forwards the report to a function of the caller, or to a bar on standard
error that appears after a while. Outside of `shown` reports are dropped.
"""

from __future__ import annotations

import os
import sys
import threading
import time as clock
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from graphwright.errors import printable

Progress = Callable[[float, str], None]
"""Takes the share done, from 0 to 1, and a few words."""


class _Receiver:
    """The receiver of reports, and the error that it raised, which is not an error of the work."""

    raised: Exception | None = None

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress

    def __call__(self, share: float, words: str) -> None:
        try:
            if self.progress is not None:
                self.progress(share, words)
        except Exception as error:
            self.raised = error
            raise

    @property
    def bar(self) -> _Bar | None:
        return self.progress if isinstance(self.progress, _Bar) else None


_receiver: ContextVar[_Receiver | None] = ContextVar("the receiver of reports of progress", default=None)


def tell(words: str, share: float = 0.0) -> None:
    """Report the current work.

    >>> with shown(lambda share, words: print(f"{share:.0%} {words}")):
    ...     tell("tracing")
    0% tracing
    """
    if (receiver := _receiver.get()) is not None:
        receiver(share, words)


def note(words: str) -> None:
    """Report an early result, which stays above the bar."""
    receiver = _receiver.get()
    (receiver.bar.note if receiver is not None and receiver.bar is not None else tell)(words)


@contextmanager
def shown(progress: Progress | None = None, *, title: str = "", after_s: float = 1.0) -> Generator[_Receiver]:
    """Show the reports of the work inside; yield the receiver for work that takes a function.

    Args:
        progress: the receiver. None for the current one, or else a bar on standard error.
        after_s: seconds before the bar appears.
    """
    outer = _receiver.get()
    if progress is None and outer is not None:
        yield outer
        return
    token = _receiver.set(receiver := _Receiver(progress or _Bar(title, after_s)))
    try:
        yield receiver
    finally:
        _receiver.reset(token)
        if receiver.bar is not None:
            receiver.bar.stop()


@contextmanager
def silent() -> Generator[None]:
    token = _receiver.set(_Receiver())
    try:
        yield
    finally:
        _receiver.reset(token)


def lines_of_progress() -> Progress:
    """Return a receiver that writes the seconds since now and the words of each new report to standard error."""
    begun, last = clock.perf_counter(), [""]

    def write(_: float, words: str) -> None:
        if words != last[0]:
            last[0] = words
            _write_line(begun, words)

    return write


@contextmanager
def lines_every(seconds: float) -> Generator[None]:
    """Write the latest report to standard error every so many seconds, for logs."""
    begun, words, ended = clock.perf_counter(), [""], threading.Event()

    def write() -> None:
        while not ended.wait(seconds):
            _write_line(begun, words[0])

    with shown(lambda _, latest: words.__setitem__(0, latest)):
        threading.Thread(target=write, daemon=True).start()
        try:
            yield
        finally:
            ended.set()


def _write_line(begun: float, words: str) -> None:
    sys.stderr.write(f"{clock.perf_counter() - begun:7.1f} s  {printable(words)}\n")
    sys.stderr.flush()


def hide() -> None:
    """Remove the bar before printing; the next report shows it again."""
    receiver = _receiver.get()
    if receiver is not None and receiver.bar is not None:
        receiver.bar.stop()


class _Bar:
    """A bar on standard error if that is a terminal."""

    def __init__(self, title: str, after_s: float) -> None:
        self._title, self._after_s = title, after_s
        self._begun = clock.perf_counter()
        self._shown: Any = None
        self._file: Any = None

    def __call__(self, share: float, words: str) -> None:
        from rich.markup import escape

        text = escape(f"{self._title}: {words}" if self._title else words)
        if self._shown is None and clock.perf_counter() - self._begun >= self._after_s:
            self._shown = self._started()
        if self._shown is not None:
            self._shown.update(self._shown.task_ids[0], completed=share, description=text)

    def _started(self) -> Any:
        from graphwright.report.safe_console import SafeConsole

        console = SafeConsole(stderr=True)
        if not (console.is_terminal or console.is_jupyter):
            return None
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        if not console.is_jupyter:  # a copy of the terminal: TensorFlow starts with standard error led elsewhere
            self._file = os.fdopen(os.dup(sys.stderr.fileno()), "w")
            console = SafeConsole(file=self._file)
        columns = SpinnerColumn(), BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}")
        # Standard output and standard error stay as they are.
        bar = Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        bar.add_task("", total=1.0)
        bar.start()
        return bar

    def note(self, words: str) -> None:
        if self._shown is not None:
            self._shown.console.print(words, highlight=False, markup=False)

    def stop(self) -> None:
        if self._shown is not None:
            self._shown.stop()
        if self._file is not None:
            self._file.close()
        self._shown = self._file = None
