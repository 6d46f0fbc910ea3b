"""Plan one traced step for one budget, and build the function that follows the plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphwright.analyze.cost import TaskMap, build_cost_graph
from graphwright.analyze.loops import LoopCosts
from graphwright.analyze.onednn_workspace import onednn_workspace_bytes
from graphwright.analyze.time_model import estimated_time_s
from graphwright.analyze.workspace import onednn_enabled, workspace_bytes
from graphwright.errors import InfeasibleError
from graphwright.ir.traits.effects import Purity
from graphwright.memory.devices import find_placement, pin
from graphwright.memory.parts import Part, join, lanes, same_work, split
from graphwright.memory.plan_cache import PlanCache, fingerprint
from graphwright.memory.segments import segment_candidates
from graphwright.memory.verbs import BIT_FOR_BIT, Candidate, Verb, split_candidates
from graphwright.plan.budget import Budget
from graphwright.plan.model import CostGraph, Schedule, Solution
from graphwright.plan.relaxed_order import relax
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import curve, known_solution, solve
from graphwright.report.obtained import Obtained
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.results import CurvePoint, MemoryPlan
from graphwright.report.units import format_bytes
from graphwright.run.traced_step import TracedStep
from graphwright.source.concrete_function import Binding, from_concrete_function, process_among_others, to_concrete_function
from graphwright.source.registry_rule import default_attributes
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.executor_peak import plain_peak
from graphwright.step.flatten import FlatStep, flat_step, stateful_op_types
from graphwright.step.summary import (
    find_roles,
    flops_rule,
    make_decisions,
    make_layers,
    make_timeline,
    recomputed_flops_share,
)
from graphwright.transform.branch_order import order_branches
from graphwright.transform.loop_ends import wait_for_loop_ends
from graphwright.transform.proof import Original, Proof
from graphwright.transform.rematerialize import apply_schedule
from graphwright.transform.segments_proof import segments_difference

Progress = Callable[[float, str], None]
_HOW_COUNTED = (
    "all operations that touch 4 KiB and more; counted are variables, inputs, constants, every tensor while it is live, and known kernel "
    "workspace; for the CPU "
) + ("with oneDNN" if onednn_enabled() else "without oneDNN (TF_ENABLE_ONEDNN_OPTS=0), the workspace of whose kernels is taken from above")
HOW_PEAK = f"simulated over a total order, in which steps overlap only where no overlap needs more, of {_HOW_COUNTED}"
HOW_PEAK_TRACED = f"simulated over the order in which the step was traced, of {_HOW_COUNTED}"
HOW_TIME = "estimated per operation from FLOPs and bytes moved (roofline), as ratios"

# Left free for small tensors, page rounding and what the executor notes of every node while it runs.
_ROOM, _ROOM_BYTES, _ROOM_PER_NODE = 0.01, 2**20, 128  # share of what is not resident, bytes, bytes per node
_DRAWS = 3  # of what TensorFlow's executor leaves to chance; the median counts
_DEAR = 0.15  # extra time as a share, beyond which other verbs than recompute are planned too, where they change no bit
_CLEARLY = 0.75  # of what the budget leaves free: a bound above it is seldom reached
_MOST_SOLVES = 2  # how many rewritten steps of a verb are planned
_QUICKLY_SPLIT = 2_500  # nodes of a step that is split only to say what that would reach
_MOST_PARTS_TO_SAY = 4
_LARGEST_ROOM = 0.1  # share: a step of a few MiB is not to be planned for half of its budget


@dataclass(frozen=True)
class Planned:
    """A step that follows a plan.

    Attributes:
        function: the rewritten `ConcreteFunction`; None where the step runs as it is.
        steps: names of the nodes that lead each step of the schedule, so that a step of the same structure can follow it.
        proof: that the function computes what the original does; None where it was not asked for.
        equal_bits: whether it computes the same bits; otherwise sums over the batch have another order.
    """

    function: Any
    plan: MemoryPlan
    steps: tuple[str, ...]
    proof: Proof | None
    equal_bits: bool = True


def map_tasks(flat: FlatStep) -> TaskMap:
    """The planning model of a flat step."""
    on_gpu = bool(import_tensorflow().config.get_visible_devices("GPU"))
    workspace_of = onednn_workspace_bytes if on_gpu else workspace_bytes
    return build_cost_graph(flat.graph, flat.purity, estimated_time_s, workspace_of=workspace_of, loops=flat.loops)


def _map_without_recomputation(flat: FlatStep) -> TaskMap:
    tasks = map_tasks(flat)
    return replace(tasks, costs=replace(tasks.costs, tasks=tuple(replace(task, recomputable=False) for task in tasks.costs.tasks)))


def plan_step(
    target: TracedStep,
    budget: Budget,
    *,
    time_limit_s: float,
    progress: Progress | None = None,
    cache: PlanCache | None = None,
    earlier: Planned | None = None,
    curve_points: int = 0,
    prove: bool = True,
    allow: Collection[Verb] = BIT_FOR_BIT,
) -> Planned:
    """Plan a traced step and build the function.

    Args:
        budget: bytes, or a share of the unmodified peak. That peak is what the step takes in the order of TensorFlow's executor,
            simulated; where that is not known, in the order in which the step was traced.
        earlier: a plan for the same step with other shapes; it is followed when it fits, without planning again.
        curve_points: how many budgets between the unmodified peak and the plan's to solve as well, for the report.
        prove: whether to compare what the function computes with the original.
        allow: what the plan may do besides reordering.

    Raises:
        InfeasibleError: no plan fits the budget; the error carries the smallest one that works.
        UnsupportedError, UnknownShapeError: see `flatten` and `build_cost_graph`.
    """
    flat = flat_step(target)
    map_allowed = map_tasks if "recompute" in allow else _map_without_recomputation
    tasks = map_allowed(flat)
    placement = find_placement(flat.graph, flat.located(target.arguments))
    if placement is not None:
        pin(placement, (node for nodes in tasks.nodes for node in nodes))
    parts = split(tasks, placement)
    originals = [simulate(part.tasks.costs, Schedule(part.tasks.costs.order)).peak_bytes for part in parts]
    executor, plain_how = _plain_peak(target, flat, tasks, parts, earlier, progress)
    how = {"peak": HOW_PEAK, "overhead": HOW_TIME, "original peak": plain_how, **flat.loops.how}
    if executor is not None:
        originals = [executor.peak_bytes]
    budget_bytes = budget.of(max(nbytes for part, nbytes in zip(parts, originals, strict=True) if part.budgeted))
    asked = budget.given if budget.is_share else budget_bytes
    if earlier is not None and budget.is_share:  # a share is one of the largest batch, not of the last, smaller one
        asked = budget_bytes = max(budget_bytes, earlier.plan.budget_bytes)
    key = fingerprint(flat.graph, asked, time_limit_s) if cache is not None else ""
    solutions: list[Solution] = []
    chosen, splits = Candidate(flat, tasks), len(parts) == 1 and placement is None
    for k, part in enumerate(parts):
        solution = _known(part, originals[k], parts[:k], solutions, budget_bytes)
        if solution is None:
            part_key = key if not part.device else f"{key}-{k}"
            solution, how["plan"] = _solve_part(
                part, len(flat.graph), budget_bytes, time_limit_s / len(parts), progress, cache, part_key, earlier
            )
        found, plain = Obtained(solution, how.get("plan", "the plan of another device")), chosen
        arguments = (budget_bytes, asked, time_limit_s, progress, cache)
        if splits and "segment" in allow and _price(solution) > _DEAR:
            chosen, found = _cheapest(segment_candidates(plain, map_allowed, budget_bytes), chosen, found, *arguments)
        if splits and "split" in allow and _price(found.found) > 0:
            candidates = split_candidates(plain, flat.binding.argument_count, map_allowed)
            chosen, found = _cheapest(candidates, chosen, found, *arguments)
        if chosen is not plain:
            parts = split(chosen.tasks, None)
            part, (solution, how["plan"]) = parts[0], found
        if solution.status == "infeasible" and executor is not None and executor.peak_bytes <= budget_bytes:
            return _as_it_is(target, tasks, flat.loops, executor, solution, how, prove)
        if solution.status == "infeasible":
            others = None if not splits or "split" in allow else _reach_of_parts(plain, flat.binding.argument_count, budget_bytes)
            raise infeasible(part.tasks, solution, budget_bytes, originals[k], others)
        solutions.append(solution)
    worst = max((k for k, part in enumerate(parts) if part.budgeted), key=lambda k: (originals[k], -k))
    part, solution = parts[worst], solutions[worst]
    if part.device:
        how["devices"] = "the budget holds for each device; " + ", ".join(
            f"{p.device} {format_bytes(s.peak_bytes)}" + (" (host, without a budget)" if not p.budgeted else "")
            for p, s in zip(parts, solutions, strict=True)
        )
    in_parts, is_given = chosen.parts > 1, chosen.flat is flat
    plan = make_memory_plan(target, part.tasks, solution, originals[worst], how, chosen.flat.loops, None if is_given else tasks)
    curve_points = curve_points if is_given else 0
    if chosen.loops:  # what a segment runs again is within one task
        flops = [
            sum(flops_rule(s.loops)(n) or 0.0 for nodes in t.nodes for n in nodes) for s, t in ((flat, tasks), (chosen.flat, part.tasks))
        ]
        plan = replace(plan, recomputed_flops=(1 + plan.recomputed_flops) * flops[1] / max(flops[0], 1.0) - 1)
    plan = replace(plan, executor=executor, curve=_curve(part.tasks.costs, solution, originals[worst], curve_points, time_limit_s))
    process = process_among_others(target.function)
    names = [f"{process} {p.device}".strip() or "one device" for p in parts]
    plan = replace(plan, device_peaks=dict(zip(names, (s.peak_bytes for s in solutions), strict=True)))
    schedule = join(parts, [s.schedule for s in solutions])
    tasks = chosen.tasks
    leaders = tuple(tasks.costs.tasks[t].name for t in schedule.steps)
    start = chosen.flat if chosen.loops else flat
    original = Original(start.graph, start.purity, default_attributes, parts=in_parts) if prove else None
    difference = segments_difference(flat.graph, flat.purity, start.graph, chosen.loops) if prove and chosen.loops else ""
    starts = relax(tasks.costs, schedule, solution.peak_bytes) if len(parts) == 1 else None
    function = follow_schedule(chosen.flat, tasks, schedule, lanes(parts), starts)
    proof = None if original is None else Proof(difference) if difference else prove_function(original, function, flat.binding)
    if proof is not None and proof.equal:
        proof = replace(proof, loops=len(chosen.loops))
    return Planned(function, plan, leaders, proof, equal_bits=not in_parts)


def _price(solution: Solution) -> float:
    """What a plan costs in time, as a share; no plan costs more than any."""
    return float("inf") if solution.status == "infeasible" else solution.overhead


def _cheapest(
    candidates: Iterable[Candidate],
    given: Candidate,
    found: Obtained[Solution],
    budget_bytes: int,
    asked: int | float | str,
    time_limit_s: float,
    progress: Progress | None,
    cache: PlanCache | None,
) -> tuple[Candidate, Obtained[Solution]]:
    """The rewritten step that costs less time than the plan that was found without, with its plan; the given step and that plan else.

    A candidate is planned only where it can win: its tasks alone, each once, must take less time, and its bound must be within the budget,
    clearly so for parts of the batch. One that keeps the budget in its own order ends the search, and so does the time. Where nothing
    keeps the budget, that with the smallest peak is the answer.
    """
    best, solves = (given, found), 0
    least = _price(found.found)
    for candidate in candidates:
        if candidate.slower >= least:
            break
        costs = candidate.tasks.costs
        movable = budget_bytes - costs.resident_bytes
        fits = candidate.peak_bytes + _room(costs, len(candidate.flat.graph), budget_bytes) <= budget_bytes
        in_order = known_solution(costs, Schedule(costs.order), None)
        solved = Obtained(in_order and replace(in_order, budget_bytes=budget_bytes), "in its own order")
        if not fits and candidate.bound_bytes - costs.resident_bytes > (_CLEARLY if candidate.parts > 1 else 1.0) * movable:
            solved = Obtained(in_order and replace(in_order, status="infeasible", budget_bytes=budget_bytes), solved.how)
        elif not fits and solves == _MOST_SOLVES:
            break
        elif not fits:
            solves += 1
            if progress is not None:
                progress(0.0, f"planning {candidate.how}")
            key = fingerprint(candidate.flat.graph, f"{asked} {candidate.how}", time_limit_s) if cache is not None else ""
            part = split(candidate.tasks, None)[0]
            solved = _solve_part(part, len(candidate.flat.graph), budget_bytes, time_limit_s, progress, cache, key, None)
        if solved.found is None:
            continue
        overhead = (1 + candidate.slower) * (1 + solved.found.overhead) - 1
        price = float("inf") if solved.found.status == "infeasible" else overhead
        if price < least or (price == least == float("inf") and solved.found.peak_bytes < best[1].found.peak_bytes):
            verb = "segment" if candidate.loops else "split"
            least, best = price, (candidate, Obtained(replace(solved.found, overhead=overhead), f"{verb}: {candidate.how}; {solved.how}"))
        if fits:
            break
    return best


def _reach_of_parts(given: Candidate, argument_count: int, budget_bytes: int) -> Candidate | None:
    """What parts of the batch reach in their own order: the fewest parts that keep the budget, or those with the smallest peak.

    Nothing is planned for it. None where more would be made than is quickly made, or nothing can be split.
    """
    best: Candidate | None = None
    if len(given.flat.graph) <= _QUICKLY_SPLIT:
        for best in split_candidates(given, argument_count, map_tasks):
            if best.peak_bytes <= budget_bytes or best.parts == _MOST_PARTS_TO_SAY:
                break
    return best


def _as_it_is(
    target: TracedStep, tasks: TaskMap, loops: LoopCosts, executor: PeakPrediction, solution: Solution, how: Mapping[str, str], prove: bool
) -> Planned:
    """The plan that changes nothing: TensorFlow's executor, which starts what is ready, keeps a budget that no fixed order found keeps."""
    plan_how = (
        "none: the step runs as it is, which keeps the budget, simulated, where no fixed order that was found does. TensorFlow fixes no "
        f"order (simulated: {format_bytes(executor.low_bytes)} to {format_bytes(executor.high_bytes)}); shown over time is the traced one"
    )
    traced = replace(solution, schedule=Schedule(tasks.costs.order), peak_bytes=executor.peak_bytes, overhead=0.0)
    how = {**how, "peak": how["original peak"], "plan": plan_how}
    plan = make_memory_plan(target, tasks, traced, executor.peak_bytes, how, loops)
    plan = replace(plan, executor=executor, device_peaks={"one device": executor.peak_bytes})
    return Planned(None, plan, (), Proof("") if prove else None)


