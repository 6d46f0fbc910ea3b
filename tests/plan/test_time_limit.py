"""The time limit is the limit. The clock here is made of work: what solvers do moves it on, so nothing is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from bench import training_graphs as nets
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import curve, lower_bound, minimum_within, solve
from graphwright.plan.solvers import backward
from graphwright.plan.solvers.draft import Draft

GRAPH = nets.residual_net_of(311)
PEAK = simulate(GRAPH, Schedule(GRAPH.order)).peak_bytes
BOUND = lower_bound(GRAPH).nbytes


class Clock:
    """Seconds of simulated processor time: each look at it, each edit that is priced, each step of the search from the end takes some."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1e-4
        return self.seconds

    def charged(self, work: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def done(*arguments: Any, **options: Any) -> Any:
            self.seconds += seconds
            return work(*arguments, **options)

        return done


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "thread_time", made)
    monkeypatch.setattr(time, "perf_counter", made)
    monkeypatch.setattr(Draft, "trial", made.charged(Draft.trial, 0.02))
    monkeypatch.setattr(backward, "_best", made.charged(backward._best, 0.02))
    return made


QUESTIONS: dict[str, tuple[Callable[[float], Any], float]] = {
    "nothing fits": (lambda limit: solve(GRAPH, BOUND - 1, time_limit_s=limit), 2.0),
    "hardly anything fits": (lambda limit: solve(GRAPH, BOUND + (PEAK - BOUND) // 50, time_limit_s=limit), 2.0),
    "with room": (lambda limit: solve(GRAPH, BOUND + PEAK // 50, room_bytes=PEAK // 100, time_limit_s=limit), 2.0),
    "a curve": (lambda limit: curve(GRAPH, [BOUND + (PEAK - BOUND) * k // 4 for k in range(5)], time_limit_s=limit), 2.0),
    "by time": (lambda limit: minimum_within(GRAPH, 1.3 * sum(t.time for t in GRAPH.tasks), time_limit_s=limit), 2.0),
}


@pytest.mark.parametrize("limit", [0.5, 6.0])
@pytest.mark.parametrize("question", QUESTIONS)
def test_no_solver_works_on_behind_the_limit(clock: Clock, question: str, limit: float) -> None:
    ask, times = QUESTIONS[question]
    ask(limit)
    assert clock.seconds <= 1.05 * max(times * limit, 5.0)


def test_with_an_answer_the_limit_itself_holds(clock: Clock) -> None:
    graph = nets.transformer(layers=2)
    peak = simulate(graph, Schedule(graph.order)).peak_bytes
    answer = solve(graph, int(0.7 * peak), time_limit_s=8.0)
    assert answer.status != "infeasible"
    assert clock.seconds <= 1.05 * 8.0


def test_what_the_time_ended_says_so(clock: Clock) -> None:
    answer = solve(GRAPH, BOUND + (PEAK - BOUND) // 50, time_limit_s=0.5)
    assert answer.status == "infeasible"
    assert "time allowed" in answer.reason
