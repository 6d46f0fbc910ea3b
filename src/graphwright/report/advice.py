"""The result of `advise`: remedies for a step that needs too much memory, and its likely mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from graphwright.analyze.update_checks import Finding
from graphwright.plain import fields_json
from graphwright.report.sheet import Block, Column, Drawing, Facts, Flow, Paragraph, Printed, Sheet, Tab, Table, labelled, pairs
from graphwright.report.units import feeds_text, format_bytes, printable

SuggestionKind = Literal["plan", "plan, all verbs", "batch", "bfloat16", "optimizer"]


KINDS: Mapping[str, str] = {"plan": "plan", "plan, all verbs": "split", "bfloat16": "bfloat16"}
"""Kinds of suggestions as the first screen calls them; it names others by what they change."""


@dataclass(frozen=True)
class Suggestion:
    """One remedy.

    Attributes:
        peak_bytes: predicted, resident bytes included; the upper end, where it is a range.
        time: predicted time of one example, as a share of its time in the unmodified step; nan if unknown.
        command: the shell command; "" for none.
        make: returns the suggested step and example arguments, as `graphwright.measure` takes them.
    """

    kind: SuggestionKind
    what: str
    peak_bytes: int
    time: float
    fits: bool
    results: str
    call: str
    command: str = ""
    make: Callable[[], tuple[Any, Any]] | None = field(default=None, repr=False, compare=False)

    def fits_words(self, memory_bytes: int) -> str:
        """Say whether its peak is within the memory, and how narrowly."""
        spare = memory_bytes - self.peak_bytes
        if spare < 0:
            return "does not fit by itself"
        return "fits" if spare > _NARROW * memory_bytes else f"fits with {format_bytes(spare)} to spare"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "make": None}  # it holds the step

    def to_json(self) -> dict[str, object]:
        """Return its fields as plain numbers and text."""
        return fields_json(self, "make")


_NARROW = 0.05  # share of the memory: what leaves less fits narrowly
_BY_RESULTS: tuple[SuggestionKind, ...] = get_args(SuggestionKind)


@dataclass(frozen=True)
class Advice(Printed):
    """Remedies for a step that needs too much memory. Returned by `graphwright.advise`.

    Attributes:
        peak_bytes: predicted for the unmodified step.
        suggestions: those that fit first, then by time, then by the change of the results.
        left_out: remedies that were not tried or cannot be applied, and why.
        high_bytes: the upper end of the predicted range; 0 if there is no range.
    """

    name: str
    feeds: Mapping[str, tuple[int, ...]]
    memory_bytes: int
    peak_bytes: int
    suggestions: tuple[Suggestion, ...]
    lint: tuple[Finding, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    how: Mapping[str, str] = field(default_factory=dict[str, str])
    high_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Whether the upper end of the predicted range of the unmodified step fits."""
        return max(self.peak_bytes, self.high_bytes) <= self.memory_bytes

    @property
    def verdict(self) -> str:
        """One sentence: whether it fits, and the first choice."""
        need, have = format_bytes(self.peak_bytes), format_bytes(self.memory_bytes)
        if self.high_bytes > self.peak_bytes:
            need += f", up to {format_bytes(self.high_bytes)} (upper end of the predicted range)"
        if self.fits:
            return f"fits as it is: needs {need}, you have {have}."
        fitting = [s for s in self.suggestions if s.fits]
        if not fitting:
            return f"needs {need}, you have {have}. None of the changes below fits alone."
        first = fitting[0]
        price = "" if math.isnan(first.time) else f", {price_text(first.time)}"
        return f"needs {need}, you have {have}. First choice: {short(first)} ({format_bytes(first.peak_bytes)}{price})."

    def to_json(self) -> dict[str, object]:
        return {**fields_json(self), "verdict": self.verdict, "fits": self.fits}

    def _sheet(self) -> Sheet:
        blocks: list[Block] = [
            Paragraph(feeds_text(self.feeds), title="Inputs"),
            *suggestion_blocks(self),
            Paragraph("; ".join(map(str, self.lint)), title="Likely mistakes"),
            Facts(pairs(self.left_out.items()), title="Left out"),
        ]
        verdict = f"{printable(self.name)}: {self.verdict}"
        return Sheet(verdict, _first_screen(self), [Tab("overview", "Overview", blocks)], list(self.how.items()))

    def for_command(self, target: str) -> Advice:
        """Return the advice with a target of the command line in place of the word TARGET."""
        return replace(self, suggestions=tuple(replace(s, command=s.command.replace("TARGET", target)) for s in self.suggestions))


