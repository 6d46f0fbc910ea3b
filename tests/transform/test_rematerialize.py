"""Whatever schedule is allowed, the rewritten step computes the same bits as the original."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow")

from graphwright.analyze.cost import TaskMap
from graphwright.ir.text import from_text, to_text
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import RECOMPUTED_FROM
from graphwright.ir.traits.variables import written_resources
from graphwright.ir.verify import verify as verify_graph
from graphwright.ir.walk import topological_order
from graphwright.memory.planning import follow_schedule, map_tasks
from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import ScheduleError, check
from graphwright.run.executed_graph import executed_graph
from graphwright.run.verify import verify
from graphwright.source.concrete_function import from_concrete_function, to_concrete_function
from graphwright.step.flatten import FlatStep, flat_step, flatten, stateful_op_types
from graphwright.step.targets import trace
from graphwright.transform.rematerialize import apply_schedule
from tests.transform.steps import STEPS, concrete_step

pytestmark = pytest.mark.tensorflow


@cache
def flat(name: str) -> tuple[FlatStep, str]:
    step = flatten(concrete_step(name)[0])
    verify_graph(step.graph)
    return step, to_text(step.graph)


def task_map(name: str) -> TaskMap:
    """A fresh copy each time, since a schedule is applied in place."""
    step, text = flat(name)
    graph = from_text(text)
    return map_tasks(dataclasses.replace(step, graph=graph, purity=Purity(graph, stateful_op_types(graph))))


def rewritten(name: str, tasks: TaskMap, schedule: Schedule, *, fix_order: bool = True) -> Any:
    apply_schedule(tasks, schedule, fix_order=fix_order)
    verify_graph(tasks.graph)
    return to_concrete_function(tasks.graph, flat(name)[0].binding)


def random_schedule(costs: CostGraph, draw: Any, *, swaps: int = 40, repeats: int = 6) -> Schedule:
    """Random allowed changes of the original order: swaps of neighbors, and repeats of what may run again."""
    steps = list(costs.order)
    for _ in range(swaps):
        k = draw(st.integers(0, len(steps) - 2))
        _keep_if_allowed(costs, steps, [*steps[:k], steps[k + 1], steps[k], *steps[k + 2 :]])
    again = [t for t, task in enumerate(costs.tasks) if task.recomputable]
    for _ in range(repeats if again else 0):
        t = draw(st.sampled_from(again))
        k = draw(st.integers(steps.index(t) + 1, len(steps)))
        _keep_if_allowed(costs, steps, [*steps[:k], t, *steps[k:]])
    return Schedule(tuple(steps))


def _keep_if_allowed(costs: CostGraph, steps: list[int], changed: list[int]) -> None:
    try:
        check(costs, Schedule(tuple(changed)))
    except ScheduleError:
        return
    steps[:] = changed


@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=max(5, settings.default.max_examples // 20))
@given(data=st.data())
def test_a_random_schedule_gives_the_same_bits(name, data):
    tasks = task_map(name)
    schedule = random_schedule(tasks.costs, data.draw)
    function, inputs, _ = concrete_step(name)
    result = verify(function, rewritten(name, tasks, schedule), inputs, steps=2)
    assert result.bitwise, result


@pytest.mark.parametrize("name", STEPS)
def test_all_that_may_run_again_runs_again(name):
    """Every recomputable task once more, as late as is allowed: what goes stale must not be recomputable."""
    tasks = task_map(name)
    steps = list(tasks.costs.order)
    for t, task in enumerate(tasks.costs.tasks):
        if task.recomputable:
            for k in range(len(steps), steps.index(t), -max(1, len(steps) // 12)):
                before = len(steps)
                _keep_if_allowed(tasks.costs, steps, [*steps[:k], t, *steps[k:]])
                if len(steps) > before:
                    break
    assert len(steps) > len(tasks.costs.tasks)
    function, inputs, _ = concrete_step(name)
    result = verify(function, rewritten(name, tasks, Schedule(tuple(steps))), inputs, steps=2)
    assert result.bitwise, result
    clones = [node for node in tasks.graph if RECOMPUTED_FROM in node.attrs]
    assert all(node.name.startswith("recomputed/") for node in clones)
    assert not any(written_resources(node) or node.op_type == "RandomUniform" for node in clones)


def test_grappler_keeps_each_execution():
    """It merges equal nodes; executions that wait for the same differ in an attribute only."""
    import tensorflow as tf

    @tf.function
    def step(x):
        y = x @ x
        return tf.sin(y), tf.cos(y), tf.tan(y)

    target = trace(step, inputs=(tf.ones([64, 64]),))
    flat = flat_step(target)
    tasks = map_tasks(flat)
    product, *others = tasks.costs.order
    schedule = Schedule(tuple(t for other in others for t in (product, other)))
    function = follow_schedule(flat, tasks, schedule, waits=[()] * len(schedule.steps))
    like, _ = from_concrete_function(function)
    ran = executed_graph(dataclasses.replace(target, function=function), like=like)
    assert [node.op_type for node in ran].count("MatMul") == 3


def test_every_order_that_the_graph_allows_is_the_schedule():
    tasks = task_map("keras_model")
    schedule = Schedule((*tasks.costs.order,))
    steps = apply_schedule(tasks, schedule)
    place = {node: k for k, nodes in steps.items() for node in nodes}
    latest: dict[Any, int] = {}
    for node in topological_order(tasks.graph):
        before = [latest[b] for b in (*(v.producer for v in node.inputs), *node.control_inputs)]
        latest[node] = max([place.get(node, -1), *before])
        if node in place:  # all of the step before it has run
            assert latest[node] == place[node]
            assert place[node] == 0 or max(before) >= place[node] - 1 or _in_one_group(tasks, node, place)


def _in_one_group(tasks: TaskMap, node: Any, place: dict[Any, int]) -> bool:
    return sum(other == place[node] for other in place.values()) > 1


@pytest.mark.parametrize(
    ("name", "op_type", "seed"),
    [
        ("random_noise", "RandomUniform", 0),
        ("random_noise", "RandomUniform", 5),  # a clone with the same seed would draw in lockstep, and hide the fault
        ("assigned_between_reads", "AssignAddVariableOp", None),
        ("dense", "AssignSubVariableOp", None),
    ],
)
def test_a_repeated_effect_is_found_out(name, op_type, seed):
    """The negative control: what may not run again, made to run again, does not pass as equal."""
    tasks = task_map(name)
    index = next(t for t in tasks.costs.order if tasks.nodes[t][0].op_type == op_type and tasks.nodes[t][0].attrs.get("seed2") == seed)
    assert not tasks.costs.tasks[index].recomputable
    steps = list(tasks.costs.order)
    steps.insert(steps.index(index) + 1, index)
    readers = [t for t in steps if set(tasks.costs.tasks[t].inputs) & set(tasks.costs.tasks[index].outputs)]
    assert readers or op_type != "RandomUniform"
    free = tuple(dataclasses.replace(task, recomputable=True) for task in tasks.costs.tasks)
    forged = dataclasses.replace(tasks, costs=dataclasses.replace(tasks.costs, tasks=free))
    function, inputs, _ = concrete_step(name)
    result = verify(function, rewritten(name, forged, Schedule(tuple(steps))), inputs, steps=2)
    assert not result.equal


def test_repeats_read_the_latest_version_and_carry_their_origin():
    tasks = task_map("dense")
    costs = tasks.costs
    first, second = [t for t in costs.order if tasks.nodes[t][0].op_type == "Relu"][:2]
    product = next(t for t in costs.order if costs.tasks[t].outputs and set(costs.tasks[t].outputs) & set(costs.tasks[second].inputs))
    at = list(costs.order).index(second) + 1
    steps = apply_schedule(tasks, Schedule((*costs.order[:at], first, product, second, *costs.order[at:])))
    relu, matmul, again = (steps[at + k][0] for k in range(3))
    assert relu.attrs[RECOMPUTED_FROM] == tasks.nodes[first][0].name.encode()
    assert matmul.inputs[0] is relu.outputs[0]
    assert again.inputs == (matmul.outputs[0],)
    assert tasks.nodes[second][0].inputs[0].producer is tasks.nodes[product][0]
    verify_graph(tasks.graph)
