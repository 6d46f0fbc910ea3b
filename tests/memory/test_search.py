"""The search among verbs: the time that it gets, and what it finds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import graphwright as gw
from graphwright.errors import InfeasibleError
from graphwright.memory import search
from tests.memory.test_segments import recurrent
from tests.memory.test_verbs import convolutions
from tests.training_steps import squares_step

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(("allow", "gains"), [("all", True), ("all", False), (("recompute",), False)])
def test_parts_get_time_of_their_own(monkeypatch: pytest.MonkeyPatch, allow: Any, gains: bool) -> None:
    """Where no search finds anything, every one that may be tried is; the step as it is gets as much as without parts, in the end."""
    handed_out: list[float] = []
    longest: list[float | None] = []
    solve = search.solve_with_room

    def short(costs: Any, nodes: int, budget: int, time_limit_s: float, progress: Any, *, longest_s: float | None) -> Any:
        handed_out.append(time_limit_s)
        longest.append(longest_s)
        return solve(costs, nodes, 1, 1e-3, progress, longest_s=1e-3)

    monkeypatch.setattr(search, "solve_with_room", short)
    if not gains:
        monkeypatch.setattr(search, "split_candidates", lambda *_, **__: iter(()))
    step, inputs, _ = convolutions()
    with contextlib.suppress(InfeasibleError):
        gw.optimize_memory(step, 0.3, inputs=inputs, allow=allow, cache_dir=None, time_limit_s=8.0, verify=False)
    if allow == "all" and not gains:  # one more search of the step as it is, for as long as without parts
        assert (handed_out.pop(), longest.pop()) == (8.0, None)
    assert len(handed_out) > 1 if gains else len(handed_out) == 1
    assert handed_out[0] == 8.0
    assert sum(handed_out[1:]) <= 8.0 * 0.6
    assert allow != "all" or max(seconds or 9.0 for seconds in longest) <= 8.0


def _products(x: Any, w: Any) -> Any:
    for _ in range(6):
        x = tf.nn.softmax(x @ w[0, 0])
    return x


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "convolutions": lambda x, w: tf.nn.relu(tf.nn.conv2d(tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")), w, 1, "SAME")),
    "products": _products,
    "a branch beside it": lambda x, w: tf.tanh(tf.nn.conv2d(x, w, 1, "SAME")) * x + tf.sigmoid(x),
}


@pytest.mark.parametrize("name", STEPS)
def test_searches_that_find_nothing_keep_the_limit_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that take all that they may: the step as it is, its parts together as long, and the longer one of the default."""
    spent: list[float] = []
    solve = search.solve_with_room

    def whole(costs: Any, nodes: int, budget: int, time_limit_s: float, progress: Any, *, longest_s: float | None) -> Any:
        spent.append(2 * time_limit_s if longest_s is None else longest_s)
        return solve(costs, nodes, 1, 1e-3, progress, longest_s=1e-3)

    monkeypatch.setattr(search, "solve_with_room", whole)
    monkeypatch.setattr(search, "now", lambda: sum(spent))
    monkeypatch.setattr(search.Search, "_keeps", lambda *_: False)
    kernel = tf.Variable(np.full((3, 3, 8, 8), 0.01, np.float32))
    step = squares_step(STEPS[name], kernel)
    with contextlib.suppress(InfeasibleError):
        gw.optimize_memory(step, 0.3, inputs=tf.ones((16, 24, 24, 8)), allow="all", cache_dir=None, time_limit_s=6.0, verify=False)
    assert len(spent) > 2
    assert (spent[0], spent[-1]) == (6.0, 12.0)
    assert sum(spent[1:-1]) <= 1.1 * 6.0


@pytest.mark.parametrize(("overhead", "tried"), [(0.02, False), (0.05, True)])
def test_loops_run_in_segments_where_recomputing_costs_time(monkeypatch: pytest.MonkeyPatch, overhead: float, tried: bool) -> None:
    asked: list[Any] = []
    solve = search.solve_with_room

    def candidates(*given: Any) -> Iterator[Any]:
        asked.append(given)
        yield from ()

    monkeypatch.setattr(search, "solve_with_room", lambda *args, **options: replace(solve(*args, **options), overhead=overhead))
    monkeypatch.setattr(search, "segment_candidates", candidates)
    step, inputs = recurrent(8)
    gw.optimize_memory(step, 2**20, inputs=inputs, cache_dir=None, verify=False)
    assert bool(asked) == tried


def test_a_dear_budget_says_what_parts_of_the_batch_would_take() -> None:
    step, inputs, _ = convolutions(batch=96)
    dear = gw.optimize_memory(step, 0.45, inputs=inputs, cache_dir=None, time_limit_s=0.5, verify=False).plan
    assert dear.overhead > 0.25
    assert dear.how["for less time"].startswith('allow="all" (')
    assert " parts, one after another, takes " in dear.how["for less time"]
    assert "for less time" in dear.text("all")
    mild = gw.optimize_memory(step, 0.8, inputs=inputs, cache_dir=None, time_limit_s=0.5, verify=False).plan
    assert mild.overhead < 0.25
    assert "for less time" not in mild.how
