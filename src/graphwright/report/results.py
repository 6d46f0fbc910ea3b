"""The values that users get back, with the data that the reports draw. They print and write themselves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from graphwright.analyze.layers import in_layer
from graphwright.analyze.measurement import Measurement
from graphwright.analyze.step_profile import StepProfile, by_layer, by_op_type
from graphwright.analyze.time_model import Roofs
from graphwright.errors import ArgumentError
from graphwright.ir.graph import Graph
from graphwright.report.advice import Advice
from graphwright.report.draw import OnPage, Printed, drawn

if TYPE_CHECKING:
    from graphwright.report.peak_prediction import PeakPrediction

_MEASURED = (
    "op runs of one recorded step, kernel times without the executor's waiting, added up: threads work side by side. Operations that "
    "TensorFlow rewrote or added have no row of their own among the op types of the graph"
)
Role = Literal["weights", "optimizer state", "inputs", "residuals", "gradients", "temporaries"]
ROLES: tuple[Role, ...] = ("weights", "optimizer state", "inputs", "residuals", "gradients", "temporaries")
"""In the order in which charts stack them, from the bottom."""

LayerColumn = Literal[
    "class",
    "shape",
    "parameters",
    "flops",
    "forward",
    "backward",
    "activations",
    "residuals",
    "peak",
    "moved",
    "estimated",
    "time",
    "ops",
    "source",
]

Decision = Literal["save", "recompute", "offload"]


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """One buffer that is live at a step."""

    name: str  # the value, for example "unet/conv1/Conv2D:0"
    op_type: str
    layer: str  # name scope of the layer it belongs to; "" when unknown
    role: Role
    nbytes: int
    type: str = ""  # dtype and shape, for example "float32[32,64]"
    source: str = ""  # the line of the user's that made it: file, line and function; "" where the trace does not know it

    @property
    def words(self) -> str:
        """Its name as the user knows it: behind its layer, which `name` says in the words of the trace.

        >>> LiveBuffer("net_1/conv_1/Conv2D:0", "Conv2D", "conv", "residuals", 4).words
        'conv/Conv2D:0'
        """
        return in_layer(self.layer, self.name)


@dataclass(frozen=True, slots=True)
class BufferLifetime:
    """One buffer with the steps at which it is live, both ends included."""

    buffer: LiveBuffer
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class Timeline(Printed):
    """Memory over one execution of a step, in execution order.

    `bytes_by_role[role][k]` are the bytes of the role at step `k`; they add up to
    `total_bytes[k]`. `labels[k]` is the node executed at step `k`. With `lifetimes`
    a report can say what is live at every step, without them at the peak only; a
    buffer that is computed twice has two. `layers[k]` is the layer that step `k` runs for; empty where it is not known.
    """

    labels: tuple[str, ...]
    bytes_by_role: Mapping[Role, tuple[int, ...]]
    total_bytes: tuple[int, ...]
    is_recomputation: tuple[bool, ...]
    is_backward: tuple[bool, ...]
    peak_step: int
    peak_bytes: int
    live_at_peak: tuple[LiveBuffer, ...]  # largest first
    lifetimes: tuple[BufferLifetime, ...] = ()
    is_optimizer: tuple[bool, ...] = ()  # of the steps that are backward, those that update variables; empty where it was not asked
    layers: tuple[str, ...] = ()

    def words(self, step: int) -> str:
        """What runs at a step, as the user knows it."""
        return in_layer(self.layers[step], self.labels[step]) if self.layers else self.labels[step]


class _ByDirection:
    __slots__ = ()
    forward_flops: float
    backward_flops: float
    optimizer_flops: float
    undivided_flops: float  # in all directions, where they are not known and nan

    @property
    def flops(self) -> float:
        """FLOPs in all directions."""
        return self.undivided_flops or self.forward_flops + self.backward_flops + self.optimizer_flops


@dataclass(frozen=True, slots=True)
class LayerCost(_ByDirection):
    """One row of the table per layer. What was not asked for is nan."""

    layer: str
    op_count: int
    parameter_count: int
    forward_flops: float
    backward_flops: float
    residual_bytes: int  # forward values kept for the backward pass
    peak_share_bytes: int  # bytes live at the peak
    optimizer_flops: float = 0.0
    bytes_moved: float = math.nan
    estimated_time_s: float = math.nan
    measured_time_s: float = math.nan
    activation_bytes: float = math.nan  # what its forward pass makes, kept or not
    verbs: tuple[str, ...] = ()  # of a plan: what it does to the layer, "split", "segment", "recompute", "offload"
    undivided_flops: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerTable:
    """How deep the table goes, and its columns; None for what fits."""

    depth: int | None = None
    columns: tuple[LayerColumn, ...] | None = None

    def __post_init__(self) -> None:
        for name in self.columns or ():
            if name not in get_args(LayerColumn):
                remedy = f"give some of {', '.join(get_args(LayerColumn))}"
                raise ArgumentError(f"there is no column {name!r}", argument="columns", remedy=remedy)
        if self.depth is not None and self.depth < 1:
            raise ArgumentError(f"depth={self.depth} was given", argument="depth", remedy="give 1 or more")


@dataclass(frozen=True, slots=True)
class OpTypeCost(_ByDirection):
    """One row of the table per op type. Operations inside loops count as often as they run."""

    op_type: str
    op_count: int
    forward_flops: float
    backward_flops: float
    optimizer_flops: float
    bytes_moved: float
    unknown_count: int  # operations among them whose FLOPs are not known
    estimated_time_s: float = math.nan
    measured_time_s: float = math.nan
    undivided_flops: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What one node of the graph costs; of a loop all iterations."""

    layer: str
    flops: float
    bytes_moved: float
    estimated_time_s: float
    measured_time_s: float = math.nan


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Counts and bytes of variables by use. Counts are elements, not bytes."""

    trainable: int
    non_trainable: int
    optimizer_state: int
    trainable_bytes: int
    non_trainable_bytes: int
    optimizer_state_bytes: int


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of the memory/overhead curve."""

    peak_bytes: int
    overhead: float  # extra time as a share of the unmodified time, 0.1 for 10 %


