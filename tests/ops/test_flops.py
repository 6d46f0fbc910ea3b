"""FLOPs against closed formulas."""

from __future__ import annotations

import math

import pytest

from graphwright.analyze.time_model import estimated_time_s
from graphwright.ir.text import from_text
from graphwright.ops.flops import node_flops


def flops(line: str, **shapes: str) -> float | None:
    """FLOPs of the node `%y`, whose inputs are constants of these types."""
    constants = "\n".join(f"%{name} = Const() : {kind}" for name, kind in shapes.items())
    return node_flops(from_text(f'graph "g"\n{constants}\n%y = {line}')["y"])


@pytest.mark.parametrize(
    ("line", "shapes", "expected"),
    [
        ("MatMul(%a:0, %b:0) : float32[3,5]", {"a": "float32[3,4]", "b": "float32[4,5]"}, 2 * 3 * 4 * 5),
        ("MatMul(%a:0, %b:0) {transpose_a = true} : float32[3,5]", {"a": "float32[4,3]", "b": "float32[4,5]"}, 2 * 3 * 4 * 5),
        ("BatchMatMulV2(%a:0, %b:0) {adj_x = false} : float32[7,3,5]", {"a": "float32[7,3,4]", "b": "float32[4,5]"}, 7 * 2 * 3 * 4 * 5),
        ("BatchMatMulV2(%a:0, %b:0) {adj_x = true} : float32[7,3,5]", {"a": "float32[7,4,3]", "b": "float32[7,4,5]"}, 7 * 2 * 3 * 4 * 5),
        ('Einsum(%a:0, %b:0) {equation = "abc,cd->abd"} : float32[2,3,5]', {"a": "float32[2,3,4]", "b": "float32[4,5]"}, 2 * 2 * 3 * 4 * 5),
        ('Einsum(%a:0) {equation = "ab->a"} : float32[2]', {"a": "float32[2,3]"}, 6 - 2),
        ('Einsum(%a:0, %b:0) {equation = "...a,a->..."} : float32[2]', {"a": "float32[2,3]", "b": "float32[3]"}, 2 * 2 * 3),
        ("Conv2D(%x:0, %w:0) : float32[2,6,6,8]", {"x": "float32[2,8,8,3]", "w": "float32[3,3,3,8]"}, 2 * (2 * 6 * 6 * 8) * 3 * 3 * 3),
        # Grouped: the filter holds the input channels of one group.
        ("Conv2D(%x:0, %w:0) : float32[2,6,6,8]", {"x": "float32[2,8,8,4]", "w": "float32[3,3,2,8]"}, 2 * (2 * 6 * 6 * 8) * 3 * 3 * 2),
        (
            "Conv2DBackpropInput(%s:0, %w:0, %d:0) : float32[2,8,8,3]",
            {"s": "int32[4]", "w": "float32[3,3,3,8]", "d": "float32[2,6,6,8]"},
            2 * (2 * 6 * 6 * 8) * 27,
        ),
        (
            "Conv2DBackpropFilter(%x:0, %s:0, %d:0) : float32[3,3,3,8]",
            {"x": "float32[2,8,8,3]", "s": "int32[4]", "d": "float32[2,6,6,8]"},
            2 * (2 * 6 * 6 * 8) * 27,
        ),
        (
            "DepthwiseConv2dNative(%x:0, %w:0) : float32[2,6,6,6]",
            {"x": "float32[2,8,8,3]", "w": "float32[3,3,3,2]"},
            2 * (2 * 6 * 6 * 6) * 9,
        ),
        ("MaxPool(%x:0) {ksize = [1, 2, 2, 1]} : float32[2,4,4,3]", {"x": "float32[2,8,8,3]"}, 4 * 2 * 4 * 4 * 3),
        ("Relu(%x:0) : float32[5,7]", {"x": "float32[5,7]"}, 35),
        ("AddV2(%x:0, %b:0) : float32[5,7]", {"x": "float32[5,7]", "b": "float32[7]"}, 35),
        ("AddN(%a:0, %b:0, %c:0) : float32[5]", {"a": "float32[5]", "b": "float32[5]", "c": "float32[5]"}, 10),
        ("Sum(%x:0, %r:0) : float32[7]", {"x": "float32[5,7]", "r": "int32[1]"}, 28),
        ("BiasAddGrad(%x:0) : float32[7]", {"x": "float32[5,7]"}, 28),
        ("Softmax(%x:0) : float32[5,7]", {"x": "float32[5,7]"}, 5 * 35),
        ("Transpose(%x:0, %p:0) : float32[7,5]", {"x": "float32[5,7]", "p": "int32[2]"}, 0),
        ("SomeCustomOp(%x:0) : float32[5,7]", {"x": "float32[5,7]"}, None),
        ("MatMul(%a:0, %b:0) : float32[?,5]", {"a": "float32[?,4]", "b": "float32[4,5]"}, None),
        ("Relu(%x:0) : float32[*]", {"x": "float32[*]"}, None),
    ],
)
def test_closed_formulas(line, shapes, expected):
    assert flops(line, **shapes) == expected


