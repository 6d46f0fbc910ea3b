"""The search for the cheapest plan of a step: first of the given step, then of the steps that verbs make of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from typing import Any

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.loop_pairs import find_pairs
from graphwright.analyze.splitting import LARGE, QUITE_LARGE
from graphwright.ir.graph import Graph
from graphwright.memory.offload import Offload
from graphwright.memory.parts import Part, same_work, split
from graphwright.memory.plan_cache import fingerprint, other_step, plan_key
from graphwright.memory.planning import map_tasks, room_bytes, solve_with_room
from graphwright.memory.request import Request
from graphwright.memory.segments import segment_candidates
from graphwright.memory.verbs import BIT_FOR_BIT, Candidate, Verb, split_candidates, summed_candidate
from graphwright.plan.bound import lower_bound
from graphwright.plan.copies import Copies, all_copies, apart, cheaper_than_running_again, copied_buffers, most_copied_bytes, together
from graphwright.plan.model import CostGraph, Schedule, Solution, Trace
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import known_solution, minimum_within
from graphwright.plan.solvers.problem import now
from graphwright.report.memory_plan import PlanRecipe
from graphwright.report.obtained import Obtained
from graphwright.step.flatten import FlatStep

_DEAREST = 0.5  # extra time as a share, beyond which loops run in segments within parts of the batch, and time that is over does not count
_MOST_PARTS_IN_SEGMENTS = 4
_CLEARLY, _SURELY = 0.75, 0.5  # of what the budget leaves free: a bound above it is seldom reached, and one below it mostly
_MOST_SOLVES = 2  # how many rewritten steps of a verb are planned
_GIVEN, _LEAST_SHARE = 0.4, 0.1  # of the time allowed: for the step as it is, where verbs may win, and at least for each step they make
_CHEAP = 0.03  # extra time as a share, up to which no loops are run in segments
_QUICKLY_SPLIT = 6_000  # nodes of a step that is split only to say what that would reach
_PARTS_TO_SAY = 4  # and twice as many, where these are not surely enough
_TO_SAY = 0.25  # of the time allowed: to plan what is only said
_SHARES = (0.0, 0.3, 0.5, 0.7, 0.9)  # of the smallest peak without copies: what copies are made for, up to the first they have time for
_FOREVER = float("inf")
MapTasks = Callable[[FlatStep], TaskMap]


@dataclass(frozen=True)
class Search:
    """The search for a plan, and its solutions so far.

    Attributes:
        budget_bytes: what a device may hold; None for the smallest peak.
        asked: the key of the budget in the plan cache: a share counts as a share.
        steps: names of the tasks in the order of an earlier plan for the same step with other shapes.
        refused: descriptions of the rewritten steps that cannot run.
        solutions: for each planned graph: the graph, how it was rewritten, the device, and its plan.
    """

    request: Request
    budget_bytes: int | None
    asked: int | float | str
    steps: Sequence[str] = ()
    refused: Collection[str] = ()
    solutions: list[tuple[Graph, str, str, Solution]] = field(default_factory=list[tuple[Graph, str, str, Solution]])

    def solve(self, part: Part, graph: Graph, *, how: str = "", **options: Any) -> Obtained[Solution]:
        """Return a plan for one device and record it.

        It comes from a saved plan, an earlier plan, the plan cache, or the solvers. Raises `ArgumentError` if the saved plan is for another
        step.
        """
        if how in self.refused:
            return Obtained(replace(in_its_own_order(part.tasks.costs).found, status="infeasible"), "refused")
        saved = None if self.request.saved is None else self.request.saved.recipe
        if saved is None or (self.refused and plan_key(graph, how, part.device) not in saved.schedules):
            obtained = self._solve(part, graph, how=how, **options)
        else:
            obtained = self._followed(saved, graph, part, how)
        self.solutions.append((graph, how, part.device, obtained.found))
        return obtained

    def recipe(self) -> PlanRecipe:
        """Return the schedules of all plans, for a plan file. Call it before a schedule is applied."""
        request, offload = self.request, self.request.offload
        solutions = {plan_key(graph, how, device): solution for graph, how, device, solution in self.solutions}
        schedules = {key: solution.schedule.steps for key, solution in solutions.items()}
        exceeding = tuple(key for key, solution in solutions.items() if solution.status == "infeasible")
        to, engine = (offload.to, offload.engine) if offload is not None else ("", None)
        allow = tuple(sorted(request.allow))
        return PlanRecipe(request.budget_in_words, request.max_overhead, allow, request.time_limit_s, schedules, exceeding, to, engine)

    def _followed(self, saved: PlanRecipe, graph: Graph, part: Part, how: str) -> Obtained[Solution]:
        costs, key = part.tasks.costs, plan_key(graph, how, part.device)
        if key not in saved.schedules and how:  # a step made by a verb that the search did not come to
            return Obtained(replace(in_its_own_order(costs).found, status="infeasible"), "not in the saved plan")
        if key not in saved.schedules:
            raise other_step(part.tasks.graph.name)
        steps = saved.schedules[key]
        fits = max(steps, default=-1) < len(costs.tasks)
        solution = known_solution(costs, Schedule(steps), None if key in saved.exceeding else self.budget_bytes) if fits else None
        if solution is None:
            raise other_step(part.tasks.graph.name)
        status = "infeasible" if key in saved.exceeding else solution.status
        words = "as it was found at first" if self.refused else "that of the saved plan"
        return Obtained(replace(solution, status=status, budget_bytes=self.budget_bytes or solution.budget_bytes), words)

    def _solve(
        self, part: Part, graph: Graph, *, how: str = "", slower: float = 0.0, within_s: float | None = None, longest_s: float | None = None
    ) -> Obtained[Solution]:
        """Return an earlier plan, a cached plan, or a new one.

        Args:
            slower: extra time of the rewritten step, each task run once, as a share.
            within_s: share of the time limit for this plan; by default all of it.
            longest_s: time limit until a first plan is found; see `graphwright.plan.solve.solve`.
        """
        within_s = self.request.time_limit_s if within_s is None else max(within_s, _LEAST_SHARE * self.request.time_limit_s)
        longest_s = None if longest_s is None else max(longest_s, within_s)
        costs, cache = part.tasks.costs, self.request.cache
        schedule = reused_schedule(part.tasks, self.steps)
        solution = None if schedule is None else known_solution(costs, schedule, self.budget_bytes)
        if solution is not None:
            return Obtained(solution, "taken over from the step's plan for other shapes")
        most = sum(task.time for task in costs.tasks) * max((1 + self.request.max_overhead) / (1 + slower), 1.0)
        key, cached = "", list[Solution]()
        if cache is not None:
            key = fingerprint(graph, f"{self.asked} {how}".strip(), self.request.time_limit_s, part.device)
            room = room_bytes(costs, len(graph), self.budget_bytes or 0)
            cached = [plan for plan in cache.other_plans(key, costs) if self._serves(plan, room, most)]
            asked_before = cache.read(key, costs, self.budget_bytes)
            if asked_before is not None:
                return Obtained(self._best_of([asked_before, *cached]), f"read from the plan cache ({cache.path(key)})")
        if self.request.progress is not None and how:
            self.request.progress(0.0, f"planning {how}")
        if self.budget_bytes is None:
            solution = minimum_within(costs, most, time_limit_s=within_s, progress=self.request.progress, longest_s=longest_s)
        else:
            solution = solve_with_room(costs, len(graph), self.budget_bytes, within_s, self.request.progress, longest_s=longest_s)
        if cache is not None and solution.status != "infeasible":
            cache.write(key, solution)
        if cached and self._price(best := self._best_of(cached)) < self._price(solution):
            return Obtained(best, "a plan that was kept for another budget costs less than what was found for this one")
        return Obtained(solution, ", ".join(f"{k} {v}" for k, v in solution.notes.items()))

    def devices(self, parts: Sequence[Part], originals: Sequence[int], graph: Graph) -> tuple[list[Solution], str]:
        """Return a plan for each device, up to the first without one; and how the last one was found.

        Devices with the same work share a plan. A host without a budget keeps its original order.
        """
        shared = replace(self, request=replace(self.request, time_limit_s=self.request.time_limit_s / len(parts)))
        solutions: list[Solution] = []
        how = "the plan of another device"
        for k, part in enumerate(parts):
            costs = part.tasks.costs
            alike = (s.schedule for other, s in zip(parts, solutions, strict=False) if other.budgeted and same_work(other, part))
            schedule = next(alike, None) if part.budgeted else Schedule(costs.order)
            solution = known_solution(costs, schedule, self.budget_bytes if part.budgeted else originals[k]) if schedule else None
            if solution is None:
                solution, how = shared.solve(part, graph)
            solutions.append(solution)
            if solution.status == "infeasible":
                break
        return solutions, how

    def one_device(
        self, given: Candidate, traced: Candidate, argument_count: int, map_allowed: MapTasks, allow: Collection[Verb]
    ) -> tuple[Candidate, Obtained[Solution]]:
        """Return the cheapest plan, and the step that it is for.

        The default verbs find the same plan whatever else is allowed. If they do not keep the budget, the step with running sums of
        gradients gets as much time again.

        Args:
            traced: the step whose operations the verbs understand; the given step may have fused ones.
        """
        best = self._from(given, traced, argument_count, map_allowed, allow)
        if self._is_enough(best) and best[0].verb in BIT_FOR_BIT:
            return best
        summed = summed_candidate(given, map_allowed)
        if self._is_enough(best):
            allow = set(allow).intersection(BIT_FOR_BIT)
        if self._price(best[1].found) <= summed.slower or summed is given or summed.how in self.refused:
            return best
        traced = summed if traced is given else summed_candidate(traced, map_allowed)
        both = best, self._from(summed, traced, argument_count, map_allowed, allow)
        return min(both, key=lambda each: (self._price(each[1].found), each[1].found.peak_bytes))

    def _from(
        self, start: Candidate, traced: Candidate, argument_count: int, map_allowed: MapTasks, allow: Collection[Verb]
    ) -> tuple[Candidate, Obtained[Solution]]:
        has_loops = "segment" in allow and bool(find_pairs(start.flat.graph, start.flat.purity)[0])
        budget, costs, limit_s = self.budget_bytes, start.tasks.costs, self.request.time_limit_s
        first_s = limit_s * (_GIVEN if has_loops or self.request.offload is not None else 1.0)
        needs_parts = "split" in allow and (budget is None or simulate(costs, Schedule(costs.order)).peak_bytes > budget)
        time, solve = _Shares(limit_s, first_s), partial(self.solve, split(start.tasks, None)[0], start.flat.graph)
        plan = solve(how=start.how, slower=start.slower, within_s=first_s, longest_s=0.0 if needs_parts else None)
        best = start, _of_step(start, plan)
        if has_loops and self._price(best[1].found) > _CHEAP:
            best = self._better(segment_candidates(start, map_allowed, budget or 0), best, time, _MOST_SOLVES)
        if needs_parts:  # in time of their own, so that what is found without is the same
            time = _Shares(limit_s, limit_s * _GIVEN)
        for largest, least, solves in ((0, 0.0, 5), (LARGE, 0.0, 3), (QUITE_LARGE, _DEAREST, _MOST_SOLVES)) if needs_parts else ():
            if self._price(best[1].found) > (_DEAREST if time.is_over and self._is_enough(best) else least):
                candidates = split_candidates(traced, argument_count, map_allowed, largest=largest)
                best = self._better(candidates, best, time, solves)
        if has_loops and "split" in allow and self._price(best[1].found) > _DEAREST:
            parts = split_candidates(traced, argument_count, map_allowed)
            few = takewhile(lambda candidate: candidate.parts <= _MOST_PARTS_IN_SEGMENTS, parts)
            both = (in_segments for candidate in few for in_segments in segment_candidates(candidate, map_allowed, self.budget_bytes or 0))
            best = self._better(both, best, time, _MOST_SOLVES)
        if needs_parts and not self._keeps(best):  # without parts it would have had longer
            best = self._cheaper(start, solve(how=start.how, slower=start.slower, within_s=first_s), best)
        offload, without = self.request.offload, best[0]
        if offload is not None and self._price(best[1].found) > 0:
            best = self._offloaded(start, offload, best, time)
        if offload is not None and without is not start and self._price(best[1].found) > 0:
            best = self._offloaded(without, offload, best, time)
        return best

    def _offloaded(
        self, step: Candidate, offload: Offload, best: tuple[Candidate, Obtained[Solution]], time: _Shares
    ) -> tuple[Candidate, Obtained[Solution]]:
        """Return the better of the best plan and plans that copy buffers away: those that are expensive to recompute, or all."""
        part = split(step.tasks, None)[0]
        if part.tasks is not step.tasks:  # collectives, whose order is a matter of all devices
            return best
        costs, bound = step.tasks.costs, lower_bound(step.tasks.costs)
        if self.budget_bytes is not None and bound.nbytes > self.budget_bytes:  # one task alone needs more
            return best
        once = sum(task.time for task in costs.tasks)
        room = room_bytes(costs, len(step.flat.graph), self.budget_bytes or 0)
        prices = offload.prices(step.flat, step.tasks)
        tried: list[set[int]] = [set()]
        for choose in (cheaper_than_running_again, partial(cheaper_than_running_again, with_inputs=False), all_copies):
            copies = choose(costs, prices)
            if set(copies) in tried or (choose is all_copies and self._keeps(best)):
                continue
            tried.append(set(copies))
            how = f"{step.how}; copies of {len(copies)} buffers: {hash(tuple(copies)):x}".removeprefix("; ")
            copying = replace(part, tasks=replace(step.tasks, costs=apart(costs, copies)))
            within_s, longest_s = time.take(1 / (_MOST_SOLVES + 2 - len(tried))), 0.0 if self._keeps(best) else None
            plan = self.solve(copying, step.flat.graph, how=how, slower=step.slower, within_s=within_s, longest_s=longest_s)
            asked = [share * best[1].found.peak_bytes for share in _SHARES] if self.budget_bytes is None else [self.budget_bytes]
            put = self._put_together(step, copies, plan.found.schedule, [int(nbytes) - room for nbytes in asked])
            if put is None:
                continue
            copied, schedule, trace = put
            held = most_copied_bytes(copied, schedule)
            fits = self.budget_bytes is None or (trace.peak_bytes <= self.budget_bytes and (offload.on_disk or held <= self.budget_bytes))
            solution = replace(
                plan.found,
                schedule=schedule,
                peak_bytes=trace.peak_bytes,
                time=trace.time,
                overhead=trace.time / once - 1,
                status="feasible" if fits else "infeasible",
                lower_bound=bound,
            )
            copying_step = replace(
                step, tasks=replace(step.tasks, costs=copied), offload=offload, how=offload.words(step.how, copied, held)
            )
            if copied_buffers(copied):
                best = self._cheaper(copying_step, Obtained(solution, plan.how), best)
        return best

    def _put_together(
        self, step: Candidate, copies: Copies, schedule: Schedule, budgets: Iterable[int]
    ) -> tuple[CostGraph, Schedule, Trace] | None:
        """Return the copies for the first budget; for the smallest peak, for the first one whose copies take the time allowed at most."""
        once = sum(task.time for task in step.tasks.costs.tasks)
        for nbytes in budgets:
            copied, joined = together(step.tasks.costs, copies, schedule, nbytes)
            trace = simulate(copied, joined)
            if self.budget_bytes is not None or (1 + step.slower) * trace.time / once - 1 <= self.request.max_overhead:
                return copied, joined, trace
        return None

    def _price(self, solution: Solution) -> float:
        """Return the cost of a plan: its overhead, infinite if infeasible; without a budget, its peak."""
        if solution.status == "infeasible":
            return _FOREVER
        return solution.peak_bytes if self.budget_bytes is None else solution.overhead

    def _better(
        self, candidates: Iterable[Candidate], best: tuple[Candidate, Obtained[Solution]], time: _Shares, solves_left: int
    ) -> tuple[Candidate, Obtained[Solution]]:
        """Return the cheapest of the best plan so far and the plans of rewritten steps.

        All candidates are first judged in their own order, without a search, up to the first that keeps the budget. Those before it that
        can still win are then planned: each task once takes less time than the best plan, and the lower bound is within the budget. If
        nothing keeps the budget, the plan with the smallest peak is returned. Without a budget the last, fastest candidates are planned.

        Args:
            solves_left: how many steps may be planned in the remaining time, for these and later candidates.
        """
        budget, candidates = self.budget_bytes, (candidate for candidate in candidates if candidate.how not in self.refused)
        if budget is None:
            candidates = list(takewhile(lambda candidate: candidate.slower <= self.request.max_overhead, candidates))[-_MOST_SOLVES:]
        worth, tight = list[Candidate](), list[Candidate]()
        for candidate in candidates:
            costs, graph = candidate.tasks.costs, candidate.flat.graph
            keeps = self._keeps(best)
            if budget is not None and (
                candidate.slower >= self._price(best[1].found)
                or (time.is_over and (self._price(best[1].found) <= _DEAREST or (not keeps and len(worth) == _MOST_SOLVES)))
            ):
                break
            fits = budget is not None and candidate.peak_bytes + room_bytes(costs, len(graph), budget) <= budget
            if fits or budget is None or (not keeps and candidate.peak_bytes < best[1].found.peak_bytes):
                best = self._cheaper(candidate, in_its_own_order(costs, budget), best)
            if fits:
                break
            if len(worth) < _MOST_SOLVES and _may_fit(candidate, budget):
                worth.append(candidate)
            if candidate.bound_bytes < best[1].found.peak_bytes:
                tight = [candidate]
        for place, candidate in enumerate(worth if self._keeps(best) else worth[::-1] or tight):  # at first what is easiest to find
            price = self._price(best[1].found)
            is_late = time.unspent_s <= 0 or (place > 0 and time.is_over and price <= _DEAREST)
            if budget is not None and (candidate.slower >= price or is_late):
                break
            part, share_s, begun = split(candidate.tasks, None)[0], time.take(1 / (solves_left - place)), now()
            how, slower, longest_s = candidate.how, candidate.slower, 0.0 if self._keeps(best) or not worth else time.unspent_s
            plan = self.solve(part, candidate.flat.graph, how=how, slower=slower, within_s=share_s, longest_s=longest_s)
            time.unspent_s -= now() - begun
            best = self._cheaper(candidate, plan, best)
        return best

    def _serves(self, plan: Solution, room: int, most_time: float) -> bool:
        return plan.time <= most_time if self.budget_bytes is None else plan.peak_bytes + room <= self.budget_bytes

    def _best_of(self, plans: Sequence[Solution]) -> Solution:
        best = min(plans, key=lambda plan: (self._price(plan), plan.peak_bytes))
        return best if self.budget_bytes is None else replace(best, budget_bytes=self.budget_bytes)

    def _keeps(self, best: tuple[Candidate, Obtained[Solution]]) -> bool:
        return best[1].found.status != "infeasible"

    def _is_enough(self, best: tuple[Candidate, Obtained[Solution]]) -> bool:
        return self.budget_bytes is not None and self._keeps(best)

    def _cheaper(
        self, candidate: Candidate, found: Obtained[Solution], best: tuple[Candidate, Obtained[Solution]]
    ) -> tuple[Candidate, Obtained[Solution]]:
        if candidate.how in self.refused:
            return best
        priced = _of_step(candidate, found)
        price, least = self._price(priced.found), self._price(best[1].found)
        fewer_bytes = priced.found.peak_bytes < best[1].found.peak_bytes
        return (candidate, priced) if price < least or (price == least == _FOREVER and fewer_bytes) else best


class _Shares:
    """One time limit, divided among successive searches."""

    def __init__(self, limit_s: float, first_s: float) -> None:
        self.limit_s, self.left_s = limit_s, limit_s - first_s
        self.unspent_s = limit_s  # by searches without an answer, beyond their shares
        self.end = now() + limit_s

    @property
    def is_over(self) -> bool:
        return now() > self.end

    def take(self, share: float) -> float:
        """Return a share of the remaining time, in seconds; at least a little, as the search may be the only way to a plan."""
        taken = max(share * min(self.left_s, self.end - now()), min(_LEAST_SHARE * self.limit_s, share * self.left_s))
        self.left_s -= taken
        return taken


def _of_step(candidate: Candidate, found: Obtained[Solution]) -> Obtained[Solution]:
    if not candidate.how:
        return found
    solution = replace(found.found, overhead=(1 + candidate.slower) * (1 + found.found.overhead) - 1)
    verb = "" if candidate.verb == "recompute" else f"{candidate.verb}: "
    return Obtained(solution, f"{verb}{candidate.how}; {found.how}")


def in_its_own_order(costs: CostGraph, budget_bytes: int | None = None) -> Obtained[Solution]:
    solution = known_solution(costs, Schedule(costs.order), None)
    assert solution is not None  # the order of a graph is one of its schedules
    if budget_bytes is not None:
        fits = solution.peak_bytes <= budget_bytes
        solution = replace(solution, budget_bytes=budget_bytes, status="feasible" if fits else "infeasible")
    return Obtained(solution, "in its own order")


def _may_fit(candidate: Candidate, budget_bytes: int | None, share: float = _CLEARLY) -> bool:
    if budget_bytes is None:
        return True
    resident = candidate.tasks.costs.resident_bytes
    return candidate.bound_bytes - resident <= (share if candidate.parts > 1 else 1.0) * (budget_bytes - resident)


def reach_of_parts(
    given: Candidate, argument_count: int, budget_bytes: int, map_allowed: MapTasks = map_tasks, search: Search | None = None
) -> Candidate | None:
    """Return what splitting into a few parts reaches: the first split that keeps the budget in its own order, or the one with the smallest
    peak.

    Args:
        search: plans the tightest split, in a part of the time limit, if none keeps the budget in its own order.

    Returns:
        None if nothing can be split, or splitting would take long.
    """
    candidates, end = list[Candidate](), now() + _TO_SAY * (search.request.time_limit_s if search is not None else 0)
    for largest in (LARGE, 0, QUITE_LARGE) if len(given.flat.graph) <= _QUICKLY_SPLIT else ():
        if largest == QUITE_LARGE and any(_may_fit(candidate, budget_bytes, _SURELY) for candidate in candidates):
            break
        for candidate in islice(split_candidates(given, argument_count, map_allowed, largest=largest, first=_PARTS_TO_SAY), 2):
            candidates.append(candidate)
            if candidate.peak_bytes <= budget_bytes:
                return candidate
            if now() > end or _may_fit(candidate, budget_bytes, _SURELY):
                break
    tight = min((candidate for candidate in candidates if _may_fit(candidate, budget_bytes)), key=lambda one: one.bound_bytes, default=None)
    if search is not None and tight is not None:
        part, within_s = split(tight.tasks, None)[0], _TO_SAY * search.request.time_limit_s
        solution = search.solve(part, tight.flat.graph, how=tight.how, within_s=within_s, longest_s=0.0).found
        slower = (1 + tight.slower) * (1 + solution.overhead) - 1
        candidates.append(replace(tight, peak_bytes=solution.peak_bytes, slower=slower))
    return min(candidates, key=lambda candidate: candidate.peak_bytes, default=None)


def reused_schedule(tasks: TaskMap, steps: Sequence[str]) -> Schedule | None:
    by_name = {task.name: t for t, task in enumerate(tasks.costs.tasks)}
    reused = tuple(by_name[name] for name in steps if name in by_name)
    return Schedule(reused) if len(set(reused)) == len(tasks.costs.tasks) else None
