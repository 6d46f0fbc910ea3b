"""Planner files: graphs to plan, and solutions, as JSON.

The format is that of training graphs published with rematerialization papers: an object with `tasks` (each with `time` and the bytes
`nbytes` of its one output), `edges` (pairs of task indices, producer first) and `order` (every task once, topological). A value dies after
its last use; nothing is kept to the end.
"""

from pathlib import Path

from graphwright.errors import FileFormatError, GraphError
from graphwright.plan.json_file import read_json
from graphwright.plan.model import Buffer, CostGraph, Solution, Task
from graphwright.plan.simulate import ScheduleError, check_graph


def read_cost_graph(path: str | Path) -> CostGraph:
    """Read a planner graph; raise `FileFormatError` with the file and the wrong field."""
    file = read_json(Path(path))
    rows = file.records("tasks")
    buffers = tuple(Buffer(row.text("name", str(k)), row.integer("nbytes"), k) for k, row in enumerate(rows))
    times = [row.number("time") for row in rows]
    inputs: list[dict[int, None]] = [{} for _ in rows]
    for place, (producer, reader) in enumerate(file.pairs("edges", len(rows))):
        if producer == reader:
            raise file.fail(f"edges[{place}]", "joins a task to itself")
        inputs[reader][producer] = None
    tasks = tuple(Task(buffer.name, times[k], tuple(inputs[k]), (k,)) for k, buffer in enumerate(buffers))
    return _checked(CostGraph(tasks, buffers, file.indices("order", len(rows)), name=file.text("name", file.path.stem)), file.path)


def solution_to_json(solution: Solution) -> dict[str, object]:
    return {
        "status": solution.status,
        "peak_bytes": solution.peak_bytes,
        "time": solution.time,
        "overhead": solution.overhead,
        "lower_bound": solution.lower_bound.nbytes,
        "budget_bytes": solution.budget_bytes,
        "reason": solution.reason,
        "schedule": list(solution.schedule.steps),
    }


def _checked(graph: CostGraph, path: Path) -> CostGraph:
    try:
        check_graph(graph)
    except ScheduleError as error:
        raise FileFormatError(f"field 'order' is not a valid schedule: {error.what}", where=str(path), cause=error.where) from error
    except GraphError as error:
        raise FileFormatError(f"does not fit together: {error.what}", where=f"{path}, {error.where}") from error
    return graph
