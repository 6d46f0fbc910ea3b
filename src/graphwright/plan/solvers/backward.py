"""A schedule built from its end: beam search over the set of live buffers.

The state is the set of buffers that later steps need. Placing a task in front of those steps removes its outputs from the set and adds its
inputs; at that step the set before, the inputs, the outputs and the workspace are live together. A task may be placed again, which is a
recomputation. A search ends at the set that needs no task.

Every schedule without a useless run is such a path, so a search that was never pruned and failed *proves* that no schedule fits. Otherwise
the best states of equal length are kept: a beam (Lowerre 1976, "The HARPY speech recognition system"), under several prices at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from graphwright.plan.solvers.problem import Problem

# What a byte (as a share of the budget) and a second of recomputation (as a share of all) cost against a second still to place.
PRICES = ((0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (2.0, 0.0), (0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (2.0, 1.0))
WIDTH = 400  # states that are kept
LONGEST = 20  # give up when a schedule has this many times the tasks

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search."""

    steps: list[int] | None
    exhausted: bool = False


class BackwardSearch:
    """The tables of one problem; `run` searches within a budget.

    States are columns. A row is a buffer, or a *mark*: a buffer of no bytes that says "this task must still run" for a task that only has
    effects or must precede another.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        count, buffers = problem.task_count, problem.buffer_count
        after = [task.after for task in problem.graph.tasks]
        mark: dict[int, int] = {}
        for index in range(count):
            ends = not problem.before[index] and not any(problem.consumers[n] or problem.kept[n] for n in problem.outputs[index])
            if ends or problem.before[index]:
                mark[index] = buffers + len(mark)
        self.rows = buffers + len(mark)
        self.nbytes = np.zeros(self.rows, dtype=np.int64)
        self.nbytes[:buffers] = problem.nbytes
        always = [problem.kept[n] and problem.producer[n] < 0 for n in range(buffers)]
        self.nbytes[:buffers][always] = 0
        self.base = problem.graph.resident_bytes + sum(problem.nbytes[n] for n in range(buffers) if always[n])
        self.producer = np.array([*problem.producer, *mark], dtype=np.int64)
        self.reads = [[*problem.inputs[t], *(mark[e] for e in sorted(set(after[t])))] for t in range(count)]
        self.makes = [[*problem.outputs[t], *([mark[t]] if t in mark else [])] for t in range(count)]
        self.start = [n for n in range(buffers) if problem.kept[n] and problem.producer[n] >= 0]
        self.start += [row for task, row in mark.items() if not problem.before[task]]
        self.before = [sorted({int(self.producer[row]) for row in self.reads[t]} - {-1}) for t in range(count)]
        self.recomputable = np.array(problem.recomputable, dtype=bool)
        self.time = np.array(problem.time, dtype=np.float64) / (problem.base_time or 1.0)
        self.keys = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, size=self.rows, dtype=np.int64)
        self.reads_matrix = _matrix(self.reads, self.rows)
        self.makes_matrix = _matrix(self.makes, self.rows)
        self.reads_flat, self.reads_at = _flat(self.reads)
        self.makes_flat, self.makes_at = _flat(self.makes)
        self.before_flat, self.before_at = _flat(self.before)
        self._price()
        # Killers that must have been placed already (that run later) when a task is placed.
        killers = [[k for k in problem.killers[t] if k != t] for t in range(count)]
        self.killers_matrix = _matrix(killers, count) if any(killers) else None

    def _price(self) -> None:
        """Make tables that are linear in the state: bytes while a task runs, bytes and key of the state before it."""
        problem = self.problem
        count = problem.task_count
        credit_rows: list[tuple[int, int, int]] = []
        self.exact = True  # whether in-place pairs are all counted, so that failing proves something
        for index in range(count):
            taken: set[int] = set()
            for number, output in problem.in_place[index]:
                if number in taken or output in taken:
                    self.exact = False
                    continue
                taken |= {number, output}
                credit_rows.append((index, number, problem.nbytes[output]))
        table = np.array(credit_rows, dtype=np.int64).reshape(-1, 3)
        credit: Any = sparse.coo_array((table[:, 2], (table[:, 0], table[:, 1])), shape=(count, self.rows)).tocsr()
        workspace = np.array(problem.workspace, dtype=np.int64)
        reads, makes = self.reads_matrix, self.makes_matrix
        # Bytes while a task runs: what of its buffers is not needed anyway, less what it takes over in place.
        read_bytes, touched = _scaled(reads, self.nbytes), _scaled(reads + makes, self.nbytes)
        self.while_running = credit - touched
        self.while_running_at: Integers = touched.sum(axis=1) - credit.sum(axis=1) + workspace + self.base
        # Bytes and key of the state before a task: inputs that were not needed come, outputs that were needed go.
        self.bytes_change: Any = touched
        self.bytes_change_at: Integers = read_bytes.sum(axis=1)
        self.key_change: Any = _scaled(reads + makes, self.keys)
        self.key_change_at: Integers = _scaled(reads, self.keys).sum(axis=1)

    def run(self, budget: int, width: int = WIDTH, *, time_cap: float = float("inf"), deadline: float = float("inf")) -> Found:
        """Search with at most `width` states at a time, until the problem's work limit or the deadline."""
        problem = self.problem
        count = problem.task_count
        needed = np.zeros((self.rows, 1), dtype=np.int64)
        needed[self.start] = 1
        waiting = np.zeros((count, 1), dtype=np.int32)  # tasks still to be placed that must come after each task
        for before in self.before:
            waiting[before, 0] += 1
        open_tasks = np.ones((count, 1), dtype=bool)
        held = np.array([int((self.nbytes[:, None] * needed).sum())], dtype=np.int64)
        keys = np.array([int((self.keys[:, None] * needed).sum())], dtype=np.int64)
        left, waste = np.array([1.0]), np.array([0.0])
        history: list[tuple[Integers, Integers]] = []
        seen: set[int] = set()
        cut = not self.exact or time_cap < float("inf")
        most_waste = time_cap / (problem.base_time or 1.0) - 1.0
        scale = max(1, budget - problem.graph.resident_bytes)
        for _ in range(LONGEST * count):
            if problem.stop(deadline):
                return Found(None)
            active = np.unique(self.producer[np.flatnonzero(needed.any(axis=1))])
            active = active[active >= 0]
            if not len(active):
                return Found([])
            wanted = self.makes_matrix[active] @ needed > 0
            repeat = waiting[active] > 0
            bytes_here = self.while_running_at[active][:, None] + self.while_running[active] @ needed + held
            allowed = wanted & (bytes_here <= budget) & (self.recomputable[active][:, None] | ~repeat)
            if self.killers_matrix is not None:
                allowed &= ~(self.killers_matrix[active] @ open_tasks.astype(np.int64) > 0)
            row, state = np.nonzero(allowed)
            if not len(row):
                return Found(None, exhausted=not cut)
            task = active[row]
            again = repeat[row, state]
            next_held = (self.bytes_change_at[active][:, None] - self.bytes_change[active] @ needed + held)[row, state]
            next_keys = (self.key_change_at[active][:, None] - self.key_change[active] @ needed + keys)[row, state]
            spent = self.time[task]
            next_left = left[state] - np.where(again, 0.0, spent)
            next_waste = waste[state] + np.where(again, spent, 0.0)
            problem.work += len(row) // 8 + 40
            ranked = np.lexsort((next_waste, next_keys))
            fresh = np.ones(len(ranked), dtype=bool)
            fresh[1:] = next_keys[ranked[1:]] != next_keys[ranked[:-1]]
            chosen = ranked[fresh]
            chosen = chosen[next_waste[chosen] < most_waste]
            chosen = chosen[[key not in seen for key in next_keys[chosen].tolist()]]
            if not len(chosen):
                return Found(None, exhausted=not cut)
            if len(chosen) > width:
                cut = True
                chosen = chosen[_best(next_left[chosen], next_held[chosen] / scale, next_waste[chosen], width)]
            seen.update(next_keys[chosen].tolist())
            state, task, again = state[chosen], task[chosen], again[chosen]
            history.append((state, task))
            held, keys, left, waste = next_held[chosen], next_keys[chosen], next_left[chosen], next_waste[chosen]
            needed, waiting, open_tasks = needed[:, state], waiting[:, state], open_tasks[:, state]
            where, which = _ragged(self.makes_flat, self.makes_at, task)
            needed[where, which] = 0
            where, which = _ragged(self.reads_flat, self.reads_at, task)
            needed[where, which] = 1
            first = np.flatnonzero(~again)
            open_tasks[task[first], first] = False
            where, which = _ragged(self.before_flat, self.before_at, task[first])
            waiting[where, first[which]] -= 1
            done = np.flatnonzero(~open_tasks.any(axis=0))
            if len(done):
                return Found(_path(history, int(done[np.argmin(waste[done])])))
        return Found(None)


