"""The overhead of a budget, and the time of planning.

    python -m bench.planner                 # the published graphs at falling budgets
    python -m bench.planner FOLDER          # other graphs in the exchange format
    python -m bench.planner --scale         # planning time against the size of the graph
    python -m bench.planner --without nested    # without one solver, to see its contribution

The first table gives the overhead (extra time as a share of running every task once), next to
the best overheads of a greedy and of a mixed-integer program. The second plans
synthetic residual networks and prints the time per task relative to the smallest, which
stays near one where planning grows linearly; both are measured side by side in one run.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.training_graphs import residual_net_of
from graphwright.plan.files import read_cost_graph
from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import lower_bound, solve
from graphwright.plan.solvers import portfolio

DATA = Path(__file__).parent / "data" / "planner_graphs"
BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
# Overheads in % that a 60-line greedy and, after a minute, a mixed-integer program reached.
GREEDY = {("vgg19", 0.8): 2.86, ("random_n100", 0.9): 1.07, ("random_n100", 0.8): 3.66}
GREEDY |= {("resnet50", 0.9): 0.17, ("resnet50", 0.8): 0.32, ("resnet50", 0.5): 1.78}
# By solver: its name in the portfolio, and an empty answer.
SOLVERS: dict[str, tuple[str, object]] = {
    "cuts": ("minimum_cuts", ()),
    "nested": ("nested_cuts", ()),
    "segments": ("segment_levels", ()),
}
PROGRAM = {("vgg19", 0.8): 2.76, ("random_n100", 0.9): 0.79}


def leave_out(solver: str) -> None:
    """Replace a solver of the portfolio by one without results."""
    name, nothing = SOLVERS[solver]

    def solve_nothing(*_: object) -> object:
        return iter(()) if solver == "segments" else nothing

    setattr(portfolio, name, solve_nothing)


def single_task_bytes(graph: CostGraph) -> int:
    """Return the largest need of a single task: inputs, outputs and workspace."""
    sizes = [buffer.nbytes for buffer in graph.buffers]
    return max(task.workspace_bytes + sum(sizes[number] for number in {*task.inputs, *task.outputs}) for task in graph.tasks)


def overheads(folder: Path, time_limit_s: float, console: Console) -> int:
    """Print the table of overheads and return the number of rows that miss the bar."""
    table = Table("graph", "tasks", "budget", "status", "peak", "overhead %", "greedy %", "program %", "bound", "seconds", "found by")
    missed = 0
    for path in sorted(folder.glob("*.json")):
        graph = read_cost_graph(path)
        peak = simulate(graph, Schedule(graph.order)).peak_bytes
        bound = lower_bound(graph)
        single = single_task_bytes(graph)
        for budget in BUDGETS:
            if budget * peak < single:
                break
            started = time.perf_counter()
            answer = solve(graph, int(budget * peak), time_limit_s=time_limit_s)
            spent = time.perf_counter() - started
            key = (path.stem, budget)
            bar = GREEDY.get(key)
            over = 100 * answer.overhead
            proved = int(budget * peak) < bound.nbytes or "every one was looked at" in answer.reason
            missed += (answer.status == "infeasible" and not proved) or (bar is not None and over > bar + 0.005)
            table.add_row(
                path.stem,
                str(len(graph.tasks)),
                f"{budget:.1f}",
                "impossible" if proved else answer.status,
                f"{answer.peak_bytes / peak:.3f}",
                f"{over:.2f}" if answer.status != "infeasible" else "",
                "" if bar is None else f"{bar:.2f}",
                f"{PROGRAM[key]:.2f}" if key in PROGRAM else "",
                f"{bound.nbytes / peak:.3f}",
                f"{spent:.1f}",
                str(answer.notes.get("found by", "")),
            )
    console.print(table)
    console.print(
        "Budgets below what a single task needs are left out. 'impossible': the lower bound, or looking at every schedule, proves "
        "that none fits; 'infeasible': none was found, the peak is that of the best one."
    )
    return missed


def scale(sizes: list[int], time_limit_s: float, console: Console) -> None:
    """Print planning time against the number of tasks, at half of the activation peak."""
    table = Table("tasks", "steps planned", "status", "overhead %", "seconds", "time per task, ratio to the smallest")
    first = 0.0
    for size in sizes:
        graph = residual_net_of(size)
        activations = simulate(graph, Schedule(graph.order)).peak_bytes - graph.resident_bytes
        started = time.perf_counter()
        answer = solve(graph, graph.resident_bytes + activations // 2, time_limit_s=time_limit_s)
        spent = time.perf_counter() - started
        per_task = spent / len(graph.tasks)
        first = first or per_task
        steps = len(answer.schedule.steps)
        table.add_row(
            f"{len(graph.tasks):,}", f"{steps:,}", answer.status, f"{100 * answer.overhead:.2f}", f"{spent:.1f}", f"{per_task / first:.2f}"
        )
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DATA, help="planner graphs, default: those shipped beside this file")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each budget")
    parser.add_argument("--scale", action="store_true", help="planning time against graph size instead")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="tasks, for --scale")
    parser.add_argument("--scale-limit", type=float, default=600.0, help="seconds for each size, for --scale")
    parser.add_argument("--strict", action="store_true", help="fail when a row misses its bar")
    parser.add_argument("--without", choices=sorted(SOLVERS), help="leave one solver out")
    given = parser.parse_args(arguments)
    if given.without:
        leave_out(given.without)
    console = Console(width=None if sys.stdout.isatty() else 140)
    if given.scale:
        scale(given.sizes, given.scale_limit, console)
        return 0
    missed = overheads(given.folder, given.time_limit, console)
    console.print("every row meets its bar" if not missed else f"{missed} rows miss their bar")
    return 1 if missed and given.strict else 0


if __name__ == "__main__":
    raise SystemExit(main())
