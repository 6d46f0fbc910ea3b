"""A measured step: FLOPs of what ran, directions, parameters, lines of code, files; and targets and arguments of all kinds."""

import html
import json
from pathlib import Path

import pytest

import graphwright as gw
from graphwright.errors import ArgumentError, UnsupportedError

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow

SIZE, TRIPS = 64, 10
PRODUCT = 2 * SIZE**3


@pytest.fixture(scope="module")
def training():
    """A training step of two layers, the second of which is in a function that is called."""
    first, second = (tf.Variable(tf.random.stateless_normal([SIZE, SIZE], (k, 1)) / 8.0, name=f"weight{k}") for k in range(2))

    @tf.function
    def head(x):
        return tf.tanh(x @ second)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            with tf.name_scope("model"), tf.name_scope("first"):
                y = tf.nn.relu(x @ first)
            with tf.name_scope("model"), tf.name_scope("second"):
                loss = tf.reduce_sum(head(y))
        for weight, gradient in zip((first, second), tape.gradient(loss, (first, second)), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    profile = gw.profile(step, inputs=(tf.ones([SIZE, SIZE]),), steps=1, isolated=False)
    return step, profile, (first, second)


def test_flops_are_those_that_are_counted(training):
    step, profile, _ = training
    counted = gw.count_flops(step, inputs=(tf.ones([SIZE, SIZE]),))
    products = [row.flops for name, row in profile.by_op_type.items() if "MatMul" in name]
    assert sum(products) == counted.per_op_type["MatMul"].total == 5 * PRODUCT
    assert profile.total.flops == pytest.approx(counted.total, rel=0.02)  # Grappler leaves out and fuses a few
    assert profile.total.flops_per_s > 0
    assert profile.total.arithmetic_intensity > 0


def test_forward_backward_and_optimizer_are_told_apart(training):
    _, profile, _ = training
    of = {run.name: run.direction for run in profile.step.runs}
    assert {direction for name, direction in of.items() if "gradient_tape" in name and "MatMul" in name} == {"backward"}
    assert {direction for name, direction in of.items() if name.startswith("AssignSub")} == {"optimizer"}
    assert {direction for name, direction in of.items() if name.startswith("model/first")} == {"forward"}
    row = profile.by_layer["model/first"]
    assert row.forward_time_s > 0
    assert row.time_s == pytest.approx(row.forward_time_s + row.backward_time_s + row.optimizer_time_s)


def test_parameters_belong_to_the_layer_that_reads_them(training):
    _, profile, _ = training
    assert profile.total.parameters == 2 * SIZE * SIZE
    assert profile.by_layer["model/first"].parameters == SIZE * SIZE


def test_lines_of_code_are_those_of_the_step(training):
    _, profile, _ = training
    tree = profile.tree(by="code", columns=("time", "flops"))
    here = [node for _, node in tree.rows() if Path(__file__).name in node.name]
    assert here
    assert sum(node.own.flops for node in here) == pytest.approx(profile.total.flops, rel=0.01)


def test_a_loop_counts_as_often_as_it_runs():
    @tf.function
    def loop(x):
        return tf.while_loop(lambda i, _: i < TRIPS, lambda i, y: (i + 1, y @ x), [tf.constant(0), x])[1]

    profile = gw.profile(loop, inputs=tf.eye(SIZE), steps=1, isolated=False)
    assert profile.by_op_type["MatMul"].occurrences == TRIPS
    assert profile.by_op_type["MatMul"].nodes == 1
    assert profile.by_op_type["MatMul"].flops == TRIPS * PRODUCT


def test_it_prints_within_80_columns_and_is_json(training):
    _, profile, _ = training
    assert max(map(len, profile.text("all").splitlines())) <= 80
    assert "Per layer" in profile.text("all")
    assert html.escape(str(profile)) in profile._repr_html_()
    document = json.loads(json.dumps(profile.to_json(), allow_nan=False))
    assert document["by_op_type"]["MatMul"]["flops"] == profile.by_op_type["MatMul"].flops
    assert set(document["how"]) >= {"run", "FLOPs", "memory", "directions"}
    assert "a session" in document["how"]["run"]


def test_the_event_file_holds_the_graph_and_the_run(training, tmp_path):
    _, profile, _ = training
    path = profile.write_tensorboard(tmp_path / "logs" / "run")
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    events = list(tf.compat.v1.train.summary_iterator(str(path)))
    graph = tf.compat.v1.GraphDef.FromString(next(e.graph_def for e in events if e.graph_def))
    tagged = next(e.tagged_run_metadata for e in events if e.HasField("tagged_run_metadata"))
    stats = tf.compat.v1.RunMetadata.FromString(tagged.run_metadata).step_stats
    names = {node.name for node in graph.node}
    assert "model/first/matmul" in {name.lower() for name in names}
    assert {n.node_name for d in stats.dev_stats for n in d.node_stats} - {"_SOURCE"} <= names
    with pytest.raises(ArgumentError, match="is a file"):
        profile.write_tensorboard(path)


def test_graphs_and_frozen_functions_are_targets():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, SIZE], name="x")
        y = tf.matmul(x, tf.constant(tf.zeros([SIZE, SIZE]).shape[0] * [[1.0] * SIZE]), name="y")
    by_shape = gw.profile(graph, feeds={"x": (SIZE, SIZE)}, outputs=y, steps=1, isolated=False)
    assert by_shape.by_op_type["MatMul"].flops == PRODUCT
    assert "made up" in by_shape.how["inputs"]
    by_value = gw.profile(graph.as_graph_def(), feeds={"x": tf.ones([2 * SIZE, SIZE])}, outputs=["y:0"], steps=1, isolated=False)
    assert by_value.by_op_type["MatMul"].flops == 2 * PRODUCT
    assert "inputs" not in by_value.how


def test_a_graph_with_variables_or_without_outputs_is_refused():
    with tf.Graph().as_default() as graph:
        tf.identity(tf.compat.v1.get_variable("v", [2]), name="y")
    with pytest.raises(UnsupportedError, match="freeze"):
        gw.profile(graph, outputs="y")
    with pytest.raises(ArgumentError, match="outputs"):
        gw.profile(graph)
    with pytest.raises(ArgumentError, match="outputs of its own"):
        gw.profile(tf.function(lambda x: x), outputs="y")


def test_bad_arguments_are_told(training):
    step, profile, _ = training
    with pytest.raises(ArgumentError, match="steps=0"):
        gw.profile(step, inputs=(tf.ones([SIZE, SIZE]),), steps=0)
    with pytest.raises(ArgumentError, match="min_tine_s"):
        profile.tree(min_tine_s=1.0)


def test_a_keras_model_is_profiled_in_both_modes():
    keras = pytest.importorskip("keras")
    model = keras.Sequential(
        [keras.layers.Input([8]), keras.layers.Dense(16, name="hidden", activation="relu"), keras.layers.Dense(1, name="out")]
    )
    model.compile(optimizer="adam", loss="mse")
    training_step = gw.profile(model, batch=4, steps=1, isolated=False)
    inference = gw.profile(model, batch=4, mode="infer", steps=1, isolated=False)
    assert training_step.total.parameters == inference.total.parameters == model.count_params()
    assert training_step.total.backward_time_s > 0.0 == inference.total.backward_time_s
    assert any("hidden" in name for name in training_step.by_layer), list(training_step.by_layer)
