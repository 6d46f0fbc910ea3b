"""`gw.cached`: what is evaluated, when, and that nothing stale is returned."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import graphwright as gw
from graphwright.source.private_tensorflow import read_xspace


def kernels(run: Callable[[], Any], op_type: str) -> int:
    """How often TensorFlow ran kernels of a type, as its own profiler saw it."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        run()
        tf.profiler.experimental.stop()
        planes = read_xspace(next(Path(folder).rglob("*.xplane.pb")).read_bytes()).planes
    names = [p.event_metadata[event.metadata_id].name for p in planes for line in p.lines for event in line.events]
    return sum(op_type in name for name in names)


def matrix(size: int = 5, seed: int = 0) -> Any:
    return tf.Variable(np.random.default_rng(seed).normal(size=(size, size)) * 0.1)


def counts(fn: Any) -> tuple[int, int]:
    info = fn.cache_info()
    return info.hits, info.misses


def vectors(count: int = 20) -> list[Any]:
    return [tf.constant(np.random.default_rng(k).normal(size=(5, 1))) for k in range(count)]


def test_twenty_uses_are_one_evaluation_by_the_kernels_that_ran() -> None:
    w = matrix()
    plain = lambda: tf.linalg.inv(w + 1.0)  # noqa: E731
    inverse, xs = gw.cached(plain), vectors()

    def use(fn: Callable[[], Any]) -> list[Any]:
        return [fn() @ x for x in xs]

    expected = use(plain)
    assert kernels(lambda: use(plain), "MatrixInverse") == 20
    assert kernels(lambda: use(inverse), "MatrixInverse") == 1
    w.assign_add(tf.eye(5, dtype=tf.float64))
    assert kernels(lambda: use(inverse), "MatrixInverse") == 1
    np.testing.assert_allclose(use(inverse), use(plain), rtol=1e-12)
    assert not np.allclose(use(inverse), expected)


def test_a_loop_in_a_function_and_a_tape_around_it() -> None:
    w = matrix()
    exponential = gw.cached(lambda: tf.linalg.expm(w))

    @tf.function
    def step() -> Any:
        total = tf.zeros((5, 1), tf.float64)
        for _ in tf.range(20):
            total += exponential() @ tf.ones((5, 1), tf.float64)
        return total

    def plain() -> Any:
        return 20.0 * tf.linalg.expm(w) @ tf.ones((5, 1), tf.float64)

    np.testing.assert_allclose(step(), plain(), rtol=1e-12)
    assert counts(exponential) == (19, 1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(step())
    with tf.GradientTape() as plain_tape:
        plain_loss = tf.reduce_sum(plain())
    np.testing.assert_allclose(tape.gradient(loss, w), plain_tape.gradient(plain_loss, w), rtol=1e-12)
    assert counts(exponential) == (39, 1)


def test_gradients_by_arguments_by_what_is_closed_over_and_of_gradients() -> None:
    w, a, b = tf.Variable(3.0), tf.constant(2.0), tf.constant(5.0)
    plain = lambda x: w**2 * x**3 + b * x  # noqa: E731
    fn = gw.cached(plain)
    for function in (fn, plain):
        with tf.GradientTape() as outer:
            outer.watch([a, b])
            with tf.GradientTape() as inner:
                inner.watch([a, b])
                y = function(a)
            first = inner.gradient(y, [a, b, w])
            second = outer.gradient(first[0], [a, w])
        assert [float(g) for g in (*first, *second)] == [9.0 * 12.0 + 5.0, 2.0, 48.0, 108.0, 72.0], function
    with tf.autodiff.ForwardAccumulator(a, tf.constant(1.0)) as forward:
        y = fn(a)
    assert float(forward.jvp(y)) == 113.0


def _raw(w: Any, indices: list[int]) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=w.handle, indices=indices, updates=np.full((1, 2), 7.0, np.float32))


