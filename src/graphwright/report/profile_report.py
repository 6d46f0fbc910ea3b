"""A measured step: what it took, and where, per op type, per layer, over time, and as a tree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphwright.analyze.profile_tree import Column as TreeColumn
from graphwright.analyze.profile_tree import TreeNode, TreeOptions, column_value
from graphwright.analyze.step_profile import OpRun, ProfileRow, StepProfile, by_layer, by_op_type, whole
from graphwright.plain import fields_json, plain
from graphwright.report.cost_rows import largest_layers
from graphwright.report.measured_chart import profile_tracks
from graphwright.report.sheet import NO_LAYER, Block, Column, Drawing, Fact, Facts, Flow, Paragraph, Printed, Sheet, Tab, Table, ranking
from graphwright.report.timeline import MemoryCharts
from graphwright.report.units import (
    counted,
    format_bytes,
    format_count,
    format_flops,
    format_percent,
    format_ratio,
    format_short,
    format_time,
    nothing_of_zero,
    printable,
)

RUN_LIMIT = 20_000
"""The chart leaves out the shortest of more op runs, and the page says so."""

_DIRECTIONS = ("forward", "backward", "optimizer")
_FEW = 4
_TYPICAL = 1.5
"""The largest ratio between the times of a recorded and a plain step, either way, that counts as typical."""
_TREE_ROWS = 200


def profile_sheet(profile: StepProfile, feeds: Mapping[str, tuple[int, ...]], how: Mapping[str, str]) -> Sheet:
    layers, op_types = by_layer(profile), by_op_type(profile)
    total = whole(profile)
    facts = _facts(profile, total)
    first: list[Block] = [Flow([f"{name} {format_percent(share)}" for name, share in _shares(total)], part="first")]
    named = [fact for fact in facts if fact.label == "FLOPs" or fact.label.startswith("peak")]
    first += [Paragraph(f"{fact.label[:1].upper()}{fact.label[1:]}: {fact.value}, {fact.note}", part="first") for fact in named]
    first.append(ranking("Layers", [(row.name or NO_LAYER, row.time_s) for row in layers.values()], format_time))
    first.append(Table(list(op_types.values())[:_FEW], _columns("op type"), part="first"))
    times = {title: [(row.time_s, name) for name, row in rows.items()] for title, rows in (("Layers", layers), ("Op types", op_types))}
    tops = {title: largest_layers(amounts, format_time, of_layers=title == "Layers") for title, amounts in times.items()}
    overview: list[Block] = [
        MemoryCharts((), 1, tracks=profile_tracks(profile), title="Memory over time", on="page"),
        Facts(facts, title="The step"),
        *([Drawing("top_lists", {"tops": tops}, title="Where the time goes")] if profile.runs else []),
    ]
    hint = "Choose a layer to see its operations. In the table the arrow keys go from row to row."
    tabs = [
        Tab("overview", "Overview", overview),
        *([Tab("step", "Timeline", op_run_blocks(profile))] if profile.runs else []),
        Tab("layers", "Layers", [_table("layer", layers, hint)]),
        Tab("op-types", "Op types", [_table("op type", op_types)]),
    ]
    return Sheet(profile_verdict(profile), first, tabs, list(how.items()), profile.name, "profile", feeds=feeds)


def profile_verdict(profile: StepProfile) -> str:
    first = list(by_op_type(profile).values())[:1]
    most = "".join(f"; {row.name} takes {format_percent(row.share)} of the time of all operations" for row in first)
    time = f"{format_time(profile.step_time_s)} a step"
    if math.isfinite(profile.plain_time_s):
        time = f"{format_time(profile.plain_time_s)} a step, {format_time(profile.step_time_s)} while recorded"
    ratio = profile.step_time_s / profile.plain_time_s if profile.plain_time_s else 1.0
    caution = " The recorded step was not a typical one, so shares may mislead." if ratio > _TYPICAL or ratio < 1 / _TYPICAL else ""
    return f"{printable(profile.name)}: {time}{most}.{caution}"


def _shares(total: ProfileRow) -> list[tuple[str, float]]:
    parts = ("forward", total.forward_time_s), ("backward", total.backward_time_s), ("optimizer", total.optimizer_time_s)
    return [(name, part / total.time_s) for name, part in parts if part and total.time_s]


def _facts(profile: StepProfile, total: ProfileRow) -> list[Fact]:
    plain_time = f"; {format_time(profile.plain_time_s)} without the recording" if math.isfinite(profile.plain_time_s) else ""
    from_to = "as recorded, from the first operation's start to the last one's end"
    facts = [Fact("step", format_time(profile.step_time_s), f"{from_to}{plain_time}")]
    runs = f"{counted(total.occurrences, 'run')} on {counted(len(set(map(_lane, profile.runs))), 'lane')}"
    shares = ", ".join(f"{name} {format_percent(share)}" for name, share in _shares(total))
    facts.append(Fact("operations", format_time(total.time_s), f"{runs}; {shares}"))
    if total.flops:
        time_s = profile.plain_time_s if plain_time else profile.step_time_s
        rate = f"{format_flops(total.flops / time_s)}/s" if time_s else "rate not known"
        left_out = f"; {counted(total.unknown, 'run')} not counted" if total.unknown else ""
        note = f"{rate}; {total.arithmetic_intensity:.3g} FLOP per byte moved by the kernels that ran{left_out}"
        facts.append(Fact("FLOPs", format_flops(total.flops), note))
    if total.parameters:
        facts.append(Fact("parameters", format_count(total.parameters), "elements of weights, trained or not"))
    for track in profile.memory:
        resident = format_bytes(track.resident_bytes)
        before = f"; {resident} of it from before the step" if track.resident_bytes else " on top of what was there"
        facts.append(Fact(f"peak {track.device}", format_bytes(track.peak_bytes), f"allocated by {track.allocator}{before}"))
    return facts


def _columns(heading: str) -> list[Column[ProfileRow]]:
    shown: tuple[TreeColumn, ...] = ("time", "share", "occurrences", "flops_per_s", "intensity", "bytes", "parameters", "flops")
    time, share, *others = [_tree_column(name) for name in shown]
    directions: list[Column[ProfileRow]] = [
        Column("forward", lambda r: r.forward_time_s, format_time),
        Column("backward", lambda r: r.backward_time_s, format_time),
        Column("optimizer", lambda r: r.optimizer_time_s, nothing_of_zero(format_time)),
    ]
    last = [*directions, *others] if heading == "layer" else [*others, *directions]
    return [Column(heading, lambda r: r.name, kind="layer" if heading == "layer" else "name"), time, share, *last]


def _table(heading: str, rows: Mapping[str, ProfileRow], hint: str = "") -> Table[ProfileRow]:
    caption = f"{format_count(len(rows))} {heading}s, the most time first; times of operations side by side add up; shares are of that sum"
    identity = f"table-{heading.replace(' ', '-')}s"
    return Table(list(rows.values()), _columns(heading), identity, caption, lambda row: row.name, title=f"Per {heading}", hint=hint)


_TREE_HEADINGS: Mapping[TreeColumn, str] = {
    "host_time": "host",
    "accelerator_time": "accel.",
    "bytes": "allocated",
    "peak_bytes": "peak",
    "residual_bytes": "residual",
    "output_bytes": "output",
    "parameters": "params",
    "flops": "FLOPs",
    "flops_per_s": "FLOP/s",
    "intensity": "FLOP/B",
    "occurrences": "runs",
}


_TREE_FORMS = {
    "time": format_time,
    "bytes": format_bytes,
    "share": format_percent,
    "flops": nothing_of_zero(format_short),
    "s": nothing_of_zero(format_short),  # of "flops_per_s"
    "intensity": nothing_of_zero(format_ratio),
    "parameters": nothing_of_zero(format_count),
}


def _tree_column(column: TreeColumn) -> Column[ProfileRow]:
    kind = column.rpartition("_")[2]  # "bytes" of "peak_bytes"
    heading = _TREE_HEADINGS.get(column, column)
    return Column(heading, lambda row: column_value(row, column), _TREE_FORMS.get(kind, format_count), bar=kind in ("time", "bytes"))


def op_run_blocks(profile: StepProfile) -> list[Block]:
    longest = sorted(profile.runs, key=lambda run: (run.start_ns - run.end_ns, run.start_ns))
    columns: list[Column[OpRun]] = [
        Column("operation", lambda run: profile.layers.words(run.name), kind="name"),
        Column("op type", lambda run: run.op_type, kind="text"),
        Column("layer", lambda run: profile.layers.of(run.name), kind="layer"),
        Column("direction", lambda run: run.direction, kind="text", optional=True),
        Column("lane", _lane, kind="text"),
        Column("start", lambda run: run.start_ns * 1e-9, format_time, optional=True),
        Column("time", lambda run: run.time_s, format_time, bar=True),
        Column("allocated", lambda run: run.allocated_bytes, format_bytes, bar=True, note="bytes requested from the allocator"),
    ]
    caption = f"{format_count(len(profile.runs))} runs, the longest first"
    values, title = {"words": _run_summary(profile)}, "Timeline of a measured step"
    return [
        Drawing("op_runs", values, ("profile.js",), lambda: {"profile": _run_data(profile)}, title=title),
        Table(longest, columns, "table-runs", caption, lambda r: profile.layers.of(r.name), title="The longest operations", on="page"),
    ]


def _run_data(profile: StepProfile) -> dict[str, Any]:
    """Op runs by lane, a lane per thread or stream; times in microseconds, names by number."""
    runs = sorted(profile.runs, key=lambda run: run.start_ns - run.end_ns)[:RUN_LIMIT]
    runs.sort(key=lambda run: run.start_ns)
    lanes = {lane: k for k, lane in enumerate(sorted({_lane(run) for run in profile.runs}))}
    names: dict[str, int] = {}
    op_types: dict[str, int] = {}
    layers: dict[str, int] = {}
    rows: list[list[float]] = []
    for run in runs:
        start, time = round(run.start_ns / 1e3, 3), round((run.end_ns - run.start_ns) / 1e3, 3)
        name, op_type = names.setdefault(run.name, len(names)), op_types.setdefault(run.op_type, len(op_types))
        rows.append([lanes[_lane(run)], start, time, name, op_type, _DIRECTIONS.index(run.direction), run.allocated_bytes])
    return {
        "lanes": list(lanes),
        "runs": rows,
        "names": [profile.layers.words(name) for name in names],
        "opTypes": list(op_types),
        "layerOf": [layers.setdefault(profile.layers.of(name), len(layers)) for name in names],
        "layers": list(layers),
        "end": max((run.end_ns for run in profile.runs), default=0) / 1e3,
    }


def _run_summary(profile: StepProfile) -> str:
    lanes = counted(len(set(map(_lane, profile.runs))), "lane")
    text = f"{format_count(len(profile.runs))} runs of operations on {lanes} in {format_time(profile.step_time_s)}."
    longest = max(profile.runs, key=lambda run: run.end_ns - run.start_ns)
    text += f" The longest is {profile.layers.words(longest.name)} ({longest.op_type}) at {format_time(longest.time_s)}."
    text += " Recording slows the step, so these times are longer than without it."
    if any(run.direction == "optimizer" for run in profile.runs[: len(profile.runs) // 2]):
        text += " Operations of the optimizer that need no gradient, such as its counters, may run early."
    if any(run.direction == "forward" for run in profile.runs[len(profile.runs) // 2 :]):
        text += " Operations for derivatives that depend on no gradient count as forward, and may run late."
    left_out = len(profile.runs) - RUN_LIMIT
    return text + (f" The shortest {format_count(left_out)} are not drawn." if left_out > 0 else "")


def _lane(run: OpRun) -> str:
    return f"{run.device} {run.thread}".strip()


@dataclass(frozen=True)
class ProfileTree(Printed):
    """A tree that prints itself; totals include hidden nodes unless the options say otherwise. Returned by `Profile.tree`."""

    root: TreeNode
    options: TreeOptions

    def rows(self) -> Iterator[tuple[int, TreeNode]]:
        stack = [(0, self.root)]
        while stack:
            depth, node = stack.pop()
            yield depth, node
            stack.extend((depth + 1, child) for child in reversed(node.children))

    def to_json(self) -> dict[str, object]:
        """Return the rows from the top, with depths; a nested document would be too deep for some readers."""
        rows = [{"depth": depth, **fields_json(node, "children")} for depth, node in self.rows()]
        return {"options": plain(self.options), "rows": rows}

    def _sheet(self) -> Sheet:
        heading = {"scope": "scope", "graph": "node", "op": "op type", "code": "line"}[self.options.by]
        columns: list[Column[tuple[int, TreeNode]]] = [Column(heading, lambda row: self._label(*row), kind="name")]
        for name in self.options.columns:
            column = _tree_column(name)
            columns.append(Column(column.label, lambda row, of=column.of: of(row[1].total), column.form))
        return Sheet("", [Table(list(self.rows()), columns, limit=_TREE_ROWS, more="more rows", fixed=True)])

    def _label(self, depth: int, node: TreeNode) -> str:
        name = printable(node.name)
        if (self.options.by == "scope" and depth > 1) or self.options.by == "code":
            name = name.rsplit("/", 1)[-1]
        return "  " * min(depth, 12) + name
