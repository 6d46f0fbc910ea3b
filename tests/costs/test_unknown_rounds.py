"""Rounds of loops that are data: computed or measured where one call is known, unknown everywhere else, and never taken for one."""

from __future__ import annotations

import math
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import graphwright as gw  # noqa: E402
from graphwright.commands.inputs import parse_feeds  # noqa: E402
from graphwright.errors import ErrorCode  # noqa: E402
from graphwright.memory.planning import map_tasks  # noqa: E402
from graphwright.plan.model import Schedule  # noqa: E402
from graphwright.plan.simulate import simulate  # noqa: E402
from graphwright.run.traced_step import TracedStep  # noqa: E402
from graphwright.step.flatten import FlatStep, flat_step  # noqa: E402
from graphwright.step.summary import count_executed  # noqa: E402
from graphwright.step.targets import trace  # noqa: E402

pytestmark = pytest.mark.tensorflow

ROUNDS, BATCH, WIDTH = 20, 32, 64
ELEMENT = BATCH * WIDTH * 4


def training(weight: Any, x: Any, rounds: Any) -> Any:
    with tf.GradientTape() as tape:
        h = x
        for _ in tf.range(rounds):
            h = tf.tanh(h @ weight)
        loss = tf.reduce_mean(h)
    weight.assign_sub(tape.gradient(loss, weight))
    return loss


@pytest.fixture(scope="module")
def weight() -> Any:
    return tf.Variable(tf.eye(WIDTH))


@pytest.fixture(scope="module")
def cases(weight: Any) -> dict[str, tuple[Any, dict[str, Any]]]:
    held, changed = tf.Variable(ROUNDS), tf.Variable(ROUNDS)

    def by_argument(x, n):
        return training(weight, x, n)

    def by_variable(x):
        return training(weight, x, held)

    def by_changed_variable(x):
        loss = training(weight, x, changed)
        changed.assign_add(1)
        return loss

    def by_result(x, start):
        with tf.GradientTape() as tape:
            h, left = x, start
            while left > 1.0:
                h, left = tf.tanh(h @ weight), left / 2
            loss = tf.reduce_mean(h)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    x = tf.ones((BATCH, WIDTH))
    return {
        "argument": (by_argument, {"x": x, "n": tf.constant(ROUNDS)}),
        "variable": (by_variable, {"x": x}),
        "changed variable": (by_changed_variable, {"x": x}),
        "result": (by_result, {"x": x, "start": tf.constant(2.0**ROUNDS)}),
    }


def traced(step: Any, arguments: dict[str, Any], *, known: bool) -> TracedStep:
    feeds = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in arguments.items()}
    return trace(tf.function(step), inputs=arguments) if known else trace(tf.function(step), feeds=feeds)


def peak_of(flat: FlatStep) -> int:
    costs = map_tasks(flat).costs
    return simulate(costs, Schedule(costs.order)).peak_bytes


@pytest.mark.parametrize("name", ["argument", "variable", "changed variable", "result"])
def test_the_rounds_of_a_given_call_are_counted(cases: Any, name: str) -> None:
    flat = flat_step(traced(*cases[name], known=True))
    assert {trip.count for trip in flat.loops.trip_counts.values()} == {ROUNDS}
    assert {trip.kind for trip in flat.loops.trip_counts.values()} == {"example"}  # no segment may count on it
    assert ROUNDS * ELEMENT < peak_of(flat) < (ROUNDS + 8) * ELEMENT + 4 * WIDTH * WIDTH * 4
    product = 2 * BATCH * WIDTH * WIDTH
    assert ROUNDS * 3 * product < sum(count_executed(flat.graph)[1].whole.flops.values()) < ROUNDS * 3.2 * product


@pytest.mark.parametrize("name", ["argument", "changed variable", "result"])
def test_without_a_call_the_peak_is_an_error_and_flops_are_not_known(cases: Any, name: str) -> None:
    step = traced(*cases[name], known=False)
    flat = flat_step(step)
    with pytest.raises(gw.UnknownShapeError, match=r"(?s)the number of rounds of loop 'while'.*inputs=.*--feed n==50") as raised:
        map_tasks(flat)
    assert raised.value.code is ErrorCode.UNKNOWN_ROUNDS
    assert math.isnan(sum(count_executed(flat.graph)[1].whole.flops.values()))


def test_every_question_says_that_it_is_not_known(cases: Any) -> None:
    step, arguments = cases["argument"]
    assert arguments
    function = tf.function(step).get_concrete_function(tf.TensorSpec((None, WIDTH)), tf.TensorSpec((), tf.int32))
    feeds = {"x": (BATCH, WIDTH), "n": ()}
    for ask in (
        lambda: gw.inspect(function, feeds),
        lambda: gw.predict_peak(function, feeds),
        lambda: gw.predict_peak(function, feeds, order="executor"),
        lambda: gw.sweep(function, {**feeds, "x": (None, WIDTH)}, batches=(BATCH,)),
        lambda: gw.max_batch(function, "1MiB", {**feeds, "x": (None, WIDTH)}),
        lambda: gw.advise(function, "1MiB", feeds=feeds),
    ):
        with pytest.raises(gw.UnknownShapeError, match="the number of rounds of loop 'while'"):
            ask()
    counted = gw.count_flops(function, feeds)
    assert math.isnan(counted.total)
    assert "FLOPs per iteration" in counted.loops["while"]


def test_a_check_fails_and_names_the_loop_and_keeps_no_baseline(cases: Any, tmp_path: Any) -> None:
    step, arguments = cases["argument"]
    feeds = {"x": (BATCH, WIDTH), "n": tf.TensorSpec((), tf.int32)}
    result = gw.check(tf.function(step), feeds, max_peak="1TiB", max_flops="1P", max_parameters=WIDTH * WIDTH)
    assert [finding.figure for finding in result.findings if not finding.passed] == ["peak_bytes", "total_flops"]
    assert "'while'" in result.text("all")
    assert gw.check(tf.function(step), {**feeds, "n": ROUNDS}, max_peak="1TiB", max_flops="1P").passed
    held = gw.check(tf.function(step), feeds, baseline=gw.step_costs(tf.function(step), inputs=arguments))
    assert "peak_bytes" in [finding.figure for finding in held.findings if not finding.passed]
    with pytest.raises(gw.ArgumentError, match="unknown"):
        gw.check(tf.function(step), feeds, write_baseline=tmp_path / "costs.json")
    assert arguments


def test_a_feed_says_the_number(cases: Any) -> None:
    step, arguments = cases["argument"]
    function = tf.function(step).get_concrete_function(**{k: tf.TensorSpec(v.shape, v.dtype) for k, v in arguments.items()})
    flats = [
        flat_step(trace(function, feeds=feeds)) for feeds in ({"n": ROUNDS}, parse_feeds([f"n=={ROUNDS}"]), {"n": tf.constant(ROUNDS)})
    ]
    wanted = peak_of(flat_step(traced(*cases["argument"], known=True)))
    assert [peak_of(flat) for flat in flats] == [wanted] * 3


def test_a_loop_over_a_data_set_is_not_known(weight: Any) -> None:
    data = tf.data.Dataset.from_tensors(tf.ones((BATCH, WIDTH))).repeat(3)

    def step(x):
        for rows in data:
            x += rows @ weight
        return x

    flat = flat_step(traced(step, {"x": tf.ones((BATCH, WIDTH))}, known=True))
    with pytest.raises(gw.UnknownShapeError, match="loop over a data set"):
        map_tasks(flat)
    assert math.isnan(sum(count_executed(flat.graph)[1].whole.flops.values()))