WRITES: dict[str, Callable[[Any], Any]] = {
    "assign": lambda w: w.assign(w + 1.0),
    "assign_add": lambda w: w.assign_add(tf.ones((2, 2))),
    "a slice": lambda w: w[0, 1].assign(9.0),
    "scatter": lambda w: w.scatter_nd_update([[1, 1]], [8.0]),
    "a raw operation": lambda w: _raw(w, [1]),
    "a function": lambda w: tf.function(lambda: w.assign_sub(tf.ones((2, 2))))(),
    "a thread": lambda w: (t := threading.Thread(target=lambda: w.assign(w * 2.0)), t.start(), t.join()),
    "an optimizer": lambda w: keras.optimizers.Adam(0.1).apply([tf.ones((2, 2))], [w]),
    "a compiled function": lambda w: tf.function(lambda: w.assign_add(tf.ones((2, 2))), jit_compile=True)(),
    "one bit": lambda w: w.assign(tf.where([[True, False], [False, False]], np.nextafter(w, np.float32(9)), w)),
    "the sign of a zero": lambda w: w.assign(-w),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_every_write_is_seen_and_what_is_not_changed_is_kept(write: Callable[[Any], Any]) -> None:
    w = tf.Variable([[0.0, 2.0], [3.0, 4.0]])
    square = gw.cached(lambda: 1.0 / (w * w * w))
    square(), square()
    assert counts(square) == (1, 1)
    before = w.numpy()
    write(w)
    assert w.numpy().tobytes() != before.tobytes()
    np.testing.assert_array_equal(square(), 1.0 / (w * w * w))
    square()
    assert counts(square) == (2, 2)
    w.assign(w.read_value())
    square()
    assert counts(square) == (3, 2)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int32"])
def test_variables_of_any_dtype_in_branches_loops_and_functions(dtype: str) -> None:
    w = tf.Variable(tf.cast([[1, 2], [3, 4]], dtype))
    inner = tf.function(lambda y: y + w)

    def branches() -> Any:
        return tf.cond(w[0, 0] > 0, lambda: inner(w * 2), lambda: w - tf.gather(w, [1, 0]))

    def loops() -> Any:
        def body(k: Any, y: Any) -> Any:
            return k + 1, tf.cond(y[0, 0] > 3, lambda: y - w, lambda: inner(y)) + branches()

        return tf.while_loop(lambda k, _: k < 3, body, (0, w + 0))[1]

    for fn in (branches, loops):
        kept, plain = gw.cached(fn), tf.function(fn)
        for change, seen in ((0, (1, 1)), (2, (2, 2)), (-9, (3, 3))):
            w.assign_add(tf.cast(tf.fill((2, 2), change), dtype))
            np.testing.assert_array_equal(tf.cast(kept(), "float64"), tf.cast(plain(), "float64"))
            np.testing.assert_array_equal(tf.cast(kept(), "float64"), tf.cast(plain(), "float64"))
            assert counts(kept) == seen
        if w.dtype.is_floating:
            found = []
            for run in (kept, plain):
                with tf.GradientTape() as tape:
                    y = run()
                found.append(tf.cast(tape.gradient(y, w), "float64"))
            np.testing.assert_array_equal(*found)


def test_one_result_per_signature_within_the_bound() -> None:
    fn = gw.cached(lambda x: x + 1.0, max_bytes=96)
    one, two, other = tf.zeros([4]), tf.ones([4]), tf.ones([2])
    for x in (one, one, two, other, two, other, one):
        np.testing.assert_array_equal(fn(x), x + 1.0)
    assert fn.cache_info() == gw.CacheInfo(3, 4, 2, 48, 96, 0)
    fn(tf.zeros(100))
    assert (fn.cache_info().too_large, fn.cache_info().entries) == (1, 2)
    fn.cache_clear()
    assert fn.cache_info() == gw.CacheInfo(0, 0, 0, 0, 96, 0)


def test_open_shapes_strings_and_structures() -> None:
    w = tf.Variable(tf.ones([1]), shape=tf.TensorShape(None))
    fn = gw.cached(lambda x, names: {"y": tf.reduce_sum(w) * x, "names": [tf.strings.upper(names), None]})
    for value in (tf.ones([1]), tf.ones([3]), tf.ones([3, 1]), tf.ones([3])):
        w.assign(value)
        y = fn(tf.constant(2.0), tf.constant(["a", "b"]))
        assert float(y["y"]) == 2.0 * value.shape.num_elements()
        assert y["names"][0].numpy().tolist() == [b"A", b"B"]
        assert y["names"][1] is None
    assert counts(fn) == (0, 4)
    ragged = gw.cached(lambda x: x * 2.0)
    for _ in range(2):
        assert ragged(tf.ragged.constant([[1.0], [2.0, 3.0]])).to_list() == [[2.0], [4.0, 6.0]]
    assert counts(ragged) == (1, 1)


def test_methods_and_layers() -> None:
    class Kernel:
        def __init__(self, scale: float) -> None:
            self.scale = tf.Variable(scale)

        @gw.cached(max_bytes="1MiB")
        def matrix(self, power: int = 2) -> Any:
            return self.scale**power

    one, two = Kernel(2.0), Kernel(3.0)
    assert [float(k.matrix(p)) for k in (one, two) for p in (2, 3) for _ in range(2)] == [4.0, 4.0, 8.0, 8.0, 9.0, 9.0, 27.0, 27.0]
    assert counts(one.matrix) == (4, 4)
    assert one.matrix.cache_info().max_bytes == 2**20
    layer = keras.layers.Dense(3)
    x = tf.ones((2, 4))
    layer(x)
    kept = gw.cached(layer)
    np.testing.assert_allclose(kept(x), layer(x))
    layer.kernel.assign(layer.kernel * 2.0)
    np.testing.assert_allclose(kept(x), layer(x))
    assert counts(kept) == (0, 2)


_W = tf.Variable(1.0)
_DROPOUT = keras.layers.Dropout(0.5)
_NORM = keras.layers.BatchNormalization()
_NORM.build((None, 3))
_STREAM = iter(tf.data.Dataset.range(100))
_TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)


