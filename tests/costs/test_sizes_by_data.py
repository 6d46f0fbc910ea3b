"""Steps in which data say how many rows there are: figures are those of the example inputs, or upper bounds; plans hold for any data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw

ROWS, WIDTH, HIDDEN, ROUNDS, WORDS = 512, 32, 64, 3, 300
_DRAW = np.random.default_rng(0)
Case = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], Callable[..., int], int | None]


def normal(*shape: int, mean: float = 0.0) -> Any:
    return tf.constant(_DRAW.normal(mean, 1.0, shape), tf.float32)


def whole(high: int, *shape: int) -> Any:
    return tf.constant(_DRAW.integers(0, high, shape), tf.int32)


def network(x: Any, w: Any, v: Any) -> Any:
    return tf.tanh(x @ w) @ v


def masked(w: Any, v: Any, x: Any) -> Any:
    return network(tf.boolean_mask(x, x[:, 0] > 0.5), w, v)


def routed(w: Any, v: Any, x: Any) -> Any:
    """Two experts, which take the rows that a router sends them, by where, gather and scatter."""
    chosen = tf.argmax(x[:, :2], 1)
    result = tf.zeros_like(x)
    for expert in range(2):
        hit = tf.where(tf.equal(chosen, expert))
        y = network(tf.gather(x, hit[:, 0]), w, v) * tf.gather_nd(x[:, expert], hit)[:, None]
        result = tf.tensor_scatter_nd_add(result, hit, y)
    return result


def parted(w: Any, v: Any, x: Any, kinds: Any) -> Any:
    parts = tf.dynamic_partition(x, kinds, 2)
    places = tf.dynamic_partition(tf.range(ROWS), kinds, 2)
    return tf.dynamic_stitch(places, [network(parts[0], w, v), parts[1]])


def over_half(x: Any) -> int:
    return int(np.sum(x.numpy()[:, 0] > 0.5))


# The forward pass, inputs, other inputs, how many rows the network sees, and how many it sees at most; None where nothing bounds that.
CASES: dict[str, Case] = {
    "masked": (masked, (normal(ROWS, WIDTH),), (normal(ROWS, WIDTH, mean=1.0),), over_half, ROWS),
    "routed": (routed, (normal(ROWS, WIDTH),), (normal(ROWS, WIDTH) + tf.one_hot(0, WIDTH),), lambda x: ROWS, 2 * ROWS),
    "parted": (
        parted,
        (normal(ROWS, WIDTH), whole(2, ROWS)),
        (normal(ROWS, WIDTH), whole(9, ROWS) // 8),
        lambda x, kinds: int(np.sum(kinds.numpy() == 0)),
        None,
    ),
}


class Step:
    """A training step, which starts from the same weights each time."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        weights = [tf.Variable(normal(*shape) / 8) for shape in ((WIDTH, HIDDEN), (HIDDEN, WIDTH))]

        @tf.function
        def step(*data: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(forward(*weights, *data) ** 2)
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(0.1 * gradient)
            return loss

        self.step, self.weights = step, weights
        self.first = [weight.numpy() for weight in weights]

    def run(self, step: Callable[..., Any], data: tuple[Any, ...]) -> list[Any]:
        for weight, value in zip(self.weights, self.first, strict=True):
            weight.assign(value)
        return [step(*data).numpy(), *(weight.numpy() for weight in self.weights)]


def _slow(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def specs(data: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tf.TensorSpec(part.shape, part.dtype) for part in data)


def products(count: Any) -> float:
    return count.per_op_type["MatMul"].total


@pytest.mark.parametrize("name", CASES)
def test_figures_are_those_of_the_example_inputs_or_upper_bounds(name: str) -> None:
    forward, data, other, rows, most = CASES[name]
    step = Step(forward).step
    each = 2 * WIDTH * HIDDEN * 5  # two products forward; backward two for each of them, but for the gradient of data
    for given in (data, other):
        assert products(gw.count_flops(step, inputs=given)) == rows(*given) * each
    peak = gw.predict_peak(step, inputs=data)
    assert "as in the example inputs" in peak.how["sizes"]
    assert "with the sizes of the example inputs" in str(peak)
    if most is None:
        with pytest.raises(gw.UnknownShapeError, match=r"depends on data, and nothing bounds it"):
            gw.predict_peak(step, inputs=specs(data))
        return
    bound = gw.predict_peak(step, inputs=specs(data))
    assert "upper bounds" in bound.how["sizes"]
    assert products(gw.count_flops(step, inputs=specs(data))) == most * each
    assert peak.peak_bytes < 0.9 * bound.peak_bytes


@pytest.mark.parametrize("name", ["routed", *_slow("masked", "parted")])
def test_a_plan_keeps_the_sizes_of_the_example_and_computes_the_same_of_other_data(name: str) -> None:
    forward, data, other, _, _ = CASES[name]
    made = Step(forward)
    peak = gw.predict_peak(made.step, inputs=data).peak_bytes
    planned = gw.optimize_memory(made.step, 0.9, inputs=data, cache_dir=None, time_limit_s=0.5)
    plan = planned.plan
    assert plan.verification.startswith("equal")
    assert plan.peak_bytes <= 0.91 * peak
    assert "as in the example inputs" in plan.how["sizes"]
    assert "with the sizes of the example inputs" in plan.verdict
    plain = tf.function(made.step.python_function)
    for given in (data, other):
        expected, got = made.run(plain, given), made.run(planned, given)
        for one, two in zip(expected, got, strict=True):
            np.testing.assert_allclose(two, one, rtol=0, atol=0)
    assert len(planned.plans) == 1


def test_a_check_and_the_largest_batch_say_whose_sizes_they_take() -> None:
    step, data = Step(masked).step, (normal(ROWS, WIDTH),)
    found = gw.check(step, inputs=data, max_peak="1GiB")
    assert found.passed
    assert any("as in the example inputs" in warning for warning in found.warnings)
    assert not gw.check(step, inputs=specs(data), max_peak="1GiB").warnings
    assert "upper bounds" in gw.max_batch(step, "1MiB", inputs=data).how["predicted peak"]
