"""The costs of a step as figures that can be compared and kept in files, and two such steps side by side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Literal

from graphwright.plain import fields_json, number
from graphwright.report.page import OnPage
from graphwright.report.sheet import Block, Cell, Column, Drawing, Fact, Facts, Paragraph, Printed, Sheet, Tab, Table
from graphwright.report.timeline import RESIDUALS_ARE, MemoryCharts, Timeline, live_groups
from graphwright.report.units import (
    NOT_KNOWN,
    feeds_text,
    format_bytes,
    format_bytes_apart,
    format_count,
    format_flops,
    format_percent,
    signed,
)

Unit = Literal["bytes", "FLOPs", "count"]
Change = Literal["same", "changed", "added", "removed"]
_FORMS = {"bytes": format_bytes, "FLOPs": format_flops, "count": format_count}


@dataclass(frozen=True, slots=True)
class Figure:
    """The name and the unit of a figure."""

    label: str
    unit: Unit
    how: str

    def format(self, amount: float) -> str:
        return _FORMS[self.unit](amount) if math.isfinite(amount) else NOT_KNOWN

    def apart(self, first: float, second: float) -> tuple[str, str]:
        return format_bytes_apart(first, second) if self.unit == "bytes" else (self.format(first), self.format(second))


FIGURES: Mapping[str, Figure] = {
    "peak_bytes": Figure("peak", "bytes", "predicted, as TensorFlow runs the step"),
    "resident_bytes": Figure("resident", "bytes", "variables, inputs and constants, which the peak includes"),
    "parameters": Figure("parameters", "count", "elements of trained and other variables, without optimizer state"),
    "trainable_parameters": Figure("trainable", "count", "elements of trained variables"),
    "optimizer_state": Figure("optimizer state", "count", "elements of optimizer variables"),
    "total_flops": Figure("FLOPs", "FLOPs", "forward, backward and optimizer, a multiply-add as two"),
    "forward_flops": Figure("forward", "FLOPs", "FLOPs of the forward pass"),
    "backward_flops": Figure("backward", "FLOPs", "FLOPs of the gradients"),
    "optimizer_flops": Figure("optimizer", "FLOPs", "FLOPs between finished gradients and updated variables"),
    "bytes_moved": Figure("bytes moved", "bytes", "each input of an operation read once, each output written once"),
    "nodes": Figure("nodes", "count", "of the flat graph: calls inlined, unused nodes left out"),
}
"""All figures of a step, in the order in which they are shown."""


LAYER_FIGURES: Mapping[str, Figure] = {
    "nodes": Figure("nodes", "count", "that belong to it"),
    "parameters": Figure("parameters", "count", "elements of its weights, trained or not"),
    "total_flops": Figure("FLOPs", "FLOPs", "forward, backward and optimizer"),
    "residual_bytes": Figure("residuals", "bytes", "forward values kept for the backward pass"),
    "peak_share_bytes": Figure("at peak", "bytes", "live at the peak of the step"),
}
"""The compared figures of layers."""


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """The costs of one layer.

    Attributes:
        parameters: elements of its weights, trained or not.
        residual_bytes: forward values kept for the backward pass.
        undivided_flops: FLOPs in all directions, if the directions are unknown and nan.
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
        return self.undivided_flops or self.forward_flops + self.backward_flops + self.optimizer_flops

    def costs_as_much_as(self, other: LayerFigures) -> bool:
        """Return whether all figures are equal but the share of the peak, which depends on all other layers."""
        names = {own.name for own in fields(self)} - {"layer", "peak_share_bytes"}
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


@dataclass(frozen=True)
class StepCosts(Printed):
    """The costs of a step, as figures that can be compared and kept. Returned by `graphwright.step_costs`.

    Attributes:
        figures: by the names in `FIGURES`.
        unknown_flop_ops: op types that no figure of FLOPs counts.
        timeline: memory over the step, for pages; files do not hold it.
        peak_high_bytes: the upper end of the predicted range of the peak; 0 if there is no range.
    """

    name: str
    feeds: Mapping[str, tuple[int, ...]]
    figures: Mapping[str, float]
    layers: tuple[LayerFigures, ...]
    unknown_flop_ops: tuple[str, ...]
    how: Mapping[str, str]
    timeline: Timeline | None = field(default=None, repr=False, compare=False)
    peak_high_bytes: float = 0.0

    def to_json(self) -> dict[str, object]:
        return fields_json(self, "timeline")

    def _sheet(self) -> Sheet:
        return Sheet(_title(self), (), [Tab("overview", "Overview", [_cost_facts(self)])])


def _title(costs: StepCosts) -> str:
    return costs.name + (f", with {feeds_text(costs.feeds)}" if costs.feeds else "")


