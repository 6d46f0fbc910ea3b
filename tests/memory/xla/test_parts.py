"""Steps that XLA compiles, in parts of their batch: each part waits for the one before it, here and on GPUs that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.analyze.device_models import DEVICES
from graphwright.ir.edit.insert import add_identity
from graphwright.ir.graph import DTYPES, Graph, Node
from graphwright.ir.text import from_text
from graphwright.ir.traits.values import BARRIER
from graphwright.memory.planning import map_tasks
from graphwright.memory.verbs import Candidate, split_candidates
from graphwright.memory.xla.barriers import write_barriers
from graphwright.memory.xla.parts import add_part_gates
from graphwright.memory.xla.schedule import Holding, apply_for_xla
from graphwright.plan.model import Schedule
from graphwright.run.xla_memory import xla_memory
from graphwright.step.flatten import flat_step
from graphwright.step.targets import trace
from tests.memory.xla.chain import chain


def _two_parts() -> tuple[Graph, dict[str, list[Node]]]:
    """x -> a sum over rows of tanh(x), in two parts, and a second turn of each that reads what its first one made, and the sum."""
    part = "_graphwright_part_of = {0}, _graphwright_part = [{1}, {2}, 64, 0]"
    first, second = part.format('"t"', 0, 32), part.format('"t"', 32, 64)
    graph = from_text(f"""
    graph "g"
    outputs %n0:0, %n1:0
    %x = Placeholder() : float32[64,64]
    %zero = Const() {{dtype = int32}} : int32[]
    %s0 = Slice(%x:0, %zero:0, %zero:0) {{T = float32, Index = int32}} : float32[32,64]
    %t0 = Tanh(%s0:0) {{T = float32, {first}}} : float32[32,64]
    %u0 = Sum(%t0:0, %zero:0) {{T = float32, {first}}} : float32[64]
    %s1 = Slice(%x:0, %zero:0, %zero:0) {{T = float32, Index = int32}} : float32[32,64]
    %t1 = Tanh(%s1:0) {{T = float32, {second}}} : float32[32,64]
    %u1 = Sum(%t1:0, %zero:0) {{T = float32, {second}}} : float32[64]
    %u = AddV2(%u0:0, %u1:0) {{T = float32}} : float32[64]
    %m0 = Mul(%t0:0, %u:0) {{T = float32, {first}}} : float32[32,64]
    %n0 = Mul(%m0:0, %s0:0) {{T = float32, {first}}} : float32[32,64]
    %n1 = Mul(%t1:0, %u:0) {{T = float32, {second}}} : float32[32,64]
    """)
    graph.inputs = [graph.value("x")]
    names = {"first": ["s0", "t0", "u0"], "second": ["s1", "t1", "u1"], "sum": ["u"], "third": ["m0", "n0"], "fourth": ["n1"]}
    return graph, {turn: [graph[name] for name in nodes] for turn, nodes in names.items()}


def test_a_part_waits_for_the_one_before_it_at_what_it_alone_reads() -> None:
    graph, turns = _two_parts()
    gates = add_part_gates(graph, list(turns.values()))
    waits = {gate.inputs[0].name: [node.name for node in gate.control_inputs] for gate in gates}
    # The second part's slice reads x behind a gate; each part's tanh is read behind one in its second turn. What is of no part is not held.
    # A part is done when what it made is added to what the parts before it made.
    assert waits == {"x:0": ["u0"], "t0:0": ["u"], "t1:0": ["n0"]}
    assert graph["s0"].inputs[0].producer.name == "x"
    assert graph["s1"].inputs[0].producer in gates
    assert graph["n0"].inputs[1].producer.name == "s0"  # it was there for the first turn
    assert not any(gates.values())


def test_gates_that_are_there_are_not_gated_again_and_a_step_in_one_part_has_none() -> None:
    graph, turns = _two_parts()
    gates = add_part_gates(graph, list(turns.values()))
    assert not add_part_gates(graph, list(turns.values()), gates)
    for node in graph.nodes:
        graph.set_attr(node, "_graphwright_part", None)
    assert not add_part_gates(graph, list(turns.values()))


def _normalized(blocks: int) -> tuple[Any, Any]:
    """Residual blocks whose mean over the batch is taken away, so parts take turns in the forward part: a step and its input."""
    weights = [tf.Variable(tf.eye(64) * 0.5) for _ in range(blocks)]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for w in weights:
                z = tf.tanh(y @ w)
                y += z - tf.reduce_mean(z, axis=0, keepdims=True)
            loss = tf.reduce_mean(y * y)
        for w, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(0.1 * gradient)
        return loss

    return step, tf.random.stateless_normal((512, 64), (1, 2))


def test_parts_that_take_turns_in_the_forward_part_wait_there_too() -> None:
    step, x = _normalized(12)
    flat = flat_step(trace(step, inputs=(x,)))
    candidate = next(split_candidates(Candidate(flat, map_tasks(flat)), flat.binding.argument_count, map_tasks))
    tasks = candidate.tasks
    apply_for_xla(tasks, Schedule(tasks.costs.order), Holding(barriers=True, residuals=False))  # in time: no path is walked twice
    barriers = [node for node in tasks.graph.nodes if node.op_type == BARRIER]
    assert len(barriers) > 12
    assert all(len(barrier.inputs) > 1 for barrier in barriers), "one of a single value waits for nothing"


def test_barriers_pass_what_branches_and_joins_before_the_backward_part_once() -> None:
    graph = Graph()
    x = graph.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (8,))]).outputs[0]
    graph.inputs = [x]
    gate = add_identity(x, "gate")
    value = gate.outputs[0]
    for _ in range(2000):
        value = graph.add_node("Mul", graph.unique_name("square"), inputs=[value, value], output_types=[(value.dtype, (8,))]).outputs[0]
    last = graph.add_node("Tanh", "last", inputs=[value], output_types=[(value.dtype, (8,))])
    graph.outputs = [last.outputs[0]]
    assert write_barriers(graph, [gate], [[last]]) == 1


def _follows(fast: Any, step: Any, x: Any, weights: list[Any]) -> None:
    before = [w.numpy() for w in weights]
    expected = [float(step(x)) for _ in range(2)]
    for w, value in zip(weights, before, strict=True):
        w.assign(value)
    np.testing.assert_allclose([float(fast(x)) for _ in range(2)], expected, rtol=1e-5)


def test_parts_keep_what_recomputing_does_not_under_this_processes_xla(tmp_path: Path) -> None:
    step, x, weights = chain(8, width=64, scale=8, batch=2048)
    fast = gw.optimize_memory(step, 0.45, inputs=(x,), allow=("split",), verify="run", time_limit_s=0.5, cache_dir=tmp_path)
    plan = fast.plan
    fast(x)  # proves it by running
    plan = fast.plan
    assert "in 4 parts" in plan.rewritten
    assert "in 4 parts" in plan.how["plan"]
    assert plan.recomputed_count == 0
    assert xla_memory(fast.concrete_function(x), [tuple(x.shape)]).peak_bytes == plan.peak_bytes <= 0.45 * plan.original_peak_bytes
    assert "added up part by part" in plan.verification
    assert "compiled by XLA equal" in plan.verification
    _follows(fast, step, x, weights)
    followed = gw.optimize_memory(step, inputs=(x,), plan=plan.save(tmp_path / "plan.json")).plan
    assert (followed.peak_bytes, followed.rewritten) == (plan.peak_bytes, plan.rewritten)
    kept = gw.optimize_memory(step, 0.45, inputs=(x,), allow=("split",), time_limit_s=0.5, cache_dir=tmp_path).plan
    assert "plan cache" in kept.how["plan"]
    assert kept.peak_bytes == plan.peak_bytes


def test_without_the_verb_it_is_said_what_parts_would_reach() -> None:
    step, x, _ = chain(8, width=64, scale=8, batch=2048)
    with pytest.raises(gw.InfeasibleError, match=r'allow="all" \(.* parts, one after another, takes some \d+ % of the unmodified peak'):
        gw.optimize_memory(step, 0.3, inputs=(x,), allow=(), cache_dir=None)


@pytest.mark.slow
def test_parts_keep_what_recomputing_does_not_on_a_gpu_that_is_not_there(gpu_compiler: None) -> None:
    step, x, weights = chain(8, width=64, scale=8, batch=4096, compiled=False)
    with pytest.raises(gw.InfeasibleError):
        gw.optimize_memory(step, 0.35, inputs=(x,), device="h100", cache_dir=None, time_limit_s=0.5)
    fast = gw.optimize_memory(step, 0.35, inputs=(x,), device="h100", allow="all", cache_dir=None, time_limit_s=0.5)
    assert "parts" in fast.plan.rewritten
    function = fast.concrete_function(x)
    assert xla_memory(function, [tuple(x.shape)], DEVICES["h100"]).peak_bytes == fast.plan.peak_bytes
    assert fast.plan.peak_bytes <= 0.35 * fast.plan.original_peak_bytes
    _follows(fast, step, x, weights)


@pytest.mark.slow
@pytest.mark.parametrize("returned", ["gradients", "norm"])
def test_parts_wait_on_a_gpu_where_their_gradients_are_returned_too(gpu_compiler: None, tmp_path: Path, returned: str) -> None:
    rng = np.random.default_rng(0)
    weights = [tf.Variable(rng.normal(size=(64, 64)) / 8, dtype="float32") for _ in range(8)]
    x = tf.constant(rng.normal(size=(4096, 64)), "float32")

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for w in weights:
                y = tf.nn.gelu(y @ w)
            loss = tf.reduce_mean(y * y)
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, weights), 1e-3)
        if returned == "gradients":
            return gradients
        for w, gradient in zip(weights, gradients, strict=True):
            w.assign_sub(gradient)
        return norm

    plan = gw.optimize_memory(step, 0.5, inputs=(x,), device="h100", allow=("split",), cache_dir=None, time_limit_s=0.5).plan
    assert "in 4 parts" in plan.rewritten
    assert plan.peak_bytes <= 0.5 * plan.original_peak_bytes
    followed = gw.optimize_memory(step, inputs=(x,), device="h100", plan=plan.save(tmp_path / "plan.json")).plan
    assert (followed.peak_bytes, followed.overhead) == (plan.peak_bytes, plan.overhead)


@pytest.mark.slow
def test_without_their_order_parts_save_nothing(gpu_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    step, x, _ = chain(5, width=64, scale=8, batch=4096, compiled=False)
    monkeypatch.setattr("graphwright.memory.xla.schedule.add_part_gates", lambda *_: {})
    monkeypatch.setattr("graphwright.memory.xla.planning._MOST_NODES", 150)  # in 4 parts at most
    with pytest.raises(gw.InfeasibleError):
        gw.optimize_memory(step, 0.7, inputs=(x,), device="h100", allow=("split",), cache_dir=None, time_limit_s=0.5)


@pytest.mark.thorough
@pytest.mark.slow
def test_more_verbs_take_no_more_time(gpu_compiler: None) -> None:
    step, x, _ = chain(10, width=64, scale=8, batch=4096, compiled=False)
    plans = [
        gw.optimize_memory(step, 0.5, inputs=(x,), device="h100", allow=allow, cache_dir=None, time_limit_s=0.5).plan
        for allow in ("all", ("recompute",))
    ]
    assert plans[0].overhead <= plans[1].overhead + 0.02, "recomputing is cheaper than parts here"


@pytest.mark.thorough
@pytest.mark.slow
def test_parts_and_recomputing_keep_what_neither_does_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphwright.memory.xla.planning._MOST_NODES", 250)  # in 4 parts at most
    step, x, weights = chain(6, width=64, scale=8, batch=512)
    for verb in ("recompute", "split"):
        with pytest.raises(gw.InfeasibleError):
            gw.optimize_memory(step, 0.42, inputs=(x,), allow=(verb,), cache_dir=None, time_limit_s=0.5)
    fast = gw.optimize_memory(step, 0.42, inputs=(x,), allow=("recompute", "split"), cache_dir=None, time_limit_s=0.5)
    assert "parts" in fast.plan.rewritten
    assert fast.plan.recomputed_count > 0
    assert fast.plan.peak_bytes <= 0.42 * fast.plan.original_peak_bytes
    _follows(fast, step, x, weights)
