"""FLOPs that can be trusted: the cases that other tools count wrong, and reference models against closed formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
import numpy as np  # noqa: E402

import graphwright as gw  # noqa: E402
from bench import zoo  # noqa: E402
from graphwright.errors import ArgumentError, UnknownShapeError  # noqa: E402

pytestmark = pytest.mark.tensorflow

v1 = tf.compat.v1
SQUARE = (256, 256)
PRODUCT = 2 * 256**3


def feeds(*names: str) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(names, SQUARE)


@pytest.fixture(params=[False, True], ids=["control flow v1", "control flow v2"])
def control_flow(request):
    """Both kinds of control flow in graphs of TF1."""
    before = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if request.param else v1.disable_control_flow_v2)()
    yield request.param
    (v1.enable_control_flow_v2 if before else v1.disable_control_flow_v2)()


def ten_products(a: Any, b: Any) -> Any:
    return v1.while_loop(lambda i, x: i < 10, lambda i, x: (i + 1, x @ b), (0, a))[1]


# What is executed


def test_a_product():
    count = gw.count_flops(tf.function(lambda a, b: a @ b), feeds("a", "b"))
    assert count.total == count.forward == 33_554_432 == PRODUCT
    assert (count.backward, count.optimizer, count.unknown) == (0, 0, {})
    assert count.bytes_moved == 3 * 256 * 256 * 4
    assert count.per_op_type["MatMul"].arithmetic_intensity == PRODUCT / (3 * 256 * 256 * 4)


def test_a_loop_counts_as_often_as_it_runs(control_flow):
    with tf.Graph().as_default() as graph:
        a, b = (v1.placeholder(tf.float32, SQUARE, name=name) for name in "ab")
        tf.identity(ten_products(a, b), name="out")
    count = gw.count_flops(graph, outputs="out")
    assert count.total == 335_544_320
    assert [*count.loops.values()] == ["10 iterations"]


def test_a_loop_in_a_called_function(control_flow):
    del control_flow

    @tf.function
    def inner(a, b):
        return ten_products(a, b)

    assert gw.count_flops(tf.function(lambda a, b: inner(a, b)), feeds("a", "b")).total == 335_544_320


def test_what_nothing_needs_counts_nothing():
    with tf.Graph().as_default() as graph:
        a, b = (v1.placeholder(tf.float32, SQUARE, name=name) for name in "ab")
        used = tf.matmul(a, b, name="used")
        for _ in range(9):
            tf.matmul(a, b)
    assert gw.count_flops(graph, outputs=used).total == PRODUCT
    assert gw.count_flops(graph.as_graph_def(), outputs=["used:0"]).total == PRODUCT
    assert gw.count_flops(gw.load(graph), outputs="used").total == PRODUCT


def test_loops_in_loops(control_flow):
    """The inner one runs as often as the outer counter says: 0 + 1 + 2 + 3 times."""

    def inner(i, x, b):
        return v1.while_loop(lambda j, x: j < i, lambda j, x: (j + 1, x @ b), (0, x))[1]

    with tf.Graph().as_default() as graph:
        a, b = (v1.placeholder(tf.float32, SQUARE, name=name) for name in "ab")
        tf.identity(v1.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, inner(i, x, b)), (0, a))[1], name="out")
        nested = v1.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, ten_products(x, b)), (0, a))[1]
        tf.identity(nested, name="nested")
    assert gw.count_flops(graph, outputs="nested").total == 4 * 335_544_320
    triangle = gw.count_flops(graph, outputs="out")
    if control_flow:
        assert triangle.total == 6 * PRODUCT
    else:  # frames are not followed round by round
        assert math.isnan(triangle.total)
        assert any("not known" in words for words in triangle.loops.values())


def test_a_loop_that_depends_on_data():
    @tf.function
    def until_large(a, b):
        return tf.while_loop(lambda i, x: tf.reduce_sum(x) < 1e6, lambda i, x: (i + 1, x @ b), (0, a))[1]

    count = gw.count_flops(until_large, feeds("a", "b"))
    assert math.isnan(count.per_op_type["MatMul"].total)
    assert "per iteration" in next(iter(count.loops.values()))
    a, b = np.full(SQUARE, 1e-3, np.float32), np.full(SQUARE, 1e-2, np.float32)
    rounds, x = 0, a
    while x.sum() < 1e6:
        rounds, x = rounds + 1, x @ b
    measured = gw.count_flops(until_large, inputs=(tf.constant(a), tf.constant(b)))
    assert measured.per_op_type["MatMul"].total == rounds * PRODUCT
    assert next(iter(measured.loops.values())) == f"{rounds} iterations (measured)"


def test_the_costlier_branch(control_flow):
    with tf.Graph().as_default() as graph:
        a, b = (v1.placeholder(tf.float32, SQUARE, name=name) for name in "ab")
        chosen = v1.cond(tf.reduce_sum(a) > 0, lambda: a @ b, lambda: a @ b @ b @ b)
        tf.identity(chosen, name="out")
    count = gw.count_flops(graph, outputs="out")
    assert count.per_op_type["MatMul"].total == 3 * PRODUCT
    assert sorted(next(iter(count.branches.values()))) == [PRODUCT, 3 * PRODUCT]
    assert "most expensive" in count.how["branches"]


# Unknown batch


def test_an_open_batch_gives_a_line():
    traced: list[object] = []

    def product(a, b):
        traced.append(a.shape[0])
        return a @ b

    count = gw.count_flops(tf.function(product), {"a": (None, 256), "b": SQUARE})
    assert str(count.formula) == "131,072 * batch"
    assert count.formula(256) == PRODUCT
    assert (count.batch, count.total, count.feeds["a"]) == (8, 8 * 131_072, (None, 256))
    assert "131,072 * batch FLOP per step; all other figures are for a batch of 8." in " ".join(str(count).split())
    assert count.to_json()["formula"] == "131,072 * batch"
    assert "checked at 8" in count.how["batch size"]
    assert traced == [3, 5, 8], "a step is traced no more often than it takes"


def test_the_open_batch_may_be_any_axis_but_only_one():
    count = gw.count_flops(tf.function(lambda a, b: a @ tf.transpose(b)), {"a": (16, None), "b": (16, None)})
    assert str(count.formula) == "512 * batch"
    assert count.feeds == {"a": (16, None), "b": (16, None)}
    with pytest.raises(ArgumentError, match="leaves 2 dimensions open"):
        gw.count_flops(tf.function(lambda x: 2.0 * x), {"x": (None, None)})


@pytest.mark.parametrize("step", [lambda a: a @ tf.transpose(a), lambda x: tf.reduce_sum(x[: tf.shape(x)[0] // 3 * 2] ** 2)])
def test_what_does_not_grow_by_example_is_no_line(step):
    with pytest.raises(UnknownShapeError, match="not a line in the batch size"):
        gw.count_flops(tf.function(step), {"a" if "a" in step.__code__.co_varnames else "x": (None, 8)})


def test_a_loop_over_an_open_batch():
    count = gw.count_flops(tf.function(lambda x: tf.map_fn(lambda row: row @ tf.transpose(row), x)), {"x": (None, 8, 8)})
    assert str(count.formula) == "1,024 * batch"
    assert list(count.loops.values()) == ["8 iterations"]


def test_the_formula_of_a_training_step_is_right_at_other_sizes():
    model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)])
    model.compile(optimizer="adam", loss="mse")
    formula = gw.count_flops(model).formula
    assert formula(32) == gw.count_flops(model, batch=32).total


def test_an_open_dimension_that_is_no_batch():
    step = tf.function(lambda a, b: a @ b, input_signature=[tf.TensorSpec((256, None)), tf.TensorSpec((None, 256))])
    with pytest.raises(UnknownShapeError, match="'a'"):
        gw.count_flops(step)


# Directions


def test_adam_counts_twelve_per_weight():
    """Keras: m += (g - m) c; v += (g^2 - v) c; w -= m c / (sqrt(v) + e)."""
    model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)])
    model.compile(optimizer=keras.optimizers.Adam(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    weights = model.count_params()
    count = gw.count_flops(model, batch=8)
    assert 12 * weights <= count.optimizer < 12.2 * weights
    assert count.forward >= 2 * 8 * (10 * 16 + 16 * 4)
    infer = gw.count_flops(model, batch=8, mode="infer")
    assert (infer.backward, infer.optimizer) == (0, 0)


def test_clipping_and_weight_decay_are_optimizer():
    def step_with(change: Any) -> gw.FlopCount:
        weight = tf.Variable(tf.ones((16, 16)))

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.tanh(x @ weight))
            weight.assign_sub(change(tape.gradient(loss, weight), weight))
            return loss

        return gw.count_flops(step, {"x": (8, 16)})

    plain = step_with(lambda g, w: g)
    assert plain.optimizer == 16 * 16
    for change, extra in (
        (lambda g, w: tf.clip_by_value(g, -1, 1), 2 * 256),
        (lambda g, w: tf.clip_by_norm(g, 1.0), None),
        (lambda g, w: g + 0.01 * w, 2 * 256),
    ):
        count = step_with(change)
        assert (count.forward, count.backward) == (plain.forward, plain.backward)
        assert count.optimizer == (count.optimizer if extra is None else plain.optimizer + extra) > plain.optimizer


@pytest.mark.parametrize("use_resource", [False, True])
def test_a_training_graph_of_tf1(use_resource, control_flow):
    """Backward of a loop: twice the products of the forward pass; the optimizer's kernel apart."""
    del control_flow
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (None, 32), name="x")
        weight = v1.get_variable("w", (32, 32), use_resource=use_resource)
        y = v1.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, tf.tanh(x @ weight)), (0, x))[1]
        loss = tf.reduce_sum(y, name="loss")
        v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    count = gw.count_flops(graph, {"x": (8, 32)}, outputs=["loss", "train"])
    products = 5 * 2 * 8 * 32 * 32
    assert (count.per_op_type["MatMul"].forward, count.per_op_type["MatMul"].backward) == (products, 2 * products)
    assert count.optimizer == 2 * 32 * 32
    assert not count.unknown