@dataclass(frozen=True)
class Inspection(OnPage, Printed):
    """What a step costs. Returned by `graphwright.inspect`.

    Attributes:
        backward_flops: of the gradients, without the updates of variables.
        optimizer_flops: of what lies between finished gradients and the updates of variables.
        undivided_flops: FLOPs in all directions, where forward, backward and optimizer cannot be told apart and are nan; else 0.
        unknown_flop_ops: op types that are in no figure of FLOPs, because there is no rule or a shape is unknown.
        op_types: costs by op type, the longest estimated time first.
        nodes: costs by node of `graph`.
        roofs: the limits of the machine that the roofline is drawn with.
        output_shapes: by layer, and by what layers lie in, what it hands on, in the order in which they run.
        table: how deep the table of layers goes that the text begins with, and its columns; see `with_table`.
        graph: what was inspected: one flat graph, calls inlined. It stays behind where the inspection is pickled or copied deeply.
        profile: a measured step, see `with_profile`.
        advice: what can be done where memory is short, see `with_advice`.
        peak_bytes: the peak of the step as TensorFlow or XLA runs it; where that is unknown, or the
            traced order was asked for, the peak in that order. `how` says which.
        timeline: memory in the same order; of a step that XLA compiles, in the traced order.
        executor: the prediction behind `peak_bytes`, with its range; None for the traced order.
    """

    name: str
    feeds: Mapping[str, tuple[int, ...]]
    node_count: int
    parameters: ParameterCount
    forward_flops: float
    backward_flops: float
    unknown_flop_ops: tuple[str, ...]
    timeline: Timeline
    layers: tuple[LayerCost, ...]
    peak_bytes: int
    resident_bytes: int
    lower_bound_bytes: int
    lower_bound_reason: str  # for example "op decoder/conv9/Conv2D alone needs 83 %"
    how: Mapping[str, str]  # figure -> how it was obtained
    measured: Measurement | None = None
    executor: PeakPrediction | None = None
    optimizer_flops: float = 0.0
    undivided_flops: float = 0.0
    bytes_moved: float = math.nan
    op_types: tuple[OpTypeCost, ...] = ()
    nodes: Mapping[str, NodeCost] = field(default_factory=dict[str, NodeCost], repr=False)
    roofs: Roofs | None = None
    graph: Graph | None = field(default=None, repr=False, compare=False)
    profile: StepProfile | None = field(default=None, repr=False)
    output_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]], repr=False)
    table: LayerTable | None = field(default=None, repr=False, compare=False)
    advice: Advice | None = field(default=None, repr=False, compare=False)
    layer_origins: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]], repr=False)  # its class, and its line

    def __getstate__(self) -> dict[str, object]:
        # Nodes lead to nodes without end: pickling a graph would go as deep as it is long.
        return {**self.__dict__, "graph": None}

    @property
    def verdict(self) -> str:
        """One sentence: what it needs and where it goes."""
        return drawn(self, "verdict")

    def with_profile(self, profile: StepProfile, roofs: Roofs | None = None) -> Inspection:
        """The inspection with the times of a measured step beside its figures.

        Args:
            profile: of the same step, the attribute `step` of what `graphwright.profile` returns.
            roofs: limits of the machine that it ran on.
        """
        node_time_s: dict[str, float] = defaultdict(float)
        for run in profile.runs:
            node_time_s[run.name] += run.time_s
        layers, op_types = by_layer(profile), by_op_type(profile)
        layer_time_s = {name: row.time_s for name, row in layers.items()}
        op_type_time_s = {name: row.time_s for name, row in op_types.items()}
        return replace(
            self,
            profile=profile,
            roofs=roofs or self.roofs,
            layers=tuple(replace(row, measured_time_s=layer_time_s.get(row.layer, math.nan)) for row in self.layers),
            op_types=tuple(replace(row, measured_time_s=op_type_time_s.get(row.op_type, math.nan)) for row in self.op_types),
            nodes={name: replace(cost, measured_time_s=node_time_s.get(name, math.nan)) for name, cost in self.nodes.items()},
            how={**self.how, "measured time": _MEASURED},
        )

    def with_table(self, depth: int | None = None, columns: Sequence[LayerColumn] | None = None) -> Inspection:
        """The inspection with another table of layers at the beginning of its text.

        Args:
            depth: levels of layers in layers; as many as make a table of about 40 rows where it is None.
            columns: some of "class" (of a Keras model), "shape", "parameters", "flops", "forward", "backward", "activations", "residuals",
                "peak", "moved", "estimated", "time" (measured), "ops", "source" (the line of Python that made it).

        Raises:
            ArgumentError: there is no such column, or the depth is less than 1.
        """
        return replace(self, table=LayerTable(depth, None if columns is None else tuple(columns)))

    def with_advice(self, advice: Advice) -> Inspection:
        """The inspection with what can be done where memory is short, which its page shows first.

        Args:
            advice: of the same step, what `graphwright.advise` returns.
        """
        return replace(self, advice=advice)

    def to_json(self) -> dict[str, object]:
        """Plain numbers and text, as docs/json.md and the file report/schemas/inspection.schema.json describe them."""
        return drawn(self, "json")