def test_time_grows_with_the_work_and_never_vanishes():
    def time_of(size: int) -> float:
        graph = from_text(f'graph "g"\n%a = Const() : float32[{size},{size}]\n%y = MatMul(%a:0, %a:0) : float32[{size},{size}]')
        return estimated_time_s((graph["y"],))

    assert 0 < time_of(1) < time_of(100) < time_of(1000)
    assert 800 < time_of(4000) / time_of(400) < 1000
    unknown = from_text('graph "g"\n%y = Mystery() : float32[?]')["y"]
    assert estimated_time_s((unknown,)) > 0
    assert estimated_time_s((unknown, unknown)) == 2 * estimated_time_s((unknown,))


@pytest.mark.tensorflow
@pytest.mark.slow
def test_resnet50_costs_what_is_known_of_it():
    """He et al. 2016 count 3.8e9 multiply-adds without the shortcuts; the Keras model has 3.86e9 and 25.6 million parameters."""
    import tensorflow as tf
    from keras.applications import ResNet50

    from graphwright.step.flatten import flatten

    model = ResNet50(weights=None)
    function = tf.function(lambda x: model(x, training=False)).get_concrete_function(tf.TensorSpec((1, 224, 224, 3)))
    graph = flatten(function).graph
    total = sum(node_flops(n) or 0 for n in graph)
    products = sum(node_flops(n) or 0 for n in graph if n.op_type in ("Conv2D", "MatMul"))
    assert 7.7e9 < total < 8.2e9
    assert products > 0.98 * total
    assert [n.op_type for n in graph if node_flops(n) is None] == []


@pytest.mark.tensorflow
def test_a_backward_pass_of_dense_layers_costs_twice_the_forward_pass():
    tf = pytest.importorskip("tensorflow")
    from graphwright.analyze.backward import backward_nodes
    from graphwright.step.flatten import flatten

    weights = [tf.Variable(tf.ones((32, 32))) for _ in range(5)]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = x
            for weight in weights:
                h = tf.nn.relu(h @ weight)
            loss = tf.reduce_sum(h)
        gradients = tape.gradient(loss, [x, *weights])
        for weight, gradient in zip(weights, gradients[1:], strict=True):
            weight.assign_sub(gradient)
        return loss

    graph = flatten(step.get_concrete_function(tf.TensorSpec((16, 32)))).graph
    backward = backward_nodes(graph)
    products = {True: 0.0, False: 0.0}
    for node in graph:
        if node.op_type == "MatMul":
            products[node in backward] += node_flops(node) or math.nan
    assert products[False] == 5 * 2 * 16 * 32 * 32
    assert products[False] * 1.5 < products[True] <= products[False] * 2
