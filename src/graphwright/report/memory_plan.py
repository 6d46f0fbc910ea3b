"""The result of `optimize_memory`: a plan for a step within a budget, and plans as files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from graphwright.analyze.device_models import find_device
from graphwright.analyze.layers import in_layer
from graphwright.analyze.measurement import Measurement
from graphwright.errors import ArgumentError, FileFormatError, in_words
from graphwright.files import file_for_user
from graphwright.plain import fields_json, from_plain, plain
from graphwright.plan.json_file import read_json
from graphwright.report.cost_rows import LayerCost, layer_table
from graphwright.report.measured_chart import measured_tracks
from graphwright.report.page import OnPage, page_of
from graphwright.report.peak_facts import RESIDENT_NOTE, chart_title, executor_note, measured_facts, peak_bars
from graphwright.report.peak_prediction import PeakPrediction, of_example_sizes
from graphwright.report.sheet import Block, Column, Drawing, Fact, Facts, Paragraph, Sheet, Tab, Table, ratio
from graphwright.report.timeline import MemoryCharts, Timeline, live_group_table, live_table, peak_note
from graphwright.report.units import counted, format_bytes, format_bytes_apart, format_count, format_flops, format_percent, format_time

Decision = Literal["save", "recompute", "offload"]
_FORMAT = "graphwright memory plan"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class BufferDecision:
    """The decision about one residual. `recompute_flops` are the FLOPs of the node, 0 when it is saved."""

    name: str
    op_type: str
    layer: str
    nbytes: int
    decision: Decision
    recompute_flops: float
    source: str = ""  # as of a `LiveBuffer`


@dataclass(frozen=True, slots=True)
class CopyEngine:
    """The speed of copies out of the memory that a plan keeps small, and back; offload is priced by it.

    Attributes:
        write_bytes_per_s: on the way out; to a disk, until the disk has the data.
        read_bytes_per_s: on the way back.
        how: measured or given, in words.
    """

    write_bytes_per_s: float
    read_bytes_per_s: float
    latency_s: float = 0.0
    how: str = "given"

    def __post_init__(self) -> None:
        for name in ("write_bytes_per_s", "read_bytes_per_s", "latency_s"):
            speed = getattr(self, name)
            if not (0 <= speed < math.inf) or (speed == 0 and name != "latency_s"):
                raise ArgumentError(f"{name}={speed!r} was given", argument=name, remedy="give a positive number")

    def write_s(self, nbytes: int) -> float:
        """Return the seconds for writing these bytes."""
        return self.latency_s + nbytes / self.write_bytes_per_s

    def read_s(self, nbytes: int) -> float:
        """Return the seconds for reading these bytes back."""
        return self.latency_s + nbytes / self.read_bytes_per_s


@dataclass(frozen=True, slots=True)
class PlanRecipe:
    """The request of a plan and its schedules; with them a plan is followed again without a search.

    Attributes:
        budget: as it was given: bytes, a share, text, "smallest".
        allow: the verbs that the plan may use.
        schedules: tasks in their order, by fingerprint of the planned graph.
        exceeding: fingerprints for which no schedule keeps the budget.
        offload_to: the folder or device of copies; "" for none.
    """

    budget: int | float | str
    max_overhead: float
    allow: tuple[str, ...]
    time_limit_s: float
    schedules: Mapping[str, tuple[int, ...]]
    exceeding: tuple[str, ...] = ()
    offload_to: str = ""
    copy_engine: CopyEngine | None = None
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of the memory/overhead curve; `overhead` is extra time as a share of the unmodified time, 0.1 for 10 %."""

    peak_bytes: int
    overhead: float


