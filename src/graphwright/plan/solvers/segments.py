"""Segments between narrow cuts: classic checkpointing, on any schedule.

At the peak of a schedule some buffers wait, made before the peak and read after it (the *residuals*). The steps before the peak are split
into segments at *narrow cuts*, where later steps before the peak need few bytes. Buffers that cross a cut are saved; all other residuals
are dropped, and the first read after the peak remakes its segment from the cut below it.

Segments have equal bytes, or are *graded*: when a segment is remade, buffers saved for later segments are gone already, so an earlier
segment may be longer. A chain of n layers then needs the memory of sqrt(2 n) of them instead of 2 sqrt(n), and the last segment is not
remade. Applied to its own result, the function gives the multi-level schedules that very small budgets need (Griewank & Walther 2000,
"revolve"; Chen et al. 2016, "sublinear memory cost").
"""

import bisect
import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property

from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.problem import Problem

LEVELS = 6
GROWTH = 3  # longest schedule worth a look, as a multiple of the one it starts from


def segment_levels(problem: Problem, steps: Sequence[int], budget: int, deadline: float) -> Iterator[list[list[int]]]:
    """Yield schedules by segments, one level of recursion after the other.

    Each level holds a schedule per segment size: those within the budget by time, then the others by peak. The next level starts from the
    lowest peak; it ends if nothing is left to drop, the peak no longer falls, or time is up.
    """
    current = list(steps)
    peak = max(simulate_unchecked(problem.graph, current), default=0)
    for _ in range(LEVELS):
        level: list[tuple[int, float, int, int, list[int]]] = []
        for schedule, top in _sizes(problem, current, deadline):
            level.append((max(top, budget), sum(problem.time[task] for task in schedule), top, len(level), schedule))
        if not level:
            return
        level.sort()
        yield [schedule for _, _, _, _, schedule in level]
        lowest = min(level, key=lambda entry: (entry[2], entry[1], entry[3]))
        if lowest[2] >= peak or problem.stop(deadline):
            return
        peak, current = lowest[2], lowest[4]


def _sizes(problem: Problem, steps: list[int], deadline: float) -> list[tuple[list[int], int]]:
    lives = Lives(problem, steps)
    if not lives.residuals:
        return []
    total = sum(lives.nbytes(version) for version in lives.residuals)
    schedules: list[tuple[list[int], int]] = []
    seen: set[frozenset[int]] = set()
    largest = max(lives.nbytes(version) for version in lives.residuals)
    for graded, ratio in ((False, 1.6), (True, 1.25)):
        size = float(total)
        worse, lowest = 0, float("inf")
        while size >= largest / 2 and worse < 4 and not problem.stop(deadline):
            saved, cuts = lives.save(size, graded=graded)
            size /= ratio
            key = frozenset(saved)
            if key in seen:
                continue
            seen.add(key)
            schedule = lives.generate(saved, cuts, drop_last=not graded)
            if schedule is not None:
                top = max(simulate_unchecked(problem.graph, schedule))
                schedules.append((schedule, top))
                worse = worse + 1 if top >= lowest else 0
                lowest = min(lowest, top)
    return schedules


def _equal(crossing: list[int], prefix: list[int], size: float) -> tuple[int, list[int]]:
    """Return the last cut, and the cut before each, with at most `size` residual bytes between cuts and the fewest bytes saved.

    `crossing[j]` bytes are saved by a cut after step `j`; `prefix[j]` residual bytes are made before step `j`. A sliding minimum.
    """
    count = len(prefix) - 1
    window: deque[int] = deque()
    cost = [0.0] * count
    before = [-1] * count
    left = -1
    for step in range(count):
        # A segment (i, step] holds prefix[step + 1] - prefix[i + 1] residual bytes.
        while left < step - 1 and prefix[step + 1] - prefix[left + 1] > size:
            left += 1
        while window and window[0] < left:
            window.popleft()
        if left < 0:
            cost[step], before[step] = float(crossing[step]), -1
        elif window:
            cost[step], before[step] = cost[window[0]] + crossing[step], window[0]
        else:
            cost[step], before[step] = cost[step - 1] + crossing[step], step - 1
        while window and cost[window[-1]] >= cost[step]:
            window.pop()
        window.append(step)
    # The last segment needs no cut after it: pick the cheapest cut that leaves at most `size` behind it.
    tail = [step for step in range(count) if prefix[count] - prefix[step + 1] <= size]
    cut = min(tail, key=lambda step: (cost[step], step)) if prefix[count] > size and tail else -1
    return cut, before


def _graded(crossing: list[int], prefix: list[int], size: float) -> tuple[int, list[int]]:
    """Do the same with at most `size` bytes for all earlier cuts and the residuals of a segment together.

    A cut that cannot be followed by one more step never can again, so the cheapest cut that still can is on top of a heap.
    """
    count = len(prefix) - 1
    cost = [0.0] * count
    before = [-1] * count
    heap: list[tuple[float, int]] = []
    for step in range(count):
        while heap and heap[0][0] + prefix[step + 1] - prefix[heap[0][1] + 1] > size:
            heapq.heappop(heap)
        if prefix[step + 1] <= size:
            cost[step], before[step] = float(crossing[step]), -1
        elif heap:
            cost[step], before[step] = heap[0][0] + crossing[step], heap[0][1]
        else:
            return -1, before
        heapq.heappush(heap, (cost[step], step))
    # The first cut that the end can follow leaves the longest last segment, which is not remade.
    tail = [step for step in range(count) if cost[step] + prefix[count] - prefix[step + 1] <= size]
    return (min(tail), before) if prefix[count] > size and tail else (-1, before)


