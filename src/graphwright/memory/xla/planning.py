"""Plan a step that XLA compiles: the planner proposes schedules, XLA's buffer assignment judges them.

XLA fuses and orders operations by its own rules, so the memory of a schedule is known only after compiling. A few schedules, for smaller
and larger budgets of the planner's model, are applied (`xla/schedule.py`) and compiled; of those within the budget, the one with the least
work wins. If the step may be split, parts in their own order are tried first; the planner's model, corrected by earlier compilations,
limits how many are compiled.
"""

import math
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import Any

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.splitting import LARGE
from graphwright.analyze.xla_program import XlaMemory
from graphwright.errors import InfeasibleError
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity
from graphwright.memory.plan_cache import PlanCache, fingerprint, other_step, plan_key
from graphwright.memory.plan_step import Planned, prove_function
from graphwright.memory.planning import HOW_TIME, Progress, make_memory_plan, map_tasks, reach, without_recomputation
from graphwright.memory.request import Request, budget_for_xla
from graphwright.memory.search import in_its_own_order, reach_of_parts, reused_schedule
from graphwright.memory.verbs import Candidate, split_candidates
from graphwright.memory.xla.judge import Judge, judge_for
from graphwright.memory.xla.max_pools import rewrite_max_pool_gradients
from graphwright.memory.xla.schedule import Holding, apply_for_xla
from graphwright.plan.model import Schedule, Solution
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import known_solution, solve
from graphwright.report.memory_plan import CurvePoint, MemoryPlan, PlanRecipe
from graphwright.report.obtained import Obtained
from graphwright.report.units import format_bytes
from graphwright.run.traced_step import TracedStep
from graphwright.source.concrete_function import to_concrete_function
from graphwright.source.registry_rule import default_attributes
from graphwright.step.flatten import FlatStep, flat_step, stateful_op_types
from graphwright.transform.proof import Original, Proof

_ROUNDS, _QUICK_ROUNDS = 5, 2
_MOST_NODES = 25_000  # of a step in parts: compiling takes minutes beyond that
_QUICKLY_COMPILED = 6_000  # nodes of a step in parts that is tried with recomputing though another keeps the budget: minutes beyond that
_CLOSE = 0.06  # share of the budget that may stay unused
_OTHER_SHARES = (0.0, 0.2, 0.35, 0.5)  # that are tried where nothing keeps the budget
_BESIDE = 3  # more of them, halfway between the one that takes least and its neighbors
_APART = 0.02  # shares nearer to each other are one
_ROOM = 0.97  # share of what seems to fit that is asked for
_CHEAP = 0.03  # extra time as a share, below which nothing but parts is looked for
_HOPELESS = 1.25  # times the budget: what parts are expected to take at most, where it is worth compiling them
_HALFWAY = 0.7  # of the budget, that the bound of a step in parts leaves to be recomputed in
_MOST_SEARCHED = 2  # steps in parts that are planned where nothing keeps the budget in its own order


@dataclass(frozen=True)
class _Compiled:
    """A schedule as XLA compiled it."""

    solution: Solution
    memory: XlaMemory
    function: Any
    holding: Holding
    overhead: float
    search: "_Search"

    @property
    def nbytes(self) -> int:
        return self.memory.peak_bytes