def prove_function(original: Original, function: Any, binding: Binding) -> Proof:
    """Whether a rewritten function, as TensorFlow has it, is proved by structure to compute what the original does."""
    graph, rebuilt = from_concrete_function(function, planned=False)
    if not all(ours is theirs for ours, theirs in zip(rebuilt.captures, binding.captures, strict=True)):
        return Proof("it captures other variables")
    return original.compare(graph, Purity(graph, stateful_op_types(graph)))


def _plain_peak(
    target: TracedStep,
    flat: FlatStep,
    tasks: TaskMap,
    parts: Sequence[Part],
    earlier: Planned | None,
    progress: Progress | None,
) -> Obtained[PeakPrediction | None]:
    """The peak of the step as TensorFlow runs it by itself; None where it is not known."""
    if len(parts) > 1:
        found, reason = None, "not simulated, since the step runs on several devices"
    elif earlier is not None and _reuse(tasks, earlier, earlier.plan.budget_bytes) is not None:
        found, reason = None, "not simulated, since the step follows the plan for other shapes"
    else:
        if progress is not None:
            progress(0.0, "asking TensorFlow what it would run")
        found, reason = plain_peak(target, flat.graph, tasks, simulations=1, draws=_DRAWS)
        if found is not None and "not counted" in found.how.get("not exact", ""):
            found, reason = None, f"not known: {found.how['not exact']}"
    return Obtained(found, reason if found else f"that of the order in which the step was traced; TensorFlow's own is {reason}")


