"""Renames, batch sizes, stripping, extraction, merging and replaced op types, served by TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.errors import ArgumentError
from graphwright.ir.text import to_text
from graphwright.transform.batch_size import change_batch_size
from graphwright.transform.merge_models import merge_models
from graphwright.transform.rename_interface import rename_inputs, rename_outputs
from graphwright.transform.replace_op_type import replace_op_type
from graphwright.transform.strip_training import strip_training
from tests.transform.serving import built, random, serve, traced

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1


def two_ends():
    def build():
        a = v1.placeholder(tf.float32, [None, 3], name="a")
        b = v1.placeholder(tf.float32, [None, 3], name="b")
        tf.subtract(tf.nn.relu(a, name="hidden"), b, name="difference")
        tf.unstack(a + b, num=3, axis=1, name="parts")

    return built(build, inputs={"a": "a:0", "b": "b:0"}, outputs={"d": "difference:0", "second": "parts:1"})


A, B = random(2, 3, seed=1), random(2, 3, seed=2)


class TestRename:
    def test_keys_and_nodes_follow_and_names_can_be_exchanged(self):
        graph = two_ends()
        assert rename_inputs(graph, {"a": "b", "b": "a"}) == 2
        assert rename_outputs(graph, {"d": "gap", "difference": "minus", "parts:1": "middle"}) == 3
        signature = graph.signatures["serving_default"]
        assert {key: v.name for key, v in signature.inputs.items()} == {"b": "b:0", "a": "a:0"}
        assert {key: v.name for key, v in signature.outputs.items()} == {"gap": "minus:0", "second": "middle:0"}
        results = serve(graph, {"b": A, "a": B})
        np.testing.assert_array_equal(results["gap"], np.maximum(A, 0) - B)
        np.testing.assert_array_equal(results["second"], (A + B)[:, 1])

    @pytest.mark.parametrize(
        ("names", "message"),
        [({"c": "d"}, "no input 'c'"), ({"a": "hidden"}, "exists already"), ({"a": "b"}, "would be called 'b'"), ({"a": ""}, "empty name")],
    )
    def test_what_cannot_be_leaves_the_graph_as_it_was(self, names, message):
        graph = two_ends()
        before = to_text(graph)
        with pytest.raises(ArgumentError, match=message):
            rename_inputs(graph, names)
        assert to_text(graph) == before


class TestBatchSize:
    def test_a_free_size_is_fixed(self):
        graph = two_ends()
        assert change_batch_size(graph, 2) == 2
        np.testing.assert_array_equal(serve(graph, {"a": A, "b": B})["d"], np.maximum(A, 0) - B)
        with pytest.raises(ValueError, match="Cannot feed value"):
            serve(graph, {"a": A[:1], "b": B[:1]})

    def test_bad_sizes_and_inputs(self):
        for arguments, message in (((0,), "batch size 0"), ((2, ["nobody"]), "no input 'nobody'")):
            graph = two_ends()
            before = to_text(graph)
            with pytest.raises(ArgumentError, match=message):
                change_batch_size(graph, arguments[0], inputs=arguments[1] if len(arguments) > 1 else None)
            assert to_text(graph) == before


class TestStripTraining:
    def test_a_training_graph_serves_without_its_training(self):
        w = random(3, 2, seed=3)

        def build():
            x = v1.placeholder(tf.float32, [None, 3], name="x")
            keep = v1.placeholder_with_default(0.5, [], name="keep_prob")
            y = tf.linalg.matmul(tf.stop_gradient(x), tf.constant(w))
            y = v1.nn.dropout(y, rate=1.0 - keep)
            y = tf.identity(y, name="y")
            v1.summary.scalar("mean", tf.reduce_mean(y))
            tf.gradients(tf.reduce_sum(y * y), x)

        graph = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
        size = len(graph)
        removed = strip_training(graph, constants={})
        assert removed == size - len(graph) > 10
        graph = built(build, inputs={"x": "x:0", "keep_prob": "keep_prob:0"}, outputs={"y": "y:0"})
        strip_training(graph, constants={"keep_prob": 1.0})
        assert list(graph.signatures["serving_default"].inputs) == ["x"]
        assert not {"StopGradient", "ScalarSummary"} & {n.op_type for n in graph}
        np.testing.assert_allclose(serve(graph, {"x": A})["y"], A @ w, rtol=1e-6)

    def test_a_graph_without_outputs_needs_to_be_told(self):
        graph = two_ends()
        graph.signatures.clear()
        graph.inputs = graph.outputs = ()
        with pytest.raises(ArgumentError, match="states no outputs"):
            strip_training(graph)
        assert strip_training(graph, outputs=["difference"]) > 0
        assert {n.name for n in graph} == {"a", "b", "hidden", "difference"}

    def test_constants_are_checked(self):
        graph = two_ends()
        before = to_text(graph)
        for constants, message in (({"z": 1.0}, "no input 'z'"), ({"a": 1.0}, "does not fit"), ({"a": "word"}, "not a value of dtype")):
            with pytest.raises(ArgumentError, match=message):
                strip_training(graph, constants=constants)
        assert to_text(graph) == before


class TestMerge:
    @staticmethod
    def second():
        def build():
            tf.multiply(v1.placeholder(tf.float32, [None, 3], name="a"), v1.placeholder(tf.float32, [], name="factor"), name="scaled")

        return built(build, inputs={"a": "a:0", "factor": "factor:0"}, outputs={"scaled": "scaled:0"})

    def test_what_does_not_fit(self):
        with pytest.raises(ArgumentError, match="no input 'nobody'"):
            merge_models(two_ends(), self.second(), connect={"nobody": "d"})
        with pytest.raises(ArgumentError, match="the shapes differ"):
            merge_models(two_ends(), self.second(), connect={"factor": "d"})


class TestReplaceOpType:
    def test_everywhere_in_functions_too(self):
        def function(x):
            return tf.nn.relu(x) + tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu(x), lambda: -x)

        graph = traced(function, tf.TensorSpec([None], tf.float32, "x"))
        assert replace_op_type(graph, "Relu", "Relu6") == 2
        x = np.array([10.0, -3.0, 2.0], np.float32)
        np.testing.assert_array_equal(serve(graph, {"x": x})["output_0"], 2 * np.clip(x, 0, 6))

    def test_attributes_and_a_condition(self):
        graph = two_ends()
        from graphwright.ir.attributes import Attribute

        attrs: dict[str, Attribute] = {"alpha": 0.5}
        assert replace_op_type(graph, "Relu", "LeakyRelu", attrs=attrs, where=lambda n: n.name == "hidden") == 1
        np.testing.assert_array_equal(serve(graph, {"a": A, "b": B})["d"], np.where(A > 0, A, A / 2) - B)
        assert replace_op_type(graph, "LeakyRelu", "Relu", drop_attrs=["alpha"], where=lambda n: n.name == "nobody") == 0
