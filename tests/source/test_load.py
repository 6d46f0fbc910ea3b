"""Live objects become graphs that can be edited and served; shapes are TensorFlow's own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from graphwright.errors import ArgumentError
from graphwright.ir.constants import tensor_attribute
from graphwright.ir.graph import DTYPES, Graph
from graphwright.ir.verify import verify
from graphwright.ir.walk import backward_reachable
from graphwright.source.load import load
from graphwright.source.variable_values import variable_values
from graphwright.source.write import write
from tests.corpus.graphs import CORPUS
from tests.corpus.serving import by_loading, by_session


def negated(graph: Graph) -> Graph:
    signature = graph.signatures["serving_default"]
    ((key, value),) = signature.outputs.items()
    node = graph.add_node("Neg", "negated", inputs=[value], attrs={"T": value.dtype}, output_types=[(value.dtype, value.shape)])
    signature.outputs[key] = node.outputs[0]
    return graph


def one_answer(path, x):
    answers = [by_loading(path, {"serving_default": {"": x}}), by_session(path, {"serving_default": {"": x}})]
    first, second = (next(iter(a["serving_default"].values())) for a in answers)
    assert np.array_equal(first, second)
    return first


def test_a_concrete_function_with_variables(tmp_path):
    weight = tf.Variable([2.0, 3.0])
    offset = tf.constant([1.0, 1.0])
    function = tf.function(lambda x: x * weight + offset)
    concrete = function.get_concrete_function(tf.TensorSpec([None, 2], name="x"))
    graph = load(concrete)
    verify(graph)
    assert len(graph.inputs) == 3
    write(negated(graph), tmp_path / "model")
    assert one_answer(tmp_path / "model", np.ones((1, 2), np.float32)).tolist() == [[-3.0, -4.0]]
    assert len(load(function)) == len(graph) - 1  # a tf.function with one trace


def test_a_function_with_several_traces_is_refused():
    function = tf.function(lambda x: x + x)
    with pytest.raises(ArgumentError, match="has 0 traces"):
        load(function)
    function(tf.constant(1.0))
    function(tf.constant(1))
    with pytest.raises(ArgumentError, match="has 2 traces"):
        load(function)


def test_a_keras_model_and_a_module(tmp_path):
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    x = np.ones((1, 3), np.float32)
    write(negated(load(model)), tmp_path / "keras")
    assert np.allclose(one_answer(tmp_path / "keras", x), -np.asarray(model(x)))
    module = tf.Module()
    module.call = tf.function(lambda x: x * 2.0, input_signature=[tf.TensorSpec([None, 3])])
    assert any(f.body.outputs for f in load(module).functions.values())


def test_a_graph_with_collections():
    with tf.Graph().as_default() as graph:
        tf.compat.v1.get_variable("v", [2], use_resource=True)
        tf.compat.v1.add_to_collection("mine", tf.constant(1.0, name="one"))
        tf.compat.v1.add_to_collection("numbers", 3)
    ours = load(graph)
    assert [v.name for v in ours.collections["mine"].items] == ["one:0"]
    assert ours.collections["numbers"].items == [3]
    assert ours["one"].outputs[0].shape == ()
    assert load(ours) is ours


# Shapes


@pytest.mark.parametrize("name", ["frozen_graph", "graph_with_functions", "tf1_gradient_of_a_loop", "branches_and_loops", "ragged_strings"])
def test_shapes_are_those_of_tensorflow(name, tmp_path):
    graph = load(CORPUS[name](tmp_path).path)
    for node in graph.nodes:
        graph.set_attr(node, "_output_shapes", None)
    graph_def = tf.compat.v1.GraphDef()
    from graphwright.source.graph_def import to_graph_def

    graph_def.CopyFrom(to_graph_def(graph, every_function=True))
    with tf.Graph().as_default() as theirs:
        tf.graph_util.import_graph_def(graph_def, name="")
    graph.refresh_shapes()
    for node in graph.nodes:
        for value, tensor in zip(node.outputs, theirs.get_operation_by_name(node.name).outputs, strict=True):
            if tensor.shape.rank is not None:
                assert value.shape == tuple(tensor.shape.as_list()), value.name


def test_shapes_follow_constants_and_variables_from_outside():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 6], name="x")
        variable = tf.compat.v1.get_variable("v", [6, 3], use_resource=True)
        rows = tf.shape(x)[0]
        tf.matmul(tf.reshape(x, tf.stack([rows, 3, 2], name="dims"), name="cube")[:, 0, :] @ tf.ones((2, 6)), variable, name="y")
    ours = load(graph.as_graph_def())
    assert ours["y"].outputs[0].shape == (None, 3)
    assert ours["cube"].outputs[0].shape == (None, 3, 2)
    four = np.array(4, np.int32)
    constant = ours.add_node(
        "Const", "four", attrs={"value": tensor_attribute(four), "dtype": DTYPES["int32"]}, output_types=[(DTYPES["int32"], four.shape)]
    )
    ours.replace_input(ours["dims"], 0, constant.outputs[0])
    assert ours["cube"].outputs[0].shape == (4, 3, 2)
    assert ours["y"].outputs[0].shape == (4, 3)


# Variables


@pytest.mark.parametrize("name", ["tf1_variables", "tf1_loop", "keras_convolutions", "training_step", "module_with_several_signatures"])
def test_values_of_variables_are_those_of_a_session(name, tmp_path):
    case = CORPUS[name](tmp_path)
    graph = load(case.path)
    values = variable_values(graph)
    needed = backward_reachable(v.producer for s in graph.signatures.values() for v in s.outputs.values())
    handles = [n.name for n in needed if n.op_type in ("VarHandleOp", "VariableV2")]
    assert handles
    assert set(values) >= set(handles)
    with tf.Graph().as_default() as served, tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], str(case.path))
        for node_name in handles:
            tensor = served.get_tensor_by_name(f"{node_name}:0")
            if tensor.dtype == tf.resource:
                tensor = tf.raw_ops.ReadVariableOp(resource=tensor, dtype=served.get_operation_by_name(node_name).get_attr("dtype"))
            assert np.array_equal(session.run(tensor), values[node_name]), node_name