@pytest.mark.parametrize(
    ("fn", "named"),
    [
        (lambda: tf.random.normal([2]), "RandomStandardNormal draws random numbers"),
        (lambda: _W.assign_add(1.0), "AssignAddVariableOp writes to a variable"),
        (lambda: tf.py_function(float, [_W], tf.float32), "EagerPyFunc calls Python"),
        (lambda: _DROPOUT(tf.ones((2, 3)), training=True), "writes to a variable"),
        (lambda: _NORM(tf.ones((2, 3)), training=True), "writes to a variable"),
        (lambda: next(_STREAM), "IteratorGetNext"),
        (lambda: _TABLE.lookup(tf.constant(1)), "LookupTableFindV2"),
        (lambda: tf.while_loop(lambda x: x < 3.0, lambda x: x + tf.random.uniform([]), [0.0]), "RandomUniform draws random numbers"),
    ],
    ids=["random", "write", "python", "dropout", "batch norm", "data set", "table", "in a loop"],
)
def test_what_is_not_the_same_at_each_call_is_refused_by_name(fn: Any, named: str) -> None:
    with pytest.raises(gw.UnsupportedError, match=named) as caught:
        gw.cached(fn)()
    assert "operation" in caught.value.where
    assert "remedy" in str(caught.value)


def test_arguments_and_places_that_are_refused() -> None:
    double = gw.cached(lambda: 2.0 * _W)
    with pytest.raises(gw.UnsupportedError, match="XLA"):
        tf.function(double, jit_compile=True)()
    with pytest.raises(gw.UnsupportedError, match="TensorFlow 1"), tf.Graph().as_default():
        gw.cached(lambda x: x)(tf.constant(1.0))
    with pytest.raises(gw.ArgumentError, match="share"):
        gw.cached(lambda: 1.0, max_bytes=0.5)  # type: ignore[arg-type]
    with pytest.raises(gw.ArgumentError, match="cannot be called"):
        gw.cached(3)


def test_threads_evaluate_once() -> None:
    w = matrix(50)
    inverse = gw.cached(lambda: tf.linalg.inv(w + tf.eye(50, dtype=tf.float64)))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: inverse().numpy(), range(64)))
    assert counts(inverse) == (63, 1)
    assert all(np.array_equal(results[0], y) for y in results)


