"""TensorFlow's `StepStats` of one step and its profiler's record of the same step, read into op runs.

`StepStats` holds times, allocations and sizes of outputs by device and node, and threads for GPU kernels only. The threads of the host come
from the profiler (`XPlane`): op kernels are named there, in the same order. A node without a kernel (constants, switches, merges) ran on
the thread whose executor was at work.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

from graphwright.analyze.step_profile import MemoryTrack, OpRun
from graphwright.ir.dtypes import Shape
from graphwright.source.attributes import shape_from_proto
from graphwright.source.private_tensorflow import read_xspace

_FIRST_TOLD = 9  # ops
_EXECUTOR = "ExecutorState::Process"
_LOWERED = re.compile(r"(?:^|/)(?:body|cond|then|else|branch\d*)/_\d+/")
_STREAM = re.compile(r"device:GPU:(\d+)/stream:([^<]*)(<.*>)?$")
_DEVICE = re.compile(r"device:([A-Z]+:\d+)$", re.IGNORECASE)
_SUMMARIES = ("/stream:all", "/memcpy", "/sync")  # of streams that are listed one by one as well
_BOOKKEEPING = frozenset({"_SOURCE", "_SINK"})


@dataclass(frozen=True, slots=True)
class NodeRun(OpRun):
    """One run of a node as TensorFlow recorded it: named by the executor, times by the clock of the machine, without an op type.

    Attributes:
        shapes: shapes of its outputs by slot.
    """

    shapes: tuple[tuple[int, Shape], ...] = ()


def read_runs(step_stats: Any, xspace: bytes | None = None) -> list[NodeRun]:
    """Return all runs of a step, by start.

    Args:
        step_stats: a `StepStats`.
        xspace: the profiler's record of the same step, for the threads.
    """
    runs: list[NodeRun] = []
    for stats in step_stats.dev_stats:
        if stats.device.endswith(_SUMMARIES):
            continue
        stream, device = _STREAM.search(stats.device), _DEVICE.search(stats.device)
        where = f"GPU:{stream[1]}" if stream else device[1].upper() if device else stats.device
        if stream:
            thread = f"stream {stream[2]}" + (f" {stream[3].strip('<>')}" if stream[3] else "")
            runs += [_kernel(node, where, thread) for node in stats.node_stats]
        else:
            runs += [_run(node, where) for node in stats.node_stats if node.node_name not in _BOOKKEEPING]
    runs.sort(key=lambda run: (run.start_ns, run.end_ns))
    return runs if xspace is None else with_threads(runs, xspace)


def _start_ns(node: Any) -> int:
    return int(node.all_start_nanos or node.all_start_micros * 1000)


def _run(node: Any, device: str) -> NodeRun:
    start = _start_ns(node)
    nanos = bool(node.op_end_rel_nanos)
    begin = node.op_start_rel_nanos if nanos else node.op_start_rel_micros * 1000
    end = node.op_end_rel_nanos if nanos else node.op_end_rel_micros * 1000
    outputs = [(o.slot, o.tensor_description) for o in node.output]
    return NodeRun(
        name=node.node_name,
        op_type="",
        device=device,
        thread=f"thread {node.thread_id}" if node.thread_id else "",
        start_ns=start + int(begin),
        end_ns=start + max(int(end), int(begin)),
        allocated_bytes=sum(int(m.total_bytes) for m in node.memory),
        peak_bytes=sum(int(m.peak_bytes) for m in node.memory),
        residual_bytes=sum(int(m.live_bytes) for m in node.memory),
        output_bytes=sum(int(d.allocation_description.allocated_bytes) for _, d in outputs),
        shapes=tuple((int(slot), shape_from_proto(d.shape)) for slot, d in outputs),
    )


def _kernel(node: Any, device: str, thread: str) -> NodeRun:
    start = _start_ns(node)
    took = int(node.all_end_rel_nanos or node.all_end_rel_micros * 1000)
    # A kernel carries the name of its op as "name:type".
    return NodeRun(node.node_name.partition(":")[0], "", device, thread, start, start + took, True, node.timeline_label)


# Names


def written_name(name: str) -> str:
    """Return the name of a node in the flat graph: without the marks of lowered loops and branches.

    The body of a loop repeats the scopes around the loop; they count once.

    >>> written_name("call/while/body/_1/while/MatMul"), written_name("cond/then/_7/cond/Exp")
    ('call/while/MatMul', 'cond/Exp')
    >>> written_name("tape/while/while_grad/body/_47/tape/while/gradients/AddN")
    'tape/while/gradients/AddN'
    """
    name = name.removeprefix("Func/")
    pieces = _LOWERED.split(name)
    if len(pieces) == 1:
        return name
    outer = pieces[0].split("/")
    for piece in pieces[1:]:
        inner = piece.split("/")
        outer = outer[: _overlap(outer, inner)] + inner
    return "/".join(outer)


def _overlap(outer: Sequence[str], inner: Sequence[str]) -> int:
    """Return the index in `outer` from which its scopes agree with the first scopes of `inner`; the longest agreement counts."""
    best, length = len(outer), 0
    for k in range(len(outer)):
        agreed = 0
        while agreed < len(inner) - 1 and k + agreed < len(outer) and outer[k + agreed] == inner[agreed]:
            agreed += 1
        if agreed > length:
            best, length = k, agreed
    return best


def rename_as_written(graph_def: Any, metadata: Any) -> tuple[Any, Any]:
    """Copy the graph that ran and its records, with the written names of nodes where those are free.

    Args:
        graph_def: a `GraphDef`.
        metadata: a `RunMetadata`, whose step stats are copied.
    """
    taken: set[str] = {node.name for node in graph_def.node}
    names: dict[str, str] = {}
    for node in graph_def.node:
        written = written_name(node.name)
        names[node.name] = node.name if written in taken else written
        taken.add(names[node.name])
    renamed, stats = type(graph_def)(), type(metadata)()
    renamed.CopyFrom(graph_def)
    for node in renamed.node:
        node.name = names[node.name]
        for k, edge in enumerate(node.input):
            mark = "^" if edge.startswith("^") else ""
            before, colon, slot = edge.removeprefix("^").partition(":")
            node.input[k] = f"{mark}{names.get(before, before)}{colon}{slot}"
    stats.step_stats.CopyFrom(metadata.step_stats)
    for device in stats.step_stats.dev_stats:
        for node in device.node_stats:
            node.node_name = names.get(node.node_name, node.node_name)
    return renamed, stats


# Memory


def read_memory(step_stats: Any, start_ns: int) -> tuple[MemoryTrack, ...]:
    """Return what each allocator had given out over the step.

    Args:
        step_stats: a `StepStats`.
        start_ns: the machine's clock at the start of the step.
    """
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    in_use: dict[str, list[tuple[int, int]]] = defaultdict(list)
    device_of: dict[str, str] = {}
    for stats in step_stats.dev_stats:
        device = _DEVICE.search(stats.device)
        for node in stats.node_stats:
            for memory in node.memory:
                allocator = memory.allocator_name
                gpu = re.match(r"GPU_(\d+)_", allocator)
                device_of[allocator] = (
                    f"GPU:{gpu[1]}" if gpu else "CPU:0" if "gpu" in allocator.lower() or not device else device[1].upper()
                )
                changes[allocator] += [(int(r.alloc_micros) * 1000, int(r.alloc_bytes)) for r in memory.allocation_records]
                if memory.allocator_bytes_in_use:
                    in_use[allocator].append((_start_ns(node) + int(node.all_end_rel_nanos), int(memory.allocator_bytes_in_use)))
    return tuple(
        _track(allocator, device_of[allocator], sorted(changes[allocator]), in_use[allocator], start_ns) for allocator in sorted(changes)
    )


def _track(
    allocator: str, device: str, changes: Sequence[tuple[int, int]], in_use: Sequence[tuple[int, int]], start_ns: int
) -> MemoryTrack:
    times: list[int] = []
    levels: list[int] = []
    level = 0
    for time, change in changes:
        level += change
        if times and times[-1] == time:
            levels[-1] = level
        else:
            times.append(time)
            levels.append(level)
    # Each op says what its allocator had given out when it ended, all the rest of the process included. oneDNN's allocator leaves out
    # small blocks, of which there are few at first.
    first = sorted(in_use)[:_FIRST_TOLD]
    before = [told - (levels[k - 1] if k else 0) for time, told in first for k in (bisect_right(times, time),)]
    resident = max(median_low(before), 0) if before else 0
    return MemoryTrack(
        device, allocator, resident, tuple(max(time - start_ns, 0) for time in times), tuple(max(resident + level, 0) for level in levels)
    )


# Threads


def with_threads(runs: Sequence[NodeRun], xspace: bytes) -> list[NodeRun]:
    kernels, working = _host_events(xspace)
    order: dict[str, list[int]] = defaultdict(list)
    for k, run in enumerate(runs):
        if not run.on_accelerator:
            order[run.name].append(k)
    thread_of: dict[int, str] = {}
    shifts: list[int] = []
    busy: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, events in kernels.items():
        indices = order.get(name, [])
        if len(indices) != len(events):
            continue
        for k, (start, _, thread) in zip(indices, sorted(events), strict=True):
            thread_of[k] = thread
            shifts.append(runs[k].start_ns - start)
            busy[thread].append((runs[k].start_ns, runs[k].end_ns))
    if not shifts:
        return list(runs)
    shift = median_low(shifts)
    spans = {thread: _Spans((start + shift, end + shift) for start, end in found) for thread, found in working.items()}
    taken = {thread: _Spans(found) for thread, found in busy.items()}
    none = _Spans(())
    for k, run in enumerate(runs):
        if k in thread_of or run.on_accelerator:
            continue
        middle = (run.start_ns + run.end_ns) // 2
        for thread, at_work in spans.items():
            if middle in at_work and middle not in taken.get(thread, none):
                thread_of[k] = thread
                break
    names = {thread: f"thread {n}" for n, thread in enumerate(dict.fromkeys(thread_of[k] for k in sorted(thread_of)), start=1)}
    return [replace(run, thread=names[thread_of[k]]) if k in thread_of else run for k, run in enumerate(runs)]


class _Spans:
    """Times at which something went on; `in` takes logarithmic time."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        merged: list[list[int]] = []
        for start, end in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        self._starts = [start for start, _ in merged]
        self._ends = [end for _, end in merged]

    def __contains__(self, time: int) -> bool:
        k = bisect_right(self._starts, time) - 1
        return k >= 0 and time <= self._ends[k]


_Events = Mapping[str, Sequence[tuple[int, int, str]]]


def _host_events(xspace: bytes) -> tuple[_Events, Mapping[str, Sequence[tuple[int, int]]]]:
    """Return kernels by name of their node, as start, end and thread; and by thread the times at which its executor was at work."""
    space = read_xspace(xspace)
    kernels: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    working: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for plane in space.planes:
        if not plane.name.startswith("/host:CPU"):
            continue
        names = {key: entry.name for key, entry in plane.event_metadata.items()}
        for line in plane.lines:
            thread = f"{line.name} {line.id}"
            for event in line.events:
                name = names[event.metadata_id]
                start = line.timestamp_ns + event.offset_ps // 1000
                end = start + event.duration_ps // 1000
                if name.startswith(_EXECUTOR):
                    working[thread].append((start, end))
                elif ":" in name and "::" not in name:
                    kernels[name.partition(":")[0]].append((start, end, thread))
    return kernels, working
