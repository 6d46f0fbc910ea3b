"""What `count_flops` gives: FLOPs by direction, op type and layer, bytes moved, and what could not be counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from graphwright.analyze.formula import Formula
from graphwright.plain import fields_json, number
from graphwright.report.draw import Printed

_BY_DIRECTION = {"forward": "forward_flops", "backward": "backward_flops", "optimizer": "optimizer_flops", "undivided": "undivided_flops"}


class _Work:
    """What follows from FLOPs by direction and bytes moved."""

    __slots__ = ()
    forward: float
    backward: float
    optimizer: float
    undivided: float
    bytes_moved: float

    @property
    def total(self) -> float:
        """FLOPs in all directions; without what could not be counted."""
        return self.undivided or self.forward + self.backward + self.optimizer

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs per byte moved; nan where nothing is moved."""
        return self.total / self.bytes_moved if self.bytes_moved else math.nan


@dataclass(frozen=True, slots=True)
class FlopRow(_Work):
    """An op type or a layer.

    With an open batch size the figures are nan, and `formula` says the FLOPs.

    Attributes:
        ops: nodes that are executed, each counted once however often a loop runs it.
        bytes_moved: of all executions; each input read once and each output written once.
        unknown: nodes among them that could not be counted.
        undivided: FLOPs in all directions, where the directions are not known and their figures are nan.
    """

    name: str
    ops: int
    forward: float
    backward: float
    optimizer: float
    bytes_moved: float
    unknown: int = 0
    formula: Formula | None = None
    undivided: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Plain numbers; null where a figure is a formula."""
        return {
            **fields_json(self, "name", **_BY_DIRECTION, unknown="unknown_ops"),
            "flops_per_byte": number(self.arithmetic_intensity),
            "formula": None if self.formula is None else str(self.formula),
        }


@dataclass(frozen=True, slots=True)
class UnknownOps:
    """Nodes of an op type that could not be counted.

    Attributes:
        count: how many.
        reason: "no rule" or "unknown shape".
        node_share: of all nodes that are executed.
        bytes_share: of all bytes moved that are known; nan where theirs are not.
    """

    count: int
    reason: str
    node_share: float
    bytes_share: float


@dataclass(frozen=True)
class FlopCount(_Work, Printed):
    """Floating-point operations of a step, a multiply-add counted as two. Returned by `graphwright.count_flops`.

    With an open batch size, forward, backward, optimizer, total and bytes_moved are nan, and `formulas` has them as polynomials.

    Attributes:
        forward: FLOPs of the forward pass.
        backward: of the gradients.
        optimizer: of what lies between finished gradients and the updates of variables, clipping and weight decay included.
        unknown: by op type, what could not be counted. It is in no figure.
        undivided: FLOPs in all directions, where forward, backward and optimizer cannot be told apart and are nan; else 0.
        per_op_type: by op type, the most FLOPs first.
        per_layer: by name scope of the layer, the most FLOPs first.
        bytes_moved: each input of a node read once, each output written once.
        loops: by loop, how often it runs: "10 iterations", "at most 10 iterations", "per iteration: ..." or "... (measured)".
        branches: by conditional, the FLOPs of each branch; the largest is counted.
        formulas: by figure ("forward", ..., "total", "bytes_moved"), a `Formula` of the batch size; empty where it is bound.
        how: by figure, how it was obtained.
    """

    name: str
    feeds: Mapping[str, tuple[int | None, ...]]
    node_count: int
    forward: float
    backward: float
    optimizer: float
    bytes_moved: float
    unknown: Mapping[str, UnknownOps]
    per_op_type: Mapping[str, FlopRow]
    per_layer: Mapping[str, FlopRow]
    how: Mapping[str, str]
    loops: Mapping[str, str] = field(default_factory=dict[str, str])
    branches: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    formulas: Mapping[str, Formula] = field(default_factory=dict[str, Formula])
    undivided: float = 0.0

    @property
    def formula(self) -> Formula | None:
        """All FLOPs as a polynomial of the batch size, where it is open: `str()` writes it, calling it gives the figure."""
        return self.formulas.get("total")

    def to_json(self) -> dict[str, object]:
        """Plain numbers and text, as docs/json.md lists them; null for a figure that is a formula."""
        return {
            **fields_json(self, **_BY_DIRECTION, branches="branches_flops"),
            "total_flops": number(self.total),
            "flops_per_byte": number(self.arithmetic_intensity),
            "formulas": {name: str(formula) for name, formula in self.formulas.items()},
        }
