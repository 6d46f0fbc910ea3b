"""The search from the end: valid schedules, and proofs that hold against every order and many recomputations."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from graphwright.plan.model import Buffer, CostGraph, Schedule, Task
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import lower_bound, minimum, solve
from graphwright.plan.solvers.backward import BackwardSearch
from graphwright.plan.solvers.portfolio import canonical
from graphwright.plan.solvers.problem import Problem
from tests.plan.plan_graphs import cost_graphs, reference_is_valid, reference_step_bytes

DATA = Path(__file__).parents[2] / "bench" / "data" / "planner_graphs"
EVERYTHING = 1 << 20  # a width that never cuts a small search short


def search(graph: CostGraph, budget: int) -> tuple[list[int] | None, bool]:
    found = BackwardSearch(Problem(graph)).run(budget, EVERYTHING)
    return found.steps, found.exhausted


def some_schedules(graph: CostGraph, seed: int) -> list[tuple[int, ...]]:
    """All orders of a small graph, and orders with random recomputations put in."""
    source = random.Random(seed)
    count = len(graph.tasks)
    orders = list(itertools.islice(itertools.permutations(range(count)), 800))
    for _ in range(400):
        steps = list(graph.order)
        for _ in range(source.randrange(1, 4)):
            steps.insert(source.randrange(len(steps) + 1), source.randrange(count))
        orders.append(tuple(steps))
    return [steps for steps in orders if reference_is_valid(graph, steps)]


@settings(max_examples=80, deadline=None)
@given(cost_graphs(max_tasks=7), st.floats(0.5, 1.0), st.integers(0, 1000))
def test_what_is_found_fits_and_what_is_refused_is_impossible(graph: CostGraph, share: float, seed: int) -> None:
    graph = canonical(graph)
    budget = int(share * simulate(graph, Schedule(graph.order)).peak_bytes)
    steps, exhausted = search(graph, budget)
    if steps is not None:
        assert reference_is_valid(graph, steps)
        assert max(reference_step_bytes(graph, steps), default=0) <= budget
    elif exhausted:
        assert all(max(reference_step_bytes(graph, other)) > budget for other in some_schedules(graph, seed))


@settings(max_examples=40, deadline=None)
@given(cost_graphs(max_tasks=8))
def test_without_in_place_pairs_a_known_peak_is_always_found(graph: CostGraph) -> None:
    bare = canonical(graph)
    tasks = tuple(Task(t.name, t.time, t.inputs, t.outputs, t.after, t.workspace_bytes, t.recomputable) for t in bare.tasks)
    bare = CostGraph(tasks, bare.buffers, bare.order, bare.resident_bytes)
    known = minimum(bare).peak_bytes
    steps, _ = search(bare, known)
    assert steps is not None
    assert max(reference_step_bytes(bare, steps), default=0) <= known


def diamond() -> CostGraph:
    """a -> b, a -> c, (b, c) -> d, (a, d) -> e: keeping a over b, c, d costs its 5 bytes, or making it twice."""
    names = ("a", "b", "c", "d", "e")
    inputs = ((), (0,), (0,), (1, 2), (0, 3))
    sizes = (5, 2, 2, 6, 1)
    tasks = tuple(Task(names[k], 1.0, inputs[k], (k,)) for k in range(5))
    return CostGraph(tasks, tuple(Buffer(names[k], sizes[k], k) for k in range(5)), tuple(range(5)))


def test_it_recomputes_where_it_must() -> None:
    """Kept, a stands beside b, c and d: 5 + 2 + 2 + 6. Made again for e, d is made with 10 and e with 12."""
    steps, _ = search(diamond(), 12)
    assert steps is not None
    assert steps.count(0) == 2
    assert search(diamond(), 11) == (None, True)


def test_a_budget_proved_impossible_says_so() -> None:
    graph = diamond()
    bound = lower_bound(graph).nbytes
    answer = solve(graph, bound - 1)
    assert answer.status == "infeasible"
    assert answer.peak_bytes == 12


def test_a_time_cap_leaves_dear_schedules_out() -> None:
    found = BackwardSearch(Problem(diamond())).run(12, EVERYTHING, time_cap=6.0)
    assert found.steps is None
    assert not found.exhausted
