"""A measured step as a Chrome trace (Trace Event Format), for Perfetto and chrome://tracing.

Each device is a process, each lane or stream a track, each op run a slice; runs of one lane do not overlap. Memory is a counter track per
allocator.

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

_STEP = (1, 1000)  # process and thread; a thread with the number of its process is taken for its main thread


def write_chrome_trace(profile: StepProfile, path: str | Path, *, flows: bool = False) -> Path:
    """Write the trace as JSON, with `flows` as arrows from producers to consumers; replace an existing file; return the path."""
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
    """Yield the events of the trace. Times are in microseconds from the start of the step."""
    devices = sorted({run.device for run in profile.runs} | {track.device for track in profile.memory})
    lanes = sorted({(run.device, run.thread) for run in profile.runs})
    pids = {device: pid for pid, device in enumerate(devices, _STEP[0] + 1)}
    places = {lane: (pids[lane[0]], tid) for tid, lane in enumerate(lanes, _STEP[1] + 1)}
    yield _event("M", "process_name", _STEP, args={"name": profile.name})
    yield _event("M", "thread_name", _STEP, args={"name": "step"})
    for device, pid in pids.items():
        yield _event("M", "process_name", (pid, 0), args={"name": device})
        yield _event("M", "process_sort_index", (pid, 0), args={"sort_index": pid})
    for (_, thread), place in places.items():
        yield _event("M", "thread_name", place, args={"name": thread or "thread not known"})
        yield _event("M", "thread_sort_index", place, args={"sort_index": place[1]})
    end_ns = max((run.end_ns for run in profile.runs), default=0)
    yield _event("X", profile.name, _STEP, ts=0.0, dur=end_ns / 1000, cat="step", args={"step_time_s": profile.step_time_s})
    for run in profile.runs:
        times = {"ts": run.start_ns / 1000, "dur": max(run.end_ns - run.start_ns, 0) / 1000}
        kind = {"cat": run.direction, "cname": _COLORS[run.direction]}
        yield _event("X", run.op_type, places[run.device, run.thread], **times, **kind, args=_arguments(run))
    for track in profile.memory:
        for time_ns, nbytes in ((0, track.resident_bytes), *zip(track.times_ns, track.bytes_in_use, strict=True)):
            yield _event("C", f"memory of {track.allocator}", (pids[track.device], 0), ts=time_ns / 1000, args={"bytes": nbytes})
    if flows:
        yield from _flows(profile, places)


def _event(phase: str, name: str, place: tuple[int, int], **fields: object) -> dict[str, object]:
    return {"ph": phase, "name": name, "pid": place[0], "tid": place[1], **fields}


def _arguments(run: OpRun) -> dict[str, object]:
    names = ("kernel", "allocated_bytes", "peak_bytes", "residual_bytes", "output_bytes", "flops", "bytes_moved")
    figures = {name: figure for name in names if (figure := getattr(run, name))}
    if run.flops and run.end_ns > run.start_ns:
        figures["flops_per_s"] = run.flops / run.time_s
    return {"node": run.name, "direction": run.direction, **figures}


def _flows(profile: StepProfile, places: Mapping[tuple[str, str], tuple[int, int]]) -> Iterator[dict[str, object]]:
    last: dict[str, OpRun] = {}
    number = 0
    for run in profile.runs:
        for producer in (last[name] for name in profile.inputs.get(run.name, ()) if name in last):
            number += 1
            for phase, end in (("s", producer), ("f", run)):
                binding = {"bp": "e"} if phase == "f" else {}
                place = places[end.device, end.thread]
                yield _event(phase, "value", place, id=number, cat="dataflow", ts=end.start_ns / 1000, **binding)
        last[run.name] = run
