"""The result of `predict_peak`: the peak of a step for one order of execution, and its live buffers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from graphwright.plain import fields_json
from graphwright.report.sheet import NO_LAYER, Fact, Facts, Paragraph, Printed, Sheet, Tab, ranking
from graphwright.report.timeline import LiveBuffer, Role, Timeline, live_group_table, role_flow
from graphwright.report.units import format_bytes, printable

Order = Literal["traced", "executor", "xla"]
BY_UPPER_END = "what fits is decided by the upper end of the predicted range"


@dataclass(frozen=True)
class PeakPrediction(Printed):
    """The predicted peak memory of a step. Returned by `graphwright.predict_peak`.

    Attributes:
        order: "traced" for the traced order of all operations; "executor" for TensorFlow's own; "xla" for a step that XLA compiles.
        threads: inter-op threads that run kernels; the traced order does not depend on them.
        peak_bytes: the peak, resident bytes included.
        low_bytes, high_bytes: the range in which a measured peak is expected; both are the peak for a fixed order.
        peak_op: the operation at the peak, by its layer.
        by_role: bytes at the peak; they add up to `peak_bytes`.
        timeline: memory over the step; None if unknown, as for a step that XLA compiles. JSON leaves it out.
    """

    name: str
    feeds: Mapping[str, tuple[int, ...]]
    order: Order
    threads: int
    peak_bytes: int
    low_bytes: int
    high_bytes: int
    resident_bytes: int
    peak_op: str
    live: tuple[LiveBuffer, ...]
    by_role: Mapping[Role, int]
    how: Mapping[str, str]
    timeline: Timeline | None = field(default=None, repr=False, compare=False)

    @property
    def by_layer(self) -> dict[str, int]:
        """Bytes at the peak by layer, the largest first, without workspace and rounding."""
        sizes: dict[str, int] = defaultdict(int)
        for buffer in self.live:
            sizes[buffer.layer] += buffer.nbytes
        return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))

    def to_json(self) -> dict[str, object]:
        return {
            **fields_json(self, "timeline", by_role="bytes_by_role"),
            "bytes_by_layer": self.by_layer,
            "live": [fields_json(buffer, nbytes="bytes") for buffer in self.live],
        }

    def _sheet(self) -> Sheet:
        facts = [Fact("peak", format_bytes(self.peak_bytes), f"reached at {printable(self.peak_op)}")]
        if self.order == "executor":
            span = f"{format_bytes(self.low_bytes)} to {format_bytes(self.high_bytes)}"
            facts.append(Fact("range", span, "in which a measured peak is expected"))
        facts.append(Fact("resident", format_bytes(self.resident_bytes), "variables, inputs and constants"))
        largest = ranking("Largest", [(layer or NO_LAYER, nbytes) for layer, nbytes in self.by_layer.items()], format_bytes)
        first = [role_flow(self.by_role), largest, Paragraph(f"Reached at {printable(self.peak_op)}.", part="first")]
        blocks = [Facts(facts), live_group_table(self.live, self.peak_bytes, "Live at the peak")]
        return Sheet(_verdict(self), first, [Tab("overview", "Overview", blocks)], list(self.how.items()))


def _verdict(prediction: PeakPrediction) -> str:
    text = f"{printable(prediction.name)}: {format_bytes(prediction.peak_bytes)} at its peak{of_example_sizes(prediction.how)}"
    if prediction.order == "traced":
        return f"{text}, when its operations run in the order in which they were traced."
    if prediction.order == "xla":
        return f"{text}, compiled by XLA."
    threads = "one inter-op thread" if prediction.threads == 1 else f"{prediction.threads} inter-op threads"
    return f"{text}, as TensorFlow runs it with {threads}."


def of_example_sizes(how: Mapping[str, str]) -> str:
    """Add to a verdict that sizes depend on data and were taken from one call."""
    return " with the sizes of the example inputs" if "example inputs" in how.get("sizes", "") else ""
