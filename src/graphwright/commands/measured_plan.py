"""A plan with what was measured of both steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import graphwright as gw
from graphwright.report.memory_plan import MemoryPlan

Stage = Callable[[str, Callable[[Any], Any]], Any]


def measured_plan(
    plan: MemoryPlan,
    step: Any,
    optimized: Any,
    inputs: Any,
    *,
    steps: int = 3,
    rounds: int = 5,
    stage: Stage = lambda _, work: work(None),
) -> MemoryPlan:
    """Memory of each step in processes of its own, and the times of both in one in which they take turns: what else a machine does
    then slows both alike, and two processes one after the other may differ by a third.

    Args:
        stage: says what is done next, and does it.
    """
    memory = {
        "plain": stage("measure the plain step's memory in a fresh process", lambda _: gw.measure(step, inputs, steps=steps, time=False)),
        "optimized": stage(
            "measure the optimized step's memory in another", lambda _: gw.measure(optimized, inputs, steps=steps, time=False)
        ),
    }
    both = {"plain": step, "optimized": optimized}
    times = stage("measure their times, taking turns", lambda _: gw.measure_many(both, inputs, steps=rounds))
    before, after = (
        replace(found, time_s=times[name].time_s, how=f"{found.how}; time: {times[name].how.partition('; ')[2]}")
        for name, found in memory.items()
    )
    return replace(plan, measured_before=before, measured_after=after)
