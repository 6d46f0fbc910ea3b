"""Verbs of loaded graphs refuse, at the call, what could not be written; and take dtypes, shapes and attributes as one has them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from graphwright.errors import GraphError
from graphwright.ir.edit import add_placeholder, insert_after, insert_before
from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text, to_text
from graphwright.source.load import load
from graphwright.source.write import write
from tests.ir.outlined import outlined


@pytest.fixture
def graph():
    function = tf.function(lambda x: {"y": tf.nn.relu(tf.matmul(x, x, name="product"), name="last")})
    return load(function.get_concrete_function(tf.TensorSpec([2, 2], tf.float32, name="x")))


def last(graph):
    return graph.outputs[0]


REFUSED = {
    "no op": (lambda g: insert_after(last(g), "Negg"), r"no op 'Negg'[\s\S]*Identity/Negg[\s\S]*did you mean Neg"),
    "no op, before": (lambda g: insert_before(g, g["last"], 0, "relu"), r"no op 'relu'"),
    "no op, added": (lambda g: g.add_node("Plcaeholder", "p"), r"did you mean Placeholder"),
    "no op, set": (lambda g: g.set_op_type(g["last"], "Relu7"), r"no op 'Relu7'[\s\S]*'last'[\s\S]*Relu6"),
    "no attribute": (lambda g: insert_after(last(g), "Neg", attrs={"Tt": tf.float32}), r"no attribute 'Tt'[\s\S]*did you mean T"),
    "no attribute, set": (lambda g: g.set_attr(g["product"], "transpose", True), r"no attribute 'transpose'[\s\S]*transpose_a"),
    "no dtype": (lambda g: insert_after(last(g), "Neg", attrs={"T": "flaot32"}), r"type is expected, got 'flaot32'[\s\S]*float32"),
    "no dtype, set": (lambda g: g.set_attr(g["last"], "T", 3.5), r"'T' of Relu 'last'"),
    "dtype not allowed": (lambda g: g.set_attr(g["product"], "T", tf.string), r"'string' is not allowed"),
    "text not allowed": (lambda g: g.add_node("Conv2D", "c", inputs=[last(g)] * 2, attrs={"strides": [1] * 4, "padding": "same"}), "SAME"),
    "no bool": (lambda g: g.set_attr(g["product"], "transpose_a", "yes"), r"bool is expected, got 'yes'"),
    "another dtype than the input": (lambda g: insert_after(last(g), "Neg", attrs={"T": tf.float64}), "float64, got float32"),
    "too few inputs": (lambda g: insert_after(last(g), "MatMul"), "its inputs are float32, float32, got float32"),
    "too many outputs": (lambda g: g.add_node("Relu", "r", inputs=[last(g)], output_types=[(tf.float32, [2])] * 2), "its outputs"),
    "missing attribute": (lambda g: insert_after(last(g), "Cast"), "'DstT'"),
    "too small": (lambda g: g.add_node("AddN", "sum", inputs=[], attrs={"N": 0, "T": "float32"}), "0 is less than 1"),
    "name": (lambda g: insert_after(last(g), "Neg", "a b"), "no node called 'a b'[\\s\\S]*'a_b' would do"),
    "name of a new node": (lambda g: g.add_node("NoOp", "_hidden"), "no node called '_hidden'"),
    "renamed": (lambda g: g.rename(g["last"], "ünsafe"), "no node called"),
    "renamed scope": (lambda g: g.rename_many({n: f"my scope/{n.name}" for n in g}), "no node called"),
    "name of a placeholder": (lambda g: add_placeholder(g, "in put", "float32", [2]), "no node called"),
    "no shape": (lambda g: add_placeholder(g, "p", "float32", "wide"), "is not a shape"),
    "dtype of a placeholder": (lambda g: add_placeholder(g, "p", "flot32", [2]), "is not a dtype"),
    "in a function": (lambda g: _body(g).add_node("Negg", "n"), "no op 'Negg'"),
}


def _body(graph):
    outlined([graph["product"]], "inner")
    return graph.functions["inner"].body


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_refused_at_the_call(case, graph):
    edit, message = REFUSED[case]
    if case == "in a function":
        body = _body(graph)
        with pytest.raises(GraphError, match=message):
            body.add_node("Negg", "n")
        return
    before = to_text(graph)
    with pytest.raises(ValueError, match=message):
        edit(graph)
    assert to_text(graph) == before


@pytest.mark.parametrize("given", [tf.float32, "float32", np.float32, np.dtype("float32"), float, 1, None, tf.compat.v1.AttrValue(type=1)])
def test_dtypes_are_taken_in_every_usual_form(given, graph, tmp_path):
    node = insert_after(last(graph), "Neg", attrs={} if given is None else {"T": given})
    dtype = given if given is not None and not isinstance(given, tf.compat.v1.AttrValue) else "float32"
    other = graph.add_node("Placeholder", "p", attrs={"dtype": given or "float32", "shape": [None, 2]}, output_types=[(dtype, [-1, 2])])
    graph.set_attr(node, "T", given or "float32")
    assert node.attrs["T"] == node.inputs[0].dtype == other.outputs[0].dtype
    assert other.outputs[0].shape == (None, 2) == other.attrs["shape"].shape
    write(graph, tmp_path / "g.pb")
    x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString((tmp_path / "g.pb").read_bytes()), name="")
        np.testing.assert_array_equal(session.run(graph.outputs[0].name, {"x:0": x}), -np.maximum(x @ x, 0))


def test_attributes_defaults_and_outputs_follow_from_the_inputs(graph):
    value = last(graph)
    product = graph.add_node("MatMul", "again", inputs=[value, value], attrs={"transpose_a": np.bool_(True)})
    assert (product.attrs["T"], product.attrs["transpose_a"], product.attrs["transpose_b"]) == (value.dtype, True, False)
    assert (product.outputs[0].dtype, product.outputs[0].shape) == (value.dtype, (2, 2))
    axis = graph.add_node("Const", "axis", attrs={"value": np.int32(0), "dtype": np.int32}).outputs[0]
    joined = graph.add_node("ConcatV2", "joined", inputs=[value, value, axis])
    assert (joined.attrs["N"], joined.attrs["Tidx"], joined.outputs[0].shape) == (2, axis.dtype, (4, 2))
    several = graph.add_node("IdentityN", "several", inputs=[value, axis])
    assert several.attrs["T"] == (value.dtype, axis.dtype)
    assert [v.shape for v in several.outputs] == [(2, 2), ()]
    parts = graph.add_node("Split", "parts", inputs=[axis, value], attrs={"num_split": 2})
    assert [v.shape for v in parts.outputs] == [(1, 2)] * 2
    half = graph.add_node("Cast", "half", inputs=[value], output_types=[("half", None)])
    assert half.attrs["DstT"] == half.outputs[0].dtype


def test_invented_ops_are_taken_where_no_registry_is_asked():
    graph = from_text('graph "g"\n%x = Anything() : float32[2]\n')
    assert insert_after(graph.value("x"), "Else").op_type == "Else"
    made = Graph().add_node(
        "Anything", "a b", attrs={"T": tf.float32, "k": [np.int64(1)]}, output_types=[("float32", tf.TensorShape(None))]
    )
    assert (made.attrs["T"].name, made.attrs["k"], made.outputs[0].shape) == ("float32", (1,), None)
