"""A measured step as a Chrome trace (Trace Event Format), for Perfetto and chrome://tracing.

Each device is a process, each thread or stream a track, each op run a slice. Slices of one track must nest or be disjoint; a slice that
crosses another (an op that finishes on another thread) gets a track of its own. Memory is a counter track per allocator.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from graphwright.analyze.directions import Direction
from graphwright.analyze.step_profile import OpRun, StepProfile
from graphwright.files import file_for_user

_COLORS: Mapping[Direction, str] = {
    "forward": "thread_state_running",
    "backward": "thread_state_iowait",
    "optimizer": "thread_state_runnable",
}
"""Names of colors that chrome://tracing knows; Perfetto makes colors of its own from the names of slices."""

_UNKNOWN_THREAD = "thread not known"
_STEP_TRACK = 1
_FIRST_TID = 1001  # a thread with the number of its process is taken for its main thread


def write_chrome_trace(profile: StepProfile, path: str | Path, *, flows: bool = False) -> Path:
    """Write the trace as JSON; replace an existing file; return the path.

    Args:
        profile: the measured step.
        path: usually ends in `.json`.
        flows: whether to draw arrows from producers to consumers, which are slow to display for large steps.

    Raises:
        ArgumentError: the path is a folder, or its folder does not exist.
    """
    target = Path(path)
    with file_for_user(target) as stream:
        stream.write('{"displayTimeUnit": "ns", "otherData": ')
        stream.write(json.dumps({"step": profile.name, "writer": "graphwright", "step_time_s": profile.step_time_s}))
        stream.write(', "traceEvents": [\n')
        for k, event in enumerate(trace_events(profile, flows=flows)):
            stream.write((",\n" if k else "") + json.dumps(event, separators=(",", ":")))
        stream.write("\n]}\n")
    return target


def trace_events(profile: StepProfile, *, flows: bool = False) -> Iterator[dict[str, object]]:
    """Yield the events of the trace. Times are in microseconds from the start of the step.

    >>> run = OpRun("net/a", "MatMul", "CPU:0", "thread 1", 2_000, 5_500)
    >>> events = list(trace_events(StepProfile("step", (run,), (), 5.5e-6)))
    >>> [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    [('step', 0.0, 5.5), ('MatMul', 2.0, 3.5)]
    """
    places = _Places(profile)
    yield from places.names(profile.name)
    end_ns = max((run.end_ns for run in profile.runs), default=0)
    yield _slice(profile.name, "step", 0, end_ns, _STEP_TRACK, _FIRST_TID - 1, {"step_time_s": profile.step_time_s})
    for k, run in enumerate(profile.runs):
        pid, tid = places.of[k]
        event = _slice(run.op_type, run.direction, run.start_ns, run.end_ns, pid, tid, _arguments(run))
        event["cname"] = _COLORS[run.direction]
        yield event
    yield from _counters(profile, places)
    if flows:
        yield from _flows(profile, places)


def _slice(name: str, category: str, start_ns: int, end_ns: int, pid: int, tid: int, args: Mapping[str, object]) -> dict[str, object]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start_ns / 1000,
        "dur": max(end_ns - start_ns, 0) / 1000,
        "pid": pid,
        "tid": tid,
        "args": dict(args),
    }


def _arguments(run: OpRun) -> dict[str, object]:
    told = ("kernel", "allocated_bytes", "peak_bytes", "residual_bytes", "output_bytes", "flops", "bytes_moved")
    figures: dict[str, object] = {
        "node": run.name,
        "direction": run.direction,
        **{name: figure for name in told if (figure := getattr(run, name))},
    }
    return figures | ({"flops_per_s": run.flops / run.time_s} if run.flops and run.end_ns > run.start_ns else {})


class _Places:
    """A process per device and a thread per track; `of` gives both for each run."""

    def __init__(self, profile: StepProfile) -> None:
        self.pids: dict[str, int] = {}
        self._tids: dict[tuple[str, str, int], int] = {}
        self.of: list[tuple[int, int]] = []
        lanes: dict[tuple[str, str], list[list[OpRun]]] = {}
        for device in sorted({run.device for run in profile.runs} | {track.device for track in profile.memory}):
            self.pids[device] = len(self.pids) + _STEP_TRACK + 1
        for run in profile.runs:  # by start, so a lane is a stack of slices that are still open
            open_lanes = lanes.setdefault((run.device, run.thread), [])
            number = next((k for k, lane in enumerate(open_lanes) if _fits(lane, run)), len(open_lanes))
            if number == len(open_lanes):
                open_lanes.append([])
            open_lanes[number].append(run)
            key = (run.device, run.thread, number)
            tid = self._tids.setdefault(key, len(self._tids) + _FIRST_TID)
            self.of.append((self.pids[run.device], tid))

    def names(self, step: str) -> Iterator[dict[str, object]]:
        yield _named("process_name", _STEP_TRACK, 0, {"name": step})
        yield _named("thread_name", _STEP_TRACK, _FIRST_TID - 1, {"name": "step"})
        for device, pid in self.pids.items():
            yield _named("process_name", pid, 0, {"name": device})
            yield _named("process_sort_index", pid, 0, {"sort_index": pid})
        for index, (device, thread, number) in enumerate(sorted(self._tids)):
            name = (thread or _UNKNOWN_THREAD) + (f" (crossing {number})" if number else "")
            pid, tid = self.pids[device], self._tids[(device, thread, number)]
            yield _named("thread_name", pid, tid, {"name": name})
            yield _named("thread_sort_index", pid, tid, {"sort_index": index})


def _named(name: str, pid: int, tid: int, args: Mapping[str, object]) -> dict[str, object]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": dict(args)}


def _fits(lane: list[OpRun], run: OpRun) -> bool:
    """Return whether a run nests in the last open slice or follows all of them; remove closed slices."""
    while lane and lane[-1].end_ns <= run.start_ns:
        lane.pop()
    return not lane or run.end_ns <= lane[-1].end_ns


def _counters(profile: StepProfile, places: _Places) -> Iterator[dict[str, object]]:
    for track in profile.memory:
        named = {"ph": "C", "name": f"memory of {track.allocator}", "pid": places.pids[track.device], "tid": 0}
        for time_ns, nbytes in ((0, track.resident_bytes), *zip(track.times_ns, track.bytes_in_use, strict=True)):
            yield {**named, "ts": time_ns / 1000, "args": {"bytes": nbytes}}


def _flows(profile: StepProfile, places: _Places) -> Iterator[dict[str, object]]:
    """Yield an arrow from the last run of a producer to each run that reads it."""
    last: dict[str, int] = {}
    number = 0
    for k, run in enumerate(profile.runs):
        for before in profile.inputs.get(run.name, ()):
            if before not in last:
                continue
            producer = profile.runs[last[before]]
            number += 1
            for phase, at, time_ns in (("s", last[before], producer.start_ns), ("f", k, run.start_ns)):
                pid, tid = places.of[at]
                event: dict[str, object] = {"ph": phase, "id": number, "name": "value", "cat": "dataflow", "pid": pid, "tid": tid}
                yield event | {"ts": time_ns / 1000} | ({"bp": "e"} if phase == "f" else {})
        last[run.name] = k
