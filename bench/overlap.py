"""The cost of a fixed order, without and with overlap: `python -m bench.overlap`.

Five steps take turns in one process: the plain step, the plain step without Grappler, and one plan run in three ways: without an order
(recomputation only), as a chain in which each task waits for the one before, and as `optimize_memory` runs it, with tasks overlapping
where the peak has room (`graphwright.plan.relaxed_order`). The plan is made for Grappler's graph of the step, or for the traced graph
(marked) if that is not possible. Times are processor times of all threads, relative to the plain step in the same turn; the cost of the
order is also measured by wall time. Each peak is measured in a fresh process with two threads.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console

from bench import zoo
from bench.processor_time import both_times
from graphwright.errors import UnsupportedError

_COLUMNS = (
    "model", "batch", "budget", "plain s", "recompute", "Grappler off", "no order", "chain", "overlap", "order", "by the clock",
    "predicted peak", "chain", "overlap",
)  # fmt: skip


def row(name: str, size: zoo.Size, batch: int | None, share: float, rounds: int) -> list[str]:
    """Return a row: times as ratios of the plain step's, peaks in MiB; "order" is the cost of overlap beyond no order."""
    import graphwright as gw
    from graphwright.memory.planning import follow_schedule, map_tasks, overlap_within, solve_with_room
    from graphwright.run.executed_graph import recorded_graphs
    from graphwright.run.traced_step import resolve
    from graphwright.source.concrete_function import to_concrete_function
    from graphwright.step.flatten import FlatStep, flat_step
    from graphwright.step.grappler_step import grappler_step
    from graphwright.step.targets import trace
    from graphwright.transform.rematerialize import apply_schedule

    reference = zoo.make(name, size=size, batch=batch)
    traced = trace(reference.step, inputs=reference.inputs)
    unmodified = gw.predict_peak(reference.step, inputs=reference.inputs, order="executor").peak_bytes
    records = recorded_graphs(traced, like=flat_step(traced).graph)

    def planned() -> tuple[FlatStep, str]:
        flat = flat_step(traced)
        try:
            return grappler_step(traced, flat, records).found, ""
        except UnsupportedError:
            return flat, " (traced)"

    flat, mark = planned()
    start = [name + mark, str(reference.inputs[0].shape[0]), f"{share:.0%}"]
    costs = map_tasks(flat).costs
    solution = solve_with_room(costs, len(flat.graph), int(share * unmodified), 10.0, None)
    if solution.status == "infeasible":
        return [*start, "infeasible", *[""] * (len(_COLUMNS) - 4)]
    steps: dict[str, Any] = {}
    for kind in ("no order", "chain", "overlap"):
        flat, _ = planned()
        tasks = map_tasks(flat)
        if kind == "no order":
            apply_schedule(tasks, solution.schedule, fix_order=False)
            followed = to_concrete_function(flat.graph, flat.binding)
        else:
            waits = overlap_within(flat, tasks, solution) if kind == "overlap" else None
            followed = follow_schedule(flat, tasks, solution.schedule, waits=waits)
        steps[kind] = replace(resolve(followed, reference.inputs), grappler_disabled=True)
    runs = {"plain": traced.run, "off": traced.run, **{kind: step.run for kind, step in steps.items()}}
    both = both_times(runs, rounds, grappler=["plain"])
    times = {kind: seconds[:, 0] for kind, seconds in both.items()}
    ratios = {kind: float(np.median(times[kind] / times["plain"])) for kind in times}
    orders = np.median((both["overlap"] - both["no order"]) / both["plain"], axis=0)
    peaks = [gw.measure(steps[k], reference.inputs, time=False, inter_op_threads=2).peak_bytes for k in ("chain", "overlap")]
    return [
        *start,
        f"{np.median(times['plain']):.3f}",
        f"{1 + solution.overhead:.3f}",
        *(f"{ratios[kind]:.3f}" for kind in ("off", "no order", "chain", "overlap")),
        *(f"{order:+.3f}" for order in orders),
        *(f"{peak / 2**20:.1f}" for peak in (solution.peak_bytes, *peaks)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.overlap", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(zoo.MODELS), choices=zoo.MODELS)
    parser.add_argument("--size", choices=("small", "full"), default="small")
    parser.add_argument("--batch", type=int, help="examples in a step; by default what goes with the size")
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.8, 0.6])
    parser.add_argument("--rounds", type=int, default=41)
    options = parser.parse_args()
    console = Console(width=200)
    console.print("| " + " | ".join(_COLUMNS) + " |\n|---|" + "---:|" * (len(_COLUMNS) - 1), soft_wrap=True)
    for name in options.models:
        for share in options.budgets:
            cells = row(name, options.size, options.batch, share, options.rounds)
            console.print("| " + " | ".join(cells) + " |", soft_wrap=True)


if __name__ == "__main__":
    main()
