"""The pieces of planning: the model of a step, a schedule for a budget, the function that follows it, and the report on it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from graphwright.analyze.cost import TaskMap, build_cost_graph
from graphwright.analyze.device_models import DeviceModel
from graphwright.analyze.layers import Layers, find_layers, in_layer
from graphwright.analyze.loops import LoopCosts
from graphwright.analyze.time_model import estimated_time_s
from graphwright.errors import InfeasibleError
from graphwright.ir.traits.control_flow import LOOPS
from graphwright.memory.offload import Offload, tie_files
from graphwright.memory.verbs import Candidate
from graphwright.ops.machine import onednn_enabled
from graphwright.ops.scratch import scratch_bytes
from graphwright.plan.copies import copied_buffers
from graphwright.plan.model import CostGraph, LowerBound, Schedule, Solution, Waits
from graphwright.plan.relaxed_order import relax
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import solve
from graphwright.plan.time_bound import least_time
from graphwright.report.memory_plan import MemoryPlan
from graphwright.report.progress import Progress
from graphwright.report.units import format_bytes
from graphwright.run.traced_step import TracedStep
from graphwright.source.concrete_function import to_concrete_function
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.tracebacks import innermost_line
from graphwright.step.executor_peak import inter_op_threads
from graphwright.step.flatten import FlatStep
from graphwright.step.summary import (
    Roles,
    find_roles,
    flops_rule,
    make_decisions,
    make_layers,
    make_timeline,
    recomputed_flops_share,
)
from graphwright.transform.branch_order import order_branches
from graphwright.transform.loop_ends import wait_for_loop_ends
from graphwright.transform.rematerialize import apply_schedule

_HOW_COUNTED = (
    "all operations that touch 4 KiB and more; counted are variables, inputs, constants, every tensor while it is live, and known kernel "
    "workspace; for the CPU "
) + ("with oneDNN" if onednn_enabled() else "without oneDNN, where the workspace of kernels is a bound")
HOW_PEAK = f"simulated over a total order, in which steps overlap only where none needs 1 % more, of {_HOW_COUNTED}"
HOW_PEAK_TRACED = f"simulated over the order in which the step was traced, of {_HOW_COUNTED}"
HOW_TIME = "estimated per operation from FLOPs and bytes moved (roofline), as ratios"

# Left free for small tensors, page rounding and what the executor notes of every node while it runs.
_ROOM, _ROOM_BYTES, _ROOM_PER_NODE = 0.01, 2**20, 128  # share of what is not resident, bytes, bytes per node
_OVERLAP = 0.01  # what steps that overlap may take beyond the peak of the plan, as a share of it, where that is within the budget
_LARGEST_ROOM = 0.1  # share: a step of a few MiB is not to be planned for half of its budget


def map_tasks(flat: FlatStep, device: DeviceModel | None = None) -> TaskMap:
    """Return the planning model of a flat step.

    Args:
        device: a GPU whose rates estimate the times and whose kernels need no workspace; None for the devices of this process.
    """
    if device is not None:
        time_of = partial(estimated_time_s, rates=device.rates)
        return build_cost_graph(flat.graph, flat.purity, time_of, workspace_of=lambda _: 0, loops=flat.loops)
    on_gpu = bool(import_tensorflow().config.get_visible_devices("GPU"))
    workspace_of = partial(scratch_bytes, on_gpu=on_gpu)
    return build_cost_graph(flat.graph, flat.purity, estimated_time_s, workspace_of=workspace_of, loops=flat.loops)


def without_recomputation(tasks: TaskMap) -> TaskMap:
    return replace(tasks, costs=replace(tasks.costs, tasks=tuple(replace(task, recomputable=False) for task in tasks.costs.tasks)))


def follow_schedule(
    flat: FlatStep,
    tasks: TaskMap,
    schedule: Schedule,
    lanes: Sequence[int] | None = None,
    waits: Sequence[Waits] | None = None,
    offload: Offload | None = None,
) -> Any:
    """Rewrite the graph of the flat step, and return the `ConcreteFunction` that runs the tasks in this order.

    Args:
        lanes: on several devices, the number of the device of each task; each keeps its own order.
        waits: per step, the groups of steps that it waits for; by default the step before it.
        offload: where copied tasks have their copies. Files live as long as the function.
    """
    carrier = None if offload is None else offload.carrier(flat.graph)
    apply_schedule(tasks, schedule, lanes=lanes, waits=waits, carrier=carrier)
    order_branches(flat.graph)
    wait_for_loop_ends(flat.graph)
    function = to_concrete_function(flat.graph, flat.binding)
    tie_files(function, carrier)
    return function


def overlap_within(flat: FlatStep, tasks: TaskMap, solution: Solution) -> tuple[Waits, ...]:
    """Let iterations of loops overlap, and return what each step waits for, so that steps overlap too: within the peak of the plan, or 1 %
    above it if the budget allows.
    """
    costs = tasks.costs
    budget = solution.budget_bytes - room_bytes(costs, len(tasks.graph), solution.budget_bytes)
    most_bytes = max(solution.peak_bytes, min(budget, int((1 + _OVERLAP) * solution.peak_bytes)))
    return relax(_overlap_iterations(flat, tasks, solution.schedule, most_bytes), solution.schedule, most_bytes)


def _overlap_iterations(flat: FlatStep, tasks: TaskMap, schedule: Schedule, most_bytes: int) -> CostGraph:
    """Let as many iterations of each loop without effects overlap as threads and memory allow; return the costs with the temporaries of
    all of them.
    """
    costs, room = tasks.costs, dict[int, int]()
    for task, nbytes in zip(schedule.steps, simulate(costs, schedule).step_bytes, strict=True):
        room[task] = min(room.get(task, most_bytes), most_bytes - nbytes)
    overlapping = list(costs.tasks)
    for task, free in room.items():
        own = costs.tasks[task].workspace_bytes
        count = min(inter_op_threads(), 1 + free // own) if own else 1
        loop = (
            next((node for node in tasks.nodes[task] if node.op_type in LOOPS and flat.purity.is_pure(node)), None) if count > 1 else None
        )
        if loop is not None:
            tasks.graph.set_attr(loop, "parallel_iterations", count)
            overlapping[task] = replace(costs.tasks[task], workspace_bytes=count * own)
    return replace(costs, tasks=tuple(overlapping))


def solve_with_room(
    costs: CostGraph, node_count: int, budget_bytes: int, time_limit_s: float, progress: Progress | None, *, longest_s: float | None = None
) -> Solution:
    """Return a plan that leaves room for what the simulation does not count, or a plan without room."""
    room = room_bytes(costs, node_count, budget_bytes)
    return solve(costs, budget_bytes, room_bytes=room, time_limit_s=time_limit_s, progress=progress, longest_s=longest_s)


def room_bytes(costs: CostGraph, node_count: int, budget_bytes: int) -> int:
    movable = budget_bytes - costs.resident_bytes
    return max(min(int(_ROOM * movable) + _ROOM_BYTES + _ROOM_PER_NODE * node_count, int(_LARGEST_ROOM * movable)), 0)


def infeasible(
    tasks: TaskMap,
    solution: Solution,
    budget_bytes: int,
    original_bytes: int,
    in_parts: Candidate | None = None,
    line: Callable[[str], str] = lambda _: "",
) -> InfeasibleError:
    """Return the error for a budget that no plan keeps."""
    layers = find_layers(tasks.graph).with_lines(line, (node.name for node in tasks.graph.nodes))
    bound = solution.lower_bound
    least, reason = stated_bound(tasks, bound, layers, original_bytes)
    share = f"{100 * least / max(original_bytes, 1):.0f} %"
    # What TensorFlow's own order needs may be less, but is simulated on the graph as TensorFlow prepares it, each time in another order:
    # a budget in bytes that it keeps now it need not keep when it is asked again.
    smallest = solution.peak_bytes
    as_it_is = f', "100%" (the step as it is, which takes {format_bytes(original_bytes)})' if original_bytes < smallest else ""
    parts = ""
    if in_parts is not None and in_parts.peak_bytes < smallest:
        parts = f", {reach(in_parts)}{', still above this budget' * (in_parts.peak_bytes > budget_bytes)}"
    return InfeasibleError(
        f"no plan fits {format_bytes(budget_bytes)}: the smallest budget known to work is {format_bytes(smallest)}",
        where=f"step {tasks.costs.name!r}, unmodified {format_bytes(original_bytes)}",
        cause=f"{reason}: {format_bytes(least)}, {share} of the unmodified peak; "
        f"{format_bytes(tasks.costs.resident_bytes)} are weights, optimizer state, inputs and constants",
        remedy=f'give "{budget_bytes}%", if a share was meant, or ' * (budget_bytes <= 100)
        + f"give a budget of {smallest} bytes or more{as_it_is}{parts}, or a smaller batch",
        smallest_budget_bytes=smallest,
    )


def stated_bound(tasks: TaskMap, bound: LowerBound, layers: Layers, original_bytes: int) -> tuple[int, str]:
    """Return the lower bound on the peak, and the reason with the task and its layer.

    Loop bodies are counted in their worst order, so the bound is capped by the unmodified peak.
    """
    if bound.task < 0:
        return bound.nbytes, bound.reason
    name, node = tasks.costs.tasks[bound.task].name, tasks.nodes[bound.task][0]
    around = [reader for value in node.outputs for reader in value.consumers] + [value.producer for value in node.inputs]
    layer = layers.of(name) or next(filter(None, (layers.of(other.name) for other in around)), "")
    words = in_layer(layer, name)
    if bound.nbytes > original_bytes:
        return original_bytes, f"what {words} runs inside is counted in the worst order, and no plan changes it"
    return bound.nbytes, bound.reason.replace(name, words)


def reach(in_parts: Candidate, *, of: int | None = None) -> str:
    """Describe what splitting would reach; as a percentage of the peak `of`, if given."""
    nbytes = in_parts.peak_bytes
    takes = format_bytes(nbytes) if of is None else f"some {100 * nbytes / of:.0f} % of the unmodified peak, by the planner's model,"
    return f'allow="all" ({in_parts.how}, takes {takes} and {100 * in_parts.slower:.0f} % more time)'


def make_memory_plan(
    target: TracedStep,
    tasks: TaskMap,
    solution: Solution,
    original_bytes: int,
    how: Mapping[str, str],
    loops: LoopCosts,
    given: TaskMap | None = None,
    segmented: Collection[str] = (),
    least_time: Callable[[CostGraph, int], float] = least_time,
    roles: Roles | None = None,
) -> MemoryPlan:
    """Return the report on a solution. Call it before the schedule is applied.

    Args:
        given: the tasks of the given step, if it was rewritten before it was planned.
        segmented: names of the loops that run in segments.
        least_time: lower bound on the time of every schedule within a budget.
        roles: of the given step, if known.
    """
    costs = tasks.costs
    given = given or tasks
    before = Schedule(given.costs.order)
    given_roles = roles or find_roles(given, innermost_line(target.function))
    roles = given_roles if given is tasks else find_roles(tasks, given_roles.line)
    flops = flops_rule(loops)
    timeline = make_timeline(tasks, solution.schedule, roles)
    copied = copied_buffers(costs)
    readers = {costs.buffers[b].producer for b in copied}
    repeats = len(solution.schedule.steps) - len(costs.tasks)
    recomputed = repeats - (sum(t in readers for t in solution.schedule.steps) - len(readers))
    unchanged = given is tasks and repeats == 0 and solution.schedule.steps == before.steps
    bound_bytes, bound_words = stated_bound(tasks, solution.lower_bound, roles.layers, original_bytes)
    is_bound = bool(recomputed) and not copied  # of what is copied nothing is proved
    least = (1 + solution.overhead) * (least_time(costs, solution.budget_bytes) / solution.time) - 1 if is_bound else 0.0
    return MemoryPlan(
        name=target.name,
        status="unchanged" if unchanged else solution.status,
        budget_bytes=solution.budget_bytes,
        peak_bytes=solution.peak_bytes,
        resident_bytes=costs.resident_bytes,
        original_peak_bytes=original_bytes,
        lower_bound_bytes=bound_bytes,
        lower_bound_reason=f"{bound_words}: {100 * bound_bytes / max(original_bytes, 1):.0f} % of the unmodified peak",
        overhead=solution.overhead,
        least_overhead=least,
        recomputed_flops=recomputed_flops_share(tasks, solution.schedule, flops),
        recomputed_count=recomputed,
        planning_time_s=solution.planning_time_s,
        timeline_before=make_timeline(given, before, given_roles),
        timeline_after=timeline,
        decisions=make_decisions(tasks, solution.schedule, roles, flops),
        layers=make_layers(tasks, roles, timeline, flops, solution.schedule, segmented),
        how=how,
        feeds=target.feeds,
        offloaded_bytes=sum(costs.buffers[b].nbytes for b in copied),
    )
