"""Grafts that hold variables, tables and files: layers that were adapted, embeddings, vocabularies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras
import tensorflow as tf

from graphwright.errors import ArgumentError, FileFormatError, UnsupportedError
from graphwright.ir.graph import Graph
from graphwright.ir.text import to_text
from graphwright.ir.verify import verify
from graphwright.source.load import load
from graphwright.source.variable_values import variable_values
from graphwright.source.write import write
from graphwright.transform.preprocessing import add_postprocessing, add_preprocessing
from tests.corpus.serving import by_loading, by_session
from tests.transform.serving import built, random
from tests.transform.test_merge_models import table, tf1

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1
X = random(2, 3, seed=3) * 4 + 1


def model(name: str = "image", shape: tuple[int, ...] = (3,)) -> Any:
    x = keras.Input(shape, name=name)
    return keras.Model(x, {"scores": keras.layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(seed=5))(x)})


def normalization(name: str = "image") -> Any:
    layer = keras.layers.Normalization(name="normalization")
    layer.adapt(random(50, 3, seed=4) * 4 + 1)
    x = keras.Input((3,), name=name)
    return keras.Model(x, layer(x))


def served(graph: Graph, folder: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """Written, forgotten, moved; asked through each signature, which must agree."""
    verify(graph)
    write(graph, folder / "written")
    graph.package = None
    shutil.move(folder / "written", folder / "elsewhere")
    every = dict.fromkeys(graph.signatures, feeds)
    loaded, session = by_loading(folder / "elsewhere", every), by_session(folder / "elsewhere", every)
    for key in every:
        assert list(loaded[key]) == list(loaded["serving_default"])
        for name, value in loaded[key].items():
            np.testing.assert_array_equal(value, loaded["serving_default"][name])
            if value.dtype == np.float32:
                np.testing.assert_allclose(session[key][name], value, rtol=1e-6, atol=1e-6)  # a session folds other things
            else:
                assert session[key][name].tolist() == value.tolist()
    return loaded["serving_default"]


def test_a_layer_that_was_adapted(tmp_path):
    net, before = model(), normalization()
    expected = net(before(X))["scores"]
    graph = load(net)
    assert set(graph.signatures) == {"serve", "serving_default"}
    own = {name: value.copy() for name, value in variable_values(graph).items()}
    assert str(add_preprocessing(graph, load(before))["image"]) == "serve_image:0"
    values = variable_values(graph)
    assert all(np.array_equal(values[name], value) for name, value in own.items())
    assert sorted(set(values) - set(own)) == [f"preprocessing/normalization/{name}" for name in ("count", "mean", "variance")]
    for key in graph.signatures:
        assert list(graph.signatures[key].inputs) == ["image"]
        assert list(graph.signatures[key].outputs) == ["scores"]
    np.testing.assert_allclose(served(graph, tmp_path, {"image": X})["scores"], expected, rtol=1e-5)


def test_words_before_and_behind(tmp_path):
    words = ["red", "green", "blue"]
    x = keras.Input((4,), name="image", dtype="string")
    before = keras.Model(x, keras.layers.Embedding(4, 3)(keras.layers.StringLookup(vocabulary=words)(x)))
    net = model(shape=(4, 3))
    y = keras.Input((4, 2), name="scores")
    labels = keras.layers.StringLookup(vocabulary=["yes", "no"], invert=True)(keras.ops.argmax(y, axis=-1))
    after = keras.Model(y, labels)
    text = np.array([["red", "blue", "pink", "red"]])
    expected = after(net(before(tf.constant(text)))["scores"]).numpy()
    graph = load(net)
    add_preprocessing(graph, load(before))
    add_postprocessing(graph, load(after))
    assert str(graph.signatures["serving_default"].inputs["image"].dtype) == "string"
    assert served(graph, tmp_path, {"image": text})["scores"].tolist() == expected.tolist()


def test_the_structured_signature_follows(tmp_path):
    graph = load(model())
    x = keras.Input((5,), name="image", dtype="float64")
    add_preprocessing(graph, load(keras.Model(x, keras.layers.Dense(3, dtype="float32")(keras.ops.cast(x, "float32")))))
    write(graph, tmp_path / "written")
    signature = tf.saved_model.load(tmp_path / "written").signatures["serving_default"]
    assert signature.structured_input_signature == ((), {"image": tf.TensorSpec([None, 5], tf.float64, name="image")})
    assert signature.structured_outputs == {"scores": tf.TensorSpec([None, 2], tf.float32, name="scores")}


def words_to_numbers(folder: Path, words: list[str]) -> Path:
    """A table from a file, under the names of the model's input."""
    table(folder, words)
    loaded = tf.saved_model.load(folder / "model")
    module = tf.Module()
    module.loaded = loaded
    module.call = tf.function(
        lambda x: {"x": tf.cast(tf.reshape(loaded.call(tf.reshape(x, [-1]))["number"], [-1, 3]), tf.float32)},
        input_signature=[tf.TensorSpec([None, 3], tf.string, name="x")],
    )
    tf.saved_model.save(module, str(folder / "numbers"), signatures=module.call)
    return folder / "numbers"


