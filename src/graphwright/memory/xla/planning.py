"""Plan a step that XLA compiles: the planner proposes what to compute again, XLA's own buffer assignment judges.

How much memory a schedule takes under XLA is known when XLA has compiled it: it fuses operations and orders them by rules of its own. So
a few schedules, for smaller and larger budgets of the planner's model, are applied (`xla_schedule.py`) and compiled; of those that keep
the budget by XLA's figure, the one with the least work is taken.
"""

import math
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.xla_program import XlaMemory
from graphwright.errors import InfeasibleError
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity
from graphwright.memory.plan_cache import PlanCache, fingerprint, other_step, plan_key
from graphwright.memory.plan_step import Planned, prove_function
from graphwright.memory.planning import HOW_TIME, Progress, make_memory_plan, map_tasks
from graphwright.memory.search import reused_schedule
from graphwright.memory.xla.judge import Judge, judge_for
from graphwright.memory.xla.max_pools import rewrite_max_pool_gradients
from graphwright.memory.xla.schedule import Holding, apply_for_xla
from graphwright.plan.budget import Budget
from graphwright.plan.model import Schedule, Solution
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import known_solution, solve
from graphwright.report.obtained import Obtained
from graphwright.report.results import CurvePoint, MemoryPlan, PlanRecipe
from graphwright.report.units import format_bytes
from graphwright.run.traced_step import TracedStep
from graphwright.source.concrete_function import to_concrete_function
from graphwright.source.registry_rule import default_attributes
from graphwright.step.flatten import FlatStep, flat_step, stateful_op_types
from graphwright.transform.proof import Original, Proof

_ROUNDS = 5
_CLOSE = 0.06  # share of the budget that may stay unused
_OTHER_SHARES = (0.2, 0.35, 0.5)  # that are tried where nothing keeps the budget
_ROOM = 0.97  # share of what seems to fit that is asked for


@dataclass(frozen=True)
class _Candidate:
    """A schedule as XLA compiled it, held in a way."""

    solution: Solution
    memory: XlaMemory
    function: Any
    holding: Holding
    overhead: float

    @property
    def nbytes(self) -> int:
        return self.memory.peak_bytes


class _Search:
    """Schedules of one step, compiled as they are asked for."""

    def __init__(self, target: TracedStep, flat: FlatStep, time_limit_s: float, progress: Progress | None) -> None:
        self.target, self.flat = target, flat
        self.tasks = map_tasks(flat, target.device)
        self.judge = judge_for(target.device)
        self.holdings = self.judge.holdings
        self.original = self.judge.memory(target.function, target.shapes)
        self.found: list[_Candidate] = []
        self._time_limit_s, self._progress = time_limit_s, progress
        costs = self.tasks.costs
        self.device = target.device.name if target.device is not None else ""
        self.model_bytes = simulate(costs, Schedule(costs.order)).peak_bytes

    def at(self, share: float, budget_bytes: int) -> _Candidate:
        """A schedule for this share of the model's peak above the resident bytes; the smallest one found where none keeps it.

        Where there are several ways to hold it, and the first one does not keep the budget, the next one is tried, and whichever took less
        is the first one from then on.
        """
        costs = self.tasks.costs
        resident = costs.resident_bytes
        budget = max(int(resident + share * (self.model_bytes - resident)), 1)
        solution = solve(costs, budget, time_limit_s=self._time_limit_s)
        found: list[_Candidate] = []
        for holding in self.holdings:
            found.append(self.compiled(solution, holding))
            if found[-1].nbytes <= budget_bytes:
                break
        best = min(found, key=lambda candidate: candidate.nbytes)
        if len(found) > 1:
            self.holdings = (best.holding,)
        return best

    def known(self, schedule: Schedule) -> _Candidate | None:
        """A schedule that is at hand; None where it does not fit the step."""
        solution = known_solution(self.tasks.costs, schedule, None)
        return None if solution is None else min((self.compiled(solution, h) for h in self.holdings), key=lambda found: found.nbytes)

    def compiled(self, solution: Solution, holding: Holding) -> _Candidate:
        """XLA's verdict; what it has compiled before is not compiled again."""
        for candidate in self.found:
            if candidate.solution.schedule.steps == solution.schedule.steps and candidate.holding == holding:
                return replace(candidate, solution=solution)
        if self._progress is not None:
            self._progress(len(self.found) / (_ROUNDS + 1), f"compiling plan {len(self.found) + 1}")
        graph = self._scheduled(solution, holding)
        rewrite_max_pool_gradients(graph)
        function = to_concrete_function(graph, self.flat.binding, jit_compile=True)
        memory = self.judge.memory(function, self.target.shapes)
        overhead = solution.overhead if math.isnan(memory.time_s) else memory.time_s / self.original.time_s - 1
        candidate = _Candidate(solution, memory, function, holding, overhead)
        self.found.append(candidate)
        return candidate

    def prove(self, candidate: _Candidate) -> Proof:
        """The proof by structure that a candidate computes what the step does; for gradients of max pools, after their rewriting."""
        graph = self._scheduled(candidate.solution, candidate.holding)
        original = Original(self.flat.graph, self.flat.purity, default_attributes)
        proof = original.compare(graph, Purity(graph, stateful_op_types(graph)))
        pools = rewrite_max_pool_gradients(graph)
        if not (pools and proof.equal):
            return prove_function(original, candidate.function, self.flat.binding)
        rewritten = Original(graph, Purity(graph, stateful_op_types(graph)), default_attributes)
        return replace(prove_function(rewritten, candidate.function, self.flat.binding), pools=pools)

    def _scheduled(self, solution: Solution, holding: Holding) -> Graph:
        tasks = _copy(self.tasks)
        apply_for_xla(tasks, solution.schedule, holding)
        return tasks.graph


