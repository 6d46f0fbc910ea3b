"""The cost of running a step in parts of its batch, compared with the smallest peak of recomputation: `python -m bench.split`.

The plain step, the step in parts, and the smallest plan that recomputes take turns in one process; times are processor times of all
threads. Each peak is measured in a fresh process. "By hand" is the time of the plain step on one part's batch, times the number of parts:
about a lower bound for running in parts.

    python -m bench.split                                                     # parts, by hand and in one step; small models
    python -m bench.split --by-hand --size full --models mlp1000 lstm         # only by hand, at the batches of bench.zoo
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from rich.console import Console

from bench import zoo
from bench.processor_time import processor_times

_COLUMNS = ("model", "batch", "how", "predicted time", "processor time", "predicted peak", "peak")


def rows(name: str, batch: int, parts: Sequence[int], rounds: int, time_limit_s: float = 10.0) -> list[list[str]]:
    """The lines of one model: times as ratios of the plain step's, peaks in MiB."""
    import graphwright as gw
    from graphwright.memory.planning import follow_schedule, map_tasks, overlap_within, solve_with_room
    from graphwright.memory.verbs import Candidate, split_candidates
    from graphwright.plan.model import Solution
    from graphwright.plan.solve import minimum
    from graphwright.run.traced_step import resolve
    from graphwright.step.flatten import flat_step
    from graphwright.step.targets import trace

    reference = zoo.make(name, size="small", batch=batch)
    traced = trace(reference.step, inputs=reference.inputs)

    def runs(candidate: Candidate, solution: Solution) -> Any:
        waits = overlap_within(candidate.flat, candidate.tasks, solution)
        function = follow_schedule(candidate.flat, candidate.tasks, solution.schedule, waits=waits)
        return replace(resolve(function, reference.inputs), grappler_disabled=True)

    def given() -> Candidate:
        flat = flat_step(traced)
        return Candidate(flat, map_tasks(flat))

    steps: dict[str, Any] = {"plain": traced}
    predicted: dict[str, tuple[float, int]] = {"plain": (1.0, gw.predict_peak(reference.step, inputs=reference.inputs).peak_bytes)}
    whole = given()
    for candidate in split_candidates(whole, whole.flat.binding.argument_count, map_tasks):
        if candidate.parts in parts:
            solution = solve_with_room(candidate.tasks.costs, len(candidate.flat.graph), candidate.peak_bytes, time_limit_s, None)
            predicted[how := f"{candidate.parts} parts"] = (1 + candidate.slower) * (1 + solution.overhead), solution.peak_bytes
            steps[how] = runs(candidate, solution)
        if candidate.parts >= max(parts):
            break
    single = given()
    smallest = minimum(single.tasks.costs)
    predicted["recompute, the least found"] = 1 + smallest.overhead, smallest.peak_bytes
    steps["recompute, the least found"] = runs(single, smallest)
    times = processor_times({how: step.run for how, step in steps.items()}, rounds, grappler=["plain"])
    table: list[list[str]] = []
    for how, step in steps.items():
        ratio, peak = predicted[how]
        measured = gw.measure(step, reference.inputs, time=False).peak_bytes
        cells = [f"{ratio:.2f}", f"{median(times[how] / times['plain']):.2f}", f"{peak / 2**20:.1f}", f"{measured / 2**20:.1f}"]
        table.append([name, str(batch), how, *cells])
    return table


def rows_by_hand(name: str, size: zoo.Size, parts: Sequence[int], rounds: int) -> list[list[str]]:
    """Times of the plain step on a part of the batch, once for each part, as ratios of the plain step's on the whole."""
    whole = zoo.make(name, size=size)
    batch = int(whole.inputs[0].shape[0])
    references = {1: whole} | {k: zoo.make(name, size=size, batch=batch // k) for k in parts if batch % k == 0}
    steps: dict[str, Any] = {str(k): partial(reference.step, *reference.inputs) for k, reference in references.items()}
    times = processor_times(steps, rounds, grappler=list(steps))
    return [
        [name, str(batch), f"{k} parts, by hand", "", f"{median(k * times[str(k)] / times['1']):.2f}", "", ""] for k in references if k > 1
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.split", description=__doc__)
    parser.add_argument("--models", nargs="+", default=["transformer", "unet"], choices=zoo.MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--parts", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--by-hand", action="store_true", help="only the plain step on parts of the batch, each with an update")
    parser.add_argument("--size", default="full", choices=["small", "full"], help="of the models by hand, at their own batches")
    options = parser.parse_args()
    console = Console(width=200)
    console.print("| " + " | ".join(_COLUMNS) + " |\n|---|---:|---|" + "---:|" * (len(_COLUMNS) - 3), soft_wrap=True)
    for name in options.models:
        for batch in options.batches if not options.by_hand else [None]:
            made = (
                rows_by_hand(name, options.size, options.parts, options.rounds)
                if batch is None
                else rows(name, batch, options.parts, options.rounds)
            )
            for row in made:
                console.print("| " + " | ".join(row) + " |", soft_wrap=True)


if __name__ == "__main__":
    main()