@pytest.mark.parametrize("kind", ["tf1", "tf2", "frozen"])
def test_a_vocabulary_in_a_file(kind, tmp_path):
    weight = random(3, 3, seed=1)
    if kind == "tf1":
        graph = load(tf1(tmp_path / "model", 1))
    elif kind == "tf2":
        module = tf.Module()
        module.w = w = tf.Variable(weight)
        module.call = tf.function(lambda x: {"y": tf.nn.relu(x @ w)}, input_signature=[tf.TensorSpec([None, 3], name="x")])
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
        graph = load(tmp_path / "model")
    else:

        def build():
            tf.nn.relu(tf.matmul(v1.placeholder(tf.float32, [None, 3], name="x"), weight), name="y")

        graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    add_preprocessing(graph, load(words_to_numbers(tmp_path / "words", ["no", "one", "two"])))
    shutil.rmtree(tmp_path / "words")
    answer = served(graph, tmp_path, {"x": np.array([["two", "one", "three"]])})
    np.testing.assert_allclose(answer["y"], np.maximum(np.array([[2, 1, -1]], np.float32) @ weight, 0), rtol=1e-6)
    assert [f.name for f in (tmp_path / "elsewhere" / "assets").iterdir()] == ["words.txt"]


def test_a_live_function_as_graft(tmp_path):
    offset = tf.Variable([1.0, 2.0, 3.0])
    function = tf.function(lambda image: image - offset, input_signature=[tf.TensorSpec([None, 3], name="image")])
    net = model()
    graph = load(net)
    add_preprocessing(graph, load(function))
    np.testing.assert_allclose(served(graph, tmp_path, {"image": X})["scores"], net(X - offset.numpy())["scores"], rtol=1e-5)


def test_what_cannot_be_joined_changes_nothing(tmp_path):
    graph = load(model())
    before = to_text(graph), graph.package
    with pytest.raises(ArgumentError, match="there is no input 'picture'"):
        add_preprocessing(graph, load(normalization("picture")))
    two = keras.Input((3,), name="image")
    ambiguous = keras.Model(two, {"a": keras.layers.Dense(3)(two), "b": keras.layers.Dense(3)(two)})
    with pytest.raises(ArgumentError, match="do not belong together: image, a, b"):
        add_preprocessing(graph, load(ambiguous))
    graft = load(normalization())
    [data] = (graft.package.folder / "variables").glob("*data*")
    data.unlink()
    with pytest.raises(FileFormatError, match="checkpoint lacks"):
        add_preprocessing(graph, graft)
    with pytest.raises(UnsupportedError, match="'w' is a reference variable"):
        add_preprocessing(load(tf1(tmp_path / "tf1", 1, use_resource=False)), load(normalization("x")))
    live = load(tf.function(lambda image: {"y": image + 1.0}).get_concrete_function(tf.TensorSpec([None, 3], tf.float32, name="image")))
    with pytest.raises(UnsupportedError, match="a live function") as caught:
        add_preprocessing(live, load(normalization()))
    assert "write it to a folder" in caught.value.remedy
    assert (to_text(graph), graph.package) == before


def test_a_table_of_a_plain_graph_is_refused_by_a_model_with_objects(tmp_path):
    """Only a session fills it; `tf.saved_model.load` would find it empty."""
    with tf.Graph().as_default() as graft:
        words = v1.placeholder(tf.string, [None, 3], name="image")
        initializer = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0])
        tf.identity(tf.lookup.StaticHashTable(initializer, -1.0, name="words").lookup(words), name="image_preprocessed")
    model().export(tmp_path / "model", verbose=False)
    graph = load(tmp_path / "model")
    before = to_text(graph)
    with pytest.raises(UnsupportedError, match=r"'words' is a table of TF1, which a TF2 SavedModel cannot hold(.|\n)*tf\.Module"):
        add_preprocessing(graph, load(graft))
    assert to_text(graph) == before