class _Search:
    """Schedules of one step, given or split, compiled on demand.

    Args:
        step: the step to plan.
        largest: whether only the operations around the largest values are split.
        given: the step that it was made of, or the same.
        original: XLA's memory for the given step.
        time_limit_s: for each schedule.
    """

    def __init__(
        self,
        target: TracedStep,
        step: Candidate,
        given: Candidate,
        original: XlaMemory,
        time_limit_s: float,
        progress: Progress | None,
        *,
        largest: bool = False,
    ) -> None:
        self.target, self.step, self.given, self.original, self.largest = target, step, given, original, largest
        self.tasks = step.tasks
        self.judge = judge_for(target.device)
        self.holdings = self.judge.holdings
        self.found: list[_Compiled] = []
        self._time_limit_s, self._progress = time_limit_s, progress
        costs = self.tasks.costs
        self.device = target.device.name if target.device is not None else ""
        self.model_bytes = simulate(costs, Schedule(costs.order)).peak_bytes

    @property
    def model_temporary(self) -> int:
        """Bytes beyond the resident ones, by the planner's model."""
        return max(self.model_bytes - self.tasks.costs.resident_bytes, 1)

    @property
    def key(self) -> str:
        return plan_key(self.step.flat.graph, f"xla {self.step.how}".strip(), self.device)

    def own(self, budget_bytes: int) -> _Compiled:
        return self._held(in_its_own_order(self.tasks.costs).found, budget_bytes)

    def at(self, share: float, budget_bytes: int) -> _Compiled:
        """Compile a schedule for this share of the model's peak above the resident bytes, or the smallest schedule."""
        costs = self.tasks.costs
        resident = costs.resident_bytes
        budget = max(int(resident + share * (self.model_bytes - resident)), 1)
        return self._held(solve(costs, budget, time_limit_s=self._time_limit_s), budget_bytes)

    def _held(self, solution: Solution, budget_bytes: int) -> _Compiled:
        """Compile a schedule.

        If there are several ways to hold it, and the first does not keep the budget, the next is tried; the better one comes first from
        then on.
        """
        candidates: list[_Compiled] = []
        for holding in self.holdings:
            candidates.append(self.compiled(solution, holding))
            if candidates[-1].nbytes <= budget_bytes:
                break
        best = min(candidates, key=lambda candidate: candidate.nbytes)
        if len(candidates) > 1:
            self.holdings = (best.holding,)
        return best

    def known(self, schedule: Schedule, budget_bytes: int) -> _Compiled | None:
        solution = known_solution(self.tasks.costs, schedule, None)
        candidate = None if solution is None else self._held(solution, budget_bytes)
        return candidate if candidate is not None and candidate.nbytes <= budget_bytes else None

    def compiled(self, solution: Solution, holding: Holding) -> _Compiled:
        for candidate in self.found:
            if candidate.solution.schedule.steps == solution.schedule.steps and candidate.holding == holding:
                return replace(candidate, solution=solution)
        if self._progress is not None:
            parts = f" in {self.step.parts} parts" if self.step.parts > 1 else ""
            self._progress(len(self.found) / (_ROUNDS + 1), f"compiling plan {len(self.found) + 1}{parts}")
        graph = self._scheduled(solution, holding)
        rewrite_max_pool_gradients(graph)
        function = to_concrete_function(graph, self.step.flat.binding, jit_compile=True)
        memory = self.judge.memory(function, self.target.shapes)
        times = [sum(task.time for task in step.tasks.costs.tasks) for step in (self.step, self.given)]
        by_model = times[0] / times[1] * (1 + solution.overhead) - 1
        overhead = by_model if math.isnan(memory.time_s) else memory.time_s / self.original.time_s - 1
        candidate = _Compiled(solution, memory, function, holding, overhead, self)
        self.found.append(candidate)
        return candidate

    def prove(self, candidate: _Compiled) -> Proof:
        """Prove by structure that a candidate computes the same; gradients of max pools are rewritten first."""
        graph, flat = self._scheduled(candidate.solution, candidate.holding), self.given.flat
        original = Original(flat.graph, flat.purity, default_attributes, parts=self.step.parts > 1)
        proof = original.compare(graph, Purity(graph, stateful_op_types(graph)))
        pools = rewrite_max_pool_gradients(graph)
        if not (pools and proof.equal):
            return prove_function(original, candidate.function, flat.binding)
        rewritten = Original(graph, Purity(graph, stateful_op_types(graph)), default_attributes)
        return replace(prove_function(rewritten, candidate.function, flat.binding), pools=pools, parts=proof.parts)

    def _scheduled(self, solution: Solution, holding: Holding) -> Graph:
        tasks = _copy(self.tasks)
        apply_for_xla(tasks, solution.schedule, holding)
        return tasks.graph


