"""The graph that TensorFlow executes, taken without executing it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from graphwright.errors import UnsupportedError
from graphwright.ir.graph import Graph
from graphwright.run import executed_graph as executed
from graphwright.run.executed_graph import executed_graph, plain_op_type, read_executed_graph, recorded_graphs
from graphwright.run.traced_step import TracedStep, resolve
from graphwright.source.concrete_function import from_concrete_function
from graphwright.source.private_tensorflow import collected_graphs
from graphwright.step.example_inputs import preparable
from graphwright.step.flatten import flat_step
from graphwright.step.grappler_step import grappler_step
from graphwright.step.targets import trace
from tests.training_steps import squares_step


def graph_of(function: Any, inputs: Any, **options: Any) -> Graph:
    step = resolve(function, inputs)
    return executed_graph(step, like=from_concrete_function(step.function)[0], **options)


def op_types(graph: Graph) -> set[str]:
    return {node.op_type for node in graph.nodes}


@pytest.fixture
def training_step() -> tuple[Any, tuple[Any, ...], tf.Variable]:
    kernel = tf.Variable(tf.random.stateless_uniform([3, 3, 3, 8], (0, 1)))
    bias = tf.Variable(tf.zeros([8]))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
            loss = tf.reduce_sum(tf.nn.max_pool2d(y, 2, 2, "SAME") ** 2)
        for variable, gradient in zip((kernel, bias), tape.gradient(loss, (kernel, bias)), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step, (tf.ones([2, 8, 8, 3]),), kernel


def test_the_step_does_not_run(training_step: tuple[Any, tuple[Any, ...], tf.Variable]) -> None:
    step, inputs, kernel = training_step
    before = kernel.numpy()
    for _ in range(2):
        assert len(graph_of(step, inputs)) > 10
    assert (kernel.numpy() == before).all()
    step(*inputs)
    assert not (kernel.numpy() == before).all()


def test_it_is_the_graph_after_grappler_and_onednn(training_step: tuple[Any, tuple[Any, ...], tf.Variable]) -> None:
    step, inputs, _ = training_step
    graph = graph_of(step, inputs)
    assert "_FusedConv2D" in op_types(graph)
    assert not any(op_type.startswith("_Mkl") for op_type in op_types(graph))
    assert all(
        value.nbytes is not None for node in graph.nodes for value in node.outputs if value.dtype.name not in ("resource", "variant")
    )
    assert {variable.shape for variable in graph.variables.values()} == {(3, 3, 3, 8), (8,)}
    assert graph.inputs[0].shape == (2, 8, 8, 3)
    assert "_FusedConv2D" not in op_types(graph_of(step, inputs, grappler=False))


def test_the_gradient_of_the_bias_has_the_shape_of_the_bias(training_step: tuple[Any, tuple[Any, ...], tf.Variable]) -> None:
    step, inputs, _ = training_step
    graph = graph_of(step, inputs)
    fused = [n for n in graph.nodes if n.op_type == "Conv2DBackpropFilter" and len(n.outputs) == 2]
    assert [n.outputs[1].shape for n in fused] == [(8,)] * len(fused)


def test_a_loop_is_one_of_tf1_whose_tensors_have_shapes() -> None:
    @tf.function
    def step(x: Any) -> Any:
        kept = tf.TensorArray(tf.float32, 5, element_shape=[4, 4])
        for k in tf.range(5):
            x = tf.tanh(x @ x)
            kept = kept.write(k, x)
        return kept.stack()

    graph = graph_of(step, (tf.ones([4, 4]),))
    assert {"Enter", "Merge", "NextIteration"} <= op_types(graph)
    assert {v.shape for n in graph.nodes if n.op_type == "Tanh" for v in n.outputs} == {(4, 4)}


def test_open_dimensions_take_the_shape_of_the_arguments() -> None:
    step = tf.function(lambda x: tf.exp(x) * 2.0, input_signature=[tf.TensorSpec([None, 3])])
    concrete = step.get_concrete_function()
    like = from_concrete_function(concrete)[0]
    like.inputs[0].shape = (7, 3)
    graph = executed_graph(TracedStep.called("step", concrete, (tf.ones([7, 3]),)), like=like)
    assert {v.shape for n in graph.nodes if n.op_type == "Exp" for v in n.outputs} == {(7, 3)}


def test_shapes_are_kept_for_the_next_call(training_step: tuple[Any, tuple[Any, ...], tf.Variable]) -> None:
    step, inputs, _ = training_step
    shapes: dict[str, Any] = {}
    first = graph_of(step, inputs, shapes=shapes)
    assert shapes
    again = graph_of(step, inputs, shapes=shapes)
    assert {v.name: v.shape for n in first.nodes for v in n.outputs} == {v.name: v.shape for n in again.nodes for v in n.outputs}


def _biased(x: Any, w: Any) -> Any:
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), w[0, 0, 0]))


PREPARED: dict[str, Callable[[Any, Any], Any]] = {
    "a filter whose gradient is merged with that of a bias": _biased,
    "a pool that notes its maxima": lambda x, w: tf.nn.max_pool2d(_biased(x, w), 2, 2, "SAME"),
    "products": lambda x, w: tf.matmul(tf.reshape(x, (-1, 3)), w[0, 0]),
    "depthwise": lambda x, w: tf.nn.depthwise_conv2d(x, w[..., :2], (1, 1, 1, 1), "SAME"),
}


@pytest.mark.parametrize("name", PREPARED)
def test_shapes_that_grapplers_graph_has_are_not_inferred_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tf.Variable(tf.ones([3, 3, 3, 8]))
    traced = trace(squares_step(PREPARED[name], kernel), inputs=tf.ones([2, 8, 8, 3]))
    flat = flat_step(traced)
    records = recorded_graphs(traced, like=flat.graph)
    optimized = grappler_step(traced, flat, records).found.graph
    inferred = read_executed_graph(records, like=flat.graph)
    monkeypatch.setattr(executed, "_infer", lambda *_: pytest.fail("shapes are inferred again"))
    known = read_executed_graph(records, like=flat.graph, shapes={v.name: v.shape for n in optimized for v in n.outputs})
    assert {v.name: v.shape for n in known for v in n.outputs} == {v.name: v.shape for n in inferred for v in n.outputs}


def test_a_real_call_gives_the_same_nodes(training_step: tuple[Any, tuple[Any, ...], tf.Variable]) -> None:
    step, inputs, _ = training_step
    concrete = step.get_concrete_function(*inputs)
    with collected_graphs() as graphs:
        concrete(*inputs)
    ran = read_executed_graph(graphs, like=from_concrete_function(concrete)[0])
    assert {n.name for n in ran.nodes} == {n.name for n in graph_of(step, inputs).nodes}


def test_what_other_threads_run_meanwhile_is_left_out() -> None:
    @tf.function
    def larger(a: Any, b: Any) -> Any:
        for _ in range(20):
            a = tf.tanh(a) + b
        return a

    step = tf.function(lambda x: tf.nn.relu(x @ x)).get_concrete_function(tf.ones([4, 4]))
    with collected_graphs() as graphs:
        larger(tf.ones([3]), tf.ones([3]))
        step(tf.ones([4, 4]))
    assert "MatMul" in str(op_types(read_executed_graph(graphs, like=from_concrete_function(step)[0])))


def test_no_record_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="no graph"):
        read_executed_graph([], like=Graph("empty"))


def beside(work: Callable[[], object], others: list[Callable[[], object]]) -> list[str]:
    """Do some work while other threads do theirs again and again; the errors that those had."""
    done, ready, failed = threading.Event(), threading.Barrier(len(others) + 1), list[str]()

    def serve(other: Callable[[], object]) -> None:
        ready.wait(60.0)
        while not done.is_set():
            try:
                other()
            except Exception as error:  # noqa: BLE001 - counted
                failed.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=serve, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    try:
        ready.wait(60.0)
        work()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    return failed


def test_other_threads_call_functions_meanwhile(training_step: tuple[Any, tuple[Any, ...], tf.Variable]) -> None:
    step, inputs, kernel = training_step
    plain, count = tf.function(lambda x: tf.reduce_sum(x @ x)), tf.Variable(0)
    counting, map_items = tf.function(lambda: count.assign_add(1)), tf.data.Dataset.range(2).map(lambda k: k + 1)
    x = tf.ones([8, 8])

    def traced_anew(x: Any) -> None:
        time.sleep(0.1)
        tf.function(lambda y: y + 1.0)(x)

    others = [lambda: plain(x), counting, lambda: [tf.reduce_sum(k) for k in map_items], lambda: traced_anew(x)]
    for other in others:
        other()
    before, graphs = kernel.numpy(), list[Graph]()
    assert beside(lambda: graphs.extend(graph_of(step, inputs) for _ in range(4)), others) == []
    assert [len(graph) > 10 for graph in graphs] == [True] * 4
    assert (kernel.numpy() == before).all()


def test_two_threads_ask_at_once(training_step: tuple[Any, tuple[Any, ...], tf.Variable]) -> None:
    other = tf.function(lambda x: tf.nn.softmax(x @ x))
    found: list[set[str]] = []
    work = lambda: [graph_of(*training_step[:2]) for _ in range(4)]  # noqa: E731
    assert beside(work, [lambda: found.append(op_types(graph_of(other, (tf.ones([4, 4]),))))] * 2) == []
    assert all("Softmax" in ops and "_FusedConv2D" not in ops for ops in found)


def test_a_trace_of_the_user_keeps_its_graphs(training_step: tuple[Any, tuple[Any, ...], tf.Variable]) -> None:
    tf.summary.trace_on(graph=True)
    try:
        with pytest.raises(UnsupportedError, match=r"your own trace.*\n.*\n.*trace_export"):
            graph_of(*training_step[:2])
    finally:
        tf.summary.trace_off()
    assert len(graph_of(*training_step[:2])) > 10


@pytest.mark.parametrize(
    ("private", "plain"),
    [("_MklMatMul", "MatMul"), ("_MklNativeMaxPoolGrad", "MaxPoolGrad"), ("_MklFusedMatMul", "_FusedMatMul"), ("AddV2", "AddV2")],
)
def test_plain_op_types(private: str, plain: str) -> None:
    assert plain_op_type(private) == plain


_ATTEMPTS = 4
PROFILED = """
import glob, json, re, sys, tempfile
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2
from graphwright.analyze.executor import simulate_executor
from graphwright.analyze.executor_order import number_nodes
from graphwright.run.executed_graph import read_executed_graph
from graphwright.source.attributes import constant_array
from graphwright.source.concrete_function import from_concrete_function
from graphwright.source.private_tensorflow import collected_graphs
tf.config.threading.set_inter_op_parallelism_threads(1)
weights = [tf.Variable(tf.random.stateless_uniform([32, 32], (0, k))) for k in range(8)]

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        for w in weights:
            x = tf.tanh(x @ w) + tf.nn.softmax(x @ w)
        loss = tf.reduce_sum(x)
    for w, g in zip(weights, tape.gradient(loss, weights)):
        w.assign_sub(g)
    return loss

