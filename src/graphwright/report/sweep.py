"""What `sweep` gives: the peak of a step against the batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from graphwright.report.draw import InNotebook, OnPage
from graphwright.report.page_tables import Cell, Column, Table, bytes_cell
from graphwright.report.units import format_bytes

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
class SweepResult(OnPage, InNotebook):
    """Peak against batch size.

    Attributes:
        points: by batch size.
        budget_bytes: what the peaks are compared with; 0 without a budget.
        largest_batch: the largest batch size that fits the budget, or None.
        how: how the peaks were obtained.
        name: of the step.
        others: sweeps of other steps that are shown beside this one, see `beside`.
    """

    points: tuple[SweepPoint, ...]
    budget_bytes: int
    largest_batch: int | None
    how: str
    name: str = ""
    others: Mapping[str, SweepResult] = field(default_factory=dict[str, "SweepResult"])

    def beside(self, **others: SweepResult) -> SweepResult:
        """This sweep with others that its table, charts and pages show beside it: the same model without batch norm, for example.

        What the others have beside them comes along.

        >>> plain = SweepResult((SweepPoint(1, 300, 100, 0, False),), 0, None, "")
        >>> leaner = SweepResult((SweepPoint(1, 200, 100, 0, False),), 0, None, "")
        >>> print(plain.beside(without_batch_norm=leaner).summary)
        Peak against batch size. this: 300 B at 1. without batch norm: 200 B at 1.
        """
        named: dict[str, SweepResult] = {}
        for given, other in others.items():
            name = given.replace("_", " ")
            named[name] = replace(other, others={})
            named |= {f"{name}, {inner}": further for inner, further in other.others.items()}
        return replace(self, others={**self.others, **named})

    @property
    def all(self) -> Mapping[str, SweepResult]:
        """This sweep and the others, by what they are called."""
        return {self.name or "this": self, **self.others}

    def origins(self, labels: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
        """Whose peaks, and how they were obtained.

        Args:
            labels: what the sweeps are called, by name; by default their names.
        """
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
        """One sentence: what fits, or from what to what the peak goes."""
        if not self.points:
            return "No batch size was looked at."
        first, last = self.points[0], self.points[-1]
        lowest, highest = format_bytes(first.peak_bytes), format_bytes(last.peak_bytes)
        grows = f"The peak goes from {lowest} at batch size {first.batch} to {highest} at {last.batch}"
        if not self.budget_bytes:
            return f"{grows}."
        budget = format_bytes(self.budget_bytes)
        return (
            f"Batch size {self.largest_batch} fits {budget}. {grows}." if self.largest_batch else f"No batch size fits {budget}. {grows}."
        )

    @property
    def summary(self) -> str:
        """The chart in words."""
        rows = [f"{name}: {_listed(points)}." for name, points in self.series.items()]
        return " ".join(["Peak against batch size.", *rows])

    def table(self) -> Table:
        """A row per batch size, a column per sweep."""
        sweeps = self.all
        by_batch = {name: {p.batch: p for p in sweep.points} for name, sweep in sweeps.items()}
        batches = sorted({batch for points in by_batch.values() for batch in points})
        columns = [Column("batch", "name"), *(Column(f"peak, {name}" if len(sweeps) > 1 else "peak", bar=True) for name in sweeps)]
        columns += [Column("resident"), Column("lower bound")] + ([Column("fits", "text")] if self.budget_bytes else [])
        rows: list[tuple[Cell, ...]] = []
        for batch in batches:
            found = [points.get(batch) for points in by_batch.values()]
            own = found[0]
            row = [Cell(f"{batch:,}", batch), *(bytes_cell(p.peak_bytes) if p else Cell("", -1) for p in found)]
            row += [bytes_cell(own.resident_bytes), bytes_cell(own.lower_bound_bytes)] if own else [Cell("", -1), Cell("", -1)]
            if self.budget_bytes:
                row.append(Cell(", ".join("" if p is None else "yes" if p.peak_bytes <= self.budget_bytes else "no" for p in found)))
            rows.append(tuple(row))
        return Table("table-sweep", "Peak against batch size", self.verdict, tuple(columns), tuple(rows), (), len(rows))

    def to_json(self) -> dict[str, object]:
        """Plain numbers and text, as docs/json.md lists them."""
        return {
            "name": self.name,
            "budget_bytes": self.budget_bytes,
            "largest_batch": self.largest_batch,
            "points": [asdict(point) for point in self.points],
            "others": {name: other.to_json() for name, other in self.others.items()},
            "how": self.how,
        }


def _listed(points: Sequence[tuple[float, float]]) -> str:
    """Peaks in words; of many, those at the ends and in between."""
    step = -(-(len(points) - 1) // (_SAID - 1)) if len(points) > _SAID else 1
    said = list(dict.fromkeys([*points[::step], *points[-1:]]))
    return ", ".join(f"{format_bytes(y)} at {x:g}" for x, y in said)
