"""The rows of `bench.accuracy`, their file, and their tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

MIB = 2**20
GOAL = 0.03


@dataclass(frozen=True)
class PeakRow:
    """One measured peak, with its predictions.

    Attributes:
        order: "ordered" by control edges, or "executor": TensorFlow's own.
        predicted_bytes: for the executor's order, on the graph that the measured process ran.
        low_bytes: lower end of the executor's peak, over several numberings of the graph.
        high_bytes: upper end.
        grappler_bytes: Grappler's estimate.
        processes: number of measuring processes, more than one if the simulations differ by more than the goal. `measured_bytes` is
            the median over them.
        least_bytes: the smallest measured peak.
        most_bytes: the largest measured peak.
    """

    model: str
    size: str
    mode: str
    batch: int
    order: str
    threads: int
    measured_bytes: int
    resident_bytes: int
    predicted_bytes: int
    low_bytes: int
    high_bytes: int
    grappler_bytes: int
    how: str
    processes: int = 1
    least_bytes: int = 0
    most_bytes: int = 0

    @property
    def key(self) -> tuple[str, str, str, int, str, int]:
        """What was measured."""
        return self.model, self.size, self.mode, self.batch, self.order, self.threads

    @property
    def error(self) -> float:
        """Of our prediction, as a share of the measured peak."""
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def in_range(self) -> bool:
        """Whether all measured peaks lie in the predicted range, give or take the goal."""
        least, most = self.least_bytes or self.measured_bytes, self.most_bytes or self.measured_bytes
        return self.low_bytes * (1 - GOAL) <= least and most <= self.high_bytes * (1 + GOAL)

    @property
    def star(self) -> str:
        """Return a star if a second process counted allocations; older rows only have the high-water mark of pages."""
        return "*" * ("counted by" in self.how)

    @property
    def grappler_error(self) -> float:
        """Of Grappler's estimate."""
        return self.grappler_bytes / self.measured_bytes - 1


@dataclass(frozen=True)
class FlopRow:
    """FLOPs of one step, as we and as TensorFlow's profiler count them.

    Attributes:
        products: of convolutions and matrix products in inference, as we count them.
        formula: `products` by the closed formula of the layers, if there is one.
        xla_flops: by XLA's cost analysis of the whole step, where XLA compiles it.
    """

    model: str
    size: str
    mode: str
    batch: int
    flops: float
    profiler_flops: int
    unknown_ops: int
    products: float = 0.0
    formula: float | None = None
    xla_flops: float | None = None

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What was counted."""
        return self.model, self.size, self.mode, self.batch


@dataclass
class AccuracyResults:
    """All rows of a file."""

    peaks: list[PeakRow] = field(default_factory=list[PeakRow])
    flops: list[FlopRow] = field(default_factory=list[FlopRow])

    @classmethod
    def read(cls, path: Path) -> AccuracyResults:
        """Read the rows of the file, if it exists."""
        if not path.exists():
            return cls()
        data = json.loads(path.read_text())
        return cls([PeakRow(**row) for row in data["peaks"]], [FlopRow(**row) for row in data["flops"]])

    def write(self, path: Path) -> None:
        """Replace the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"peaks": [asdict(r) for r in self.peaks], "flops": [asdict(r) for r in self.flops]}, indent=1) + "\n")
        new.replace(path)

    def put(self, row: PeakRow | FlopRow) -> None:
        """Add the row, or replace the row of the same case."""
        if isinstance(row, PeakRow):
            self.peaks = [*(old for old in self.peaks if old.key != row.key), row]
        else:
            self.flops = [*(old for old in self.flops if old.key != row.key), row]


PEAK_COLUMNS = (
    "model",
    "size",
    "mode",
    "batch",
    "order",
    "threads",
    "measured MiB",
    "predicted MiB",
    "error",
    "range MiB",
    "in it",
    "Grappler",
)
FLOP_COLUMNS = (
    "model",
    "size",
    "mode",
    "batch",
    "GFLOP",
    "tf.compat.v1.profiler",
    "difference",
    "XLA",
    "uncounted ops",
    "products to formula",
)


def peak_cells(row: PeakRow) -> tuple[str, ...]:
    """The cells of a row."""
    span = f"{row.low_bytes / MIB:,.1f} to {row.high_bytes / MIB:,.1f}" if row.order == "executor" or row.low_bytes < row.high_bytes else ""
    seen = f"{row.measured_bytes / MIB:,.1f}"
    if row.processes > 1:
        seen += f" ({row.least_bytes / MIB:,.1f} to {row.most_bytes / MIB:,.1f})"
    return (
        row.model,
        row.size,
        row.mode,
        str(row.batch),
        row.order,
        str(row.threads),
        seen,
        f"{row.predicted_bytes / MIB:,.1f}",
        f"{100 * row.error:+.1f} %{row.star}",
        span,
        ("yes" if row.in_range else "no") if span else "",
        f"{100 * row.grappler_error:+.0f} %",
    )


