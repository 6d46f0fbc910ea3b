"""Frozen graphs need no variables and give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import graphwright as gw
from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.ir.text import from_text, to_text
from graphwright.transform.freeze_variables import freeze_variables
from tests.transform.serving import built, random, serve

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1

VALUES = {"w": random(4, 3, seed=1), "table": random(5, 4, seed=2)}
VARIABLE_OPS = {"VarHandleOp", "VariableV2", "ReadVariableOp", "ResourceGather", "RestoreV2"}


def training_graph(*, use_resource=True, body=None):
    def build():
        ids = v1.placeholder(tf.int32, [None], name="ids")
        with v1.variable_scope("", use_resource=use_resource):
            table, w = v1.get_variable("table", [5, 4]), v1.get_variable("w", [4, 3])
        rows = tf.gather(table, ids)
        y = tf.identity(body(rows, w) if body else tf.linalg.matmul(rows, w), name="y")
        loss = tf.reduce_sum(y * y)
        v1.train.AdamOptimizer(0.1).minimize(loss)
        v1.train.Saver()
        v1.global_variables_initializer()

    return built(build, inputs={"ids": "ids:0"}, outputs={"y": "y:0"})


@pytest.mark.parametrize("use_resource", [True, False])
def test_a_trained_model_is_frozen_and_served(use_resource):
    graph = training_graph(use_resource=use_resource)
    before = len(graph)
    assert freeze_variables(graph, VALUES) == 2
    assert len(graph) < before / 4
    assert not VARIABLE_OPS & {n.op_type for n in graph}
    ids = np.array([3, 0, 3], np.int32)
    np.testing.assert_allclose(serve(graph, {"ids": ids})["y"], VALUES["table"][ids] @ VALUES["w"], rtol=1e-6)


def test_names_with_an_index_and_double_precision_values():
    graph = training_graph()
    freeze_variables(graph, {f"{name}:0": value.astype(np.float64) for name, value in VALUES.items()})
    ids = np.array([1], np.int32)
    np.testing.assert_allclose(serve(graph, {"ids": ids})["y"], VALUES["table"][ids] @ VALUES["w"], rtol=1e-6)


def test_variables_inside_branches_and_loops():
    def body(rows, w):
        def step(k, h):
            return k + 1, tf.cond(k > 0, lambda: h + tf.reduce_mean(w), lambda: tf.linalg.matmul(rows, w))

        return tf.while_loop(lambda k, _: k < 3, step, (0, tf.zeros_like(rows)[:, :3]))[1]

    graph = training_graph(body=body)
    assert {"While", "StatelessWhile"} & {n.op_type for n in graph}
    assert freeze_variables(graph, VALUES) == 2
    assert not VARIABLE_OPS & {n.op_type for n in graph}
    used = [f.body for n in graph for f in graph.functions.values() if f.name in {getattr(a, "name", "") for a in n.attrs.values()}]
    assert used
    assert not any(VARIABLE_OPS & {n.op_type for n in body} for body in used)
    ids = np.array([1, 4], np.int32)
    expected = VALUES["table"][ids] @ VALUES["w"] + 2 * VALUES["w"].mean()
    # One element is the small difference of larger terms, so its rounding is theirs.
    np.testing.assert_allclose(serve(graph, {"ids": ids})["y"], expected, rtol=1e-5, atol=1e-6)


def test_some_variables_only():
    graph = training_graph()
    assert freeze_variables(graph, {"table": VALUES["table"]}, partial=True) == 1
    handles = [n.name for n in graph if n.op_type == "VarHandleOp"]
    assert handles == ["w"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"w": VALUES["w"]}, "1 variable has no value: table"),
        (VALUES | {"w": random(3, 4)}, r"has shape \(3, 4\)"),
        (VALUES | {"w": np.zeros((4, 3), np.int32)}, "has dtype int32"),
    ],
)
def test_values_that_do_not_fit(values, message):
    graph = training_graph()
    before = to_text(graph)
    with pytest.raises(ArgumentError, match=message):
        freeze_variables(graph, values)
    assert to_text(graph) == before


def test_a_variable_that_serving_writes_is_refused():
    def build():
        x = v1.placeholder(tf.float32, [], name="x")
        total = v1.get_variable("total", [], use_resource=True)
        tf.identity(total.assign_add(x), name="y")

    graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    before = to_text(graph)
    with pytest.raises(UnsupportedError, match="'total' is also used by"):
        freeze_variables(graph, {"total": np.float32(1.0)})
    assert to_text(graph) == before


def test_what_asks_about_a_variable_and_reads_single_elements_of_it():
    """In a branch the shape is asked when it runs, outside of functions it is known."""

    def build():
        x = v1.placeholder(tf.float32, [3], name="x")
        w = v1.get_variable("w", [4, 3], use_resource=True)
        elements = w.gather_nd([[3, 0], [1, 2]])

        def rows():
            return tf.cast(tf.raw_ops.VariableShape(input=w.handle)[0], tf.float32)

        def ready():
            (same,) = tf.raw_ops.IdentityN(input=[w.handle])
            return tf.cast(tf.raw_ops.VarIsInitializedOp(resource=same), tf.float32)

        branches = tf.cond(x[0] > 0, rows, ready)
        tf.identity(x[:2] * elements + branches + rows(), name="y")

    graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    assert "ResourceGatherNd" in {node.op_type for node in graph}
    assert freeze_variables(graph, VALUES) == 1
    w = VALUES["w"]
    for first, branch in ((2.0, 4.0), (-2.0, 1.0)):
        got = serve(graph, {"x": np.array([first, 1.0, 0.0], np.float32)})["y"]
        np.testing.assert_allclose(got, np.array([first, 1.0]) * [w[3, 0], w[1, 2]] + branch + 4.0, rtol=1e-6)


@pytest.mark.parametrize("op_type", ["SparseApplyAdagrad", "CountUpTo", "AssignAdd"])
def test_a_variable_that_serving_writes_by_reference_is_refused(op_type):
    graph = from_text(f"""
        graph "g"
        outputs %y:0
        %x = Placeholder() : float32[4]
        %v = VariableV2() {{dtype = float32}} : float32[4]
        %y = {op_type}(%v:0, %x:0) : float32[4]
        """)
    with pytest.raises(UnsupportedError, match=f"'v' is also used by 'y', a {op_type}"):
        freeze_variables(graph, {"v": np.ones(4, np.float32)})


def test_a_variable_in_a_loop_and_a_branch_of_tf1():
    def build():
        with v1.variable_scope("", use_resource=True):
            x = v1.placeholder(tf.float32, [3], name="x")
            w = v1.get_variable("w", [3])
            limit = v1.get_variable("limit", [])

        def step(k, h):
            return k + 1, v1.cond(tf.reduce_sum(h) < limit, lambda: h * w, lambda: h - w)

        y = v1.while_loop(lambda k, _: k < 4, step, [0, x])[1]
        tf.identity(y, name="y")

    enabled = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    finally:
        if enabled:
            v1.enable_control_flow_v2()
    w, h = random(3, seed=2), random(3, seed=3)
    assert {"Enter", "Switch"} <= {node.op_type for node in graph}
    assert freeze_variables(graph, {"w": w, "limit": np.float32(0.5)}) == 2
    assert not [node for node in graph if node.op_type in ("VarHandleOp", "ReadVariableOp")]
    got = serve(graph, {"x": h})["y"]
    for _ in range(4):
        h = h * w if h.sum() < 0.5 else h - w
    np.testing.assert_allclose(got, h, rtol=1e-5)


def test_where_no_outputs_are_stated_all_that_nothing_reads_stays():
    def build():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        tf.nn.relu(tf.linalg.matmul(x, v1.get_variable("w", [4, 3], use_resource=True)), name="y")
        v1.train.Saver()
        v1.global_variables_initializer()

    graph = built(build, inputs={}, outputs={})
    assert freeze_variables(graph, VALUES) == 1
    assert {node.op_type for node in graph} == {"Placeholder", "Const", "MatMul", "Relu"}
    assert graph.outputs == ()


class Texts(tf.Module):
    """Variables that hold texts, read outside, in a branch and as rows, beside a vocabulary in a file."""

    def __init__(self, vocabulary):
        super().__init__()
        self.text, self.labels = tf.Variable("text"), tf.Variable([b"a", b"\xff\x00", "ä"])
        self.grid = tf.Variable([["p", "q"], ["", "s"]])
        index = tf.lookup.TextFileIndex
        file = tf.lookup.TextFileInitializer(vocabulary, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
        self.table = tf.lookup.StaticHashTable(file, -1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "x")])
    def __call__(self, x):
        rows = self.table.lookup(x)
        joined = tf.strings.join([x, tf.cond(tf.size(x) > 1, lambda: self.text + "!", lambda: self.grid[1, 0])])
        return {"rows": rows, "joined": joined, "labels": tf.gather(self.labels, tf.maximum(rows, 0)), "grid": self.grid.value()}


def test_variables_of_texts_beside_a_vocabulary(tmp_path):
    (tmp_path / "words").write_text("one\ntwo\nthree\n")
    model = Texts(str(tmp_path / "words"))
    tf.saved_model.save(model, str(tmp_path / "a"), signatures=model.__call__)
    (tmp_path / "words").unlink()
    assert gw.freeze_variables(tmp_path / "a", out=tmp_path / "b") == 3
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    served = tf.saved_model.load(str(tmp_path / "b")).signatures["serving_default"]
    for x in (["two", "nobody", "three"], ["one"]):
        expected = model(tf.constant(x))
        found = served(x=tf.constant(x))
        assert {key: value.numpy().tolist() for key, value in found.items()} == {k: v.numpy().tolist() for k, v in expected.items()}