@pytest.mark.slow
def test_replicas_read_their_own_variables() -> None:
    """Two logical devices are set up in a process of their own."""
    code = """
import numpy as np, tensorflow as tf, graphwright as gw
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    w = tf.Variable([0.5, 0.25])
    cube = gw.cached(lambda: w**3)
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(cube() * cube()) / 2.0
    replica = tf.distribute.get_replica_context()
    w.assign_sub(0.1 * replica.all_reduce("SUM", tape.gradient(loss, w)))
    return loss
for run in (lambda: strategy.run(step), tf.function(lambda: strategy.run(step))):
    for _ in range(3):
        x, misses = w.numpy(), cube.cache_info().misses
        losses = strategy.experimental_local_results(run())
        np.testing.assert_allclose([float(y) for y in losses], [np.sum(x**6) / 2.0] * 2, rtol=1e-6)
        np.testing.assert_allclose(w.numpy(), x - 0.1 * 6.0 * x**5, rtol=1e-5)
        assert cube.cache_info().misses == misses + 2, cube.cache_info()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


A = tf.Variable(tf.zeros((2, 2)))
B = tf.Variable(tf.zeros(3))
NUMBERS = st.integers(-2, 2).map(float)


def product(x: Any) -> Any:
    return A @ A * x


def chosen() -> Any:
    total = tf.reduce_sum(A)
    for _ in tf.range(2):
        total += tf.gather(B, 1)
    return tf.cond(B[0] > 0.0, lambda: total, lambda: -total)


KEPT_PRODUCT, KEPT_CHOSEN = gw.cached(product, max_bytes=200), gw.cached(chosen)


@tf.function
def written_between(x: Any) -> Any:
    first = KEPT_PRODUCT(x) + KEPT_CHOSEN()
    A.assign_add(tf.fill([2, 2], x))
    return first, KEPT_PRODUCT(x) + KEPT_CHOSEN()


@tf.function
def in_a_loop(x: Any) -> Any:
    total = tf.zeros((2, 2))
    for k in tf.range(3):
        total += KEPT_PRODUCT(x)
        if k == 1:
            B.assign_add(tf.ones(3))
        total += KEPT_CHOSEN()
    return total


OPTIMIZER = keras.optimizers.SGD(1.0)
OPTIMIZER.build([A, B])


class Programs(RuleBasedStateMachine):
    """Reads, writes, restores and calls in any order, beside plain code. All numbers are small integers, so results are exact."""

    @initialize(start=NUMBERS, forget=st.booleans())
    def begin(self, start: float, forget: bool) -> None:
        A.assign(tf.fill([2, 2], start))
        B.assign(tf.fill([3], start))
        if forget:
            KEPT_PRODUCT.cache_clear()
        self.saved = (A.numpy(), B.numpy())

    @rule(x=NUMBERS)
    def assign(self, x: float) -> None:
        A.assign(tf.fill([2, 2], x))

    @rule(x=NUMBERS)
    def add(self, x: float) -> None:
        B.assign_add(tf.fill([3], x))

    @rule(row=st.integers(0, 1), x=NUMBERS)
    def scatter(self, row: int, x: float) -> None:
        tf.raw_ops.ResourceScatterUpdate(resource=A.handle, indices=[row], updates=tf.fill([1, 2], x))

    @rule(x=NUMBERS)
    def train(self, x: float) -> None:
        OPTIMIZER.apply([tf.fill([2, 2], x), tf.fill([3], -x)])

    @rule()
    def save(self) -> None:
        self.saved = (A.numpy(), B.numpy())

    @rule()
    def restore(self) -> None:
        for variable, value in zip((A, B), self.saved, strict=True):
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)

    @rule(x=NUMBERS)
    def call(self, x: float) -> None:
        np.testing.assert_array_equal(KEPT_PRODUCT(tf.constant(x)), product(x))

    @rule(x=NUMBERS)
    def differentiate(self, x: float) -> None:
        found = []
        for fn, other in ((KEPT_PRODUCT, KEPT_CHOSEN), (product, chosen)):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(fn(tf.constant(x)) * fn(tf.constant(x))) + other()
            found.append([tf.convert_to_tensor(g).numpy() for g in tape.gradient(y, [A, B])])
        for ours, plain in zip(*found, strict=True):
            np.testing.assert_array_equal(ours, plain)

    @rule(x=NUMBERS)
    def call_function(self, x: float) -> None:
        first = product(x) + chosen()
        ours = written_between(tf.constant(x))
        np.testing.assert_array_equal(ours[0], first)
        np.testing.assert_array_equal(ours[1], product(x) + chosen())

    @rule(x=NUMBERS)
    def call_loop(self, x: float) -> None:
        before, b = product(x), chosen()
        ours = in_a_loop(tf.constant(x))
        np.testing.assert_array_equal(ours, 3.0 * before + b + 2.0 * chosen())

    @rule(x=NUMBERS, y=NUMBERS)
    def threads(self, x: float, y: float) -> None:
        """Calls while another thread writes give the old or the new result."""
        old = product(x).numpy()
        writer = threading.Thread(target=lambda: A.assign(tf.fill([2, 2], y)))
        writer.start()
        seen = [KEPT_PRODUCT(tf.constant(x)).numpy() for _ in range(3)]
        writer.join()
        new = product(x).numpy()
        assert all(np.array_equal(s, old) or np.array_equal(s, new) for s in seen)
        np.testing.assert_array_equal(KEPT_PRODUCT(tf.constant(x)), new)

    @invariant()
    def never_stale(self) -> None:
        np.testing.assert_array_equal(KEPT_CHOSEN(), chosen())


@pytest.mark.parametrize(
    "count", [20, pytest.param(60, marks=pytest.mark.slow), pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.thorough])]
)
def test_no_program_sees_a_stale_result(count: int) -> None:
    run_state_machine_as_test(Programs, settings=settings(max_examples=count, stateful_step_count=10))
