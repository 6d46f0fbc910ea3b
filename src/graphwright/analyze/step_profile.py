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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Figures:
    """Figures of a group of runs, added up."""

    nodes: int = 0
    occurrences: int = 0
    time_ns: int = 0
    accelerator_ns: int = 0
    backward_ns: int = 0
    optimizer_ns: int = 0
    allocated_bytes: int = 0
    peak_bytes: int = 0
    residual_bytes: int = 0
    output_bytes: int = 0
    parameters: int = 0
    flops: float = 0.0
    bytes_moved: float = 0.0
    unknown: int = 0

    def add_run(self, run: OpRun) -> None:
        """Add a run. A kernel is no occurrence: the host's run that started it is."""
        spent = run.end_ns - run.start_ns
        self.time_ns += spent
        if run.direction == "backward":
            self.backward_ns += spent
        elif run.direction == "optimizer":
            self.optimizer_ns += spent
        if run.on_accelerator:
            self.accelerator_ns += spent
        else:
            self.occurrences += 1
            self.unknown += run.flops is None
        self.allocated_bytes += run.allocated_bytes
        self.peak_bytes = max(self.peak_bytes, run.peak_bytes)
        self.residual_bytes += run.residual_bytes
        self.output_bytes += run.output_bytes
        self.flops += run.flops or 0.0
        self.bytes_moved += run.bytes_moved or 0.0

    def add(self, other: Figures) -> None:
        for name in self.__slots__:
            mine, more = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, more) if name == "peak_bytes" else mine + more)

    def row(self, name: str, whole_ns: int) -> ProfileRow:
        """Return a row of a table; `whole_ns` is the time of all runs, for the share."""
        return ProfileRow(
            name=name,
            time_s=self.time_ns * _NS,
            share=self.time_ns / whole_ns if whole_ns else 0.0,
            host_time_s=(self.time_ns - self.accelerator_ns) * _NS,
            accelerator_time_s=self.accelerator_ns * _NS,
            forward_time_s=(self.time_ns - self.backward_ns - self.optimizer_ns) * _NS,
            backward_time_s=self.backward_ns * _NS,
            optimizer_time_s=self.optimizer_ns * _NS,
            **{same: getattr(self, same) for same in self.__slots__ if not same.endswith("_ns")},
        )


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
    nodes: int
    occurrences: int
    time_s: float
    share: float
    host_time_s: float
    accelerator_time_s: float
    forward_time_s: float
    backward_time_s: float
    optimizer_time_s: float
    allocated_bytes: int
    peak_bytes: int
    residual_bytes: int
    output_bytes: int
    parameters: int
    flops: float
    bytes_moved: float
    unknown: int

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


def figures_by(profile: StepProfile, key: Callable[[str, str], str]) -> dict[str, Figures]:
    """Add up the runs of a step in groups, by a function from the name and the op type of a node."""
    groups: dict[str, Figures] = {}
    key_of: dict[str, str] = {}
    for run in profile.runs:
        if run.name not in key_of:
            group = key_of[run.name] = key(run.name, run.op_type)
            groups.setdefault(group, Figures()).nodes += 1
        groups[key_of[run.name]].add_run(run)
    for name, elements in profile.parameters.items():
        group = key_of.get(name) or key(name, READ)
        groups.setdefault(group, Figures()).parameters += elements
    return groups


def by_op_type(profile: StepProfile) -> dict[str, ProfileRow]:
    """Return a row per op type, the most time first."""
    return _rows(figures_by(profile, lambda _, op_type: op_type))


def by_layer(profile: StepProfile) -> dict[str, ProfileRow]:
    """Return a row per layer, the most time first; the layer "" holds nodes in no name scope.

    >>> runs = (OpRun("net/conv/Conv2D", "Conv2D", "CPU:0", "", 0, 30), OpRun("loss", "Mean", "CPU:0", "", 30, 40))
    >>> [(row.name, row.share) for row in by_layer(StepProfile("step", runs, (), 40e-9)).values()]
    [('net/conv', 0.75), ('', 0.25)]
    """
    return _rows(figures_by(profile, lambda name, _: profile.layers.of(name)))


def whole(profile: StepProfile) -> ProfileRow:
    total = Figures()
    for figures in figures_by(profile, lambda name, _: name).values():
        total.add(figures)
    return total.row(profile.name, total.time_ns)


def _rows(groups: Mapping[str, Figures]) -> dict[str, ProfileRow]:
    total = sum(figures.time_ns for figures in groups.values())
    rows: Iterable[ProfileRow] = (figures.row(name, total) for name, figures in groups.items())
    return {row.name: row for row in sorted(rows, key=lambda r: (-r.time_s, r.name))}
