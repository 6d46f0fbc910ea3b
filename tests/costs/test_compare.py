import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.costs.compare import match_layers
from graphwright.errors import ArgumentError, GraphwrightError, UnknownShapeError
from graphwright.report.comparison import FIGURES, LayerFigures

pytestmark = pytest.mark.tensorflow


def classifier(*, norm=False, extra=0, explicit=True):
    """Three convolutions, each with a batch norm behind it or not; some more at the end. Names are given, or left to Keras."""
    named = (lambda name: {"name": name}) if explicit else lambda name: {}
    x = image = keras.Input((16, 16, 3), name="image")
    for k in range(3):
        x = keras.layers.Conv2D(4, 3, padding="same", **named(f"conv{k}"))(x)
        if norm:
            x = keras.layers.BatchNormalization(**named(f"norm{k}"))(x)
        x = keras.layers.ReLU(**named(f"relu{k}"))(x)
    for k in range(extra):
        x = keras.layers.Conv2D(4, 3, padding="same", **named(f"extra{k}"))(x)
    scores = keras.layers.Dense(10, **named("scores"))(keras.layers.GlobalAveragePooling2D(**named("pool"))(x))
    model = keras.Model(image, scores, **named("classifier"))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def layer(name, parameters=0, flops=0.0):
    return LayerFigures(name, 1, parameters, flops, 0.0, 0.0, 0, 0)


class TestStepCosts:
    def test_the_figures_are_those_of_the_other_words(self):
        model = classifier(norm=True)
        costs = gw.step_costs(model, batch=8)
        report = gw.inspect(model, batch=8)
        assert costs.figures.keys() == FIGURES.keys()
        assert costs.figures["peak_bytes"] == report.peak_bytes
        assert costs.figures["resident_bytes"] == report.resident_bytes
        assert costs.figures["nodes"] == report.node_count
        assert costs.figures["parameters"] == model.count_params() == gw.count_parameters(model, batch=8).total
        assert costs.figures["trainable_parameters"] == sum(int(np.prod(w.shape)) for w in model.trainable_weights)
        counted = gw.count_flops(model, batch=8)
        assert costs.figures["total_flops"] == pytest.approx(counted.total, rel=1e-3)
        assert costs.figures["forward_flops"] == pytest.approx(counted.forward, rel=1e-3)

    def test_a_training_graph_without_outputs_says_what_is_missing(self, tmp_path):
        graph = tf.Graph()
        with graph.as_default():
            x = tf.compat.v1.placeholder(tf.float32, (8, 4), name="x")
            weight = tf.compat.v1.get_variable("w", (4, 3), use_resource=False)
            loss = tf.reduce_mean(tf.square(x @ weight), name="loss")
            tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
        path = tf.io.write_graph(graph, str(tmp_path), "graph.pb", as_text=False)
        for count in (gw.step_costs, gw.count_flops, gw.inspect):
            with pytest.raises(ArgumentError, match=r"contains a training op, and its fetches") as raised:
                count(path)
            assert "outputs=[...]" in raised.value.remedy
            assert "train" in raised.value.remedy
        trained, forward = (gw.step_costs(path, outputs=[name]).figures["total_flops"] for name in ("train", "loss"))
        assert trained > forward > 0

    def test_layers_add_up_to_the_whole(self):
        costs = gw.step_costs(classifier(), batch=8)
        assert sum(row.total_flops for row in costs.layers) == pytest.approx(costs.figures["total_flops"])
        assert sum(row.parameters for row in costs.layers) == costs.figures["trainable_parameters"]
        assert len({row.layer for row in costs.layers}) == len(costs.layers)

    def test_two_files_are_told_apart_by_their_names(self, tmp_path):
        double = tf.function(lambda x: x + x).get_concrete_function(tf.TensorSpec((8, 64), name="x"))
        for name in ("before", "after"):
            tf.io.write_graph(double.graph, str(tmp_path), f"{name}.pb", as_text=False)
        text = gw.compare(tmp_path / "before.pb", tmp_path / "after.pb", outputs=["Identity"]).text("all")
        assert all(name in "".join(text.split()) for name in ("before.pb:", "after.pb:"))

    @pytest.mark.parametrize("handles", [False, True], ids=["references", "handles"])
    def test_variables_that_a_graph_makes_itself(self, handles):
        """They are parameters, and they stay: a graph of TF1 costs what the same step costs as a function."""
        v1 = tf.compat.v1
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [None, 784], name="x")
            weight = v1.get_variable("w", [784, 10], use_resource=handles)
            loss = tf.reduce_mean(tf.matmul(x, weight) ** 2, name="loss")
            v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, name="train")
        figures = gw.step_costs(graph, {"x": (8, 784)}, outputs=["train", "loss"], order="traced").figures
        assert (figures["trainable_parameters"], figures["parameters"], figures["optimizer_state"]) == (7840, 7840, 7840)
        fed, weights = 8 * 784 * 4, 2 * 7840 * 4
        assert figures["resident_bytes"] == fed + weights
        assert figures["peak_bytes"] == fed + weights + 7840 * 4, "the gradient"

    def test_an_open_batch_names_the_feed(self):
        function = tf.function(lambda x: tf.nn.relu(x)).get_concrete_function(tf.TensorSpec((None, 64), name="x"))
        with pytest.raises(UnknownShapeError, match="x"):
            gw.step_costs(function)
        with pytest.raises(UnknownShapeError, match="x"):
            gw.step_costs(function.graph, outputs=["Relu"])