def _cost_facts(costs: StepCosts) -> Facts:
    facts = [Fact(figure.label, figure.format(costs.figures[name]), figure.how) for name, figure in FIGURES.items()]
    return Facts(facts, part="always")


@dataclass(frozen=True, slots=True)
class LayerPair:
    """Corresponding layers of A and B; None for a layer that only one step has."""

    a: LayerFigures | None
    b: LayerFigures | None

    @property
    def name(self) -> str:
        return self.b.layer if self.b is not None else self.a.layer if self.a is not None else ""

    @property
    def change(self) -> Change:
        """A layer that differs only in its live bytes at the peak counts as the same."""
        if self.a is None:
            return "added"
        if self.b is None:
            return "removed"
        return "same" if self.a.costs_as_much_as(self.b) else "changed"

    def difference(self, figure: str) -> float:
        """Return B's figure minus A's; a missing layer costs nothing."""
        return getattr(self.b, figure, 0) - getattr(self.a, figure, 0)


def model_scope(layers: Iterable[LayerFigures]) -> str:
    """Return the scope that holds most layers, with its slash; "" if no scope does."""
    names = [layer.layer for layer in layers]
    scopes = Counter(name.partition("/")[0] for name in names if "/" in name)
    scope, count = scopes.most_common(1)[0] if scopes else ("", 0)
    return f"{scope}/" if 2 * count > len(names) else ""


@dataclass(frozen=True)
class Comparison(OnPage):
    """Two steps side by side. Returned by `graphwright.compare`."""

    a: StepCosts
    b: StepCosts
    layers: tuple[LayerPair, ...]

    def difference(self, figure: str) -> float:
        """Return B's figure minus A's, by its name in `FIGURES`."""
        return self.b.figures[figure] - self.a.figures[figure]

    def ratio(self, figure: str) -> float:
        """Return B's figure divided by A's; 1 if both are 0, infinity if only A's is."""
        a, b = self.a.figures[figure], self.b.figures[figure]
        return b / a if a else 1.0 if not b else math.inf

    def with_change(self, change: Change) -> tuple[LayerPair, ...]:
        """Return the layers that were "added", "removed" or "changed", or are the "same"."""
        return tuple(pair for pair in self.layers if pair.change == change)

    def to_json(self) -> dict[str, object]:
        """Return plain numbers and text; a ratio is null if only A's figure is 0."""
        return {
            **fields_json(self, "layers"),
            "figures": {name: self._figure_json(name) for name in FIGURES},
            "layers": [
                {"a": getattr(pair.a, "layer", None), "b": getattr(pair.b, "layer", None), "change": pair.change}
                | {f"{name}_difference": pair.difference(name) for name in LAYER_FIGURES}
                for pair in self.layers
            ],
        }

    def _figure_json(self, name: str) -> dict[str, object]:
        a, b = self.a.figures[name], self.b.figures[name]
        return {"a": a, "b": b, "difference": b - a, "ratio": number(self.ratio(name))}

    def _sheet(self) -> Sheet:
        steps = [("A", self.a), ("B", self.b)]
        timelines = {letter: step.timeline for letter, step in steps if step.timeline is not None}
        first: list[Block] = [Paragraph(f"{letter}: {_title(step)}") for letter, step in steps]
        differing = [name for name in _FIRST if self.difference(name)]
        first.append(Table(differing, _figure_columns(self), empty="All figures are the same.", part="first"))
        if "resident_bytes" in differing:
            first.append(Paragraph(f"resident: {FIGURES['resident_bytes'].how}", part="first"))
        overview: list[Block] = [
            Drawing("steps", {"steps": steps}, title="Steps"),
            Table(list(FIGURES), _figure_columns(self), "table-figures", "A difference is B minus A", title="Figures"),
        ]
        overview += [Paragraph(", ".join(step.unknown_flop_ops), title=f"Without FLOPs in {letter}") for letter, step in steps]
        tabs = [Tab("overview", "Overview", [*overview, *self._memory_blocks(timelines)])]
        if timelines:
            tabs.append(Tab("memory", "At the peak", [_live_table(self.layers, timelines)]))
        tabs.append(Tab("layers", "Layers", [Drawing("steps", {"steps": steps}), _layer_table(self.layers)]))
        name = " → ".join(dict.fromkeys(step.name for _, step in steps))
        tone = "good" if self.difference("peak_bytes") < 0 else "neutral"
        return Sheet(_verdict(self), first, tabs, list({**self.a.how, **self.b.how}.items()), name, "comparison", tone)

    def _memory_blocks(self, timelines: Mapping[str, Timeline]) -> list[Block]:
        note = "A file of costs holds no memory over the step: to see both peaks by role and layer, compare the models themselves."
        missing: list[Block] = [Paragraph(note, on="page")] if len(timelines) < 2 else []
        if not timelines:
            return missing
        sizes = {letter: timeline.at_peak() for letter, timeline in timelines.items()}
        peaks = [(letter, timeline.peak_bytes, sizes[letter]) for letter, timeline in timelines.items()]
        names = {pair.a.layer: pair.name for pair in self.layers if pair.a is not None}
        bars = Drawing("stacked_bars", {"peaks": peaks}, data=lambda: {"rows": {"timeline-a": names}}, title="Peak memory by role")
        step_names = {"A": self.a.name, "B": self.b.name}
        charts = [(f"timeline-{letter.lower()}", f"{letter}: {step_names[letter]}", own) for letter, own in timelines.items()]
        top_bytes = max(timeline.peak_bytes for timeline in timelines.values())
        return [bars, *missing, MemoryCharts(charts, top_bytes, title="Memory over the step", on="page")]


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure checked against a limit or a baseline.

    Attributes:
        amount: of the step; of a peak with a range, the upper end, if the limit is not of a baseline.
        limit: the largest allowed amount, tolerance included.
        baseline: the earlier amount, or None for a limit that was given.
    """

    figure: str
    amount: float
    limit: float
    baseline: float | None = None
    is_upper_end: bool = False

    @property
    def label(self) -> str:
        return FIGURES[self.figure].label + " (upper end)" * self.is_upper_end

    @property
    def passed(self) -> bool:
        return self.amount <= self.limit

    def to_json(self) -> dict[str, object]:
        return {**fields_json(self), "passed": self.passed}

    @property
    def apart(self) -> tuple[str, str]:
        return FIGURES[self.figure].apart(self.amount, self.limit)

    @property
    def sentence(self) -> str:
        amount, limit = self.apart
        if self.baseline is None:
            return f"{self.label} {amount}, at most {limit} allowed"
        change = _change_of(self.amount / self.baseline) if self.baseline else "new"
        return f"{self.label} {amount}, {change} over the baseline"


@dataclass(frozen=True)
class CheckResult(Printed):
    """Whether a step keeps its limits. Returned by `graphwright.check`.

    Attributes:
        comparison: with the baseline, which is A; None without one.
        warnings: reasons for doubt, for example operations with unknown FLOPs.
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
        return {"passed": self.passed, **fields_json(self)}

    def annotations(self) -> tuple[str, ...]:
        """Return one workflow command of GitHub Actions per failed figure and per warning.

        Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
        """
        failed = [("error", f"{finding.sentence} ({self.costs.name})") for finding in self.findings if not finding.passed]
        warned = [("warning", f"{warning} ({self.costs.name})") for warning in self.warnings]
        escapes = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
        return tuple(f"::{kind} title=graphwright check::{text.translate(escapes)}" for kind, text in [*failed, *warned])

    def _sheet(self) -> Sheet:
        first: list[Block] = [Paragraph(_title(self.costs))]
        blocks: list[Block] = []
        if self.findings:
            first.append(Table(self.findings, _FINDINGS, limit=None))
        else:
            blocks.append(_cost_facts(self.costs))
        if self.comparison is not None:
            blocks.append(_layer_table(self.comparison.layers))
        blocks += [Paragraph(warning, title="Warning", part="always") for warning in self.warnings]
        if self.written is not None:
            first.append(Paragraph(f"baseline written to {self.written}"))
        return Sheet(_check_verdict(self), first, [Tab("overview", "Overview", blocks)])


