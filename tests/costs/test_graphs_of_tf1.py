"""Graphs of TensorFlow 1 are steps for all questions: live, in a `.pb` and in a `.meta`, with variables by handle and by reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.analyze.storages import SMALL_BYTES
from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.step.fetches import function_of_graph
from tests.tf1_graphs import OUTPUTS, branched, embedding, exported, logistic, looped, residual, v1

FEEDS = {"x": (8, 16, 16, 3)}


@pytest.mark.parametrize(("make", "shape"), [(residual, (8, 16, 16, 3)), (logistic, (8, 64)), (embedding, (8, 4)), (branched, (8, 32))])
def test_references_cost_what_handles_cost(make: Any, shape: tuple[int, ...]) -> None:
    """Updates in place are such both ways."""
    by_reference, by_handle = (gw.predict_peak(make(handles=handles), {"x": shape}, outputs=OUTPUTS) for handles in (False, True))
    assert by_reference.order == by_handle.order == "executor"
    assert by_reference.peak_bytes == pytest.approx(by_handle.peak_bytes, rel=0.03, abs=SMALL_BYTES)
    assert by_reference.resident_bytes == by_handle.resident_bytes


def test_a_graph_and_its_files(tmp_path: Path) -> None:
    graph = residual()
    (tmp_path / "step.pb").write_bytes(graph.as_graph_def().SerializeToString())
    meta = exported(graph, tmp_path / "step.meta")
    targets = (graph, graph.as_graph_def(), meta, gw.load(graph), tmp_path / "step.pb", str(tmp_path / "step.meta"))
    peaks = {gw.predict_peak(target, FEEDS, outputs=OUTPUTS, order="traced").peak_bytes for target in targets}
    assert len(peaks) == 1
    assert len(gw.load(targets[3])) == len(gw.load(graph)), "the user's graph stays as it is"
    for target in (targets[4], targets[5]):
        with pytest.raises(ArgumentError, match="trains, and nothing says what is fetched") as raised:
            gw.inspect(target, FEEDS)
        assert "train" in raised.value.remedy.split("nothing reads")[1]


def test_questions_about_a_graph() -> None:
    graph = residual(blocks=1)
    loss, train = graph.get_tensor_by_name("net/loss:0"), graph.get_operation_by_name("net/train")
    report = gw.inspect(graph, FEEDS, outputs=[train, loss])
    assert report.peak_bytes == gw.predict_peak(graph, {"x:0": FEEDS["x"]}, outputs=[train, loss]).peak_bytes
    assert (report.backward_flops, report.optimizer_flops) > (report.forward_flops, 0)
    assert gw.predict_peak(graph, batch=8, outputs=loss).peak_bytes < report.peak_bytes
    assert report.executor is not None
    assert gw.check(graph, FEEDS, outputs=[train, loss], max_peak=report.executor.high_bytes + 4096)
    swept = gw.sweep(graph, batches=(4, 8), outputs=[train, loss], order="traced")
    assert gw.max_batch(graph, swept.points[1].peak_bytes, outputs=[train, loss], order="traced").batch == 8
    advice = gw.advise(graph, 0.7, FEEDS, outputs=[train, loss], cache_dir=None, time_limit_s=1.0)
    assert advice.peak_bytes == pytest.approx(report.peak_bytes, rel=0.05)
    assert all("outputs=['net/train', 'net/loss:0']" in s.call for s in advice.suggestions if s.kind == "plan")
    assert any(" --outputs net/train,net/loss:0 --feed" in s.command for s in advice.suggestions)


def test_writes_by_reference_keep_their_order() -> None:
    """The function writes and reads by handle what the session writes and reads by reference, one after the other."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (2,), "x")
        v = v1.get_variable("v", (2,), use_resource=False, initializer=tf.zeros_initializer())
        changed = v1.assign_add(v1.assign(v, x), 2.0 * x)
        with tf.control_dependencies([changed]):
            rows = v1.scatter_sub(v, [1], [5.0])
        with tf.control_dependencies([rows]):
            after = tf.identity(v)
        tf.stack([changed * 1.0, after], name="y")
        v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run("init")
        expected = session.run("y:0", {"x:0": [1.0, 2.0]})
    function = function_of_graph(graph, "y", runs=True)
    for variable in function.graph.variables:
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.zeros(2))
    (got,) = function(tf.constant([1.0, 2.0]))
    assert got.numpy()[1].tolist() == expected[1].tolist() == [3.0, 1.0]


def test_what_has_no_function_is_named() -> None:
    assert gw.predict_peak(looped(), {"x": (8, 16)}, outputs=OUTPUTS).order == "executor"
    with pytest.raises(UnsupportedError, match="TF1 loop around"):
        gw.predict_peak(looped(v2=False), {"x": (8, 16)}, outputs=OUTPUTS)
    with tf.Graph().as_default() as graph:
        v = v1.get_variable("v", (2,), use_resource=False)
        v1.raw_ops.RefIdentity(input=v._ref(), name="again")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(UnsupportedError, match="RefIdentity takes a variable of TF1 by reference"):
        gw.predict_peak(graph, outputs="again")
    with pytest.raises(ArgumentError, match="has outputs of its own"):
        gw.predict_peak(tf.function(lambda x: x), outputs="x")
    with pytest.raises(UnsupportedError, match="has no values to run with"):
        gw.inspect(logistic(), {"x": (8, 64)}, outputs=OUTPUTS, measure=True)
