"""A lower bound on the running time of any schedule within a budget.

When a task first runs, its ancestors have run, and its descendants have not. The results of the ancestors that the descendants read are
either live at that moment, which the budget limits, or made again, which takes time. With a price for a live byte, the least of

    time of recomputation + price x live bytes - price x bytes that may be live

over all choices is a minimum cut (the network of `minimum_cut`, without an order), and no schedule within the budget takes less extra time,
for any price (Lagrangian duality). The bound is the maximum over some prices and tasks; it holds for every order.
"""

from __future__ import annotations

import math

import numpy as np

from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solvers.minimum_cut import ENDLESS, LARGEST, source_side
from graphwright.plan.solvers.problem import Problem

MOMENTS = 24  # tasks that are looked at, those where the order needs most memory ...
WORK = 120_000  # ... and the tasks of the graph times these
PRICES = 14  # halvings of the range of prices


def least_time(graph: CostGraph, budget_bytes: int) -> float:
    """Return a lower bound on the time of every schedule within the budget, in the graph's unit.

    It does not say whether there is such a schedule.
    """
    problem = Problem(graph)
    order_bytes = simulate(graph, Schedule(graph.order)).step_bytes
    if max(order_bytes, default=0) <= budget_bytes:
        return problem.base_time
    tops = [
        (nbytes, place)
        for place, nbytes in enumerate(order_bytes)
        if nbytes > budget_bytes and nbytes == max(order_bytes[max(place - 1, 0) : place + 2])
    ]
    tops.sort(key=lambda top: (-top[0], top[1]))
    after, before = problem.precedence()
    moments = [graph.order[place] for _, place in tops[: max(2, min(MOMENTS, WORK // max(problem.task_count, 1)))]]
    return problem.base_time + max(_extra(problem, task, before, after, budget_bytes) for task in moments)


def _extra(problem: Problem, task: int, before: list[list[int]], after: list[list[int]], budget_bytes: int) -> float:
    earlier = np.array(sorted(_reached(task, before) - {task}), dtype=np.int64)
    later = _reached(task, after)
    taken_over = {output for _, output in problem.in_place[task]}
    own = problem.workspace[task] + sum(problem.nbytes[number] for number in problem.outputs[task] if number not in taken_over)
    always_live = sum(
        problem.nbytes[number] for number in range(problem.buffer_count) if problem.kept[number] and problem.producer[number] < 0
    )
    room = budget_bytes - problem.graph.resident_bytes - always_live - own
    runs = {int(number): place for place, number in enumerate(earlier)}
    waits = [
        (number, runs[problem.producer[number]])
        for number in range(problem.buffer_count)
        if problem.nbytes[number] and not problem.kept[number] and problem.producer[number] in runs
    ]
    place_of = {number: len(runs) + place for place, (number, _) in enumerate(waits)}
    needed = sorted({place_of[number] for reader in later for number in problem.inputs[reader] if number in place_of})
    nbytes = np.array([problem.nbytes[number] for number, _ in waits], dtype=np.float64)
    source, sink = len(runs) + len(waits), len(runs) + len(waits) + 1
    links = [(place, place_of[number]) for member, place in runs.items() for number in problem.inputs[member] if number in place_of]
    once = [place for member, place in runs.items() if not problem.recomputable[member]]
    again = [place for member, place in runs.items() if problem.recomputable[member]]
    time = np.array([problem.time[int(earlier[place])] for place in again], dtype=np.float64)
    rows = np.array([*again, *place_of.values(), *once, *(reader for reader, _ in links), *(source for _ in needed)], dtype=np.int64)
    columns = np.array([*(sink for _ in again), *(maker for _, maker in waits), *(sink for _ in once), *(to for _, to in links), *needed])

    def cut(price: float) -> tuple[float, float]:
        costs = np.concatenate([time, price * nbytes])
        scale = LARGEST / max(float(costs.max(initial=0.0)), 1e-300)
        capacities = np.full(len(rows), ENDLESS, dtype=np.int32)
        capacities[: len(costs)] = np.floor(costs * scale)  # rounded down, it is a bound still
        flow, held = source_side(capacities, rows, columns, (source, sink))
        waiting = held[len(runs) : source] & ~held[[maker for _, maker in waits]]
        return flow / scale - price * room, float(nbytes[waiting].sum())

    if not waits or nbytes[np.array(needed, dtype=np.int64) - len(runs)].sum() <= room:
        return 0.0
    typical = problem.base_time / float(nbytes.sum())
    low, high, best = typical * 2.0**-20 + 1e-300, typical * 2.0**8 + 1e-300, 0.0
    for _ in range(PRICES):
        price = math.sqrt(low * high)
        bound, live = cut(price)
        best = max(best, bound)
        low, high = (price, high) if live > room else (low, price)
    return best


def _reached(start: int, following: list[list[int]]) -> set[int]:
    seen, stack = {start}, [start]
    while stack:
        for task in following[stack.pop()]:
            if task not in seen:
                seen.add(task)
                stack.append(task)
    return seen
