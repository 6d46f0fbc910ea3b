"""Formulas of the batch size, and the largest batch, as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.text import Text

from graphwright.analyze.formula import Formula
from graphwright.ir.dtypes import Shape
from graphwright.report.batch_results import BatchFormulas, MaxBatch, MeasuredBatch
from graphwright.report.terminal_layout import Page, wrapped
from graphwright.report.units import format_bytes, format_bytes_apart, printable

_PIECES = 8


def print_formulas(formulas: BatchFormulas, page: Page) -> None:
    peak = formulas.peak_bytes.told_apart()[-1]
    text = Formula((peak,), formulas.peak_bytes.variable, "bytes")
    where = f" for {formulas.peak_bytes.where(peak)}" if peak.first > 1 else ""
    page.headline(f"{printable(formulas.name)}: {text} at its peak{where}.")
    page.paragraph(f"Inputs: {_feeds(formulas.feeds)}")
    for name, formula in formulas.formulas.items():
        label = name.replace("_", " ").replace("flops", "FLOPs").removesuffix(" bytes")
        page.section(label, pieces_table(formula, page.body_width))
    page.origins(formulas.how.items())


def pieces_table(formula: Formula, width: int) -> RenderableType:
    """A formula, one line for each range of sizes."""
    lines = formula.lines()
    shown = lines if len(lines) <= _PIECES else (*lines[: _PIECES - 2], ("...", f"{len(lines) - _PIECES + 1} pieces more"), lines[-1])
    return Text(
        "\n".join(wrapped(f"{where}: {text}" if where not in ("", "...") else f"{where} {text}".strip(), width) for where, text in shown)
    )


def _feeds(feeds: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} ({', '.join('batch' if d is None else str(d) for d in shape or ())})" for name, shape in feeds.items())


def print_max_batch(answer: MaxBatch, page: Page) -> None:
    page.headline(max_batch_verdict(answer))
    page.paragraph(f"Inputs: {_feeds(answer.feeds)}")
    rows = _max_batch_rows(answer)
    if rows:
        columns = ("batch", "predicted peak", "measured peak", "budget", "fits")
        kept = [k for k, column in enumerate(columns) if column != "measured peak" or answer.measured]
        page.table("Around the budget", [columns[k] for k in kept], [[row[k] for k in kept] for row in rows])
    page.section("Predicted peak", pieces_table(answer.formula, page.body_width))
    page.origins(answer.how.items())


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
