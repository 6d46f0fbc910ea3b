"""TensorFlow's `StepStats` of one step, read into op runs.

`StepStats` holds times, allocations and sizes of outputs by device and node, and threads for GPU kernels only. Runs of the host are put on
as many lanes as ran side by side.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

from graphwright.analyze.step_profile import MemoryTrack, OpRun
from graphwright.ir.dtypes import Shape
from graphwright.source.attributes import shape_from_proto

_FIRST_TOLD = 9  # ops
_LOWERED = re.compile(r"(?:^|/)(?:body|cond|then|else|branch\d*)/_\d+/")
_STREAM = re.compile(r"device:GPU:(\d+)/stream:([^<]*)(<.*>)?$")
_DEVICE = re.compile(r"device:([A-Z]+:\d+)$", re.IGNORECASE)
_SUMMARIES = ("/stream:all", "/memcpy", "/sync")  # of streams that are listed one by one as well
_BOOKKEEPING = frozenset({"_SOURCE", "_SINK"})


@dataclass(frozen=True, slots=True)
class NodeRun(OpRun):
    """One run of a node as TensorFlow recorded it: named by the executor, times by the clock of the machine, without an op type."""

    shapes: tuple[tuple[int, Shape], ...] = ()


def read_runs(step_stats: Any) -> list[NodeRun]:
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
    return _on_lanes(runs)


def _on_lanes(runs: Sequence[NodeRun]) -> list[NodeRun]:
    """Give each run without a thread the first lane of its device that is free when it starts."""
    free_at_ns: dict[str, list[int]] = defaultdict(list)
    placed: list[NodeRun] = []
    for run in runs:
        if not run.thread:
            lanes = free_at_ns[run.device]
            number = next((k for k, end_ns in enumerate(lanes) if end_ns <= run.start_ns), len(lanes))
            lanes[number : number + 1] = [run.end_ns]
            run = replace(run, thread=f"lane {number + 1}")
        placed.append(run)
    return placed


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
    """Copy a `GraphDef` that ran and its `RunMetadata`, with the written names of nodes where those are free."""
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
    """Return what each allocator had given out over the step, which began at `start_ns` of the machine's clock."""
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
    before = [total - (levels[k - 1] if k else 0) for time, total in first for k in (bisect_right(times, time),)]
    resident = max(median_low(before), 0) if before else 0
    return MemoryTrack(
        device, allocator, resident, tuple(max(time - start_ns, 0) for time in times), tuple(max(resident + level, 0) for level in levels)
    )