def short(suggestion: Suggestion) -> str:
    return KINDS.get(suggestion.kind) or suggestion.what.partition(" instead")[0].replace("a batch of", "batch").removeprefix("train with ")


def ranked(suggestions: list[Suggestion]) -> tuple[Suggestion, ...]:
    """Sort suggestions as `Advice.suggestions`; times differ by tenths of the time of the step."""

    def rank(s: Suggestion) -> tuple[Any, ...]:
        time = 10.0 if math.isnan(s.time) else s.time
        return not s.fits, 0 if s.fits else s.peak_bytes, math.floor(10 * max(time - 1, 0.0)), _BY_RESULTS.index(s.kind), s.peak_bytes

    return tuple(sorted(suggestions, key=rank))


def price_words(suggestion: Suggestion) -> str:
    return "time not predicted" if math.isnan(suggestion.time) else f"{price_text(suggestion.time)} for each example"


def price_text(time: float) -> str:
    """Say a share of the time as a difference.

    >>> price_text(1.131), price_text(0.9), price_text(1.001)
    ('13 % more time', '10 % less time', 'the same time')
    """
    change = time - 1
    if abs(change) < 0.005:
        return "the same time"
    return f"{100 * abs(change):.0f} % {'more' if change > 0 else 'less'} time"


_RESULTS: Mapping[SuggestionKind, str] = {"plan": "bit for bit", "plan, all verbs": "but rounding"}
_MEANINGS: Mapping[SuggestionKind, str] = {
    "plan": "plan: computes some values again instead of keeping them",
    "plan, all verbs": "split: runs the batch in parts, one after another",
}
_ROWS = 6
_COLUMNS: Sequence[Column[tuple[str, str, Suggestion]]] = (
    Column("", lambda row: row[0], kind="name"),
    Column("call", lambda row: row[1], kind="decision"),  # whole, since it is copied
    Column("same result?", lambda row: _RESULTS.get(row[2].kind, "no"), kind="text"),
    Column("time", lambda row: row[2].time - 1, lambda change: f"{100 * change:+.0f} %"),
)


def _first_screen(advice: Advice) -> list[Block]:
    blocks: list[Block] = []
    if fitting := [s for s in advice.suggestions if s.fits][:_ROWS]:
        calls = [_after(before, s.call) for before, s in zip(["", *(s.call for s in fitting)], fitting, strict=False)]
        rows = [(f"{k} {short(s)}", call, s) for k, (call, s) in enumerate(zip(calls, fitting, strict=True), 1)]
        blocks.append(Table(rows, _COLUMNS, fixed=True, part="first"))
        meanings = [text for kind, text in _MEANINGS.items() if any(s.kind == kind for s in fitting)]
        blocks.append(Flow(meanings, "; ", 0, part="first"))
    blocks.append(labelled("Not enough alone", [f"{short(s)} {format_bytes(s.peak_bytes)}" for s in advice.suggestions if not s.fits]))
    if not fitting:
        blocks += [Paragraph(f"- {KINDS.get(what, what)}: {why}", part="first") for what, why in list(advice.left_out.items())[:_ROWS]]
    if advice.lint:
        first, *rest = advice.lint
        blocks.append(Paragraph(f"Likely a mistake: {first}{f' ({len(rest)} more)' * bool(rest)}", part="first"))
    return blocks


def _after(first: str, call: str) -> str:
    """Leave out the words that a call shares with the call above it."""
    return f"...{call.removeprefix(first[:-1])}" if first and call.startswith(first[:-1]) else call


def suggestion_blocks(advice: Advice) -> list[Block]:
    if not advice.suggestions:
        return [Paragraph("no change that was tried needs less", title="What can be done")]
    return [
        Paragraph(
            f"{format_bytes(s.peak_bytes)}; {s.fits_words(advice.memory_bytes)}; {price_words(s)}; {s.results}",
            (s.call, s.command),
            title=f"{number}. {s.what}",
        )
        for number, s in enumerate(advice.suggestions, 1)
    ]


def advice_tab(advice: Advice) -> Tab:
    return Tab("advice", "What to do", [Drawing("advice", {"advice": advice, "price": price_words})])
