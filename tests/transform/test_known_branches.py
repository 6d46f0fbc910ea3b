"""Branches that constants decide: only the one that is taken stays, without what the other one assigns; served and compared."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import graphwright as gw
from graphwright.errors import UnsupportedError
from graphwright.ir.edit.library import bodies, reached_functions
from graphwright.ir.text import from_text
from graphwright.ir.traits.effects import Purity
from graphwright.ir.verify import verify
from graphwright.transform.known_branches import take_known_branches
from graphwright.transform.strip_training import strip_training
from tests.transform.serving import built, random, serve

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1
X = random(3, 4)


@pytest.fixture
def switches():
    """Branches of TF1: `Switch` and `Merge`."""
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def op_types(graph):
    return {node.op_type for body in bodies(graph) for node in body.nodes}


def normalized(x, training, resource):
    """A moving mean, as batch norm has one: updated in training, and waited for by what is served."""
    with v1.variable_scope(v1.get_variable_scope(), use_resource=resource, reuse=v1.AUTO_REUSE):
        mean = v1.get_variable("mean", [4], initializer=v1.constant_initializer(0.5), trainable=False)
    batch = tf.reduce_mean(x, 0)

    def update():
        with tf.control_dependencies([v1.assign(mean, 0.9 * mean + 0.1 * batch)]):
            return tf.identity(batch)

    return x - tf.cond(training, update, lambda: tf.identity(mean))


def saved_tf1(path, training, resource, *, stated=True):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], "x")
        flag = training()
        y = normalized(x, flag, resource)
        y = tf.cond(flag, lambda: tf.nn.dropout(y, 0.5), lambda: y * 1.0)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(path), {"x": x, **({"training": flag} if stated else {})}, {"y": y})
    return str(path)


def run_tf1(path, feeds):
    with tf.Graph().as_default() as graph, v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        fed = {signature.inputs[key].name: value for key, value in feeds.items()}
        mean = "mean/Read/ReadVariableOp:0" if graph.get_tensor_by_name("mean:0").dtype == tf.resource else "mean:0"
        return session.run(signature.outputs["y"].name, fed), session.run(mean)


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize(
    "flag", [lambda: v1.placeholder(tf.bool, name="training"), lambda: v1.placeholder_with_default(True, [], "training")]
)
def test_dropout_and_batch_norm_of_tf1(switches, tmp_path, flag, resource):
    path = saved_tf1(tmp_path / "a", flag, resource)
    expected, mean = run_tf1(path, {"x": X, "training": False})
    graph = gw.load(path)
    strip_training(graph, constants={"training": False})
    assert not {"Switch", "RefSwitch", "Merge", "RefMerge", "RandomUniform", "Mean"} & op_types(graph)
    assert graph["training"].op_type == "Const"
    assert all("/true" not in node.name for node in graph.nodes)
    gw.write(graph, tmp_path / "b")
    found, after = run_tf1(str(tmp_path / "b"), {"x": X})
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(after, mean)
    # The other way: what the branch that is taken assigns stays.
    graph = gw.load(path)
    strip_training(graph, constants={"training": True})
    assert {"RandomUniform", "Mean"} <= op_types(graph)
    assert not {"Switch", "Merge"} & op_types(graph)
    gw.write(graph, tmp_path / "c")
    _, updated = run_tf1(path, {"x": X, "training": True})
    np.testing.assert_allclose(run_tf1(str(tmp_path / "c"), {"x": X})[1], updated, rtol=1e-6)
    assert not np.array_equal(updated, mean)


def nested():
    """Branches in branches, predicates that are computed, one of data, a loop in a branch, and one around a branch."""
    x = v1.placeholder(tf.float32, [3, 4], name="x")
    train, fine = v1.placeholder(tf.bool, name="train"), v1.placeholder(tf.int32, [], name="fine")

    def inner():
        return tf.cond(tf.logical_and(train, fine > 2), lambda: tf.sin(x), lambda: tf.cos(x))

    def loop():
        return tf.while_loop(lambda k, _: k < 3, lambda k, v: (k + 1, v * 2.0), [0, x])[1]

    def step(k, v):
        return k + 1, tf.cond(train, lambda: tf.square(v), lambda: tf.sinh(v))

    first = tf.cond(tf.logical_not(train), inner, lambda: tf.tan(x))
    second = tf.cond(train, loop, lambda: tf.cond(tf.reduce_sum(x) > 0, lambda: x + 1.0, lambda: tf.exp(x)))
    third = tf.while_loop(lambda k, _: k < 2, step, [0, x])[1]
    with tf.control_dependencies([first]):
        tf.stack([first, second, third], name="y")


@pytest.mark.parametrize("feeds", [{"train": False, "fine": 3}, {"train": True, "fine": 3}, {"train": False, "fine": 0}])
@pytest.mark.parametrize("partial", [False, True])
def test_branches_in_branches_and_loops(switches, feeds, partial):
    def graph():
        return built(nested, inputs={"x": "x:0", "train": "train:0", "fine": "fine:0"}, outputs={"y": "y:0"})

    expected = serve(graph(), {"x": X, **feeds})["y"]
    decided = graph()
    given = {"train": feeds["train"]} if partial else feeds
    strip_training(decided, constants=given)
    assert {"Tan", "Square"} & op_types(decided) == ({"Tan", "Square"} if feeds["train"] else set())
    assert {"Sinh", "Exp"} & op_types(decided) == (set() if feeds["train"] else {"Sinh", "Exp"})
    assert "Sin" not in op_types(decided)
    assert [n.name for n in decided if n.op_type == "Enter" and n.name.startswith("cond_1/")] == [] or feeds["train"]
    rest = {key: value for key, value in feeds.items() if key not in given}
    np.testing.assert_array_equal(serve(decided, {"x": X, **rest})["y"], expected)


SWITCHES = """
graph "g"
inputs %x:0
outputs %y:0
%x = Placeholder() : float32[2]
%data = Placeholder() : bool[]
%p = Const() {{dtype = bool, value = tensor bool[] [false]}} : bool[]
%both = LogicalAnd(%data:0, %p:0) : bool[]
%wait = NoOp()
%s = Switch(%x:0, %both:0) ^wait {{T = float32}} : float32[2], float32[2]
%live = Neg(%s:0) {{T = float32}} : float32[2]
%dead = Relu(%s:1) {{T = float32}} : float32[2]
%behind = NoOp() ^dead
%late = Sin(%x:0) ^behind {{T = float32}} : float32[2]
%m = Merge(%live:0, %late:0) ^behind ^live {{T = float32, N = 2}} : float32[2], int32[]
%y = Exp(%m:0) {{T = float32}} : float32[2]
{more}
"""


def test_what_waits_for_what_is_dead_is_dead_but_for_a_merge():
    graph = from_text(SWITCHES.format(more=""))
    graph.control_outputs = [graph["behind"], graph["wait"]]
    assert take_known_branches(graph, Purity(graph, {})) == 2
    assert [node.name for node in graph.control_outputs] == ["wait"]
    assert {node.name: node.op_type for node in graph if node.op_type == "Identity"} == {"s": "Identity", "m": "Identity"}
    assert graph["s"].control_inputs == (graph["wait"],)
    assert graph["m"].control_inputs == (graph["live"],)
    assert not {"dead", "behind", "late"} & {node.name for node in graph}
    assert take_known_branches(graph, Purity(graph, {})) == 0


@pytest.mark.parametrize("kept", ["%z = Neg(%m:1) {T = int32} : int32[]", "dead", "m"])
def test_what_somebody_asks_for_stays(kept):
    """Which input a merge took, a dead node that is fetched by name, and a merge."""
    graph = from_text(SWITCHES.format(more=kept if kept[0] == "%" else ""))
    held = [graph[kept]] if kept in graph else []
    take_known_branches(graph, Purity(graph, {}), kept=held)
    verify(graph)
    assert graph["m"].op_type == ("Identity" if kept == "dead" else "Merge")
    assert [node for node in held if node not in graph.nodes] == []
    assert graph["live"].inputs[0].producer.op_type == "Identity"
    assert take_known_branches(graph, Purity(graph, {}), kept=held) == 0


class Model(tf.Module):
    """Branches in functions, in branches of data and in loops, with an assignment in one."""

    def __init__(self):
        super().__init__()
        self.steps = tf.Variable(1.0)

    @tf.function
    def part(self, x, training, mode):
        if training:
            self.steps.assign_add(1.0)
            x = tf.nn.dropout(x, 0.5)
        return tf.switch_case(mode, [lambda: tf.sin(x), lambda: tf.cos(x), lambda: tf.tan(x)]) + self.steps

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 4], tf.float32, "x"),
            tf.TensorSpec([], tf.bool, "training"),
            tf.TensorSpec([], tf.int32, "mode"),
        ]
    )
    def __call__(self, x, training, mode):
        x = self.part(x, training, mode)
        if tf.reduce_sum(x) > 0:  # of data
            x = tf.exp(x) if training else tf.sinh(x)
        for _ in tf.range(tf.shape(x)[0]):
            x = tf.square(x) if training else tf.tanh(x)
        return {"y": x}


@pytest.mark.parametrize("mode", [1, 5])
def test_functions_of_a_saved_model(tmp_path, mode):
    model = Model()
    tf.saved_model.save(model, str(tmp_path / "a"), signatures=model.__call__)
    expected = model(X, tf.constant(False), tf.constant(mode))["y"]
    graph = gw.load(tmp_path / "a")
    strip_training(graph, constants={"training": False, "mode": mode})
    gw.write(graph, tmp_path / "b")
    served = tf.saved_model.load(str(tmp_path / "b"))
    function = served.signatures["serving_default"]
    np.testing.assert_array_equal(function(x=tf.constant(X))["y"], expected)
    assert (tmp_path / "b" / "saved_model.pb").stat().st_size < (tmp_path / "a" / "saved_model.pb").stat().st_size
    with pytest.raises(UnsupportedError, match="AssignAddVariableOp"):
        gw.freeze_variables(tmp_path / "a", out=tmp_path / "c")
    gw.freeze_variables(tmp_path / "b", out=tmp_path / "c")  # nothing assigns any more
    function = tf.saved_model.load(str(tmp_path / "c")).signatures["serving_default"]
    np.testing.assert_array_equal(function(x=tf.constant(X))["y"], expected)
    left = {n.op_type for name in reached_functions(graph, graph.nodes) for n in graph.functions[name].body.nodes}
    assert not {"Exp", "Square", "AssignAddVariableOp", "RandomUniform", "Case", "StatelessCase", "Sin"} & left
    assert {"Sinh", "Tanh", "Cos" if mode == 1 else "Tan"} <= left
