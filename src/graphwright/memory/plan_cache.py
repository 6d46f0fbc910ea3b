"""Plans on disk, so that a second run of the same program does not plan again."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from graphwright.errors import ArgumentError, FileFormatError
from graphwright.files import cache_directory
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph
from graphwright.plain import from_plain, plain
from graphwright.plan.json_file import Record, read_json, write_json
from graphwright.plan.model import CostGraph, Schedule, Solution
from graphwright.plan.solve import known_solution
from graphwright.plan.time_bound import least_time
from graphwright.report.peak_prediction import PeakPrediction

_FORMAT = 6  # raise it when the meaning of a schedule changes, or the planner makes better ones
_NAMES = frozenset({"shared_name", "container", "debug_name"})  # attributes that name something
_FUNCTION = f"{FunctionReference.__name__}("  # in the text of an attribute
_MOST = 15  # other plans of one graph that are looked at


def plan_cache(folder: str | Path | None) -> PlanCache | None:
    """Return the cache in a folder ("default": the user's); None for no cache."""
    return None if folder is None else PlanCache(cache_directory() if folder == "default" else Path(folder))


def fingerprint(graph: Graph, budget: int | float | str, time_limit_s: float, device: str = "") -> str:
    """Return two digests: of the graph (operations, attributes, edges, shapes, names), and of the budget and the time limit.

    Names count, since plans find tasks by them. A share counts as a share: the simulated peak that it is taken of differs a little each
    time.
    """
    digest = hashlib.sha256(f"{_FORMAT} {device}".encode())
    for node in graph.nodes:
        shapes = [(v.dtype.name, v.shape) for v in node.outputs]
        attrs = sorted((key, repr(value)) for key, value in node.attrs.items())
        inputs = [v.name for v in node.inputs] + [f"^{c.name}" for c in node.control_inputs]
        digest.update(repr((node.name, node.op_type, inputs, shapes, attrs)).encode())
    for value, variable in graph.variables.items():
        digest.update(repr((value.name, variable.dtype.name, variable.shape)).encode())
    digest.update(repr([v.name for v in graph.outputs]).encode())
    digest.update(repr(sorted(graph.example.items())).encode() if graph.example else b"")  # a plan is for so many rounds of its loops
    sizes = [value.shape for body in bodies(graph) for value in body.at_most]
    digest.update(repr(sizes).encode() if sizes else b"")
    asked = hashlib.sha256(f"{budget} {time_limit_s}".encode())
    return f"{digest.hexdigest()[:48]}-{asked.hexdigest()[:16]}"


def plan_key(graph: Graph, how: str = "", device: str = "") -> str:
    """Return the key of a graph in a saved plan: a digest of operations, attributes, edges and shapes.

    Names do not count, since a model that is built a second time has other names; the schedule is judged and proved again.
    """
    number = {node: k for k, node in enumerate(graph.nodes)}
    digest = hashlib.sha256(f"{_FORMAT} {how} {device}".encode())
    for node in graph.nodes:
        shapes = [(v.dtype.name, v.shape) for v in node.outputs]
        attrs = sorted(
            (key, text) for key, a in node.attrs.items() if key not in _NAMES and key[0] != "_" and _FUNCTION not in (text := repr(a))
        )
        inputs = [(number[v.producer], v.index) for v in node.inputs], [number[c] for c in node.control_inputs]
        digest.update(repr((node.op_type, inputs, shapes, attrs)).encode())
    digest.update(repr([(number[v.producer], v.index) for v in graph.outputs]).encode())
    return digest.hexdigest()[:48]


def other_step(name: str) -> ArgumentError:
    return ArgumentError(
        "the plan is for another step",
        argument="plan",
        where=f"step {name!r}",
        cause="its operations or shapes differ, or another version of TensorFlow, Keras or graphwright made the plan",
        remedy="give the step and the shapes that the plan was made for, or a budget instead of the plan",
    )


class PlanCache:
    """A folder of plans. Unreadable and unwritable files are ignored, so that a cache never stops a training."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, key: str) -> Path:
        return self.directory / f"{key}.json"

    def read(self, key: str, costs: CostGraph, budget_bytes: int | None) -> Solution | None:
        """Return the plan, judged again; None if there is none, or it does not fit the graph or the budget.

        Args:
            budget_bytes: the present budget; None for any.
        """
        path = self.path(key)
        try:
            file = read_json(path)
            schedule = Schedule(file.indices("schedule", len(costs.tasks)))
        except FileFormatError:
            return None
        return known_solution(costs, schedule, budget_bytes, status="optimal" if file.data.get("status") == "optimal" else "feasible")

    def other_plans(self, key: str, costs: CostGraph) -> list[Solution]:
        """Return plans for the same graph and other requests, each with its peak as its budget."""
        paths = sorted(path for path in self.directory.glob(f"{key.rpartition('-')[0]}-*.json") if path.stem != key)
        plans = (self.read(path.stem, costs, None) for path in paths[:_MOST])
        return [solution for solution in plans if solution is not None]

    def write(self, key: str, solution: Solution) -> None:
        data = {"status": solution.status, "schedule": list(solution.schedule.steps)}
        _write(self.path(key), data)


class KeptFigures:
    """Figures of a step from an earlier run. They do not affect what a planned step computes.

    Args:
        cache: where they are kept; None to keep nothing.
        graph: the traced step.
        asked: all other circumstances that they depend on, in words.

    Attributes:
        without_memory_optimizer: whether Grappler's result can be planned only without its memory optimizer.
        peak: the peak of the unmodified step.
    """

    def __init__(self, cache: PlanCache | None, graph: Graph, asked: str) -> None:
        self._path = None if cache is None else cache.directory / f"{fingerprint(graph, asked, 0.0)}.step"
        self._least: dict[str, float] = {}
        self.peak: PeakPrediction | None = None
        self.without_memory_optimizer = False
        with contextlib.suppress(FileFormatError, TypeError, ValueError, OverflowError):
            if self._path is not None:
                self._read(read_json(self._path))
        self._known = self._data()

    def _read(self, file: Record) -> None:
        least = {key: float(value) for key, value in file.record("least_time").data.items()}
        self.peak = from_plain(PeakPrediction, file.value("peak"), "peak")
        self._least, self.without_memory_optimizer = least, file.value("without_memory_optimizer") is True

    def _data(self) -> dict[str, object]:
        return {
            "peak": plain(_without_lifetimes(self.peak), whole=True),
            "without_memory_optimizer": self.without_memory_optimizer,
            "least_time": {**self._least},
        }

    def least_time(self, costs: CostGraph, budget_bytes: int) -> float:
        if self._path is None:
            return least_time(costs, budget_bytes)
        question = repr((costs.tasks, costs.buffers, costs.order, costs.resident_bytes, budget_bytes))
        digest = hashlib.sha256(question.encode()).hexdigest()[:32]
        if digest not in self._least:
            self._least[digest] = least_time(costs, budget_bytes)
        return self._least[digest]

    def keep(self) -> None:
        if self._path is not None and self.peak is not None and (data := self._data()) != self._known:
            _write(self._path, data)
            self._known = data


def _without_lifetimes(peak: PeakPrediction | None) -> PeakPrediction | None:
    if peak is None or peak.timeline is None:
        return peak
    return replace(peak, timeline=replace(peak.timeline, lifetimes=()))


def _write(path: Path, data: Mapping[str, object]) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, data)
