"""The result of `max_batch`: the largest batch that fits a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphwright.ir.dtypes import Shape
from graphwright.plain import fields_json
from graphwright.report.sheet import Column, Paragraph, Printed, Sheet, Table
from graphwright.report.units import feeds_text, format_bytes, format_bytes_apart, printable


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """One batch size, measured in a fresh process; `peak_bytes` is None if the process was killed for memory."""

    batch: int
    peak_bytes: int | None
    fits: bool


@dataclass(frozen=True)
class MaxBatch(Printed):
    """The largest batch that fits a budget. Returned by `graphwright.max_batch`.

    Attributes:
        feeds: shape by argument; None for the batch size.
        batch: the answer, measured if that was requested, else predicted; 0 if no batch fits, None if every batch does.
        predicted_batch: the largest batch for which the upper end of the predicted range is within the budget.
        peak_bytes: predicted at `batch`.
        predicted: the predicted peak at `batch`, at one more, and at the measured sizes.
        predicted_high: the upper ends of the ranges of `predicted`.
    """

    name: str
    feeds: Mapping[str, Shape]
    budget_bytes: int
    batch: int | None
    predicted_batch: int | None
    peak_bytes: int
    next_peak_bytes: int
    order: str
    predicted: Mapping[int, int]
    measured: tuple[MeasuredBatch, ...]
    how: Mapping[str, str]
    predicted_high: Mapping[int, int]

    @property
    def is_confirmed(self) -> bool:
        """Whether measurements show that this batch fits and one example more does not."""
        by_size = {m.batch: m.fits for m in self.measured}
        if self.batch is None:
            return False
        return by_size.get(self.batch, self.batch == 0) and by_size.get(self.batch + 1) is False

    @property
    def is_corrected(self) -> bool:
        """Whether the measurement changed the predicted answer."""
        return self.batch != self.predicted_batch

    def to_json(self) -> dict[str, object]:
        return {**fields_json(self), "is_confirmed": self.is_confirmed, "is_corrected": self.is_corrected}

    def _sheet(self) -> Sheet:
        rows = [] if self.batch is None else [_row(self, batch) for batch in self.predicted]
        first = [Paragraph(f"Inputs: {feeds_text(self.feeds)}"), Table(rows, _COLUMNS)]
        return Sheet(_verdict(self), first, (), list(self.how.items()))


_Row = tuple[int, str, str, str, str, bool]
_COLUMNS: Sequence[Column[_Row]] = (
    Column("batch", lambda row: row[0], kind="name"),
    Column("predicted peak", lambda row: row[1]),
    Column("up to", lambda row: row[2]),
    Column("measured peak", lambda row: row[3]),
    Column("budget", lambda row: row[4]),
    Column("fits", lambda row: "yes" if row[5] else "no"),
)


def _verdict(answer: MaxBatch) -> str:
    name, budget = printable(answer.name), format_bytes(answer.budget_bytes)
    if answer.batch is None:
        return f"{name}: every batch size fits {budget}; the predicted peak does not grow with it."
    text = f"{name}: " + (f"a batch of {answer.batch:,} is the largest that fits {budget}" if answer.batch else f"no batch fits {budget}")
    if not answer.measured:
        return f"{text} (upper end of the predicted range, not measured)."
    if not answer.is_confirmed:
        return f"{text}; the measurements are inconclusive."
    if answer.is_corrected:
        return f"{text}, as measured; predicted were {answer.predicted_batch:,}."
    return f"{text}, as predicted and as measured."


def _row(answer: MaxBatch, batch: int) -> _Row:
    predicted, high = answer.predicted[batch], answer.predicted_high[batch]
    measured = next((m for m in answer.measured if m.batch == batch), None)
    decisive = measured.peak_bytes if measured is not None and measured.peak_bytes is not None else high
    peak, budget = format_bytes_apart(decisive, answer.budget_bytes)
    up_to = format_bytes(high) if high > predicted else ""
    if measured is None:
        own, up_to = (format_bytes(predicted), peak) if up_to else (peak, "")
        return batch, own, up_to, "", budget, high <= answer.budget_bytes
    return batch, format_bytes(predicted), up_to, "killed" if measured.peak_bytes is None else peak, budget, measured.fits
