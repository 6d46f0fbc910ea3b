"""Graphs drawn by hand: two devices that do the same and meet in an all-reduce.

x ── a ── b ── c ── d ── reduce ── u        on each device; the two `reduce` wait for each other
 └──────┴────┴────┘ (b, c, d read a too)
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from graphwright.analyze.cost import TaskMap, build_cost_graph
from graphwright.errors import UnsupportedError
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.graph import DTYPES, Function, Graph, Value
from graphwright.ir.traits.effects import Purity
from graphwright.ir.verify import verify
from graphwright.ir.walk import backward_reachable, topological_order
from graphwright.memory.devices import find_placement, short_name
from graphwright.memory.parts import join, lanes, same_work, split
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import check, simulate
from graphwright.plan.solve import minimum
from graphwright.transform.rematerialize import apply_schedule

_F32 = (DTYPES["float32"], (64, 1024))


def _add(graph: Graph, op_type: str, name: str, *inputs: Value, device: str) -> Value:
    return graph.add_node(op_type, name, inputs=inputs, output_types=[_F32], device=device).outputs[0]


def _two_replicas(*, reduce_types: tuple[str, str] = ("CollectiveReduceV2", "CollectiveReduceV2")) -> Graph:
    graph = Graph("step")
    results: list[Value] = []
    for k, reduce_type in enumerate(reduce_types):
        device = f"/job:localhost/replica:0/task:0/device:CPU:{k}"
        x = _add(graph, "Placeholder", f"x{k}", device=device)
        graph.inputs = [*graph.inputs, x]
        a = _add(graph, "Exp", f"a{k}", x, device=device)
        b = _add(graph, "MatMul", f"b{k}", a, a, device=device)
        c = _add(graph, "MatMul", f"c{k}", b, a, device=device)
        d = _add(graph, "MatMul", f"d{k}", c, a, device=device)
        reduced = _add(graph, reduce_type, f"reduce{k}", d, device=device)
        results.append(_add(graph, "MatMul", f"u{k}", reduced, b, device=device))
    graph.outputs = results
    return graph


def _tasks(graph: Graph) -> TaskMap:
    stateful = {node.op_type: node.op_type.startswith("Collective") for node in graph.nodes}
    return build_cost_graph(graph, Purity(graph, stateful), lambda nodes: float(len(nodes)))


def test_names_of_devices() -> None:
    assert [short_name(d) for d in ("", "/job:worker/task:1", "CPU:0", "/device:GPU:3", "/gpu:1")] == ["", "", "CPU:0", "GPU:3", "GPU:1"]


def test_one_device_is_one_part() -> None:
    graph = _two_replicas()
    for node in graph.nodes:
        node.device = ""
    assert find_placement(graph, {}) is None


def test_each_device_holds_its_own_memory() -> None:
    graph = _two_replicas()
    tasks = _tasks(graph)
    parts = split(tasks, find_placement(graph, {}))
    assert [part.device for part in parts] == ["CPU:0", "CPU:1"]
    assert same_work(*parts)
    whole = simulate(tasks.costs, Schedule(tasks.costs.order))
    for part in parts:
        assert part.tasks.costs.resident_bytes * 2 == tasks.costs.resident_bytes
        assert simulate(part.tasks.costs, Schedule(part.tasks.costs.order)).peak_bytes < whole.peak_bytes
        assert [part.tasks.costs.tasks[t].name[:-1] for t in part.meeting] == ["reduce"]


def test_plans_of_devices_are_one_schedule_with_a_chain_per_device() -> None:
    graph = _two_replicas()
    tasks = _tasks(graph)
    parts = split(tasks, find_placement(graph, {}))
    solutions = [minimum(part.tasks.costs) for part in parts]
    schedule = join(parts, [solution.schedule for solution in solutions])
    check(tasks.costs, schedule)
    device_of = lanes(parts)
    for k, (part, solution) in enumerate(zip(parts, solutions, strict=True)):
        assert [t for t in schedule.steps if device_of[t] == k] == [part.whole[t] for t in solution.schedule.steps]
    apply_schedule(tasks, schedule, lanes=device_of)
    verify(graph)
    for node in graph.nodes:
        assert all(before.device == node.device for before in node.control_inputs)
    order = [node for node in topological_order(graph) if node.device.endswith("CPU:1") and node.op_type == "MatMul"]
    assert len(order) >= 4
    assert all(earlier in backward_reachable([later]) for earlier, later in pairwise(order))


def test_what_crosses_is_kept_and_never_recomputed() -> None:
    graph = _two_replicas()
    there = _add(graph, "AddN", "sum", graph["u0"].outputs[0], graph["b1"].outputs[0], device="/device:CPU:1")
    graph.outputs = [there]
    tasks = _tasks(graph)
    first, second = split(tasks, find_placement(graph, {}))
    sent = next(b for b in first.tasks.costs.buffers if b.name == "u0:0")
    received = next(b for b in second.tasks.costs.buffers if b.name == "u0:0")
    assert sent.kept
    assert received.producer is None
    assert not next(t for t in first.tasks.costs.tasks if t.name == "u0").recomputable
    schedule = join((first, second), [Schedule(p.tasks.costs.order) for p in (first, second)])
    check(tasks.costs, schedule)


def test_collectives_keep_one_order_on_a_device_that_is_alone() -> None:
    graph = Graph("worker")
    x = _add(graph, "Placeholder", "x", device="")
    graph.inputs = [x]
    graph.outputs = [
        _add(graph, "CollectiveReduceV2", f"reduce{k}", _add(graph, "Exp", f"e{k}", x, device=""), device="") for k in range(4)
    ]
    tasks = _tasks(graph)
    (part,) = split(tasks, None)
    names = [part.tasks.costs.tasks[t].name for t in sorted(part.meeting, key=part.meeting.__getitem__)]
    assert names == [f"reduce{k}" for k in range(4)]
    chained = [t for t in part.meeting if set(part.tasks.costs.tasks[t].after) & set(part.meeting)]
    assert len(chained) == 3


def test_replicas_that_meet_in_different_collectives_are_refused() -> None:
    graph = _two_replicas(reduce_types=("CollectiveReduceV2", "CollectiveGatherV2"))
    with pytest.raises(UnsupportedError, match="different collectives"):
        split(_tasks(graph), find_placement(graph, {}))


def test_a_loop_over_devices_is_refused() -> None:
    graph = _two_replicas()
    body = _two_replicas()
    graph.functions["body"] = Function("body", body)
    graph.add_node("While", "loop", inputs=[graph["x0"].outputs[0]], attrs={"body": FunctionReference("body")}, output_types=[_F32])
    with pytest.raises(UnsupportedError, match="CPU:0, CPU:1"):
        find_placement(graph, {})
