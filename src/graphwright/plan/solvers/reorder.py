"""Free reordering: each task once, in an order that holds less.

List scheduling along a guide order: a ready task that frees at least what it allocates runs
at once, otherwise the next task of the guide runs. So an optimizer update runs as soon as its
gradient is there, which frees the gradient. The mirror image walks from the end, so that
tasks that allocate more than they free (zeros, masks, casts of weights) run as late as
they can. Both are used in turn, and the order with the smallest peak wins; the original
order takes part, so the result is never worse.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.problem import Problem


def reorder(problem: Problem, *, rounds: int = 2) -> list[list[int]]:
    """Valid orders that run each task once, best first by (peak, bytes summed over steps)."""
    successors, _ = problem.precedence()
    predecessors: list[list[int]] = [[] for _ in successors]
    for index, following in enumerate(successors):
        for other in following:
            predecessors[other].append(index)
    orders = [list(problem.graph.order)]
    frontier = [orders[0]]
    for _ in range(rounds):
        fresh: list[list[int]] = []
        for guide in frontier:
            for order in (_forward(problem, guide, successors, predecessors), _backward(problem, guide, successors, predecessors)):
                if order not in orders:
                    orders.append(order)
                    fresh.append(order)
        frontier = fresh
    scored: list[tuple[int, int, int]] = []
    for place, order in enumerate(orders):
        step_bytes = simulate_unchecked(problem.graph, order)
        scored.append((max(step_bytes, default=0), sum(step_bytes), place))
    return [orders[place] for _, _, place in sorted(scored)]


def _forward(problem: Problem, guide: Sequence[int], successors: list[list[int]], predecessors: list[list[int]]) -> list[int]:
    nbytes, inputs, outputs, consumers = problem.nbytes, problem.inputs, problem.outputs, problem.consumers
    rank = {task: place for place, task in enumerate(guide)}
    left = [len(consumers[number]) for number in range(problem.buffer_count)]  # readers still to run
    frees = [not problem.kept[number] for number in range(problem.buffer_count)]
    waiting = [len(before) for before in predecessors]
    done = [False] * problem.task_count

    def growth(task: int) -> int:
        made = sum(nbytes[number] for number in outputs[task] if left[number] or not frees[number])
        return made - sum(nbytes[number] for number in inputs[task] if left[number] == 1 and frees[number])

    by_rank = [(rank[task], task) for task in guide if not waiting[task]]
    shrinking = [(growth(task), rank[task], task) for _, task in by_rank]
    shrinking = [entry for entry in shrinking if entry[0] < 0]
    heapq.heapify(by_rank)
    heapq.heapify(shrinking)
    order: list[int] = []
    while by_rank:
        if shrinking:
            _, _, task = heapq.heappop(shrinking)
        else:
            _, task = heapq.heappop(by_rank)
        if done[task]:
            continue
        done[task] = True
        order.append(task)
        touched: list[int] = []
        for number in inputs[task]:
            left[number] -= 1
            if left[number] == 1 and frees[number]:
                touched.extend(reader for reader in consumers[number] if not done[reader] and not waiting[reader])
        for other in successors[task]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(by_rank, (rank[other], other))
                touched.append(other)
        for other in touched:
            change = growth(other)
            if change < 0:
                heapq.heappush(shrinking, (change, rank[other], other))
    return order


def _backward(problem: Problem, guide: Sequence[int], successors: list[list[int]], predecessors: list[list[int]]) -> list[int]:
    nbytes, inputs, outputs = problem.nbytes, problem.inputs, problem.outputs
    rank = {task: len(guide) - place for place, task in enumerate(guide)}
    live = [problem.kept[number] for number in range(problem.buffer_count)]  # needed by what is already placed
    waiting = [len(after) for after in successors]
    done = [False] * problem.task_count

    def growth(task: int) -> int:
        """Bytes live before the task less those live after it: what going past it costs."""
        made = sum(nbytes[number] for number in outputs[task] if live[number])
        return sum(nbytes[number] for number in inputs[task] if not live[number]) - made

    by_rank = [(rank[task], task) for task in guide if not waiting[task]]
    shrinking = [(growth(task), rank[task], task) for _, task in by_rank]
    shrinking = [entry for entry in shrinking if entry[0] < 0]
    heapq.heapify(by_rank)
    heapq.heapify(shrinking)
    order: list[int] = []
    while by_rank:
        if shrinking:
            _, _, task = heapq.heappop(shrinking)
        else:
            _, task = heapq.heappop(by_rank)
        if done[task]:
            continue
        done[task] = True
        order.append(task)
        touched: list[int] = []
        for number in inputs[task]:
            if not live[number]:
                live[number] = True
                touched.extend(reader for reader in problem.consumers[number] if not done[reader] and not waiting[reader])
        for number in outputs[task]:
            live[number] = False
        for other in predecessors[task]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(by_rank, (rank[other], other))
                touched.append(other)
        for other in touched:
            change = growth(other)
            if change < 0:
                heapq.heappush(shrinking, (change, rank[other], other))
    order.reverse()
    return order