def plan_xla_step(
    target: TracedStep,
    budget: Budget,
    *,
    time_limit_s: float,
    progress: Progress | None = None,
    cache: PlanCache | None = None,
    earlier: Planned | None = None,
    prove: bool = True,
    saved: MemoryPlan | None = None,
) -> Planned:
    """Plan a traced step that XLA compiles, and build the function.

    Args:
        budget: bytes, or a share of the unmodified step's peak by XLA's buffer assignment.
        time_limit_s: for the planner, all rounds together; compiling comes on top.
        earlier: a plan for the same step with other shapes; it is followed when it fits.
        prove: whether to compare what the function computes with the original.
        saved: a plan that is followed, as it is, instead of looking for one.

    Returns:
        The plan; the ones that were compiled on the way are its curve.

    Raises:
        InfeasibleError: no plan that was compiled keeps the budget; the error carries the smallest peak.
        UnsupportedError: XLA cannot compile the step, or it calls back into Python.
        UnknownShapeError: see `flatten`.
    """
    started = clock.perf_counter()
    flat = flat_step(target)
    search = _Search(target, flat, time_limit_s / _ROUNDS, progress)
    original, judge = search.original, search.judge
    budget_bytes = budget.of(original.peak_bytes) if saved is None else saved.budget_bytes
    if earlier is not None and budget.is_share:
        budget_bytes = max(budget_bytes, earlier.plan.budget_bytes)  # a share is one of the largest batch
    costs = search.tasks.costs
    how = {**judge.how(original, judge.holdings[0]), "overhead": _how_time(judge), **flat.how}
    if original.peak_bytes <= budget_bytes:
        same = known_solution(costs, Schedule(costs.order), search.model_bytes)
        assert same is not None
        how["plan"] = "the step keeps the budget as it is"
        unchanged = _Candidate(same, original, target.function, judge.holdings[0], 0.0)
        plan = _memory_plan(search, unchanged, original, budget_bytes, how, started)
        plan = replace(plan, recipe=PlanRecipe(budget.plain, 0.0, (), time_limit_s, {}, device=judge.name))
        return Planned(target.function, plan, tuple(costs.tasks[t].name for t in costs.order), Proof("") if prove else None)
    key = f"xla-{fingerprint(flat.graph, budget_bytes, time_limit_s, search.device)}" if cache is not None else ""
    at_hand = _at_hand(search, budget_bytes, cache, key, earlier) if saved is None else _saved(search, saved)
    chosen, how["plan"] = at_hand or _search(search, original, budget_bytes)
    if cache is not None and at_hand is None:
        cache.write(key, chosen.solution)
    how |= judge.how(chosen.memory, chosen.holding)
    plan = _memory_plan(search, chosen, original, budget_bytes, how, started)
    schedules = {plan_key(flat.graph, "xla", search.device): chosen.solution.schedule.steps}
    plan = replace(plan, recipe=PlanRecipe(budget.plain, 0.0, (), time_limit_s, schedules, device=judge.name))
    proof = search.prove(chosen) if prove else None
    return Planned(chosen.function, plan, tuple(costs.tasks[t].name for t in chosen.solution.schedule.steps), proof)


