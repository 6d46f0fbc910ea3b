"""Rewrite rules by example: what they match, what they leave, and that they compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import graphwright as gw
from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text, to_text
from graphwright.ir.verify import verify
from graphwright.source.trace_rule import run_side

pytestmark = pytest.mark.tensorflow

SUBTRACT = gw.Rule(lambda x, y: x + -y, lambda x, y: x - y, name="subtract")


def graph_of(function: Any, *specs: Any) -> Graph:
    return gw.load(tf.function(function).get_concrete_function(*specs))


def op_types(graph: Graph) -> list[str]:
    return [node.op_type for node in graph if node.op_type not in ("Placeholder", "Const", "Identity")]


F32, F64 = tf.TensorSpec([2, 3]), tf.TensorSpec([2, 3], tf.float64)


@pytest.mark.parametrize("spec", [F32, F64, tf.TensorSpec([None, 3]), tf.TensorSpec(None, tf.int32), tf.TensorSpec([2], tf.complex64)])
def test_any_dtype_and_shape(spec):
    graph = graph_of(lambda a, b: -b + a, spec, spec)
    report = gw.rewrite(graph, SUBTRACT, prove=True)
    verify(graph)
    assert op_types(graph) == ["Sub"]
    assert "1 of 1 equal bit for bit" in report.proof


def test_bodies_of_loops_and_branches():
    def step(x):
        for _ in tf.range(3):
            x = x + -tf.sin(x) if tf.reduce_sum(x) > 0 else tf.sin(x)
        return x

    function = tf.function(step).get_concrete_function(F32)
    graph = gw.load(function)
    report = gw.rewrite(graph, SUBTRACT, prove=True)
    assert len(report.applied) == 1
    assert "true" in report.applied[0].function  # a branch in the body of the loop
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    [ours] = run_side(graph, [x])
    np.testing.assert_array_equal(ours, function(tf.constant(x)))
    assert gw.rewrite(graph, SUBTRACT, functions=False).applied == ()


@pytest.mark.parametrize("shape", [[4], [None, 3], [2, 3, 2]])
def test_a_pattern_that_depends_on_the_rank(shape):
    rule = gw.Rule(
        lambda x: tf.reduce_mean(tf.square(x - tf.reduce_mean(x, keepdims=True))),
        lambda x: tf.math.reduce_variance(x) * 1.0,
        name="variance",
    )
    graph = graph_of(lambda x: 1.0 + tf.reduce_mean(tf.square(x - tf.reduce_mean(x, keepdims=True))), tf.TensorSpec(shape))
    with pytest.raises(gw.GraphError, match="rules still match: 'variance'"):  # TensorFlow computes a variance in this very way
        gw.rewrite(graph, rule, rounds=3)
    total = gw.Rule(rule.pattern, lambda x: tf.reduce_sum(x), name="another value")
    with pytest.raises(gw.GraphError, match="differs"):
        gw.rewrite(graph, total, prove=True)
    assert len(gw.rewrite(graph, total).applied) == 1


def test_constants_by_value_in_the_dtype_of_the_graph():
    graph = graph_of(lambda x: x * tf.constant(0.1, tf.float64), F64)
    assert len(gw.rewrite(graph, gw.Rule(lambda x: x * 0.1, lambda x: x / 10.0), prove=True).applied) == 1
    near = graph_of(lambda x: x * tf.constant(np.float64(np.float32(0.1))), F64)
    assert not gw.rewrite(near, gw.Rule(lambda x: x * 0.1, lambda x: x / 10.0)).applied


def test_conditions_see_shapes_dtypes_and_constants():
    seen: list[Any] = []

    def condition(match):
        seen.append((match.x.shape, match.x.dtype, match["p"].constant.tolist(), match.q.constant.tolist()))
        return [match.p.constant[k] for k in match.q.constant] == list(range(len(match.p.constant)))

    rule = gw.Rule(lambda x, p, q: tf.transpose(tf.transpose(x, p), q), lambda x: x, condition, name="transposes")
    graph = graph_of(lambda x: (tf.transpose(tf.transpose(x, [1, 0]), [1, 0]), tf.transpose(tf.transpose(x, [1, 0]), [0, 1])), F32)
    assert len(gw.rewrite(graph, rule, prove=True).applied) == 1
    assert ((2, 3), "float32", [1, 0], [1, 0]) in seen


def test_choices_of_attributes():
    rule = gw.Rule(
        lambda x, w, b, *, padding, strides: tf.nn.relu(tf.nn.conv2d(x, w, strides, padding) + b),
        lambda x, w, b, *, padding, strides: tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, strides, padding), b)),
        lambda match: len(match.b.shape) == 1,
        name="bias",
        choices={"padding": ["SAME", "VALID"], "strides": [1, 2]},
    )
    specs = [tf.TensorSpec([1, 8, 8, 3]), tf.TensorSpec([3, 3, 3, 4]), tf.TensorSpec([4])]
    for padding, strides in (("SAME", 2), ("VALID", 1)):
        graph = graph_of(lambda x, w, b, p=padding, s=strides: tf.nn.relu(b + tf.nn.conv2d(x, w, s, p)), *specs)
        assert len(gw.rewrite(graph, rule, prove=True).applied) == 1
        assert "BiasAdd" in op_types(graph)
    other = graph_of(lambda x, w, b: tf.nn.relu(b + tf.nn.conv2d(x, w, 3, "SAME")), *specs)
    assert not gw.rewrite(other, rule).applied


def test_several_results_are_replaced_together():
    rule = gw.Rule(
        lambda x, w, v: (x @ w, x @ v),
        lambda x, w, v: tf.split(x @ tf.concat([w, v], 1), [w.shape[1], v.shape[1]], 1),
        lambda match: not match.w.value.producer.name.endswith("concat"),
        name="one product",
    )
    specs = [tf.TensorSpec([2, 3]), tf.TensorSpec([3, 4]), tf.TensorSpec([3, 5])]
    graph = graph_of(lambda x, w, v: (tf.nn.relu(x @ w), tf.sin(x @ v)), *specs)
    assert len(gw.rewrite(graph, rule, prove=True).applied) == 1
    assert sorted(op_types(graph)) == ["ConcatV2", "MatMul", "Relu", "Sin", "SplitV"]
    verify(graph)


def test_results_that_depend_on_each_other_are_left():
    apart = gw.Rule(lambda x, y: (tf.sin(x), tf.cos(y)), lambda x, y: (tf.tan(x), tf.tan(y)))
    with pytest.raises(gw.GraphError, match="in parts"):
        gw.rewrite(graph_of(lambda x: tf.cos(tf.sin(x) + 1.0), F32), apart)
    tied = gw.Rule(lambda x, y: (tf.sin(x * y), tf.cos(y)), lambda x, y: tf.unstack(tf.stack([tf.tan(x), tf.tan(y)])), name="pair")

    def function(x, z):
        c = tf.cos(z)
        return tf.sin((c + x) * z)

    report = gw.rewrite(graph_of(function, F32, F32), tied)
    assert not report.applied
    assert {item.reason for item in report.left} == {"it would depend on itself"}


def test_shared_values_stay_where_the_rule_says_so():
    def function(a, b):
        n = -b
        return a + n, tf.nn.relu(n)

    graph = graph_of(function, F32, F32)
    report = gw.rewrite(graph, SUBTRACT)
    assert not report.applied
    assert "which lies in between" in report.left[0].reason
    assert len(gw.rewrite(graph, gw.Rule(lambda x, y: x + -y, lambda x, y: x - y, keep_shared=True), prove=True).applied) == 1
    assert sorted(op_types(graph)) == ["Neg", "Relu", "Sub"]


def test_what_is_random_goes_only_where_the_rule_says_so():
    def noisy(x):
        return tf.nn.relu(x + tf.random.normal([2, 3]))

    with pytest.raises(gw.ArgumentError, match="RandomStandardNormal, which has effects"):
        gw.rewrite(graph_of(noisy, F32), gw.Rule(lambda x: x + tf.random.normal([2, 3]), lambda x: x))
    graph = graph_of(noisy, F32)
    assert len(gw.rewrite(graph, gw.Rule(lambda x: x + tf.random.normal([2, 3]), lambda x: x, effects=True)).applied) == 1
    assert op_types(graph) == ["Relu"]


def test_a_branch_of_tf1_is_not_run_where_it_was_not():
    with tf.Graph().as_default() as built:
        x, p = tf.compat.v1.placeholder(tf.float32, [2], "x"), tf.compat.v1.placeholder(tf.bool, [], "p")
        off, on = tf.raw_ops.Switch(data=x, pred=p)
        tf.raw_ops.Merge(inputs=[tf.identity(off), tf.add(on * 0.0, x, name="sum")], name="merge")
    graph = gw.load(built.as_graph_def())
    report = gw.rewrite(graph, gw.Rule(lambda x, y: x * 0.0 + y, lambda y: y, name="times zero"))
    assert not report.applied
    assert "whether it runs" in report.left[0].reason


def test_a_written_model_serves_what_it_served(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(tf.ones([3]))

        @tf.function(input_signature=[tf.TensorSpec([2, 3])])
        def __call__(self, x):
            return {"y": x + -self.w}

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "model"), signatures=model.__call__)
    report = gw.rewrite(str(tmp_path / "model"), SUBTRACT, out=tmp_path / "out")
    assert report.applied
    served = tf.saved_model.load(str(tmp_path / "out"))
    np.testing.assert_array_equal(served.signatures["serving_default"](tf.zeros([2, 3]))["y"], -np.ones([2, 3]))


def test_a_wrong_rule_is_found_and_the_graph_is_as_it_was():
    graph = graph_of(lambda a, b: tf.nn.relu(a + -b), F32, F32)
    before = to_text(graph)
    wrong = gw.Rule(lambda x, y: x + -y, lambda x, y: y - x, name="wrong")
    with pytest.raises(gw.GraphError, match="differs from that of the pattern"):
        gw.rewrite(graph, wrong, prove=True)
    assert to_text(graph) == before
    endless = gw.Rule(lambda x: tf.nn.relu(x), lambda x: tf.nn.relu(-x), name="endless")
    with pytest.raises(gw.GraphError, match="rules still match: 'endless'"):
        gw.rewrite(graph, [SUBTRACT, endless], rounds=3)
    assert to_text(graph) == before


BAD = {
    "no rule": lambda graph: gw.rewrite(graph, [lambda x: x]),
    "no function": lambda graph: gw.rewrite(graph, gw.Rule("x + y", lambda x: x)),
    "captures nothing": lambda graph: gw.rewrite(graph, gw.Rule(lambda: tf.zeros([]), lambda: tf.zeros([]))),
    "does not capture": lambda graph: gw.rewrite(graph, gw.Rule(lambda x: -x, lambda y: y)),
    "'k' has no choices": lambda graph: gw.rewrite(graph, gw.Rule(lambda x, *, k: x + k, lambda x: x)),
    "captures no 'z'": lambda graph: gw.rewrite(graph, gw.Rule(lambda x: -x, lambda x: x, specs={"z": tf.float32})),
    "neither dtype nor shape": lambda graph: gw.rewrite(graph, gw.Rule(lambda x: -x, lambda x: x, specs={"x": "flaot"})),
    "cannot be traced": lambda graph: gw.rewrite(graph, gw.Rule(lambda x: x.nothing, lambda x: x)),
    "does not compute": lambda graph: gw.rewrite(graph, gw.Rule(lambda x: x, lambda x: -x)),
    "returns 2 results, the pattern 1": lambda graph: gw.rewrite(graph, gw.Rule(lambda x: tf.nn.relu(x), lambda x: (x, x))),
    "is int32, where": lambda graph: gw.rewrite(graph, gw.Rule(lambda x: tf.nn.relu(x), lambda x: tf.cast(x, tf.int32))),
    "has shape": lambda graph: gw.rewrite(graph, gw.Rule(lambda x: tf.nn.relu(x), lambda x: tf.zeros([7]) + 0 * tf.reduce_sum(x))),
    "raises AttributeError": lambda graph: gw.rewrite(graph, gw.Rule(lambda x: tf.nn.relu(x), lambda x: x, lambda match: match.q.shape)),
    "calls functions": lambda graph: gw.rewrite(graph, gw.Rule(lambda x: tf.function(lambda x: tf.sin(x))(x), lambda x: x)),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_rules_are_told(message):
    graph = graph_of(lambda a: tf.nn.relu(a), F32)
    before = to_text(graph)
    with pytest.raises(gw.GraphwrightError, match=message):
        BAD[message](graph)
    assert to_text(graph) == before


ALGEBRA = [
    SUBTRACT,
    gw.Rule(lambda x: tf.negative(-x), lambda x: x, name="negated twice"),
    gw.Rule(lambda x, y: -(x - y), lambda x, y: y - x, name="negated difference"),
    gw.Rule(lambda x: tf.maximum(x, x), lambda x: x, name="greater of the same"),
    gw.Rule(lambda x, y: tf.minimum(x, tf.maximum(x, y)), lambda x, y: x, name="absorbed", condition=lambda m: m.x.shape == m.y.shape),
]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["Neg", "AddV2", "Sub", "Maximum", "Minimum"]), st.integers(0, 99), st.integers(0, 99)), max_size=14)
)
def test_random_graphs_compute_the_same(steps):
    lines = ['graph "g"', "inputs %a:0, %b:0"]
    body = [f"%{n} = Placeholder() {{dtype = float32, shape = shape[2]}} : float32[2]" for n in "ab"]
    names = ["a", "b"]
    for k, (op, i, j) in enumerate(steps):
        first, second = names[-1 - i % min(3, len(names))], names[j % len(names)]
        inputs = f"%{first}:0" if op == "Neg" else f"%{first}:0, %{second}:0"
        body.append(f"%n{k} = {op}({inputs}) {{T = float32}} : float32[2]")
        names.append(f"n{k}")
    graph = from_text("\n".join([*lines, f"outputs %{names[-1]}:0, %{names[len(names) // 2]}:0", *body]))
    arrays = [np.array([1.5, -2.0], np.float32), np.array([0.25, 3.0], np.float32)]
    before = run_side(graph, arrays)
    gw.rewrite(graph, ALGEBRA, prove=True)
    verify(graph)
    for ours, theirs in zip(run_side(graph, arrays), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