_FIRST = ("peak_bytes", "resident_bytes", "parameters", "total_flops", "bytes_moved")
_FINDINGS: Sequence[Column[Finding]] = (
    Column("", lambda f: f.label, kind="name"),
    Column(" ", lambda f: "ok" if f.passed else "FAIL"),
    Column("is", lambda f: f.apart[0]),
    Column("at most", lambda f: f.apart[1]),
    Column("over by", lambda f: "" if f.passed else FIGURES[f.figure].format(f.amount - f.limit)),
    Column("was", lambda f: "" if f.baseline is None else FIGURES[f.figure].format(f.baseline)),
)


def _check_verdict(result: CheckResult) -> str:
    if not result.findings:
        return "Nothing was checked: there is no limit and no baseline." if result.written is None else "The baseline was written."
    failed = [finding for finding in result.findings if not finding.passed]
    if failed:
        return f"Check failed: {'; '.join(finding.sentence for finding in failed)}."
    return f"Check passed: {', '.join(dict.fromkeys(finding.label for finding in result.findings))} within the limits."


def _verdict(comparison: Comparison) -> str:
    parts = [_more_or_less(comparison, name) for name in ("peak_bytes", "total_flops", "parameters")]
    counts = [f"{n} {change}" for change in ("added", "removed", "changed") if (n := len(comparison.with_change(change)))]
    return f"B against A: {', '.join(parts)}. Layers: {', '.join(counts) or 'all the same'}."