class TestCompare:
    def test_a_model_with_itself(self):
        model = classifier()
        found = gw.compare(model, model, batch=8)
        assert all(found.difference(name) == 0 and found.ratio(name) == 1 for name in FIGURES)
        assert {pair.change for pair in found.layers} == {"same"}
        assert "cost the same" in found.text("all")

    def test_batch_norm_adds_layers_and_makes_convolutions_keep_their_results(self):
        found = gw.compare(classifier(), classifier(norm=True), batch=8)
        added = [pair.name for pair in found.with_change("added")]
        assert all(any(f"norm{k}" in name for name in added) for k in range(3))
        assert not any("conv" in name for name in added)
        assert not found.with_change("removed")
        assert found.difference("parameters") == 3 * 4 * 4
        assert found.difference("trainable_parameters") == 3 * 2 * 4
        assert found.difference("peak_bytes") > 0
        assert found.difference("total_flops") > 0
        convolutions = [pair for pair in found.layers if "conv" in pair.name]
        assert len(convolutions) == 3
        assert sum(pair.difference("residual_bytes") for pair in convolutions) > 0

    def test_names_that_keras_made_up(self):
        found = gw.compare(classifier(explicit=False), classifier(explicit=False, extra=1), batch=8)
        assert len(found.with_change("added")) == 1
        assert not found.with_change("removed")
        [extra] = found.with_change("added")
        assert extra.difference("parameters") == 4 * 4 * 9 + 4

    def test_another_batch_size_and_another_mode(self):
        model = classifier()
        found = gw.compare(gw.step_costs(model, batch=4), gw.step_costs(model, batch=8))
        assert found.ratio("parameters") == 1
        assert 1 < found.ratio("peak_bytes") < 3
        assert found.ratio("total_flops") == pytest.approx(2, rel=0.01)
        inference = gw.compare(gw.step_costs(model, batch=4), gw.step_costs(model, batch=4, mode="infer"))
        assert inference.b.figures["backward_flops"] == 0
        assert inference.ratio("optimizer_flops") == 0

    def test_as_json_and_as_text(self):
        import json

        found = gw.compare(classifier(), classifier(norm=True), batch=8)
        plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert plain["figures"]["peak_bytes"]["difference"] == found.difference("peak_bytes")
        assert {row["change"] for row in plain["layers"]} >= {"same", "added", "changed"}
        text = found.text("all")
        assert max(map(len, text.splitlines())) <= 80
        assert "norm0" in text

    def test_what_cannot_be_compared(self):
        with pytest.raises(GraphwrightError):
            gw.compare(3, 4)
        step = tf.function(lambda x: x + 1.0)
        with pytest.raises(ArgumentError, match="no argument 'z'"):
            gw.compare(step, step, feeds={"z": (3,)})


class TestMatchLayers:
    def changes(self, a, b):
        return [(pair.name, pair.change) for pair in match_layers([layer(name) for name in a], [layer(name) for name in b])]

    def test_by_name(self):
        assert self.changes(["a", "b", "c"], ["a", "c", "d"]) == [("a", "same"), ("b", "removed"), ("c", "same"), ("d", "added")]

    def test_without_the_scope_of_the_model(self):
        assert self.changes(["m/a", "m/b", ""], ["n/a", "n/b", ""]) == [("n/a", "same"), ("n/b", "same"), ("", "same")]

    def test_numbered_names_are_paired_where_they_have_the_same_parameters(self):
        a = [layer("conv", 3), layer("conv_1", 5)]
        b = [layer("conv_2", 3), layer("conv_3", 4), layer("conv_4", 5)]
        assert [(pair.name, pair.change) for pair in match_layers(a, b)] == [("conv_2", "same"), ("conv_3", "added"), ("conv_4", "same")]

    def test_every_layer_is_in_one_pair(self):
        random = np.random.default_rng(0)
        names = [f"{kind}_{k}" for kind in ("conv", "norm", "m/dense") for k in range(9)]
        for _ in range(50):
            a = [layer(str(n), int(random.integers(2))) for n in random.permutation(names)[: random.integers(20)]]
            b = [layer(str(n), int(random.integers(2))) for n in random.permutation(names)[: random.integers(20)]]
            pairs = match_layers(a, b)
            assert sorted(p.a.layer for p in pairs if p.a) == sorted(row.layer for row in a)
            assert [p.b.layer for p in pairs if p.b] == [row.layer for row in b]
