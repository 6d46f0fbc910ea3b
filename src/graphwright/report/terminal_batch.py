"""Costs against the batch size as text for a terminal: peaks at several sizes, the largest batch that fits."""

from __future__ import annotations

from collections.abc import Sequence

from graphwright.report.batch_results import MaxBatch, MeasuredBatch
from graphwright.report.sweep import SweepResult, sweep_columns, sweep_rows
from graphwright.report.tables import Column, chosen
from graphwright.report.terminal_layout import Page, listed
from graphwright.report.units import feeds_text, format_bytes, format_bytes_apart, format_count, printable

_BAR_CELLS = 32


def print_max_batch(answer: MaxBatch, page: Page) -> None:
    page.headline(max_batch_verdict(answer))
    page.paragraph(f"Inputs: {feeds_text(answer.feeds)}")
    columns = chosen(_AROUND, "batch", "predicted peak", *(["measured peak"] if answer.measured else []), "budget", "fits")
    if answer.batch is not None:
        page.lines(listed(page.width, _max_batch_rows(answer), columns))
    page.origins(answer.how.items())


def max_batch_verdict(answer: MaxBatch) -> str:
    """One sentence: the batch, and whether it was measured."""
    name, budget = printable(answer.name), format_bytes(answer.budget_bytes)
    if answer.batch is None:
        return f"{name}: every batch size fits {budget}; the predicted peak does not grow with it."
    text = f"{name}: " + (f"a batch of {answer.batch:,} is the largest that fits {budget}" if answer.batch else f"no batch fits {budget}")
    if not answer.measured:
        return f"{text} (predicted, not measured)."
    if not answer.is_confirmed:
        return f"{text}; measuring did not settle it."
    if answer.is_corrected:
        return f"{text}, as measured; predicted were {answer.predicted_batch:,}."
    return f"{text}, as predicted and as measured."


_AROUND: Sequence[Column[tuple[int, str, str, str, bool]]] = (
    Column("batch", lambda row: format_count(row[0]), kind="name"),
    Column("predicted peak", lambda row: row[1]),
    Column("measured peak", lambda row: row[2]),
    Column("budget", lambda row: row[3]),
    Column("fits", lambda row: "yes" if row[4] else "no"),
)


def _max_batch_rows(answer: MaxBatch) -> list[tuple[int, str, str, str, bool]]:
    measured = {m.batch: m for m in answer.measured}
    rows: list[tuple[int, str, str, str, bool]] = []
    for size, predicted in answer.predicted.items():
        known = measured.get(size)
        fits = known.fits if known else predicted <= answer.budget_bytes
        rows.append((size, *_apart(predicted, known, answer.budget_bytes), fits))
    return rows


def _apart(predicted: int, known: MeasuredBatch | None, budget: int) -> tuple[str, str, str]:
    """Predicted, measured, budget, told apart."""
    deciding = known.peak_bytes if known is not None and known.peak_bytes is not None else predicted
    told, limit = format_bytes_apart(deciding, budget)
    measured = "" if known is None else "killed" if known.peak_bytes is None else told
    return (told if known is None else format_bytes(predicted)), measured, limit


def print_sweep(sweep: SweepResult, page: Page) -> None:
    page.headline(f"{printable(sweep.name)}: {sweep.verdict[:1].lower()}{sweep.verdict[1:]}" if sweep.name else sweep.verdict)
    letters = {name: chr(ord("A") + k) for k, name in enumerate(sweep.all)}
    columns = sweep_columns(sweep, {name: f"peak {letter}" if sweep.others else "peak" for name, letter in letters.items()})
    if not sweep.others:
        longest = max((p.peak_bytes for p in sweep.points), default=0) or 1
        columns.append(Column("", lambda row: _bar(next(iter(row[1].values())).peak_bytes / longest), kind="text"))
    page.table("Peak against batch size", sweep_rows(sweep), [column for column in columns if column.label != "lower bound"])
    if sweep.others:
        fits = {name: f"; largest batch that fits: {s.largest_batch or 'none'}" if s.budget_bytes else "" for name, s in sweep.all.items()}
        page.pairs("Steps", [(letters[name], printable(name) + told) for name, told in fits.items()])
    page.origins(sweep.origins(letters))


def _bar(share: float) -> str:
    """A bar of full blocks and one of eighths, so that a step of the peak is seen where it is small."""
    eighths = max(1, round(8 * _BAR_CELLS * share))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