class _Steps:
    """The given step, and its splits into 2, 4, 8, ... parts, made on demand."""

    def __init__(self, given: _Search, parts: Iterator[_Search]) -> None:
        self.given = given
        self._made: list[_Search] = []
        self._parts = parts

    def in_parts(self) -> Iterator[_Search]:
        yield from self._made
        for search in self._parts:
            self._made.append(search)
            yield search

    def before(self, search: _Search) -> _Search | None:
        fewer = [one for one in self._made if one.largest == search.largest and one.step.parts < search.step.parts]
        return fewer[-1] if fewer else None

    def __iter__(self) -> Iterator[_Search]:
        yield self.given
        yield from self.in_parts()

    @property
    def compiled(self) -> list[_Compiled]:
        return [candidate for search in (self.given, *self._made) for candidate in search.found]


def plan_xla_step(target: TracedStep, request: Request, *, earlier: Planned | None = None) -> Planned:
    """Plan a traced step that XLA compiles, and build the function.

    Args:
        request: what is asked for; a share is one of the unmodified step's peak by XLA's buffer assignment. The time limit holds for the
            planner, all rounds together; compiling comes on top.
        earlier: a plan for the same step with other shapes; it is followed if it fits.

    Returns:
        The plan; the plans that were compiled on the way are its curve.

    Raises:
        InfeasibleError: no plan that was compiled keeps the budget; the error carries the smallest peak.
        UnsupportedError: XLA cannot compile the step, the step calls back into Python, or the smallest peak is asked for.
        UnknownShapeError: see `flatten`.
    """
    budget, allow, saved, cache = budget_for_xla(request, target.name), request.allow, request.saved, request.cache
    time_limit_s, progress = request.time_limit_s, request.progress
    started = clock.perf_counter()
    flat = flat_step(target)

    def map_allowed(step: FlatStep) -> TaskMap:
        tasks = map_tasks(step, target.device)
        return tasks if "recompute" in allow or saved is not None else without_recomputation(tasks)

    given = Candidate(flat, map_allowed(flat))
    judge = judge_for(target.device)
    original = judge.memory(target.function, target.shapes)
    limit_s = time_limit_s / _ROUNDS
    search = _Search(target, given, given, original, limit_s, progress)
    candidates = _in_parts(given, map_allowed) if "split" in allow else iter(())
    parts = (_Search(target, step, given, original, limit_s, progress, largest=largest) for step, largest in candidates)
    steps = _Steps(search, parts)
    budget_bytes = budget.of(original.peak_bytes) if saved is None else saved.budget_bytes
    if earlier is not None and budget.is_share:
        budget_bytes = max(budget_bytes, earlier.plan.budget_bytes)  # a share is one of the largest batch
    costs = search.tasks.costs
    how = {**judge.how(original, judge.holdings[0]), "overhead": _how_time(judge), **flat.how}
    recipe = PlanRecipe(budget.plain, 0.0, tuple(sorted(allow)), time_limit_s, {}, device=judge.name)
    if original.peak_bytes <= budget_bytes:
        how["plan"] = "the step keeps the budget as it is"
        unchanged = _Compiled(in_its_own_order(costs).found, original, target.function, judge.holdings[0], 0.0, search)
        plan = _memory_plan(unchanged, [], original, budget_bytes, how, started)
        return Planned(
            target.function,
            replace(plan, recipe=recipe),
            tuple(costs.tasks[t].name for t in costs.order),
            Proof("") if request.prove else None,
        )
    asked = f"{budget_bytes} {sorted(allow)}"
    at_hand = _at_hand(steps, asked, budget_bytes, time_limit_s, cache, earlier) if saved is None else _saved(steps, saved)
    chosen, how["plan"] = at_hand or _find(steps, budget_bytes, map_allowed)
    if cache is not None and at_hand is None:
        step = chosen.search.step
        cache.write(_kept_as(search, asked, time_limit_s, step.parts, largest=chosen.search.largest), chosen.solution)
    in_parts, repeats = chosen.search.step.parts > 1, len(chosen.solution.schedule.steps) > len(chosen.search.tasks.costs.tasks)
    how |= judge.how(chosen.memory, chosen.holding, parts=in_parts, recomputed=repeats)
    plan = _memory_plan(chosen, steps.compiled, original, budget_bytes, how, started)
    plan = replace(plan, recipe=replace(recipe, schedules={chosen.search.key: chosen.solution.schedule.steps}))
    proof, tasks = chosen.search.prove(chosen) if request.prove else None, chosen.search.tasks.costs.tasks
    leaders = tuple(tasks[t].name for t in chosen.solution.schedule.steps)
    return Planned(chosen.function, plan, leaders, proof, equal_bits=chosen.search.step.parts == 1)