def _more_or_less(comparison: Comparison, name: str) -> str:
    label = FIGURES[name].label
    if not comparison.difference(name):
        return f"the same {label}"
    ratio = comparison.ratio(name)
    return f"{label} {_change_of(ratio) if math.isfinite(ratio) else FIGURES[name].format(comparison.b.figures[name])}"


def _change_of(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "new"
    text = format_percent(ratio - 1)
    return f"+{text}" if ratio > 1 else text


def _figure_columns(comparison: Comparison) -> list[Column[str]]:
    a, b = comparison.a.figures, comparison.b.figures

    def change(name: str) -> Cell:
        ratio = comparison.ratio(name)
        return Cell("" if a[name] == b[name] or math.isnan(b[name] - a[name]) else _change_of(ratio), ratio if math.isfinite(ratio) else -1)

    def difference(name: str) -> Cell:
        return Cell(signed(FIGURES[name].format)(b[name] - a[name]) or "same", b[name] - a[name])

    return [
        Column("figure", lambda name: FIGURES[name].label, kind="name"),
        Column("A", lambda name: Cell(FIGURES[name].apart(a[name], b[name])[0], a[name])),
        Column("B", lambda name: Cell(FIGURES[name].apart(a[name], b[name])[1], b[name])),
        Column("B - A", difference, wide=True),
        Column("change", change),
    ]


_Held = tuple[tuple[str, str], Counter[str]]
"""Layer and role, and the bytes at the peaks by letter of the step."""


def _live_table(pairs: Sequence[LayerPair], timelines: Mapping[str, Timeline]) -> Table[_Held]:
    names = {pair.a.layer: pair.name for pair in pairs if pair.a is not None}
    sizes: dict[tuple[str, str], Counter[str]] = {}
    for letter, timeline in timelines.items():
        for group in live_groups(timeline.live_at_peak):
            layer = names.get(group.layer, group.layer) if letter == "A" else group.layer
            sizes.setdefault((layer, group.role), Counter())[letter] += group.nbytes
    rows = sorted(sizes.items(), key=lambda row: (-max(row[1].values()), row[0]))
    columns = [
        Column[_Held]("layer", lambda row: row[0][0], kind="layer"),
        Column[_Held]("role", lambda row: row[0][1], kind="role"),
        *(Column[_Held](letter, lambda row, letter=letter: row[1][letter], format_bytes) for letter in timelines),
    ]
    if len(timelines) > 1:
        columns.append(Column("B - A", lambda row: row[1]["B"] - row[1]["A"], signed(format_bytes), wide=True))
    caption = f"{format_count(len(rows))} groups of buffers that are live at the peak of a step"
    return Table(
        rows, columns, "table-live-groups", caption, lambda row: row[0][0], limit=8, empty="Not itemized.",
        title="Live at the peak, by layer and role", hint=RESIDUALS_ARE,
    )  # fmt: skip


def _layer_table(layers: Sequence[LayerPair]) -> Table[LayerPair]:
    order = {"changed": 0, "added": 0, "removed": 0, "same": 1}
    columns: list[Column[LayerPair]] = [
        Column("layer", lambda pair: pair.name, kind="layer"),
        Column("change", lambda pair: pair.change, kind="decision"),
    ]
    for name, figure in reversed(list(LAYER_FIGURES.items())):  # memory first
        difference = signed(figure.format)
        own = Column[LayerPair](f"{figure.label}, B - A", lambda pair, name=name: pair.difference(name), difference, note=figure.how)
        columns.append(replace(own, optional=name == "nodes", wide=name in ("nodes", "parameters")))
    for name, figure in reversed(list(LAYER_FIGURES.items())):
        for k, letter in enumerate("AB"):
            of = partial(_figure_of, k, name)
            columns.append(Column(f"{figure.label} {letter}", of, figure.format, optional=True, wide=letter == "B", bar=True))
    rows = sorted(layers, key=lambda pair: (order[pair.change], [-abs(pair.difference(name)) for name in _WEIGHTS]))
    differing = sum(pair.change != "same" for pair in layers)
    count = format_count(len(layers))
    words = f"{format_count(differing)} of {count} layers differ" if differing else f"all {count} layers cost the same"
    return Table(
        rows, columns, "table-layers", words, lambda pair: pair.name, limit=min(20, differing), more="more, which differ less",
        title=words, empty="No layers are known.", part="layers",
        hint="Choose a layer to see its tensors in both steps. In the table the arrow keys go from row to row.",
    )  # fmt: skip


_WEIGHTS = ("residual_bytes", "peak_share_bytes", "total_flops", "parameters")


def _figure_of(step: int, name: str, pair: LayerPair) -> float:
    return getattr((pair.a, pair.b)[step], name, math.nan)