def _known(part: Part, original_bytes: int, before: Sequence[Part], solutions: Sequence[Solution], budget_bytes: int) -> Solution | None:
    """The plan of a device that does the same work; for a host that keeps no budget, its original order."""
    costs = part.tasks.costs
    if not part.budgeted:
        return known_solution(costs, Schedule(costs.order), original_bytes)
    for other, solution in zip(before, solutions, strict=True):
        if other.budgeted and same_work(other, part):
            return known_solution(costs, solution.schedule, budget_bytes)
    return None


def _solve_part(
    part: Part,
    node_count: int,
    budget_bytes: int,
    time_limit_s: float,
    progress: Progress | None,
    cache: PlanCache | None,
    key: str,
    earlier: Planned | None,
) -> Obtained[Solution]:
    """A plan for one device: an earlier one, one that is kept on disk, or a new one."""
    costs = part.tasks.costs
    solution = _reuse(part.tasks, earlier, budget_bytes) if earlier is not None else None
    if solution is not None:
        return Obtained(solution, "taken over from the step's plan for other shapes")
    if cache is not None:
        solution = cache.read(key, costs, budget_bytes)
        if solution is not None:
            return Obtained(solution, f"read from the plan cache ({cache.path(key)})")
    solution = solve_with_room(costs, node_count, budget_bytes, time_limit_s, progress)
    if cache is not None and solution.status != "infeasible":
        cache.write(key, solution)
    return Obtained(solution, ", ".join(f"{k} {v}" for k, v in solution.notes.items()))


