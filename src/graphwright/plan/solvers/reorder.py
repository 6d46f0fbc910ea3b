"""Reordering without recomputation: each task once, in an order that holds less.

List scheduling along a guide order: a ready task runs at once if it, with the tasks that it makes ready and the few other readers of its
inputs, soon frees more than it allocates; otherwise the next task of the guide runs. So optimizer updates run as soon as their gradient is
computed. The mirror image walks from the end, so that tasks that allocate more than they free (zeros, masks, casts of weights) run late.
Both are used in turn; the order with the smallest peak wins, the original order included.
"""

import heapq
from collections.abc import Sequence

from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.problem import Problem

SMALL = 3_000  # tasks up to which every combination is tried
SIBLINGS = 2  # readers of a value, besides a task, that are looked at with it: only together they free what they read


def reorder(problem: Problem, *, rounds: int = 2) -> list[list[int]]:
    """Return valid orders that run each task once, best first by (peak, bytes held times time).

    Bytes are weighted by time, so that an update that runs early, while much is live, does not count for more than one that waits.
    """
    successors, predecessors = problem.precedence()
    orders = [list(problem.graph.order)]
    frontier = [orders[0]]
    for _ in range(rounds):
        fresh: list[list[int]] = []
        for guide in frontier:
            forward = _forward(problem, guide, successors, predecessors)
            fresh += [forward, _backward(problem, forward, successors, predecessors)]
            if problem.task_count <= SMALL:
                fresh.append(_backward(problem, guide, successors, predecessors))
        orders += fresh
        frontier = fresh if problem.task_count <= SMALL else fresh[-1:]
    scored: dict[tuple[int, float], list[int]] = {}
    for order in orders:
        step_bytes = simulate_unchecked(problem.graph, order)
        held = sum(nbytes * problem.time[task] for nbytes, task in zip(step_bytes, order, strict=True))
        scored.setdefault((max(step_bytes, default=0), held), order)  # alike to the byte: one is enough
    return [scored[key] for key in sorted(scored)]


class _Outlook:
    """Looks a few tasks ahead: does running this task free memory?

    The first moment with less memory than now is the *valley*, the maximum on the way the *hill*; the task with the lowest hill goes first
    (the rule that is optimal for trees, Liu 1987).
    """

    def __init__(self, problem: Problem, successors: list[list[int]], waiting: list[int]) -> None:
        self.problem = problem
        self.successors = successors
        self.waiting = waiting
        self.done = [False] * problem.task_count
        self.left = [len(readers) for readers in problem.consumers]  # readers still to run
        self.depth = 16 if problem.task_count < 20_000 else 8

    def growth(self, task: int, left: dict[int, int]) -> tuple[int, int]:
        """Return (bytes live after the task less those before, maximum on the way)."""
        problem = self.problem
        made = lasting = freed = 0
        for number in problem.outputs[task]:
            made += problem.nbytes[number]
            if left.get(number, self.left[number]) or problem.kept[number]:
                lasting += problem.nbytes[number]
        credit = 0
        for number in problem.inputs[task]:
            if left.get(number, self.left[number]) == 1 and not problem.kept[number]:
                freed += problem.nbytes[number]
        if problem.in_place[task] and freed:
            credit = min(made, freed)
        return lasting - freed, made - credit + problem.workspace[task]

    def look(self, task: int, rank: list[int]) -> tuple[int, int] | None:
        """Return (hill, valley), or None if no valley is in sight."""
        left: dict[int, int] = {}
        waiting: dict[int, int] = {}
        offered = {task}
        ready = [(self.growth(task, left)[0], rank[task], task)]
        net = hill = 0
        for _ in range(self.depth):
            if not ready:
                return None
            _, _, current = heapq.heappop(ready)
            change, most = self.growth(current, left)
            hill = max(hill, net + most)
            net += change
            if net < 0:
                return hill, net
            for number in self.problem.inputs[current]:
                left[number] = left.get(number, self.left[number]) - 1
                if 0 < left[number] <= SIBLINGS and self.problem.producer[number] >= 0:
                    for other in self.problem.consumers[number]:
                        if not self.waiting[other] and not self.done[other] and other not in offered:
                            offered.add(other)
                            heapq.heappush(ready, (self.growth(other, left)[0], rank[other], other))
            for other in self.successors[current]:
                waiting[other] = waiting.get(other, self.waiting[other]) - 1
                if not waiting[other]:
                    heapq.heappush(ready, (self.growth(other, left)[0], rank[other], other))
        return None


def _forward(problem: Problem, guide: Sequence[int], successors: list[list[int]], predecessors: list[list[int]]) -> list[int]:
    rank = [0] * problem.task_count
    for place, task in enumerate(guide):
        rank[task] = place
    waiting = [len(before) for before in predecessors]
    outlook = _Outlook(problem, successors, waiting)
    left, done = outlook.left, outlook.done
    by_rank = [(rank[task], task) for task in guide if not waiting[task]]
    heapq.heapify(by_rank)
    shrinking: list[tuple[int, int, int, int]] = []

    def offer(task: int) -> None:
        seen = outlook.look(task, rank)
        if seen is not None:
            heapq.heappush(shrinking, (*seen, rank[task], task))

    for _, task in sorted(by_rank):
        offer(task)
    order: list[int] = []
    while by_rank:
        task = -1
        while shrinking:
            hill, valley, _, candidate = heapq.heappop(shrinking)
            if done[candidate]:
                continue
            seen = outlook.look(candidate, rank)
            if seen == (hill, valley):
                task = candidate
                break
            if seen is not None:
                heapq.heappush(shrinking, (*seen, rank[candidate], candidate))
        if task < 0:
            _, task = heapq.heappop(by_rank)
            if done[task]:
                continue
        done[task] = True
        order.append(task)
        touched: dict[int, None] = {}
        for number in problem.inputs[task]:
            left[number] -= 1
            if left[number] == 1 and not problem.kept[number]:
                touched.update((reader, None) for reader in problem.consumers[number] if not done[reader] and not waiting[reader])
        for other in successors[task]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(by_rank, (rank[other], other))
                touched[other] = None
            elif waiting[other] == 1:
                touched.update((before, None) for before in predecessors[other] if not done[before] and not waiting[before])
        for other in touched:
            offer(other)
    return order


def _backward(problem: Problem, guide: Sequence[int], successors: list[list[int]], predecessors: list[list[int]]) -> list[int]:
    nbytes, inputs, outputs = problem.nbytes, problem.inputs, problem.outputs
    rank = {task: len(guide) - place for place, task in enumerate(guide)}
    live = [problem.kept[number] for number in range(problem.buffer_count)]  # needed by what is already placed
    waiting = [len(after) for after in successors]
    done = [False] * problem.task_count

    def growth(task: int) -> int:
        freed = sum(nbytes[number] for number in outputs[task] if live[number])
        return sum(nbytes[number] for number in inputs[task] if not live[number]) - freed

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
