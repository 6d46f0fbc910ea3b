"""What the reports say, whatever they are shown on: verdicts, and the rows of the small tables.

Verdicts are derived from the figures, not from `status` alone: a plan whose peak is over
its budget is never said to fit, and a measured peak over the budget is said first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from graphwright.analyze.device_models import find_device
from graphwright.analyze.downsample import mostly
from graphwright.analyze.flops import flop_rule
from graphwright.analyze.measurement import Measurement
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.results import BufferDecision, Decision, Inspection, LayerCost, LiveBuffer, MemoryPlan, Role, Timeline
from graphwright.report.units import feeds_text, format_bytes, format_bytes_apart, format_count, format_flops, format_percent, format_time

Tone = Literal["good", "bad", "neutral"]
Phase = Literal["forward", "backward", "recomputation", "optimizer"]
PHASES: tuple[Phase, ...] = get_args(Phase)
NO_LAYER = "(no layer)"
ROLE_WORDS: Mapping[str, str] = {
    "weights": "weights",
    "optimizer state": "optimizer state",
    "inputs": "inputs",
    "residuals": "activations kept for backward",
    "gradients": "gradients",
    "temporaries": "temporaries and scratch",
}
"""Roles as the first screen calls them."""
_PRODUCTS = ("matrix product", "convolution")
_OP_TYPES_NAMED = 5


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure with what it means. `note` may be empty."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """What is live at the peak, by layer and role."""

    layer: str
    role: Role | Literal[""]
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class DecisionTotal:
    """The residuals with which a plan does the same."""

    decision: Decision
    count: int
    nbytes: int


def inspection_verdict(inspection: Inspection) -> str:
    """One sentence: what the step needs at its peak, and how that is known."""
    own, measured = inspection.executor, inspection.measured
    order = " for one order of its operations" if own is None else ", compiled by XLA" if own.order == "xla" else ""
    text = f"{inspection.name}: peak {format_bytes(inspection.peak_bytes)}, predicted{order}{of_example_sizes(inspection.how)}"
    return f"{text}; measured {format_bytes(measured.peak_bytes)}." if measured else f"{text}."


def inspection_lines(inspection: Inspection) -> list[str]:
    """The rest of the first screen: inputs, parameters, FLOPs."""
    lines = [f"Inputs: {feeds_text(inspection.feeds)}"] if inspection.feeds else []
    parameters = inspection.parameters
    count = sum(layer.parameter_count for layer in inspection.layers)
    trainable = f" ({format_count(parameters.trainable)} trainable)" if parameters.trainable != count else ""
    work = f"{format_count(count)} parameters{trainable}. {format_flops(_flops(inspection))} per step"
    if products := multiply_adds(inspection):
        work += f"; forward pass {_short_count(products)} multiply-adds{_per_example(inspection, products)}"
    lines.append(f"{work}.")
    return [*lines, f"FLOPs {_unknown_flops(inspection)}."] if inspection.unknown_flop_ops else lines


def plan_lines(plan: MemoryPlan) -> list[str]:
    """The rest of the first screen: the proof, and what the plan does for its peak."""
    if plan.status == "infeasible" or not plan.original_peak_bytes:
        return []
    totals = {total.decision: total for total in decision_totals(plan.decisions)}
    count = sum(total.count for total in totals.values())
    acts = [
        f"{verb} {format_count(total.count)} of {format_count(count)} activations kept for backward ({format_bytes(total.nbytes)})"
        for decision, verb in (("recompute", "recomputes"), ("offload", "offloads"))
        if (total := totals.get(decision)) is not None
    ]
    acts += [plan.rewritten] if plan.rewritten else []
    text = "; ".join(acts) or ("nothing is changed" if plan.status == "unchanged" else "changes the order of operations only")
    least = f" Recomputing costs at least {format_percent(plan.least_overhead)} at this budget." if plan.least_overhead > 0 else ""
    proof = "the same operations on the same values" if "equal by structure" in plan.verification else plan.verification.partition(":")[0]
    proof += ", but for the order of sums" if "but for the order of sums" in plan.verification else ""
    return [f"Proof: {proof or 'not yet'}.", f"Plan: {text}.{least}"]


def multiply_adds(inspection: Inspection) -> float:
    """Multiply-adds of convolutions and matrix products in the forward pass; 0 where they are not known.

    Published counts of models leave out all other operations.
    """
    rows = [row for row in inspection.op_types if (rule := flop_rule(row.op_type)) is not None and rule.family in _PRODUCTS]
    total = sum(row.forward_flops for row in rows) / 2
    return total if math.isfinite(total) else 0.0


def _flops(inspection: Inspection) -> float:
    return inspection.undivided_flops or inspection.forward_flops + inspection.backward_flops + inspection.optimizer_flops


def _per_example(inspection: Inspection, products: float) -> str:
    examples = {shape[0] if shape else 0 for shape in inspection.feeds.values()}
    return f", {_short_count(products / examples.pop())} per example" if len(examples) == 1 and examples != {0} else ""


def _short_count(count: float) -> str:
    """
    >>> _short_count(57_300_000.0), _short_count(812.0)
    ('57.3 M', '812')
    """
    return format_flops(count).removesuffix("FLOP").rstrip()


def plan_verdict(plan: MemoryPlan) -> str:
    """One sentence: kept or not, from what to what, at what price."""
    budget, peak = format_bytes_apart(plan.budget_bytes, plan.peak_bytes)
    if plan.status == "infeasible" or plan.peak_bytes > plan.budget_bytes:
        text = f"Does not fit: {plan.name} cannot be brought into {budget}"
        if plan.lower_bound_bytes > plan.budget_bytes:
            bound = format_bytes_apart(plan.budget_bytes, plan.lower_bound_bytes)[1]
            text += f", because no schedule needs less than {bound} ({plan.lower_bound_reason})"
        else:
            text += " by any plan that was found"
        return text + f"; the smallest budget known to work is {peak}."
    over = plan.measured_after is not None and plan.measured_after.peak_bytes > plan.budget_bytes
    if plan.measured_after is not None and over:
        budget, measured = format_bytes_apart(plan.budget_bytes, plan.measured_after.peak_bytes)
        return f"Over budget when measured: {plan.name} was planned at {format_bytes(plan.peak_bytes)} and took {measured} of {budget}."
    if plan.status == "unchanged":
        return f"Fits as it is: {plan.name} needs {peak} of {budget}{of_example_sizes(plan.how)}, and nothing is changed."
    price = "no extra time" if plan.overhead <= 0 else f"{format_percent(plan.overhead)} more time"
    sizes = of_example_sizes(plan.how)
    text = f"Fits: {plan.name} needs {peak} of {budget}{sizes}, down from {format_bytes(plan.original_peak_bytes)}, for {price}"
    if plan.measured_after is None:
        return text + " (predicted, not measured)."
    text += f" (predicted); measured {format_bytes(plan.measured_after.peak_bytes)}"
    ratio = measured_overhead(plan)
    if math.isnan(ratio):
        return f"{text}."
    return f"{text} and {format_percent(abs(ratio))} {'more' if ratio >= 0 else 'less'} time."


def of_example_sizes(how: Mapping[str, str]) -> str:
    """What a verdict adds where sizes depend on data and were taken from one call."""
    return " with the sizes of the example inputs" if "example inputs" in how.get("sizes", "") else ""


def plan_tone(plan: MemoryPlan) -> Tone:
    """Whether the verdict is good news."""
    measured = plan.measured_after.peak_bytes if plan.measured_after is not None else 0
    kept = plan.status != "infeasible" and max(plan.peak_bytes, measured) <= plan.budget_bytes
    return "good" if kept else "bad"


def inspection_facts(inspection: Inspection) -> list[Fact]:
    """The figures of an inspection, the most asked for first."""
    parameters, products = inspection.parameters, multiply_adds(inspection)
    trained = f"{format_count(parameters.trainable)} trained, {format_bytes(parameters.trainable_bytes)}; "
    trained += f"others {format_bytes(parameters.non_trainable_bytes)}, with states of metrics"
    directions = ("forward", "backward", "optimizer") if not inspection.undivided_flops else ()
    parts = ", ".join(f"{name} {format_flops(getattr(inspection, f'{name}_flops'))}" for name in directions) or "directions not known"
    return [
        *_peak_facts(inspection),
        *_measured_facts("measured peak", inspection.measured, inspection.peak_bytes),
        Fact("resident", format_bytes(inspection.resident_bytes), "weights, optimizer state, inputs, constants: no plan changes it"),
        Fact("lower bound", format_bytes(inspection.lower_bound_bytes), inspection.lower_bound_reason),
        Fact("parameters", format_count(sum(layer.parameter_count for layer in inspection.layers)), trained),
        Fact("optimizer state", format_count(parameters.optimizer_state), format_bytes(parameters.optimizer_state_bytes)),
        Fact("FLOPs", format_flops(_flops(inspection)), f"{parts}; {_unknown_flops(inspection)}"),
        *([Fact("multiply-adds", _short_count(products), f"forward pass{_per_example(inspection, products)}")] if products else []),
        Fact("nodes", format_count(inspection.node_count), _node_note(inspection)),
    ]


def plan_facts(plan: MemoryPlan) -> list[Fact]:
    """The figures of a plan, the most asked for first."""
    budget, peak = format_bytes_apart(plan.budget_bytes, plan.peak_bytes)
    found = f"found in {format_time(plan.planning_time_s)}" if plan.planning_time_s else "found in an earlier run"
    once = len(plan.timeline_after.labels) - plan.recomputed_count
    least = (
        f"; within this budget no plan by recomputing takes less than {format_percent(plan.least_overhead)}"
        if plan.least_overhead > 0
        else ""
    )
    took = "" if math.isnan(ratio := measured_overhead(plan)) else f"; measured {format_percent(ratio)}"
    device = find_device(plan.recipe.device) if plan.recipe else None
    recomputations = (
        f"{format_count(plan.recomputed_count)} recomputations beside {format_count(once)} operations that touch 4 KiB and more"
    )
    return [
        Fact("peak", peak, _plan_note(plan.peak_bytes, plan.timeline_after)),
        *_measured_facts("measured peak", plan.measured_after, plan.peak_bytes),
        *([Fact("device", device.full_name, "what XLA compiles for it; nothing ran on one")] if device else []),
        Fact("budget", budget, _budget_note(plan)),
        *_original_facts(plan),
        *_measured_facts("measured original", plan.measured_before, plan.original_peak_bytes),
        Fact("resident", format_bytes(plan.resident_bytes), "weights, optimizer state, inputs, constants: no plan changes it"),
        Fact("lower bound", format_bytes(plan.lower_bound_bytes), plan.lower_bound_reason),
        Fact("extra time", format_percent(plan.overhead), f"planned, as a share of the unmodified step{took}{least}"),
        Fact("recomputed FLOPs", format_percent(plan.recomputed_flops), recomputations),
        *_offload_facts(plan),
        Fact("plan", plan.status, "; ".join(filter(None, (found, plan.rewritten)))),
        Fact("verified", "yes" if plan.verification else "not yet", plan.verification),
    ]


def origins(result: Inspection | MemoryPlan) -> list[tuple[str, str]]:
    """How each figure was obtained, measurements included where there are any."""
    rows = [("extra time" if figure == "overhead" else figure, text) for figure, text in result.how.items()]
    if isinstance(result, Inspection):
        measurements = [("measured", result.measured)]
    else:
        measurements = [("measured, original", result.measured_before), ("measured, planned", result.measured_after)]
    return rows + [(label, measurement.how) for label, measurement in measurements if measurement]


def chart_top_bytes(plan: MemoryPlan) -> int:
    """How high the charts of a plan reach: to the larger peak, and to the budget where that leaves the peaks visible."""
    highest = max(plan.timeline_before.peak_bytes, plan.timeline_after.peak_bytes)
    return max(highest, plan.budget_bytes) if plan.budget_bytes <= 1.5 * highest else highest


def live_groups(buffers: Iterable[LiveBuffer]) -> list[LiveGroup]:
    """Live buffers by layer and role, the largest group first."""
    groups: dict[tuple[str, Role], list[int]] = {}
    for buffer in buffers:
        groups.setdefault((buffer.layer, buffer.role), []).append(buffer.nbytes)
    rows = [LiveGroup(layer, role, len(sizes), sum(sizes)) for (layer, role), sizes in groups.items()]
    return sorted(rows, key=lambda group: (-group.nbytes, group.layer, group.role))


def decision_totals(decisions: Iterable[BufferDecision]) -> list[DecisionTotal]:
    """How many residuals there are by what becomes of them, in the order in which they come first."""
    totals: dict[Decision, list[int]] = {}
    for row in decisions:
        totals.setdefault(row.decision, []).append(row.nbytes)
    return [DecisionTotal(decision, len(sizes), sum(sizes)) for decision, sizes in totals.items()]


def layers_by_share(layers: Iterable[LayerCost]) -> list[LayerCost]:
    """Layers, the largest share of the peak first, then by residuals."""
    return sorted(layers, key=lambda layer: (-layer.peak_share_bytes, -layer.residual_bytes, layer.layer))


def timeline_summary(timeline: Timeline) -> str:
    """The chart of a timeline in words, for those who do not see it."""
    if not timeline.total_bytes:
        return "The timeline has no operations."
    steps = len(timeline.total_bytes)
    text = (
        f"{format_count(steps)} operations. Memory is {format_bytes(timeline.total_bytes[0])} in the first, "
        f"peaks at {format_bytes(timeline.peak_bytes)} in operation {format_count(timeline.peak_step + 1)} "
        f"({_at_peak(timeline)}) and is {format_bytes(timeline.total_bytes[-1])} in the last."
    )
    parts = sorted(((row[timeline.peak_step], role) for role, row in timeline.bytes_by_role.items()), reverse=True)
    named = [f"{role} {format_bytes(nbytes)}" for nbytes, role in parts if nbytes]
    if named:
        text += f" At the peak: {', '.join(named)}."
    begin = next((first for first, _, phase in phase_spans(timeline) if phase == "backward"), None)
    if begin is not None:
        text += f" The backward pass begins at operation {format_count(begin + 1)}."
    recomputations = sum(timeline.is_recomputation)
    return text + (f" {format_count(recomputations)} operations are recomputations." if recomputations else "")


def phase_spans(timeline: Timeline) -> list[tuple[int, int, Phase]]:
    """What the step does most of the time from which step to which: single operations of another phase, such as shapes that gradients need
    and that run as soon as they can, are left aside, and the optimizer is what comes after the gradients."""
    kinds = [step_phase(timeline, step) for step in range(len(timeline.labels))]
    asked = [None if phase == "recomputation" else PHASES.index(phase) for phase in kinds]
    found = mostly(asked, len(asked) // 40)
    backward, behind = PHASES.index("backward"), -1
    for k in reversed(range(len(found))):  # a weight is updated as soon as its gradient is there: in between, updates may be what runs most
        if PHASES[found[k]] == "optimizer" and behind == backward:
            found[k] = backward
        behind = found[k]
    starts = [k for k in range(len(found)) if not k or found[k] != found[k - 1]]
    return [(first, end - 1, PHASES[found[first]]) for first, end in zip(starts, [*starts[1:], len(found)], strict=False)]


def step_phase(timeline: Timeline, step: int) -> Phase:
    """What a step is for."""
    if timeline.is_recomputation[step]:
        return "recomputation"
    if timeline.is_optimizer and timeline.is_optimizer[step]:
        return "optimizer"
    return "backward" if timeline.is_backward[step] else "forward"


def _measured_facts(label: str, measured: Measurement | None, predicted: int) -> list[Fact]:
    """What a step took where it was measured."""
    if measured is None:
        return []
    against = f"{100 * (measured.peak_bytes - predicted) / max(predicted, 1):+.1f} % against the prediction".replace("-0.0 %", "+0.0 %")
    return [
        Fact(
            label, format_bytes(measured.peak_bytes), against + f"; {format_time(measured.time_s)} a step" * math.isfinite(measured.time_s)
        )
    ]


def measured_overhead(plan: MemoryPlan) -> float:
    """Extra time as measured, as a share of the step as it was; nan where one of the times was not."""
    before, after = plan.measured_before, plan.measured_after
    return after.time_s / before.time_s - 1.0 if before and after and before.time_s > 0 else math.nan


def _peak_note(timeline: Timeline) -> str:
    if not timeline.labels:
        return ""
    return f"at op {format_count(timeline.peak_step + 1)} of {format_count(len(timeline.labels))}, {_at_peak(timeline)}"


def _at_peak(timeline: Timeline) -> str:
    return timeline.words(timeline.peak_step)


def _peak_facts(inspection: Inspection) -> list[Fact]:
    executor, timeline = inspection.executor, inspection.timeline
    if executor is None:
        return [Fact("peak", format_bytes(inspection.peak_bytes), f"{_peak_note(timeline)}; in the order of the trace")]
    if executor.order == "xla":
        return [
            Fact("peak", format_bytes(executor.peak_bytes), "by XLA's buffer assignment; all else here is operation by operation"),
            Fact("uncompiled", format_bytes(timeline.peak_bytes), _peak_note(timeline)),
        ]
    return [Fact("peak", format_bytes(executor.peak_bytes), f"{_peak_note(timeline)}; {_executor_note(executor)}")]


def _executor_note(executor: PeakPrediction) -> str:
    low, high = format_bytes(executor.low_bytes), format_bytes(executor.high_bytes)
    spread = f"{low} to {high}, " if low != high else ""
    threads = "1 inter-op thread" if executor.threads == 1 else f"{executor.threads} inter-op threads"
    return f"{spread}as TensorFlow runs the step by itself, {threads}"


def _original_facts(plan: MemoryPlan) -> list[Fact]:
    """The peak of the step as it is."""
    before = plan.timeline_before
    if plan.executor is None:
        return [Fact("original peak", format_bytes(plan.original_peak_bytes), _plan_note(plan.original_peak_bytes, before))]
    return [Fact("original peak", format_bytes(plan.original_peak_bytes), _executor_note(plan.executor))]


def _offload_facts(plan: MemoryPlan) -> list[Fact]:
    """What is copied away, also where nothing is, though it might be."""
    asked = plan.offload_to or (plan.recipe.offload_to if plan.recipe else "")
    note = f"copied to {asked}" if plan.offloaded_bytes else f"nothing was found to be worth a copy to {asked}"
    return [Fact("offloaded", format_bytes(plan.offloaded_bytes), note)] if asked else []


def _plan_note(peak_bytes: int, timeline: Timeline) -> str:
    """Where the peak is; a program of XLA, whose order and fusions are its own, has another one than the charts."""
    note = _peak_note(timeline)
    return note if peak_bytes == timeline.peak_bytes else f"in the charts {format_bytes(timeline.peak_bytes)}, {note}"


def _budget_note(plan: MemoryPlan) -> str:
    if plan.original_peak_bytes <= 0:
        return ""
    room = plan.budget_bytes - plan.peak_bytes
    return f"{format_percent(plan.budget_bytes / plan.original_peak_bytes)} of the original peak; " + (
        f"{format_bytes(room)} to spare" if room >= 0 else f"{format_bytes(-room)} too little"
    )


def _node_note(inspection: Inspection) -> str:
    touched = len(inspection.timeline.labels)
    shown = f"{format_count(touched)} touch 4 KiB and more" if touched else ""
    return "; ".join(filter(None, (shown, f"with {feeds_text(inspection.feeds)}" if inspection.feeds else "")))


def _unknown_flops(inspection: Inspection) -> str:
    if not inspection.unknown_flop_ops:
        return "every op type is counted"
    named = inspection.unknown_flop_ops[:_OP_TYPES_NAMED]
    more = len(inspection.unknown_flop_ops) - len(named)
    return "not counted: " + ", ".join(named) + (f" and {more} op types more" if more else "")
