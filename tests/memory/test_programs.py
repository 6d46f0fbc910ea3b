"""A differential fuzz: random steps, by the planner's plan and by a schedule drawn at random, against themselves."""

from __future__ import annotations

import gc
import time
import warnings
from typing import Any

import pytest

import graphwright as gw
from graphwright.memory import planning
from graphwright.memory.plan_step import prove_function
from graphwright.memory.planning import follow_schedule, map_tasks
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import solve
from graphwright.step.flatten import flatten
from graphwright.transform.proof import Original
from tests.memory.programs import KINDS, OPTIMIZERS, Program, random_schedule

_PROGRAMS, _IN_CI, _AT_ONCE = 160, 20, 10
_LIMIT_S, _FIRST_S, _SLACK_S, _REST_S = 0.3, 5.0, 0.5, 8.0  # the rest traces and proves, 1 to 3.3 s by the processor
"""Seconds of processor time: the limit, what one search may take to a first answer, what may pass between two looks at the clock, and what
tracing, reading, simulating, building and proving may take together. Collecting garbage, of this whole process, does not count."""


class _Concrete:
    """A concrete function, as `verify` takes a step that runs without Grappler."""

    grappler_disabled = True

    def __init__(self, function: Any) -> None:
        self.concrete_function = lambda *_: function


def test_there_are_enough_kinds_of_operations() -> None:
    assert len(KINDS) >= 40
    assert len(OPTIMIZERS) >= 8
    used = {kind for seed in range(40) for kind in Program(seed).kinds}
    assert len(used) >= 40


def _marks(first: int) -> list[pytest.MarkDecorator]:
    return [] if first == 0 else [pytest.mark.slow] if first < _IN_CI else [pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.parametrize("seed", [pytest.param(k, marks=_marks(k)) for k in range(0, _PROGRAMS, _AT_ONCE)])
def test_random_programs_compute_the_same_by_every_plan(seed: int) -> None:
    for number in range(seed, seed + (_AT_ONCE if seed else 1)):
        _check(number)


def _check(seed: int) -> None:
    program = Program(seed)
    what = f"program {seed}: {', '.join(program.kinds)}; {program.optimizer_name}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none falls back
        fast = _planned_in_time(program, what)
    found = gw.verify(program.step, fast, (program.x,), steps=2)
    assert found.equal, f"{what}: {found}"
    function = program.step.get_concrete_function(program.x)
    flat = flatten(function)
    tasks = map_tasks(flat)
    schedule = random_schedule(tasks.costs, seed)
    simulate(tasks.costs, schedule)  # raises where the schedule is not valid
    original = Original(flat.graph, flat.purity)
    rewritten = follow_schedule(flat, tasks, schedule)
    proof = prove_function(original, rewritten, flat.binding)
    assert proof.equal, f"{what}: {proof}"
    found = gw.verify(program.step, _Concrete(rewritten), (program.x,))
    assert found.equal, f"{what}, a random schedule: {found}"


def _planned_in_time(program: Program, what: str) -> Any:
    """The step with a budget; each search keeps its time limit, or ends where it has a first answer."""
    searches: list[tuple[float, float]] = []

    def timed(*args: Any, **options: Any) -> Any:
        started, answered = time.thread_time(), 0.0

        def progress(share: float, text: str) -> None:
            nonlocal answered
            answered = time.thread_time() - started if text == "improving" else answered

        found = solve(*args, **{**options, "progress": progress})
        searches.append((time.thread_time() - started, answered))
        return found

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planning, "solve", timed)
            started = time.process_time()
            fast = _planned(program)
            took_s = time.process_time() - started
    finally:
        gc.enable()
    for search_s, answered_s in searches:
        assert search_s < (max(_LIMIT_S, answered_s) if answered_s else _FIRST_S) + _SLACK_S, what
        assert answered_s < _FIRST_S + _SLACK_S, what
    assert took_s - sum(search_s for search_s, _ in searches) < _REST_S, what
    return fast


def _planned(program: Program) -> Any:
    """The step with a budget of 80 %, or the smallest that works."""
    options: dict[str, Any] = {"inputs": (program.x,), "cache_dir": None, "time_limit_s": _LIMIT_S}
    try:
        fast = gw.optimize_memory(program.step, 0.8, **options)
    except gw.InfeasibleError as error:
        fast = gw.optimize_memory(program.step, error.smallest_budget_bytes, **options)
    proved = fast.plan.verification
    itself = fast.plan.status == "unchanged" and proved.startswith(
        "equal: it is the original itself"
    )  # TensorFlow's own order keeps the budget
    assert itself or proved.startswith("equal by structure")
    return fast
