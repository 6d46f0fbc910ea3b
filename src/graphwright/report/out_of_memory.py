"""The result of `explain_oom`: the failed allocation of a step, its live buffers, and remedies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphwright.plain import fields_json
from graphwright.report.advice import Advice, suggestion_blocks
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.sheet import Block, Paragraph, Printed, Sheet, Tab
from graphwright.report.timeline import live_group_table
from graphwright.report.units import format_bytes


@dataclass(frozen=True)
class OutOfMemory(Printed):
    """Why a step ran out of memory. The attribute `report` of an `OutOfMemoryError`.

    Attributes:
        op: the operation whose allocation failed; "" if unknown.
        asked: shape and dtype of the allocation, in TensorFlow's words.
        memory_bytes: the memory of the step, resident bytes included; None if unknown.
        left_out: the parts that could not be inspected, and why.
    """

    op: str
    asked: str
    asked_bytes: int
    device: str
    memory_bytes: int | None
    peak: PeakPrediction | None = None
    advice: Advice | None = None
    left_out: str = ""

    @property
    def verdict(self) -> str:
        """One sentence: the failed allocation, and the available memory."""
        amount = f"{format_bytes(self.asked_bytes)} ({self.asked})" if self.asked_bytes else self.asked or "memory"
        text = f"Out of memory: {self.op or 'an operation'} asked for {amount} on {self.device or 'the device'}"
        if self.peak is not None:
            text += f"; the step needs {format_bytes(self.peak.peak_bytes)} at its peak"
        if self.memory_bytes is not None:
            text += f", and there are {format_bytes(self.memory_bytes)}"
        return f"{text}."

    def to_json(self) -> dict[str, object]:
        return {**fields_json(self), "verdict": self.verdict}

    def _sheet(self) -> Sheet:
        blocks: list[Block] = []
        if self.peak is not None:
            blocks.append(replace(live_group_table(self.peak.live, self.peak.peak_bytes, "Live at the peak"), part="always"))
        if self.advice is not None:
            blocks += [replace(block, part="always") for block in suggestion_blocks(self.advice)]
        blocks.append(Paragraph(self.left_out, title="Not known", part="always"))
        return Sheet(self.verdict, (), [Tab("overview", "Overview", blocks)])
