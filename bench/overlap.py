"""What a fixed order costs, and what is left of it where steps may overlap: `python -m bench.overlap`.

Four steps take turns in one process: the plain one, the same without Grappler, the plan as a chain in which each step waits for the one
before, and the plan as `optimize_memory` runs it, with the steps overlapping where its peak has room (`graphwright.plan.relaxed_order`).
Peaks are measured in a fresh process each, with two threads.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from rich.console import Console

from bench import zoo

_COLUMNS = ("model", "budget", "recompute", "Grappler off", "chain", "overlap", "predicted", "chain", "overlap")


def row(name: str, size: zoo.Size, share: float, rounds: int) -> list[str]:
    """One line of the table: times as ratios of the plain step's, peaks in MiB."""
    import graphwright as gw
    from graphwright.memory.planning import follow_schedule, map_tasks, solve_with_room
    from graphwright.plan.relaxed_order import relax
    from graphwright.run.traced_step import resolve
    from graphwright.step.flatten import flat_step
    from graphwright.step.targets import trace

    reference = zoo.make(name, size=size)
    traced = trace(reference.step, inputs=reference.inputs)
    unmodified = gw.predict_peak(reference.step, inputs=reference.inputs, order="executor").peak_bytes
    solution = None
    steps: dict[str, Any] = {"plain": reference.step, "off": replace(traced, grappler_disabled=True)}
    for kind in ("chain", "overlap"):
        flat = flat_step(traced)
        tasks = map_tasks(flat)
        if solution is None:
            solution = solve_with_room(tasks.costs, len(flat.graph), int(share * unmodified), 10.0, None)
            if solution.status == "infeasible":
                return [name, f"{share:.0%}", "infeasible", *[""] * (len(_COLUMNS) - 3)]
        starts = relax(tasks.costs, solution.schedule, solution.peak_bytes) if kind == "overlap" else None
        followed = follow_schedule(flat, tasks, solution.schedule, starts=starts)
        steps[kind] = replace(resolve(followed, reference.inputs), grappler_disabled=True)
    assert solution is not None
    times = gw.measure_many(steps, reference.inputs, steps=rounds, warmup=3, inter_op_threads=2)
    peaks = [solution.peak_bytes]
    peaks += [gw.measure(steps[k], reference.inputs, time=False, inter_op_threads=2).peak_bytes for k in ("chain", "overlap")]
    ratios = [f"{times[kind].ratio:.2f}" for kind in ("off", "chain", "overlap")]
    return [name, f"{share:.0%}", f"{1 + solution.overhead:.2f}", *ratios, *(f"{peak / 2**20:.1f}" for peak in peaks)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.overlap", description=__doc__)
    parser.add_argument("--models", nargs="+", default=["transformer", "resnet50", "mlp1000", "unet", "densenet121"], choices=zoo.MODELS)
    parser.add_argument("--size", choices=("small", "full"), default="small")
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.8, 0.6])
    parser.add_argument("--rounds", type=int, default=41)
    options = parser.parse_args()
    console = Console(width=200)
    console.print("| " + " | ".join(_COLUMNS) + " |\n|---|---|" + "---:|" * (len(_COLUMNS) - 2), soft_wrap=True)
    for name in options.models:
        for share in options.budgets:
            console.print("| " + " | ".join(row(name, options.size, share, options.rounds)) + " |", soft_wrap=True)


if __name__ == "__main__":
    main()
