"""What is being done while it takes a while: work tells it, and whoever started the work says how it is shown.

Work that may take seconds calls `tell`. What it tells goes to the innermost `shown`: to a caller's function, or to a bar on standard error
that appears when the work lasts. Outside of one nothing is told.
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

Progress = Callable[[float, str], None]
"""Takes the share done, from 0 to 1, and a few words."""


class _Told:
    """Who is told, and what that raised: the caller's own error is not one of the work."""

    raised: Exception | None = None

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress

    def __call__(self, share: float, words: str) -> None:
        if self.progress is None:
            return
        try:
            self.progress(share, words)
        except Exception as error:
            self.raised = error
            raise


_told: ContextVar[_Told | None] = ContextVar("who is told what is being done", default=None)


def tell(words: str, share: float = 0.0) -> None:
    """Say what is being done now.

    >>> with shown(lambda share, words: print(f"{share:.0%} {words}")):
    ...     tell("tracing")
    0% tracing
    """
    if (told := _told.get()) is not None:
        told(share, words)


def note(words: str) -> None:
    """Say a result that is known before the work is done. It stays above the bar, where there is one.

    >>> with shown(lambda share, words: print(words)):
    ...     note("bfloat16: 98 MiB")
    bfloat16: 98 MiB
    """
    told = _told.get()
    bar = told.progress if told is not None else None
    (bar.note if isinstance(bar, _Bar) else tell)(words)


@contextmanager
def shown(progress: Progress | None = None, *, title: str = "", after_s: float = 1.0) -> Generator[_Told]:
    """Show what the work inside tells, and hand it over for work that takes a function.

    Args:
        progress: who is told. Without it those who are told already, and where there are none, a bar on standard error.
        title: what stands before the words on the bar.
        after_s: seconds for which nothing is shown.
    """
    outer = _told.get()
    if progress is None and outer is not None:
        yield outer
        return
    bar = None if progress is not None else _Bar(title, after_s)
    token = _told.set(told := _Told(progress or bar))
    try:
        yield told
    finally:
        _told.reset(token)
        if bar is not None:
            bar.stop()


@contextmanager
def silent() -> Generator[None]:
    """Show nothing of what is told inside."""
    token = _told.set(_Told())
    try:
        yield
    finally:
        _told.reset(token)


def lines_of_progress() -> Progress:
    """Who writes a line to standard error for each new thing that is done: seconds since now, and the words."""
    begun, last = clock.perf_counter(), [""]

    def write(_: float, words: str) -> None:
        if words != last[0]:
            last[0] = words
            _write_line(begun, words)

    return write


@contextmanager
def lines_every(seconds: float) -> Generator[None]:
    """Write a line to standard error every so many seconds with what is being done then, for logs."""
    begun, words, ended = clock.perf_counter(), [""], threading.Event()

    def write() -> None:
        while not ended.wait(seconds):
            _write_line(begun, words[0])

    with shown(lambda _, told: words.__setitem__(0, told)):
        threading.Thread(target=write, daemon=True).start()
        try:
            yield
        finally:
            ended.set()


def _write_line(begun: float, words: str) -> None:
    from graphwright.errors import printable

    sys.stderr.write(f"{clock.perf_counter() - begun:7.1f} s  {printable(words)}\n")
    sys.stderr.flush()


def hide() -> None:
    """Take the bar away, for what is printed now; it comes back with the next thing that is told."""
    told = _told.get()
    if told is not None and isinstance(told.progress, _Bar):
        told.progress.stop()


class _Bar:
    """A bar on standard error; none where that is no terminal."""

    def __init__(self, title: str, after_s: float) -> None:
        self._title, self._after_s = title, after_s
        self._begun = clock.perf_counter()
        self._shown: Any = None
        self._task: Any = None
        self._file: Any = None

    def __call__(self, share: float, words: str) -> None:
        from rich.markup import escape

        text = escape(f"{self._title}: {words}" if self._title else words)
        if self._shown is None:
            self._shown = self._started(text)
        if self._shown is not None:
            self._shown.update(self._task, completed=share, description=text)

    def _started(self, text: str) -> Any:
        if clock.perf_counter() - self._begun < self._after_s:
            return None
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
        # What is printed meanwhile goes where it is meant to go.
        bar = Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._task = bar.add_task(text, total=1.0)
        bar.start()
        return bar

    def note(self, words: str) -> None:
        """Print a line above it."""
        from rich.markup import escape

        if self._shown is not None:
            self._shown.console.print(escape(words), highlight=False)

    def stop(self) -> None:
        """Take it away."""
        if self._shown is not None:
            self._shown.stop()
        if self._file is not None:
            self._file.close()
        self._shown = self._file = None