@dataclass(frozen=True, slots=True)
class BufferDecision:
    """What the plan does with one forward value that the backward pass needs."""

    name: str
    op_type: str
    layer: str
    nbytes: int
    decision: Decision
    recompute_flops: float  # of the node itself, 0 when saved
    source: str = ""  # as of a `LiveBuffer`


@dataclass(frozen=True, slots=True)
class CopyEngine:
    """How fast copies of tensors leave the memory that a plan keeps small, and come back: what offload is priced by.

    Attributes:
        write_bytes_per_s: on the way out; on disk, until the disk has it.
        read_bytes_per_s: on the way back.
        latency_s: what each copy takes besides, each way.
        how: measured or given, in words.

    >>> CopyEngine(1e9, 2e9, 0.001).write_s(10**6)
    0.002
    """

    write_bytes_per_s: float
    read_bytes_per_s: float
    latency_s: float = 0.0
    how: str = "given"

    def __post_init__(self) -> None:
        for name in ("write_bytes_per_s", "read_bytes_per_s", "latency_s"):
            given = getattr(self, name)
            if not (0 <= given < math.inf) or (given == 0 and name != "latency_s"):
                raise ArgumentError(f"{name}={given!r} was given", argument=name, remedy="give a positive number")

    def write_s(self, nbytes: int) -> float:
        """Seconds that it takes to write so many bytes."""
        return self.latency_s + nbytes / self.write_bytes_per_s

    def read_s(self, nbytes: int) -> float:
        """Seconds that it takes to read so many bytes back."""
        return self.latency_s + nbytes / self.read_bytes_per_s