@dataclass(frozen=True)
class MemoryPlan(OnPage):
    """A plan for a step within a budget. The attribute `plan` of what `optimize_memory` returns.

    Attributes:
        peak_bytes: predicted peak of the planned step, resident bytes included.
        resident_bytes: weights, optimizer state, inputs and constants, which no plan changes.
        original_peak_bytes: predicted peak of the unmodified step, by `executor` if known, else by `timeline_before`; by XLA for a step
            that XLA compiles. A budget that is a share refers to it.
        timeline_before: the unmodified step in the order of `executor`, or in the traced order if that is unknown.
        executor: the peak of the unmodified step in the order of TensorFlow's executor; None if unknown (`how` says why).
        overhead: planned extra time as a share of the unmodified time.
        least_overhead: a lower bound on the overhead of every plan within the budget that recomputes this graph, by minimum cuts; 0 if
            nothing was proved.
        recomputed_flops: FLOPs of recomputations as a share of the FLOPs of the unmodified step.
        curve: points of other budgets, by falling peak; empty if they were not requested.
        decisions: residuals, the largest first.
        rewritten: rewrites of the step before planning, in words; "" for none.
        verification: what was proved, in words; "" before the verification.
        device_peaks: predicted peak by device of this process, such as "GPU:1"; "worker 1" is the one device of a process among several,
            "worker 1 GPU:0" one of its devices, "one device" the only one.
        recipe: `optimize_memory(step, plan=...)` follows it.
        offload_to: the folder or device of the copies; "" for none.
    """

    name: str
    status: Literal["optimal", "feasible", "infeasible", "unchanged"]
    budget_bytes: int
    peak_bytes: int
    resident_bytes: int
    original_peak_bytes: int
    lower_bound_bytes: int
    lower_bound_reason: str
    overhead: float
    recomputed_flops: float
    recomputed_count: int
    planning_time_s: float
    timeline_before: Timeline
    timeline_after: Timeline
    decisions: tuple[BufferDecision, ...]
    layers: tuple[LayerCost, ...]
    how: Mapping[str, str]
    curve: tuple[CurvePoint, ...] = ()
    measured_before: Measurement | None = None
    measured_after: Measurement | None = None
    verification: str = ""
    feeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    device_peaks: Mapping[str, int] = field(default_factory=dict[str, int])
    executor: PeakPrediction | None = None
    rewritten: str = ""
    least_overhead: float = 0.0
    recipe: PlanRecipe | None = field(default=None, repr=False, compare=False)
    offloaded_bytes: int = 0
    offload_to: str = ""

    def save(self, path: str | Path) -> Path:
        """Write the plan as a .json file, for `graphwright.load_plan` and `optimize_memory(step, plan=path)`; return the path."""
        with file_for_user(Path(path)) as stream:
            json.dump({"format": _FORMAT, "version": _VERSION, "plan": plain(self, whole=True)}, stream, separators=(",", ":"))
        return Path(path)

    @property
    def verdict(self) -> str:
        """One sentence: whether the budget is kept, from which peak to which, and the price."""
        return _verdict(self)

    def to_json(self) -> dict[str, object]:
        """Return plain numbers and text, as docs/json.md and schemas/memory_plan.schema.json describe them."""
        return {"schema": "graphwright.memory_plan/1", "verdict": self.verdict, **fields_json(self, "recipe")}

    def _sheet(self) -> Sheet:
        before, after = self.timeline_before, self.timeline_after
        memory: list[Block] = [
            live_group_table(after.live_at_peak, after.peak_bytes, "Live at the planned peak"),
            live_table("table-live-after", "Live at the planned peak, buffer by buffer", after),
        ]
        if self.status != "unchanged":
            memory.append(live_table("table-live-before", "Live at the original peak, buffer by buffer", before))
        totals = [f"{decision}: {counted(count, 'value')} ({format_bytes(nbytes)})" for decision, (count, nbytes) in _totals(self).items()]
        decisions = Table(
            self.decisions, _DECISIONS, "table-decisions", "Forward values that the backward pass reads", lambda d: d.layer, limit=8,
            empty="The step keeps no residuals.", title="Decisions about the residuals", hint="; ".join(totals),
        )  # fmt: skip
        tabs = [
            Tab("overview", "Overview", _overview(self)),
            Tab("memory", "At the peak", memory),
            *([Tab("price", "Memory and time", _curve_blocks(self))] if self.curve else []),
            Tab("layers", "Layers", [layer_table(self.layers)]),
            Tab("residuals", "Residuals", [decisions]),
        ]
        measured = self.measured_after.peak_bytes if self.measured_after is not None else 0
        fits = self.status != "infeasible" and max(self.peak_bytes, measured) <= self.budget_bytes
        tone = "good" if fits else "bad"
        return Sheet(_verdict(self), _first_screen(self), tabs, _origins(self), self.name, "memory plan", tone, self.feeds)


