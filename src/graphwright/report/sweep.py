"""The result of `sweep`: the peak of a step against the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphwright.plain import fields_json, plain
from graphwright.report.page import OnPage
from graphwright.report.sheet import Block, Column, Drawing, Facts, Sheet, Tab, Table, pairs
from graphwright.report.units import counted, format_bytes, format_bytes_apart, printable

_BAR_CELLS = 32
_SAID = 6  # of the points of a chart in words


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """The predicted peak at one batch size.

    Attributes:
        fits: whether the upper end of the predicted range fits the budget.
        high_bytes: the upper end; 0 if it is the peak.
    """

    batch: int
    peak_bytes: int
    resident_bytes: int
    lower_bound_bytes: int
    fits: bool
    high_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SweepResult(OnPage):
    """Peak against batch size.

    Attributes:
        largest_batch: the largest batch size that fits the budget, or None.
        how: the origin of the peaks.
        others: sweeps of other steps that are shown beside this one, see `beside`.
    """

    points: tuple[SweepPoint, ...]
    budget_bytes: int
    largest_batch: int | None
    how: str
    name: str = ""
    others: Mapping[str, SweepResult] = field(default_factory=dict[str, "SweepResult"])

    def beside(self, **others: SweepResult) -> SweepResult:
        """Return this sweep with others, and theirs, for its table, charts and pages.

        >>> plain = SweepResult((SweepPoint(1, 300, 100, 0, False),), 0, None, "")
        >>> leaner = SweepResult((SweepPoint(1, 200, 100, 0, False),), 0, None, "")
        >>> print(plain.beside(without_batch_norm=leaner).summary)
        Peak against batch size. this: 300 B at 1. without batch norm: 200 B at 1.
        """
        named: dict[str, SweepResult] = {}
        for key, other in others.items():
            name = key.replace("_", " ")
            named[name] = replace(other, others={})
            named |= {f"{name}, {inner}": further for inner, further in other.others.items()}
        return replace(self, others={**self.others, **named})

    @property
    def all(self) -> Mapping[str, SweepResult]:
        """This sweep and the others by name."""
        return {self.name or "this": self, **self.others}

    def origins(self, labels: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
        """Return the origins of the peaks, by the names or by the given labels of the sweeps."""
        labelled: dict[str, list[str]] = {}
        for name, sweep in self.all.items():
            labelled.setdefault(sweep.how, []).append(labels[name] if labels else name)
        return [(f"peak {', '.join(names)}" if self.others else "peak", how) for how, names in labelled.items()]

    @property
    def series(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """By sweep, batch sizes and peaks in bytes."""
        return {name: [(p.batch, p.peak_bytes) for p in sweep.points] for name, sweep in self.all.items()}

    @property
    def verdict(self) -> str:
        """One sentence: the largest batch size that fits, and the range of the peaks."""
        if not self.points:
            return "No batch size was tried."
        (first, lowest), (last, highest) = ((p.batch, format_bytes(p.peak_bytes)) for p in (self.points[0], self.points[-1]))
        grows = f"The peak goes from {lowest} at batch size {first} to {highest} at {last}."
        if not self.budget_bytes:
            return grows
        fits = f"Batch size {self.largest_batch} fits" if self.largest_batch else "No batch size fits"
        looked = ", and no larger one was tried" if self.largest_batch == last else ""
        return f"{fits} {format_bytes(self.budget_bytes)}{looked}. {grows}"

    @property
    def summary(self) -> str:
        """The chart in words."""
        return " ".join(["Peak against batch size.", *(f"{name}: {_listed(points)}." for name, points in self.series.items())])

    def table(self) -> Table[Any]:
        """Return a row per batch size, with a column per sweep."""
        points: dict[int, dict[str, SweepPoint]] = {}
        for name, other in self.all.items():
            for point in other.points:
                points.setdefault(point.batch, {})[name] = point
        columns = _columns(self, {name: f"peak {letter}" if self.others else "peak" for name, letter in self._letters.items()})
        caption, title = counted(len(points), "batch size"), "Peak against batch size"
        return Table(sorted(points.items()), columns, "table-sweep", caption, limit=None, title=title, part="always")

    def to_json(self) -> dict[str, object]:
        return fields_json(self)

    @property
    def _letters(self) -> dict[str, str]:
        return {name: chr(ord("A") + k) for k, name in enumerate(self.all)}

    def _sheet(self) -> Sheet:
        letters, table = self._letters, self.table()
        longest = max((point.peak_bytes for point in self.points), default=0) or 1
        bars = Column[_Row]("", lambda row: _bar(row[1][self.name or "this"].peak_bytes / longest), kind="text")
        hint = "Resident bytes are used before the step begins; no plan goes below the lower bound."
        if self.others:
            hint += " This chart does not show the time of plans. The peak of a plan holds for its own order, which the step keeps."
        values = {"id": "sweep", "summary": self.summary}
        blocks: list[Block] = [
            Drawing("line_chart", values, ("sweep.js",), self._chart_data, hint=hint, title="Peak against batch size"),
            replace(table, on="page", title=""),
            replace(table, columns=table.columns if self.others else [*table.columns, bars], on="text"),
        ]
        if self.others:
            fits = {n: f"; largest batch that fits: {s.largest_batch or 'none'}" if s.budget_bytes else "" for n, s in self.all.items()}
            blocks.append(Facts(pairs((letters[n], printable(n) + words) for n, words in fits.items()), title="Steps", part="always"))
        verdict = f"{printable(self.name)}: {self.verdict[:1].lower()}{self.verdict[1:]}" if self.name else self.verdict
        tone = "neutral" if not self.budget_bytes else "good" if self.largest_batch else "bad"
        tabs = [Tab("overview", "Overview", blocks)]
        return Sheet(verdict, (), tabs, self.origins(letters), self.name or "sweep", "peak against batch size", tone)

    def _chart_data(self) -> dict[str, Any]:
        return {
            "topBytes": max((point.peak_bytes for sweep in self.all.values() for point in sweep.points), default=0),
            "budgetBytes": self.budget_bytes or None,
            "sweep": [{"name": name, "points": plain(sweep.points)} for name, sweep in self.all.items()],
        }


_Row = tuple[int, Mapping[str, SweepPoint]]
"""A batch size, and the points of those sweeps that have it."""


def _columns(sweep: SweepResult, headings: Mapping[str, str]) -> list[Column[_Row]]:
    own, budget = sweep.name or "this", sweep.budget_bytes

    def peak(nbytes: float) -> str:
        return format_bytes_apart(nbytes, budget)[0] if budget else format_bytes(nbytes)

    def fits(row: _Row) -> str:
        fitting = [name for name in headings if (p := row[1].get(name)) and max(p.peak_bytes, p.high_bytes) <= budget]
        held = [headings[name].removeprefix("peak ") for name in fitting]
        if len(headings) == 1:
            return "yes" if held else "no"
        if len(held) == len(headings):
            return "both" if len(held) == 2 else "all"
        return ", ".join(held) or "none"

    def figure(name: str, key: str) -> Callable[[_Row], float]:
        return lambda row: getattr(row[1].get(name), key, math.nan)

    has_range = bool(budget) and any(point.high_bytes > point.peak_bytes for point in sweep.points)
    return [
        Column("batch", lambda row: row[0], kind="name"),
        *(Column[_Row](heading, figure(name, "peak_bytes"), peak) for name, heading in headings.items()),
        *([Column[_Row]("up to", figure(own, "high_bytes"), peak)] if has_range else []),
        *([Column[_Row]("fits", fits, kind="text")] if budget else []),
        Column("resident", figure(own, "resident_bytes"), format_bytes),
        Column("lower bound", figure(own, "lower_bound_bytes"), format_bytes, optional=True),
    ]


def _bar(share: float) -> str:
    eighths = max(1, round(8 * _BAR_CELLS * share))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _listed(points: Sequence[tuple[float, float]]) -> str:
    """Write peaks in words; of many, the first, the last and some in between."""
    step = -(-(len(points) - 1) // (_SAID - 1)) if len(points) > _SAID else 1
    labelled = list(dict.fromkeys([*points[::step], *points[-1:]]))
    return ", ".join(f"{format_bytes(y)} at {x:g}" for x, y in labelled)
