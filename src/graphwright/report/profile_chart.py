"""What a page's script draws a measured timeline from, and the same in words and as a table."""

from __future__ import annotations

from typing import Any

from graphwright.analyze.step_profile import OpRun, StepProfile
from graphwright.report.tables import Column, Table, tabulated
from graphwright.report.units import counted, format_bytes, format_count, format_time

RUN_LIMIT = 20_000
"""Of more op runs the shortest are left out of the chart, and the page says so."""

_DIRECTIONS = ("forward", "backward", "optimizer")


def profile_data(profile: StepProfile) -> dict[str, Any]:
    """Op runs by lane, a lane per thread or stream; times in microseconds, the names by number."""
    kept = sorted(profile.runs, key=lambda run: run.start_ns - run.end_ns)[:RUN_LIMIT]
    kept.sort(key=lambda run: run.start_ns)
    lanes = {lane: k for k, lane in enumerate(sorted({_lane(run) for run in profile.runs}))}
    names: dict[str, int] = {}
    op_types: dict[str, int] = {}
    layers: dict[str, int] = {}
    rows: list[list[float]] = []
    layer_numbers: list[int] = []
    for run in kept:
        number = names.setdefault(run.name, len(names))
        if number == len(layer_numbers):
            layer_numbers.append(layers.setdefault(profile.layers.of(run.name), len(layers)))
        rows.append(
            [
                lanes[_lane(run)],
                round(run.start_ns / 1e3, 3),
                round((run.end_ns - run.start_ns) / 1e3, 3),
                number,
                op_types.setdefault(run.op_type, len(op_types)),
                _DIRECTIONS.index(run.direction),
                run.allocated_bytes,
            ]
        )
    return {
        "lanes": list(lanes),
        "runs": rows,
        "names": [profile.layers.words(name) for name in names],
        "opTypes": list(op_types),
        "layers": list(layers),
        "layerOf": layer_numbers,
        "end": max((run.end_ns for run in profile.runs), default=0) / 1e3,
    }


def profile_summary(profile: StepProfile) -> str:
    """The chart in words."""
    threads = len({_lane(run) for run in profile.runs})
    text = f"{format_count(len(profile.runs))} runs of operations on {counted(threads, 'lane')} in {format_time(profile.step_time_s)}."
    if profile.runs:
        longest = max(profile.runs, key=lambda run: run.end_ns - run.start_ns)
        text += f" The longest is {profile.layers.words(longest.name)} ({longest.op_type}) at {format_time(longest.time_s)}."
        text += " Recording slows a step: these times are longer than those of a step that is not recorded."
        if any(run.direction == "optimizer" for run in profile.runs[: len(profile.runs) // 2]):
            text += " What of the optimizer needs no gradient, such as its counters, may run early."
        if any(run.direction == "forward" for run in profile.runs[len(profile.runs) // 2 :]):
            text += " What derivatives are made of and depends on no gradient counts as forward, and may run late."
    left_out = len(profile.runs) - RUN_LIMIT
    return text + (f" The shortest {format_count(left_out)} are not drawn." if left_out > 0 else "")


def run_table(profile: StepProfile) -> Table:
    """The longest runs."""
    longest = sorted(profile.runs, key=lambda run: (run.start_ns - run.end_ns, run.start_ns))
    columns: tuple[Column[OpRun], ...] = (
        Column("operation", lambda run: profile.layers.words(run.name), kind="name"),
        Column("op type", lambda run: run.op_type, kind="text"),
        Column("layer", lambda run: profile.layers.of(run.name), kind="layer"),
        Column("direction", lambda run: run.direction, kind="text", optional=True),
        Column("lane", _lane, kind="text"),
        Column("start", lambda run: run.start_ns * 1e-9, format_time, optional=True),
        Column("time", lambda run: run.time_s, format_time, bar=True),
        Column("allocated", lambda run: run.allocated_bytes, format_bytes, bar=True, note="bytes asked of the allocator"),
    )
    caption = f"{format_count(len(profile.runs))} runs, the longest first"
    return tabulated("table-runs", "The longest operations", caption, longest, columns, lambda run: profile.layers.of(run.name))


def _lane(run: OpRun) -> str:
    return f"{run.device} {run.thread}".strip()
