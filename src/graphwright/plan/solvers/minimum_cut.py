"""Which residuals wait at the peak, and which steps run again after it, by minimum cuts in near-linear time.

A residual (see `segments`) waits, or its maker runs again, and so does the maker of each input of a step that runs again. With a price for
a waiting byte, the choice with the least `time of steps that run again + price x waiting bytes` is a minimum cut of a network with a node
for each step and each version (He & Yu 2023, "Transcending runtime-memory tradeoffs in checkpointing by being fusion aware"; the model of
closures is Picard's, 1976). It is exact for the peak.

Choices for rising prices nest. Equal blocks of a network change at the same price, so a budget between two choices is met by following the
expensive one in the first steps, whose values wait longest, and the cheap one in the rest.

The cut ignores how long recomputed values wait: a sum through all blocks (a residual network) would be made again as a whole. So the
versions that cross the cuts of `segments` wait in any case, for several segment lengths.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from graphwright.plan.simulate import simulate_unchecked
from graphwright.plan.solvers.problem import Problem
from graphwright.plan.solvers.segments import GROWTH, Lives

RATIO = 2.0  # between lengths of segments
PRICES = 14  # halvings of the range of prices
HIGHER = 6  # prices above the one at which what waits fits, where what is run again does not
MIXED = 3  # segmentations, those that promise most, for which two choices are mixed ...
HALVINGS = 12  # ... so finely
WORSE = 4  # segmentations in a row that promise less than the best one, after which to stop
LARGEST = 1 << 27  # capacity; what flows into a node stays below 2**31
ENDLESS = 1 << 30
_ENDLESS_BYTES = 1 << 62

Booleans = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which steps before the peak run again."""

    again: Booleans
    waiting: int
    time: float


def minimum_cuts(problem: Problem, steps: Sequence[int], budget: int, deadline: float) -> list[list[int]]:
    """Return schedules made by minimum cuts, best first: those within the budget by time, then the one with the smallest peak."""
    network = Network(problem, list(steps))
    if not network.lives.residuals:
        return []
    mixable: list[tuple[float, int, Booleans, Choice, Choice]] = []
    judged: list[tuple[int, float, int, list[int]]] = []

    def judge(again: Booleans, certain: Booleans) -> int:
        schedule = network.schedule(again, certain)
        if schedule is None:
            return _ENDLESS_BYTES
        top = max(simulate_unchecked(problem.graph, schedule))
        judged.append((max(top, budget), sum(problem.time[task] for task in schedule), len(judged), schedule))
        problem.work += len(schedule) // 10
        return top

    worse = 0
    for certain in network.segmentations():
        below, above = network.bracket(certain, budget)
        top = judge(above.again, certain)
        price_up = iter(network.dearer(certain, above))
        while top > budget:
            higher = next(price_up, None)
            if higher is None:
                break
            lower_top, below, above = top, above, higher
            top = judge(above.again, certain)
            if top >= lower_top:
                break
        if problem.stop(deadline):
            break
        if top > budget:
            continue
        # A mixture keeps about what is run again at once.
        spread = max(below.waiting - above.waiting, 1)
        share = min(max((below.waiting + top - above.waiting - budget) / spread, 0.0), 1.0)
        promise = below.time + share * (above.time - below.time)
        worse = worse + 1 if mixable and promise >= min(mixable)[0] else 0
        mixable.append((promise, len(mixable), certain, below, above))
        if worse == WORSE:
            break
    for _, _, certain, below, above in sorted(mixable)[:MIXED]:
        low, high = 0, network.peak
        for _ in range(HALVINGS):
            middle = (low + high) // 2
            if high - low <= 1 or problem.stop(deadline):
                break
            fits = judge(np.concatenate([above.again[:middle], below.again[middle:]]), certain) <= budget
            low, high = (low, middle) if fits else (middle, high)
    return [schedule for _, _, _, schedule in sorted(judged)]


def source_side(
    capacities: NDArray[np.int32], rows: NDArray[np.int64], columns: NDArray[np.int64], ends: tuple[int, int]
) -> tuple[int, Booleans]:
    """Return the capacity of a minimum cut of a network, and per node whether it is on the source's side."""
    source, sink = ends
    graphs: Any = csgraph  # SciPy has no complete types
    network: Any = sparse.csr_matrix((capacities, (rows, columns)), shape=(sink + 1, sink + 1))
    flow = graphs.maximum_flow(network, source, sink)
    left = network - flow.flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    side = np.zeros(sink + 1, dtype=bool)
    side[graphs.breadth_first_order(left, source, return_predecessors=False)] = True
    return int(flow.flow_value), side


