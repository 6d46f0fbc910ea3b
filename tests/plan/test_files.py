"""Planner files: what is read, and every bad field named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from graphwright.errors import FileFormatError
from graphwright.plan.files import read_cost_graph, solution_to_json
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import solve

DATA = Path(__file__).parents[2] / "bench" / "data" / "planner_graphs"
EXCHANGE: dict[str, Any] = {
    "name": "tiny",
    "tasks": [{"name": "a", "time": 1, "nbytes": 4}, {"name": "b", "time": 2.5, "nbytes": 2}],
    "edges": [[0, 1]],
    "order": [0, 1],
}


def put(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_published_graphs_are_read(path: Path) -> None:
    data, graph = json.loads(path.read_text()), read_cost_graph(path)
    assert [(task.name, task.time) for task in graph.tasks] == [(row["name"], row["time"]) for row in data["tasks"]]
    assert sum(len(task.inputs) for task in graph.tasks) == len({tuple(edge) for edge in data["edges"]})


def test_meaning_of_the_format(tmp_path: Path) -> None:
    """The peak is the largest sum of live outputs, a task's inputs and output included."""
    graph = read_cost_graph(put(tmp_path / "g.json", EXCHANGE))
    assert simulate(graph, Schedule(graph.order)).step_bytes == (4, 6)
    assert graph.name == "tiny"


def test_solution_as_json(tmp_path: Path) -> None:
    graph = read_cost_graph(put(tmp_path / "g.json", EXCHANGE))
    answer = solve(graph, 6)
    data = json.loads(json.dumps(solution_to_json(answer)))
    assert {"status", "peak_bytes", "time", "overhead", "lower_bound", "schedule"} <= set(data)
    assert (data["status"], data["peak_bytes"], data["time"], data["schedule"]) == ("optimal", 6, 3.5, [0, 1])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tasks": None}, "tasks"),
        ({"tasks": [{"time": 1}]}, "tasks[0].nbytes"),
        ({"tasks": [{"time": -1, "nbytes": 1}]}, "tasks[0].time"),
        ({"tasks": [{"time": 1, "nbytes": 1.5}]}, "tasks[0].nbytes"),
        ({"edges": [[0]]}, "edges[0]"),
        ({"edges": [[0, 9]]}, "edges[0][1]"),
        ({"edges": [[1, 1]]}, "edges[0]"),
        ({"order": [1, 0]}, "order"),
        ({"order": [0, True]}, "order[1]"),
        ({"order": [0]}, "order"),
        ({"edges": [[0, 1], [1, 0]]}, "order"),  # a cycle has no order
        ({"tasks": [{"time": float("nan"), "nbytes": 1}]}, "tasks[0].time"),
        ({"tasks": [{"time": 10**400, "nbytes": 1}]}, "tasks[0].time"),
        ({"tasks": [{"time": 1e300, "nbytes": 1}]}, "tasks[0].time"),
        ({"tasks": [{"time": 1, "nbytes": 10**4000}]}, "tasks[0].nbytes"),
        ({"tasks": [{"time": 1, "nbytes": float("inf")}]}, "tasks[0].nbytes"),
        ({"tasks": [{"time": 1, "nbytes": 1, "name": "half \ud800"}]}, "tasks[0].name"),
        ({"name": "half \udfff"}, "name"),
    ],
)
def test_bad_fields_are_named(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = put(tmp_path / "bad.json", {**EXCHANGE, **change})
    with pytest.raises(FileFormatError) as caught:
        read_cost_graph(path)
    assert named in str(caught.value)
    assert "bad.json" in str(caught.value)


@pytest.mark.parametrize("field", ["tasks", "edges", "order"])
def test_missing_fields_are_named(field: str, tmp_path: Path) -> None:
    data = {key: value for key, value in EXCHANGE.items() if key != field}
    with pytest.raises(FileFormatError, match=f"'{field}' is missing"):
        read_cost_graph(put(tmp_path / "bad.json", data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds a list"),
        ("\x00", "is not JSON"),
        ('{"name":' + "[" * 200_000, "nested too deeply"),
        ('{"tasks": ' + "9" * 5_000 + "}", "thousands of digits"),
    ],
)
def test_files_that_hold_something_else(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(FileFormatError, match=message):
        read_cost_graph(tmp_path / "bad.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(FileFormatError, match="is no regular file, but a pipe"):
        read_cost_graph(tmp_path / "pipe.json")
    with pytest.raises(FileFormatError, match="but a device"):
        read_cost_graph(Path(os.devnull))
    with pytest.raises(FileFormatError, match="directory"):
        read_cost_graph(tmp_path)


def test_a_task_may_read_many(tmp_path: Path) -> None:
    count = 30_000
    edges = [[k, count - 1] for k in range(count - 1)] * 2  # each edge was compared with all before it
    data = {"tasks": [{"time": 1, "nbytes": 1}] * count, "edges": edges, "order": list(range(count))}
    graph = read_cost_graph(put(tmp_path / "wide.json", data))
    assert len(graph.tasks[-1].inputs) == count - 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_cost_graph(tmp_path / "none.json")
