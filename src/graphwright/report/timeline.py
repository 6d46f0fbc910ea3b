"""Memory over one execution of a step: the value, its words, and its chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from graphwright.analyze.downsample import mostly
from graphwright.analyze.layers import in_layer
from graphwright.plain import fields_json
from graphwright.report.sheet import Block, Column, Flow, Printed, Sheet, Tab, Table, ratio
from graphwright.report.terminal_layout import flowing
from graphwright.report.units import format_bytes, format_count, format_percent, format_time, nothing_of_zero

Role = Literal["weights", "optimizer state", "inputs", "residuals", "gradients", "temporaries"]
ROLES: tuple[Role, ...] = get_args(Role)
"""In the order in which charts stack them, from the bottom."""
ROLE_WORDS: Mapping[str, str] = {
    "weights": "weights",
    "optimizer state": "optimizer state",
    "inputs": "inputs",
    "residuals": "activations kept for backward",
    "gradients": "gradients",
    "temporaries": "temporaries and scratch",
}
"""Roles as the first screen calls them."""
Phase = Literal["forward", "backward", "recomputation", "optimizer"]
PHASES: tuple[Phase, ...] = get_args(Phase)
RESIDUALS_ARE = "Residuals are forward values kept for the backward pass."
_PHASE_MARKS: Mapping[Phase, str] = {"forward": "─", "backward": "═", "recomputation": "≈", "optimizer": "╌"}
_CHART_ROWS = 6
_BLOCKS = " ▁▂▃▄▅▆▇█"
_LIVE_ROWS = 8


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """One buffer that is live at a step.

    Attributes:
        name: of the value, for example "unet/conv1/Conv2D:0".
        layer: the name scope of its layer; "" when unknown.
        type: dtype and shape, for example "float32[32,64]".
        source: the user's line that made it, as file, line and function; "" when unknown.
    """

    name: str
    op_type: str
    layer: str
    role: Role
    nbytes: int
    type: str = ""
    source: str = ""

    @property
    def words(self) -> str:
        """Its name behind its layer, as the user knows it."""
        return in_layer(self.layer, self.name)


@dataclass(frozen=True, slots=True)
class BufferLifetime:
    """One buffer with the steps at which it is live, both ends included."""

    buffer: LiveBuffer
    first_step: int
    last_step: int

    def to_json(self) -> dict[str, object]:
        return {**fields_json(self.buffer), "first_step": self.first_step, "last_step": self.last_step}


@dataclass(frozen=True, slots=True)
class Timeline(Printed):
    """Memory over one execution of a step, in execution order.

    `bytes_by_role[role][k]` are the bytes of the role at step `k`; they add up to `total_bytes[k]`. `labels[k]` is the node executed at
    step `k`, `layers[k]` its layer; `layers` is empty when unknown. With `lifetimes` a report lists the live buffers of every step, without
    them those of the peak only; a buffer that is computed twice has two lifetimes. `live_at_peak` is sorted by size, the largest first.
    `is_optimizer` marks the backward steps that update variables; it may be empty.
    """

    labels: tuple[str, ...]
    bytes_by_role: Mapping[Role, tuple[int, ...]]
    total_bytes: tuple[int, ...]
    is_recomputation: tuple[bool, ...]
    is_backward: tuple[bool, ...]
    peak_step: int
    peak_bytes: int
    live_at_peak: tuple[LiveBuffer, ...]
    lifetimes: tuple[BufferLifetime, ...] = ()
    is_optimizer: tuple[bool, ...] = ()
    layers: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return plain numbers and text. Lists with an entry per step have the same length."""
        return {"step_count": len(self.labels), **fields_json(self, "layers")}

    def words(self, step: int) -> str:
        return in_layer(self.layers[step], self.labels[step]) if self.layers else self.labels[step]

    def phase(self, step: int) -> Phase:
        if self.is_recomputation[step]:
            return "recomputation"
        if self.is_optimizer and self.is_optimizer[step]:
            return "optimizer"
        return "backward" if self.is_backward[step] else "forward"

    def at_peak(self) -> dict[Role, int]:
        rows: dict[Role, Sequence[int]] = {role: row for role in ROLES if (row := self.bytes_by_role.get(role))}
        return {role: row[self.peak_step] for role, row in rows.items() if row[self.peak_step]}

    def _sheet(self) -> Sheet:
        chart = MemoryCharts([("timeline", "", self)], self.peak_bytes, title="Memory over the step", part="always")
        return Sheet(timeline_summary(self), tabs=[Tab("overview", "Overview", [chart])])


