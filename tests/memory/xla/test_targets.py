"""Plans for GPUs that are not there: held by barriers, judged by the target's compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.analyze.device_models import DEVICES
from graphwright.ir.edit.insert import add_identity
from graphwright.ir.graph import Graph, Node
from graphwright.ir.text import from_text
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import BARRIER
from graphwright.memory.xla.barriers import write_barriers
from graphwright.run.xla_memory import xla_memory
from graphwright.transform.proof import Original
from tests.memory.xla.chain import chain


def _joint() -> tuple[Graph, list[list[Node]]]:
    """x -> a -> b -> l, gradients gl -> gb -> ga; gb reads a, ga reads x; b is computed again for gb, as c; s is read by nobody later.

    The steps of the backward part: gl, s | c | gb | ga.
    """
    graph = from_text("""
    graph "g"
    outputs %ga:0, %s:0
    %x = Placeholder() : float32[64,64]
    %a = Tanh(%x:0) {T = float32} : float32[64,64]
    %b = Sin(%a:0) {T = float32} : float32[64,64]
    %l = Cos(%b:0) {T = float32} : float32[64,64]
    %gl = Exp(%l:0) {T = float32} : float32[64,64]
    %s = Neg(%gl:0) {T = float32} : float32[64,64]
    %c = Sin(%a:0) {T = float32, _graphwright_recomputed_from = "b"} : float32[64,64]
    %gb = Mul(%gl:0, %c:0) {T = float32} : float32[64,64]
    %ga = Mul(%gb:0, %x:0) {T = float32} : float32[64,64]
    """)
    graph.inputs = [graph.value("x")]
    return graph, [[graph["gl"]], [graph["s"]], [graph["c"]], [graph["gb"]], [graph["ga"]]]


def _gated() -> tuple[Graph, list[list[Node]], list[Node]]:
    graph, steps = _joint()
    gate = add_identity(graph.value("a"), "gate", control_inputs=[graph["gl"]])
    graph.replace_input(graph["c"], 0, gate.outputs[0])
    return graph, steps, [gate]


def test_a_barrier_is_tied_to_what_is_read_later() -> None:
    graph, steps, gates = _gated()
    assert write_barriers(graph, gates, steps) == 1
    (barrier,) = (node for node in graph.nodes if node.op_type == BARRIER)
    assert [value.name for value in barrier.inputs] == ["a:0", "gl:0"]  # s is read by nobody behind it
    assert graph["c"].inputs == (barrier.outputs[0],)
    assert graph["gb"].inputs[0] == barrier.outputs[1]
    assert graph["s"].inputs[0].name == "gl:0"  # runs before
    assert "gate" not in graph


def test_barriers_hand_on_what_they_get_and_the_proof_notices_a_wrong_one() -> None:
    graph, _ = _joint()
    original = Original(graph, Purity(graph, {}))
    graph, steps, gates = _gated()
    write_barriers(graph, gates, steps)
    assert original.compare(graph, Purity(graph, {})).equal
    (barrier,) = (node for node in graph.nodes if node.op_type == BARRIER)
    graph.replace_input(graph["c"], 0, barrier.outputs[1])
    assert not original.compare(graph, Purity(graph, {})).equal


def _wide(layers: int = 8) -> tuple[Any, Any, list[Any]]:
    return chain(layers, width=64, scale=8, batch=4096, compiled=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h100", pytest.param("l4", marks=pytest.mark.thorough)])
def test_the_budget_is_kept_by_the_targets_compiler_and_the_step_runs_here(name: str, gpu_compiler: None, tmp_path: Path) -> None:
    step, x, weights = _wide()
    before = [w.numpy() for w in weights]
    fast = gw.optimize_memory(step, 0.6, inputs=(x,), device=name, verify="run", time_limit_s=1.0)
    plan, function = fast.plan, fast.concrete_function(x)
    shapes = [tuple(x.shape)]
    assert plan.original_peak_bytes == xla_memory(step.get_concrete_function(x), shapes, DEVICES[name]).peak_bytes
    assert plan.peak_bytes == xla_memory(function, shapes, DEVICES[name]).peak_bytes <= 0.6 * plan.original_peak_bytes
    assert DEVICES[name].full_name in plan.how["peak"]
    assert "barriers" in plan.how["order"]
    assert "kernels equal bit for bit" in plan.verification
    assert "equal by structure" in plan.verification
    assert any(operation.type == BARRIER for operation in function.graph.get_operations())
    expected = [float(step(x)) for _ in range(2)]
    for w, value in zip(weights, before, strict=True):
        w.assign(value)
    np.testing.assert_allclose([float(fast(x)) for _ in range(2)], expected, rtol=1e-5)

    again = gw.optimize_memory(step, inputs=(x,), plan=plan.save(tmp_path / "plan.json"))
    assert again.plan.peak_bytes == plan.peak_bytes
    holder = tf.Module()
    holder.weights, holder.step = weights, function
    tf.saved_model.save(holder, str(tmp_path / "exported"))
    assert float(tf.saved_model.load(str(tmp_path / "exported")).step(x)) > 0


@pytest.mark.slow
def test_without_the_barriers_the_compiler_undoes_the_plan(gpu_compiler: None) -> None:
    step, x, _ = _wide()
    fast = gw.optimize_memory(step, 0.6, inputs=(x,), device="h100", verify=False, time_limit_s=1.0)
    function = fast.concrete_function(x)
    graph_def = function.graph.as_graph_def()
    for node in graph_def.node:
        if node.op == BARRIER:
            node.op = "IdentityN"
    captures = [(external, inner.name) for external, inner in function.graph.captures]
    from graphwright.source.rebuild import rebuild_concrete_function

    plain = rebuild_concrete_function(
        graph_def,
        inputs=[function.inputs[0].name],
        captures=captures,
        outputs=[tensor.name for tensor in function.outputs],
        control_outputs=[operation.name for operation in function.graph.control_outputs],
        like=function,
    )
    undone = xla_memory(plain, [tuple(x.shape)], DEVICES["h100"])
    assert undone.peak_bytes > 1.2 * fast.plan.peak_bytes


@pytest.mark.slow
def test_a_budget_that_cannot_be_kept_says_what_can(gpu_compiler: None) -> None:
    step, x, _ = _wide(4)
    with pytest.raises(gw.InfeasibleError, match="as XLA compiles it") as caught:
        gw.optimize_memory(step, 0.1, inputs=(x,), device="h100", cache_dir=None, time_limit_s=0.5)
    plan = gw.optimize_memory(step, caught.value.smallest_budget_bytes, inputs=(x,), device="h100", time_limit_s=0.5).plan
    assert plan.peak_bytes <= caught.value.smallest_budget_bytes


def test_an_unknown_device_is_an_error_before_anything_is_traced() -> None:
    step, _, _ = _wide(1)
    with pytest.raises(gw.ArgumentError, match="'v100'"):
        gw.optimize_memory(step, 0.5, device="v100")