def _in_parts(given: Candidate, map_allowed: Callable[[FlatStep], TaskMap]) -> Iterator[tuple[Candidate, bool]]:
    """Yield the splits of the batch, and of the largest values only, that compile quickly."""
    seen = set[tuple[int, ...]]()
    for largest in (False, True):
        candidates = split_candidates(given, given.flat.binding.argument_count, map_allowed, largest=LARGE * largest)
        for step in takewhile(lambda step: len(step.flat.graph) <= _MOST_NODES, candidates):
            like = step.parts, len(step.flat.graph), step.peak_bytes, step.bound_bytes
            if like not in seen:  # where all that depends on the batch is there for the largest values, both are one
                seen.add(like)
                yield step, largest


def _how_time(judge: Judge) -> str:
    if judge.device is None:
        return f"{HOW_TIME}; XLA's fusions are not in it"
    return f"estimated from FLOPs and bytes moved by the compiled programs (roofline), by {judge.device.rates.how}"


def _kept_as(given: _Search, asked: str, time_limit_s: float, parts: int, *, largest: bool) -> str:
    how = f"{'largest ' * largest}{parts}"
    return f"xla-{fingerprint(given.step.flat.graph, f'{asked} {how}', time_limit_s, given.device)}"


def _at_hand(
    steps: _Steps, asked: str, budget_bytes: int, time_limit_s: float, cache: PlanCache | None, earlier: Planned | None
) -> Obtained[_Compiled] | None:
    """Return an earlier or a cached plan, if XLA finds that it keeps the budget."""
    before = () if earlier is None else steps if earlier.plan.rewritten else (steps.given,)
    for search in before:
        schedule = reused_schedule(search.tasks, earlier.steps) if earlier is not None else None
        candidate = None if schedule is None else search.known(schedule, budget_bytes)
        if candidate is not None:
            return Obtained(candidate, "taken over from the step's plan for other shapes")
    if cache is None:
        return None
    kinds = [(1, False), *((2**k, largest) for largest in (False, True) for k in range(1, _MOST_NODES.bit_length()))]
    keys = {kind: _kept_as(steps.given, asked, time_limit_s, kind[0], largest=kind[1]) for kind in kinds}
    cached = {kind for kind, key in keys.items() if cache.path(key).exists()}
    for search in steps if cached else ():
        kind = search.step.parts, search.largest
        solution = cache.read(keys[kind], search.tasks.costs, None) if kind in cached else None  # XLA judges it
        candidate = None if solution is None else search.known(solution.schedule, budget_bytes)
        if candidate is not None:
            return Obtained(candidate, f"read from the plan cache ({cache.path(keys[kind])})")
        cached.discard(kind)
        if not cached:
            break
    return None


def _saved(steps: _Steps, saved: MemoryPlan) -> Obtained[_Compiled]:
    for search in steps if saved.recipe is not None else ():
        schedule = saved.recipe.schedules.get(search.key, ()) if saved.recipe is not None else ()
        fits = bool(schedule) and max(schedule) < len(search.tasks.costs.tasks)
        candidate = search.known(Schedule(schedule), saved.budget_bytes) if fits else None
        if candidate is not None:
            return Obtained(candidate, "that of the saved plan")
    raise other_step(steps.given.target.name)


def _find(steps: _Steps, budget_bytes: int, map_allowed: Callable[[FlatStep], TaskMap]) -> Obtained[_Compiled]:
    """Return the plan with the least work that keeps the budget; raises `InfeasibleError` if none does."""
    in_parts = _fewest_parts(steps, budget_bytes)
    if in_parts is not None and in_parts.found.overhead <= _CHEAP:
        return in_parts
    other_shares = _OTHER_SHARES if in_parts is None else ()
    plans = [in_parts, _search(steps.given, steps.given, budget_bytes, rounds=_ROUNDS, other_shares=other_shares)]
    fewer = None if in_parts is None else steps.before(in_parts.found.search)
    if fewer is not None and len(fewer.step.flat.graph) <= _QUICKLY_COMPILED:  # that recompute, too
        plans.append(_search(fewer, steps.given, budget_bytes))
    if not any(plans):
        plans = [_search(search, steps.given, budget_bytes) for search in _promising(steps, budget_bytes)[:_MOST_SEARCHED]]
    fitting = [one for one in plans if one is not None]
    if not fitting:
        raise _infeasible(steps, budget_bytes, map_allowed)
    return min(fitting, key=lambda one: (one.found.overhead, one.found.nbytes))


