"""Plan one traced step for one budget, and build the function that follows the plan."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.loops import LoopCosts
from graphwright.errors import ArgumentError, GraphError, GraphwrightError, in_words
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.traits.control_flow import SWITCHES
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import OPTIMIZED
from graphwright.memory.devices import find_placement, find_workers, pin
from graphwright.memory.offload import Offload
from graphwright.memory.parts import Part, join, lanes, split
from graphwright.memory.plan_cache import KeptFigures
from graphwright.memory.planning import (
    HOW_PEAK,
    HOW_TIME,
    follow_schedule,
    infeasible,
    make_memory_plan,
    map_tasks,
    overlap_within,
    reach,
    without_recomputation,
)
from graphwright.memory.request import Request
from graphwright.memory.search import Search, reach_of_parts, reused_schedule
from graphwright.memory.verbs import ON_ONE_DEVICE, WITH_COPIES, Candidate, Verb, priced_beside, refuse_verbs
from graphwright.ops.machine import onednn_enabled
from graphwright.plan.copies import most_copied_bytes
from graphwright.plan.model import CostGraph, Schedule, Solution
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import curve, known_solution
from graphwright.report.memory_plan import CurvePoint, MemoryPlan
from graphwright.report.obtained import Obtained
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.progress import tell
from graphwright.report.units import format_bytes
from graphwright.run.traced_step import TracedStep
from graphwright.source.concrete_function import Binding, from_concrete_function, process_among_others
from graphwright.source.registry_rule import default_attributes
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.tracebacks import innermost_line
from graphwright.step.executor_peak import ask_tensorflow, inter_op_threads, plain_peak, prepared, why_refused
from graphwright.step.flatten import FlatStep, flat_step, stateful_op_types
from graphwright.step.grappler_step import HOW_ADDED, HOW_PARTS, grappler_step
from graphwright.step.summary import Roles, find_roles, flops_rule
from graphwright.transform.proof import Original, Proof
from graphwright.transform.segments_proof import segments_difference

_DEAR = 0.25  # extra time as a share, beyond which it is said what verbs that are not allowed would reach
_SAVED = "; as the saved plan says"
_TRACED = "of the graph that was traced, without Grappler's rewrites; "


@dataclass(frozen=True)
class Planned:
    """A step that follows a plan.

    Attributes:
        function: the rewritten `ConcreteFunction`; None if the step runs unchanged.
        steps: names of the first node of each step of the schedule, by which a step of the same structure can follow it.
        proof: whether the function computes the same as the original; None if no proof was asked for.
        equal_bits: whether results are bit for bit the same, and not only up to the order of sums over the batch.
    """

    function: Any
    plan: MemoryPlan
    steps: tuple[str, ...]
    proof: Proof | None
    equal_bits: bool = True


@dataclass(frozen=True)
class Unplanned:
    """A step without a plan.

    Attributes:
        flat: the traced graph with shapes.
        tasks: its planning model.
        records: TensorFlow's records of preparing it; None with a reason if unknown.
        executor: its peak in the order of TensorFlow's executor; None with a reason if unknown.
    """

    target: TracedStep
    flat: FlatStep
    tasks: TaskMap
    records: Obtained[list[bytes] | None]
    executor: Obtained[PeakPrediction | None]

    @cached_property
    def to_plan(self) -> Obtained[FlatStep]:
        return _as_grappler_leaves_it(self.target, self.flat, self.records, memory_optimizer=True)

    @property
    def peak_bytes(self) -> int:
        """The unmodified peak, of which budgets are shares: by the executor, or else in the traced order."""
        executor, costs = self.executor.found, self.tasks.costs
        return simulate(costs, Schedule(costs.order)).peak_bytes if executor is None else executor.peak_bytes


def unplanned(target: TracedStep) -> Unplanned:
    flat = flat_step(target)
    tasks, records = map_tasks(flat, target.device), prepared(target, flat.graph)
    return Unplanned(target, flat, tasks, records, _plain_peak(target, flat, tasks, split(tasks, None), None, records))


@garbage_collection_paused()
def plan_step(
    target: TracedStep,
    request: Request,
    *,
    earlier: Planned | None = None,
    before: Unplanned | None = None,
    refused: Mapping[str, str] | None = None,
) -> Planned:
    """Plan a traced step and build the function that follows the plan.

    With the verb "split", which changes roundings, convolutions that the step has XLA compile run by TensorFlow's kernels.

    Args:
        request: what is asked for. A saved plan is followed without a search. After a refusal `saved` is the refused plan, and schedules
            in it are not searched for again.
        earlier: a plan for the same step with other shapes; it is followed, without a search, if it fits.
        before: the unplanned step, if it is known; the plan is then returned without a function.
        refused: by `MemoryPlan.rewritten`, why rewritten steps cannot run; they are left out. If TensorFlow refuses one in which steps
            overlap, the same plan is first followed without overlap.

    Raises:
        ArgumentError: the saved plan is for another step.
        InfeasibleError: no plan fits the budget; the error carries the smallest budget that works.
        UnsupportedError, UnknownShapeError: see `flatten` and `build_cost_graph`.
    """
    refused, saved, allow = refused or {}, request.saved, request.allow
    flat = traced = flat_step(target, uncompiled="split" in allow) if before is None else before.flat
    circumstances = f"{import_tensorflow().__version__} {onednn_enabled()} {inter_op_threads()} {target.grappler_disabled} {sorted(allow)}"
    figures = KeptFigures(request.cache, flat.graph, circumstances)
    # The memory optimizer is needed only to simulate the step's own peak.
    whole = figures.peak is None or earlier is not None or not figures.without_memory_optimizer
    records = prepared(target, flat.graph, memory_optimizer=whole) if before is None else before.records
    flat, graph_how = before.to_plan if before else _as_grappler_leaves_it(target, flat, records, memory_optimizer=whole)
    figures.without_memory_optimizer = graph_how == HOW_ADDED

    def map_allowed(step: FlatStep) -> TaskMap:
        return map_tasks(step) if "recompute" in allow else without_recomputation(map_tasks(step))

    given = Candidate(flat, map_allowed(flat))
    roles = find_roles(given.tasks, innermost_line(target.function))
    as_traced = given if flat is traced or "split" not in allow else priced_beside(given, traced, map_allowed(traced), for_grappler=True)
    placement = find_placement(flat.graph, flat.located(target.arguments))
    if placement is not None:
        pin(placement, (node for nodes in given.tasks.nodes for node in nodes))
    parts = split(given.tasks, placement)
    _check_verbs(allow, request.offload, target, flat, parts)
    originals = [simulate(part.tasks.costs, Schedule(part.tasks.costs.order)).peak_bytes for part in parts]
    if saved is not None and saved.executor is not None:
        executor, plain_how = saved.executor, saved.how["original peak"].removesuffix(_SAVED) + ("" if refused else _SAVED)
    elif before is None and earlier is None and figures.peak is not None and records.found is not None:
        executor, plain_how = figures.peak, f"{'; '.join(figures.peak.how.values())}; as found in an earlier run"
    else:
        executor, plain_how = before.executor if before else _plain_peak(target, traced, given.tasks, parts, earlier, records, roles)
        figures.peak = executor if earlier is None else None
    figures.keep()
    how = {"peak": HOW_PEAK, "overhead": HOW_TIME, "original peak": plain_how, "graph": graph_how, **flat.how}
    if refused:
        how["refused"] = refused_steps(refused)
    if executor is not None:
        originals = [executor.peak_bytes]
    original_bytes = max(nbytes for part, nbytes in zip(parts, originals, strict=True) if part.budgeted)
    budget_bytes, asked = _budget_in_bytes(request, original_bytes, earlier)
    search = Search(request, budget_bytes, asked, earlier.steps if earlier is not None else (), refused)
    chosen, argument_count = given, flat.binding.argument_count
    on_one_device = len(parts) == 1 and placement is None

    def reach_by_splitting(bytes_to_keep: int) -> Candidate | None:
        if not on_one_device or "split" in allow:
            return None
        return reach_of_parts(priced_beside(given, traced, map_tasks(traced)), argument_count, bytes_to_keep, search=search)

    if on_one_device:
        chosen, (solution, how["plan"]) = search.one_device(given, as_traced, argument_count, map_allowed, allow)
        if chosen.root.flat is not flat:
            how["graph"] = _TRACED + "the rules of its verb are those of the operations that were traced"
        if any(step.split for step in _rewrites(chosen)):
            how["graph"] = HOW_PARTS
        solutions, parts = [solution], parts if chosen is given else split(chosen.tasks, None)
    else:
        solutions, how["plan"] = search.devices(parts, originals, flat.graph)
    if budget_bytes is None:
        how["plan"] = f"the smallest peak of plans within {100 * request.max_overhead:g} % more time; {how['plan']}"
    recipe = search.recipe()
    if executor is not None and _is_better_as_it_is(solutions[-1], executor, budget_bytes):
        planned = _as_it_is(target, given.tasks, flat.loops, executor, solutions[-1], how, request.prove)
        return replace(planned, plan=replace(planned.plan, recipe=recipe))
    if solutions[-1].status == "infeasible":
        k = len(solutions) - 1
        most = solutions[k].budget_bytes if budget_bytes is None else budget_bytes
        raise infeasible(parts[k].tasks, solutions[k], most, originals[k], reach_by_splitting(most), roles.line)
    is_new = "plan cache" not in how["plan"] and "taken over" not in how["plan"]
    if budget_bytes is not None and is_new and solutions[0].overhead > _DEAR:
        split_step = reach_by_splitting(budget_bytes)
        if split_step is not None and split_step.peak_bytes <= budget_bytes and split_step.slower < solutions[0].overhead:
            how["for less time"] = reach(split_step)
    worst = max((k for k, part in enumerate(parts) if part.budgeted), key=lambda k: (originals[k], -k))
    origin = given if chosen.root.flat is flat else as_traced
    known_roles = roles if (parts[worst].tasks if origin is chosen else origin.tasks) is given.tasks else None
    if parts[worst].device:
        how["devices"] = _devices_in_words(parts, solutions)
    plan = _describe(target, origin, chosen, parts[worst].tasks, solutions[worst], originals[worst], how, figures, known_roles)
    figures.keep()
    process = process_among_others(target.function)
    names = [f"{process} {part.device}".strip() or "one device" for part in parts]
    points = request.curve_points if chosen.verb == "recompute" else 0
    plan = replace(
        plan,
        recipe=recipe,
        **_before(executor, saved),
        curve=_curve(parts[worst].tasks.costs, solutions[worst], originals[worst], points, request.time_limit_s),
        device_peaks=dict(zip(names, (solution.peak_bytes for solution in solutions), strict=True)),
    )
    plan = _with_copies(chosen, solutions[0], plan)
    if before is not None:
        return Planned(None, plan, (), None)
    overlapping = f"{chosen.how or 'the step in another order'}, where steps overlap"
    overlap = len(parts) == 1 and overlapping not in refused
    planned = _follow(origin, chosen, parts, solutions, plan, prove=request.prove, overlap=overlap)
    if planned.function is not None and (reason := why_refused(target, planned.function)):
        plan = replace(plan, rewritten=overlapping if overlap else chosen.how)
        return replace(planned, function=None, plan=plan, proof=Proof(f"TensorFlow refuses to run it: {reason}"))
    return planned


def _devices_in_words(parts: Sequence[Part], solutions: Sequence[Solution]) -> str:
    peaks = ", ".join(
        f"{part.device} {format_bytes(solution.peak_bytes)}" + ("" if part.budgeted else " (host, without a budget)")
        for part, solution in zip(parts, solutions, strict=True)
    )
    return f"the budget holds for each device, and their plans order and recompute only; {peaks}"


def refused_steps(refused: Mapping[str, str]) -> str:
    """Return the rewritten steps that cannot run, with the reasons.

    >>> refused_steps({"": "not proved: it has 2 outputs for 1", "the batch of 8 in 2 parts": "not proved: 'x' runs no more"})
    "the step in another order: not proved: it has 2 outputs for 1; the batch of 8 in 2 parts: not proved: 'x' runs no more"
    """
    return "; ".join(f"{rewritten or 'the step in another order'}: {why}" for rewritten, why in refused.items())


def _check_verbs(allow: Collection[Verb], offload: Offload | None, target: TracedStep, flat: FlatStep, parts: Sequence[Part]) -> None:
    where, remedy = f"step {target.name!r}", f"leave it{WITH_COPIES * ('offload' in allow)} out"
    if parts[0].device:
        cause = f"{' and '.join(part.device for part in parts)} have plans of their own, which order and recompute only"
        refuse_verbs(allow, ON_ONE_DEVICE, "a step on several devices", where=where, cause=cause, remedy=remedy)
    if parts[0].meeting:
        cause = "the step meets other processes, with which it keeps one order"
        refuse_verbs(allow, ("offload",), "a step with collectives", where=where, cause=cause, remedy=remedy)
    switch = next((node for node in flat.graph.nodes if node.op_type in SWITCHES), None)
    if switch is not None:
        cause = f"node {switch.name!r} ({switch.op_type}) decides while the step runs whether what is behind it runs"
        remedy = f"{remedy}; or write the branch as tf.cond with control flow v2, the default of TensorFlow 2"
        refuse_verbs(allow, ("offload", "split"), "a step with switches of TF1", where=where, cause=cause, remedy=remedy)
    if offload is None or offload.on_disk:
        return
    by_default = "GPU:0" if import_tensorflow().config.list_logical_devices("GPU") else "CPU:0"
    if offload.to in (find_workers(flat.graph, flat.located(target.arguments)) or (by_default,)):
        raise ArgumentError(
            f"the step itself runs on {offload.to}",
            argument="offload_to",
            cause="a copy on the same device frees nothing",
            remedy="give a folder, or another device",
        )


def _with_copies(chosen: Candidate, solution: Solution, plan: MemoryPlan) -> MemoryPlan:
    if chosen.offload is None:
        return plan
    plan = replace(plan, offload_to=chosen.offload.to)
    if chosen.offload.on_disk:
        return plan
    held = most_copied_bytes(chosen.tasks.costs, solution.schedule)
    return replace(plan, device_peaks={**plan.device_peaks, chosen.offload.to: held})


def _as_grappler_leaves_it(
    target: TracedStep, flat: FlatStep, records: Obtained[list[bytes] | None], *, memory_optimizer: bool
) -> Obtained[FlatStep]:
    """Return the step as Grappler rewrites it, or the traced step and why that cannot be planned."""
    graphs, why = records
    if flat.uncompiled:
        why = ", since it runs by other kernels"
    elif graphs is not None:
        optimized, why = ask_tensorflow(target, flat.graph, lambda: grappler_step(target, flat, graphs, memory_optimizer=memory_optimizer))
        if optimized is not None:
            return optimized
    return Obtained(flat, _TRACED + f"what Grappler makes of it is not planned{why}")


def _budget_in_bytes(request: Request, original_bytes: int, earlier: Planned | None) -> tuple[int | None, int | float | str]:
    """Return the budget in bytes, None for the smallest peak, and the key of the budget in the plan cache.

    A share is taken of the largest batch so far, not of a smaller last one.
    """
    budget = request.budget
    if budget is None:
        return None, f"smallest {request.max_overhead}"
    nbytes = budget.of(original_bytes)
    key = budget.given if budget.is_share else nbytes
    if earlier is not None and budget.is_share:
        key = nbytes = max(nbytes, earlier.plan.budget_bytes)
    return (nbytes if request.saved is None else request.saved.budget_bytes), key


def _describe(
    target: TracedStep,
    given: Candidate,
    chosen: Candidate,
    tasks: TaskMap,
    solution: Solution,
    original_bytes: int,
    how: Mapping[str, str],
    figures: KeptFigures,
    roles: Roles | None,
) -> MemoryPlan:
    before = None if chosen is given else given.tasks
    plan = make_memory_plan(
        target, tasks, solution, original_bytes, how, chosen.flat.loops, before, chosen.loops, figures.least_time, roles
    )
    plan = replace(plan, rewritten=chosen.how)
    if not chosen.loops:
        return plan
    # What a segment runs again is within one task.
    once, after = (
        sum(flops_rule(step.flat.loops)(node) or 0.0 for nodes in step.tasks.nodes for node in nodes) for step in (given, chosen)
    )
    return replace(plan, recomputed_flops=(1 + plan.recomputed_flops) * after / max(once, 1.0) - 1)


def _follow(
    given: Candidate, chosen: Candidate, parts: Sequence[Part], solutions: Sequence[Solution], plan: MemoryPlan, prove: bool, overlap: bool
) -> Planned:
    """Build the function that follows the schedules, and prove that it computes the same as the given step."""
    tell("writing the planned step, and proving that it computes the same", 1.0)
    costs, flat = chosen.tasks.costs, given.flat
    schedule = join(parts, [solution.schedule for solution in solutions])
    # Another shape has other copies, or none: its repeats would be taken for recomputations.
    leaders = tuple(costs.tasks[t].name for t in schedule.steps) if chosen.offload is None else ()
    rewrites = _rewrites(chosen)
    # Parts that come last are proved of the whole function, which takes one look at it instead of two.
    comes_last = chosen.parts > 1 and chosen.split is None
    start = chosen.before.flat if comes_last and chosen.before is not None else chosen.flat
    before = [_proved(one) for one in rewrites if prove and not (one is chosen and comes_last)]
    difference = next((one.difference for one in before if one.difference), "")
    waits = overlap_within(chosen.flat, chosen.tasks, replace(solutions[0], schedule=schedule)) if overlap else None
    original = Original(start.graph, start.purity, default_attributes, parts=comes_last) if prove else None
    try:
        function = follow_schedule(chosen.flat, chosen.tasks, schedule, lanes(parts), waits, chosen.offload)
        proof = None if original is None else Proof(difference) if difference else prove_function(original, function, flat.binding)
    except Exception as error:  # TensorFlow refuses the rewritten graph, by whatever error
        if isinstance(error, GraphwrightError) and not isinstance(error, GraphError):
            raise
        return Planned(None, plan, leaders, Proof(f"it cannot be built: {in_words(error)}"))
    if proof is not None and proof.equal:
        optimized = any(OPTIMIZED in node.attrs for node in start.graph.nodes)
        sums = proof.parts + sum(one.parts for one in before)
        proof = replace(proof, loops=len(chosen.loops), parts=sums, uncompiled=flat.uncompiled, optimized=optimized)
    equal_bits = not (flat.uncompiled or any(one.parts > 1 for one in rewrites))
    return Planned(function, plan, leaders, proof, equal_bits=equal_bits)


def _rewrites(chosen: Candidate | None) -> list[Candidate]:
    return [] if chosen is None or chosen.before is None else [*_rewrites(chosen.before), chosen]


def _proved(made: Candidate) -> Proof:
    assert made.before is not None
    before, after = made.before.flat, made.split or made.flat
    if made.parts > 1 or not made.loops:
        return Original(before.graph, before.purity, default_attributes, parts=made.parts > 1).compare(after.graph, after.purity)
    return Proof(segments_difference(before.graph, before.purity, after.graph, made.loops))


def _is_better_as_it_is(solution: Solution, executor: PeakPrediction, budget_bytes: int | None) -> bool:
    """Whether only the unmodified step keeps the budget; without a budget, whether no plan needs less."""
    if budget_bytes is None:
        return solution.status != "infeasible" and executor.peak_bytes <= solution.peak_bytes
    return solution.status == "infeasible" and executor.peak_bytes <= budget_bytes


def _as_it_is(
    target: TracedStep, tasks: TaskMap, loops: LoopCosts, executor: PeakPrediction, solution: Solution, how: Mapping[str, str], prove: bool
) -> Planned:
    plan_how = (
        "none: the step runs as it is, which keeps the budget, simulated, where no fixed order that was found does. TensorFlow fixes no "
        f"order (simulated: {format_bytes(executor.low_bytes)} to {format_bytes(executor.high_bytes)})"
    )
    traced = replace(solution, schedule=Schedule(tasks.costs.order), peak_bytes=executor.peak_bytes, overhead=0.0)
    how = {**how, "peak": how["original peak"], "plan": plan_how}
    plan = make_memory_plan(target, tasks, traced, executor.peak_bytes, how, loops)
    plan = replace(plan, **_before(executor, None), device_peaks={"one device": executor.peak_bytes})
    return Planned(None, replace(plan, timeline_after=plan.timeline_before), (), Proof("") if prove else None)


def _before(executor: PeakPrediction | None, saved: MemoryPlan | None) -> dict[str, Any]:
    if executor is None:
        return {"executor": None}
    timeline = executor.timeline or (None if saved is None else saved.timeline_before)
    known = {} if timeline is None else {"timeline_before": timeline}
    return {"executor": replace(executor, timeline=None), **known}


def prove_function(original: Original, function: Any, binding: Binding) -> Proof:
    """Prove by structure that a rewritten function computes the same as the original."""
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
    records: Obtained[list[bytes] | None],
    roles: Roles | None = None,
) -> Obtained[PeakPrediction | None]:
    """Return the peak of the unmodified step as TensorFlow runs it; None with a reason if unknown."""
    if len(parts) > 1:
        peak, reason = None, "not simulated, since the step runs on several devices"
    elif flat.uncompiled:
        peak, reason = None, "not known, since convolutions in it are compiled by XLA"
    elif earlier is not None and _fits_again(tasks, earlier):
        peak, reason = None, "not simulated, since the step follows the plan for other shapes"
    elif records.found is None:
        peak, reason = None, f"not simulated{records.how}"
    else:
        optimized = None if tasks.graph is flat.graph else tasks.graph
        peak, reason = plain_peak(target, flat.graph, tasks, records=records.found, roles=roles, optimized=optimized)
        if peak is not None and "not counted" in peak.how.get("not exact", ""):
            peak, reason = None, f"not known: {peak.how['not exact']}"
    return Obtained(peak, reason if peak else f"that of the order in which the step was traced; TensorFlow's own is {reason}")


def _fits_again(tasks: TaskMap, earlier: Planned) -> bool:
    schedule = reused_schedule(tasks, earlier.steps)
    return schedule is not None and known_solution(tasks.costs, schedule, earlier.plan.budget_bytes) is not None


def _curve(costs: CostGraph, solution: Solution, original_bytes: int, points: int, time_limit_s: float) -> tuple[CurvePoint, ...]:
    """Return peak and overhead for budgets between the unmodified peak and the plan, by falling peak."""
    step = (original_bytes - solution.peak_bytes) / (points + 1)
    budgets = [round(original_bytes - step * k) for k in range(1, points + 1)] if points else []
    solutions = curve(costs, budgets, time_limit_s=time_limit_s) if step >= 1 and budgets else ()
    between = [CurvePoint(s.peak_bytes, s.overhead) for s in solutions if s.status != "infeasible" and s.overhead <= solution.overhead]
    ends = [CurvePoint(original_bytes, 0.0), CurvePoint(solution.peak_bytes, solution.overhead)]
    merged = {p.peak_bytes: p for p in [*between, *ends]}
    return tuple(merged[b] for b in sorted(merged, reverse=True))