def _best(left: NDArray[np.float64], held: NDArray[np.float64], waste: NDArray[np.float64], width: int) -> Integers:
    share = max(1, width // len(PRICES))
    best = [np.argpartition(left + of_bytes * held + of_waste * waste, share - 1)[:share] for of_bytes, of_waste in PRICES]
    return np.unique(np.concatenate(best))


def _path(history: list[tuple[Integers, Integers]], state: int) -> list[int]:
    steps: list[int] = []
    for parents, tasks in reversed(history):
        steps.append(int(tasks[state]))
        state = int(parents[state])
    return steps


def _matrix(rows: list[list[int]], width: int) -> Any:
    """Return a sparse matrix of ones (SciPy's arrays have no complete types)."""
    flat, at = _flat(rows)
    return sparse.csr_array((np.ones(len(flat), dtype=np.int64), flat, at), shape=(len(rows), width))


def _scaled(matrix: Any, columns: Integers) -> Any:
    width = len(columns)
    return matrix @ sparse.csr_array((columns, np.arange(width), np.arange(width + 1)), shape=(width, width))


def _flat(rows: list[list[int]]) -> tuple[Integers, Integers]:
    at = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=at[1:])
    return np.array([number for row in rows for number in row], dtype=np.int64), at


def _ragged(flat: Integers, at: Integers, rows: Integers) -> tuple[Integers, Integers]:
    """Return all entries of some rows, and for each the place of its row in `rows`."""
    lengths = at[rows + 1] - at[rows]
    which = np.repeat(np.arange(len(rows)), lengths)
    within = np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return flat[np.repeat(at[rows], lengths) + within], which