def follow_schedule(
    flat: FlatStep, tasks: TaskMap, schedule: Schedule, lanes: Sequence[int] | None = None, starts: Sequence[int] | None = None
) -> Any:
    """The `ConcreteFunction` that runs the tasks in this order. The graph of the flat step, from which `tasks` was made, is rewritten.

    Args:
        lanes: per task, the number of the device that runs it, where there are several: each keeps its own order.
        starts: per step, how many of the first steps it waits for; all without it.
    """
    apply_schedule(tasks, schedule, lanes=lanes, starts=starts)
    order_branches(flat.graph)
    wait_for_loop_ends(flat.graph)
    return to_concrete_function(flat.graph, flat.binding)


def solve_with_room(costs: CostGraph, node_count: int, budget_bytes: int, time_limit_s: float, progress: Progress | None) -> Solution:
    """A plan with some room for what the simulation does not count; without that room where there is no other."""
    room = _room(costs, node_count, budget_bytes)
    return solve(costs, budget_bytes, room_bytes=room, time_limit_s=time_limit_s, progress=progress)


def _room(costs: CostGraph, node_count: int, budget_bytes: int) -> int:
    movable = budget_bytes - costs.resident_bytes
    return max(min(int(_ROOM * movable) + _ROOM_BYTES + _ROOM_PER_NODE * node_count, int(_LARGEST_ROOM * movable)), 0)


