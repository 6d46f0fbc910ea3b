"""Errors with four parts: what happened (with the offending value), where (the node, file or argument), the likely cause, and the remedy.

All errors that graphwright raises on purpose derive from `GraphwrightError`. Programs read `argument`, `item` and `code` instead of the
message.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum

_NOT_SHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str, *, lines: bool = False) -> str:
    """Replace what a terminal would obey or reorder: control characters, direction marks, surrogates. With `lines`, line ends stay.

    >>> printable("conv\\x1b[31m\\nrelu"), printable("a\\u202eb\\nc", lines=True)
    ('conv\ufffd[31m\ufffdrelu', 'a\ufffdb\\nc')
    """
    if text.isprintable():
        return text
    return "".join(
        character if (lines and character == "\n") or unicodedata.category(character) not in _NOT_SHOWN else "\ufffd" for character in text
    )


class ErrorCode(StrEnum):
    """The kind of mistake that an error reports, for programs that react to it."""

    OPEN_INPUT = "open_input"
    """The size of an input is unknown; `item` names the input if there is one."""
    UNKNOWN_INPUT = "unknown_input"
    """An input was fed that the step does not have; `item` names it."""
    OPEN_BATCH = "open_batch"
    """The batch size of a model is unknown; `item` names an input that has it."""
    FIXED_BATCH = "fixed_batch"
    """The batch size must be open, but is fixed."""
    UNKNOWN_SIZE = "unknown_size"
    """The size of a value inside the graph is unknown."""
    UNKNOWN_ROUNDS = "unknown_rounds"
    """The trip count of a loop is unknown, and the figure depends on it; `where` names the loop."""
    UNKNOWN_DTYPE = "unknown_dtype"
    """The dtype of an input may have been guessed wrong; `item` names the input if there is one."""
    UNTRUSTED = "untrusted"
    """The contents of a file would run, and the file is not trusted."""
    EXISTS = "exists"
    """The path of a new file exists already."""
    OUT_OF_MEMORY = "out_of_memory"
    """A process needed more memory than there is."""


class GraphwrightError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: what happened, including the offending value.
        where: the node or file concerned; empty when there is none.
        cause: the likely cause; empty when it is plain from `what`.
        remedy: what the user can do; empty when nothing can be done.
        argument: the name of the argument concerned; `where` begins with it.
        item: the key in an argument that holds several values, such as a feed.
        code: the kind of mistake, for programs.

    >>> print(GraphwrightError("budget 0 was given", argument="budget", remedy="give a positive number"))
    budget 0 was given
      where: argument 'budget'
      remedy: give a positive number
    >>> GraphwrightError("(8, -1) is not a shape", argument="feeds", item="x").where
    "feeds['x']"
    """

    ag_pass_through = True
    """AutoGraph lets it through a `tf.function` that is being traced, instead of an error of its own without what this one carries."""

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        cause: str = "",
        remedy: str = "",
        argument: str = "",
        item: str = "",
        code: ErrorCode | None = None,
    ) -> None:
        # Names come from files; and an error is printed by whoever catches it.
        self.what, self.cause, self.remedy = (printable(text, lines=True) for text in (what, cause, remedy))
        super().__init__(self.what)
        self.argument, self.item = printable(argument), printable(item)
        self.code = code
        self.places: tuple[str, ...] = (printable(where, lines=True),) if where else ()

    @property
    def where(self) -> str:
        """The argument concerned, and the places inside of it; empty when there is none."""
        named = f"{self.argument}[{self.item!r}]" if self.item else f"argument {self.argument!r}"
        return ", ".join(([named] if self.argument else []) + list(self.places))

    def __str__(self) -> str:
        parts = (("where", self.where), ("likely cause", self.cause), ("remedy", self.remedy))
        return "\n".join([self.what, *(f"  {label}: {text}" for label, text in parts if text)])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, self.__dict__


@contextmanager
def located(place: str) -> Generator[None]:
    """Add a place to the end of `where` of errors in the block, unless it is named already.

    >>> with located("at batch size 3"), located("at batch size 3"):
    ...     raise ArgumentError("no", argument="budget")
    Traceback (most recent call last):
        ...
    graphwright.errors.ArgumentError: no
      where: argument 'budget', at batch size 3
    """
    try:
        yield
    except GraphwrightError as error:
        if place not in error.places:
            error.places += (place,)
        raise


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where there is none.

    >>> first_line(ValueError("two\\nlines")), first_line(MemoryError())
    ('two', 'MemoryError')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]


def origin_of(error: BaseException) -> BaseException:
    """Return the first error of a chain of causes."""
    seen: set[int] = set()  # an error may be its own cause
    while (before := error.__cause__ or error.__context__) is not None and id(error) not in seen:
        seen.add(id(error))
        error = before
    return error


def in_words(error: BaseException) -> str:
    """Return the type of an error and the first line of its message.

    >>> in_words(ValueError("two\\nlines"))
    'ValueError: two'
    """
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class ArgumentError(GraphwrightError, ValueError):
    """An argument has a value that cannot be used."""


class GraphError(GraphwrightError, ValueError):
    """A graph breaks an invariant, or an edit would break one."""


class UnknownShapeError(GraphwrightError, ValueError):
    """A dimension that a figure depends on is unknown; the message names the feed to bind."""


class InfeasibleError(GraphwrightError):
    """No plan fits the budget; `smallest_budget_bytes` is the smallest one known to work."""

    def __init__(self, what: str, *, where: str = "", cause: str = "", remedy: str = "", smallest_budget_bytes: int = 0) -> None:
        super().__init__(what, where=where, cause=cause, remedy=remedy)
        self.smallest_budget_bytes = smallest_budget_bytes


class UnsupportedError(GraphwrightError):
    """The graph holds something that cannot be handled with proof; the message names the node."""


class VerificationError(GraphwrightError):
    """No rewritten step can be built and proved equal to the original."""


class FileFormatError(GraphwrightError, ValueError):
    """A file is not what it should be."""


class MissingDependencyError(GraphwrightError, ImportError):
    """An optional package is missing; the remedy names the command that installs it."""


class MeasurementError(GraphwrightError, RuntimeError):
    """A measurement failed, or its result cannot be trusted."""


class OffloadError(GraphwrightError, RuntimeError):
    """A step could not write what it copies to disk, or not read it back."""


class OutOfMemoryError(GraphwrightError, MemoryError):
    """A step needed more memory than there is; `report` says what it held and what would fit."""

    def __init__(self, what: str, *, where: str = "", cause: str = "", remedy: str = "", report: object = None) -> None:
        super().__init__(what, where=where, cause=cause, remedy=remedy, code=ErrorCode.OUT_OF_MEMORY)
        self.report = report


class VerificationWarning(UserWarning):
    """No rewritten step can be built and proved equal, so the original runs instead, as `on_failure="original"` asks."""


class AssumedSizeWarning(UserWarning):
    """A plan rests on sizes that were not known and had to be assumed."""


class CheckpointWarning(UserWarning):
    """A tensor that was named as a checkpoint is of no use to these gradients."""
