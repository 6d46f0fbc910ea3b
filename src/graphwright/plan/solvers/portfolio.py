"""The portfolio of solvers: which are tried, in which order, and which schedule wins."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from graphwright.plan.model import CostGraph
from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.backward import WIDTH, BackwardSearch
from graphwright.plan.solvers.descent import descend
from graphwright.plan.solvers.draft import Draft
from graphwright.plan.solvers.improve import fill, ruin_and_recreate
from graphwright.plan.solvers.intervals import reduce_overflow
from graphwright.plan.solvers.minimum_cut import minimum_cuts
from graphwright.plan.solvers.nested_cuts import nested_cuts
from graphwright.plan.solvers.problem import UNIT_S, Problem, now
from graphwright.plan.solvers.reorder import reorder
from graphwright.plan.solvers.segments import segment_levels

SEARCHED = 600
"""Tasks up to which the backward search runs: each of its states holds all tasks and buffers."""
LARGE = 30_000
"""Tasks above which only one order is tried, and its plan is not improved: all that takes more than near-linear time is left out."""
PROOF, WIDEST = (8_000, 100_000), (1_600, 1_000_000)
"""States and units of work of the backward search if nothing else fits: for a proof that nothing does, and as the last resort."""
WORK = 200_000
"""Units of work for one solver, some 2 s: a third of the default time limit."""
FIRST = 0.85
"""Share of the time limit for the first plans. The rest improves the best of them, which pays less the longer it takes."""
FOREVER = float("inf")


class Point(NamedTuple):
    """A plan met on the way down to the smallest peak."""

    peak: int
    time: float
    steps: list[int]
    how: str


class Portfolio:
    """Solvers on one graph. Orders are computed once and serve every budget.

    Tasks and buffers are numbered by their place in the graph's order, so that the answer depends on no label.

    Args:
        longest_s: seconds of processor time after which all solvers stop.

    Attributes:
        low: lower bound on the peak.
        how: which solver found the last answer.
        impossible: bytes that no schedule fits into, proved by exhaustion; 0 if nothing is proved.
    """

    def __init__(
        self, graph: CostGraph, low: int, progress: Callable[[float, str], None] | None = None, *, longest_s: float = FOREVER
    ) -> None:
        last = now() + longest_s
        self.problem = Problem(canonical(graph))
        self.problem.last = last
        self.descent_work = 2 * WORK
        self.hurry(longest_s)
        self.labels = graph.order
        self.progress = progress
        self.how = ""
        self.low = low
        self.impossible = 0
        self._share_done = 0.0
        self._budget = 0
        self._best: Draft | None = None  # within that budget
        self._backward: BackwardSearch | None = None
        self._descent: list[Point] | None = None
        self.say(0.0, "reordering")
        self.orders = reorder(self.problem)

    def hurry(self, longest_s: float) -> None:
        """Limit the work on the smallest peak to this time; work is counted, so that equal limits give equal peaks."""
        self.descent_work = int(min(self.descent_work, longest_s / (3 * UNIT_S)))

    def say(self, share: float, text: str) -> None:
        self._share_done = max(self._share_done, min(1.0, share))
        if self.progress is not None:
            self.progress(self._share_done, text)

    def original(self, steps: Sequence[int]) -> list[int]:
        return [self.labels[task] for task in steps]

    def cheapest(self, budget: int, deadline: float) -> tuple[list[int] | None, bool]:
        """Return a cheap schedule within the budget, or None; and whether it is proved to be the cheapest.

        Until a first answer is found the search goes on beyond the deadline, up to the problem's last moment.
        """
        problem, started = self.problem, now()
        for order, how in ((problem.graph.order, "original order"), (self.orders[0], "reorder")):
            if Draft(problem, order, budget).overflow() == 0:
                self.how = how
                return self.original(order), True
        self._budget, self._best = budget, None
        self._try_all(deadline)
        if self._best is None:
            self._take_from_descent(deadline)
        if self._best is None:
            self._take_from_search(FOREVER, *WIDEST)
        best = self._best
        if best is None:
            return None, False
        if problem.task_count <= LARGE:
            self.say(0.6, "improving")
            first, best = best, ruin_and_recreate(best, min(deadline, now() + (1 - FIRST) * (deadline - started)))
            self.how += ", improved" if best.time < first.time else ""
        return self.original(best.steps()), best.time <= problem.base_time

    def _try_all(self, deadline: float) -> None:
        problem, started = self.problem, now()
        orders = self.orders[: 3 if problem.task_count <= LARGE else 1]
        work, searched = WORK, False
        for place, order in enumerate(orders):
            until = started + FIRST * (deadline - started) * (place + 1) / len(orders)
            if place and now() > self._until(until):
                break
            self.say(0.6 * place / len(orders), "cutting and recomputing")
            for steps, how in self._starts(order, orders[1:] if place == 0 else [], until):
                with problem.limited(work):
                    self._take(steps, how, self._until(until))
                if self._best is None and not searched:  # the search from the end gets through where the others do not
                    searched = True
                    self._take_from_search(FOREVER)
                    if self._best is None:
                        self._take_from_search(FOREVER, *PROOF)
                    if self._budget <= self.impossible:
                        return
                work = self._work()
        if not searched:
            self._take_from_search(self._until(deadline))

    def _starts(self, order: list[int], others: Sequence[list[int]], until: float) -> Iterator[tuple[list[int], str]]:
        """Yield schedules to repair, with the names of their solvers.

        Args:
            others: more orders for nested cuts; without any there are none.
        """
        problem, budget = self.problem, self._budget
        cuts = minimum_cuts(problem, order, budget, self._until(until))
        if cuts and max(simulate_unchecked(problem.graph, cuts[0])) <= budget:
            yield from ((steps, "minimum cut") for steps in cuts[: 2 if problem.task_count <= LARGE else 1])
            if problem.task_count > LARGE:
                return
        elif cuts and others:
            started = now()
            last = started + (problem.last - started) / 2
            ways = (cuts, *(minimum_cuts(problem, other, budget, last) for other in others))
            yield from ((steps, "nested minimum cuts") for steps in nested_cuts(problem, ways, budget, last))
        nothing: list[list[int]] = []
        level = next(segment_levels(problem, order, budget, self._until(until)), nothing)
        yield from ((steps, "segments") for steps in level[:2])
        yield order, "intervals"

    def _take(self, steps: Sequence[int], how: str, until: float) -> None:
        plan, best = Draft(self.problem, steps, self._budget), self._best
        cap = self._time_cap()
        if plan.time > cap or not reduce_overflow(plan, until, time_cap=cap):
            return
        fill(plan, until)
        if best is None or (plan.time, plan.peak) < (best.time, best.peak):
            self._best, self.how = plan, how

    def _until(self, deadline: float) -> float:
        answered = self._best is not None or (self._descent is not None and self._descent[0].peak <= self._budget)
        return deadline if answered else FOREVER

    def _work(self) -> int:
        if self._best is not None:
            return WORK
        return WORK // 2 if self.descent()[0].peak <= self._budget else WORK // 5

    def _time_cap(self) -> float:
        """Return the time beyond which a plan is not worth repairing; recomputations can still be taken back afterward."""
        return FOREVER if self._best is None else self._best.time + 2 * (self._best.time - self.problem.base_time)

    def _take_from_search(self, until: float, width: int = WIDTH, work: int = WORK) -> None:
        steps = self._search(self._budget, work, width, self._time_cap(), until)
        if steps is not None:
            with self.problem.limited(WORK):
                self._take(steps, "search from the end", until)

    def _search(self, budget: int, work: int, width: int = WIDTH, time_cap: float = FOREVER, until: float = FOREVER) -> list[int] | None:
        if self.problem.task_count > SEARCHED or budget <= self.impossible or self.problem.stop(until):
            return None
        if self._backward is None:
            self._backward = BackwardSearch(self.problem)
        self.say(0.5, "searching from the end")
        with self.problem.limited(work):
            result = self._backward.run(budget, width, time_cap=time_cap, deadline=until)
        if result.exhausted:
            self.impossible = max(self.impossible, budget)
        return result.steps

    def _take_from_descent(self, deadline: float) -> None:
        fitting = [point for point in self.descent() if point.peak <= self._budget] if self._budget > self.impossible else []
        if fitting:
            point = min(fitting, key=lambda point: (point.time, point.peak))
            self._best, self.how = Draft(self.problem, point.steps, self._budget), point.how
            with self.problem.limited(WORK):
                fill(self._best, deadline)

    def descent(self) -> list[Point]:
        """Return plans met on the way down to the smallest peak, by peak and time.

        It is computed once, and depends on the graph and the allowed work only.
        """
        if self._descent is not None:
            return self._descent
        problem = self.problem
        order = self.orders[0]
        points: list[Point] = []
        starts: list[tuple[list[int], str]] = [(order, "intervals, step by step")]
        for place, level in enumerate(segment_levels(problem, order, 0, FOREVER)):
            lowest = min(level[:4], key=lambda steps: max(simulate_unchecked(problem.graph, steps)))
            starts.append((lowest, "nested segments" if place else "segments"))
        for place, (steps, how) in enumerate(starts):
            self.say(0.6 + 0.3 * place / len(starts), "looking for the smallest peak")
            with self.problem.limited(self.descent_work // len(starts)):
                plans = descend(Draft(problem, steps, 0), self.low, max_time=FOREVER, until=FOREVER, improving_until=FOREVER, seed=place)
                points.extend(Point(plan.peak, plan.time, plan.steps(), how) for plan in plans)
        points.extend(self._halve(min(points).peak))
        points.sort(key=lambda point: (point.peak, point.time))
        self._descent = points
        return points

    def _halve(self, peak: int) -> Iterator[Point]:
        low = self.low
        enough = (peak - low) // 50
        while peak - low > enough:
            middle = (low + peak) // 2
            steps = self._search(middle, self.descent_work // 4)
            if steps is None:
                low = middle + 1
                continue
            plan = Draft(self.problem, steps, middle)
            yield Point(plan.peak, plan.time, steps, "search from the end")
            peak = plan.peak

    def smallest(self) -> list[int]:
        point = self.descent()[0]
        self.how = point.how
        return self.original(point.steps)


def canonical(graph: CostGraph) -> CostGraph:
    """Return the graph with tasks numbered by `order` and buffers by first use."""
    task_at: dict[int | None, int] = {index: place for place, index in enumerate(graph.order)}
    buffer_at: dict[int, int] = {}
    for index in graph.order:
        for number in (*graph.tasks[index].inputs, *graph.tasks[index].outputs):
            buffer_at.setdefault(number, len(buffer_at))
    unused = [number for number in range(len(graph.buffers)) if number not in buffer_at]
    for number in sorted(unused, key=lambda number: (graph.buffers[number].nbytes, graph.buffers[number].kept)):
        buffer_at[number] = len(buffer_at)

    def at(numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(buffer_at[number] for number in numbers)

    tasks = [
        replace(
            task,
            again=None,
            inputs=at(task.inputs),
            outputs=at(task.outputs),
            after=tuple(sorted(task_at[other] for other in task.after)),
            in_place=tuple((buffer_at[number], buffer_at[output]) for number, output in task.in_place),
        )
        for task in (graph.tasks[index] for index in graph.order)
    ]
    buffers = [
        replace(
            graph.buffers[number],
            producer=task_at.get(graph.buffers[number].producer),
            killed_by=task_at.get(graph.buffers[number].killed_by),
        )
        for number in buffer_at
    ]
    return replace(graph, tasks=tuple(tasks), buffers=tuple(buffers), order=tuple(range(len(tasks))))
