"""Make a schedule that fits cheaper.

`fill` spends free memory: recomputations are taken back, the most time per byte first. `ruin_and_recreate` is a large-neighborhood search
(Schrimpf et al. 2000): take back all recomputations around one place, repair with the interval solver under slightly shuffled prices, fill,
and keep the result if it is cheaper.
"""

import heapq
import random

from graphwright.plan.solvers.draft import Draft, Edit
from graphwright.plan.solvers.intervals import reduce_overflow


def fill(draft: Draft, deadline: float) -> None:
    """Remove recomputations while nothing new rises above the budget, the most time per byte first."""
    heap: list[tuple[float, int, int]] = []
    problem = draft.problem
    stamp = 0
    priced: dict[int, tuple[int, Edit]] = {}

    def offer(run: int) -> None:
        edit = draft.trial((), 0, (run,))
        if edit is not None and edit.gain >= 0:
            priced[run] = (stamp, edit)
            heapq.heappush(heap, (-_worth(draft, edit), int(draft.position[run]), run))

    for runs in draft.runs:
        for run in runs[1:]:
            if problem.stop(deadline):
                return
            offer(run)
    while heap:
        if problem.stop(deadline):
            return
        _, _, run = heapq.heappop(heap)
        if not draft.is_present(run):
            continue
        when, edit = priced[run]
        if when != stamp:
            fresh = draft.trial((), 0, (run,))
            if fresh is None or fresh.gain < 0:
                continue
            edit = fresh
            worth = _worth(draft, edit)
            priced[run] = (stamp, edit)
            if heap and worth < -heap[0][0]:
                heapq.heappush(heap, (-worth, int(draft.position[run]), run))
                continue
        task = draft.run_task[run]
        draft.apply(edit)
        stamp += 1
        # What only served this run may be of no use now.
        for number in problem.inputs[task]:
            producer = problem.producer[number]
            if producer >= 0:
                for other in draft.runs[producer][1:]:
                    offer(other)


def _worth(draft: Draft, edit: Edit) -> float:
    old = draft.step_bytes[edit.low : edit.low + len(edit.window)]
    grown = (edit.window - old).clip(min=0)
    slack = (draft.budget - old).clip(min=0) + max(1, draft.budget // 32)
    taken = float((grown / slack).sum())
    return -edit.time / (taken + 1e-3)


def ruin_and_recreate(best: Draft, deadline: float, *, seed: int = 0, patience: int = 60) -> Draft:
    """Return the cheapest schedule found near one that fits; stop after `patience` rounds without improvement."""
    source = random.Random(seed)
    idle = 0
    width = 0.15
    while idle < patience and not best.problem.stop(deadline):
        repeats = [run for runs in best.runs for run in runs[1:]]
        if not repeats:
            return best
        trial = best.copy()
        center = int(best.position[source.choice(repeats)])
        reach = max(3, int(len(best) * width * source.random()))
        share = source.choice((0.3, 0.6, 1.0))
        chosen = [run for run in repeats if abs(int(best.position[run]) - center) <= reach and source.random() < share]
        chosen.sort(key=lambda run: -int(best.position[run]))
        for run in chosen:
            edit = trial.trial((), 0, (run,))
            if edit is not None:
                trial.apply(edit)
        noise = [source.lognormvariate(0.0, 0.4) for _ in range(best.problem.buffer_count)] if source.random() < 0.8 else None
        ok = reduce_overflow(trial, deadline, noise=noise, time_cap=best.time)
        if ok:
            fill(trial, deadline)
        if ok and trial.time < best.time * (1 - 1e-9):
            best = trial
            idle = 0
        else:
            idle += 1
    return best