@dataclass(frozen=True, slots=True)
class PlanRecipe:
    """What it takes to follow a plan again without a search: what was asked, and the schedules that were found.

    Attributes:
        budget: as it was given: bytes, a share, text, "smallest".
        allow: the verbs that the plan may use.
        schedules: by fingerprint of the graph that is planned, as it is given or as a verb makes it: its tasks in their order.
        exceeding: the fingerprints among them for which no schedule keeps the budget.
        offload_to: the folder or device of copies; "" where there were to be none.
        copy_engine: what they were priced by.
        device: whose memory it was planned for, as `optimize_memory` takes it.
    """

    budget: int | float | str
    max_overhead: float
    allow: tuple[str, ...]
    time_limit_s: float
    schedules: Mapping[str, tuple[int, ...]]
    exceeding: tuple[str, ...] = ()
    offload_to: str = ""
    copy_engine: CopyEngine | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class MemoryPlan(OnPage, Printed):
    """How a step is brought into a budget. The attribute `plan` of what `optimize_memory` returns.

    Attributes:
        peak_bytes: predicted peak of the planned step, resident bytes included.
        resident_bytes: what no plan can change: weights, optimizer state, inputs, constants.
        original_peak_bytes: predicted peak of the step as it is: that of `executor`, and where there is none, that of `timeline_before`;
            for a step that XLA compiles, XLA's. A budget that is a share is one of it.
        timeline_before: the step as it is, in the order of `executor`; where that is unknown, in the order in which it was traced.
        executor: the peak of the step as it is, in the order of TensorFlow's executor; None where it is not known (`how` says why).
        overhead: planned extra time as a share of the unmodified time.
        least_overhead: what every plan within the budget takes at least, whatever its order and whatever it recomputes of this graph (after
            what `rewritten` says), by minimum cuts; 0 where nothing was proved.
        recomputed_flops: FLOPs of recomputations as a share of all FLOPs of the unmodified step.
        curve: other budgets' points, by falling peak; empty when it was not asked for.
        rewritten: what was done to the step before it was planned, in words: large sums added up as the terms come, loops in segments, the
            batch in parts; "" for nothing.
        device_peaks: predicted peak of each device of this process, such as "GPU:1"; "worker 1" is the one device of a process among
            several, "worker 1 GPU:0" one of its devices, "one device" all there is.
        recipe: what `optimize_memory(step, plan=...)` follows.
        offloaded_bytes: of the buffers that are copied away and back; `decisions` names those that are residuals.
        offload_to: the folder, or the device, that they are copied to; "" where there are none.
    """

    name: str
    status: Literal["optimal", "feasible", "infeasible", "unchanged"]
    budget_bytes: int
    peak_bytes: int
    resident_bytes: int
    original_peak_bytes: int
    lower_bound_bytes: int
    lower_bound_reason: str
    overhead: float
    recomputed_flops: float
    recomputed_count: int
    planning_time_s: float
    timeline_before: Timeline
    timeline_after: Timeline
    decisions: tuple[BufferDecision, ...]  # residuals, largest first
    layers: tuple[LayerCost, ...]
    how: Mapping[str, str]
    curve: tuple[CurvePoint, ...] = ()
    measured_before: Measurement | None = None
    measured_after: Measurement | None = None
    verification: str = ""  # what was proved, in words; "" when not verified yet
    feeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    device_peaks: Mapping[str, int] = field(default_factory=dict[str, int])
    executor: PeakPrediction | None = None
    rewritten: str = ""
    least_overhead: float = 0.0
    recipe: PlanRecipe | None = field(default=None, repr=False, compare=False)
    offloaded_bytes: int = 0
    offload_to: str = ""

    def save(self, path: str | Path) -> Path:
        """Write the plan as a .json file, which `graphwright.load_plan` reads and `optimize_memory(step, plan=path)` follows.

        Raises:
            ArgumentError: `path` is a folder, lies in no folder, or cannot be written.

        Returns:
            The path.
        """
        return drawn(self, "file")(Path(path))

    @property
    def verdict(self) -> str:
        """One sentence: kept or not, from what to what, at what price."""
        return drawn(self, "verdict")

    def to_json(self) -> dict[str, object]:
        """Plain numbers and text, as docs/json.md and the file report/schemas/memory_plan.schema.json describe them."""
        return drawn(self, "json")
