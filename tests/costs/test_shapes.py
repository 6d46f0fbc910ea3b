"""`infer_shapes`: free dimensions named, expressions found, unknown dimensions blamed on who makes them."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import graphwright as gw
from graphwright.analyze.dimension_fit import Bindings, fit_dimension

ONE = Bindings(("n",), {"n": (64, 75, 97)}, {"n": 130})
TWO = Bindings(("a", "b"), {"a": (3, 5, 8), "b": (64, 75, 97)}, {"a": 7, "b": 130})


def fit(function, bindings: Bindings):
    return fit_dimension([function(**binding) for binding in bindings.all()], bindings)


@given(st.integers(0, 50), st.integers(-60, 60), st.integers(2, 32))
def test_expressions_of_one_dimension(slope, constant, divisor) -> None:
    found = fit(lambda n: slope * n + constant + 100, ONE)
    assert found == constant + 100 if not slope else eval(str(found), {"n": 10}) == slope * 10 + constant + 100
    rounded = str(fit(lambda n: (n + constant // 3) // divisor, ONE))
    names = {"floor": lambda x: x // 1, "ceil": lambda x: -(-x // 1)}
    assert all(eval(rounded, names | {"n": n}) == (n + constant // 3) // divisor for n in (64, 75, 97, 130))


@pytest.mark.parametrize(
    ("function", "expression"),
    [
        (lambda a, b: 3 * a * b, "3*a*b"),
        (lambda a, b: a * b * b, "a*b^2"),
        (lambda a, b: a + 1 - b + 200, "a + 201 - b"),
        (lambda a, b: 32 * a * -(-b // 2), "32*a*ceil(b/2)"),
        (lambda a, b: a * (b - 2), "a*(b - 2)"),
        (lambda a, b: a**2 + b * a, "f(a, b)"),
    ],
)
def test_expressions_of_two_dimensions(function, expression) -> None:
    assert fit(function, TWO) == expression
    assert fit_dimension([3, None, 4, 5], ONE) is None


def convolutions():
    @tf.function
    def step(image, label):
        x = tf.nn.conv2d(image, tf.zeros([3, 3, 3, 8]), strides=2, padding="SAME")
        x = tf.nn.conv2d(x, tf.zeros([3, 3, 8, 4]), strides=1, padding="VALID")
        flat = tf.reshape(x, [-1, 4])
        return tf.concat([flat, flat], 0), tf.one_hot(label, 10), tf.shape(image)

    return step


class TestSteps:
    def test_batch_and_image(self) -> None:
        feeds = {"image": (None, None, 32, 3), "label": tf.TensorSpec((None,), tf.int32)}
        report = gw.infer_shapes(convolutions(), feeds)
        assert report.free == {"batch": ("image[0]", "label[0]"), "image[1]": ("image[1]",)}
        assert str(report["Conv2D"]) == "[batch, ceil(image[1]/2), 16, 8]"
        assert str(report["Conv2D_1"]) == "[batch, floor((image[1] - 3)/2), 14, 4]"
        assert report.outputs[1].dims == ("batch", 10)
        assert str(report.outputs[0]) == "[28*batch*floor((image[1] - 3)/2), 4]"
        assert not report.causes
        assert report.counts["unknown"] == 0

    def test_all_static(self) -> None:
        report = gw.infer_shapes(convolutions(), {"image": (2, 32, 32, 3), "label": tf.TensorSpec((2,), tf.int32)})
        assert report.free == {}
        assert report["Conv2D"].dims == (2, 16, 16, 8)
        assert report.counts == {"static": len(report.values), "dynamic": 0, "unknown": 0}
        assert "no dimension of the inputs is free" in report.how["shapes"]

    def test_data_dependent_operations_are_named(self) -> None:
        @tf.function
        def step(x, boxes):
            found = tf.where(x > 0)
            kept = tf.image.non_max_suppression(boxes, boxes[:, 0], 5)
            unique, _ = tf.unique(tf.reshape(x, [-1]))
            drawn = tf.zeros(tf.shape(found)[0])
            return found + 1, tf.gather(boxes, kept), unique, drawn, tf.numpy_function(lambda a: a, [x], tf.float32)

        report = gw.infer_shapes(step, {"x": (None, 4), "boxes": (20, 4)})
        assert {cause.op_type for cause in report.causes} == {"Where", "NonMaxSuppressionV3", "Unique", "PyFunc"}
        by_type = {cause.op_type: cause for cause in report.causes}
        assert "true" in by_type["Where"].reason
        assert "ensure_shape" in by_type["PyFunc"].reason
        assert report.outputs[3].name in by_type["Where"].values
        assert [str(v) for v in report.outputs[:3]] == ["[?, 2]", "[?, 4]", "[?]"]

    def test_keras_and_its_file(self, tmp_path: Path) -> None:
        model = keras.Sequential([keras.Input((8, 8, 3), name="image"), keras.layers.Conv2D(4, 3), keras.layers.Flatten()])
        model.compile("sgd", "mse")
        report = gw.infer_shapes(model, mode="infer")
        assert report.free == {"batch": ("image[0]",)}
        assert str(report.outputs[0]) == "[batch, 144]"
        model.save(tmp_path / "model.keras")
        assert str(gw.infer_shapes(tmp_path / "model.keras", mode="infer").outputs[0]) == "[batch, 144]"
        assert gw.infer_shapes(model).counts["unknown"] == 0

    def test_graphs(self) -> None:
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float32, [None, 5], name="x")
            y = tf.matmul(x, tf.ones([5, 2]), name="y")
            tf.compat.v1.placeholder(tf.float32, name="not_needed")
        for target in (graph, graph.as_graph_def(), gw.load(graph)):
            report = gw.infer_shapes(target, outputs="y")
            assert str(report["y"]) == "[batch, 2]"
        assert gw.infer_shapes(graph, outputs=y, feeds={"x": (7, 5)})["y"].dims == (7, 2)

    def test_a_concrete_function_with_a_signature(self) -> None:
        concrete = tf.function(lambda q, k: tf.matmul(q, k, transpose_b=True)).get_concrete_function(
            tf.TensorSpec([None, None, 8], name="q"), tf.TensorSpec([None, None, 8], name="k")
        )
        report = gw.infer_shapes(concrete)
        assert str(report.outputs[0]) == "[batch, q[1], k[1]]"

    def test_dimensions_that_must_agree_are_one(self) -> None:
        report = gw.infer_shapes(tf.function(lambda a, b: a + b), {"a": (None, None), "b": (None, None)})
        assert report.free["a[1]"] == ("a[1]", "b[1]")
        assert str(report.outputs[0]) == "[batch, a[1]]"

    def test_a_hard_coded_batch_says_at_which_sizes_it_failed(self) -> None:
        with pytest.raises(gw.GraphwrightError, match="batch"):
            gw.infer_shapes(tf.function(lambda x: x + tf.ones([4, 3])), {"x": (None, 3)})


class TestBadFeeds:
    @pytest.mark.parametrize(
        ("feeds", "told"),
        [
            ({"z": (None, 3)}, "no argument 'z'"),
            ({"x": 3}, "has not been traced yet"),
            ({"x": (None, -3)}, "not a shape"),
            ({"x": tf.TensorSpec(None)}, "number of dimensions"),
        ],
    )
    def test_message(self, feeds, told) -> None:
        with pytest.raises(gw.GraphwrightError, match=told):
            gw.infer_shapes(tf.function(lambda x: x * 2), feeds)

    def test_against_a_signature(self) -> None:
        step = tf.function(lambda x: x * 2, input_signature=[tf.TensorSpec([None, 3], name="x")])
        with pytest.raises(gw.ArgumentError, match="does not fit"):
            gw.infer_shapes(step, {"x": (None, 4)})
        assert gw.infer_shapes(step, {"x": (5, 3)}).outputs[0].dims == (5, 3)


def test_print_and_json() -> None:
    @tf.function
    def step(image_with_a_name_that_is_quite_long):
        return tf.where(image_with_a_name_that_is_quite_long > 0), tf.reshape(image_with_a_name_that_is_quite_long, [-1])

    report = gw.infer_shapes(step, {"image_with_a_name_that_is_quite_long": (None, 4, 4)})
    text = str(report)
    assert max(map(len, text.splitlines())) <= 80
    for wanted in ("16*batch", "Where", "depend on batch", "[?, 3]"):
        assert wanted in " ".join(text.split())
    assert "checked at batch = 7" in report.how["shapes"]
    answer = report.to_json()
    assert answer["counts"] == report.counts
    assert answer["values"][0].keys() == {"name", "op_type", "dtype", "shape", "kind"}
    with pytest.raises(gw.ArgumentError):
        report["nothing"]


def test_short_sequences_alone_are_taken_by_some_models():
    positions = tf.Variable(tf.ones((16, 4)))

    @tf.function
    def step(x):
        return x + positions[: x.shape[1]]

    report = gw.infer_shapes(step, {"x": (None, None, 4)})
    assert [str(value) for value in report.outputs] == ["[batch, x[1], 4]"]


def test_inputs_whose_names_begin_alike_have_one_length():
    @tf.function
    def step(encoder_tokens, encoder_mask, decoder_tokens, decoder_mask):
        return encoder_tokens * encoder_mask, decoder_tokens * decoder_mask

    names = ("encoder_tokens", "encoder_mask", "decoder_tokens", "decoder_mask")
    report = gw.infer_shapes(step, dict.fromkeys(names, (None, None)))
    assert [str(value) for value in report.outputs] == ["[batch, encoder_tokens[1]]", "[batch, decoder_tokens[1]]"]
