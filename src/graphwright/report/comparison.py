"""What a step costs as a row of figures, and two such rows side by side: what `compare` and `check` give and keep in files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from graphwright.plain import fields_json, number
from graphwright.report.draw import OnPage, Printed, drawn
from graphwright.report.results import Timeline
from graphwright.report.units import format_bytes, format_bytes_apart, format_count, format_flops

Unit = Literal["bytes", "FLOPs", "count"]
Change = Literal["same", "changed", "added", "removed"]


@dataclass(frozen=True, slots=True)
class Figure:
    """What one figure is called, and what it counts."""

    label: str
    unit: Unit
    how: str

    def format(self, amount: float, *, signed: bool = False) -> str:
        """An amount as people read it.

        >>> FIGURES["total_flops"].format(2.5e9), FIGURES["nodes"].format(-12, signed=True)
        ('2.50 GFLOP', '-12')
        """
        if not math.isfinite(amount):
            return "not known"
        text = format_bytes(amount) if self.unit == "bytes" else format_flops(amount) if self.unit == "FLOPs" else format_count(amount)
        return f"+{text}" if signed and amount > 0 else text

    def apart(self, first: float, second: float) -> tuple[str, str]:
        """Two amounts, with as many digits as it takes to tell them apart."""
        return format_bytes_apart(first, second) if self.unit == "bytes" else (self.format(first), self.format(second))


FIGURES: Mapping[str, Figure] = {
    "peak_bytes": Figure("peak", "bytes", "predicted, as TensorFlow runs the step"),
    "resident_bytes": Figure("resident", "bytes", "variables, inputs and constants, which the peak includes"),
    "parameters": Figure("parameters", "count", "elements of trained and other variables, without the optimizer's"),
    "trainable_parameters": Figure("trainable", "count", "elements of variables that are trained"),
    "optimizer_state": Figure("optimizer state", "count", "elements of variables that only the updates read"),
    "total_flops": Figure("FLOPs", "FLOPs", "forward, backward and optimizer, a multiply-add as two"),
    "forward_flops": Figure("forward", "FLOPs", "FLOPs of the forward pass"),
    "backward_flops": Figure("backward", "FLOPs", "FLOPs of the gradients"),
    "optimizer_flops": Figure("optimizer", "FLOPs", "FLOPs between finished gradients and updated variables"),
    "bytes_moved": Figure("bytes moved", "bytes", "each input of an operation read once, each output written once"),
    "nodes": Figure("nodes", "count", "of the flat graph: calls inlined, what nothing needs left out"),
}
"""All figures of a step, in the order in which they are shown."""


LAYER_FIGURES: Mapping[str, Figure] = {
    "nodes": Figure("nodes", "count", "that belong to it"),
    "parameters": Figure("parameters", "count", "elements of its weights, trained or not"),
    "total_flops": Figure("FLOPs", "FLOPs", "forward, backward and optimizer"),
    "residual_bytes": Figure("residuals", "bytes", "forward values kept for the backward pass"),
    "peak_share_bytes": Figure("at peak", "bytes", "live at the peak of the step"),
}
"""What is compared of layers."""


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """What one layer costs.

    Attributes:
        layer: its name scope.
        nodes: how many belong to it.
        parameters: elements of its weights, trained or not.
        forward_flops: FLOPs of its forward pass.
        backward_flops: of its gradients.
        optimizer_flops: of the updates, which mostly have a scope of their own.
        residual_bytes: forward values kept for the backward pass.
        peak_share_bytes: what is live of it at the peak of the step.
        undivided_flops: FLOPs in all directions, where the directions are not known and nan.
    """

    layer: str
    nodes: int
    parameters: int
    forward_flops: float
    backward_flops: float
    optimizer_flops: float
    residual_bytes: int
    peak_share_bytes: int
    undivided_flops: float = 0.0

    @property
    def total_flops(self) -> float:
        """FLOPs in all directions."""
        return self.undivided_flops or self.forward_flops + self.backward_flops + self.optimizer_flops

    def costs_as_much_as(self, other: LayerFigures) -> bool:
        """Whether all but the name and the share of the peak are equal: what is live at the peak hangs on all other layers."""
        own = {"layer", "peak_share_bytes"}
        pairs = ((getattr(self, figure.name), getattr(other, figure.name)) for figure in fields(self) if figure.name not in own)
        return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


@dataclass(frozen=True)
class StepCosts(Printed):
    """What a step costs, as figures that can be compared and kept. Returned by `graphwright.step_costs`.

    Attributes:
        name: of the step.
        feeds: shape by argument.
        figures: by the names in `FIGURES`.
        layers: by name scope, in the order in which they run.
        unknown_flop_ops: op types that are in no figure of FLOPs.
        how: by figure, how it was obtained.
        timeline: memory over the step, for pages; files do not hold it.
    """

    name: str
    feeds: Mapping[str, tuple[int, ...]]
    figures: Mapping[str, float]
    layers: tuple[LayerFigures, ...]
    unknown_flop_ops: tuple[str, ...]
    how: Mapping[str, str]
    timeline: Timeline | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, object]:
        """Plain numbers and text, as docs/json.md lists them."""
        return fields_json(self, "timeline")


@dataclass(frozen=True, slots=True)
class LayerPair:
    """A layer of A and the one of B that it corresponds to; None where there is none."""

    a: LayerFigures | None
    b: LayerFigures | None

    @property
    def name(self) -> str:
        """The name in B, or in A where B has none."""
        return self.b.layer if self.b is not None else self.a.layer if self.a is not None else ""

    @property
    def change(self) -> Change:
        """What became of it. A layer that differs only in what is live at the peak is the same."""
        if self.a is None:
            return "added"
        if self.b is None:
            return "removed"
        return "same" if self.a.costs_as_much_as(self.b) else "changed"

    def difference(self, figure: str) -> float:
        """B's figure minus A's; a layer that is not there costs nothing."""
        return (getattr(self.b, figure) if self.b is not None else 0) - (getattr(self.a, figure) if self.a is not None else 0)


def model_scope(layers: Iterable[LayerFigures]) -> str:
    """The scope that most layers lie in, with its slash: the model's own; "" where there is none.

    >>> layers = [LayerFigures(name, 1, 0, 0.0, 0.0, 0.0, 0, 0) for name in ("model/conv", "model/norm", "adam")]
    >>> model_scope(layers)
    'model/'
    """
    names = [layer.layer for layer in layers]
    scopes = Counter(name.partition("/")[0] for name in names if "/" in name)
    scope, count = scopes.most_common(1)[0] if scopes else ("", 0)
    return f"{scope}/" if 2 * count > len(names) else ""


@dataclass(frozen=True)
class Comparison(OnPage, Printed):
    """Two steps side by side. Returned by `graphwright.compare`.

    Attributes:
        a: the first step.
        b: the second.
        layers: pairs of layers, in the order in which they run; one of a pair is None for a layer that was added or removed.
    """

    a: StepCosts
    b: StepCosts
    layers: tuple[LayerPair, ...]

    def difference(self, figure: str) -> float:
        """B's figure minus A's, by its name in `FIGURES`."""
        return self.b.figures[figure] - self.a.figures[figure]

    def ratio(self, figure: str) -> float:
        """B's figure divided by A's; 1 where both are 0, infinity where only A's is."""
        a, b = self.a.figures[figure], self.b.figures[figure]
        return b / a if a else 1.0 if not b else math.inf

    def with_change(self, change: Change) -> tuple[LayerPair, ...]:
        """The layers that were "added", "removed" or "changed", or are the "same"."""
        return tuple(pair for pair in self.layers if pair.change == change)

    def to_json(self) -> dict[str, object]:
        """Plain numbers and text, as docs/json.md lists them; a ratio is null where A's figure is 0 and B's is not."""
        return {
            **fields_json(self, "layers"),
            "figures": {
                name: {
                    "a": self.a.figures[name],
                    "b": self.b.figures[name],
                    "difference": self.difference(name),
                    "ratio": number(self.ratio(name)),
                }
                for name in FIGURES
            },
            "layers": [
                {
                    "a": None if pair.a is None else pair.a.layer,
                    "b": None if pair.b is None else pair.b.layer,
                    "change": pair.change,
                    **{f"{name}_difference": pair.difference(name) for name in LAYER_FIGURES},
                }
                for pair in self.layers
            ],
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure held against a limit or against a baseline.

    Attributes:
        figure: its name in `FIGURES`.
        amount: what the step needs.
        limit: the most that is allowed, tolerance included.
        baseline: what it was, or None for a limit that was given.
    """

    figure: str
    amount: float
    limit: float
    baseline: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the amount is within the limit."""
        return self.amount <= self.limit

    def to_json(self) -> dict[str, object]:
        """All fields by name, and whether it passed."""
        return {**fields_json(self), "passed": self.passed}


@dataclass(frozen=True)
class CheckResult(Printed):
    """Whether a step keeps its limits. Returned by `graphwright.check`.

    Attributes:
        costs: what the step costs.
        findings: each figure that was held against something.
        comparison: with the baseline, A being the baseline; None without one.
        warnings: what makes the answer less sure, for example operations whose FLOPs are not known.
        baseline: the file that was read.
        written: the baseline that was written.
    """

    costs: StepCosts
    findings: tuple[Finding, ...]
    comparison: Comparison | None = None
    warnings: tuple[str, ...] = ()
    baseline: Path | None = None
    written: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether all figures are within their limits."""
        return all(finding.passed for finding in self.findings)

    def __bool__(self) -> bool:
        return self.passed

    def to_json(self) -> dict[str, object]:
        """Plain numbers and text, as docs/json.md lists them."""
        return {"passed": self.passed, **fields_json(self)}

    def annotations(self) -> tuple[str, ...]:
        """One workflow command of GitHub Actions per failed figure and per warning.

        Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
        """
        return drawn(self, "annotations")