def _how_time(judge: Judge) -> str:
    if judge.device is None:
        return f"{HOW_TIME}; XLA's fusions are not in it"
    return f"estimated from FLOPs and bytes moved by the compiled programs (roofline), by {judge.device.rates.how}"


def _at_hand(search: _Search, budget_bytes: int, cache: PlanCache | None, key: str, earlier: Planned | None) -> Obtained[_Candidate] | None:
    """An earlier plan, or one that is kept on disk, where XLA finds that it keeps the budget."""
    schedule = reused_schedule(search.tasks, earlier.steps) if earlier is not None else None
    if schedule is not None:
        found = search.known(schedule)
        if found is not None and found.nbytes <= budget_bytes:
            return Obtained(found, "taken over from the step's plan for other shapes")
    solution = cache.read(key, search.tasks.costs, None) if cache is not None else None  # XLA judges it
    if solution is not None and cache is not None:
        found = search.known(solution.schedule)
        if found is not None and found.nbytes <= budget_bytes:
            return Obtained(found, f"read from the plan cache ({cache.path(key)})")
    return None


def _saved(search: _Search, saved: MemoryPlan) -> Obtained[_Candidate]:
    steps = saved.recipe.schedules.get(plan_key(search.flat.graph, "xla", search.device), ()) if saved.recipe is not None else ()
    found = search.known(Schedule(steps)) if max(steps, default=-1) < len(search.tasks.costs.tasks) else None
    if found is None or found.nbytes > saved.budget_bytes:
        raise other_step(search.target.name)
    return Obtained(found, "that of the saved plan")


def _search(search: _Search, original: XlaMemory, budget_bytes: int) -> Obtained[_Candidate]:
    """The plan with the least work that keeps the budget, of a few that are compiled.

    Raises:
        InfeasibleError: none does.
    """
    fixed = original.peak_bytes - original.temporary_bytes
    wanted = budget_bytes - fixed
    if wanted <= 0:
        raise _infeasible(search, original, budget_bytes, search.at(0.0, budget_bytes))
    low, high = 0.0, 1.0  # shares: the largest known to keep the budget, the smallest known not to
    share = _ROOM * min(1.0, wanted / max(original.temporary_bytes, 1))
    for _ in range(_ROUNDS):
        found = search.at(share, budget_bytes)
        temporary = max(found.nbytes - fixed, 1)
        if found.nbytes <= budget_bytes:
            low = max(low, share)
            if not found.solution.overhead or found.nbytes >= (1 - _CLOSE) * budget_bytes:
                break
            share = min(share * wanted / temporary, (share + high) / 2)
        else:
            high = min(high, share)
            if found.solution.status == "infeasible" or temporary <= 0:
                break  # the model knows no smaller one
            share = max(_ROOM * share * wanted / temporary, share / 2)
            share = share if share > low else (low + high) / 2
        if high - low < 0.02:
            break
    fitting = [found for found in search.found if found.nbytes <= budget_bytes]
    for share in (0.0, *_OTHER_SHARES):  # XLA may need more for the smallest plan of the model, which repeats most, than for another one
        if fitting:
            break
        found = search.at(share, budget_bytes)
        fitting = [found] if found.nbytes <= budget_bytes else []
    if not fitting:
        raise _infeasible(search, original, budget_bytes, min(search.found, key=lambda found: found.nbytes))
    chosen = min(fitting, key=lambda found: (found.overhead, found.nbytes))
    notes = ", ".join(f"{k} {v}" for k, v in chosen.solution.notes.items())
    return Obtained(chosen, f"the least work of {len(search.found)} compiled plans; {notes}")


