"""Results of `bench.memory`: rows, their file, and the tables for a terminal and for the docs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

MIB = 1 << 20
COLUMNS = ("step", "budget", "predicted", "measured", "kept", "error", "planned time", "time", "FLOPs", "planning", "equal")
LEGEND = (
    "Bytes in MiB, all that the step holds at once: variables, inputs and what it allocates. "
    "budget: percent of the measured peak of the unmodified step; act. of its activation peak, which is the peak less the "
    "resident bytes. kept: the measured peak is within the budget. error: predicted against measured peak. planned time, time: "
    "relative to the unmodified step, steps taking turns in one process. FLOPs: recomputed, as a share of the unmodified step's. equal: "
    "loss and all variables after three steps, bit for bit unless said otherwise."
)


@dataclass
class Row:
    """One way to run one model. Missing figures stay None (nan is no JSON)."""

    step: str  # "unmodified", "tf.recompute_grad", "graphwright", ...
    budget: str = ""  # as text: "50 %", "50 % act.", "as recompute_grad"
    budget_bytes: int | None = None
    status: str = ""  # "ok", "infeasible", "raises", "failed"
    predicted_bytes: int | None = None
    measured_bytes: int | None = None
    resident_bytes: int | None = None
    time_s: float | None = None
    time_ratio: float | None = None
    recomputed_flops: float | None = None
    planning_time_s: float | None = None
    equal: bool | None = None
    planned_time_ratio: float | None = None
    note: str = ""  # the error, or what differs
    how: str = ""

    @property
    def kept(self) -> bool | None:
        """Whether the measured peak is within the budget; None without a budget or a measurement."""
        if self.budget_bytes is None or self.measured_bytes is None:
            return None
        return self.measured_bytes <= self.budget_bytes

    @property
    def error(self) -> float | None:
        """Predicted against measured peak, as a share of the measured one."""
        if self.predicted_bytes is None or not self.measured_bytes:
            return None
        return self.predicted_bytes / self.measured_bytes - 1

    def cells(self) -> tuple[str, ...]:
        """Texts for `COLUMNS`."""
        budget = self.budget
        if self.budget_bytes is not None:
            budget += f" = {_mib(self.budget_bytes)}"
        return (
            self.step,
            budget,
            "" if self.predicted_bytes is None else _mib(self.predicted_bytes),
            "" if self.measured_bytes is None else _mib(self.measured_bytes),
            "" if self.kept is None else ("yes" if self.kept else "NO"),
            "" if self.error is None else f"{100 * self.error:+.1f} %",
            "" if self.planned_time_ratio is None else f"{self.planned_time_ratio:.2f}",
            "" if self.time_ratio is None or math.isnan(self.time_ratio) else f"{self.time_ratio:.2f}",
            "" if self.recomputed_flops is None else f"{100 * self.recomputed_flops:.1f} %",
            "" if self.planning_time_s is None else f"{self.planning_time_s:.1f} s",
            {True: "yes", False: "WRONG", None: "" if self.status == "ok" else self.status}[self.equal],
        )


@dataclass
class ModelRows:
    """All rows of one model, with their settings."""

    description: str
    settings: Mapping[str, Any]
    complete: bool = False
    rows: list[Row] = field(default_factory=list)


@dataclass
class Results:
    """All results so far, stored in a JSON file."""

    about: dict[str, Any] = field(default_factory=dict)
    models: dict[str, ModelRows] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read the results of the file; empty without a file."""
        if not path.exists():
            return cls()
        data = json.loads(path.read_text())
        models = {name: ModelRows(**{**entry, "rows": [Row(**row) for row in entry["rows"]]}) for name, entry in data["models"].items()}
        return cls(data["about"], models)

    def write(self, path: Path) -> None:
        """Write the file atomically, through another name."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".part")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n")
        unfinished.replace(path)


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.{1 if nbytes < 1000 * MIB else 0}f}"


def print_table(results: Results, names: Iterable[str], console: Console) -> None:
    """A table for the terminal, with notes below. It is 145 columns wide; a narrower terminal folds it."""
    wide = Console(file=console.file, width=max(console.width, 145))
    table = Table(*COLUMNS, box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[2:10]:
        column.justify = "right"
    notes: list[str] = []
    for name in names:
        if name not in results.models:
            continue
        entry = results.models[name]
        table.add_section()
        table.add_row(f"[bold]{escape(name)}[/bold]")
        for row in entry.rows:
            table.add_row(*(escape(cell) for cell in row.cells()))
        notes.append(f"{name}: {entry.description}")
        notes += [f"  {row.step} {row.budget}: {row.note}" for row in entry.rows if row.note]
    wide.print(table)
    for note in notes:
        console.print(escape(note), style="dim")


def as_markdown(results: Results) -> str:
    """Tables for the docs, one per model."""
    about = ", ".join(f"{key} {value}" for key, value in results.about.items())
    lines = [f"{LEGEND}\n", f"{about}.\n"]
    for name, entry in results.models.items():
        lines += [f"**{name}**: {entry.description}\n", "| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * 8 + "---|"]
        for row in entry.rows:
            cells = list(row.cells())
            cells[-1] += f": {row.note}" if row.note else ""
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
