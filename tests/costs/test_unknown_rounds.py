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
from graphwright.plan.bound import lower_bound  # noqa: E402
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

    def by_lengths(x, lengths):
        return training(weight, x, tf.reduce_max(lengths))

    def by_rows(x, mask):
        return training(weight, x, tf.shape(tf.boolean_mask(x, mask))[0])

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
    mask = tf.range(BATCH) < ROUNDS
    return {
        "argument": (by_argument, {"x": x, "n": tf.constant(ROUNDS)}),
        "lengths": (by_lengths, {"x": x, "lengths": tf.constant([3, ROUNDS, 7])}),
        "rows": (by_rows, {"x": x, "mask": mask}),
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


@pytest.mark.parametrize("name", ["argument", "lengths", "rows", "variable", "changed variable", "result"])
def test_the_rounds_of_a_given_call_are_counted(cases: Any, name: str) -> None:
    flat = flat_step(traced(*cases[name], known=True))
    assert {trip.count for trip in flat.loops.trip_counts.values()} == {ROUNDS}
    assert {trip.kind for trip in flat.loops.trip_counts.values()} == {"example"}  # no segment may count on it
    assert ROUNDS * ELEMENT < peak_of(flat) < (ROUNDS + 8) * ELEMENT + 4 * WIDTH * WIDTH * 4
    product = 2 * BATCH * WIDTH * WIDTH
    assert ROUNDS * 3 * product < sum(count_executed(flat.graph)[1].whole.flops.values()) < ROUNDS * 3.2 * product


@pytest.mark.parametrize("name", ["argument", "lengths", "rows", "changed variable", "result"])
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


@pytest.mark.parametrize(("text", "value"), [("n==50", 50), ("n==1e-3", 1e-3), ("n==true", True), ("n==-2", -2)])
def test_values_of_feeds_as_text(text: str, value: object) -> None:
    assert parse_feeds([text]) == {"n": value}


def test_what_is_no_value_is_refused() -> None:
    with pytest.raises(gw.ArgumentError, match="not a number"):
        parse_feeds(["n==many"])


def test_the_memory_of_a_loop_that_keeps_nothing_does_not_hang_on_its_rounds(weight: Any) -> None:
    def halved(x):
        while tf.reduce_max(x) > 1e-3:
            x = tf.tanh(x @ weight) / 2
        return tf.reduce_mean(x)

    open_, known = (flat_step(traced(halved, {"x": tf.ones((BATCH, WIDTH))}, known=known)) for known in (False, True))
    assert {trip.kind for trip in open_.loops.trip_counts.values()} == {"unknown"}
    assert peak_of(open_) == peak_of(known)
    assert all(not task.recomputable for task in map_tasks(open_).costs.tasks if task.name == "while")


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


def test_parts_of_the_batch_in_a_loop_have_the_sizes_that_they_have(weight: Any) -> None:
    total = tf.Variable(tf.zeros_like(weight))
    other = tf.Variable(0.0)

    def accumulated(x, parts):
        size = tf.shape(x)[0] // parts
        for k in tf.range(parts):
            rows = x[k * size : (k + 1) * size]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.tanh(tf.tanh(rows @ weight) @ weight))
            total.assign_add(tape.gradient(loss, weight))
            other.assign_add(loss)
        weight.assign_sub(total)
        return other.read_value()

    x = tf.random.normal((4096, WIDTH))
    peaks = []
    for parts in (2, 4, 8):
        flat = flat_step(trace(tf.function(lambda x, parts=parts: accumulated(x, parts)), inputs=(x,)))
        assert not flat.loops.trip_counts  # a round is planned as any other part of the step
        costs = map_tasks(flat).costs
        peaks.append(simulate(costs, Schedule(costs.order)).peak_bytes - costs.resident_bytes)
        assert lower_bound(costs).nbytes <= costs.resident_bytes + peaks[-1]
    assert peaks[1] < 0.62 * peaks[0]
    assert peaks[2] < 0.62 * peaks[1]
    plan = gw.optimize_memory(tf.function(lambda x: accumulated(x, 4)), 0.9, inputs=(x,))
    before = [v.numpy() for v in (weight, total, other)]
    given = tf.function(lambda x: accumulated(x, 4), autograph=True)(x).numpy()
    after = [v.numpy() for v in (weight, total, other)]
    for v, value in zip((weight, total, other), before, strict=True):
        v.assign(value)
    assert plan(x).numpy() == pytest.approx(given, rel=1e-6)
    for v, value in zip((weight, total, other), after, strict=True):
        assert v.numpy() == pytest.approx(value, rel=1e-5, abs=1e-6)


def test_a_bound_is_never_above_what_the_step_takes_as_it_is(weight: Any) -> None:
    def step(x):
        def body(i, h):
            return i + 1, sum((tf.tanh(h @ weight + float(k)) for k in range(6)), h)

        return tf.while_loop(lambda i, h: i < 12, body, (0, x))[1]

    found = gw.inspect(tf.function(step), inputs=(tf.ones((512, WIDTH)),))
    assert found.executor is not None
    assert found.lower_bound_bytes <= found.executor.peak_bytes
