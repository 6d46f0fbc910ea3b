"""Fit a computation into a memory budget: reorder, then recompute.

`solve` answers for one budget, `minimum` for the smallest, `curve` for several. The solvers are in `graphwright.plan.solvers`;
`graphwright.plan.simulate` judges every schedule.
"""

import time as clock
from collections.abc import Callable, Sequence

from graphwright.errors import ArgumentError, GraphwrightError
from graphwright.plan.bound import lower_bound
from graphwright.plan.model import CostGraph, Schedule, Solution, Status
from graphwright.plan.simulate import check_graph, simulate
from graphwright.plan.solvers.draft import Draft
from graphwright.plan.solvers.frugal import smallest_within
from graphwright.plan.solvers.improve import fill
from graphwright.plan.solvers.portfolio import Portfolio, canonical
from graphwright.plan.solvers.problem import Problem, now

Progress = Callable[[float, str], None]
_FIRST, _FIRST_S = 2.0, 5.0  # what a first answer may take: so many time limits, and seconds at least
_WITH_ROOM = 0.75  # share of that for an answer that leaves room

__all__ = ["curve", "drop_useless_repeats", "known_solution", "lower_bound", "minimum", "minimum_within", "solve"]


def solve(
    graph: CostGraph,
    budget_bytes: int,
    *,
    room_bytes: int = 0,
    time_limit_s: float = 10.0,
    progress: Progress | None = None,
    longest_s: float | None = None,
) -> Solution:
    """Return the cheapest schedule found whose peak is at most `budget_bytes` (resident bytes included).

    Raises `ArgumentError` if the budget or the time limit is not positive, `GraphError` if parts of the graph do not fit together.

    Args:
        room_bytes: part of the budget to leave free, if a schedule is found that does.
        time_limit_s: seconds of this thread's processor time. Until a first schedule is found the search may take `longest_s`; then the
            status is "infeasible", and the schedule has the smallest peak found.
        progress: called with the share done (0 to 1) and a few words.
        longest_s: by default twice the limit, at least 5 s.

    >>> from graphwright.plan.model import Buffer, Task
    >>> graph = CostGraph((Task("a", 1, (), (0,)), Task("b", 2, (0,), (1,))), (Buffer("x", 4, 0), Buffer("y", 2, 1)), (0, 1))
    >>> solve(graph, 6).status
    'optimal'
    >>> solve(graph, 5).reason
    'b alone needs this much: 6 bytes, 5 are given'
    """
    _check_arguments(budget_bytes, time_limit_s)
    deadline = now() + time_limit_s
    return _Asked(graph, progress, time_limit_s, longest_s).answer(budget_bytes, room_bytes, deadline)


def minimum(graph: CostGraph, *, progress: Progress | None = None) -> Solution:
    """Return the schedule with the smallest peak found, at any cost; its budget is its peak.

    The search is limited by work, not by the clock, and depends on the graph only.
    """
    asked = _Asked(graph, progress)
    return asked.solution(asked.portfolio.smallest(), "feasible")


def minimum_within(
    graph: CostGraph, max_time: float, *, time_limit_s: float = 10.0, progress: Progress | None = None, longest_s: float | None = None
) -> Solution:
    """Return the schedule with the smallest peak found among those that take at most `max_time`; its budget is its peak.

    Raises `ArgumentError` if running each task once takes longer, or the time limit is not positive, `GraphError` if parts of the graph do
    not fit together.
    """
    _check_arguments(1, time_limit_s)
    deadline = now() + time_limit_s
    once = sum(task.time for task in graph.tasks)
    if max_time < once:
        raise ArgumentError(f"a time of {max_time:g} {graph.time_unit} was given, each task once takes {once:g}", argument="max_time")
    asked = _Asked(graph, progress, time_limit_s, longest_s)
    steps = asked.portfolio.original(smallest_within(asked.portfolio, max_time, deadline))
    asked.portfolio.how = "descent in the time given"
    return asked.solution(steps, "feasible")


def drop_useless_repeats(graph: CostGraph, schedule: Schedule) -> Schedule:
    """Return the schedule without the repeats that its peak does not need, dropping the slowest ones first."""
    peak = simulate(graph, schedule).peak_bytes
    place = {task: k for k, task in enumerate(graph.order)}
    draft = Draft(Problem(canonical(graph)), [place[task] for task in schedule.steps], peak)
    fill(draft, float("inf"))
    return Schedule(tuple(graph.order[k] for k in draft.steps()))


