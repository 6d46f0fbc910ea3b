"""Processor time of steps that take turns, all threads together: on a machine that others use too, the clock says little."""

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
    """Seconds of processor time of each step, turn by turn, each turn in another order; the first ones do not count.

    Args:
        grappler: the steps that run with Grappler's rewrites; the others run without, as planned steps do.
    """
    return {how: seconds[:, 0] for how, seconds in both_times(steps, rounds, grappler=grappler).items()}


def both_times(
    steps: Mapping[str, Callable[[], Any]], rounds: int, *, grappler: Collection[str] = ()
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """As `processor_times`; beside the processor's time in the first column that of the clock in the second, for a machine at rest."""
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
