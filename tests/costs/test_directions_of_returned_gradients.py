"""Gradients that a step returns: the same FLOPs forward and backward as where the step applies them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import graphwright as gw  # noqa: E402
from graphwright.costs.baseline import read_costs, write_costs  # noqa: E402

pytestmark = pytest.mark.tensorflow

N = 8
PRODUCT = 2 * 4 * N * N
FEEDS = {"x": (4, N)}


def _weights(count: int = 2) -> list[Any]:
    return [tf.Variable(tf.ones((N, N))) for _ in range(count)]


def _step(loss_of: Callable[[Any], Any], weights: Sequence[Any], update: bool, only_gradients: bool = False) -> Any:
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(x)
        gradients = tape.gradient(loss, weights)
        if update:
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(gradient)
            return loss
        return gradients if only_gradients else (loss, gradients)

    return step


def _dense(activation: Callable[[Any], Any]) -> Any:
    def loss_of(x: Any, weights: Sequence[Any]) -> Any:
        for weight in weights:
            x = activation(x @ weight)
        return tf.reduce_mean(x)

    return loss_of


@tf.custom_gradient
def _half_exp(x):
    y = tf.exp(x)
    return y, lambda upstream: upstream * y * tf.where(x > 0, 1.0, 0.5)


def _penalty(inner: Callable[[Any], Any]) -> Any:
    def loss_of(x: Any, weights: Sequence[Any]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = tf.reduce_sum(tf.exp(tf.exp(x @ weights[0]) @ weights[1]))
        return score + inner(tape.gradient(score, x))

    return loss_of


def _loop(x: Any, weights: Sequence[Any]) -> Any:
    for _ in tf.range(3):
        x = tf.exp(x @ weights[0])
    return tf.reduce_sum(tf.exp(x @ weights[1]))


KINDS = {
    "gelu": _dense(tf.nn.gelu),
    "linear": _dense(tf.identity),
    "custom gradient": _dense(_half_exp),
    "loop": _loop,
    "gradient penalty": _penalty(lambda d: tf.reduce_mean((tf.norm(d, axis=1) - 1) ** 2)),
    "plain penalty": _penalty(lambda d: tf.reduce_sum(d**2)),
}


QUICK = ("gelu", "linear", "custom gradient", "plain penalty")


@pytest.mark.parametrize("kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS])
def test_with_and_without_updates(kind):
    weights = _weights()

    def loss_of(x: Any) -> Any:
        return KINDS[kind](x, weights)

    applied, returned, alone = (gw.count_flops(_step(loss_of, weights, *how), FEEDS) for how in ((True,), (False,), (False, True)))
    assert (returned.forward, returned.backward) == (applied.forward, applied.backward)
    assert returned.optimizer == alone.optimizer == 0 < applied.optimizer
    assert returned.total == applied.total - applied.optimizer
    assert 0 <= applied.forward - alone.forward < 3 * PRODUCT  # the end of the forward pass is not needed
    assert alone.total == alone.forward + alone.backward


def test_two_models_trained_one_after_the_other():
    """What the second one computes reads weights that the first one's gradient changed, and is forward all the same."""
    first, second = _weights()

    @tf.function
    def step(x):
        losses = []
        for weight in (first, second):
            with tf.GradientTape() as tape:
                losses.append(tf.reduce_mean(tf.exp(tf.exp(x @ first) @ second)))
            weight.assign_sub(tape.gradient(losses[-1], weight))
        return losses

    row = gw.count_flops(step, FEEDS).per_op_type["MatMul"]
    assert (row.forward, row.backward) == (4 * PRODUCT, 3 * PRODUCT)


@pytest.mark.parametrize("fetched", [(0, 1, 2), (1, 2)], ids=["product and gradients", "gradients"])
def test_gradients_of_tf1(fetched):
    with tf.Graph().as_default() as graph:
        a, b = tf.compat.v1.placeholder(tf.float32, (10, 30)), tf.compat.v1.placeholder(tf.float32, (30, 12))
        product = a @ b
        outputs = [product, *tf.gradients(product, [a, b])]
    count = gw.count_flops(graph, outputs=[outputs[k] for k in fetched])
    assert (count.forward, count.backward) == (7_200 if 0 in fetched else 0, 14_400)


def _forward_only() -> dict[str, Any]:
    first, second = _weights()

    @tf.function
    def scopes_of_the_user(x):
        with tf.name_scope("gradient_tape"):
            x = tf.nn.gelu(x @ first)
        with tf.name_scope("image_grad"):
            return 1.0 - tf.exp(x @ second)

    @tf.function
    def images(x):
        x = tf.reshape(x, (2, 4, 4, 1))
        dy, dx = tf.image.image_gradients(x)
        return tf.image.total_variation(tf.image.sobel_edges(x)[..., 0] + dy * dx)

    tied = tf.function(lambda x: tf.matmul(2.0 * (x @ first), first, transpose_b=True))
    return {"scopes": scopes_of_the_user, "images": images, "tied weights": tied}


@pytest.mark.parametrize("kind", ["scopes", "images", "tied weights"])
def test_forward_only(kind):
    count = gw.count_flops(_forward_only()[kind], FEEDS)
    assert (count.backward, count.optimizer, count.undivided) == (0, 0, 0)
    assert count.forward == count.total > 0


@tf.function
def _scaled_by_the_caller(x, upstream):
    """Nothing but a name says that the product with what the caller gives is a gradient."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.exp(x)
    return tape.gradient(y, x, output_gradients=upstream)


def test_what_cannot_be_told_is_unknown(tmp_path):
    feeds = {"x": (4, N), "upstream": (4, N)}
    count = gw.count_flops(_scaled_by_the_caller, feeds)
    assert count.total == count.undivided == 2 * 4 * N
    assert count.to_json()["forward_flops"] is count.to_json()["backward_flops"] is None
    assert count.to_json()["total_flops"] == 2 * 4 * N
    assert "forward      not known" in count.text("all")
    assert "not known" in count.how["directions"]
    assert gw.count_flops(_scaled_by_the_caller, {"x": (None, N), "upstream": (None, N)}).formula(4) == 2 * 4 * N
    found = gw.inspect(_scaled_by_the_caller, feeds)
    assert found.to_json()["undivided_flops"] == 2 * 4 * N
    assert "directions not known" in found.text("all")
    assert "directions not known" in found.write_html(tmp_path / "page.html").read_text(encoding="utf-8")
    compared = gw.compare(_scaled_by_the_caller, _scaled_by_the_caller, feeds=feeds)
    assert [pair.change for pair in compared.layers] == ["same"]
    costs = read_costs(write_costs(gw.step_costs(_scaled_by_the_caller, feeds=feeds), tmp_path / "costs.json"))
    assert costs.figures["total_flops"] == sum(layer.total_flops for layer in costs.layers) == 2 * 4 * N
    assert math.isnan(costs.figures["forward_flops"])


def test_a_factor_that_is_taken_transposed_confirms_what_a_name_says():
    weight = _weights(1)[0]

    @tf.function
    def pulled_back(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.exp(x @ weight)
        return y, tape.gradient(y, x, output_gradients=upstream)

    row = gw.count_flops(pulled_back, {"x": (4, N), "upstream": (4, N)}).per_op_type["MatMul"]
    assert (row.forward, row.backward) == (PRODUCT, PRODUCT)