_DECISIONS: Sequence[Column[BufferDecision]] = (
    Column("value", lambda d: in_layer(d.layer, d.name), kind="name"),
    Column("op type", lambda d: d.op_type, kind="text"),
    Column("decision", lambda d: d.decision, kind="decision"),
    Column("bytes", lambda d: d.nbytes, format_bytes, bar=True),
    Column("layer", lambda d: d.layer, kind="layer"),
    Column("FLOPs of the op", lambda d: d.recompute_flops if d.decision == "recompute" else math.nan, format_flops),
    Column("source", lambda d: d.source, kind="text", note="the line of Python that made it"),
)


def _fits_as_it_is(plan: MemoryPlan) -> bool:
    """Whether the unmodified step keeps the budget too; a plan in the traced order may only hold that order."""
    return plan.status == "unchanged" and max(_high_bytes(plan), plan.original_peak_bytes) <= plan.budget_bytes


def _is_left(plan: MemoryPlan) -> bool:
    """Whether the step runs as it is, in no fixed order."""
    return plan.how.get("plan", "").startswith("none: ")


def _high_bytes(plan: MemoryPlan) -> int:
    return plan.executor.high_bytes if plan.executor is not None else 0


def _first_screen(plan: MemoryPlan) -> list[Block]:
    if plan.status == "infeasible" or not plan.original_peak_bytes:
        return []
    of = f"of {format_count(len(plan.decisions))} activations kept for backward"
    acts = [
        f"{decision}s {format_count(count)} {of} ({format_bytes(nbytes)})"
        for decision, (count, nbytes) in sorted(_totals(plan).items(), reverse=True)
        if decision != "save"
    ]
    is_same = _fits_as_it_is(plan) or _is_left(plan)
    text = "; ".join(filter(None, [*acts, plan.rewritten])) or ("nothing is changed" if is_same else "changes the order of operations only")
    least = f" Recomputing costs at least {format_percent(plan.least_overhead)} at this budget." if plan.least_overhead > 0 else ""
    proof = "the same operations on the same values" if "equal by structure" in plan.verification else plan.verification.partition(":")[0]
    proof += ", but for the order of sums" if "but for the order of sums" in plan.verification else ""
    return [Paragraph(f"Proof: {proof or 'not yet'}."), Paragraph(f"Plan: {text}.{least}")]


def _overview(plan: MemoryPlan) -> list[Block]:
    before, after = plan.timeline_before, plan.timeline_after
    charts = [("before", chart_title("Before", plan.original_peak_bytes, before), before), ("after", "Planned", after)]
    measured = ("measured-before", "Measured before", plan.measured_before), ("measured-after", "Measured, planned", plan.measured_after)
    bars = [
        *peak_bars("original, ", plan.original_peak_bytes, plan.measured_before, "before"),
        *peak_bars("planned, ", plan.peak_bytes, plan.measured_after, "after"),
    ]
    highest = max(before.peak_bytes, after.peak_bytes)
    top_bytes = max(highest, plan.budget_bytes) if plan.budget_bytes <= 1.5 * highest else highest
    markers = [("budget", plan.budget_bytes), ("lower bound", plan.lower_bound_bytes)]
    return [
        MemoryCharts(
            [("after", "", after)] if plan.status == "unchanged" else charts, top_bytes, plan.budget_bytes, measured_tracks(*measured),
            title="Memory over the step", part="chart",
        ),
        Drawing("peak_bars", {"bars": bars, "markers": markers, "resident": plan.resident_bytes}, title="Peak memory"),
        Facts(_facts(plan)),
    ]  # fmt: skip