def curve(graph: CostGraph, budgets: Sequence[int], *, time_limit_s: float = 10.0) -> tuple[Solution, ...]:
    """Return solutions for several budgets in bytes by falling peak, each cheaper than those that follow.

    Raises `ArgumentError` if a budget or the time limit is not positive, `GraphError` if parts of the graph do not fit together.

    Args:
        time_limit_s: seconds of this thread's processor time for all of them together; see `solve`.
    """
    for budget in budgets:
        _check_arguments(budget, time_limit_s)
    deadline = now() + time_limit_s
    asked = _Asked(graph, None, time_limit_s)
    solutions: list[Solution] = []
    ordered = sorted(set(budgets), reverse=True)
    for place, budget in enumerate(ordered):
        share = max(0.0, deadline - now()) / (len(ordered) - place)
        asked.started = clock.perf_counter()
        solutions.append(asked.answer(budget, 0, now() + share))
    front: list[Solution] = []
    for solution in sorted(solutions, key=lambda item: (item.peak_bytes, item.time)):
        if not front or solution.time < front[-1].time:
            front.append(solution)
    return tuple(reversed(front))


def known_solution(graph: CostGraph, schedule: Schedule, budget_bytes: int | None, *, status: Status = "feasible") -> Solution | None:
    """Judge a schedule from elsewhere; return None if it breaks a rule or the budget."""
    try:
        trace = simulate(graph, schedule)
    except GraphwrightError:
        return None
    budget_bytes = trace.peak_bytes if budget_bytes is None else budget_bytes
    if trace.peak_bytes > budget_bytes:
        return None
    once = sum(task.time for task in graph.tasks)
    overhead = (trace.time - once) / once if once else 0.0
    return Solution(status, schedule, trace.peak_bytes, trace.time, overhead, lower_bound(graph), budget_bytes, 0.0)


def _check_arguments(budget_bytes: int, time_limit_s: float) -> None:
    if budget_bytes <= 0:
        raise ArgumentError(f"budget of {budget_bytes} bytes", argument="budget_bytes", remedy="give a positive number of bytes")
    if not time_limit_s > 0:
        raise ArgumentError(f"time limit of {time_limit_s} seconds", argument="time_limit_s", remedy="give a positive number of seconds")


class _Asked:
    def __init__(
        self, graph: CostGraph, progress: Progress | None, time_limit_s: float = float("inf"), longest_s: float | None = None
    ) -> None:
        self.started = clock.perf_counter()
        check_graph(graph)
        self.graph, self.bound = graph, lower_bound(graph)
        longest_s = max(_FIRST * time_limit_s, _FIRST_S) if longest_s is None else longest_s
        self.portfolio = Portfolio(graph, self.bound.nbytes, progress, longest_s=longest_s)

    def answer(self, budget_bytes: int, room_bytes: int, deadline: float) -> Solution:
        """Return the cheapest schedule within a budget, leaving room if possible; else the one with the smallest peak."""
        problem = self.portfolio.problem
        begun, last = now(), problem.last
        for room, share in ((room_bytes, _WITH_ROOM), (0, 1.0)) if room_bytes else ((0, 1.0),):
            if self.bound.nbytes > budget_bytes - room:
                continue
            problem.last = begun + share * (last - begun)
            steps, proved = self.portfolio.cheapest(budget_bytes - room, deadline)
            if steps is not None:
                return self.solution(steps, "optimal" if proved else "feasible", budget_bytes)
        if self.bound.nbytes > budget_bytes:
            # What is asked for is answered; what works instead is worth as little time as any question has.
            self.portfolio.hurry(_FIRST_S)
        return self.solution(self.portfolio.smallest(), "infeasible", budget_bytes)

    def solution(self, steps: Sequence[int], status: Status, budget_bytes: int | None = None) -> Solution:
        problem, bound, how = self.portfolio.problem, self.bound, self.portfolio.how
        schedule = Schedule(tuple(steps))
        trace = simulate(self.graph, schedule)
        budget_bytes = trace.peak_bytes if budget_bytes is None else budget_bytes
        reason = ""
        if trace.peak_bytes > budget_bytes:
            status = "infeasible"
            if bound.nbytes > budget_bytes:
                reason = f"{bound.reason}: {bound.nbytes} bytes, {budget_bytes} are given"
            elif budget_bytes <= self.portfolio.impossible:
                reason = f"no schedule of any kind fits in {budget_bytes} bytes: every one was looked at, backward from its end"
            else:
                reason = f"no schedule was found that needs less than {trace.peak_bytes} bytes, {budget_bytes} are given"
                reason += "; the time allowed ended the search" if problem.stop(float("inf")) else ""
        elif status == "infeasible":
            status = "feasible"
        overhead = (trace.time - problem.base_time) / problem.base_time if problem.base_time else 0.0
        self.portfolio.say(1.0, how)
        spent = clock.perf_counter() - self.started
        peak, notes = trace.peak_bytes, {"found by": how}
        return Solution(status, schedule, peak, trace.time, overhead, bound, budget_bytes, spent, reason, notes)
