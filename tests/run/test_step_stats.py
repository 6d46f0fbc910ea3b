"""TensorFlow's records of a step: the names are those of the flat graph, lanes and memory are there, and what is private still exists."""

import pytest

tf = pytest.importorskip("tensorflow")
from graphwright.errors import ArgumentError, UnsupportedError  # noqa: E402
from graphwright.ir.traits.control_flow import called_functions  # noqa: E402
from graphwright.run.record_step import record_step  # noqa: E402
from graphwright.run.step_session import StepSession, executed_graph_def  # noqa: E402
from graphwright.run.step_stats import read_memory, read_runs, rename_as_written, written_name  # noqa: E402
from graphwright.run.traced_step import resolve  # noqa: E402
from graphwright.source.concrete_function import from_concrete_function  # noqa: E402
from graphwright.step.flatten import flatten_graph  # noqa: E402

TRIPS = 3
SIZE = 512  # oneDNN's allocator tells of blocks from 256 KiB on


@pytest.fixture(scope="module")
def recorded():
    """A step with calls in calls, a loop with a gradient, a branch, and an update."""
    weight = tf.Variable(tf.ones([SIZE, SIZE]) / SIZE, name="weight")

    @tf.function
    def layer(x):
        return tf.nn.relu(x @ weight)

    @tf.function
    def block(x):
        return layer(layer(x))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            with tf.name_scope("encoder"):
                y = block(x)
            _, y = tf.while_loop(lambda i, _: i < TRIPS, lambda i, y: (i + 1, tf.tanh(layer(y))), [tf.constant(0), y])
            loss = tf.reduce_sum(tf.cond(tf.reduce_sum(y) > 0.0, lambda: tf.exp(y), lambda: tf.sin(y)))
        weight.assign_sub(1e-9 * tape.gradient(loss, weight))
        return loss

    resolved = resolve(step, tf.ones([32, SIZE]))
    return resolved, record_step(resolved, steps=2, isolated=False), weight


def test_names_inside_calls_and_loops_are_those_of_the_flat_graph(recorded):
    step, records, _ = recorded
    graph, _ = from_concrete_function(step.function)
    flat, _ = flatten_graph(graph)
    known = {node.name for node in flat.nodes}
    for node in flat.nodes:
        # In a body the scopes of its loop are repeated.
        known |= {inner.name for name in called_functions(node) for inner in flatten_graph(flat.functions[name].body)[0].nodes}
    run = {written_name(run.name) for run in read_runs(records.metadata.step_stats)}
    computed = {
        name for name in run if name.rsplit("/", 1)[-1] in ("MatMul", "matmul", "Relu", "Tanh", "Exp", "ReluGrad", "TanhGrad", "MatMul_1")
    }
    assert len(computed) >= 9
    assert computed <= known
    assert "encoder/StatefulPartitionedCall/StatefulPartitionedCall/matmul" in computed


def test_loops_run_as_often_as_they_go_round(recorded):
    _, records, _ = recorded
    names = [written_name(run.name) for run in read_runs(records.metadata.step_stats)]
    assert names.count("while/Tanh") == TRIPS
    assert names.count("cond/Exp") == 1
    assert "cond/Sin" not in names  # the branch that is not taken does not run


def test_each_run_has_a_device_and_a_lane_and_ends_after_its_start(recorded):
    _, records, _ = recorded
    runs = read_runs(records.metadata.step_stats)
    assert {run.device for run in runs} == {"CPU:0"}
    kernels = [run for run in runs if run.name.endswith(("Tanh", "matmul", "MatMul"))]
    assert kernels
    assert all(run.thread.startswith("lane ") for run in kernels)
    assert all(run.end_ns >= run.start_ns > 0 for run in runs)
    assert [run.start_ns for run in runs] == sorted(run.start_ns for run in runs)
    by_lane = {}
    for run in kernels:  # a lane holds one run at a time
        assert run.start_ns >= by_lane.get(run.thread, 0)
        by_lane[run.thread] = run.end_ns


def test_memory_rises_above_what_was_there_and_the_weight_is_in_it(recorded):
    step, records, weight = recorded
    start = min(run.start_ns for run in read_runs(records.metadata.step_stats))
    track = max(read_memory(records.metadata.step_stats, start), key=lambda t: t.peak_bytes)
    assert track.device == "CPU:0"
    assert track.resident_bytes >= weight.shape.num_elements() * 4
    assert track.peak_bytes >= track.resident_bytes + 32 * SIZE * 4
    assert list(track.times_ns) == sorted(track.times_ns)
    assert step.function is not None


def test_renamed_records_name_nodes_of_the_renamed_graph(recorded):
    _, records, _ = recorded
    before = executed_graph_def(records.metadata.partition_graphs)
    graph_def, metadata = rename_as_written(before, records.metadata)
    names = [node.name for node in graph_def.node]
    assert len(set(names)) == len(names) == len(before.node)
    assert "while/Tanh" in names
    assert not any("/body/_" in name for name in names)
    edges = {edge.removeprefix("^").partition(":")[0] for node in graph_def.node for edge in node.input}
    assert edges <= set(names)
    told = {node.node_name for stats in metadata.step_stats.dev_stats for node in stats.node_stats} - {"_SOURCE"}
    assert told <= set(names)


def test_two_handles_of_one_variable_stay_one():
    count = tf.Variable(1.0)
    step = resolve(tf.function(lambda variable: (variable.assign_add(1.0), count.read_value())[0]), (count,))
    with StepSession(step) as session:
        session.run()
        assert float(session.run()[0]) == 3.0
    assert float(count) == 1.0


def test_what_a_session_cannot_run_is_told():
    compiled = tf.function(lambda x: x + 1.0, jit_compile=True)
    with pytest.raises(UnsupportedError, match="XLA"):
        record_step(resolve(compiled, tf.ones([2])), isolated=False)
    with pytest.raises(UnsupportedError, match="calls Python"):
        record_step(resolve(tf.function(lambda x: tf.py_function(lambda y: y, [x], tf.float32)), tf.ones([2])), isolated=False)
    with pytest.raises(ArgumentError, match="steps=0"):
        record_step(resolve(tf.function(lambda x: x), tf.ones([2])), steps=0, isolated=False)


@pytest.mark.slow
def test_a_fresh_process_records_the_same_operations(recorded):
    step, here, _ = recorded
    there = record_step(step, steps=1)
    assert "a fresh process" in there.how

    def operations(records):
        return sorted(run.name for run in read_runs(records.metadata.step_stats) if "matmul" in run.name.lower())

    assert operations(there) == operations(here)


@pytest.mark.gpu
def test_kernels_of_a_gpu_have_streams():
    records = record_step(resolve(tf.function(lambda x: x @ x), tf.ones([512, 512])), isolated=False)
    kernels = [run for run in read_runs(records.metadata.step_stats) if run.on_accelerator]
    assert kernels
    assert all(run.thread.startswith("stream ") and run.device.startswith("GPU:") for run in kernels)


def test_calls_are_put_in_place_where_grappler_does_not_do_it():
    called = tf.function(lambda x: tf.nn.relu(x * 3.0))
    found = record_step(resolve(tf.function(lambda x: called(x) + 1.0), tf.ones([2])), isolated=False, grappler=False)
    graph_def = executed_graph_def(found.metadata.partition_graphs)
    assert {"Relu", "Mul", "AddV2"} <= {node.op for node in graph_def.node}
    assert not any("Call" in node.op for node in graph_def.node)