# Unknown ops


def test_what_has_no_rule_is_listed_and_can_be_given_one():
    @tf.function
    def step(a):
        return tf.py_function(lambda t: t, [a @ a], tf.float32)

    count = gw.count_flops(step, {"a": (32, 32)})
    assert count.total == 2 * 32**3
    assert count.unknown["EagerPyFunc"].count == 1
    assert count.unknown["EagerPyFunc"].reason == "no rule"
    assert 0 < count.unknown["EagerPyFunc"].node_share < 1
    assert "could not be counted" in str(count)
    with gw.register_flops("EagerPyFunc", lambda node: 7.0):
        assert gw.count_flops(step, {"a": (32, 32)}).total == 2 * 32**3 + 7
    assert gw.count_flops(step, {"a": (32, 32)}).total == 2 * 32**3


SLOW = ("unet", "resnet50", "densenet121", "transformer", "mlp1000")
LIKE_OTHERS = ("densenet121", "transformer", "mlp1000")  # a residual network, the transformer in bfloat16 and a chain tell the same


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (name in SLOW) + [pytest.mark.thorough] * (name in LIKE_OTHERS)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in zoo.MODELS])
def test_every_op_of_the_reference_models_is_counted(name):
    reference = zoo.make(name, size="small")
    train = gw.count_flops(reference.step, inputs=reference.inputs)
    infer = gw.count_flops(tf.function(lambda x: reference.model(x, training=False)), inputs=reference.inputs[:1])
    assert (train.unknown, infer.unknown) == ({}, {})
    assert 0.9 * train.forward < infer.total <= train.forward
    assert train.forward < train.backward < 2 * train.forward
    per_weight = train.optimizer / zoo.trainable_parameters(reference.model)
    assert {"SGD": 1.9, "Adam": 12.0}[type(reference.optimizer).__name__] <= per_weight < 13
    for rows in (train.per_op_type, train.per_layer):
        assert sum(row.total for row in rows.values()) == pytest.approx(train.total)
        assert sum(row.bytes_moved for row in rows.values()) == pytest.approx(train.bytes_moved)


