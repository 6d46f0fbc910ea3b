"""A schedule under edit: the bytes of every step are kept exact while runs are inserted and removed.

A *run* is one execution of a task; it keeps its number while its position moves. A recomputation may be inserted anywhere after the task's
first run and before its killers: a reader simply finds the later version.

`trial` prices an edit, `apply` makes it. Both take time proportional to the runs of the touched buffers plus numpy work on the window of
steps whose bytes change.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.problem import Problem

Interval = tuple[int, int]
Bytes = NDArray[np.int64]

_SCALE = 1 << 22  # positions between two steps that inserted runs can take
_END = 1 << 62
_GONE = -(1 << 60)
_NOTHING: Bytes = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)  # not frozen, which would take longer to make: solvers make millions
class Edit:
    """A priced edit. `chain` runs before the step at position `at`; runs in `removed` go."""

    chain: tuple[int, ...]
    at: int
    removed: tuple[int, ...]
    time: float  # change of the schedule's time
    gain: int  # overflow byte-steps removed (negative: added)
    low: int  # first step of the window of steps whose bytes change
    window: Bytes  # new bytes in the window, of steps that stay
    inner: Bytes  # bytes of the chain's steps
    new_credits: tuple[tuple[int, int], ...]  # (position, new in-place credit)
    inner_credits: tuple[int, ...]


class Draft:
    """A valid schedule under edit, with the exact bytes of every step."""

    def __init__(self, problem: Problem, steps: Sequence[int], budget: int) -> None:
        self.problem = problem
        self.budget = budget
        self.load(steps)

    def load(self, steps: Sequence[int]) -> None:
        problem = self.problem
        self.run_task: list[int] = list(steps)
        self.order: list[int] = list(range(len(steps)))  # run at each position
        self.position: Bytes = np.arange(len(steps), dtype=np.int64)
        self.runs: list[list[int]] = [[] for _ in range(problem.task_count)]
        for run, task in enumerate(steps):
            self.runs[task].append(run)
        self.time = float(sum(problem.time[task] for task in steps))
        self.step_bytes: Bytes = np.array(simulate_unchecked(problem.graph, list(steps)), dtype=np.int64)
        self.credit: Bytes = np.zeros(len(steps), dtype=np.int64)
        lasts: dict[int, set[int]] = {}  # of all steps, or a task that runs often would be looked at as often in each run
        for position, task in enumerate(steps):
            if problem.in_place[task]:
                self.credit[position] = self._credit(task, position * _SCALE, lasts)

    def steps(self) -> list[int]:
        return [self.run_task[run] for run in self.order]

    def __len__(self) -> int:
        return len(self.order)

    @property
    def peak(self) -> int:
        return int(self.step_bytes.max()) if len(self.order) else self.problem.graph.resident_bytes

    def overflow(self) -> int:
        return _overflow(self.step_bytes, self.budget)

    def is_present(self, run: int) -> bool:
        place = int(self.position[run])
        return 0 <= place < len(self.order) and self.order[place] == run

    def first_position(self, task: int) -> int:
        return int(self.position[self.runs[task][0]])

    def uses(self, number: int) -> list[int]:
        position, runs = self.position, self.runs
        positions = [int(position[run]) for task in self.problem.consumers[number] for run in runs[task]]
        positions.sort()
        return positions

    def writes(self, number: int) -> list[int]:
        """Return the positions that make a buffer, in order; [-1] for one that is present from the start."""
        producer = self.problem.producer[number]
        if producer < 0:
            return [-1]
        position = self.position
        return [int(position[run]) for run in self.runs[producer]]

    def lives(self, number: int) -> list[tuple[int, list[int]]]:
        writes, uses = self.writes(number), self.uses(number)
        stops = [*writes[1:], _END]
        return [(start, uses[bisect_left(uses, start) : bisect_left(uses, stop)]) for start, stop in zip(writes, stops, strict=True)]

    def may_rerun(self, task: int, at: int) -> bool:
        if not self.problem.recomputable[task] or self.first_position(task) >= at:
            return False
        return all(self.first_position(killer) >= at for killer in self.problem.killers[task])

    def may_postpone(self, run: int, at: int) -> bool:
        """Whether a run may be moved before the step at `at`, apart from reads."""
        task = self.run_task[run]
        if self.runs[task][0] != run:
            return all(self.first_position(killer) >= at for killer in self.problem.killers[task])
        others = (*self.problem.killers[task], *self.problem.before[task])
        return all(self.first_position(other) >= at for other in others)

    # ---- pricing -------------------------------------------------------------------------

    def trial(self, chain: Sequence[int], at: int, removed: Sequence[int] = ()) -> Edit | None:
        """Price inserting `chain` before the step at `at` and removing runs.

        Returns None if a removed run is the only source of a reader. The caller ensures `may_rerun` for the chain, and keeps one run of
        each task.
        """
        problem = self.problem
        base, count = (at - 1) * _SCALE, len(chain)
        added_runs: dict[int, list[int]] = {}
        for place, task in enumerate(chain):
            added_runs.setdefault(task, []).append(base + place + 1)
        gone = set(removed)
        removed_tasks = [self.run_task[run] for run in removed]
        touched: set[int] = set()
        for task in (*chain, *removed_tasks):
            touched.update(problem.inputs[task], problem.outputs[task])
        problem.work += 4 + len(touched) + len(self.order) // 2000
        changes: list[tuple[int, int, int]] = []  # (start, end, signed bytes)
        lasts: dict[int, set[int]] = {}  # buffer -> last uses of its versions after the edit
        check_credit: set[int] = set()
        for number in touched:
            if problem.kept[number] and problem.producer[number] < 0:
                continue
            old, new = self._intervals(number, added_runs, gone)
            if new is None:
                return None
            lasts[number] = {end for _, end in new}
            if old == new:
                continue
            before, after = set(old), set(new)
            for interval in before ^ after:
                changes.append((*interval, problem.nbytes[number] if interval in after else -problem.nbytes[number]))
                check_credit.add(interval[1])

        removed_at = [int(self.position[run]) for run in removed]
        low = max(min([-(-start // _SCALE) for start, _, _ in changes] + removed_at, default=0), 0)
        high = min(max([end // _SCALE for _, end, _ in changes] + removed_at, default=-1), len(self.order) - 1)
        window: Bytes = self.step_bytes[low : high + 1].copy()
        inner = _NOTHING
        if count:
            inner = np.array([problem.workspace[task] for task in chain], dtype=np.int64)
            # Bytes live between steps at-1 and at: those of step `at` that were not born there.
            task = self.run_task[self.order[at]]
            inner += int(self.step_bytes[at]) - problem.workspace[task] + int(self.credit[at]) - problem.born[task]
        for start, end, nbytes in changes:
            first, last = max(-(-start // _SCALE), low), min(end // _SCALE, high)
            if first <= last:
                window[first - low : last - low + 1] += nbytes
            left, right = max(start - base - 1, 0), min(end - base - 1, count - 1)
            if left <= right:  # never without a chain
                inner[left : right + 1] += nbytes
        # In-place credits at the steps where a last use came or went.
        new_credits: list[tuple[int, int]] = []
        for position in sorted(check_credit):
            if position >= _END or position < 0 or position % _SCALE:
                continue
            step = position // _SCALE
            task = self.run_task[self.order[step]]
            if not problem.in_place[task] or self.order[step] in gone:
                continue
            credit = self._credit(task, position, lasts)
            if credit != self.credit[step]:
                window[step - low] += int(self.credit[step]) - credit
                new_credits.append((step, credit))
        inner_credits = [self._credit(task, base + place + 1, lasts) if problem.in_place[task] else 0 for place, task in enumerate(chain)]
        if any(inner_credits):
            inner -= np.array(inner_credits, dtype=np.int64)
        for position in removed_at:
            window[position - low] = _GONE
        time = float(sum(problem.time[task] for task in chain) - sum(problem.time[task] for task in removed_tasks))
        gain = _overflow(self.step_bytes[low : high + 1], self.budget) - _overflow(window, self.budget)
        gain -= _overflow(inner, self.budget) if count else 0
        return Edit(tuple(chain), at, tuple(removed), time, gain, low, window, inner, tuple(new_credits), tuple(inner_credits))

    def _intervals(self, number: int, added: dict[int, list[int]], gone: set[int]) -> tuple[list[Interval], list[Interval] | None]:
        """Return scaled (start, end) of the versions of a buffer before and after an edit."""
        problem, position, runs = self.problem, self.position, self.runs
        producer = problem.producer[number]
        kept = problem.kept[number]
        old_uses: list[int] = []
        new_uses: list[int] = []
        for task in problem.consumers[number]:
            for run in runs[task]:
                place = int(position[run]) * _SCALE
                old_uses.append(place)
                if run not in gone:
                    new_uses.append(place)
            if task in added:
                new_uses.extend(added[task])
        old_uses.sort()
        new_uses.sort()
        if producer < 0:
            old_writes = new_writes = [-_SCALE]
        else:
            old_writes = [int(position[run]) * _SCALE for run in runs[producer]]
            new_writes = old_writes
            if gone:
                new_writes = [int(position[run]) * _SCALE for run in runs[producer] if run not in gone]
            if producer in added:
                new_writes = sorted([*new_writes, *added[producer]])
        old = _versions(old_writes, old_uses, kept)
        if new_uses and (not new_writes or new_uses[0] < new_writes[0]):
            return old, None
        return old, _versions(new_writes, new_uses, kept)

    def _credit(self, task: int, place: int, lasts: dict[int, set[int]]) -> int:
        problem = self.problem
        taken: set[int] = set()
        credit = 0
        for number, output in problem.in_place[task]:
            if number in taken or output in taken:
                continue
            ends = lasts.get(number)
            if ends is None:
                ends = lasts[number] = {end for _, end in self._intervals(number, {}, set())[0]}
            if place in ends:
                taken.add(number)
                taken.add(output)
                credit += problem.nbytes[output]
        return credit

    # ---- editing -------------------------------------------------------------------------

    def apply(self, edit: Edit) -> list[int]:
        """Make an edit that `trial` has priced on the present state; return the new runs."""
        at, count = edit.at, len(edit.chain)
        self.step_bytes[edit.low : edit.low + len(edit.window)] = edit.window
        for step, credit in edit.new_credits:
            self.credit[step] = credit
        new_runs: list[int] = []
        removed_at = sorted(int(self.position[run]) for run in edit.removed)
        if count:
            new_runs = list(range(len(self.run_task), len(self.run_task) + count))
            self.run_task += edit.chain
            self.order[at:at] = new_runs
            self.step_bytes = np.concatenate([self.step_bytes[:at], edit.inner, self.step_bytes[at:]])
            self.credit = np.concatenate([self.credit[:at], np.array(edit.inner_credits, dtype=np.int64), self.credit[at:]])
            self.position[self.position >= at] += count
            self.position = np.concatenate([self.position, np.arange(at, at + count, dtype=np.int64)])
            for run, task in zip(new_runs, edit.chain, strict=True):
                insort(self.runs[task], run, key=lambda run: int(self.position[run]))
        if edit.removed:
            shifted = [position + count if position >= at and count else position for position in removed_at]
            for run in edit.removed:
                self.runs[self.run_task[run]].remove(run)
            for position in reversed(shifted):
                del self.order[position]
            self.step_bytes = np.delete(self.step_bytes, shifted)
            self.credit = np.delete(self.credit, shifted)
            keys = np.array(shifted, dtype=np.int64)
            self.position -= np.searchsorted(keys, self.position, side="left")
        self.time += edit.time
        return new_runs

    def copy(self) -> Draft:
        other = object.__new__(Draft)
        other.problem, other.budget, other.time = self.problem, self.budget, self.time
        other.run_task, other.order = list(self.run_task), list(self.order)
        other.position, other.step_bytes, other.credit = self.position.copy(), self.step_bytes.copy(), self.credit.copy()
        other.runs = [list(runs) for runs in self.runs]
        return other


def _overflow(step_bytes: Bytes, budget: int) -> int:
    over = step_bytes - budget
    return int(over[over > 0].sum())


def _versions(writes: list[int], uses: list[int], kept: bool) -> list[Interval]:
    intervals: list[Interval] = []
    place, total = 0, len(uses)
    last = len(writes) - 1
    for index, start in enumerate(writes):
        if index == last:
            if kept:
                intervals.append((start, _END))
            elif place < total:
                intervals.append((start, uses[-1]))
            elif start >= 0:
                intervals.append((start, start))
            break
        stop = writes[index + 1]
        end = start
        while place < total and uses[place] < stop:
            end = uses[place]
            place += 1
        intervals.append((start, end))
    return intervals
