"""The portfolio of solvers: which are tried, in which order, and which schedule wins."""

from collections.abc import Callable, Iterator, Sequence

from graphwright.plan.model import Buffer, CostGraph, Task
from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.backward import WIDTH, BackwardSearch
from graphwright.plan.solvers.descent import descend
from graphwright.plan.solvers.draft import Draft
from graphwright.plan.solvers.eviction import run_under_cap
from graphwright.plan.solvers.improve import fill, ruin_and_recreate
from graphwright.plan.solvers.intervals import reduce_overflow
from graphwright.plan.solvers.minimum_cut import minimum_cuts
from graphwright.plan.solvers.nested_cuts import nested_cuts
from graphwright.plan.solvers.problem import UNIT_S, Problem, now
from graphwright.plan.solvers.reorder import reorder
from graphwright.plan.solvers.segments import segment_levels

SEARCHED = 600
"""Tasks up to which the backward search runs: each of its states holds all tasks and buffers."""
MANY = 6_000
"""Tasks above which fewer orders are tried, and no eviction: they pay for every buffer that they move."""
LARGE = 30_000
"""Tasks above which a plan by minimum cuts is not improved: all that takes more than near-linear time is left out."""
PROOF, WIDEST = (8_000, 100_000), (1_600, 1_000_000)
"""States and units of work of the backward search if nothing else fits, up to 400 tasks: a proof that nothing does, at last a way."""
WORK = 200_000
"""Units of work for one solver, some 2 s: a third of the default time limit."""
FIRST = 0.85
"""Share of the time limit for the first plans. The rest improves the best of them, which pays less the longer it takes."""
FOREVER = float("inf")


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
        self.told = 0.0
        self._backward: BackwardSearch | None = None
        self._descent: list[tuple[int, float, list[int], str]] | None = None
        self.say(0.0, "reordering")
        self.orders = reorder(self.problem)

    def hurry(self, longest_s: float) -> None:
        """Limit the work on the smallest peak to this time; work is counted, so that equal limits give equal peaks."""
        self.descent_work = int(min(self.descent_work, longest_s / (3 * UNIT_S)))

    def say(self, share: float, text: str) -> None:
        self.told = max(self.told, min(1.0, share))
        if self.progress is not None:
            self.progress(self.told, text)

    def original(self, steps: Sequence[int]) -> list[int]:
        return [self.labels[task] for task in steps]

    def cheapest(self, budget: int, deadline: float) -> tuple[list[int] | None, bool]:
        """Return a cheap schedule within the budget, or None; and whether it is proved to be the cheapest.

        Until a first answer is found the search goes on beyond the deadline, up to the problem's last moment.
        """
        problem = self.problem
        order = self.orders[0]
        started = now()
        start = Draft(problem, order, budget)
        if start.overflow() == 0:
            fits = Draft(problem, problem.graph.order, budget).overflow() == 0
            self.how = "original order" if fits else "reorder"
            return self.original(problem.graph.order if fits else order), True
        best = self._first(budget, deadline)
        if best is None and budget <= self.impossible:
            return None, False
        if best is None:
            best = self._from_descent(budget, deadline) or self._searched_widely(budget, *WIDEST)
        if best is None:
            return None, False
        if problem.task_count > LARGE:
            return self.original(best.steps()), best.time <= problem.base_time
        self.say(0.6, "improving")
        until = min(deadline, now() + (1 - FIRST) * (deadline - started))
        first = best.time
        best = min(best, ruin_and_recreate(best, until), key=lambda plan: plan.time)
        self.how += ", improved" if best.time < first else ""
        return self.original(best.steps()), best.time <= problem.base_time

    def _take(self, best: Draft | None, steps: Sequence[int], budget: int, how: str, until: float) -> Draft | None:
        """Repair and fill a schedule; return the better of it and `best`."""
        plan = Draft(self.problem, steps, budget)
        cap = self._time_cap(best)
        if plan.time > cap or not reduce_overflow(plan, until, time_cap=cap):
            return best
        fill(plan, until)
        if best is None or (plan.time, plan.peak) < (best.time, best.peak):
            self.how = how
            return plan
        return best

    def _first(self, budget: int, deadline: float) -> Draft | None:
        """Return the best of one run of each solver on each order."""
        problem = self.problem
        started = now()
        best: Draft | None = None
        orders = self.orders[: 3 if problem.task_count <= MANY else 2 if problem.task_count <= LARGE else 1]
        work = WORK
        searched = False
        for place, order in enumerate(orders):
            until = started + FIRST * (deadline - started) * (place + 1) / len(orders)
            if place and now() > self._until(best, budget, until):
                break
            share = 0.6 / len(orders)
            self.say(share * place, "cutting")
            cuts = minimum_cuts(problem, order, budget, self._until(best, budget, until))
            fit = bool(cuts) and max(simulate_unchecked(problem.graph, cuts[0])) <= budget
            starts = [(steps, "minimum cut") for steps in cuts[:2]] if fit else []
            if cuts and not fit and not place:
                self.say(share * 0.1, "cutting again")
                last = started + (problem.last - started) / 2
                others = (minimum_cuts(problem, other, budget, last) for other in orders[1:])
                starts = [(steps, "nested minimum cuts") for steps in nested_cuts(problem, (cuts, *others), budget, last)]
            if fit and problem.task_count > LARGE:
                with self.problem.limited(work):
                    return self._take(best, cuts[0], budget, "minimum cut", until)
            self.say(share * (place + 0.25), "recomputing segments")
            nothing: list[list[int]] = []
            level = next(segment_levels(problem, order, budget, self._until(best, budget, until)), nothing)
            starts += [(steps, "segments") for steps in level[:2]]
            for steps, how in starts:
                with self.problem.limited(work):
                    best = self._take(best, steps, budget, how, self._until(best, budget, until))
                if best is None and not searched:  # the search from the end is what gets through where the others do not
                    searched = True
                    best = self._searched(None, budget, FOREVER) or self._searched_widely(budget, *PROOF)
                    if budget <= self.impossible:
                        return None
                work = self._work(best, budget)
            self.say(share * (place + 0.5), "recomputing single values")
            with self.problem.limited(work):
                best = self._take(best, order, budget, "intervals", self._until(best, budget, until))
            work = self._work(best, budget)
            if problem.task_count <= MANY:
                steps = run_under_cap(problem, order, budget, deadline if best is None else until)
                if steps is not None:
                    best = self._take(best, steps, budget, "eviction", deadline if best is None else until)
        return best if searched else self._searched(best, budget, self._until(best, budget, deadline))

    def _until(self, best: Draft | None, budget: int, deadline: float) -> float:
        """Return the deadline if there is an answer; otherwise no deadline."""
        answered = best is not None or (self._descent is not None and self._descent[0][0] <= budget)
        return deadline if answered else FOREVER

    def _work(self, best: Draft | None, budget: int) -> int:
        """Return the work to spend on one more solver; less if all before it failed."""
        if best is not None:
            return WORK
        return WORK // 2 if self.descent()[0][0] <= budget else WORK // 5

    def _time_cap(self, best: Draft | None) -> float:
        """Return the time beyond which a plan is not worth repairing; recomputations can still be taken back afterward."""
        return FOREVER if best is None else best.time + 2 * (best.time - self.problem.base_time)

    def _searched(self, best: Draft | None, budget: int, until: float, work: int = WORK, width: int = WIDTH) -> Draft | None:
        steps = self._search(budget, work, self._time_cap(best), until, width=width)
        if steps is None:
            return best
        with self.problem.limited(WORK):
            return self._take(best, steps, budget, "search from the end", until)

    def _searched_widely(self, budget: int, width: int, work: int) -> Draft | None:
        small = self.problem.task_count <= 2 * SEARCHED // 3
        return self._searched(None, budget, FOREVER, work, width) if small else None

    def _search(self, budget: int, work: int, time_cap: float = FOREVER, until: float = FOREVER, *, width: int = WIDTH) -> list[int] | None:
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

    def _from_descent(self, budget: int, deadline: float) -> Draft | None:
        """Return the cheapest plan within the budget among those of the descent."""
        fitting = [(time, peak, place) for place, (peak, time, _, _) in enumerate(self.descent()) if peak <= budget]
        if not fitting:
            return None
        _, _, steps, how = self.descent()[min(fitting)[2]]
        plan = Draft(self.problem, steps, budget)
        with self.problem.limited(WORK):
            fill(plan, deadline)
        self.how = how
        return plan

    def descent(self) -> list[tuple[int, float, list[int], str]]:
        """Return plans met on the way down to the smallest peak: (peak, time, steps, how).

        It is computed once, and depends on the graph and the allowed work only.
        """
        if self._descent is not None:
            return self._descent
        problem = self.problem
        order = self.orders[0]
        points: list[tuple[int, float, list[int], str]] = []
        starts: list[tuple[list[int], str]] = [(order, "intervals, step by step")]
        for place, level in enumerate(segment_levels(problem, order, 0, FOREVER)):
            lowest = min(level[:4], key=lambda steps: max(simulate_unchecked(problem.graph, steps)))
            starts.append((lowest, "nested segments" if place else "segments"))
        for place, (steps, how) in enumerate(starts):
            self.say(0.6 + 0.3 * place / len(starts), "looking for the smallest peak")
            with self.problem.limited(self.descent_work // len(starts)):
                plans = descend(Draft(problem, steps, 0), self.low, max_time=FOREVER, until=FOREVER, improving_until=FOREVER, seed=place)
                points.extend((plan.peak, plan.time, plan.steps(), how) for plan in plans)
        points.extend((plan.peak, plan.time, plan.steps(), "search from the end") for plan in self._halve(min(points)[0]))
        points.sort(key=lambda entry: (entry[0], entry[1]))
        self._descent = points
        return points

    def _halve(self, peak: int) -> Iterator[Draft]:
        """Yield plans with smaller peaks by the backward search, halving the distance to the bound."""
        low = self.low
        enough = (peak - low) // 50
        while peak - low > enough:
            middle = (low + peak) // 2
            steps = self._search(middle, self.descent_work // 4)
            if steps is None:
                low = middle + 1
                continue
            plan = Draft(self.problem, steps, middle)
            yield plan
            peak = plan.peak

    def smallest(self) -> list[int]:
        """The schedule with the smallest peak found."""
        _, _, steps, self.how = self.descent()[0]
        return self.original(steps)


def canonical(graph: CostGraph) -> CostGraph:
    """Return the graph with tasks numbered by `order` and buffers by first use."""
    task_at = {index: place for place, index in enumerate(graph.order)}
    buffer_at: dict[int, int] = {}
    for index in graph.order:
        for number in (*graph.tasks[index].inputs, *graph.tasks[index].outputs):
            buffer_at.setdefault(number, len(buffer_at))
    unused = [number for number in range(len(graph.buffers)) if number not in buffer_at]
    for number in sorted(unused, key=lambda number: (graph.buffers[number].nbytes, graph.buffers[number].kept)):
        buffer_at[number] = len(buffer_at)
    tasks: list[Task] = []
    for index in graph.order:
        task = graph.tasks[index]
        tasks.append(
            Task(
                task.name,
                task.time,
                tuple(buffer_at[number] for number in task.inputs),
                tuple(buffer_at[number] for number in task.outputs),
                tuple(sorted(task_at[other] for other in task.after)),
                task.workspace_bytes,
                task.recomputable,
                tuple((buffer_at[number], buffer_at[output]) for number, output in task.in_place),
            )
        )
    buffers: list[Buffer | None] = [None] * len(graph.buffers)
    for number, buffer in enumerate(graph.buffers):
        producer = None if buffer.producer is None else task_at[buffer.producer]
        killer = None if buffer.killed_by is None else task_at[buffer.killed_by]
        buffers[buffer_at[number]] = Buffer(buffer.name, buffer.nbytes, producer, buffer.kept, killer)
    order = tuple(range(len(tasks)))
    return CostGraph(
        tuple(tasks), tuple(buffer for buffer in buffers if buffer is not None), order, graph.resident_bytes, graph.time_unit, graph.name
    )