class Network:
    """The network of a schedule: its nodes are the steps before the peak, the versions, a source and a sink.

    The source's side of a cut holds the steps that run again and the versions that are needed after the peak.
    """

    def __init__(self, problem: Problem, steps: list[int]) -> None:
        self.problem, self.steps = problem, steps
        self.lives = lives = Lives(problem, steps)
        self.peak = peak = lives.peak_step
        made, nbytes = lives.made, [lives.nbytes(version) for version in range(len(lives.buffer))]
        source, sink = peak + len(nbytes), peak + len(nbytes) + 1
        self.ends = source, sink
        needed: list[tuple[int, int]] = []  # (step, version it reads)
        makers: list[tuple[int, int]] = []  # (version that may wait, its maker or the sink)
        times: list[tuple[int, float]] = []
        never: list[int] = []
        for step in range(peak):
            task = steps[step]
            if problem.recomputable[task] and not any(lives.first[killer] < peak for killer in problem.killers[task]):
                times.append((step, problem.time[task]))
            else:
                never.append(step)
            needed += [(step, v) for v in lives.reads[step] if made[v] >= 0 and nbytes[v] and not problem.kept[lives.buffer[v]]]
        residual = set(lives.residuals)
        waits_anyway = [bool(uses) and uses[-1] >= peak and v not in residual for v, uses in enumerate(lives.uses)]
        for version, step in enumerate(made):
            if 0 <= step < peak and nbytes[version] and not waits_anyway[version] and not problem.kept[lives.buffer[version]]:
                makers.append((version, step))
        self.made = np.array(made, dtype=np.int64)
        self.nbytes = np.array(nbytes, dtype=np.int64)
        self.reads = np.array(needed, dtype=np.int64).reshape(-1, 2)
        self.waiting = np.array([version for version, _ in makers], dtype=np.int64)
        self.makers = np.array([step for _, step in makers], dtype=np.int64)
        self.time = np.zeros(peak)
        self.time[[step for step, _ in times]] = [time for _, time in times]
        self.residual = np.zeros(len(nbytes), dtype=bool)
        self.residual[lives.residuals] = True
        timed = np.array([step for step, _ in times], dtype=np.int64)
        self.barred = barred = np.array(never, dtype=np.int64)
        residuals = np.array(lives.residuals, dtype=np.int64)
        self.rows = np.concatenate([timed, self.waiting + peak, barred, self.reads[:, 0], np.full(len(residuals), source)])
        self.columns = np.concatenate(
            [np.full(len(timed), sink), self.makers, np.full(len(barred), sink), self.reads[:, 1] + peak, residuals + peak]
        )
        self.timed = timed
        self.always = max(simulate_unchecked(problem.graph, steps)) - int(self.nbytes[residuals].sum())

    def segmentations(self) -> Iterator[Booleans]:
        """Yield the versions that wait in any case: none, then those that cross the cuts between ever shorter segments."""
        nothing = np.zeros(len(self.nbytes), dtype=bool)
        yield nothing
        sizes = self.nbytes[self.residual]
        size = float(sizes.sum()) / RATIO
        while size >= sizes.max() / 2:
            certain = nothing.copy()
            certain[list(self.lives.save(size, graded=False)[0])] = True
            yield certain
            size /= RATIO

    def cut(self, price: float, certain: Booleans) -> Choice:
        waiting = np.where(certain[self.waiting], 0.0, price * self.nbytes[self.waiting])
        costs = np.concatenate([self.time[self.timed], waiting])
        capacities = np.full(len(self.rows), ENDLESS, dtype=np.int32)
        capacities[: len(costs)] = np.rint(costs * (LARGEST / max(float(costs.max(initial=0.0)), 1e-300)))
        _, side = source_side(capacities, self.rows, self.columns, self.ends)
        again = side[: self.peak]
        return Choice(again, self.always + int(self.nbytes[self.saved(again, certain)].sum()), float(self.time[again].sum()))

    def saved(self, again: Booleans, certain: Booleans) -> Booleans:
        needed = self.residual.copy()
        needed[self.reads[again[self.reads[:, 0]], 1]] = True
        made_before = (self.made >= 0) & (self.made < self.peak)
        made_again = np.zeros(len(needed), dtype=bool)
        made_again[made_before] = again[self.made[made_before]]
        return certain | (needed & made_before & ~made_again)

    def bracket(self, certain: Booleans, budget: int) -> tuple[Choice, Choice]:
        """Return choices at two close prices; the expensive one fits the budget, if any does."""
        cheap, dear = self._prices()
        below, above = self.cut(cheap, certain), self.cut(dear, certain)
        for _ in range(PRICES):
            if below.waiting <= budget or above.waiting > budget or np.array_equal(below.again, above.again):
                break
            price = math.sqrt(cheap * dear)
            between = self.cut(price, certain)
            if between.waiting <= budget:
                dear, above = price, between
            else:
                cheap, below = price, between
        self.price = dear
        return below, above

    def dearer(self, certain: Booleans, above: Choice) -> Iterator[Choice]:
        for _ in range(HIGHER):
            self.price *= 2
            higher = self.cut(self.price, certain)
            if not np.array_equal(higher.again, above.again):
                above = higher
                yield higher

    def _prices(self) -> tuple[float, float]:
        typical = self.problem.base_time / max(int(self.nbytes[self.residual].sum()), 1)
        return typical * 2.0**-20 + 1e-300, typical * 2.0**8 + 1e-300

    def schedule(self, again: Booleans, certain: Booleans) -> list[int] | None:
        """Return the schedule in which dropped residuals are remade right before they are read; None if it is far too long."""
        lives = self.lives
        saved = set(np.flatnonzero(self.saved(again, certain)).tolist())
        dropped = {version: version for version in lives.residuals if version not in saved}
        result: list[int] = []
        remade: set[int] = set()
        for step, task in enumerate(self.steps):
            if step > self.peak:
                for version in lives.reads[step]:
                    if version in dropped and version not in remade:
                        lives.remake([version], step, dropped, saved, remade, result)
            result.append(task)
            if len(result) > GROWTH * len(self.steps):
                return None
        return result
