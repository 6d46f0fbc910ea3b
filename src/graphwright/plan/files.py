"""Planner files: the small exchange format, the lossless one, and the answer of a solver as JSON.

Exchange format (training graphs published with rematerialization papers): an object with
`tasks` (each with `time` and the bytes `nbytes` of its one output), `edges` (pairs of task
indices, producer first) and `order` (every task once, a topological order). A value dies
after its last use; nothing is kept to the end. The lossless format holds every field of a
`CostGraph`.
"""

import dataclasses
from pathlib import Path

from graphwright.errors import FileFormatError, GraphError
from graphwright.plan.json_file import Record, read_json, write_json
from graphwright.plan.model import Buffer, CostGraph, Solution, Task
from graphwright.plan.simulate import ScheduleError, check_graph

FORMAT = "graphwright cost graph"
VERSION = 1


def read_cost_graph(path: str | Path) -> CostGraph:
    """Read a planner graph in either format.

    Raises:
        FileFormatError: naming the file and the field that is wrong.
    """
    file = read_json(Path(path))
    return _from_full(file) if file.data.get("format") == FORMAT else _from_exchange(file)


def write_full(graph: CostGraph, path: str | Path) -> Path:
    """Write every field of a cost graph; `read_cost_graph` gives an equal one back."""
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "time_unit": graph.time_unit,
        "resident_bytes": graph.resident_bytes,
    }
    tasks = [dataclasses.asdict(task) for task in graph.tasks]
    buffers = [dataclasses.asdict(buffer) for buffer in graph.buffers]
    return write_json(Path(path), {**fields, "tasks": tasks, "buffers": buffers, "order": list(graph.order)})


def solution_to_json(solution: Solution) -> dict[str, object]:
    """The answer of a solver as plain JSON values: bytes, the graph's time unit, task indices."""
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


def _from_exchange(file: Record) -> CostGraph:
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


def _from_full(file: Record) -> CostGraph:
    if file.data.get("version") != VERSION:
        raise file.fail("version", f"must be {VERSION}, it is {file.data.get('version')!r:.60}")
    task_rows, buffer_rows = file.records("tasks"), file.records("buffers")
    tasks = tuple(
        Task(
            name=row.text("name"),
            time=row.number("time"),
            inputs=row.indices("inputs", len(buffer_rows)),
            outputs=row.indices("outputs", len(buffer_rows)),
            after=row.indices("after", len(task_rows)),
            workspace_bytes=row.integer("workspace_bytes"),
            recomputable=row.flag("recomputable"),
            in_place=row.pairs("in_place", len(buffer_rows)),
        )
        for row in task_rows
    )

    def task_of(row: Record, name: str) -> int | None:
        return None if row.value(name) is None else row.integer(name, high=len(task_rows))

    buffers = tuple(
        Buffer(row.text("name"), row.integer("nbytes"), task_of(row, "producer"), row.flag("kept"), task_of(row, "killed_by"))
        for row in buffer_rows
    )
    order, resident = file.indices("order", len(task_rows)), file.integer("resident_bytes")
    return _checked(CostGraph(tasks, buffers, order, resident, file.text("time_unit", "s"), file.text("name", "")), file.path)


def _checked(graph: CostGraph, path: Path) -> CostGraph:
    try:
        check_graph(graph)
    except ScheduleError as error:
        raise FileFormatError(f"field 'order' is not a valid schedule: {error.what}", where=str(path), cause=error.where) from error
    except GraphError as error:
        raise FileFormatError(f"does not fit together: {error.what}", where=f"{path}, {error.where}") from error
    return graph
