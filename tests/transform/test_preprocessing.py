"""Grafted models, served by TensorFlow under the names that their callers know."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.errors import ArgumentError
from graphwright.ir.text import to_text
from graphwright.transform.preprocessing import add_postprocessing, add_preprocessing
from tests.transform.serving import built, random, serve, traced

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1

WEIGHTS = random(12, 3, seed=5)
LABELS = ["cat", "dog", "eel"]


def classifier():
    """Pixels [?,2,2,3] in, scores [?,3] out."""

    def build():
        image = v1.placeholder(tf.float32, [None, 2, 2, 3], name="image")
        tf.nn.softmax(tf.linalg.matmul(tf.reshape(image, [-1, 12]), WEIGHTS), name="scores")

    return built(build, inputs={"image": "image:0"}, outputs={"scores": "scores:0"})


def from_jpeg():
    def build():
        data = v1.placeholder(tf.string, [], name="image")
        pixels = tf.image.decode_jpeg(data, channels=3)
        resized = v1.image.resize_bilinear(tf.cast(pixels[None], tf.float32), [2, 2])
        tf.identity(resized / 255.0, name="image_preprocessed")

    return built(build)


def to_label():
    def build():
        scores = v1.placeholder(tf.float32, [None, 3], name="scores")
        tf.gather(tf.constant(LABELS), tf.argmax(scores, axis=-1), name="scores_postprocessed")

    return built(build)


def jpeg() -> bytes:
    return tf.io.encode_jpeg(np.random.default_rng(3).integers(0, 255, (16, 16, 3)).astype(np.uint8)).numpy()


def test_jpeg_bytes_in_label_strings_out_under_the_same_names():
    pixels = tf.image.resize(tf.image.decode_jpeg(jpeg()), [2, 2], antialias=False)
    pixels = v1.image.resize_bilinear(tf.cast(tf.image.decode_jpeg(jpeg()), tf.float32)[None], [2, 2]) / 255.0
    scores = serve(classifier(), {"image": pixels.numpy()})["scores"]
    model = classifier()
    assert set(add_preprocessing(model, from_jpeg())) == {"image"}
    assert set(add_postprocessing(model, to_label())) == {"scores"}
    signature = model.signatures["serving_default"]
    assert (signature.inputs["image"].name, str(signature.inputs["image"].dtype), signature.inputs["image"].shape) == (
        "image:0",
        "string",
        (),
    )
    assert (signature.outputs["scores"].name, str(signature.outputs["scores"].dtype)) == ("scores:0", "string")
    assert model.inputs == (signature.inputs["image"],)
    assert model.outputs == (signature.outputs["scores"],)
    assert serve(model, {"image": jpeg()})["scores"].tolist() == [LABELS[int(scores.argmax())].encode()]


def test_a_function_call_between_the_ends_as_tf2_exports_it():
    def function(x, y):
        return x * 2.0 + y, x - y

    specs = tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None, 2], tf.float32, "y")
    model = traced(function, *specs)

    def before():
        tf.cast(v1.placeholder(tf.int32, [None, 2], name="x"), tf.float32, name="x_preprocessed")

    def after():
        v1.placeholder(tf.float32, [None, 2], name="output_1")
        tf.as_string(tf.reduce_sum(tf.compat.v1.get_default_graph().get_tensor_by_name("output_1:0")), name="output_1_postprocessed")

    add_preprocessing(model, built(before))
    add_postprocessing(model, built(after))
    x, y = np.array([[1, 2]], np.int32), np.array([[3.0, 4.0]], np.float32)
    results = serve(model, {"x": x, "y": y})
    np.testing.assert_array_equal(results["output_0"], [[5.0, 8.0]])
    assert float(results["output_1"]) == -4.0


def test_several_inputs_one_of_which_is_made_of_both():
    def build():
        a = v1.placeholder(tf.float32, [2], name="a")
        b = v1.placeholder(tf.float32, [2], name="b")
        tf.subtract(a, b, name="y")

    def mixed():
        a = v1.placeholder(tf.float64, [2], name="a")
        b = v1.placeholder(tf.int32, [2], name="b")
        tf.cast(a, tf.float32, name="a_preprocessed")
        tf.cast(a, tf.float32, name="sum/a")
        tf.add(tf.cast(a, tf.float32), tf.cast(b, tf.float32), name="b_preprocessed")

    model = built(build, inputs={"a": "a:0", "b": "b:0"}, outputs={"y": "y:0"})
    add_preprocessing(model, built(mixed))
    result = serve(model, {"a": np.array([5.0, 7.0]), "b": np.array([2, 3], np.int32)})
    np.testing.assert_array_equal(result["y"], [-2.0, -3.0])


def graft(*, placeholder, node, dtype=tf.float32, shape=(None, 2, 2, 3), extra=None):
    def build():
        x = v1.placeholder(dtype, shape, name=placeholder)
        if node:
            tf.identity(x, name=node)
        if extra:
            extra(x)

    return built(build)


BEFORE = {"placeholder": "image", "node": "image_preprocessed"}
AFTER = {"placeholder": "scores", "node": "scores_postprocessed"}


@pytest.mark.parametrize(
    ("add", "options", "message"),
    [
        (add_preprocessing, {"placeholder": "picture", "node": "picture_preprocessed"}, "there is no input 'picture'"),
        (add_preprocessing, {"node": ""}, "no node 'image_preprocessed'"),
        (add_preprocessing, {"dtype": tf.float64}, "dtypes differ"),
        (add_preprocessing, {"shape": [None, 4]}, "shapes differ"),
        (add_preprocessing, {"extra": lambda x: tf.identity(x, name="other_preprocessed")}, "no placeholder 'other'"),
        (
            add_preprocessing,
            {"node": "", "extra": lambda x: tf.raw_ops.Unpack(value=x, num=2, axis=1, name="image_preprocessed")},
            "no node 'image_preprocessed' with one output",
        ),
        (add_postprocessing, {"placeholder": "score", "node": "score_postprocessed"}, "there is no output 'score'"),
        (add_postprocessing, {"node": ""}, "no node 'scores_postprocessed'"),
        (add_postprocessing, {"dtype": tf.int32, "shape": None}, "dtypes differ"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(add, options, message):
    model = classifier()
    before = to_text(model)
    with pytest.raises(ArgumentError, match=message):
        add(model, graft(**{**(BEFORE if add is add_preprocessing else AFTER), **options}))
    assert to_text(model) == before


def test_a_variable_in_the_graft_is_refused():
    def build():
        x = v1.placeholder(tf.float32, [None, 2, 2, 3], name="image")
        tf.add(x, v1.get_variable("offset", [], use_resource=True), name="image_preprocessed")

    with pytest.raises(ArgumentError, match="variable 'offset'"):
        add_preprocessing(classifier(), built(build))