@dataclass(frozen=True)
class Track:
    """Measured memory over time; `spans` are begin, end and number of the phase that takes most of the time."""

    id: str
    title: str
    times_s: Sequence[float]
    bytes_in_use: Sequence[int]
    end_s: float
    note: str
    spans: Sequence[tuple[float, float, int]] = ()

    @property
    def peak_bytes(self) -> int:
        return max(self.bytes_in_use)

    @property
    def summary(self) -> str:
        at = self.times_s[self.bytes_in_use.index(self.peak_bytes)]
        return f"{format_bytes(self.peak_bytes)} at most, {format_time(at)} after the step began. {self.note}"


@dataclass(frozen=True)
class MemoryCharts(Block):
    """Memory over steps, predicted and measured, at one scale; `timelines` are identities, titles and values."""

    timelines: Sequence[tuple[str, str, Timeline]]
    top_bytes: int
    budget_bytes: int | None = None
    tracks: Sequence[Track] = ()
    time_of: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def is_empty(self) -> bool:
        return not (self.timelines or self.tracks)

    @property
    def words(self) -> list[tuple[str, str, str, bool]]:
        return [(identity, title, timeline_summary(timeline), bool(timeline.total_bytes)) for identity, title, timeline in self.timelines]

    def lines(self, width: int) -> list[str]:
        lines: list[str] = []
        for _, title, timeline in self.timelines:
            lines += [f"{title}:"] if title else []
            lines += _chart_lines(timeline, width, self.top_bytes, self.budget_bytes or 0)
        return lines


