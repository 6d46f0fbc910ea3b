"""The largest batch that fits a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphwright.ir.dtypes import Shape
from graphwright.plain import fields_json
from graphwright.report.draw import Printed


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """One batch size, measured in a fresh process.

    Attributes:
        batch: the size.
        peak_bytes: the measured peak; None where the process was killed for memory.
        fits: whether it is within the budget.
    """

    batch: int
    peak_bytes: int | None
    fits: bool


@dataclass(frozen=True)
class MaxBatch(Printed):
    """The largest batch that fits a budget. Returned by `graphwright.max_batch`.

    Attributes:
        name: of the step.
        feeds: shape by argument; None where the batch size goes.
        budget_bytes: the budget.
        batch: the answer: measured where that was asked for, else predicted. 0 where no batch fits, None where every batch does.
        predicted_batch: the largest batch whose predicted peak is within the budget.
        peak_bytes: predicted at `batch`.
        next_peak_bytes: predicted with one example more.
        order: the order of execution that the prediction is for.
        predicted: the predicted peak by batch size: at `batch`, at one more, and at the measured sizes.
        measured: what was measured, by batch size; empty where it was not asked for.
        how: by figure, how it was obtained.
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

    @property
    def is_confirmed(self) -> bool:
        """Whether it was measured that this batch fits, and that one more does not."""
        by_size = {m.batch: m.fits for m in self.measured}
        if self.batch is None:
            return False
        return by_size.get(self.batch, self.batch == 0) and by_size.get(self.batch + 1) is False

    @property
    def is_corrected(self) -> bool:
        """Whether the measurement gave another answer than the prediction."""
        return self.batch != self.predicted_batch

    def to_json(self) -> dict[str, object]:
        """Plain numbers, as docs/json.md lists them; null for what there is not."""
        return {**fields_json(self), "is_confirmed": self.is_confirmed, "is_corrected": self.is_corrected}
