"""`gw.partially_evaluated`: what is kept, that nothing is stale, and what never moves into the part that is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import graphwright as gw

RNG = np.random.default_rng(0)


def array(*shape: int) -> Any:
    return tf.constant(RNG.normal(size=shape))


def weights(*shape: int) -> Any:
    return tf.Variable(RNG.normal(size=shape) * 0.1)


def misses(fast: Any) -> int:
    return fast.cache_info().misses


def test_a_table_is_encoded_once_until_it_or_a_variable_changes() -> None:
    w, v, table = weights(8, 16), weights(16, 16), array(50, 8)

    def scores(table: Any, query: Any) -> Any:
        return tf.nn.relu(table @ w) @ tf.transpose(query @ v)

    fast = gw.partially_evaluated(scores, constant="table")
    for expected in (1, 1, 1):
        query = array(3, 16)
        np.testing.assert_allclose(fast(table, query), scores(table, query), rtol=1e-12)
        assert misses(fast) == expected
    (part,) = fast.kept_parts()
    assert part.values == ("Relu:0",)
    assert part.nbytes == 50 * 16 * 8
    assert part.compared_bytes == 8 * (50 * 8 + 8 * 16)
    assert part.flops_saved == 2 * 50 * 8 * 16 + 50 * 16
    assert part.flops == part.flops_saved + 2 * 3 * 16 * 16 + 2 * 50 * 16 * 3
    v.assign_add(tf.ones_like(v))  # is read by the other part
    np.testing.assert_allclose(fast(table, query), scores(table, query), rtol=1e-12)
    assert misses(fast) == 1
    keras.optimizers.SGD(0.1).apply([tf.ones_like(w)], [w])
    np.testing.assert_allclose(fast(table, query), scores(table, query), rtol=1e-12)
    assert misses(fast) == 2
    np.testing.assert_allclose(fast(table + 1.0, query), scores(table + 1.0, query), rtol=1e-12)
    assert misses(fast) == 3
    assert "1 value" in repr(fast)


def test_gradients_are_those_of_the_function() -> None:
    w, v, table, query = weights(8, 16), weights(16, 16), array(50, 8), array(3, 16)

    def loss(table: Any, query: Any) -> Any:
        return tf.reduce_sum(tf.tanh(tf.tanh(table @ w) @ tf.transpose(query @ v)) ** 2)

    fast = gw.partially_evaluated(loss, constant="table")
    for run in (fast, tf.function(fast)):
        found = []
        for fn in (run, loss):
            with tf.GradientTape() as tape:
                tape.watch([table, query])
                y = fn(table, query)
            found.append(tape.gradient(y, [table, query, w, v]))
        for ours, plain in zip(*found, strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-12, atol=1e-12)


def test_the_frontier_is_the_smallest_and_broadcasts_are_made_anew() -> None:
    w = weights(16, 16)

    def spread(table: Any, x: Any) -> Any:
        row = tf.reduce_sum(table @ w, axis=0)
        return tf.tile(tf.broadcast_to(row, (40, 16)), (2, 1)) * x

    fast, table = gw.partially_evaluated(spread, constant=("table",)), array(64, 16)
    np.testing.assert_allclose(fast(table, tf.constant(2.0, tf.float64)), spread(table, 2.0), rtol=1e-12)
    assert fast.kept_parts()[0].nbytes == 16 * 8


def test_loops_are_kept_whole() -> None:
    w = weights(16, 16)

    def power(table: Any, x: Any) -> Any:
        y = table
        for _ in tf.range(3):
            y = tf.tanh(y @ w)
        for _ in tf.range(2):
            x = x + tf.reduce_sum(y)
        return x

    fast, plain, table = gw.partially_evaluated(power, constant="table"), tf.function(power), array(16, 16)
    for x in (1.0, 2.0):
        np.testing.assert_allclose(fast(table, tf.constant(x, tf.float64)), plain(table, tf.constant(x, tf.float64)), rtol=1e-12)
    assert misses(fast) == 1


def test_effects_random_numbers_and_what_is_written_stay_in_the_rest() -> None:
    w, count, drawn = weights(16, 16), tf.Variable(0.0, dtype=tf.float64), tf.random.Generator.from_seed(1)

    def step(table: Any, x: Any) -> Any:
        encoded = tf.reduce_sum(table @ w)
        noise = drawn.normal((), dtype=tf.float64) + tf.random.uniform((), dtype=tf.float64)
        noisy = tf.reduce_sum(table @ (w + tf.random.uniform((16, 16), dtype=tf.float64)))
        before = tf.linalg.trace(tf.linalg.matmul(table, tf.transpose(table)) * count)
        count.assign_add(1.0)
        return encoded * x, noise, noisy, before, count.read_value()

    fast, table, x = gw.partially_evaluated(step, constant="table"), array(32, 16), tf.constant(2.0, tf.float64)
    trace = float(tf.reduce_sum(table * table))
    seen = [[float(y) for y in fast(table, x)] for _ in range(3)]
    assert misses(fast) == 1
    assert [row[4] for row in seen] == [1.0, 2.0, 3.0]
    np.testing.assert_allclose([row[3] for row in seen], [0.0, trace, 2.0 * trace], rtol=1e-12)
    assert len({row[1] for row in seen}) == len({row[2] for row in seen}) == 3
    np.testing.assert_allclose([row[0] for row in seen], 2.0 * float(tf.reduce_sum(table @ w)), rtol=1e-12)


def test_a_check_is_made_at_every_call() -> None:
    w = weights(16, 16)

    def step(table: Any, x: Any) -> Any:
        y = tf.reduce_sum(table @ w)
        tf.debugging.assert_less(x, tf.constant(5.0, tf.float64))
        return y * x

    fast, table = gw.partially_evaluated(step, constant="table"), array(32, 16)
    fast(table, tf.constant(1.0, tf.float64))
    with pytest.raises(tf.errors.InvalidArgumentError):
        fast(table, tf.constant(6.0, tf.float64))


def two_towers() -> Any:
    keras.utils.set_random_seed(0)
    table, query = keras.Input((24,), name="table"), keras.Input((6,), name="query")
    encoded = keras.layers.Dense(8)(keras.layers.BatchNormalization()(keras.layers.Dense(16, activation="relu")(table)))
    scores = keras.ops.matmul(keras.layers.Dense(8)(query), keras.ops.transpose(encoded))
    return keras.Model([table, query], scores)


class Towers(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.query = keras.layers.Dense(8), keras.layers.Dense(8)

    def call(self, inputs: Any) -> Any:
        return keras.ops.matmul(self.query(inputs["query"]), keras.ops.transpose(self.table(inputs["table"])))


def floats(*shape: int) -> Any:
    return tf.constant(RNG.normal(size=shape), tf.float32)


def test_keras_models_and_saved_signatures(tmp_path: Path) -> None:
    table, query = floats(100, 24), floats(2, 6)
    functional, subclassed = two_towers(), Towers()
    fast = gw.partially_evaluated(functional, constant="table")
    for scale in (1.0, 2.0):
        np.testing.assert_allclose(fast([table, query * scale]), functional([table, query * scale]), rtol=1e-5, atol=1e-5)
    assert (misses(fast), fast.cache_info().hits) == (1, 1)
    assert fast.kept_parts()[0].nbytes <= 100 * 8 * 4
    expected = subclassed({"table": table, "query": query})
    fast = gw.partially_evaluated(subclassed, constant="table")
    np.testing.assert_allclose(fast({"table": table, "query": query}), expected, rtol=1e-5, atol=1e-5)
    assert len(fast.kept_parts()[0].values) == 1

    w = tf.Variable(floats(24, 8))
    module = tf.Module()
    module.w = w
    module.f = tf.function(lambda table, query: {"y": query @ tf.transpose(table @ w)})
    tf.saved_model.save(module, tmp_path, signatures=module.f.get_concrete_function(tf.TensorSpec((None, 24)), tf.TensorSpec((None, 8))))
    loaded = tf.saved_model.load(tmp_path)
    served = loaded.signatures["serving_default"]
    fast, query = gw.partially_evaluated(served, constant="table"), floats(2, 8)
    for expected_misses in (1, 1, 2):
        np.testing.assert_allclose(fast(table=table, query=query)["y"], served(table=table, query=query)["y"], rtol=1e-5, atol=1e-5)
        assert misses(fast) == expected_misses
        if fast.cache_info().hits:
            loaded.w.assign_add(tf.ones_like(loaded.w))


_W = tf.Variable(np.eye(16))


@pytest.mark.parametrize(
    ("fn", "constant", "words"),
    [
        (lambda table, x: (table + x) @ _W, "table", "AddV2 'add' reads an argument that is not constant"),
        (
            lambda table, x: (table + tf.random.uniform((32, 16), dtype=tf.float64)) @ _W * x,
            "table",
            "reads RandomUniform .*draws random numbers",
        ),
        (lambda table, x: tf.tanh(table) * x, "table", "less to compute than to compare"),
        (lambda table, x: table * x, "tables", "no argument 'tables', but table, x"),
    ],
    ids=["mixed", "random", "cheap", "name"],
)
def test_what_is_refused(fn: Callable[..., Any], constant: str, words: str) -> None:
    with pytest.raises((gw.UnsupportedError, gw.ArgumentError), match=words):
        gw.partially_evaluated(fn, constant=constant)(array(32, 16), tf.constant(1.0, tf.float64))


@pytest.mark.parametrize("traced", [False, True])
def test_gradients_that_the_function_states_itself_are_refused(traced: bool) -> None:
    fn = lambda table, x: tf.reduce_sum(tf.nn.silu(table @ _W)) * x  # noqa: E731
    fast, table, x = gw.partially_evaluated(fn, constant="table"), array(32, 16), tf.constant(1.0, tf.float64)
    np.testing.assert_allclose(fast(table, x), fn(table, x), rtol=1e-12)
    run = tf.function(fast) if traced else fast
    with pytest.raises(gw.UnsupportedError, match="gradients of its own"), tf.GradientTape() as tape:
        tape.gradient(run(table, x), _W)  # a tf.function makes its backward pass when it is called under a tape


A, B = tf.Variable(np.zeros((8, 8))), tf.Variable(np.zeros((8, 8)))
TABLES = [tf.constant(np.arange(128.0).reshape(16, 8) % (k + 3)) for k in range(3)]
NUMBERS = st.integers(-2, 2).map(float)


def chosen(table: Any, x: Any) -> Any:
    y = tf.cond(A[0, 0] > 0.0, lambda: table @ A @ A, lambda: table @ A)
    return y @ (A + B * x)


FAST = gw.partially_evaluated(chosen, constant="table", max_bytes=20_000)
STATE = tf.Variable(np.zeros((8, 8)))


def writing(table: Any, x: Any) -> Any:
    y = tf.reduce_sum(table @ A) + tf.reduce_sum(table @ STATE)
    STATE.assign_add(tf.fill((8, 8), x))
    return y * x + tf.reduce_sum(table @ STATE)


FAST_WRITING = gw.partially_evaluated(writing, constant="table")


class Programs(RuleBasedStateMachine):
    """Reads, writes, restores and calls in any order, beside plain code. All numbers are integers, so results are exact."""

    @initialize(start=NUMBERS)
    def begin(self, start: float) -> None:
        for variable in (A, B, STATE):
            variable.assign(tf.fill((8, 8), tf.constant(start, tf.float64)))
        self.saved = (A.numpy(), B.numpy())

    @rule(x=NUMBERS, which=st.sampled_from([A, B]))
    def assign(self, x: float, which: Any) -> None:
        which.assign(tf.fill((8, 8), tf.constant(x, tf.float64)))

    @rule(row=st.integers(0, 7), x=NUMBERS)
    def scatter(self, row: int, x: float) -> None:
        tf.raw_ops.ResourceScatterUpdate(resource=A.handle, indices=[row], updates=np.full((1, 8), x))

    @rule()
    def save(self) -> None:
        self.saved = (A.numpy(), B.numpy())

    @rule()
    def restore(self) -> None:
        for variable, value in zip((A, B), self.saved, strict=True):
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)

    @rule(x=NUMBERS)
    def write_in_a_thread(self, x: float) -> None:
        writer = threading.Thread(target=lambda: A.assign_add(tf.fill((8, 8), tf.constant(x, tf.float64))))
        writer.start()
        writer.join()

    @rule(table=st.sampled_from(TABLES), x=NUMBERS)
    def call(self, table: Any, x: float) -> None:
        given = tf.constant(x, tf.float64)
        np.testing.assert_array_equal(FAST(table, given), chosen(table, given))
        assert FAST.cache_info().nbytes <= 20_000

    @rule(table=st.sampled_from(TABLES), x=NUMBERS)
    def call_what_writes(self, table: Any, x: float) -> None:
        given, before = tf.constant(x, tf.float64), STATE.numpy()
        ours, state = FAST_WRITING(table, given).numpy(), STATE.numpy()
        STATE.assign(before)
        np.testing.assert_array_equal(ours, writing(table, given))
        np.testing.assert_array_equal(state, STATE)

    @rule(table=st.sampled_from(TABLES), x=NUMBERS)
    def differentiate(self, table: Any, x: float) -> None:
        given, found = tf.constant(x, tf.float64), []
        for fn in (FAST, chosen):
            with tf.GradientTape() as tape:
                tape.watch([table, given])
                y = tf.reduce_sum(fn(table, given))
            found.append(tape.gradient(y, [table, given, A, B]))
        for ours, plain in zip(*found, strict=True):
            np.testing.assert_array_equal(tf.convert_to_tensor(ours), tf.convert_to_tensor(plain))


@pytest.mark.parametrize(
    "count", [15, pytest.param(60, marks=pytest.mark.slow), pytest.param(300, marks=[pytest.mark.slow, pytest.mark.thorough])]
)
def test_no_program_sees_a_stale_result(count: int) -> None:
    run_state_machine_as_test(Programs, settings=settings(max_examples=count, stateful_step_count=10))


class Inputs(NamedTuple):
    table: Any
    query: Any


def test_arguments_by_every_way_of_naming_them() -> None:
    table, query = floats(64, 16), floats(2, 16)
    weights = tf.Variable(floats(16, 16))

    def scores(table: Any, query: Any) -> Any:
        return query @ tf.transpose(table @ weights)

    def by_default(query: Any, table: Any = table) -> Any:
        return scores(table, query)

    def by_rest(query: Any, *tables: Any) -> Any:
        return tf.add_n([scores(t, query) for t in tables])

    def by_field(inputs: Inputs) -> Any:
        return scores(inputs.table, inputs.query)

    for fn, constant, given, kept in (
        (by_default, "table", (query,), 1),
        (by_rest, "tables", (query, table, table + 1.0), 2),
        (by_field, "table", (Inputs(table, query),), 1),
    ):
        fast = gw.partially_evaluated(fn, constant=constant)
        for _ in range(2):
            np.testing.assert_allclose(fast(*given), fn(*given), rtol=1e-5, atol=1e-5)
        assert (fast.cache_info().hits, misses(fast), len(fast.kept_parts()[0].values)) == (1, 1, kept), fn
