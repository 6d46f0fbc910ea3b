"""One measured step: every run of an operation, and tables of time and memory.

Terms
-----
op run
    One execution of one node. On an accelerator, the host's part is one run and each kernel another one, with `on_accelerator`.
time
    The sum over op runs. Threads work side by side, so it may be more than the step took.
allocated bytes
    The sum of an op's allocations. *Peak* bytes are the most that it held at once, *residual* bytes those it held when it ended,
    *output* bytes the buffers of its outputs, those taken over from an input included. The peak of a group of runs is the largest one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from graphwright.analyze.directions import Direction
from graphwright.analyze.layers import Layers
from graphwright.plain import Result

_NS = 1e-9
READ = "ReadVariableOp"


@dataclass(frozen=True, slots=True)
class OpRun:
    """One execution of a node.

    Attributes:
        name: as in the flat graph; nodes that TensorFlow adds for loops, copies and folding have their own names.
        device: for example "CPU:0".
        thread: for example "lane 1", one of as many as ran side by side; on an accelerator the stream.
        start_ns, end_ns: from the start of the step.
        on_accelerator: whether it is a kernel or a copy on a device other than the host.
        kernel: name of the kernel, on an accelerator.
        flops: None if unknown.
        bytes_moved: inputs read and outputs written; None if unknown.
    """

    name: str
    op_type: str
    device: str
    thread: str
    start_ns: int
    end_ns: int
    on_accelerator: bool = False
    kernel: str = ""
    allocated_bytes: int = 0
    peak_bytes: int = 0
    residual_bytes: int = 0
    output_bytes: int = 0
    direction: Direction = "forward"
    flops: float | None = None
    bytes_moved: float | None = None

    @property
    def time_s(self) -> float:
        return (self.end_ns - self.start_ns) * _NS


@dataclass(frozen=True, slots=True)
class MemoryTrack:
    """The bytes that an allocator had given out, over the step.

    Attributes:
        device: for example "CPU:0".
        allocator: TensorFlow's name for it.
        resident_bytes: given out before the step, such as variables; 0 if unknown (oneDNN's allocator leaves out blocks below 256 KiB).
        times_ns: times of changes, from the start of the step.
        bytes_in_use: bytes from each of these times on, resident ones included.
    """

    device: str
    allocator: str
    resident_bytes: int
    times_ns: tuple[int, ...]
    bytes_in_use: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at once."""
        return max(self.bytes_in_use, default=self.resident_bytes)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of Python that ran while a node was made."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True)
class StepProfile(Result):
    """One measured step.

    Attributes:
        runs: by start.
        memory: by allocator.
        step_time_s: wall time from the start of the first run to the end of the last.
        step_times_s: those of all recorded steps; this one is their median.
        plain_time_s: median wall time of unrecorded steps; nan if it was not measured.
        parameters: elements of variables, by the node that reads them first.
        inputs: by node, the nodes whose values it reads.
        sources: by node, the lines that made it, the outermost first.
        layers: of the step's graph.
    """

    name: str
    runs: tuple[OpRun, ...]
    memory: tuple[MemoryTrack, ...]
    step_time_s: float
    step_times_s: tuple[float, ...] = ()
    plain_time_s: float = math.nan
    parameters: Mapping[str, int] = field(default_factory=dict[str, int])
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    sources: Mapping[str, tuple[SourceLine, ...]] = field(default_factory=dict[str, tuple[SourceLine, ...]])
    layers: Layers = field(default_factory=Layers)

    def __str__(self) -> str:
        return f"{self.name}: {len(self.runs)} runs of operations in {1e3 * self.step_time_s:.4g} ms"


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Figures of an op type, a layer, or a node of a tree.

    Attributes:
        nodes: the number of nodes that ran.
        occurrences: the number of their runs.
        time_s: of all their runs.
        share: of the time of all runs of the step.
        parameters: elements of the variables that they are the first to read.
        flops: from the shapes of the first run; runs without a rule are left out, see `unknown`.
        unknown: the number of runs with unknown FLOPs.
    """

    name: str
    nodes: int = 0
    occurrences: int = 0
    time_s: float = 0.0
    share: float = 0.0
    host_time_s: float = 0.0
    accelerator_time_s: float = 0.0
    forward_time_s: float = 0.0
    backward_time_s: float = 0.0
    optimizer_time_s: float = 0.0
    allocated_bytes: int = 0
    peak_bytes: int = 0
    residual_bytes: int = 0
    output_bytes: int = 0
    parameters: int = 0
    flops: float = 0.0
    bytes_moved: float = 0.0
    unknown: int = 0

    @property
    def flops_per_s(self) -> float:
        """FLOPs over time, over an accelerator's time if it worked; nan if no time passed."""
        spent = self.accelerator_time_s or self.time_s
        return self.flops / spent if spent else math.nan

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs per byte moved; nan if nothing is moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else math.nan

    def to_json(self) -> dict[str, object]:
        """Return plain numbers; null for unknown ones."""
        plain: dict[str, object] = {name: getattr(self, name) for name in self.__slots__ if name != "unknown"}
        rate, intensity = self.flops_per_s, self.arithmetic_intensity
        return plain | {
            "unknown_flops_occurrences": self.unknown,
            "flops_per_s": rate if math.isfinite(rate) else None,
            "flops_per_byte": intensity if math.isfinite(intensity) else None,
        }


def row_of(run: OpRun) -> ProfileRow:
    """Return the figures of one run. A kernel is no occurrence: the host's run that started it is."""
    on_host, time_s = not run.on_accelerator, run.time_s
    return ProfileRow(
        run.name,
        occurrences=int(on_host),
        time_s=time_s,
        host_time_s=time_s * on_host,
        accelerator_time_s=time_s * run.on_accelerator,
        forward_time_s=time_s * (run.direction == "forward"),
        backward_time_s=time_s * (run.direction == "backward"),
        optimizer_time_s=time_s * (run.direction == "optimizer"),
        allocated_bytes=run.allocated_bytes,
        peak_bytes=run.peak_bytes,
        residual_bytes=run.residual_bytes,
        output_bytes=run.output_bytes,
        flops=run.flops or 0.0,
        bytes_moved=run.bytes_moved or 0.0,
        unknown=int(on_host and run.flops is None),
    )


def add_up(name: str, rows: Iterable[ProfileRow], whole_s: float = 0.0) -> ProfileRow:
    """Return the sum of rows, and its share of the time of the whole step."""
    columns = dict(zip(_FIGURES, zip(*map(attrgetter(*_FIGURES), (ProfileRow(name), *rows)), strict=True), strict=True))
    figures: dict[str, Any] = {f: (math.fsum if f.endswith("_s") else sum)(column) for f, column in columns.items()}
    figures |= {"peak_bytes": max(columns["peak_bytes"]), "share": figures["time_s"] / whole_s if whole_s else 0.0}
    return ProfileRow(name, **figures)


_FIGURES = tuple(field.name for field in fields(ProfileRow))[1:]


def _grouped(profile: StepProfile, key: Callable[[str, str], str]) -> dict[str, list[ProfileRow]]:
    groups: dict[str, list[ProfileRow]] = defaultdict(list)
    key_of: dict[str, str] = {}
    for run in profile.runs:
        if run.name not in key_of:
            key_of[run.name] = key(run.name, run.op_type)
            groups[key_of[run.name]].append(ProfileRow(run.name, nodes=1))
        groups[key_of[run.name]].append(row_of(run))
    for name, elements in profile.parameters.items():
        groups[key_of.get(name) or key(name, READ)].append(ProfileRow(name, parameters=elements))
    return groups


def by_op_type(profile: StepProfile) -> dict[str, ProfileRow]:
    """Return a row per op type, the most time first."""
    return _rows(profile, lambda _, op_type: op_type)


def by_layer(profile: StepProfile) -> dict[str, ProfileRow]:
    """Return a row per layer, the most time first; the layer "" holds nodes in no name scope."""
    return _rows(profile, lambda name, _: profile.layers.of(name))


def whole(profile: StepProfile) -> ProfileRow:
    return add_up(profile.name, _grouped(profile, lambda _, __: "")[""], time_of_runs_s(profile))


def _rows(profile: StepProfile, key: Callable[[str, str], str]) -> dict[str, ProfileRow]:
    whole_s = time_of_runs_s(profile)
    rows = [add_up(name, group, whole_s) for name, group in _grouped(profile, key).items()]
    return {row.name: row for row in sorted(rows, key=lambda r: (-r.time_s, r.name))}


def time_of_runs_s(profile: StepProfile) -> float:
    return math.fsum(run.time_s for run in profile.runs)