def _promising(steps: _Steps, budget_bytes: int) -> list[_Search]:
    """Return the splits, most promising first: the smallest that recomputing may bring into the budget, then by lower bound."""
    given, original = steps.given, steps.given.original
    room = budget_bytes - original.peak_bytes + original.temporary_bytes
    wanted = _HALFWAY * given.model_temporary * room / max(original.temporary_bytes, 1)

    def order(search: _Search) -> tuple[bool, int]:
        costs = search.tasks.costs
        fits = search.step.bound_bytes - costs.resident_bytes <= wanted
        return not fits, len(search.step.flat.graph) if fits else search.step.bound_bytes

    return sorted(steps.in_parts(), key=order)


def _fewest_parts(steps: _Steps, budget_bytes: int) -> Obtained[_Compiled] | None:
    """Return the fewest parts that keep the budget in their own order, or None."""
    given, original = steps.given, steps.given.original
    least = dict.fromkeys((False, True), original.peak_bytes)
    correction = dict.fromkeys((False, True), original.temporary_bytes / given.model_temporary)
    dearer = set[bool]()  # where more parts took no less than fewer
    fixed = original.peak_bytes - original.temporary_bytes
    for search in steps.in_parts():
        largest = search.largest
        if largest in dearer or fixed + correction[largest] * search.model_temporary > _HOPELESS * budget_bytes:
            continue
        candidate = search.own(budget_bytes)
        if candidate.nbytes <= budget_bytes:
            return Obtained(candidate, f"split: {search.step.how}, in its own order")
        if candidate.nbytes >= least[largest]:
            dearer.add(largest)
        least[largest], correction[largest] = candidate.nbytes, (candidate.nbytes - fixed) / search.model_temporary
    return None


def _search(
    search: _Search, given: _Search, budget_bytes: int, *, rounds: int = _QUICK_ROUNDS, other_shares: Sequence[float] = ()
) -> Obtained[_Compiled] | None:
    """Compile a few plans, and return the one with the least work that keeps the budget, or None.

    Args:
        given: the search of the given step.
        rounds: how many are compiled at most.
        other_shares: shares of the model's peak to try if none of these keeps the budget.
    """
    original = search.original
    fixed = original.peak_bytes - original.temporary_bytes
    wanted = budget_bytes - fixed
    if wanted <= 0:
        search.at(0.0, budget_bytes)
        return None
    low, high = 0.0, 1.0  # shares: the largest known to keep the budget, the smallest known not to
    own = original.temporary_bytes * search.model_temporary / given.model_temporary
    if search.found:
        own = search.found[0].nbytes - fixed  # in its own order
    share = _ROOM * min(1.0, wanted / max(own, 1))
    tried: dict[float, int] = {}

    def at(share: float) -> _Compiled:
        compiled = search.at(share, budget_bytes)
        tried[share] = compiled.nbytes
        return compiled

    for _ in range(rounds):
        found = at(share)
        temporary = max(found.nbytes - fixed, 1)
        if found.nbytes <= budget_bytes:
            low = max(low, share)
            if not found.solution.overhead or found.nbytes >= (1 - _CLOSE) * budget_bytes:
                break
            share = min(share * wanted / temporary, (share + high) / 2)
        else:
            high = min(high, share)
            if found.solution.status == "infeasible":
                break  # the model knows no smaller one
            share = max(_ROOM * share * wanted / temporary, share / 2)
            share = share if share > low else (low + high) / 2
        if high - low < _APART:
            break
    fitting = [found for found in search.found if found.nbytes <= budget_bytes]
    # XLA may need more for the smallest plan of the model, which repeats most, than for another one.
    for share in chain(other_shares, _beside_the_least(tried) if other_shares else ()):
        if fitting:
            break
        found = at(share)
        fitting = [found] if found.nbytes <= budget_bytes else []
    if not fitting:
        return None
    chosen = min(fitting, key=lambda found: (found.overhead, found.nbytes))
    notes = ", ".join(f"{k} {v}" for k, v in chosen.solution.notes.items())
    step = f"split: {search.step.how}; " if search.step.how else ""
    return Obtained(chosen, f"{step}the least work of {len(search.found)} compiled plans; {notes}")