# Closed formulas


def products_of(model: Any) -> tuple[float, float]:
    """FLOPs of convolutions and dense layers at batch 1, from the list of layers: all of them, and those that read the input."""
    total = first = 0.0
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2DTranspose):
            _, height, width, channels = layer.input.shape
            flops = 2.0 * math.prod(layer.kernel_size) * channels * layer.filters * height * width
        elif isinstance(layer, keras.layers.Conv2D):
            _, height, width, channels = layer.output.shape
            flops = 2.0 * math.prod(layer.kernel_size) * layer.input.shape[-1] * channels * height * width
        elif isinstance(layer, keras.layers.Dense):
            flops = 2.0 * layer.input.shape[-1] * layer.units
        else:
            continue
        total += flops
        source = layer.input._keras_history.operation
        while isinstance(source, keras.layers.ZeroPadding2D):
            source = source.input._keras_history.operation
        first += flops if isinstance(source, keras.layers.InputLayer) else 0.0
    return total, first


@pytest.mark.parametrize("name", ["unet", "resnet50"])
def test_forward_and_backward_against_the_list_of_layers(name):
    """Backward is twice forward, less the gradient of the first layer's input."""
    reference = zoo.make(name, size="small", batch=2)
    forward, first = (2 * flops for flops in products_of(reference.model))
    rows = gw.count_flops(reference.step, inputs=reference.inputs).per_op_type
    products = [rows[kind] for kind in ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "MatMul") if kind in rows]
    assert sum(row.forward for row in products) == forward
    assert sum(row.backward for row in products) == 2 * forward - first


