"""Whole models of keras.applications: folded and original agree when TensorFlow serves both."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras
import tensorflow as tf

import graphwright as gw
from graphwright.source.variable_values import variable_values
from tests.transform.serving import serve

pytestmark = pytest.mark.tensorflow


def randomize(model, seed):
    """Weights that keep the size of activations, and batch norms that do something to each channel."""
    draw = np.random.default_rng(seed)
    for weight in model.weights:
        match weight.path.rsplit("/", 1)[-1]:
            case "gamma" | "moving_variance":
                weight.assign(draw.uniform(0.5, 1.5, weight.shape))
            case "beta" | "moving_mean" | "bias":
                weight.assign(draw.normal(scale=0.3, size=weight.shape))
            case _:
                fan_in = np.prod(weight.shape[:2]) if "depthwise" in weight.path else np.prod(weight.shape[:-1])
                weight.assign(draw.normal(scale=np.sqrt(1.5 / fan_in), size=weight.shape))


@pytest.mark.parametrize(
    ("name", "options", "folded", "left"),
    [
        ("MobileNetV2", {"alpha": 0.35}, 52, 0),
        pytest.param("ResNet50V2", {}, 32, 17, marks=pytest.mark.slow),
        pytest.param("DenseNet121", {}, 59, 62, marks=[pytest.mark.slow, pytest.mark.thorough]),
    ],
)
def test_folded_model_answers_the_same(name, options, folded, left):
    """Before the activation of a ResNetV2 or in a dense block the batch norm reads a sum or all that came before: it must stay."""
    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None, **options)
    randomize(model, 3)
    concrete = tf.function(lambda x: model(x, training=False)).get_concrete_function(tf.TensorSpec([None, 64, 64, 3], tf.float32, name="x"))
    graph = gw.load(concrete)
    gw.freeze_variables(graph, variable_values(graph))
    feeds = {
        next(iter(graph.signatures["serving_default"].inputs)): np.random.default_rng(5).normal(size=(2, 64, 64, 3)).astype(np.float32)
    }
    [before] = serve(graph, feeds).values()
    report = gw.fold_batch_norms(graph)
    [after] = serve(graph, feeds).values()
    assert np.abs(after - before).max() <= 1e-5 * np.abs(before).max()
    assert np.abs(before[0] - before[1]).max() > 0.01 * np.abs(before).max()
    assert (len(report.folded), len(report.left)) == (folded, left)
    assert all(norm.reason for norm in report.left)