class Lives:
    """Versions of a schedule, numbered in order of making, and the residuals at its peak."""

    def __init__(self, problem: Problem, steps: list[int]) -> None:
        self.problem = problem
        self.steps = steps
        current: dict[int, int] = {}
        self.buffer: list[int] = []
        self.made: list[int] = []  # step that makes the version, -1: given
        self.uses: list[list[int]] = []
        self.reads: list[list[int]] = []  # versions read by each step
        self.makes: list[list[int]] = []
        self.first: dict[int, int] = {}
        for step, task in enumerate(steps):
            self.first.setdefault(task, step)
            read: list[int] = []
            for number in problem.inputs[task]:
                if number not in current:
                    current[number] = self._new(number, -1)
                self.uses[current[number]].append(step)
                read.append(current[number])
            made: list[int] = []
            for number in problem.outputs[task]:
                current[number] = self._new(number, step)
                made.append(current[number])
            self.reads.append(read)
            self.makes.append(made)
        step_bytes = simulate_unchecked(problem.graph, steps)
        self.peak_step = step_bytes.index(max(step_bytes)) if step_bytes else 0
        self.residuals = [
            version
            for version in range(len(self.buffer))
            if 0 <= self.made[version] < self.peak_step
            and self.nbytes(version)
            and self.uses[version]
            and self.uses[version][-1] > self.peak_step
            and self.peak_step not in self.uses[version]
            and not problem.kept[self.buffer[version]]
            and problem.recomputable[steps[self.made[version]]]
        ]

    def _new(self, number: int, step: int) -> int:
        self.buffer.append(number)
        self.made.append(step)
        self.uses.append([])
        return len(self.buffer) - 1

    def nbytes(self, version: int) -> int:
        return self.problem.nbytes[self.buffer[version]]

    @cached_property
    def _crossings(self) -> tuple[list[int], list[int], list[tuple[int, int, int]]]:
        """Bytes saved by a cut after each step, residual bytes made before each step, and (start, end, version) of versions to cut."""
        peak = self.peak_step
        inside = [0] * (peak + 1)  # residual bytes made at each step
        for version in self.residuals:
            inside[self.made[version]] += self.nbytes(version)
        crossing = [0] * (peak + 2)  # bytes that later steps before the peak still read, after each step
        spans: list[tuple[int, int, int]] = []
        for version in range(len(self.buffer)):
            start, number = self.made[version], self.buffer[version]
            if start < 0 or start >= peak or self.problem.kept[number]:
                continue
            place = bisect.bisect_right(self.uses[version], peak)
            end = self.uses[version][place - 1] if place else start
            if end > start:
                crossing[start] += self.problem.nbytes[number]
                crossing[end] -= self.problem.nbytes[number]
                spans.append((start, end, version))
        for step in range(1, peak + 1):
            crossing[step] += crossing[step - 1]
        return crossing, [0, *itertools.accumulate(inside)], spans

    def save(self, size: float, *, graded: bool) -> tuple[set[int], list[int]]:
        crossing, prefix, spans = self._crossings
        cut, before = _graded(crossing, prefix, size) if graded else _equal(crossing, prefix, size)
        cuts: list[int] = []
        while cut >= 0:
            cuts.append(cut)
            cut = before[cut]
        cuts.reverse()
        saved: set[int] = set()
        for start, end, version in spans:
            place = bisect.bisect_left(cuts, start)
            if place < len(cuts) and cuts[place] < end:
                saved.add(version)
        return saved, cuts

    def generate(self, saved: set[int], cuts: list[int], *, drop_last: bool) -> list[int] | None:
        """Return the schedule that drops all residuals except `saved`, and remakes them a segment at a time; None if it is far too long.

        The last segment, which is read first, stays unless `drop_last`.
        """
        if not cuts and not drop_last:
            return None
        steps = self.steps
        segment: dict[int, list[int]] = {}
        home: dict[int, int] = {}
        for version in self.residuals:
            if version not in saved and (drop_last or self.made[version] <= cuts[-1]):
                home[version] = bisect.bisect_left(cuts, self.made[version])
                segment.setdefault(home[version], []).append(version)
        result: list[int] = []
        remade: set[int] = set()
        for step, task in enumerate(steps):
            if step > self.peak_step:
                for version in self.reads[step]:
                    if version in home and version not in remade:
                        wanted = [version]
                        wanted += [other for other in segment[home[version]] if other not in remade and self.uses[other][-1] >= step]
                        self.remake(wanted, step, home, saved, remade, result)
            result.append(task)
            if len(result) > GROWTH * len(steps):
                return None
        return result

    def remake(self, wanted: list[int], at: int, dropped: dict[int, int], saved: set[int], remade: set[int], result: list[int]) -> None:
        """Append the runs that make `wanted` from the versions live at step `at`."""
        problem, steps = self.problem, self.steps
        done: set[int] = set()
        stack = [(self.made[version], False) for version in sorted(wanted, key=lambda version: -self.made[version])]
        while stack:
            step, expanded = stack.pop()
            task = steps[step]
            if expanded:
                result.append(task)
                remade.update(self.makes[step])
                continue
            if step in done:
                continue
            done.add(step)
            if not problem.recomputable[task] or any(self.first[killer] < at for killer in problem.killers[task]):
                continue
            stack.append((step, True))
            for source in reversed(self.reads[step]):
                maker = self.made[source]
                if maker < 0 or source in saved or maker in done or problem.kept[self.buffer[source]]:
                    continue
                if (source in remade or source not in dropped) and self.uses[source][-1] >= at:
                    continue  # still there, for a later read
                stack.append((maker, False))