def _beside_the_least(tried: Mapping[float, int]) -> Iterator[float]:
    """Yield shares halfway between the best one so far and its neighbors, the wider gap first."""
    for _ in range(_BESIDE):
        least = min(tried, key=lambda share: tried[share])
        shares = sorted(tried)
        place = shares.index(least)
        neighbors = (shares[max(place - 1, 0)], shares[min(place + 1, len(shares) - 1)])
        other = max(neighbors, key=lambda share: abs(share - least))
        if abs(other - least) < _APART:
            return
        yield (least + other) / 2


def _infeasible(steps: _Steps, budget_bytes: int, map_allowed: Callable[[FlatStep], TaskMap]) -> InfeasibleError:
    search, original, compiled = steps.given, steps.given.original, steps.compiled
    smallest = min(compiled, key=lambda found: found.nbytes)
    fixed = original.peak_bytes - original.temporary_bytes
    reached = min(original.peak_bytes, smallest.nbytes)
    at_peak = smallest.memory.peak_op or "the peak"
    plans = f"{len(compiled)} plan{'s' * (len(compiled) > 1)}"
    parts = next(steps.in_parts(), None)
    others = None
    if parts is None:
        # What the model says of parts is not what XLA takes of them, but how it compares with what the model says of the step.
        scaled = round(budget_bytes / max(original.peak_bytes, 1) * search.model_bytes)
        others = reach_of_parts(search.given, search.given.flat.binding.argument_count, scaled, map_allowed)
    by_parts = f", {reach(others, of=search.model_bytes)}" if others is not None and others.peak_bytes < search.model_bytes else ""
    return InfeasibleError(
        f"no plan fits {format_bytes(budget_bytes)} as XLA compiles it: the smallest peak of {plans} is {format_bytes(reached)}",
        where=f"step {search.tasks.costs.name!r}, unmodified {format_bytes(original.peak_bytes)}",
        cause=f"{format_bytes(fixed)} are arguments, variables, results and constants; the smallest peak is where XLA runs {at_peak}",
        remedy=f"give a budget of {reached} bytes or more{by_parts}, a smaller batch, or jit_compile=False, "
        "for which the order is planned too",
        smallest_budget_bytes=reached,
    )


def _copy(tasks: TaskMap) -> TaskMap:
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
    chosen: _Compiled, compiled: Sequence[_Compiled], original: XlaMemory, budget_bytes: int, how: Mapping[str, str], started: float
) -> MemoryPlan:
    search = chosen.search
    given = None if search.step is search.given else search.given.tasks
    plan = make_memory_plan(search.target, search.tasks, chosen.solution, search.model_bytes, how, search.step.flat.loops, given)
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
        least_overhead=plan.least_overhead if search.target.device is None and given is None else 0.0,  # one of the model, not of programs
        lower_bound_reason=f"arguments, variables and constants: {100 * fixed / original.peak_bytes:.0f} % of the unmodified peak",
        planning_time_s=clock.perf_counter() - started,
        curve=_curve(compiled, ends),
        device_peaks={"one device": chosen.nbytes},
        rewritten=search.step.how,
    )


def _curve(found: Sequence[_Compiled], ends: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    most, least = ends
    between = [CurvePoint(c.nbytes, c.overhead) for c in found if least.peak_bytes < c.nbytes < most.peak_bytes]
    points: list[CurvePoint] = [least]
    for point in sorted(between, key=lambda p: p.peak_bytes):
        if point.overhead < points[-1].overhead:
            points.append(point)
    merged = {p.peak_bytes: p for p in [*points, most]}
    return tuple(merged[b] for b in sorted(merged, reverse=True))
