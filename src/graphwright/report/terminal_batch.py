"""Formulas of the batch size, and the largest batch, as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, RenderableType
from rich.text import Text

from graphwright.analyze.formula import Formula
from graphwright.ir.dtypes import Shape
from graphwright.report.batch_results import BatchFormulas, MaxBatch, MeasuredBatch
from graphwright.report.terminal_layout import (
    MAX_WIDTH,
    figures_table,
    origins_table,
    plain_console,
    plain_text,
    print_on,
    print_section,
    wrapped,
)
from graphwright.report.units import format_bytes, format_bytes_apart, printable

_PIECES = 8


def render_formulas(formulas: BatchFormulas) -> str:
    """The formulas as plain text, no line longer than 80 columns."""
    console = plain_console()
    print_formulas(formulas, console)
    return plain_text(console)


def print_formulas(formulas: BatchFormulas, console: Console | None = None) -> None:
    """Print formulas on `console` (standard output by default), in color where it has colors."""
    console = console or Console()
    width = min(console.width, MAX_WIDTH)
    peak = formulas.peak_bytes.pieces[-1]
    text = Formula((peak,), formulas.peak_bytes.variable, "bytes")
    where = f" for {formulas.peak_bytes.where(peak)}" if peak.first > 1 else ""
    print_on(console, width, Text(wrapped(f"{printable(formulas.name)}: {text} at its peak{where}.", width), style="bold"))
    print_on(console, width, Text(wrapped(f"Inputs: {_feeds(formulas.feeds)}", width)))
    for name, formula in formulas.formulas.items():
        label = name.replace("_", " ").replace("flops", "FLOPs").removesuffix(" bytes")
        print_section(console, width, label, pieces_table(formula, width))
    print_section(console, width, "How each figure was obtained", origins_table(list(formulas.how.items()), width))


def pieces_table(formula: Formula, width: int) -> RenderableType:
    """A formula, one line for each range of sizes."""
    lines = formula.lines()
    shown = lines if len(lines) <= _PIECES else (*lines[: _PIECES - 2], ("...", f"{len(lines) - _PIECES + 1} pieces more"), lines[-1])
    return Text(
        "\n".join(
            wrapped(f"{where}: {text}" if where not in ("", "...") else f"{where} {text}".strip(), width - 2) for where, text in shown
        )
    )


def _feeds(feeds: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} ({', '.join('batch' if d is None else str(d) for d in shape or ())})" for name, shape in feeds.items())


def render_max_batch(answer: MaxBatch) -> str:
    """The answer as plain text, no line longer than 80 columns."""
    console = plain_console()
    print_max_batch(answer, console)
    return plain_text(console)


def print_max_batch(answer: MaxBatch, console: Console | None = None) -> None:
    """Print the answer on `console` (standard output by default), in color where it has colors."""
    console = console or Console()
    width = min(console.width, MAX_WIDTH)
    print_on(console, width, Text(wrapped(max_batch_verdict(answer), width), style="bold"))
    print_on(console, width, Text(wrapped(f"Inputs: {_feeds(answer.feeds)}", width)))
    rows = _max_batch_rows(answer)
    if rows:
        columns = ("batch", "predicted peak", "measured peak", "budget", "fits")
        print_section(console, width, "Around the budget", figures_table(width - 2, columns, rows))
    print_section(console, width, "Predicted peak", pieces_table(answer.formula, width))
    print_section(console, width, "How each figure was obtained", origins_table(list(answer.how.items()), width))


def max_batch_verdict(answer: MaxBatch) -> str:
    """One sentence: the batch, and whether it was measured."""
    name, budget = printable(answer.name), format_bytes(answer.budget_bytes)
    if answer.batch is None:
        return f"{name}: every batch size fits {budget}; the predicted peak does not grow with it."
    text = (
        f"{name}: no batch fits {budget}" if answer.batch == 0 else f"{name}: a batch of {answer.batch:,} is the largest that fits {budget}"
    )
    if not answer.measured:
        return f"{text} (predicted, not measured)."
    if not answer.is_confirmed:
        return f"{text}; measuring did not settle it."
    if answer.is_corrected:
        return f"{text}, as measured; predicted were {answer.predicted_batch:,}."
    return f"{text}, as predicted and as measured."


def _max_batch_rows(answer: MaxBatch) -> list[tuple[str, ...]]:
    measured = {m.batch: m for m in answer.measured}
    around = {} if answer.batch is None else {answer.batch: answer.peak_bytes, answer.batch + 1: answer.next_peak_bytes}
    rows: list[tuple[str, ...]] = []
    for size in sorted({*measured, *around} - {0}):
        predicted = around.get(size, int(answer.formula(size)))
        known = measured.get(size)
        fits = known.fits if known else predicted <= answer.budget_bytes
        rows.append((f"{size:,}", *_apart(predicted, known, answer.budget_bytes), "yes" if fits else "no"))
    return rows


def _apart(predicted: int, known: MeasuredBatch | None, budget: int) -> tuple[str, str, str]:
    """Predicted, measured, budget, told apart."""
    deciding = known.peak_bytes if known is not None and known.peak_bytes is not None else predicted
    told, limit = format_bytes_apart(deciding, budget)
    measured = "" if known is None else "killed" if known.peak_bytes is None else told
    return (told if known is None else format_bytes(predicted)), measured, limit
