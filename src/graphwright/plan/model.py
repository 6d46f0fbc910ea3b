"""The planning model: a solver's view of a computation. It knows nothing of TensorFlow.

A `CostGraph` is a list of *tasks* that read and write *buffers*. A `Schedule` is a sequence of task indices in execution order; a task that
appears again is recomputed.

Terms
-----
buffer
    Memory written by one task (its *producer*) or present from the start (no producer).
version
    Each execution of the producer makes a new version of its buffers. A use reads the latest version. A version is live from the execution
    that makes it to its last use before the next version (an unread version is freed at once). The last version of a *kept* buffer, and a
    kept buffer without a producer, stay live to the end.
step
    One execution of one task: position `k` of the schedule. The bytes of step `k` are all versions live at it (its own inputs and outputs
    included), plus its workspace, plus `resident_bytes`.
in place
    A pair (input, output) of a task: if this step is the last use of the version of `input`, the input is neither kept nor without
    producer, and `input.nbytes >= output.nbytes`, the output takes over the input's storage, and the two count once at this step. At most
    one pair per output applies, the first that can; each input can be taken once.
copied
    A task with `again` copies its result elsewhere when it first runs. A repeat runs `again` instead, which reads the copy back.
killed
    A buffer with `killed_by=t` must not be read after the (single) execution of task `t`: a read of a variable, and the task that
    overwrites the variable. `t` itself may read it. The producer of a killed buffer must not run after `t` either.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["optimal", "feasible", "infeasible"]
Waits = tuple[tuple[int, ...], ...]  # groups of steps, by their positions, that a step waits for


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory written by one task, or present from the start if `producer` is None."""

    name: str
    nbytes: int
    producer: int | None
    kept: bool = False
    killed_by: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One schedulable unit of work.

    Attributes:
        time: cost of one execution, in `CostGraph.time_unit`.
        inputs: indices of the buffers read, each listed once.
        after: tasks whose first execution must precede every execution of this task, besides producers of inputs.
        workspace_bytes: bytes allocated while running.
        recomputable: whether it may run more than once.
        in_place: pairs (input buffer, output buffer), see the module docstring.
        again: what a repeat executes instead, if the result is copied; it has no inputs.
    """

    name: str
    time: float
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    after: tuple[int, ...] = ()
    workspace_bytes: int = 0
    recomputable: bool = True
    in_place: tuple[tuple[int, int], ...] = ()
    again: "Task | None" = None


@dataclass(frozen=True, slots=True)
class CostGraph:
    """Tasks and buffers. `order` is a valid schedule that runs each task once (the original order)."""

    tasks: tuple[Task, ...]
    buffers: tuple[Buffer, ...]
    order: tuple[int, ...]
    resident_bytes: int = 0
    time_unit: str = "s"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Task indices in execution order; a repeat is a recomputation."""

    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The simulation of a schedule."""

    step_bytes: tuple[int, ...]
    peak_step: int
    peak_bytes: int
    time: float


@dataclass(frozen=True, slots=True)
class LowerBound:
    """No schedule has a smaller peak than `nbytes`, because of `task`."""

    nbytes: int
    task: int
    reason: str


@dataclass(frozen=True, slots=True)
class Solution:
    """The answer of a solver.

    Attributes:
        status: "optimal" (proved cheapest), "feasible", or "infeasible"; `schedule` then has the smallest peak found, and `peak_bytes` is
            the smallest budget known to work.
        overhead: (time - time of running each task once) / time of running each task once.
        planning_time_s: seconds spent.
        reason: why it is infeasible; empty otherwise.
        notes: how it was found, such as the solver that won.
    """

    status: Status
    schedule: Schedule
    peak_bytes: int
    time: float
    overhead: float
    lower_bound: LowerBound
    budget_bytes: int
    planning_time_s: float
    reason: str = ""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