def _curve_blocks(plan: MemoryPlan) -> list[Block]:
    chosen, overhead = CurvePoint(plan.peak_bytes, plan.overhead), _measured_overhead(plan)
    rows = [(point, "chosen" if point == chosen else "") for point in sorted({*plan.curve, chosen}, key=lambda point: -point.peak_bytes)]
    measured = None
    if plan.measured_after is not None and not math.isnan(overhead):
        measured = CurvePoint(plan.measured_after.peak_bytes, overhead)
        rows.append((measured, "measured"))
    data = plain({"points": plan.curve, "chosen": chosen, "measured": measured})
    data |= {"budgetBytes": plan.budget_bytes, "lowerBoundBytes": plan.lower_bound_bytes}
    summary = (
        "Cost of less memory: each point is a plan, the mark is the chosen plan. Extra time is planned, as a share of the unmodified step"
        f"{', except for the measured plan' if measured else ''}; no plan goes below the lower bound."
    )
    columns: list[Column[tuple[CurvePoint, str]]] = [
        Column("peak", lambda row: row[0].peak_bytes, format_bytes),
        Column("of the original", lambda row: ratio(row[0].peak_bytes, plan.original_peak_bytes), format_percent),
        Column("extra time", lambda row: row[0].overhead, format_percent),
        Column("", lambda row: row[1], kind="text"),
    ]
    caption = f"Peak and planned extra time of {format_count(len(rows) - bool(measured))} plans"
    return [
        Drawing("line_chart", {"id": "curve", "summary": summary}, (), lambda: {"curve": data}, title="Memory and extra time"),
        Table(rows, columns, "table-curve", caption, on="page"),
    ]


def _totals(plan: MemoryPlan) -> dict[Decision, tuple[int, int]]:
    totals: dict[Decision, tuple[int, int]] = {}
    for row in plan.decisions:
        count, nbytes = totals.get(row.decision, (0, 0))
        totals[row.decision] = count + 1, nbytes + row.nbytes
    return totals


def _verdict(plan: MemoryPlan) -> str:
    """Judge by the figures, not only by `status`: a plan over its budget never fits, and a measured peak over it comes first."""
    budget, peak = format_bytes_apart(plan.budget_bytes, plan.peak_bytes)
    if plan.status == "infeasible" or plan.peak_bytes > plan.budget_bytes:
        text = f"Does not fit: {plan.name} cannot be brought into {budget}"
        if plan.lower_bound_bytes > plan.budget_bytes:
            bound = format_bytes_apart(plan.budget_bytes, plan.lower_bound_bytes)[1]
            text += f", because no schedule needs less than {bound} ({plan.lower_bound_reason})"
        else:
            text += " by any plan that was found"
        return text + f"; the smallest budget known to work is {peak}."
    if plan.measured_after is not None and plan.measured_after.peak_bytes > plan.budget_bytes:
        budget, measured = format_bytes_apart(plan.budget_bytes, plan.measured_after.peak_bytes)
        return f"Over budget when measured: {plan.name} was planned at {format_bytes(plan.peak_bytes)} and took {measured} of {budget}."
    if _fits_as_it_is(plan):
        return f"Fits as it is: {plan.name} needs {peak} of {budget}{of_example_sizes(plan.how)}, and nothing is changed."
    if _is_left(plan):
        upper = f"{format_bytes(_high_bytes(plan))} at the upper end of the predicted range"
        return f"Runs as it is: {plan.name} needs {peak} of {budget}, and {upper}; nothing is changed."
    price = "no extra time" if plan.overhead <= 0 else f"{format_percent(plan.overhead)} more time"
    sizes = of_example_sizes(plan.how)
    text = f"Fits: {plan.name} needs {peak} of {budget}{sizes}, down from {format_bytes(plan.original_peak_bytes)}, for {price}"
    if plan.measured_after is None:
        return text + " (predicted, not measured)."
    overhead = _measured_overhead(plan)
    time = "" if math.isnan(overhead) else f" and {format_percent(abs(overhead))} {'more' if overhead >= 0 else 'less'} time"
    return f"{text} (predicted); measured {format_bytes(plan.measured_after.peak_bytes)}{time}."


