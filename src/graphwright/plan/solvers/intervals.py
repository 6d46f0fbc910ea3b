"""Rematerialization by interval splitting.

A buffer that waits between two uses while the memory overflows is a candidate: it is dropped after the first use and made again right
before the second, together with those of its inputs that are gone by then (a *chain*). The price is the chain's time, the gain the overflow
(bytes above the budget, summed over steps) that vanishes. The candidate with the largest gain per time is taken; prices are updated lazily,
when a candidate reaches the top of the heap.

If a later run would remake the same buffer, the chain replaces that run where memory allows, so the segments of classic checkpointing
emerge.
"""

import heapq
from collections.abc import Iterable

import numpy as np

from graphwright.plan.solvers.draft import Draft, Edit

CHAIN_LIMIT = 3000
EAGERNESS = 0.9  # how close to the best score known a candidate must come to be taken


def reduce_overflow(
    draft: Draft,
    deadline: float,
    *,
    noise: list[float] | None = None,
    time_cap: float = float("inf"),
    patience: int = 3,
) -> bool:
    """Insert recomputations until nothing is above the budget; return whether that was reached.

    Args:
        deadline: value of `now()` at which to stop.
        noise: factor on the gain of dropping each buffer, to vary the answer.
        time_cap: give up when the schedule takes longer.
        patience: how many times candidates are collected again.
    """
    for _ in range(patience):
        before = draft.overflow()
        if before == 0:
            return True
        _one_round(draft, deadline, noise, time_cap)
        after = draft.overflow()
        if after == 0:
            return True
        if after >= before or draft.problem.stop(deadline) or draft.time > time_cap:
            return False
    return draft.overflow() == 0


def _one_round(draft: Draft, deadline: float, noise: list[float] | None, time_cap: float) -> None:
    heap = list(_candidates(draft, noise))
    draft.problem.work += draft.problem.buffer_count
    heapq.heapify(heap)
    stamp = 0
    ready: dict[tuple[int, int], tuple[int, Edit]] = {}  # priced candidates, and the stamp of the state they were priced on
    truth: dict[tuple[int, int], float] = {}  # priced score as a share of its bound
    tired: dict[tuple[int, int], int] = {}  # stamp at which the chain was too long for the floor
    over = draft.overflow()

    def weight(number: int) -> float:
        return 1.0 if noise is None else noise[number]

    while heap and over > 0:
        if draft.problem.stop(deadline) or draft.time > time_cap:
            return
        _, number, run = heapq.heappop(heap)
        known = ready.get((number, run))
        if known is not None and known[0] == stamp:
            edit = known[1]
        else:
            floor = -heap[0][0] * EAGERNESS if heap else 0.0
            bound = _estimate(draft, number, run)
            if bound <= 0.0:
                continue
            # The share of the bound that was true last time foretells what is true now.
            guess = bound * weight(number) * truth.get((number, run), 1.0)
            if guess < floor:
                heapq.heappush(heap, (-guess, number, run))
                continue
            limited = tired.get((number, run)) != stamp
            score, edit = price(draft, number, run, floor / weight(number) if limited else 0.0)
            truth[number, run] = score / bound
            score *= weight(number)
            if edit is None:
                if floor > 0.0 and limited:  # too dear for now, not for ever
                    tired[number, run] = stamp
                    truth[number, run] = 0.5 * floor / weight(number) / bound
                    heapq.heappush(heap, (-0.5 * floor, number, run))
                continue
            if score < floor:
                ready[number, run] = (stamp, edit)
                heapq.heappush(heap, (-score, number, run))
                continue
        ready.pop((number, run), None)
        fresh = draft.apply(edit)
        over -= edit.gain
        stamp += 1
        # The chain reads and remakes buffers: those have new waits that may be overfull too.
        for other in fresh:
            task = draft.run_task[other]
            for source in draft.problem.inputs[task]:
                score = _estimate(draft, source, other) * weight(source)
                if score > 0:
                    heapq.heappush(heap, (-score, source, other))


def _candidates(draft: Draft, noise: list[float] | None) -> Iterable[tuple[float, int, int]]:
    """Return (-optimistic score, buffer, run before which the buffer would be remade)."""
    problem = draft.problem
    overfull = np.concatenate([[0], np.cumsum(draft.step_bytes > draft.budget)])
    overfull_list: list[int] = overfull.tolist()
    for number in range(problem.buffer_count):
        producer = problem.producer[number]
        if producer < 0 or not problem.recomputable[producer] or not problem.nbytes[number]:
            continue
        for start, uses in draft.lives(number):
            previous = start
            for use in uses:
                steps = overfull_list[use] - overfull_list[previous + 1] if use > previous else 0
                if steps > 0:
                    score = problem.nbytes[number] * steps / max(problem.time[producer], problem.tiny_time)
                    if noise is not None:
                        score *= noise[number]
                    yield -score, number, draft.order[use]
                previous = use


def _gap(draft: Draft, number: int, run: int) -> tuple[int, int] | None:
    """Return (previous use or making, position of the run) of the wait that ends at a run."""
    if not draft.is_present(run):
        return None
    at = int(draft.position[run])
    return max((event for event in (*draft.uses(number), *draft.writes(number)) if event < at), default=-1), at


