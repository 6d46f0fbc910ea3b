"""SavedModels in the old words: loaded, edited, written, and served by TensorFlow."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

import graphwright.editor as gde
from tests.editor.graphs import run

pytestmark = pytest.mark.tensorflow


def save(folder, fill):
    """Save what `fill` builds: it returns inputs and outputs."""
    with warnings.catch_warnings(), tf1.Graph().as_default(), tf1.Session() as session:
        warnings.simplefilter("ignore")
        inputs, outputs = fill()
        session.run(tf1.global_variables_initializer())
        tf1.saved_model.simple_save(session, str(folder), inputs=inputs, outputs=outputs)
    return str(folder)


def plus_42():
    x = tf1.placeholder(tf1.int32, [], name="x")
    return {"i": x}, {"out": tf1.add(x, 42, name="y")}


def plus_variable():
    x = tf1.placeholder(tf1.int32, [], name="x")
    return {"i": x}, {"out": tf1.add(x, tf1.Variable(42, name="v"), name="y")}


def served(folder, fetch, feeds, tags=("serve",)):
    with tf1.Session(graph=tf1.Graph()) as session:
        tf1.saved_model.load(session, list(tags), str(folder))
        return session.run(fetch, feeds)


def served_by_tf2(folder, **inputs):
    loaded = tf.saved_model.load(str(folder))
    [result] = loaded.signatures["serving_default"](**{k: tf.constant(v) for k, v in inputs.items()}).values()
    return result.numpy()


def test_a_graph_without_variables_and_signatures_is_written(tmp_path):
    with tf1.Graph().as_default() as tf_graph:
        plus_42()
    graph = gde.Graph(tf_graph)
    written = graph.to_saved_model(str(tmp_path / "m"))
    assert list(written.meta_graphs[0].meta_info_def.tags) == ["serve"]
    assert served(tmp_path / "m", "y:0", {"x:0": 1}) == 43
    graph.to_saved_model(str(tmp_path / "tagged"), tags=["a", "b"])
    assert served(tmp_path / "tagged", "y:0", {"x:0": 1}, tags=("a", "b")) == 43


def test_a_graph_with_a_variable_is_edited_and_written(tmp_path):
    graph = gde.saved_model_to_graph(save(tmp_path / "m", plus_variable))
    assert graph.has_passthrough_saver
    assert run(graph, "y:0", {"x:0": 1}, initialize=True) == 43
    with pytest.raises(ValueError, match="immutable serialized"):
        graph.add_variable("w")
    graph["y"].change_op_type("Sub")
    graph.rename_node("y", "difference")
    graph.to_saved_model(str(tmp_path / "after"))
    assert served(tmp_path / "after", "difference:0", {"x:0": 1}) == -41
    assert served_by_tf2(tmp_path / "after", i=1) == -41
    assert gde.saved_model_to_graph(str(tmp_path / "after")).signatures["serving_default"].outputs["out"].name == "difference:0"


def test_variables_without_their_values_cannot_be_written(tmp_path):
    folder = save(tmp_path / "m", plus_variable)
    graph = gde.saved_model_to_graph(folder, include_saver=False, include_signatures=False)
    assert not graph.has_passthrough_saver
    assert not graph.signatures
    with pytest.raises(NotImplementedError, match="SaverDef"):
        graph.to_saved_model(str(tmp_path / "after"))
    saver_def = gde.graph.collecting.written(gde.saved_model_to_graph(folder).ir).saver_def
    definition = graph.to_graph_def()
    info = gde.SignatureInfo()
    info.add_signature_def("serving_default", gde.saved_model_to_graph(folder).signatures["serving_default"])
    with pytest.raises(ValueError, match="Already have a signature"):
        info.add_signature_def("serving_default", None)
    rebuilt = gde.Graph(definition, saver_info=gde.SaverInfo(f"{folder}/variables", saver_def), signature_info=info)
    rebuilt.to_saved_model(str(tmp_path / "after"))
    assert served(tmp_path / "after", "y:0", {"x:0": 1}) == 43
    assert served_by_tf2(tmp_path / "after", i=1) == 43


def test_collections_survive(tmp_path):
    def fill():
        x, y = tf1.placeholder(tf1.float32, [], name="x"), tf1.placeholder(tf1.float32, [], name="y")
        w, c = tf1.Variable([1.0, 2.0], name="w"), tf1.constant(0.0, name="c")
        tf1.add_to_collection("tensors", c)
        error = tf1.square(y - (x * w[0] + w[1] + c))
        tf1.train.GradientDescentOptimizer(0.01).minimize(error, name="train")
        return {"i": x}, {"out": error}

    graph = gde.saved_model_to_graph(save(tmp_path / "m", fill))
    names = {"variables", "tensors", "train_op"}
    assert names <= set(graph.get_all_collection_keys())
    assert not [key for key in graph.get_all_collection_keys() if "graphwright" in key]
    assert "variables" in graph.get_variable_by_name("w:0").collection_names
    assert "tensors" in graph["c:0"].collection_names
    assert "train_op" in graph["train"].collection_names
    graph.to_saved_model(str(tmp_path / "after"))
    with tf1.Session(graph=tf1.Graph()) as session:
        tf1.saved_model.load(session, ["serve"], str(tmp_path / "after"))
        found = {name: [item.name for item in session.graph.get_collection(name)] for name in names}
    assert found == {"variables": ["w:0"], "tensors": ["c:0"], "train_op": ["train"]}


def test_functions_of_tf2_are_edited_and_served(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.w = tf.Variable(10.0)

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
        def __call__(self, x):
            return {"y": self.w * x + tf.constant(1.0, name="one")}

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "m"), signatures=model.__call__)
    graph = gde.saved_model_to_graph(str(tmp_path / "m"))
    constants = list(graph.nodes_iterator(lambda n: n.op_type == "Const" and n.name.endswith("one"), iterate_functions=True))
    assert constants
    for constant in constants:
        constant.replace_attr("value", np.array(5.0, np.float32))
    graph.to_saved_model(str(tmp_path / "after"))
    assert served_by_tf2(tmp_path / "after", x=2.0) == 25.0
    assert served_by_tf2(tmp_path / "m", x=2.0) == 21.0


def test_tags(tmp_path):
    with tf1.Graph().as_default() as tf_graph:
        plus_42()
    folder = str(tmp_path / "m")
    gde.Graph(tf_graph).to_saved_model(folder, tags=["serve", "gpu"])
    for tag in (None, "serve", ["gpu", "serve"]):
        assert len(gde.saved_model_to_graph(folder, tag)) == 3
    assert len(gde.saved_model_to_graph(folder, "train", fallback_to_default_graph=True)) == 3
    with pytest.raises(ValueError, match="train"):
        gde.saved_model_to_graph(folder, "train")


def test_paths_that_are_refused(tmp_path):
    graph = gde.Graph()
    for path in (tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(ValueError, match=r"already|no folder"):
            graph.to_saved_model(str(path))
    with pytest.raises(ValueError, match="not found"):
        gde.saved_model_to_graph(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"saved_model\.pb"):
        gde.saved_model_to_graph(str(tmp_path))
