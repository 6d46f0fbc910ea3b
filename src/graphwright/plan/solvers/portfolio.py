"""The solvers' parts put together: what is tried, in which order, and what is kept."""

from __future__ import annotations

import random
import time as clock
from collections.abc import Callable, Sequence

from graphwright.plan.model import Buffer, CostGraph, Task
from graphwright.plan.solvers.eviction import run_under_cap
from graphwright.plan.solvers.improve import fill, ruin_and_recreate
from graphwright.plan.solvers.intervals import reduce_overflow
from graphwright.plan.solvers.problem import Problem
from graphwright.plan.solvers.reorder import reorder
from graphwright.plan.solvers.segments import segment_levels
from graphwright.plan.solvers.sequence import Sequence as Plan

ORDERS = ((1_000, 4), (3_000, 3), (20_000, 2), (1 << 62, 1))  # tasks up to which so many orders are tried
CAPPED = 6_000  # tasks up to which running under a cap is worth its time
FIRST = 0.75  # share of the time for the first round of solvers
IMPROVING = 0.5  # seconds for the neighborhood search, per second spent before it ...
IMPROVING_AT_LEAST = 1.0  # ... and at least
WORTH = 3.0  # a repair is given up at so many times the overhead of the best plan
SPARE = 1.0  # a start is not tried when it is slower than the best plan by so many times the whole


