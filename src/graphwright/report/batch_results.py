"""What costs are as functions of the batch size: formulas, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphwright.analyze.formula import Formula
from graphwright.ir.dtypes import Shape
from graphwright.plain import fields_json, plain
from graphwright.report.draw import Printed

_FORMULAS = ("peak_bytes", "resident_bytes", "activation_bytes", "residual_bytes", "flops_forward", "flops_backward", "flops_optimizer")


@dataclass(frozen=True)
class BatchFormulas(Printed):
    """What a step costs as functions of its batch size. Returned by `graphwright.batch_formulas`.

    Attributes:
        name: of the step.
        feeds: shape by argument; None where the batch size goes.
        order: the order of execution that the peak is for: "traced", the order in which the step was traced.
        peak_bytes: the peak, resident bytes included.
        resident_bytes: variables, inputs and constants.
        activation_bytes: what is live at the peak beside what is resident.
        residual_bytes: all forward values that the backward pass reads; 0 without a backward pass.
        flops_forward: FLOPs of the forward pass; None where they are no polynomial of the batch size.
        flops_backward: of the gradients.
        flops_optimizer: between finished gradients and the updates of variables.
        unknown_flop_ops: op types without a rule, which are in no figure.
        how: by figure, how it was obtained.
    """

    name: str
    feeds: Mapping[str, Shape]
    order: str
    peak_bytes: Formula
    resident_bytes: Formula
    activation_bytes: Formula
    residual_bytes: Formula
    flops_forward: Formula | None
    flops_backward: Formula | None
    flops_optimizer: Formula | None
    unknown_flop_ops: tuple[str, ...]
    how: Mapping[str, str]

    @property
    def formulas(self) -> dict[str, Formula]:
        """All formulas by name."""
        found: dict[str, Formula | None] = {name: getattr(self, name) for name in _FORMULAS}
        return {name: formula for name, formula in found.items() if formula is not None}

    def to_json(self) -> dict[str, object]:
        """Formulas as text and exact coefficients, as docs/json.md lists them."""
        return {**fields_json(self, *_FORMULAS), "formulas": plain(self.formulas)}


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
        formula: the predicted peak.
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
    formula: Formula
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