def _infeasible(search: _Search, original: XlaMemory, budget_bytes: int, smallest: _Candidate) -> InfeasibleError:
    fixed = original.peak_bytes - original.temporary_bytes
    reached = min(original.peak_bytes, smallest.nbytes)
    at_peak = smallest.memory.peak_op or "the peak"
    plans = f"{len(search.found)} plan{'s' * (len(search.found) > 1)}"
    return InfeasibleError(
        f"no plan fits {format_bytes(budget_bytes)} as XLA compiles it: the smallest peak of {plans} is {format_bytes(reached)}",
        where=f"step {search.tasks.costs.name!r}, unmodified {format_bytes(original.peak_bytes)}",
        cause=f"{format_bytes(fixed)} are arguments, variables, results and constants; the smallest peak is where XLA runs {at_peak}",
        remedy=f"give a budget of {reached} bytes or more, a smaller batch, or jit_compile=False, for which the order is planned too",
        smallest_budget_bytes=reached,
    )


def _copy(tasks: TaskMap) -> TaskMap:
    """The same tasks of a graph of its own, to rewrite."""
    copied = copy_graph(tasks.graph)
    node_of, value_of = copied.node_of, copied.value_of
    return replace(
        tasks,
        graph=copied.graph,
        nodes=tuple(tuple(node_of[node] for node in nodes) for nodes in tasks.nodes),
        values=tuple(value_of[value] for value in tasks.values),
        task_of={node_of[node]: t for node, t in tasks.task_of.items()},
        buffer_of={value_of[value]: b for value, b in tasks.buffer_of.items()},
        root_of={value_of[value]: value_of[root] for value, root in tasks.root_of.items()},
        resident={value_of[value]: nbytes for value, nbytes in tasks.resident.items()},
    )


def _memory_plan(
    search: _Search, chosen: _Candidate, original: XlaMemory, budget_bytes: int, how: Mapping[str, str], started: float
) -> MemoryPlan:
    """What users see: the planner's model of the step, with XLA's figures in the place of the simulated ones."""
    plan = make_memory_plan(search.target, search.tasks, chosen.solution, search.model_bytes, how, search.flat.loops)
    fixed = original.argument_bytes + original.constant_bytes
    unchanged = chosen.function is search.target.function
    ends = [CurvePoint(original.peak_bytes, 0.0), CurvePoint(chosen.nbytes, chosen.overhead)]
    return replace(
        plan,
        status="unchanged" if unchanged else "feasible",
        budget_bytes=budget_bytes,
        peak_bytes=chosen.nbytes,
        resident_bytes=fixed,
        original_peak_bytes=original.peak_bytes,
        lower_bound_bytes=fixed,
        overhead=chosen.overhead,
        least_overhead=plan.least_overhead if search.target.device is None else 0.0,  # is one of the model, not of programs
        lower_bound_reason=f"arguments, variables and constants: {100 * fixed / original.peak_bytes:.0f} % of the unmodified peak",
        planning_time_s=clock.perf_counter() - started,
        curve=_curve(search.found, ends),
        device_peaks={"one device": chosen.nbytes},
    )


def _curve(found: Sequence[_Candidate], ends: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """The plans that were compiled on the way, by falling peak and rising work."""
    most, least = ends
    between = [CurvePoint(c.nbytes, c.overhead) for c in found if least.peak_bytes < c.nbytes < most.peak_bytes]
    points: list[CurvePoint] = [least]
    for point in sorted(between, key=lambda p: p.peak_bytes):
        if point.overhead < points[-1].overhead:
            points.append(point)
    merged = {p.peak_bytes: p for p in [*points, most]}
    return tuple(merged[b] for b in sorted(merged, reverse=True))