class Portfolio:
    """Solvers on one graph; orders are found once and serve every budget.

    Inside, tasks and buffers are numbered by their place in the graph's order, so that the
    answer depends on no label.

    Attributes:
        how: in words, what found the last answer.
    """

    def __init__(self, graph: CostGraph, progress: Callable[[float, str], None] | None = None) -> None:
        self.problem = Problem(canonical(graph))
        self.labels = graph.order
        self.progress = progress
        self.how = ""
        self.lowest: tuple[int, list[int]] | None = None  # smallest peak met so far, whatever was looked for
        self.say(0.0, "reordering")
        self.orders = reorder(self.problem)

    def say(self, share: float, text: str) -> None:
        """Tell the caller how far it is."""
        if self.progress is not None:
            self.progress(min(1.0, share), text)

    def original(self, steps: Sequence[int]) -> list[int]:
        """A schedule in the numbering of the graph that was given."""
        return [self.labels[task] for task in steps]

    def cheapest(self, budget: int, deadline: float) -> tuple[list[int] | None, bool]:
        """A cheap schedule within the budget, or None; and whether it is proved to be the cheapest."""
        problem = self.problem
        order = self.orders[0]
        started = clock.perf_counter()
        start = Plan(problem, order, budget)
        if start.overflow() == 0:
            fits = Plan(problem, problem.graph.order, budget).overflow() == 0
            self.how = "original order" if fits else "reorder"
            return self.original(problem.graph.order if fits else order), True
        best = self._first(budget, deadline)
        if best is None:
            best = self._deep(budget, deadline)
        if best is None:
            return None, False
        self.say(0.6, "improving")
        now = clock.perf_counter()
        patience = max(IMPROVING_AT_LEAST, IMPROVING * (now - started))
        improved = ruin_and_recreate(best, min(deadline, now + patience))
        if improved.time < best.time:
            best = improved
            self.how += ", improved"
        return self.original(best.steps()), False

    def _take(self, best: Plan | None, steps: Sequence[int], budget: int, how: str, until: float) -> Plan | None:
        """Repair and fill a schedule; the better one of it and `best`."""
        plan = Plan(self.problem, steps, budget)
        cap = float("inf") if best is None else self.problem.base_time + WORTH * (best.time - self.problem.base_time)
        if best is not None and plan.time - best.time > SPARE * self.problem.base_time:
            return best
        fits = reduce_overflow(plan, until, time_cap=cap)
        if self.lowest is None or plan.peak < self.lowest[0]:
            self.lowest = (plan.peak, plan.steps())
        if not fits:
            return best
        fill(plan, until)
        if best is None or (plan.time, plan.peak) < (best.time, best.peak):
            self.how = how
            return plan
        return best

    def _first(self, budget: int, deadline: float) -> Plan | None:
        """The best of one run of each solver on each order."""
        problem = self.problem
        started = clock.perf_counter()
        best: Plan | None = None
        count = next(count for size, count in ORDERS if problem.task_count <= size)
        orders = self.orders[:count]
        slot = FIRST * (deadline - started) / len(orders)
        for place, order in enumerate(orders):
            begin = started + slot * place
            if best is not None and clock.perf_counter() > begin + slot:
                break
            share = 0.6 / len(orders)
            self.say(share * place, "recomputing segments")
            until = max(begin + 0.5 * slot, clock.perf_counter() + 0.25 * slot)
            nothing: list[list[int]] = []
            for steps in next(segment_levels(problem, order, budget, until), nothing)[:2]:
                best = self._take(best, steps, budget, "segments", until)
            self.say(share * (place + 0.5), "recomputing single values")
            until = max(begin + slot, clock.perf_counter() + 0.25 * slot)
            best = self._take(best, order, budget, "intervals", until)
            if problem.task_count <= CAPPED:
                steps = run_under_cap(problem, order, budget, until)
                if steps is not None:
                    best = self._take(best, steps, budget, "eviction", until)
        return best

    def _deep(self, budget: int, deadline: float) -> Plan | None:
        """For very small budgets: nested segments, and falling to the budget step by step."""
        for order in self.orders[:2]:
            for level in segment_levels(self.problem, order, budget, deadline):
                for steps in level[:2]:
                    self.say(0.6, "recomputing nested segments")
                    now = clock.perf_counter()
                    found = self._take(None, steps, budget, "nested segments", now + (deadline - now) / 4)
                    if found is not None:
                        return found
        plan = self._descend(budget, deadline)
        return plan if plan.peak <= budget else None

    def _descend(self, low: int, deadline: float) -> Plan:
        """The plan with the smallest peak, not below `low`: each step starts from the one before.

        A plan made for a slightly larger budget is a better start than the order: the search
        then has to remove little overflow at a time.
        """
        problem = self.problem
        started = clock.perf_counter()
        starts: list[list[int]] = []
        for order in self.orders[:2]:
            starts.append(order)
            starts.extend(level[0] for level in segment_levels(problem, order, low, deadline))
        best = Plan(problem, self.orders[0] if self.lowest is None else self.lowest[1], low)
        for place, steps in enumerate(starts):
            until = min(deadline, clock.perf_counter() + (deadline - clock.perf_counter()) / (len(starts) - place))
            plan = self._fall(steps, low, until, place)
            if (plan.peak, plan.time) < (best.peak, best.time):
                best = plan
                self.how = "intervals, step by step"
            if best.peak <= low:
                break
            self.say(
                0.6 + 0.35 * min(1.0, (clock.perf_counter() - started) / max(deadline - started, 1e-9)), "looking for the smallest peak"
            )
        best.budget = max(low, best.peak)
        fill(best, deadline)
        return best

    def _fall(self, steps: Sequence[int], low: int, until: float, seed: int) -> Plan:
        problem = self.problem
        source = random.Random(seed)
        best = Plan(problem, steps, low)
        floor = problem.graph.resident_bytes
        stride, failures = 0.05, 0
        while best.peak > low and failures < 6 and clock.perf_counter() < until:
            plan = best.copy()
            plan.budget = max(low, floor + int((best.peak - floor) * (1 - stride)))
            noise = [source.lognormvariate(0.0, 0.5) for _ in range(problem.buffer_count)] if failures else None
            if reduce_overflow(plan, until, noise=noise):
                fill(plan, until)
            if plan.peak < best.peak:
                best, failures = plan, 0
            else:
                failures += 1
                stride = max(stride / 2, 0.002)
        return best

    def smallest(self, low: int, deadline: float) -> list[int]:
        """The schedule with the smallest peak found; nothing below `low` is looked for."""
        self.how = "original order" if self.orders[0] == list(self.problem.graph.order) else "reorder"
        self.say(0.6, "looking for the smallest peak")
        return self.original(self._descend(low, deadline).steps())


def canonical(graph: CostGraph) -> CostGraph:
    """The same graph with tasks numbered by `order` and buffers by where the order first meets them."""
    task_at = {index: place for place, index in enumerate(graph.order)}
    buffer_at: dict[int, int] = {}
    for index in graph.order:
        for number in (*graph.tasks[index].inputs, *graph.tasks[index].outputs):
            buffer_at.setdefault(number, len(buffer_at))
    given = [number for number in range(len(graph.buffers)) if number not in buffer_at]
    for number in sorted(given, key=lambda number: (graph.buffers[number].nbytes, graph.buffers[number].kept)):
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
