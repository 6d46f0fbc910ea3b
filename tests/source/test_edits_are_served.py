"""An edited SavedModel is served by `tf.saved_model.load` and by a session, with the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graphwright.errors import GraphError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.constants import add_constant
from graphwright.ir.graph import DTYPES, Graph, Node, Value
from graphwright.ir.signature import Signature
from graphwright.ir.verify import verify
from graphwright.source.load import load
from graphwright.source.write import write
from tests.corpus.graphs import CORPUS
from tests.corpus.serving import by_loading, by_session

FLOAT, STRING = DTYPES["float32"], DTYPES["string"]


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="weight")
        self.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), -1.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x"), tf.TensorSpec([None], tf.string, name="word")])
    def call(self, x, word):
        return {"y": x @ self.weight, "number": self.table.lookup(word)}


X, WORD = np.array([[1.0, -1.0]], np.float32), np.array([b"b", b"?"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    module = Model()
    tf.saved_model.save(module, str(folder), signatures=module.call)
    return folder


def served(path: Path, **feeds: Any) -> dict[str, Any]:
    ours = by_loading(path, {"serving_default": feeds})["serving_default"]
    theirs = by_session(path, {"serving_default": feeds})["serving_default"]
    assert {k: v.tolist() for k, v in ours.items()} == {k: np.asarray(v).tolist() for k, v in theirs.items()}
    return {k: v.tolist() for k, v in ours.items()}


def unary(graph: Graph, op_type: str, value: Value, **attrs: Any) -> Node:
    return graph.add_node(
        op_type, graph.unique_name(op_type), inputs=[value], attrs={"T": value.dtype, **attrs}, output_types=[(value.dtype, value.shape)]
    )


def test_a_value_inserted_behind_the_call(model, tmp_path):
    graph = load(model)
    signature = graph.signatures["serving_default"]
    y = signature.outputs["y"]
    signature.outputs["y"] = unary(graph, "Neg", y).outputs[0]
    write(graph, tmp_path / "edited")
    assert served(tmp_path / "edited", x=X, word=WORD) == {"y": [[2.0, 2.0]], "number": [2.0, -1.0]}
    again = load(tmp_path / "edited")
    verify(again)
    write(again, tmp_path / "again")
    assert served(tmp_path / "again", x=X, word=WORD) == {"y": [[2.0, 2.0]], "number": [2.0, -1.0]}
    assert (tmp_path / "again" / "saved_model.pb").read_bytes() == (tmp_path / "edited" / "saved_model.pb").read_bytes()


def test_signatures_added_and_removed(model, tmp_path):
    graph = load(model)
    old = graph.signatures["serving_default"]
    graph.signatures["positive"] = Signature(dict(old.inputs), {"y": unary(graph, "Relu", old.outputs["y"]).outputs[0]}, old.method_name)
    graph.signatures["twice"] = graph.signatures.pop("serving_default")
    write(graph, tmp_path / "edited")
    loaded = tf.saved_model.load(str(tmp_path / "edited"))
    assert sorted(loaded.signatures) == ["positive", "twice"]
    feeds = {"x": X, "word": WORD}
    answers = by_loading(tmp_path / "edited", {"positive": feeds, "twice": feeds})
    assert answers["positive"]["y"].tolist() == [[0.0, 0.0]]
    assert answers["twice"]["y"].tolist() == [[-2.0, -2.0]]


def test_the_body_of_a_function(model, tmp_path):
    graph = load(model)
    (body,) = [f.body for f in graph.functions.values() if any(n.op_type == "MatMul" for n in f.body)]
    matmul = next(n for n in body if n.op_type == "MatMul")
    body.replace_uses(matmul.outputs[0], unary(body, "Neg", matmul.outputs[0]).outputs[0], keep=[n for n in body if n.op_type == "Neg"])
    write(graph, tmp_path / "edited")
    assert served(tmp_path / "edited", x=X, word=WORD)["y"] == [[2.0, 2.0]]
    loaded = tf.saved_model.load(str(tmp_path / "edited"))
    assert loaded.call(X, WORD)["y"].numpy().tolist() == [[2.0, 2.0]]


def test_a_function_whose_call_was_forgotten(model, tmp_path):
    graph = load(model)
    (body,) = [f.body for f in graph.functions.values() if any(n.op_type == "MatMul" for n in f.body)]
    body.inputs = body.inputs[:-1]
    with pytest.raises(GraphError, match="has arguments"):
        write(graph, tmp_path / "edited")
    assert list(tmp_path.iterdir()) == []


def test_what_no_object_stands_for(model, tmp_path):
    graph = load(model)
    signature = graph.signatures["serving_default"]
    attrs = {"dtype": FLOAT, "shared_name": b"new", "shape": ShapeAttribute(())}
    handle = graph.add_node("VarHandleOp", "new", attrs=attrs, output_types=[(DTYPES["resource"], ())]).outputs[0]
    read = graph.add_node("ReadVariableOp", "read", inputs=[handle], attrs={"dtype": FLOAT}, output_types=[(FLOAT, None)])
    signature.outputs["new"] = read.outputs[0]
    with pytest.raises(GraphError, match="has no object in the SavedModel"):
        write(graph, tmp_path / "edited")
    signature.outputs["new"] = graph.add_node("Placeholder", "free", attrs={"dtype": FLOAT}, output_types=[(FLOAT, ())]).outputs[0]
    with pytest.raises(GraphError, match="is not an input of the signature"):
        write(graph, tmp_path / "edited")
    assert list(tmp_path.iterdir()) == []


def test_a_large_constant_is_captured(model, tmp_path):
    graph = load(model)
    signature = graph.signatures["serving_default"]
    weights = add_constant(graph, "weights", np.full((2, 500), 0.5, np.float32))
    signature.outputs["y"] = graph.add_node(
        "MatMul", "wide", inputs=[signature.outputs["y"], weights], attrs={"T": FLOAT}, output_types=[(FLOAT, None)]
    ).outputs[0]
    write(graph, tmp_path / "edited")
    assert served(tmp_path / "edited", x=X, word=WORD)["y"] == [[-2.0] * 500]
    assert (tmp_path / "edited" / "saved_model.pb").stat().st_size < 4000 + (model / "saved_model.pb").stat().st_size + weights.nbytes * 1.5


def test_the_argument_of_a_function_that_python_calls(model, tmp_path):
    """`loaded.call` takes what its edited function takes; its `input_signature` follows."""
    graph = load(model)
    (function,) = [f for f in graph.functions.values() if any(n.op_type == "MatMul" for n in f.body)]
    old = function.body.value("x")
    half = DTYPES["float16"]
    argument = function.body.add_node("_Arg", "x16", attrs={"T": half, "index": 0}, output_types=[(half, (None, 2))]).outputs[0]
    cast = function.body.add_node("Cast", "cast", inputs=[argument], attrs={"SrcT": half, "DstT": FLOAT}, output_types=[(FLOAT, (None, 2))])
    function.body.replace_uses(old, cast.outputs[0])
    function.body.inputs = [argument if v is old else v for v in function.body.inputs]
    function.body.remove_node(old.producer)
    for body in (graph, *(f.body for f in graph.functions.values())):
        for call in [n for n in body if getattr(n.attrs.get("f"), "name", "") == function.name]:
            x = call.inputs[0]
            less = body.add_node("Cast", "less", inputs=[x], attrs={"SrcT": FLOAT, "DstT": half}, output_types=[(half, x.shape)])
            body.set_inputs(call, [less.outputs[0], *call.inputs[1:]])
    write(graph, tmp_path / "edited")
    assert served(tmp_path / "edited", x=X, word=WORD)["y"] == [[-2.0, -2.0]]
    loaded = tf.saved_model.load(str(tmp_path / "edited"))
    assert loaded.call(X.astype(np.float16), WORD)["y"].numpy().tolist() == [[-2.0, -2.0]]


def test_a_keras_export(tmp_path):
    case = CORPUS["keras_text_vectorization"](tmp_path)
    graph = load(case.path)
    signature = graph.signatures["serving_default"]
    (key,) = signature.outputs
    signature.outputs[key] = unary(graph, "Neg", signature.outputs[key]).outputs[0]
    (name,) = signature.inputs
    upper = signature.inputs[name]
    lower = graph.add_node("StringStrip", "strip", inputs=[upper], output_types=[(STRING, upper.shape)])
    graph.replace_uses(upper, lower.outputs[0], keep=[lower])
    write(graph, tmp_path / "edited")
    before = by_loading(case.path, case.feeds)["serving_default"][key]
    for answers in (by_loading(tmp_path / "edited", case.feeds), by_session(tmp_path / "edited", case.feeds)):
        assert np.array_equal(answers["serving_default"][key], -before)
    loaded = tf.saved_model.load(str(tmp_path / "edited"))
    given = next(iter(case.feeds["serving_default"].values()))
    assert np.array_equal(loaded.serve(tf.constant(given)).numpy(), before)  # another function, which nobody edited


def test_a_frozen_graph_with_a_signature_becomes_a_saved_model(tmp_path):
    case = CORPUS["frozen_graph"](tmp_path)
    graph = load(case.path)
    graph.signatures["serving_default"] = Signature({"x": graph.value("x")}, {"y": graph.value("y"), "best": graph.value("best:0")})
    write(graph, tmp_path / "model")
    x = case.feeds[""]["x:0"]
    answer = served(tmp_path / "model", x=x)
    assert sorted(answer) == ["best", "y"]
    assert np.array(answer["y"]).shape == (3, 4)


def test_functions_removed_from_the_library(tmp_path):
    case = CORPUS["module_with_several_signatures"](tmp_path)
    graph = load(case.path)
    gone = graph.signatures.pop("decode")
    (call,) = {v.producer for v in gone.outputs.values()}
    graph.remove_node(call)
    for value in gone.inputs.values():
        graph.remove_node(value.producer)
    wrapper = graph.functions.pop(call.attrs["f"].name)
    inner = next(n.attrs["f"].name for n in wrapper.body if "f" in n.attrs)
    del graph.functions[inner]
    write(graph, tmp_path / "edited")
    feeds = {key: case.feeds[key] for key in ("serving_default", "encode")}
    before, after = by_loading(case.path, feeds), by_session(tmp_path / "edited", feeds)
    assert before["encode"]["code"].tolist() == after["encode"]["code"].tolist()
    loaded = tf.saved_model.load(str(tmp_path / "edited"))
    assert sorted(loaded.signatures) == ["encode", "serving_default"]
    assert loaded.encode(case.feeds["encode"]["x"])["code"].numpy().tolist() == before["encode"]["code"].tolist()
    with pytest.raises(ValueError, match="Found zero restored functions"):
        loaded.decode(np.zeros((1, 2), np.float32), 1.0)


def test_a_node_below_a_call_that_would_be_taken_for_another_is_refused(tmp_path):
    """TensorFlow 2.21 serves such a graph without an error, and computes something else."""
    inner = tf.function(lambda x: tf.identity(x * 2.0, name="doubled"))
    function = tf.function(lambda x: {"y": tf.negative(inner(x), name="negated")})
    graph = load(function.get_concrete_function(tf.TensorSpec([2], tf.float32, name="x")))
    [call] = [node for node in graph if node.op_type in ("PartitionedCall", "StatefulPartitionedCall")]
    graph.rename(graph["negated"], f"{call.name}/other")
    write(graph, tmp_path / "served")
    assert tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"](x=tf.ones(2))["y"].numpy().tolist() == [-2.0, -2.0]
    graph.rename(graph[f"{call.name}/other"], f"{call.name}/doubled")
    with pytest.raises(GraphError, match=f"'{call.name}/doubled' is also the name of a node that the call '{call.name}' runs"):
        write(graph, tmp_path / "refused")


@pytest.mark.parametrize("name", ["a b", "_x", "é", "/a", "-a", "a\\b", "a\nb"])
def test_a_name_that_tensorflow_refuses_is_refused(name, tmp_path):
    with tf.Graph().as_default() as theirs:
        tf.nn.relu(tf.compat.v1.placeholder(tf.float32, [2], name="x"), name="y")
    graph = load(theirs)
    with pytest.raises(GraphError, match="TensorFlow takes no node called"):
        graph.rename(graph["x"], name)
    rule, graph.op_rule = graph.op_rule, None
    graph.rename(graph["x"], name)  # who asks for no check is told when it is written
    with pytest.raises(GraphError, match="TensorFlow takes no node called"):
        write(graph, tmp_path / "out.pb")
    graph.op_rule = rule
    graph.rename(graph[name], "a.b/c_d-1>e")
    write(graph, tmp_path / "out.pb")
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString((tmp_path / "out.pb").read_bytes()), name="")