def flop_cells(row: FlopRow) -> tuple[str, ...]:
    """The cells of a row."""

    def difference(theirs: float | None) -> str:
        return f"{100 * (theirs / row.flops - 1):+.1f} %" if row.flops and theirs is not None else ""

    return (
        row.model,
        row.size,
        row.mode,
        str(row.batch),
        f"{row.flops / 1e9:,.3f}",
        f"{row.profiler_flops / 1e9:,.3f}",
        difference(row.profiler_flops),
        difference(row.xla_flops),
        str(row.unknown_ops),
        f"{100 * (row.products / row.formula - 1):+.2f} %" if row.formula else "",
    )


def verdict(rows: Sequence[PeakRow]) -> str:
    """Return how many rows are within the goal."""
    parts: list[str] = []
    for order, words in (("ordered", "order held by control edges"), ("executor", "the executor's order")):
        mine = [row for row in rows if row.order == order]
        if mine:
            within = sum(abs(row.error) <= GOAL for row in mine)
            worst = max(mine, key=lambda row: abs(row.error))
            theirs = sum(abs(row.grappler_error) <= GOAL for row in mine)
            inside = f", {sum(row.in_range for row in mine)} in the predicted range give or take that much" if order == "executor" else ""
            parts.append(
                f"{words}: {within} of {len(mine)} within {100 * GOAL:.0f} %{inside} (Grappler: {theirs}), "
                f"worst {100 * worst.error:+.1f} % ({worst.model} {worst.size}, {worst.mode}, batch {worst.batch}, threads {worst.threads})"
            )
    return "; ".join(parts)


def print_tables(results: AccuracyResults, console: Console) -> None:
    """Both tables."""
    for title, columns, cells in _tables(results):
        table = Table(title=title, title_justify="left")
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index < 3 else "right")
        for row in cells:
            table.add_row(*row)
        console.print(table)
    console.print(verdict(results.peaks))


def as_markdown(results: AccuracyResults) -> str:
    """Both tables, as Markdown."""
    lines: list[str] = []
    for title, columns, cells in _tables(results):
        lines += [f"**{title}**", "", f"| {' | '.join(columns)} |", f"|{'---|' * 3}{'---:|' * (len(columns) - 3)}"]
        lines += [f"| {' | '.join(row)} |" for row in cells] + [""]
    return "\n".join([*lines, verdict(results.peaks)])


SUMMARY_COLUMNS = ("model", "size", "mode", "batches", "measured MiB", "ordered", "1 thread", "2 threads", "in range", "Grappler")


def summary_cells(rows: Sequence[PeakRow]) -> tuple[str, ...]:
    """One line for the batch sizes of a model and mode: errors by rising batch size."""
    loose = [row for row in rows if row.order == "executor"]

    def errors(order: str, threads: int) -> str:
        return " / ".join(f"{100 * row.error:+.1f}{row.star}" for row in rows if (row.order, row.threads) == (order, threads))

    fixed = {row.batch: row for row in rows if row.order == "ordered"}
    return (
        *(rows[0].model, rows[0].size, rows[0].mode),
        " / ".join(map(str, fixed)),
        " / ".join(f"{row.measured_bytes / MIB:,.0f}" for row in fixed.values()),
        *(errors("ordered", 2), errors("executor", 1), errors("executor", 2)),
        f"{sum(row.in_range for row in loose)} of {len(loose)}",
        " / ".join(f"{100 * row.grappler_error:+.0f}" for row in fixed.values()),
    )


def as_summary(results: AccuracyResults) -> str:
    """One line per model and mode, as Markdown; errors in percent of the measured peak."""
    groups: dict[tuple[str, str, str], list[PeakRow]] = {}
    for row in sorted(results.peaks, key=_place):
        groups.setdefault((row.model, row.size, row.mode), []).append(row)
    lines = [f"| {' | '.join(SUMMARY_COLUMNS)} |", f"|{'---|' * 3}{'---:|' * (len(SUMMARY_COLUMNS) - 3)}"]
    lines += [f"| {' | '.join(summary_cells(rows))} |" for rows in groups.values()]
    return "\n".join([*lines, "", verdict(results.peaks) + "."])


def _tables(results: AccuracyResults) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    return [
        ("Peak memory, predicted and measured", PEAK_COLUMNS, [peak_cells(row) for row in sorted(results.peaks, key=_place)]),
        ("FLOPs of a step", FLOP_COLUMNS, [flop_cells(row) for row in sorted(results.flops, key=_place)]),
    ]


def _place(row: PeakRow | FlopRow) -> tuple[object, ...]:
    return row.size, row.model, row.mode != "train", row.batch
