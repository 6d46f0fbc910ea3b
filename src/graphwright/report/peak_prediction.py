"""What `predict_peak` gives: the peak of a step, for one order of execution, and what is live there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from graphwright.plain import fields_json
from graphwright.report.draw import Printed
from graphwright.report.results import LiveBuffer, Role, Timeline

Order = Literal["traced", "executor", "xla"]


@dataclass(frozen=True)
class PeakPrediction(Printed):
    """The predicted peak memory of a step. Returned by `graphwright.predict_peak`.

    Attributes:
        name: of the step.
        feeds: shape by argument.
        order: "traced" for one fixed order of all operations, the one in which the step was traced; "executor" for TensorFlow's own;
            "xla" for a step that XLA compiles, which has one order.
        threads: inter-op threads that run kernels; with the traced order they make no difference.
        peak_bytes: the peak, resident bytes included.
        low_bytes, high_bytes: the range in which a measured peak is expected; both are the peak for a fixed order.
        resident_bytes: variables, inputs and constants.
        peak_op: the operation at which the peak is reached, by its layer.
        live: what is held there, largest first.
        by_role: bytes at the peak; they add up to `peak_bytes`.
        how: by figure, how it was obtained.
        timeline: memory over the step; None where it is not known, as for a step that XLA compiles. JSON leaves it out.
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
        """Bytes at the peak by name scope of the layer, largest first; workspace and rounding are in none."""
        sizes: dict[str, int] = defaultdict(int)
        for buffer in self.live:
            sizes[buffer.layer] += buffer.nbytes
        return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))

    def to_json(self) -> dict[str, object]:
        """Plain numbers, bytes in all `_bytes`."""
        return {
            **fields_json(self, "timeline", by_role="bytes_by_role"),
            "bytes_by_layer": self.by_layer,
            "live": [fields_json(buffer, nbytes="bytes") for buffer in self.live],
        }
