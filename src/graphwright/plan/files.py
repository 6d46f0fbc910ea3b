"""Planner files: the small exchange format, the lossless one, and the answer of a solver as JSON.

Exchange format (training graphs published with rematerialization papers): an object with
`tasks` (each with `time` and the bytes `nbytes` of its one output), `edges` (pairs of task
indices, producer first) and `order` (every task once, a topological order). A value dies
after its last use; nothing is kept to the end. The lossless format holds every field of a
`CostGraph`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from graphwright.errors import FileFormatError, GraphError
from graphwright.plan.json_file import FieldReader, read_json, write_json
from graphwright.plan.model import Buffer, CostGraph, Solution, Task
from graphwright.plan.simulate import ScheduleError, check_graph

FORMAT = "graphwright cost graph"
VERSION = 1


def read_cost_graph(path: str | Path) -> CostGraph:
    """Read a planner graph in either format.

    Raises:
        FileFormatError: naming the file and the field that is wrong.
    """
    path = Path(path)
    data = read_json(path)
    return _from_full(data, path) if data.get("format") == FORMAT else _from_exchange(data, path)


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


def _from_exchange(data: dict[str, Any], path: Path) -> CostGraph:
    read = FieldReader(path)
    rows = [read.record(row, f"tasks[{index}]") for index, row in enumerate(read.items(read.get(data, "tasks", "tasks"), "tasks"))]
    costs: list[tuple[str, float, int]] = []
    for index, row in enumerate(rows):
        time = read.number(read.get(row, "time", f"tasks[{index}].time"), f"tasks[{index}].time")
        nbytes = read.integer(read.get(row, "nbytes", f"tasks[{index}].nbytes"), f"tasks[{index}].nbytes")
        costs.append((read.text(row.get("name", str(index)), f"tasks[{index}].name"), time, nbytes))
    inputs: list[dict[int, None]] = [{} for _ in rows]
    for place, edge in enumerate(read.items(read.get(data, "edges", "edges"), "edges")):
        producer, reader = read.pair(edge, f"edges[{place}]", len(rows))
        if producer == reader:
            raise read.fail(f"edges[{place}]", "joins a task to itself")
        inputs[reader][producer] = None
    tasks = [Task(name, time, tuple(inputs[index]), (index,)) for index, (name, time, _) in enumerate(costs)]
    buffers = [Buffer(name, nbytes, index) for index, (name, _, nbytes) in enumerate(costs)]
    order = read.indices(read.get(data, "order", "order"), "order", len(rows))
    return _checked(CostGraph(tuple(tasks), tuple(buffers), order, name=read.text(data.get("name", path.stem), "name")), path)


def _from_full(data: dict[str, Any], path: Path) -> CostGraph:
    read = FieldReader(path)
    if data.get("version") != VERSION:
        raise read.fail("version", f"must be {VERSION}, it is {data.get('version')!r:.60}")
    task_rows = read.items(read.get(data, "tasks", "tasks"), "tasks")
    buffer_rows = read.items(read.get(data, "buffers", "buffers"), "buffers")
    tasks: list[Task] = []
    for index, item in enumerate(task_rows):
        field = f"tasks[{index}]"
        row = read.record(item, field)

        def take(name: str, row: dict[str, Any] = row, field: str = field) -> tuple[Any, str]:
            return read.get(row, name, f"{field}.{name}"), f"{field}.{name}"

        pairs, pairs_field = take("in_place")
        tasks.append(
            Task(
                name=read.text(*take("name")),
                time=read.number(*take("time")),
                inputs=read.indices(*take("inputs"), len(buffer_rows)),
                outputs=read.indices(*take("outputs"), len(buffer_rows)),
                after=read.indices(*take("after"), len(task_rows)),
                workspace_bytes=read.integer(*take("workspace_bytes")),
                recomputable=read.flag(*take("recomputable")),
                in_place=tuple(
                    read.pair(pair, f"{pairs_field}[{k}]", len(buffer_rows)) for k, pair in enumerate(read.items(pairs, pairs_field))
                ),
            )
        )
    buffers: list[Buffer] = []
    for number, item in enumerate(buffer_rows):
        field = f"buffers[{number}]"
        row = read.record(item, field)

        def optional(name: str, row: dict[str, Any] = row, field: str = field) -> int | None:
            value = read.get(row, name, f"{field}.{name}")
            return None if value is None else read.integer(value, f"{field}.{name}", high=len(task_rows))

        nbytes = read.integer(read.get(row, "nbytes", f"{field}.nbytes"), f"{field}.nbytes")
        kept = read.flag(read.get(row, "kept", f"{field}.kept"), f"{field}.kept")
        name = read.text(read.get(row, "name", f"{field}.name"), f"{field}.name")
        buffers.append(Buffer(name, nbytes, optional("producer"), kept, optional("killed_by")))
    order = read.indices(read.get(data, "order", "order"), "order", len(task_rows))
    resident = read.integer(read.get(data, "resident_bytes", "resident_bytes"), "resident_bytes")
    unit, name = (read.text(data.get(key, default), key) for key, default in (("time_unit", "s"), ("name", "")))
    graph = CostGraph(tuple(tasks), tuple(buffers), order, resident, unit, name)
    return _checked(graph, path)


def _checked(graph: CostGraph, path: Path) -> CostGraph:
    try:
        check_graph(graph)
    except ScheduleError as error:
        raise FileFormatError(f"field 'order' is not a valid schedule: {error.what}", where=str(path), cause=error.where) from error
    except GraphError as error:
        raise FileFormatError(f"does not fit together: {error.what}", where=f"{path}, {error.where}") from error
    return graph