def _facts(plan: MemoryPlan) -> list[Fact]:
    budget, peak = format_bytes_apart(plan.budget_bytes, plan.peak_bytes)
    found = f"found in {format_time(plan.planning_time_s)}" if plan.planning_time_s else "found in an earlier run"
    original = _plan_note(plan.original_peak_bytes, plan.timeline_before) if plan.executor is None else executor_note(plan.executor)
    time = "planned, as a share of the unmodified step"
    time += "" if math.isnan(overhead := _measured_overhead(plan)) else f"; measured {format_percent(overhead)}"
    if plan.least_overhead > 0:
        time += f"; within this budget every plan that recomputes takes at least {format_percent(plan.least_overhead)}"
    device = find_device(plan.recipe.device) if plan.recipe else None
    others = len(plan.timeline_after.labels) - plan.recomputed_count
    repeats = f"{format_count(plan.recomputed_count)} recomputations beside {format_count(others)} operations that touch 4 KiB and more"
    return [
        Fact("peak", peak, _plan_note(plan.peak_bytes, plan.timeline_after)),
        *measured_facts("measured peak", plan.measured_after, plan.peak_bytes),
        *([Fact("device", device.full_name, "what XLA compiles for it; nothing ran on one")] if device else []),
        Fact("budget", budget, _budget_note(plan)),
        Fact("original peak", format_bytes(plan.original_peak_bytes), original),
        *measured_facts("measured original", plan.measured_before, plan.original_peak_bytes),
        Fact("resident", format_bytes(plan.resident_bytes), RESIDENT_NOTE),
        Fact("lower bound", format_bytes(plan.lower_bound_bytes), plan.lower_bound_reason),
        Fact("extra time", format_percent(plan.overhead), time),
        Fact("recomputed FLOPs", format_percent(plan.recomputed_flops), repeats),
        *_offload_facts(plan),
        Fact("plan", plan.status, "; ".join(filter(None, (found, plan.rewritten)))),
        Fact("verified", "yes" if plan.verification else "not yet", plan.verification),
    ]


def _origins(plan: MemoryPlan) -> list[tuple[str, str]]:
    rows = [("extra time" if figure == "overhead" else figure, text) for figure, text in plan.how.items()]
    measured = ("measured, original", plan.measured_before), ("measured, planned", plan.measured_after)
    return rows + [(label, measurement.how) for label, measurement in measured if measurement]


def _measured_overhead(plan: MemoryPlan) -> float:
    """Return the measured extra time as a share of the original step; nan if a time is unknown."""
    before, after = plan.measured_before, plan.measured_after
    return after.time_s / before.time_s - 1.0 if before and after and before.time_s > 0 else math.nan


def _offload_facts(plan: MemoryPlan) -> list[Fact]:
    asked = plan.offload_to or (plan.recipe.offload_to if plan.recipe else "")
    note = f"copied to {asked}" if plan.offloaded_bytes else f"no buffer is worth a copy to {asked}"
    return [Fact("offloaded", format_bytes(plan.offloaded_bytes), note)] if asked else []


def _plan_note(peak_bytes: int, timeline: Timeline) -> str:
    """Say where the peak is; XLA's own order and fusions give another peak than the charts show."""
    note = peak_note(timeline)
    return note if peak_bytes == timeline.peak_bytes else f"in the charts {format_bytes(timeline.peak_bytes)}, {note}"


def _budget_note(plan: MemoryPlan) -> str:
    if plan.original_peak_bytes <= 0:
        return ""
    room = plan.budget_bytes - plan.peak_bytes
    rest = f"{format_bytes(abs(room))} {'to spare' if room >= 0 else 'too little'}"
    return f"{format_percent(plan.budget_bytes / plan.original_peak_bytes)} of the original peak; {rest}"


def load_plan(path: str | Path) -> MemoryPlan:
    """Read a plan that `MemoryPlan.save` wrote; `optimize_memory(step, plan=plan)` follows it without a search.

    Raises:
        FileFormatError: the file is missing, or holds no such plan; the message names the fault.

    >>> import tempfile, tensorflow as tf
    >>> from graphwright import optimize_memory
    >>> step = tf.function(lambda x: tf.reduce_sum(tf.tanh(x)))
    >>> fast = optimize_memory(step, "64KiB", inputs=tf.ones((64, 64)), cache_dir=None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = load_plan(fast.plan.save(f"{folder}/plan.json"))
    >>> again == fast.plan
    True
    """
    file = read_json(Path(path))
    if file.data.get("format") != _FORMAT:
        raise FileFormatError("holds no plan", where=str(path), remedy="give a file that plan.save(path) wrote")
    if file.data.get("version") != _VERSION:
        raise file.fail("version", f"must be {_VERSION}, it is {file.data.get('version')!r:.60}")
    try:
        plan = from_plain(MemoryPlan, file.value("plan"), "plan")
        sheet = plan._sheet()
        _ = sheet.text("all"), page_of(sheet), plan.to_json()
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        cause = "the file was edited, or written by another version"
        raise FileFormatError(f"holds an invalid plan: {in_words(error)}", where=str(path), cause=cause) from error
    return plan
