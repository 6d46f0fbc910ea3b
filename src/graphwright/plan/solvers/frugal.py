"""The smallest peak within a given time, by a descent in which every plan is made from the one before.

The descent starts from schedules by segments, cut down to the time allowed: their first repeats are dropped. They take linear time, so that
a network of ten thousand layers has a plan where the descent, which moves single tensors, would not come far.
"""

from collections.abc import Iterator, Sequence

from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.descent import descend
from graphwright.plan.solvers.draft import Draft
from graphwright.plan.solvers.improve import fill
from graphwright.plan.solvers.portfolio import Portfolio
from graphwright.plan.solvers.problem import Problem, now
from graphwright.plan.solvers.segments import segment_levels

STARTS = 3
SEGMENTS_TASK_S = 5e-4  # at least, for each task, for schedules by segments
WORK = 900_000  # units of work for all of them


def smallest_within(portfolio: Portfolio, max_time: float, deadline: float) -> list[int]:
    """Return a schedule with a small peak that takes at most `max_time`, in the portfolio's numbering.

    The first descent is always finished, limited by work; others start while there is time.
    """
    problem = portfolio.problem
    starts = sorted(_starts(portfolio, max_time, deadline))[:STARTS]
    best = Draft(problem, starts[0][2], 0)
    problem.work_limit = problem.work + WORK
    for place, (_, _, steps) in enumerate(starts):
        if place and (now() > deadline or problem.stop(float("inf"))):
            break
        portfolio.say(0.2 + 0.8 * place / STARTS, "looking for the smallest peak in the time given")
        until = deadline if place else float("inf")
        for plan in descend(Draft(problem, steps, 0), portfolio.low, max_time=max_time, until=until, improving_until=deadline, seed=place):
            best = min(best, plan, key=lambda plan: (plan.peak, plan.time))
    problem.work_limit = 1 << 62
    best.budget = best.peak
    fill(best, max(deadline, now() + 0.5))
    return best.steps()


def _starts(portfolio: Portfolio, max_time: float, deadline: float) -> Iterator[tuple[int, float, list[int]]]:
    problem = portfolio.problem
    until = max(deadline, now() + SEGMENTS_TASK_S * problem.task_count)
    for order in dict.fromkeys(map(tuple, (problem.graph.order, *portfolio.orders[:2]))):
        yield _judged(problem, list(order))
        for level in segment_levels(problem, order, 0, until):
            yield from (_judged(problem, _cut_down(problem, steps, max_time)) for steps in level)
            break


def _judged(problem: Problem, steps: list[int]) -> tuple[int, float, list[int]]:
    peak = max(simulate_unchecked(problem.graph, steps), default=problem.graph.resident_bytes)
    return peak, sum(problem.time[task] for task in steps), steps


def _cut_down(problem: Problem, steps: Sequence[int], max_time: float) -> list[int]:
    excess = sum(problem.time[task] for task in steps) - max_time
    seen: set[int] = set()
    shorter: list[int] = []
    for task in steps:
        if task in seen and excess > 0:
            excess -= problem.time[task]
            continue
        seen.add(task)
        shorter.append(task)
    return shorter