def _chart_lines(timeline: Timeline, width: int, top_bytes: int, budget_bytes: int) -> list[str]:
    """Return a chart with one column per run of steps, as high as the largest total in it."""
    if not timeline.total_bytes or top_bytes <= 0:
        return ["no steps"]
    labels, budget_row = {_CHART_ROWS - 1: format_bytes(top_bytes), 0: "0 B"}, -1
    if 0 < budget_bytes <= top_bytes:
        budget_row = min(int(budget_bytes / top_bytes * _CHART_ROWS), _CHART_ROWS - 1)
        labels[budget_row] = f"budget {format_bytes(budget_bytes)}"
    margin = max(map(len, labels.values()))
    count = max(width - margin - 2, 8)
    borders = [column * len(timeline.total_bytes) // count for column in range(count + 1)]
    columns = [range(first, max(last, first + 1)) for first, last in pairwise(borders)]
    highest = [max(steps, key=timeline.total_bytes.__getitem__) for steps in columns]
    heights = [round(timeline.total_bytes[step] / top_bytes * _CHART_ROWS * 8) for step in highest]
    lines: list[str] = []
    for row in reversed(range(_CHART_ROWS)):
        empty = "┄" if row == budget_row else " "
        bars = "".join(_BLOCKS[min(height - 8 * row, 8)] if height > 8 * row else empty for height in heights)
        lines.append(f"{labels.get(row, ''):>{margin}} {'┤' if row in labels else '│'}{bars}")
    spans = phase_spans(timeline)
    phases: list[Phase] = [
        "recomputation" if any(timeline.is_recomputation[k] for k in steps) else next(p for _, last, p in spans if steps[-1] <= last)
        for steps in columns
    ]
    marks = "".join(_PHASE_MARKS[phase] for phase in phases)
    lines.append(f"{' ' * (margin + 1)}└{marks}")
    peak = max(range(count), key=lambda column: timeline.total_bytes[highest[column]])
    label = f"peak {format_bytes(timeline.peak_bytes)}"
    lines.append(f"{label} ▲".rjust(margin + peak + 3) if peak > len(label) else f"{'▲':>{margin + peak + 3}} {label}")
    legend = [f"{mark} {phase}" for phase, mark in _PHASE_MARKS.items() if mark in marks]
    roles = [f"{role} {format_bytes(nbytes)}" for role, nbytes in timeline.at_peak().items()]
    return [*lines, f"steps: {'  '.join(legend)}", *flowing(["at the peak:", *roles], "  ", width)]


def timeline_summary(timeline: Timeline) -> str:
    if not timeline.total_bytes:
        return "The timeline has no operations."
    first, peak, last = map(format_bytes, (timeline.total_bytes[0], timeline.peak_bytes, timeline.total_bytes[-1]))
    at = f"operation {format_count(timeline.peak_step + 1)} ({timeline.words(timeline.peak_step)})"
    text = f"{format_count(len(timeline.total_bytes))} operations. "
    text += f"Memory is {first} in the first, peaks at {peak} in {at} and is {last} in the last."
    roles = sorted(((nbytes, role) for role, nbytes in timeline.at_peak().items()), reverse=True)
    if roles:
        text += f" At the peak: {', '.join(f'{role} {format_bytes(nbytes)}' for nbytes, role in roles)}."
    begins = {phase: first for first, _, phase in reversed(phase_spans(timeline))}
    text += f" The backward pass begins at operation {format_count(begins['backward'] + 1)}." if "backward" in begins else ""
    recomputations = sum(timeline.is_recomputation)
    return text + f" {format_count(recomputations)} operations are recomputations." * bool(recomputations)


def peak_note(timeline: Timeline) -> str:
    if not timeline.labels:
        return ""
    count = format_count(len(timeline.labels))
    return f"at op {format_count(timeline.peak_step + 1)} of {count}, {timeline.words(timeline.peak_step)}"


def phase_spans(timeline: Timeline) -> list[tuple[int, int, Phase]]:
    """Return the first step, the last step and the phase of each part of a timeline.

    Single operations of another phase, such as shapes that gradients need and that run early, do not count. The optimizer is the part after
    the gradients.
    """
    phases = [timeline.phase(step) for step in range(len(timeline.labels))]
    numbers = mostly([None if phase == "recomputation" else PHASES.index(phase) for phase in phases], len(phases) // 40)
    backward, following = PHASES.index("backward"), -1
    for k in reversed(range(len(numbers))):  # a weight is updated as soon as its gradient is known, so updates may prevail in between
        if PHASES[numbers[k]] == "optimizer" and following == backward:
            numbers[k] = backward
        following = numbers[k]
    starts = [k for k in range(len(numbers)) if not k or numbers[k] != numbers[k - 1]]
    return [(first, end - 1, PHASES[numbers[first]]) for first, end in zip(starts, [*starts[1:], len(numbers)], strict=False)]


def role_flow(amounts: Mapping[Role, int]) -> Flow:
    rows = sorted(amounts.items(), key=lambda row: -row[1])
    return Flow([f"{ROLE_WORDS[role]} {format_bytes(nbytes)}" for role, nbytes in rows if nbytes])


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """The live buffers of one role in one layer."""

    layer: str
    role: Role | Literal[""]
    count: int
    nbytes: int


def live_groups(buffers: Iterable[LiveBuffer]) -> list[LiveGroup]:
    groups: dict[tuple[str, Role], list[int]] = {}
    for buffer in buffers:
        groups.setdefault((buffer.layer, buffer.role), []).append(buffer.nbytes)
    rows = [LiveGroup(layer, role, len(sizes), sum(sizes)) for (layer, role), sizes in groups.items()]
    return sorted(rows, key=lambda group: (-group.nbytes, group.layer, group.role))


def live_group_table(
    buffers: Iterable[LiveBuffer], peak_bytes: int, title: str = "Live at the peak, by layer and role"
) -> Table[LiveGroup]:
    """The live buffers of a peak by layer and role, with the bytes that no buffer explains."""
    groups = live_groups(buffers)
    missing = peak_bytes - sum(group.nbytes for group in groups)
    if groups and missing > 0:
        groups.insert(_LIVE_ROWS, LiveGroup("not itemized", "", 0, missing))
    columns: list[Column[LiveGroup]] = [
        Column("layer", lambda g: g.layer, kind="layer"),
        Column("role", lambda g: g.role, kind="role"),
        Column("bytes", lambda g: g.nbytes, format_bytes, bar=True),
        Column("of the peak", lambda g: ratio(g.nbytes, peak_bytes), format_percent),
        Column("buffers", lambda g: g.count, nothing_of_zero(format_count)),
    ]
    caption = f"{format_count(len(groups))} groups of buffers that are live at the peak"
    return Table(
        groups, columns, "table-live-groups", caption, lambda g: g.layer, limit=_LIVE_ROWS + 1, empty="Not itemized.",
        title=title, hint=RESIDUALS_ARE,
    )  # fmt: skip


def live_table(identity: str, title: str, timeline: Timeline) -> Table[LiveBuffer]:
    live, peak = timeline.live_at_peak, timeline.peak_bytes
    columns: list[Column[LiveBuffer]] = [
        Column("value", lambda b: b.words, kind="name"),
        Column("op type", lambda b: b.op_type, kind="text"),
        Column("layer", lambda b: b.layer, kind="layer"),
        Column("role", lambda b: b.role, kind="role"),
        Column("bytes", lambda b: b.nbytes, format_bytes, bar=True),
        Column("of the peak", lambda b: ratio(b.nbytes, peak), format_percent),
    ]
    sizes = f"{format_bytes(sum(b.nbytes for b in live))} of {format_bytes(peak)}"
    caption = f"{format_count(len(live))} buffers, {sizes}, at operation {format_count(timeline.peak_step + 1)}"
    return Table(live, columns, identity, caption, lambda b: b.layer, title=title, empty="Not itemized.", on="page")
