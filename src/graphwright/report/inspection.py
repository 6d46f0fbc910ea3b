"""The result of `inspect`: the costs of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphwright.analyze.measurement import Measurement
from graphwright.analyze.step_profile import StepProfile, by_layer, by_op_type
from graphwright.analyze.time_model import Roofs
from graphwright.ir.graph import Graph
from graphwright.ops.flops import flop_rule
from graphwright.plain import fields_json
from graphwright.report.advice import Advice, advice_tab
from graphwright.report.cost_rows import (
    LayerColumn,
    LayerCost,
    LayerTable,
    NodeCost,
    OpTypeCost,
    largest_layers,
    layer_table,
    layer_tree,
    op_type_table,
)
from graphwright.report.graph_data import NodeCosts, costed_views
from graphwright.report.measured_chart import measured_tracks, profile_tracks
from graphwright.report.page import OnPage
from graphwright.report.parameter_table import ParameterCount
from graphwright.report.peak_facts import RESIDENT_NOTE, chart_title, executor_note, measured_facts, peak_bars
from graphwright.report.peak_prediction import PeakPrediction, of_example_sizes
from graphwright.report.profile_report import op_run_blocks
from graphwright.report.roofline import Roofline, make_roofline, roofline_data
from graphwright.report.sheet import Block, Drawing, Fact, Facts, Paragraph, Sheet, Tab, ranking
from graphwright.report.timeline import MemoryCharts, Timeline, live_group_table, live_groups, live_table, peak_note, role_flow
from graphwright.report.units import feeds_text, format_bytes, format_count, format_flops, format_short, format_time

_MEASURED = (
    "op runs of one recorded step, kernel times without the executor's waiting, added up: threads work side by side. Operations that "
    "TensorFlow rewrote or added have no row of their own among the op types of the graph"
)


@dataclass(frozen=True)
class Inspection(OnPage):
    """The costs of a step. Returned by `graphwright.inspect`.

    Attributes:
        peak_bytes: the peak of the step as TensorFlow or XLA runs it; the peak in the traced order if that was requested or the other is
            unknown. `how` says which.
        timeline: memory in the same order; in the traced order for a step that XLA compiles.
        executor: the prediction behind `peak_bytes`, with its range; None for the traced order.
        optimizer_flops: between finished gradients and the updates of variables.
        undivided_flops: FLOPs in all directions, if the directions are unknown and nan; else 0.
        unknown_flop_ops: op types that no figure of FLOPs counts, without a rule or with an unknown shape.
        op_types: costs by op type, the longest estimated time first.
        layer_origins: by layer, its class and the line that made it.
        graph: the inspected flat graph, calls inlined; pickles and deep copies leave it out.
    """

    name: str
    feeds: Mapping[str, tuple[int, ...]]
    node_count: int
    parameters: ParameterCount
    forward_flops: float
    backward_flops: float
    unknown_flop_ops: tuple[str, ...]
    timeline: Timeline
    layers: tuple[LayerCost, ...]
    peak_bytes: int
    resident_bytes: int
    lower_bound_bytes: int
    lower_bound_reason: str  # for example "op decoder/conv9/Conv2D alone needs 83 %"
    how: Mapping[str, str]
    measured: Measurement | None = None
    executor: PeakPrediction | None = None
    optimizer_flops: float = 0.0
    undivided_flops: float = 0.0
    bytes_moved: float = math.nan
    op_types: tuple[OpTypeCost, ...] = ()
    nodes: Mapping[str, NodeCost] = field(default_factory=dict[str, NodeCost], repr=False)
    roofs: Roofs | None = None
    graph: Graph | None = field(default=None, repr=False, compare=False)
    profile: StepProfile | None = field(default=None, repr=False)
    output_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]], repr=False)
    table: LayerTable | None = field(default=None, repr=False, compare=False)
    advice: Advice | None = field(default=None, repr=False, compare=False)
    layer_origins: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]], repr=False)

    def __getstate__(self) -> dict[str, object]:
        # Nodes lead to nodes without end: pickling a graph would go as deep as it is long.
        return {**self.__dict__, "graph": None}

    @property
    def verdict(self) -> str:
        """One sentence: the peak, and how it is known."""
        return _verdict(self)

    def with_profile(self, profile: StepProfile, roofs: Roofs | None = None) -> Inspection:
        """Return the inspection with the times of a measured step, the attribute `step` of what `graphwright.profile` returns."""
        node_time_s: dict[str, float] = {}
        for run in profile.runs:
            node_time_s[run.name] = node_time_s.get(run.name, 0.0) + run.time_s
        layers, op_types = ({name: row.time_s for name, row in rows.items()} for rows in (by_layer(profile), by_op_type(profile)))
        return replace(
            self,
            profile=profile,
            roofs=roofs or self.roofs,
            layers=tuple(replace(row, measured_time_s=layers.get(row.layer, math.nan)) for row in self.layers),
            op_types=tuple(replace(row, measured_time_s=op_types.get(row.op_type, math.nan)) for row in self.op_types),
            nodes={name: replace(cost, measured_time_s=node_time_s.get(name, math.nan)) for name, cost in self.nodes.items()},
            how={**self.how, "measured time": _MEASURED},
        )

    def with_table(self, depth: int | None = None, columns: Sequence[LayerColumn] | None = None) -> Inspection:
        """Return the inspection with another table of layers.

        Args:
            depth: levels of nested layers; None for a table of about 40 rows.
            columns: some of "class" (of a Keras model), "shape", "parameters", "flops", "forward", "backward", "activations", "residuals",
                "peak", "moved", "estimated", "time" (measured), "ops", "source" (the line of Python that made it).

        Raises:
            ArgumentError: an unknown column, or a depth less than 1.
        """
        return replace(self, table=LayerTable(depth, None if columns is None else tuple(columns)))

    def with_advice(self, advice: Advice) -> Inspection:
        """Return the inspection with what `graphwright.advise` returns for the same step, which its page shows first."""
        return replace(self, advice=advice)

    def to_json(self) -> dict[str, object]:
        """Return plain numbers and text, as docs/json.md and schemas/inspection.schema.json describe them."""
        return {
            "schema": "graphwright.inspection/1",
            "verdict": self.verdict,
            **fields_json(self, "nodes", "graph", "profile", "table", "advice", "layer_origins"),
        }

    def _sheet(self) -> Sheet:
        timeline, advice = self.timeline, self.advice
        verdict, tone, kind, tabs = _verdict(self), "neutral", "inspection", list[Tab]()
        if advice is not None:
            verdict, tone = advice.verdict[:1].upper() + advice.verdict[1:], "good" if advice.fits else "bad"
            kind, tabs = "advice and inspection", [advice_tab(advice)]
        tabs += [Tab("overview", "Overview", _overview(self)), Tab("layers", "Layers", [layer_table(self.layers, on="page")])]
        live = live_table("table-live", "Live at the peak, buffer by buffer", timeline)
        tabs.append(Tab("memory", "At the peak", [live_group_table(timeline.live_at_peak, timeline.peak_bytes), live]))
        if (profile := _profiled(self)) is not None:
            tabs.append(Tab("step", "Timeline", op_run_blocks(profile)))
        roofline = make_roofline(self.roofs, self.layers, self.op_types, self.profile) if self.roofs else None
        if roofline or self.op_types:
            chart = [_roofline_figure(roofline)] if roofline else []
            tabs.append(Tab("roofline", "Roofline" if roofline else "Op types", [*chart, op_type_table(self.op_types)]))
        if self.graph is not None and len(self.graph):
            tabs.append(Tab("graph", "Graph", [_graph_figure(self, self.graph)]))
        origins = [*self.how.items(), *([("measured", self.measured.how)] if self.measured else [])]
        return Sheet(verdict, _first_screen(self), tabs, origins, self.name, kind, tone, self.feeds)


_STATE = ("weights", "optimizer state", "inputs")
_PRODUCTS = ("matrix product", "convolution")
_OP_TYPES_NAMED = 5


def _verdict(inspection: Inspection) -> str:
    executor, measured = inspection.executor, inspection.measured
    order = " for one order of its operations" if executor is None else ", compiled by XLA" if executor.order == "xla" else ""
    text = f"{inspection.name}: peak {format_bytes(inspection.peak_bytes)}, predicted{order}{of_example_sizes(inspection.how)}"
    return f"{text}; measured {format_bytes(measured.peak_bytes)}." if measured else f"{text}."


def _first_screen(inspection: Inspection) -> list[Block]:
    timeline = inspection.timeline
    blocks: list[Block] = [role_flow(timeline.at_peak())]
    if inspection.executor is not None and inspection.executor.order == "xla":
        blocks.append(Paragraph(f"({format_bytes(timeline.peak_bytes)} operation by operation, without the fusions of XLA)"))
    live = [group for group in live_groups(timeline.live_at_peak) if group.role not in _STATE]
    blocks.append(ranking("Largest", ((group.layer or f"other {group.role}", group.nbytes) for group in live), format_bytes, "always"))
    if inspection.feeds:
        blocks.append(Paragraph(f"Inputs: {feeds_text(inspection.feeds)}"))
    count, trainable = sum(layer.parameter_count for layer in inspection.layers), inspection.parameters.trainable
    work = f"{format_count(count)} parameters{f' ({format_count(trainable)} trainable)' * (trainable != count)}. "
    work += f"{format_flops(_flops(inspection))} per step"
    if products := multiply_adds(inspection):
        work += f"; forward pass {format_short(products)} multiply-adds{_per_example(inspection, products)}"
    blocks.append(Paragraph(f"{work}."))
    if inspection.unknown_flop_ops:
        blocks.append(Paragraph(f"FLOPs {_unknown_flops(inspection)}."))
    return blocks


def _overview(inspection: Inspection) -> list[Block]:
    timeline, profile, peak_bytes = inspection.timeline, _profiled(inspection), inspection.peak_bytes
    memory_bytes = inspection.advice.memory_bytes if inspection.advice else None
    tracks = measured_tracks(("measured", "Measured", inspection.measured)) or (profile_tracks(profile) if profile else [])
    title = "" if peak_bytes == timeline.peak_bytes and not tracks else chart_title("Predicted", peak_bytes, timeline)
    time_of = {name: cost.measured_time_s for name, cost in inspection.nodes.items()} if profile else {}
    bars = peak_bars("", peak_bytes, inspection.measured, "before")
    markers = [("budget", memory_bytes or 0), ("lower bound", inspection.lower_bound_bytes)]
    tops = _tops(inspection.layers)
    return [
        layer_tree(inspection.layers, inspection.output_shapes, inspection.layer_origins, inspection.table),
        MemoryCharts(
            [("timeline", title, timeline)], peak_bytes, memory_bytes, tracks, time_of, title="Memory over the step", part="chart"
        ),
        Drawing("peak_bars", {"bars": bars, "markers": markers, "resident": inspection.resident_bytes}, title="Peak memory"),
        Facts(_facts(inspection)),
        *([Drawing("top_lists", {"tops": tops}, title="Where it goes")] if tops else []),
    ]


def _profiled(inspection: Inspection) -> StepProfile | None:
    """Return the profile, if it holds runs."""
    return inspection.profile if inspection.profile is not None and inspection.profile.runs else None


def _tops(layers: Sequence[LayerCost]) -> dict[str, list[tuple[str, str, str, float]]]:
    figures = {
        "Live at the peak": ("peak_share_bytes", format_bytes),
        "FLOPs": ("flops", format_flops),
        "Measured time": ("measured_time_s", format_time),
        "Estimated time": ("estimated_time_s", format_time),
        "Parameters": ("parameter_count", format_count),
    }
    tops = {title: largest_layers([(getattr(r, name), r.layer) for r in layers], form) for title, (name, form) in figures.items()}
    if tops["Measured time"]:
        del tops["Estimated time"]
    return {title: rows for title, rows in tops.items() if rows}


def _roofline_figure(roofline: Roofline) -> Drawing:
    said = (
        "Point at a mark to see what it is; click the mark of a layer to see the layer. The larger a mark, the more time. Layers and op "
        "types are the same work, grouped in two ways."
    )
    values = {"id": "roofline-chart", "summary": roofline.summary, "said": said}
    return Drawing("line_chart", values, ("roofline.js",), lambda: {"roofline": roofline_data(roofline)}, title="Roofline")


def _graph_figure(inspection: Inspection, graph: Graph) -> Drawing:
    time = "measured time" if _profiled(inspection) else "estimated time"
    costs = NodeCosts(inspection.nodes, inspection.timeline.live_at_peak, inspection.profile is not None)
    hint = f"{format_count(inspection.node_count)} operations, as far as a page can hold them. Scopes are closed at first."
    scripts, data = ("drawing.js", "graph_tab.js"), lambda: {"graphs": costed_views(graph, costs), "timeWords": time}
    return Drawing("graph", {"time": time}, scripts, data, title="Graph", hint=hint)


def _facts(inspection: Inspection) -> list[Fact]:
    parameters, products = inspection.parameters, multiply_adds(inspection)
    trained = f"{format_count(parameters.trainable)} trained, {format_bytes(parameters.trainable_bytes)}; "
    trained += f"others {format_bytes(parameters.non_trainable_bytes)}, with states of metrics"
    parts = ", ".join(f"{name} {format_flops(getattr(inspection, f'{name}_flops'))}" for name in ("forward", "backward", "optimizer"))
    if inspection.undivided_flops:
        parts = "directions not known"
    touched = len(inspection.timeline.labels)
    nodes = [f"{format_count(touched)} touch 4 KiB and more"] * bool(touched)
    nodes += [f"with {feeds_text(inspection.feeds)}"] * bool(inspection.feeds)
    return [
        *_peak_facts(inspection),
        *measured_facts("measured peak", inspection.measured, inspection.peak_bytes),
        Fact("resident", format_bytes(inspection.resident_bytes), RESIDENT_NOTE),
        Fact("lower bound", format_bytes(inspection.lower_bound_bytes), inspection.lower_bound_reason),
        Fact("parameters", format_count(sum(layer.parameter_count for layer in inspection.layers)), trained),
        Fact("optimizer state", format_count(parameters.optimizer_state), format_bytes(parameters.optimizer_state_bytes)),
        Fact("FLOPs", format_flops(_flops(inspection)), f"{parts}; {_unknown_flops(inspection)}"),
        *([Fact("multiply-adds", format_short(products), f"forward pass{_per_example(inspection, products)}")] if products else []),
        Fact("nodes", format_count(inspection.node_count), "; ".join(nodes)),
    ]


def _peak_facts(inspection: Inspection) -> list[Fact]:
    executor, timeline, peak = inspection.executor, inspection.timeline, format_bytes(inspection.peak_bytes)
    if executor is not None and executor.order == "xla":
        return [
            Fact("peak", peak, "by XLA's buffer assignment; all other figures are per operation, without fusions"),
            Fact("uncompiled", format_bytes(timeline.peak_bytes), peak_note(timeline)),
        ]
    return [Fact("peak", peak, f"{peak_note(timeline)}; {executor_note(executor) if executor else 'in the order of the trace'}")]


def multiply_adds(inspection: Inspection) -> float:
    """Return the multiply-adds of convolutions and matrix products in the forward pass; 0 if they are unknown.

    Published counts of models leave out all other operations.
    """
    rows = [row for row in inspection.op_types if (rule := flop_rule(row.op_type)) is not None and rule.family in _PRODUCTS]
    total = sum(row.forward_flops for row in rows) / 2
    return total if math.isfinite(total) else 0.0


def _flops(inspection: Inspection) -> float:
    return inspection.undivided_flops or inspection.forward_flops + inspection.backward_flops + inspection.optimizer_flops


def _per_example(inspection: Inspection, products: float) -> str:
    examples = {shape[0] if shape else 0 for shape in inspection.feeds.values()}
    return f", {format_short(products / examples.pop())} per example" if len(examples) == 1 and examples != {0} else ""


def _unknown_flops(inspection: Inspection) -> str:
    if not inspection.unknown_flop_ops:
        return "every op type is counted"
    named = inspection.unknown_flop_ops[:_OP_TYPES_NAMED]
    more = len(inspection.unknown_flop_ops) - len(named)
    return "not counted: " + ", ".join(named) + (f" and {more} op types more" if more else "")