def infeasible(
    tasks: TaskMap, solution: Solution, budget_bytes: int, original_bytes: int, in_parts: Candidate | None = None
) -> InfeasibleError:
    """The error for a budget that no plan keeps.

    Args:
        in_parts: what splitting the batch reaches, where that was not allowed.
    """
    bound = solution.lower_bound
    share = f"{100 * bound.nbytes / max(original_bytes, 1):.0f} %"
    # What TensorFlow's own order needs may be less, but is simulated on the graph as TensorFlow prepares it, each time in another order:
    # a budget in bytes that it keeps now it need not keep when it is asked again.
    smallest = solution.peak_bytes
    as_it_is = f', "100%" (the step as it is, which takes {format_bytes(original_bytes)})' if original_bytes < smallest else ""
    parts = ""
    if in_parts is not None and in_parts.peak_bytes < smallest:
        parts = f', allow="all" ({in_parts.how}, takes {format_bytes(in_parts.peak_bytes)} and {100 * in_parts.slower:.0f} % more time)'
    return InfeasibleError(
        f"no plan fits {format_bytes(budget_bytes)}: the smallest budget known to work is {format_bytes(smallest)}",
        where=f"step {tasks.costs.name!r}, unmodified {format_bytes(original_bytes)}",
        cause=f"{bound.reason}: {format_bytes(bound.nbytes)}, {share} of the unmodified peak; "
        f"{format_bytes(tasks.costs.resident_bytes)} are weights, optimizer state, inputs and constants",
        remedy=f"give a budget of {smallest} bytes or more{as_it_is}{parts}, or a smaller batch",
        smallest_budget_bytes=smallest,
    )


