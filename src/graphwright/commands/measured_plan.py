"""A plan with what was measured of both steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import graphwright as gw
from graphwright.report.memory_plan import MemoryPlan
from graphwright.report.progress import tell


def measured_plan(plan: MemoryPlan, step: Any, optimized: Any, inputs: Any, *, steps: int = 3, rounds: int = 5) -> MemoryPlan:
    """Return the plan with the memory of each step, each measured in a separate process, and the times of both, taking turns in one."""
    tell("measuring the memory of both steps")
    memory = {name: gw.measure(target, inputs, steps=steps, time=False) for name, target in (("plain", step), ("optimized", optimized))}
    tell("measuring the time of both steps, taking turns")
    times = gw.measure_many({"plain": step, "optimized": optimized}, inputs, steps=rounds)
    before, after = (
        replace(peak, time_s=times[name].time_s, how=f"{peak.how}; time: {times[name].how.partition('; ')[2]}")
        for name, peak in memory.items()
    )
    return replace(plan, measured_before=before, measured_after=after)
