"""Times of steps that take turns: by the clock, as a user sees them, and of the processor, over all threads, for a shared machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from graphwright.run.call_options import grappler_disabled, grappler_enabled

_FIRST = 2  # turns that trace and touch memory


def processor_times(
    steps: Mapping[str, Callable[[], Any]], rounds: int, *, grappler: Collection[str] = ()
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the processor time of each step in each turn, in seconds. Each turn has another order; the first turns do not count.

    Args:
        grappler: the steps that run with Grappler's rewrites; the others run without, as planned steps do.
    """
    return {how: seconds[:, 0] for how, seconds in both_times(steps, rounds, grappler=grappler).items()}


def both_times(
    steps: Mapping[str, Callable[[], Any]], rounds: int, *, grappler: Collection[str] = ()
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return processor times and wall times, as `processor_times` does; for an idle machine."""
    random = np.random.default_rng(0)
    found: dict[str, list[tuple[float, float]]] = {how: [] for how in steps}
    for turn in range(rounds + _FIRST):
        for how in random.permutation(list(steps)):
            with grappler_enabled() if how in grappler else grappler_disabled():
                begun, begun_clock = time.process_time(), time.perf_counter()
                steps[how]()
            if turn >= _FIRST:
                found[how].append((time.process_time() - begun, time.perf_counter() - begun_clock))
    return {how: np.array(seconds) for how, seconds in found.items()}


def ratios(plain: Callable[[], Any], planned: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Return the time of a planned step relative to the plain one with Grappler, as users run both: by the clock, and of the processor."""
    times = both_times({"plain": plain, "planned": planned}, rounds, grappler=["plain"])
    processor, clock = np.median(times["planned"] / times["plain"], axis=0)
    return float(clock), float(processor)
