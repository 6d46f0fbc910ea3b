"""`simplify`: what it finds, what it leaves, and that models serve what they served."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import graphwright as gw
from graphwright.commands.cli import app
from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text, to_text
from graphwright.ir.verify import verify
from graphwright.source.trace_rule import run_side

pytestmark = pytest.mark.tensorflow
F32 = tf.TensorSpec([3, 3])


def graph_of(function: Any, *specs: Any) -> Graph:
    return gw.load(tf.function(function).get_concrete_function(*specs))


def op_types(graph: Graph) -> list[str]:
    return [node.op_type for node in graph if node.op_type not in ("Placeholder", "Const", "Identity")]


def test_what_depends_on_a_variable_is_computed_once_until_it_is_written():
    v = tf.Variable(tf.ones([3, 3]))

    def function(x):
        first = tf.sin(v) @ x + tf.sin(v) @ x
        v.assign_add(x)
        return first + tf.sin(v) @ x + tf.sin(v) @ x

    graph = graph_of(function, F32)
    report = gw.simplify(graph)
    verify(graph)
    assert op_types(graph).count("Sin") == 2
    assert op_types(graph).count("MatMul") == 2
    assert report.found["reads of variables"] == 2
    assert report.flops_after < report.flops_before


def test_equal_work_is_found_across_calls_and_in_loops():
    @tf.function
    def inner(x):
        return tf.sin(x) * 2.0

    def function(x):
        y = tf.sin(x) * 2.0 + inner(x)
        for _ in tf.range(3):
            y = y + tf.cos(y) * tf.cos(y)
        return y

    concrete = tf.function(function).get_concrete_function(F32)
    graph = gw.load(concrete)
    report = gw.simplify(graph)
    verify(graph)
    assert op_types(graph).count("Sin") == 1
    [body] = [f.body for name, f in graph.functions.items() if "body" in name]
    assert op_types(body).count("Cos") == 1
    x = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    np.testing.assert_array_equal(run_side(graph, [x])[0], concrete(tf.constant(x)))
    assert report.found["calls inlined"] == 1


def test_equal_loops_and_branches_are_merged_and_others_are_not():
    def power(x, factor, rounds):
        y = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.sin(x) * factor, lambda: tf.cos(x))
        return tf.while_loop(lambda k, _: k < rounds, lambda k, z: (k + 1, z @ x), (0, y))[1]

    graph = graph_of(lambda x: tf.stack([power(x, 2.0, 3), power(x, 2.0, 3), power(x, 3.0, 3), power(x, 2.0, 2)]), F32)
    x = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    before = run_side(graph, [x])
    gw.simplify(graph)
    verify(graph)
    assert op_types(graph).count("StatelessIf") == 2
    assert op_types(graph).count("StatelessWhile") == 3
    np.testing.assert_array_equal(run_side(graph, [x]), before)


def test_branches_with_gradients_of_their_own_stay_two():
    def clipped(x, limit):
        return tf.custom_gradient(lambda y: (tf.identity(y), lambda dy: tf.clip_by_value(dy, -limit, limit)))(x)

    def function(x):
        return tf.add_n([tf.cond(tf.reduce_sum(x) > 0.0, lambda c=c: clipped(x, c), lambda: x) for c in (1.0, 2.0)])

    graph = graph_of(function, F32)
    gw.simplify(graph)
    assert op_types(graph).count("StatelessIf") == 2


def test_a_custom_gradient_stays():
    @tf.custom_gradient
    def clipped(x):
        return tf.identity(x), lambda dy: tf.clip_by_value(dy, -1.0, 1.0)

    graph = graph_of(lambda x: clipped(x) + clipped(x), F32)
    count = op_types(graph).count("IdentityN")
    assert count
    gw.simplify(graph)
    assert op_types(graph).count("IdentityN") == count


def test_what_is_placed_beside_another_operation_is_folded():
    def function(x):
        with tf.compat.v1.colocate_with(x):
            y = tf.constant([1.0, 2.0]) + tf.constant([3.0, 4.0])
        return x + y

    graph = graph_of(function, tf.TensorSpec([2]))
    assert graph.colocated_with(graph["x"])
    assert gw.simplify(graph).found["constants folded"] == 1
    np.testing.assert_array_equal(run_side(graph, [np.zeros(2, np.float32)])[0], [4.0, 6.0])


def test_a_graph_that_is_fetched_by_names_keeps_them():
    with tf.Graph().as_default() as built:
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        tf.sin(x, name="a")
        tf.identity(tf.sin(x, name="b"), name="c")
        tf.multiply(x, 1.0, name="d")
    graph = gw.load(built.as_graph_def())
    gw.simplify(graph)
    assert {"x", "a", "c", "d"} <= {node.name for node in graph}
    assert not graph.control_outputs


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["EfficientNetB0", pytest.param("MobileNetV2", marks=pytest.mark.thorough)])
def test_an_exported_model_serves_the_same(kind, tmp_path):
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, kind)(weights=None, input_shape=(64, 64, 3), classes=10)
    model.export(tmp_path / "model", verbose=False)
    report = gw.simplify(tmp_path / "model", out=tmp_path / "out")
    assert report.run_after < report.run_before
    assert report.nodes_after < report.nodes_before
    before, after = (tf.saved_model.load(str(tmp_path / name)) for name in ("model", "out"))
    x = tf.random.normal([2, 64, 64, 3])
    np.testing.assert_array_equal(before.serve(x), after.serve(x))
    assert len(after.variables) == len(before.variables)


def test_the_command_writes_a_model_that_serves(tmp_path):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, activation="gelu"), keras.layers.Dense(2)])
    model.export(tmp_path / "model", verbose=False)
    result = CliRunner().invoke(app, ["edit", str(tmp_path / "model"), str(tmp_path / "out"), "simplify"])
    assert result.exit_code == 0, result.output
    assert "nodes run" in result.output
    x = tf.random.normal([2, 4])
    before, after = (tf.saved_model.load(str(tmp_path / name)) for name in ("model", "out"))
    np.testing.assert_array_equal(after.serve(x), before.serve(x))
    again = CliRunner().invoke(app, ["edit", str(tmp_path / "model"), str(tmp_path / "out"), "simplify"])
    assert again.exit_code == 2


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["Neg", "AddV2", "Sub", "Mul", "Maximum", "Relu"]), st.integers(0, 9), st.integers(0, 9)), max_size=16
    )
)
def test_random_graphs_compute_the_same(steps):
    lines = [f"%{n} = Placeholder() {{dtype = float32, shape = shape[2]}} : float32[2]" for n in "ab"]
    lines.append("%one = Const() {dtype = float32, value = tensor float32[] [1.0]} : float32[]")
    names = ["a", "b", "one"]
    shapes = {"a": "[2]", "b": "[2]", "one": "[]"}
    for k, (op, i, j) in enumerate(steps):
        first, second = names[i % len(names)], names[j % len(names)]
        single = op in ("Neg", "Relu")
        inputs = f"%{first}:0" if single else f"%{first}:0, %{second}:0"
        shapes[f"n{k}"] = shapes[first] if single or shapes[first] == "[2]" else shapes[second]
        lines.append(f"%n{k} = {op}({inputs}) {{T = float32}} : float32{shapes[f'n{k}']}")
        names.append(f"n{k}")
    graph = from_text("\n".join(['graph "g"', "inputs %a:0, %b:0", f"outputs %{names[-1]}:0, %{names[len(names) // 2]}:0", *lines]))
    arrays = [np.array([1.5, -2.0], np.float32), np.array([0.25, 3.0], np.float32)]
    before = run_side(graph, arrays)
    gw.simplify(graph)
    verify(graph)
    for ours, theirs in zip(run_side(graph, arrays), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    text = to_text(graph)
    gw.simplify(graph)
    assert to_text(graph) == text