def _estimate(draft: Draft, number: int, run: int) -> float:
    """Return an approximate upper bound on the score of `price`."""
    problem = draft.problem
    problem.work += 2
    producer = problem.producer[number]
    if producer < 0 or not problem.recomputable[producer]:
        return 0.0
    gap = _gap(draft, number, run)
    if gap is None or gap[1] - gap[0] <= 1:
        return 0.0
    over = draft.step_bytes[gap[0] + 1 : gap[1]] - draft.budget
    gain = int(np.clip(over, 0, problem.nbytes[number]).sum())
    return gain / max(problem.time[producer], problem.tiny_time)


def price(draft: Draft, number: int, run: int, floor: float = 0.0) -> tuple[float, Edit | None]:
    """Return the best edit that drops a buffer in the wait that ends at `run`, with its gain per time.

    The score is 0 without an edit; a chain too long to reach `floor` is not priced.
    """
    problem = draft.problem
    gap = _gap(draft, number, run)
    producer = problem.producer[number]
    if gap is None or gap[0] < 0 or gap[1] - gap[0] <= 1 or not draft.may_rerun(producer, gap[1]):
        return 0.0, None
    low, at = gap
    over = draft.step_bytes[low + 1 : at] - draft.budget
    over = over[over > 0]
    if not len(over):
        return 0.0, None
    best_score, best = 0.0, None
    most = int(np.minimum(over, problem.nbytes[number]).sum()) / floor if floor > 0.0 else float("inf")
    for eager in (False, True):
        chain, prolongs = build_chain(draft, producer, at, eager=eager, time_limit=most)
        if chain is not None:
            takeover = _later_runs(draft, chain, at)
            options: list[tuple[int, ...]] = [takeover, ()] if takeover else [()]
            idle = _unread_run(draft, producer, low, at)
            if idle is not None:  # made too early: move it instead of making it twice
                options.insert(0, (idle, *takeover))
            for removed in options:
                edit = draft.trial(chain, at, removed)
                score = 0.0 if edit is None or edit.gain <= 0 else edit.gain / max(edit.time, problem.tiny_time)
                if score > best_score:
                    best_score, best = score, edit
                    break
        if not prolongs:
            break
    return best_score, best


def _unread_run(draft: Draft, task: int, place: int, at: int) -> int | None:
    """Return the run of a task at `place`, if nothing reads it before `at` and it may be moved there."""
    run = draft.order[place]
    if draft.run_task[run] != task or not draft.may_postpone(run, at):
        return None
    for number in draft.problem.outputs[task]:
        if any(place < use < at for use in draft.uses(number)):
            return None
    return run


def build_chain(draft: Draft, task: int, at: int, *, eager: bool, time_limit: float = float("inf")) -> tuple[list[int] | None, bool]:
    """Return the tasks to run before position `at` so that `task` can run there, `task` last; None if they are too many.

    An input that is gone is remade, or its life is prolonged if the budget allows (`eager`: it is remade if possible). The flag says
    whether a life was prolonged instead.
    """
    problem = draft.problem
    chain: list[int] = []
    planned: set[int] = set()
    prolonged: set[int] = set()
    spent = 0.0
    stack: list[tuple[int, bool]] = [(task, False)]
    while stack:
        current, expanded = stack.pop()
        if expanded:
            chain.append(current)
            continue
        if current in planned:
            continue
        planned.add(current)
        last = draft.runs[current][-1]
        if int(draft.position[last]) < at:  # otherwise it may take over from a later run
            spent += problem.time[current]
        if len(planned) > CHAIN_LIMIT or spent > time_limit:
            return None, bool(prolonged)
        stack.append((current, True))
        for number in problem.inputs[current]:
            source = problem.producer[number]
            if source < 0 or source in planned or number in prolonged or problem.kept[number]:
                continue
            end = _live_until(draft, number, at)
            if end >= at:
                continue
            if not draft.may_rerun(source, at):
                continue
            if not eager and int(draft.step_bytes[end + 1 : at].max(initial=0)) + problem.nbytes[number] <= draft.budget:
                prolonged.add(number)
                continue
            stack.append((source, False))
    return chain, bool(prolonged)


def _live_until(draft: Draft, number: int, at: int) -> int:
    """Return the last use of the version that is current before position `at`; at least `at` if it is live there."""
    writes = draft.writes(number)
    start = max((write for write in writes if write < at), default=-1)
    following = min((write for write in writes if write >= at), default=1 << 62)
    return max((use for use in draft.uses(number) if start < use < following), default=start)


def _later_runs(draft: Draft, chain: list[int], at: int) -> tuple[int, ...]:
    """Return the runs after `at` that remake what the chain makes, if keeping it until then fits in the budget."""
    problem = draft.problem
    later: list[int] = []
    for task in chain:
        for run in draft.runs[task][1:]:
            place = int(draft.position[run])
            if place < at:
                continue
            nbytes = sum(problem.nbytes[number] for number in problem.outputs[task])
            if int(draft.step_bytes[at:place].max(initial=0)) + nbytes <= draft.budget:
                later.append(run)
            break
    return tuple(later)
