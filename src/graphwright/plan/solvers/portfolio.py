"""The solvers' parts put together: what is tried, in which order, and what is kept."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence

from graphwright.plan.model import Buffer, CostGraph, Task
from graphwright.plan.solvers.eviction import run_under_cap
from graphwright.plan.solvers.improve import fill, ruin_and_recreate
from graphwright.plan.solvers.intervals import reduce_overflow
from graphwright.plan.solvers.problem import Problem
from graphwright.plan.solvers.reorder import reorder
from graphwright.plan.solvers.segments import segment_schedules
from graphwright.plan.solvers.sequence import Sequence as Plan

ORDERS = 4  # orders on which every solver is tried
CAPPED = 6000  # tasks up to which running under a cap is worth its time
IMPROVING = 0.35  # share of the remaining time for the neighborhood search


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
        start = Plan(problem, order, budget)
        if start.overflow() == 0:
            fits = Plan(problem, problem.graph.order, budget).overflow() == 0
            self.how = "original order" if fits else "reorder"
            return self.original(problem.graph.order if fits else order), True
        best = self._first(budget, deadline)
        if best is None:
            return None, False
        self.say(0.6, "improving")
        now = clock.perf_counter()
        improved = ruin_and_recreate(best, min(deadline, now + IMPROVING * (deadline - now)))
        if improved.time < best.time:
            best = improved
            self.how += ", improved"
        return self.original(best.steps()), False

    def _first(self, budget: int, deadline: float) -> Plan | None:
        """The best of one run of each solver on each order."""
        problem = self.problem
        started = clock.perf_counter()
        limit = deadline - started
        best: Plan | None = None

        def take(steps: Sequence[int], how: str, until: float) -> None:
            nonlocal best
            plan = Plan(problem, steps, budget)
            if not reduce_overflow(plan, until):
                return
            fill(plan, deadline)
            if best is None or (plan.time, plan.peak) < (best.time, best.peak):
                best, self.how = plan, how

        orders = self.orders[:ORDERS]
        for place, order in enumerate(orders):
            share = (place + 1) / len(orders)
            until = started + 0.6 * limit * share
            if clock.perf_counter() > until:
                continue
            self.say(0.6 * place / len(orders), "recomputing segments")
            segments = segment_schedules(problem, order, budget, started + 0.6 * limit * (place + 0.3) / len(orders))
            for steps in segments[:2]:
                take(steps, "segments", until)
            self.say(0.6 * (place + 0.5) / len(orders), "recomputing single values")
            if problem.task_count <= CAPPED:
                steps = run_under_cap(problem, order, budget, until)
                if steps is not None:
                    take(steps, "eviction", until)
            take(order, "intervals", until)
        return best

    def smallest(self, low: int, deadline: float) -> list[int]:
        """The schedule with the smallest peak found; nothing below `low` is looked for."""
        problem = self.problem
        best = self.orders[0]
        self.how = "original order" if tuple(best) == problem.graph.order else "reorder"
        high = Plan(problem, best, 0).peak
        started = clock.perf_counter()
        for steps in segment_schedules(problem, best, low, deadline)[:1]:
            plan = Plan(problem, steps, low)
            if plan.peak < high:
                best, high = steps, plan.peak
                self.how = "segments"
        starts = [self.orders[0], best] if best != self.orders[0] else [best]
        while high - low > max(1, high // 500):
            now = clock.perf_counter()
            if now > deadline:
                break
            self.say(min(0.95, (now - started) / max(deadline - started, 1e-9)), "looking for the smallest peak")
            middle = (low + high) // 2
            reached = False
            for steps in starts:
                plan = Plan(problem, steps, middle)
                reached = reduce_overflow(plan, min(deadline, now + (deadline - now) / 2)) or reached
                if plan.peak < high:
                    fill(plan, deadline)
                    best, high = plan.steps(), plan.peak
                    self.how = "intervals"
                if reached:
                    break
            if not reached:
                low = middle + 1
        return self.original(best)


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
