"""What `explain_oom` gives: what a step that ran out of memory asked for, what it held, and what would fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphwright.plain import fields_json
from graphwright.report.advice import Advice, suggestion_blocks
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.sheet import Block, Facts, Printed, Sheet, Tab, pairs
from graphwright.report.timeline import live_group_table
from graphwright.report.units import format_bytes


@dataclass(frozen=True)
class OutOfMemory(Printed):
    """Why a step ran out of memory. The attribute `report` of an `OutOfMemoryError`.

    Attributes:
        op: the operation that asked for more; "" where TensorFlow does not name it.
        asked: shape and dtype of what it asked for, as TensorFlow says it.
        asked_bytes: the bytes of that; 0 where they are not known.
        device: where, and by which allocator.
        memory_bytes: what the step may take there with all that it holds; None where nothing says so.
        peak: what the step is predicted to hold at its peak; None where it could not be looked at.
        advice: what would fit.
        left_out: what could not be looked at, and why.
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
        """One sentence: who asked for how much, and how much there was."""
        amount = f"{format_bytes(self.asked_bytes)} ({self.asked})" if self.asked_bytes else self.asked or "memory"
        text = f"Out of memory: {self.op or 'an operation'} asked for {amount} on {self.device or 'the device'}"
        if self.peak is not None:
            text += f"; the step needs {format_bytes(self.peak.peak_bytes)} at its peak"
        if self.memory_bytes is not None:
            text += f", and there are {format_bytes(self.memory_bytes)}"
        return f"{text}."

    def to_json(self) -> dict[str, object]:
        """Plain numbers and text; null for what is not known."""
        return {**fields_json(self), "verdict": self.verdict}

    def _sheet(self) -> Sheet:
        blocks: list[Block] = []
        if self.peak is not None:
            blocks.append(replace(live_group_table(self.peak.live, self.peak.peak_bytes, "Live at the peak"), part="always"))
        if self.advice is not None:
            blocks += [replace(block, part="always") for block in suggestion_blocks(self.advice)]
        if self.left_out:
            blocks.append(Facts(pairs([("the step", self.left_out)]), title="Not known", part="always"))
        return Sheet(self.verdict, (), [Tab("overview", "Overview", blocks)])
