"""Errors: what happened, where, the likely cause, and the remedy.

Every error that graphwright raises on purpose derives from `GraphwrightError`.
The message is built from four parts, so that it reads the same everywhere:
what happened (with what was got), where (the node, file or argument), the
likely cause, and the remedy.
"""

from __future__ import annotations

import unicodedata

_NOT_SHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str, *, lines: bool = False) -> str:
    """`text` without what a terminal would obey or reorder: control characters, marks of direction, halves of characters.

    Args:
        lines: keep the ends of lines.

    >>> printable("conv\\x1b[31m\\nrelu"), printable("a\\u202eb\\nc", lines=True)
    ('conv\ufffd[31m\ufffdrelu', 'a\ufffdb\\nc')
    """
    if text.isprintable():
        return text
    return "".join(
        character if (lines and character == "\n") or unicodedata.category(character) not in _NOT_SHOWN else "\ufffd" for character in text
    )


class GraphwrightError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: what happened, including the value that was got.
        where: the node, file or argument concerned; empty when there is none.
        cause: the likely cause; empty when it is plain from `what`.
        remedy: what the user can do; empty when nothing can be done.

    >>> print(GraphwrightError("budget 0 was given", where="argument 'budget'", remedy="give a positive number"))
    budget 0 was given
      where: argument 'budget'
      remedy: give a positive number
    """

    ag_pass_through = True
    """AutoGraph lets it through a `tf.function` that is being traced, instead of an error of its own without what this one carries."""

    def __init__(self, what: str, *, where: str = "", cause: str = "", remedy: str = "") -> None:
        # Names come from files; and an error is printed by whoever catches it.
        self.what, self.where, self.cause, self.remedy = (printable(text, lines=True) for text in (what, where, cause, remedy))
        parts = [self.what]
        told = (("where", self.where), ("likely cause", self.cause), ("remedy", self.remedy))
        parts += [f"  {label}: {text}" for label, text in told if text]
        super().__init__("\n".join(parts))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where, self.cause, self.remedy), self.__dict__


def _rebuild(kind: type[GraphwrightError], what: str, where: str, cause: str, remedy: str) -> GraphwrightError:
    return kind(what, where=where, cause=cause, remedy=remedy)


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


class FileFormatError(GraphwrightError, ValueError):
    """A file is not what it should be."""


class MissingDependencyError(GraphwrightError, ImportError):
    """An optional package is missing; the remedy names the command that installs it."""


class MeasurementError(GraphwrightError, RuntimeError):
    """A measurement failed, or its result cannot be trusted."""


class VerificationWarning(UserWarning):
    """A rewritten step was not proved equal, so the original runs instead."""


class AssumedSizeWarning(UserWarning):
    """A plan rests on sizes that were not known and had to be assumed."""


class CheckpointWarning(UserWarning):
    """A tensor that was named as a checkpoint is of no use to these gradients."""