def make_memory_plan(
    target: TracedStep,
    tasks: TaskMap,
    solution: Solution,
    original_bytes: int,
    how: Mapping[str, str],
    loops: LoopCosts,
    given: TaskMap | None = None,
) -> MemoryPlan:
    """What users see of a solution; call it before the schedule is applied.

    Args:
        given: the tasks of the step as it was given, where it was rewritten before it was planned.
    """
    costs = tasks.costs
    given = given or tasks
    before = Schedule(given.costs.order)
    roles = find_roles(tasks)
    flops = flops_rule(loops)
    timeline = make_timeline(tasks, solution.schedule, roles)
    recomputed = len(solution.schedule.steps) - len(costs.tasks)
    unchanged = given is tasks and recomputed == 0 and solution.schedule.steps == before.steps
    bound = solution.lower_bound
    return MemoryPlan(
        name=target.name,
        status="unchanged" if unchanged else solution.status,
        budget_bytes=solution.budget_bytes,
        peak_bytes=solution.peak_bytes,
        resident_bytes=costs.resident_bytes,
        original_peak_bytes=original_bytes,
        lower_bound_bytes=bound.nbytes,
        lower_bound_reason=f"{bound.reason}: {100 * bound.nbytes / max(original_bytes, 1):.0f} % of the unmodified peak",
        overhead=solution.overhead,
        recomputed_flops=recomputed_flops_share(tasks, solution.schedule, flops),
        recomputed_count=recomputed,
        planning_time_s=solution.planning_time_s,
        timeline_before=make_timeline(given, before, roles if given is tasks else find_roles(given)),
        timeline_after=timeline,
        decisions=make_decisions(tasks, solution.schedule, roles, flops),
        layers=make_layers(tasks, roles, timeline, flops),
        how=how,
        feeds=target.feeds,
    )


def _curve(costs: CostGraph, solution: Solution, original_bytes: int, points: int, time_limit_s: float) -> tuple[CurvePoint, ...]:
    """What budgets between the unmodified peak and the plan's cost, by falling peak; the chosen point is the last."""
    step = (original_bytes - solution.peak_bytes) / (points + 1)
    budgets = [round(original_bytes - step * k) for k in range(1, points + 1)] if points else []
    found = curve(costs, budgets=budgets, time_limit_s=time_limit_s) if step >= 1 and budgets else ()
    between = [CurvePoint(s.peak_bytes, s.overhead) for s in found if s.status != "infeasible" and s.overhead <= solution.overhead]
    ends = [CurvePoint(original_bytes, 0.0), CurvePoint(solution.peak_bytes, solution.overhead)]
    merged = {p.peak_bytes: p for p in [*between, *ends]}
    return tuple(merged[b] for b in sorted(merged, reverse=True))


def _reuse(tasks: TaskMap, earlier: Planned, budget_bytes: int) -> Solution | None:
    """The earlier schedule on this step, where it fits and the budget is kept."""
    schedule = reused_schedule(tasks, earlier)
    return None if schedule is None else known_solution(tasks.costs, schedule, budget_bytes)


def reused_schedule(tasks: TaskMap, earlier: Planned) -> Schedule | None:
    """The earlier schedule on this step; None where not each of its tasks is known by name."""
    costs = tasks.costs
    by_name = {task.name: t for t, task in enumerate(costs.tasks)}
    steps = tuple(by_name[name] for name in earlier.steps if name in by_name)
    if len(set(steps)) != len(costs.tasks):
        return None
    return Schedule(steps)