x = tf.ones([64, 32])
concrete = step.get_concrete_function(x)
with collected_graphs() as graphs:
    concrete(x)
with tempfile.TemporaryDirectory() as folder:
    tf.profiler.experimental.start(folder, tf.profiler.experimental.ProfilerOptions(host_tracer_level=3))
    concrete(x)
    tf.profiler.experimental.stop()
    [path] = glob.glob(folder + "/**/*.xplane.pb", recursive=True)
    space = xplane_pb2.XSpace.FromString(open(path, "rb").read())
graph = read_executed_graph(graphs, like=from_concrete_function(concrete)[0])
wanted = {n.name for n in graph.nodes if re.search("MatMul|Tanh|Softmax", n.op_type)}
events = []
for plane in space.planes:
    for line in plane.lines:
        for event in line.events:
            name = plane.event_metadata[event.metadata_id].name.rsplit(":", 1)[0]
            if name in wanted and line.name.startswith("tf_Compute"):
                events.append((line.timestamp_ns * 1000 + event.offset_ps, name))
state = simulate_executor(
    graph,
    time_of=lambda n: 1.0,
    workspace_of=lambda n: 0,
    constant=constant_array,
    resident_bytes=0,
    numbered=number_nodes(graph, as_listed=True),
)
print(json.dumps({"ran": [name for _, name in sorted(events)], "simulated": [name for name in state.order if name in wanted]}))
"""


@pytest.mark.slow
def test_one_thread_runs_in_the_order_that_is_simulated() -> None:
    """Against TensorFlow's own trace, in a process of its own, where one inter-op thread can be asked for.

    TensorFlow hands a kernel that took long to another thread next time, so a machine that was busy just then gives another order.
    """
    for _ in range(_ATTEMPTS):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROFILED)], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.strip().splitlines()[-1])
        assert len(found["ran"]) > 40
        assert set(found["simulated"]) == set(found["ran"])
        if found["simulated"] == found["ran"]:
            return
    assert found["simulated"] == found["ran"]


def _looped(x: Any) -> Any:
    total = tf.while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, tf.tanh(h + x[:, 0])), (0, tf.zeros_like(x[:, 0])))[1]
    return tf.gradients(tf.reduce_sum(total), x)[0]


def _one_after_the_other(x: Any) -> Any:
    h = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h * x[:, 1])), (0, x[:, 0]))[1]
    h = tf.while_loop(lambda i, h: i < 4, lambda i, h: (i + 1, tf.sin(h @ tf.ones((64, 64))) + x[:, 2]), (0, h))[1]
    return tf.gradients(tf.reduce_sum(h), x)[0]


def _stacked(x: Any) -> Any:
    rows = tf.map_fn(lambda row: tf.exp(row) * tf.reduce_sum(x[:, 2], 0), tf.transpose(x, (1, 0, 2)))
    return rows, tf.gradients(tf.reduce_sum(rows), x)[0]


@pytest.mark.parametrize("make", [_looped, _one_after_the_other, _stacked])
def test_sizes_inside_loops_and_branches_where_the_batch_was_open(make: Any) -> None:
    """What TensorFlow leaves open in the graph that it prepares is known from the graph with the batch bound."""
    spec = tf.TensorSpec((None, 4, 64))
    step = trace(tf.function(make, input_signature=[spec]), feeds={"x": (32, 4, 64)})
    graph = executed_graph(preparable(step), like=flat_step(step).graph)
    assert [v.name for node in graph.nodes for v in node.outputs if v.dtype.itemsize is not None and v.nbytes is None] == []
