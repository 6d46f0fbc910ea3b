"""Layers have the names that `model.summary()` shows, and TF1 scopes those that were written."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

import graphwright as gw  # noqa: E402
from graphwright.analyze.layers import Layers, find_layers, layers_by_names  # noqa: E402
from graphwright.source.load import load  # noqa: E402


def functional() -> Any:
    """Layers whose names end in numbers, one that is called twice, a model in the model."""
    keras.utils.clear_session()
    x = keras.Input((8,), name="x")
    shared = keras.layers.Dense(8)
    h = shared(shared(x))
    h = keras.layers.Dropout(0.5)(keras.layers.Dropout(0.5)(keras.layers.Dense(8)(h)))
    inner = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Reshape((4,))])
    return keras.Model(x, inner(h))


@keras.saving.register_keras_serializable("test_layers")
class Residual(keras.layers.Layer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = keras.layers.Dense(8)

    def call(self, x: Any) -> Any:
        return x + self.inner(x)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [Residual(), Residual()]
        self.head = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def names_of(layer: Any, prefix: str = "") -> set[str]:
    """Of a layer, all that lie in it, with the names of those around them but not of the model."""
    inner = [
        found for found in layer._flatten_layers(include_self=False, recursive=False) if not isinstance(found, keras.layers.InputLayer)
    ]
    return {name for found in inner for name in (prefix + found.name, *names_of(found, f"{prefix}{found.name}/"))}


@pytest.mark.parametrize("make", [functional, Subclassed])
def test_layers_of_a_training_step_are_those_of_the_model(make: Any) -> None:
    model = make()
    model.compile("adam", "mse")
    x = tf.zeros((4, 8))
    y = tf.zeros(model(x).shape)
    found = {row.layer for row in gw.inspect(model, inputs=(x, y)).layers}
    known = names_of(model)
    others = {"", model.optimizer.name, *(name for name in found if name.startswith("compile_loss"))}
    assert found <= known | others
    assert {name for name in known if name != "sequential"} <= found | {
        name for name in known if any(other.startswith(f"{name}/") for other in known)
    }


class Tagger(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.gru = keras.layers.GRU(64, return_sequences=True)
        self.head = keras.layers.Dense(5)

    def call(self, x: Any) -> Any:
        return self.head(self.gru(x))


CALL = Tagger.call.__code__.co_firstlineno + 1


@pytest.mark.parametrize("plans", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_runs_at_the_peak_is_told_by_the_layer_of_a_subclassed_model(plans: bool) -> None:
    keras.utils.clear_session()
    Tagger()
    model = Tagger()
    model.compile("sgd", "mse")
    data = tf.zeros((16, 64, 32)), tf.zeros((16, 64, 5))
    found: Any = gw.inspect(model, inputs=data)
    assert found.lower_bound_reason.startswith("gru_1/while_grad ")
    if not plans:
        table = found.with_table(columns=("class", "source")).text("all").partition("Layers")[2]
        assert table.split()[:5] == ["layer", "class", "source", "gru_1", "GRU"]
        assert f"layers.py:{CALL} call" in table
    if plans:
        found = gw.optimize_memory(model, 0.6, inputs=data, cache_dir=None).memory_plan()
        assert "loop gru_1/while in segments" in " ".join(found.text("all").split())
    text = " ".join(found.text("all").split())
    timeline = found.timeline_after if plans else found.timeline
    assert timeline.words(timeline.peak_step).startswith(("gru_1/", "dense_1/"))
    assert f"of {len(timeline.labels):,}, {timeline.words(timeline.peak_step)}" in text
    assert "_1_1" not in text
    assert "_1_1" not in gw.predict_peak(model, inputs=data).peak_op


def test_layers_of_a_saved_model_too(tmp_path: Any) -> None:
    model = functional()
    model.export(tmp_path / "saved", verbose=False)
    graph = load(tmp_path / "saved")
    body = max((function.body for function in graph.functions.values()), key=lambda body: sum("MatMul" in node.op_type for node in body))
    products = [find_layers(body).of(node.name) for node in body.nodes if node.op_type == "MatMul"]
    assert products == ["dense", "dense", "dense_1", "sequential/dense_2"]


KERAS_2 = [
    "model_1/dense/MatMul",
    "model_1/dense/MatMul/ReadVariableOp",
    "model_1/dense_1/MatMul",
    "gradient_tape/model_1/dense_1/MatMul/MatMul",
    "StatefulPartitionedCall/model_1/norm/moments/mean",
    "model_1/tf.nn.relu/Relu",
]
UNITS = "unit_1/conv_1/Conv2D unit_1/conv_2/Conv2D unit_1/conv_2/Conv2D/ReadVariableOp gradients/unit_1/conv_1/Conv2D_grad/Conv2D"
OF_UNITS = "unit_1/conv_1 unit_1/conv_2 unit_1/conv_2 unit_1/conv_1"
NUMBERED = "dense/MatMul dense_1/MatMul net/conv/Conv2D net/conv_1/Conv2D"
CASES = {
    "weights that are constants": ("resnet_1/conv2d_1/Conv2D resnet_1/conv2d_1_2/Conv2D resnet_1/pool_1/Pool", "", "conv2d conv2d_1 pool"),
    "scopes of TF1": (UNITS, "unit_1/conv_1/weights unit_1/conv_2/weights", OF_UNITS),
    "scopes of TF1 without variables": (UNITS, "", OF_UNITS),
    "Keras 2": (" ".join(KERAS_2), "dense/kernel dense_1/kernel norm/gamma", "dense dense dense_1 dense_1 norm/moments tf.nn.relu"),
    "Keras 2, constants": (" ".join(KERAS_2), "", "dense dense dense_1 dense_1 norm/moments tf.nn.relu"),
    "Keras 2, a layer called twice": (" ".join(KERAS_2), "dense/kernel norm/gamma", "dense dense dense dense norm/moments tf.nn.relu"),
    "Keras 2, frozen": ("model_1/dense/MatMul model_1/relu/Relu dense/MatMul/folded", "", "dense relu dense/MatMul"),
    "not Keras 2": (
        "model_1/dense/MatMul model_1/relu/Relu dense/MatMul/folded loss/mul",
        "",
        "model_1/dense model_1/relu dense/MatMul loss",
    ),
    "with and without a number": (NUMBERED, "", "dense dense_1 net/conv net/conv_1"),
    "with and without a number, of TF1": (
        NUMBERED,
        "dense/kernel dense_1/kernel net/conv/weights net/conv_1/weights",
        "dense dense_1 net/conv net/conv_1",
    ),
    "a layer called as an operator": (
        "sub_1/dense_1/MatMul sub_1/head_1/MatMul sub_1/head_1/sub_1/Sub",
        "sub/dense/kernel sub/head/kernel",
        "dense head head",
    ),
    "an operator in a layer": ("mul_1/Mul dense/sub_1/Sub", "dense/kernel", " dense"),
    "one numbered model": (
        "net_1/conv_1/Conv2D net_1/block_2_conv_1/Conv2D net_1/head_1/MatMul adam/update/Sub loss/scaled/Mul",
        "",
        "conv block_2_conv head adam/update loss/scaled",
    ),
    "numbers by chance": (
        "net_1/conv_1/Conv2D net_1/conv_2/Conv2D net_1/head_1/MatMul loss/scaled/Mul",
        "",
        "net_1/conv_1 net_1/conv_2 net_1/head_1 loss/scaled",
    ),
}


@pytest.mark.parametrize(("names", "variables", "expected"), CASES.values(), ids=CASES)
def test_layers_by_the_names_of_nodes_and_variables(names: str, variables: str, expected: str) -> None:
    layers = layers_by_names(names.split(), variables.split())
    assert [layers.of(name) for name in names.split()] == expected.split(" ")


def test_a_loop_is_named_by_its_layer() -> None:
    layers = layers_by_names(["net_1/lstm_1/while", "net_1/lstm_1_2/while"], ["lstm/kernel", "lstm_1/kernel"])
    assert [layers.words(f"net_1/{scope}/while") for scope in ("lstm_1", "lstm_1_2")] == ["lstm/while", "lstm_1/while"]
    assert Layers().words("while_1") == "while_1"
