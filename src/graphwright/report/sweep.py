"""The result of `sweep`: the peak of a step against the batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphwright.plain import fields_json
from graphwright.report.page import OnPage
from graphwright.report.sheet import Block, Column, Drawing, Facts, Printed, Sheet, Tab, Table, pairs
from graphwright.report.units import counted, format_bytes, format_bytes_apart, printable

_BAR_CELLS = 32
_SAID = 6  # of the points of a chart in words


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """The predicted peak at one batch size."""

    batch: int
    peak_bytes: int
    resident_bytes: int
    lower_bound_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class SweepResult(OnPage, Printed):
    """Peak against batch size.

    Attributes:
        points: by batch size.
        budget_bytes: 0 without a budget.
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
        first, last = self.points[0], self.points[-1]
        lowest, highest = format_bytes(first.peak_bytes), format_bytes(last.peak_bytes)
        grows = f"The peak goes from {lowest} at batch size {first.batch} to {highest} at {last.batch}"
        if not self.budget_bytes:
            return f"{grows}."
        budget = format_bytes(self.budget_bytes)
        looked = ", and no larger one was tried" if self.largest_batch == last.batch else ""
        return (
            f"Batch size {self.largest_batch} fits {budget}{looked}. {grows}."
            if self.largest_batch
            else f"No batch size fits {budget}. {grows}."
        )

    @property
    def summary(self) -> str:
        """The chart in words."""
        rows = [f"{name}: {_listed(points)}." for name, points in self.series.items()]
        return " ".join(["Peak against batch size.", *rows])

    def table(self) -> Table[Any]:
        """Return a row per batch size, with a column per sweep."""
        rows = _rows(self)
        columns = _columns(self, {name: f"peak {letter}" if self.others else "peak" for name, letter in self._letters.items()})
        caption, title = counted(len(rows), "batch size"), "Peak against batch size"
        return Table(rows, columns, "table-sweep", caption, limit=None, title=title, part="always")

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
        blocks: list[Block] = [
            Drawing(
                "line_chart",
                {"id": "sweep", "summary": self.summary},
                ("sweep.js",),
                self._chart_data,
                hint=hint,
                title="Peak against batch size",
            ),
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
            "sweep": [
                {
                    "name": name,
                    "batches": [p.batch for p in sweep.points],
                    "peaks": [p.peak_bytes for p in sweep.points],
                    "residents": [p.resident_bytes for p in sweep.points],
                }
                for name, sweep in self.all.items()
            ],
        }


_Row = tuple[int, Mapping[str, SweepPoint]]
"""A batch size, and the points of those sweeps that have it."""


def _rows(sweep: SweepResult) -> list[_Row]:
    points: dict[int, dict[str, SweepPoint]] = {}
    for name, other in sweep.all.items():
        for point in other.points:
            points.setdefault(point.batch, {})[name] = point
    return sorted(points.items())


def _columns(sweep: SweepResult, headings: Mapping[str, str]) -> list[Column[_Row]]:
    own, budget = sweep.name or "this", sweep.budget_bytes

    def peak(nbytes: float) -> str:
        return format_bytes_apart(nbytes, budget)[0] if budget else format_bytes(nbytes)

    def fits(row: _Row) -> str:
        held = [heading for name, heading in headings.items() if (p := row[1].get(name)) is not None and p.peak_bytes <= budget]
        if len(headings) == 1:
            return "yes" if held else "no"
        if len(held) == len(headings):
            return "both" if len(held) == 2 else "all"
        return ", ".join(heading.removeprefix("peak").lstrip(", ") for heading in held) or "none"

    columns: list[Column[_Row]] = [Column("batch", lambda row: row[0], kind="name")]
    for name, heading in headings.items():
        columns.append(Column(heading, lambda row, name=name: row[1][name].peak_bytes if name in row[1] else math.nan, peak))
    columns += [Column("fits", fits, kind="text")] if budget else []
    return [
        *columns,
        Column("resident", lambda row: row[1][own].resident_bytes if own in row[1] else math.nan, format_bytes),
        Column("lower bound", lambda row: row[1][own].lower_bound_bytes if own in row[1] else math.nan, format_bytes, optional=True),
    ]


def _bar(share: float) -> str:
    eighths = max(1, round(8 * _BAR_CELLS * share))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _listed(points: Sequence[tuple[float, float]]) -> str:
    """Write peaks in words; of many, the first, the last and some in between."""
    step = -(-(len(points) - 1) // (_SAID - 1)) if len(points) > _SAID else 1
    labelled = list(dict.fromkeys([*points[::step], *points[-1:]]))
    return ", ".join(f"{format_bytes(y)} at {x:g}" for x, y in labelled)