def test_a_loop_that_is_called_with_two_shapes():
    """The same body, of open shapes: each call has its own."""

    @tf.function(input_signature=[tf.TensorSpec((None, 8))])
    def powers(x):
        return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x @ tf.ones((8, 8))), (0, x))[1]

    count = gw.count_flops(tf.function(lambda a, b: (powers(a), powers(b))), {"a": (4, 8), "b": (100, 8)})
    assert count.per_op_type["MatMul"].total == 3 * 2 * (4 + 100) * 8 * 8


def test_a_whole_training_loop_in_one_step():
    """Directions are told inside of the loop's body."""
    weight = tf.Variable(tf.ones((10, 10)))

    @tf.function
    def train(x):
        loss = 0.0
        for _ in tf.range(20):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.tanh(x @ weight))
            weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    count = gw.count_flops(train, {"x": (8, 10)})
    product = 2 * 8 * 10 * 10
    assert (count.per_op_type["MatMul"].forward, count.per_op_type["MatMul"].backward) == (20 * product, 20 * product)
    assert count.optimizer == 20 * 2 * 100


@pytest.mark.parametrize("kind", ["keras", "saved_model", "frozen"])
def test_files(tmp_path, kind):
    model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)])
    path = tmp_path / {"keras": "model.keras", "saved_model": "model", "frozen": "model.pb"}[kind]
    if kind == "keras":
        model.save(path)
    elif kind == "saved_model":
        model.export(path, verbose=False)
    else:
        kernel, bias, kernel2, bias2 = model.get_weights()
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, (None, 10), name="x")
            tf.nn.bias_add(tf.nn.relu(tf.nn.bias_add(x @ kernel, bias)) @ kernel2, bias2)
        path.write_bytes(graph.as_graph_def().SerializeToString())
    per_example = 2 * (10 * 16 + 16 * 4) + 16 + 16 + 4
    assert str(gw.count_flops(path, mode="infer").formula) == f"{per_example} * batch"
