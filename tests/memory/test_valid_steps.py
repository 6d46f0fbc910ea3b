"""Steps that TensorFlow runs are planned and costed, none falls back to the original."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.errors import VerificationWarning

layers = keras.layers
BATCH = 32
AMPLE = "1GiB"


@pytest.fixture(autouse=True)
def nothing_falls_back() -> Iterator[None]:
    keras.utils.set_random_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", VerificationWarning)
        yield


def compiled(optimizer: Any, *parts: Any, shape: tuple[int, ...], dtype: str = "float32") -> keras.Model:
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *parts, layers.Flatten(), layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def costs_are_stated(model: Any, data: Any) -> None:
    """Every question about costs has an answer that nothing is missing from."""
    traced = gw.predict_peak(model, inputs=data, order="traced")
    executor = gw.predict_peak(model, inputs=data, order="executor")
    assert 0.3 < traced.peak_bytes / executor.peak_bytes < 3
    assert "not exact" not in executor.how
    assert gw.count_flops(model, inputs=data).total > 0
    assert gw.count_parameters(model, inputs=data).total > 0
    report = gw.inspect(model, inputs=data)
    assert report.executor is not None
    assert report.forward_flops > 0


@pytest.mark.parametrize("optimizer", ["rmsprop", pytest.param("adagrad", marks=pytest.mark.slow)])
def test_sparse_gradients_through_conditionals(optimizer: str) -> None:
    data = (tf.random.uniform((64, 16), 0, 100, tf.int32), tf.random.normal((64, 1)))
    model = compiled(optimizer, layers.Embedding(100, 40), shape=(16,), dtype="int32")
    costs_are_stated(model, data)
    plan = gw.optimize_memory(model, AMPLE, inputs=data, cache_dir=None).memory_plan()
    assert "upper bounds, with as many rows as there can be" in plan.how["sizes"]


def test_pools_of_three_dimensions_are_simulated() -> None:
    data = (tf.random.normal((4, 8, 16, 16, 2)), tf.random.normal((4, 1)))
    model = compiled("sgd", layers.Conv3D(4, 3, padding="same"), layers.MaxPool3D(), shape=(8, 16, 16, 2))
    costs_are_stated(model, data)
    report = gw.inspect(model, inputs=data)
    (workspace,) = {v.nbytes for v in report.executor.live if "MaxPool3D:1" in v.name} or {4 * 4 * 8 * 8 * 4}
    assert workspace == 4 * 4 * 8 * 8 * 4  # one byte per element of the output


# Arguments


def make_step() -> Any:
    weight = tf.Variable(tf.ones((64, 64)) / 64)

    @tf.function
    def step(x: Any, rate: Any = 0.5, training: bool = True, *, scale: float = 2.0) -> Any:
        loss = tf.reduce_mean(tf.tanh(tf.tanh(x @ weight) @ weight)) * scale
        if training:
            weight.assign_sub(rate * tf.ones_like(weight) / 64)
        return loss

    return step


CALLS: dict[str, Callable[..., Any]] = {
    "defaults": lambda step, x: step(x),
    "by name": lambda step, x: step(x=x),
    "by position": lambda step, x: step(x, 0.25),
    "mixed": lambda step, x: step(x, rate=0.25),
    "a flag alone": lambda step, x: step(x, training=False),
    "keyword only": lambda step, x: step(x, 0.5, True, scale=3.0),
    "a tensor for a number": lambda step, x: step(x, tf.constant(0.25), scale=3.0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_arguments_are_bound_as_tensorflow_does(call: Callable[..., Any]) -> None:
    x = tf.random.normal((64, 64))
    plain, planned = make_step(), gw.optimize_memory(make_step(), AMPLE, cache_dir=None)
    for _ in range(2):
        assert float(call(plain, x)) == float(call(planned, x))
    assert len(planned.plans) == 1


def test_one_plan_however_the_arguments_are_given() -> None:
    x = tf.random.normal((64, 64))
    step = gw.optimize_memory(make_step(), AMPLE, feeds={"x": (64, 64)}, cache_dir=None)
    for call in ((x,), (x, 0.5), (x, 0.5, True)):
        step(*call)
    step(x=x)
    step(x, rate=0.5, scale=2.0)
    step(training=True, x=x)
    assert len(step.plans) == 1
    step(x, training=False)
    assert len(step.plans) == 2
    with pytest.raises(gw.ArgumentError, match=r"the inputs do not fit the step.*unexpected keyword argument 'rates'"):
        step(x, rates=0.5)
    with pytest.raises(gw.ArgumentError, match="missing a required argument: 'x'"):
        step(rate=0.5)


def test_methods_signatures_and_all_the_rest_that_functions_take() -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            self.weight = tf.Variable(tf.ones((64, 64)) / 64)

        @tf.function
        def step(self, x: Any, rate: float = 0.5, *, twice: bool = False) -> Any:
            y = tf.tanh(x @ self.weight)
            return tf.reduce_mean(tf.tanh(y @ self.weight) if twice else y) * rate

        @tf.function(input_signature=[tf.TensorSpec((None, 64)), tf.TensorSpec(())])
        def signed(self, x: Any, rate: Any = 0.5) -> Any:
            return tf.reduce_mean(tf.tanh(x @ self.weight)) * rate

    @tf.function
    def variadic(x: Any, /, *others: Any, scale: float = 1.0, **named: Any) -> Any:
        return scale * sum(tf.reduce_sum(tf.sin(v)) for v in (x, *others, *named.values()))

    model, x, y = Model(), tf.random.normal((64, 64)), tf.random.normal((32, 64))
    steps: list[tuple[Any, list[Callable[[Any], Any]]]] = [
        (model.step, [lambda f: f(x), lambda f: f(x, twice=True), lambda f: f(x, 0.25, twice=True)]),
        (model.signed, [lambda f: f(x), lambda f: f(x, 0.25), lambda f: f(y, rate=0.25)]),
        (variadic, [lambda f: f(x), lambda f: f(x, y, y), lambda f: f(x, y, scale=2.0, z=y), lambda f: f(x, z=y)]),
    ]
    for function, calls in steps:
        planned = gw.optimize_memory(function, "1GiB", cache_dir=None)
        for call in calls:
            assert float(call(planned)) == float(call(function))
    assert gw.optimize_memory(variadic, "1GiB", feeds={"x": (4, 4), "others": ((8,), (9,)), "z": (3,)}, cache_dir=None).plan.feeds == {
        "x": (4, 4),
        "others_0": (8,),
        "others_1": (9,),
        "z": (3,),
    }


@pytest.mark.parametrize("inputs", [0, (0,), (0, 0.25), {"x": 0, "training": False}, {"x": 0, "rate": 0.25, "scale": 3.0}], ids=str)
def test_example_inputs_may_leave_defaults_out(inputs: Any) -> None:
    x = tf.random.normal((64, 64))
    given = tf.nest.map_structure(lambda leaf: x if leaf == 0 and leaf is not False else leaf, inputs)
    step = make_step()
    planned = gw.optimize_memory(step, AMPLE, inputs=given, cache_dir=None)
    assert gw.verify(step, planned, given).equal
    assert len(planned.plans) == 1
    traced = gw.predict_peak(planned, inputs=given, order="traced").peak_bytes
    assert gw.inspect(step, inputs=given, order="traced").peak_bytes == traced == planned.plan.peak_bytes
    assert gw.count_flops(step, inputs=given).total > 2 * 2 * 64**3


def test_what_is_traced_with_keywords_can_be_run_with_made_up_inputs() -> None:
    """Made-up arguments are given by position and by name, as those of `profile` are."""
    report = gw.profile(make_step(), feeds={"x": (64, 64), "scale": 3.0, "training": False}, isolated=False)
    assert report.feeds == {"x": (64, 64)}


# Structures of feeds

SPEC = tf.TensorSpec
FEEDS: dict[str, Any] = {
    "a mapping of specs": {"batch": {"x": SPEC((64, 8)), "y": [SPEC((64,), tf.int32)]}},
    "a mapping of shapes": {"batch": {"x": (64, 8), "y": [SPEC((64,), tf.int32)]}, "weighted": False},
}


def structured_step() -> Any:
    weight = tf.Variable(tf.ones((8, 8)))

    @tf.function
    def step(batch: Any, weighted: bool = True) -> Any:
        error = tf.tanh(batch["x"] @ weight) - tf.one_hot(batch["y"][0], 8)
        return tf.reduce_mean(error**2 * weight[0] if weighted else error**2)

    return step


@pytest.mark.parametrize("feeds", FEEDS.values(), ids=FEEDS)
def test_feeds_have_the_structure_of_the_argument(feeds: Any) -> None:
    report = gw.inspect(structured_step(), feeds=feeds)
    assert sorted(report.feeds.values()) == [(64,), (64, 8)]
    step = gw.optimize_memory(structured_step(), AMPLE, feeds=feeds, cache_dir=None)
    step({"x": tf.ones((64, 8)), "y": [tf.zeros(64, tf.int32)]}, weighted=feeds.get("weighted", True))
    assert len(step.plans) == 1  # planned for this very call
    assert gw.count_flops(structured_step(), feeds=feeds).total > 0


def test_feeds_of_what_has_its_own_signature() -> None:
    open_specs = {"x": SPEC((None, 8)), "y": [SPEC((None,), tf.int32)]}
    signed = tf.function(structured_step().python_function, input_signature=[open_specs])
    for target in (signed, structured_step().get_concrete_function(open_specs)):
        assert gw.inspect(target, feeds={"batch": {"x": (64, 8), "y": [(64,)]}}).feeds == {"batch": (64, 8), "batch_1": (64,)}
        with pytest.raises(gw.ArgumentError, match="'batch' holds 2 tensors, and the feed 1"):
            gw.inspect(target, feeds={"batch": {"x": (64, 8)}})


def test_the_batch_size_is_open_in_structures_too() -> None:
    feeds = {"batch": {"x": (None, 8), "y": [SPEC((None,), tf.int32)]}}
    assert "batch" in str(gw.count_flops(structured_step(), feeds=feeds).formula)
    assert gw.max_batch(structured_step(), "1MiB", feeds).batch > 64
    assert "batch" in str(gw.infer_shapes(structured_step(), feeds))


def test_feeds_of_models_with_several_inputs() -> None:
    a, b = keras.Input((8,), name="a"), keras.Input((4,), name="b")
    model = keras.Model([a, b], {"p": layers.Dense(1)(a), "q": layers.Dense(2)(layers.Concatenate()([a, b]))})
    model.compile("sgd", {"p": "mse", "q": "mse"})
    for x in ([SPEC((64, 8)), SPEC((64, 4))], {"a": (64, 8), "b": (64, 4)}):
        assert list(gw.inspect(model, feeds={"x": x}).feeds.values()) == [(64, 8), (64, 4), (64, 1), (64, 2)]
    found = gw.inspect(model, feeds={"x": [(32, 8), (32, 4)], "y": {"p": (32, 1), "q": SPEC((32, 2))}})
    assert list(found.feeds.values()) == [(32, 8), (32, 4), (32, 1), (32, 2)]


def test_a_step_without_any_large_tensor_is_planned() -> None:
    step = gw.optimize_memory(tf.function(lambda x: x + 1.0), "1MiB", inputs=tf.ones(3), cache_dir=None)
    assert step.plan.peak_bytes == 0


@pytest.mark.parametrize("verb", ["scatter_nd_add", "scatter_nd_sub", "scatter_nd_update"])
def test_scattered_updates_of_rows(verb: str) -> None:
    """Twice in a step, with reads of the variable before, between and behind."""

    def make() -> Any:
        table, weight = tf.Variable(tf.ones((64, 128))), tf.Variable(tf.ones((128, 128)) / 128)

        @tf.function
        def step(rows: Any, x: Any) -> Any:
            y = tf.tanh(tf.tanh(x @ weight) @ weight) * table
            getattr(table, verb)(rows[:, None], y)
            between = tf.reduce_sum(table)
            getattr(table, verb)(rows[:, None], 2.0 * y)
            return between, tf.reduce_sum(table)

        return step

    inputs = (tf.random.shuffle(tf.range(64)), tf.random.normal((64, 128)))
    planned, plain = gw.optimize_memory(make(), AMPLE, inputs=inputs, cache_dir=None), make()
    for _ in range(2):
        assert [float(v) for v in planned(*inputs)] == [float(v) for v in plain(*inputs)]
    report = gw.inspect(plain, inputs=inputs)
    assert report.executor is not None
    assert "not exact" not in report.executor.how


@pytest.mark.slow
def test_gradients_of_gradients_through_maps_in_maps() -> None:
    @tf.function
    def step(x: Any, weight: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(weight)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.map_fn(lambda row: tf.map_fn(lambda element: tf.tanh(element * weight) ** 2, row), x)
            penalty = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return outer.gradient(penalty, weight)

    inputs = (tf.random.normal((4, 5, 64)), tf.random.normal((64,)))
    planned = gw.optimize_memory(step, AMPLE, inputs=inputs, cache_dir=None)
    assert gw.verify(step, planned, inputs).equal
    assert planned.plan.original_peak_bytes > 4 * 5 * 64 * 4


def test_an_optimized_model_compiled_to_run_eagerly_runs_plainly() -> None:
    model = compiled("sgd", layers.Dense(8), shape=(4,))
    data = (tf.ones((BATCH, 4)), tf.ones((BATCH, 1)))
    gw.optimize_memory(model, AMPLE, inputs=data, cache_dir=None)
    model.fit(*data, verbose=0)
    ran_eagerly: list[bool] = []

    class Watched(keras.losses.MeanSquaredError):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            ran_eagerly.append(tf.executing_eagerly())
            return super().call(y_true, y_pred)

    model.compile("sgd", Watched(), run_eagerly=True)
    before = model.get_weights()[0]
    model.fit(*data, epochs=2, verbose=0)
    model.train_on_batch(*data)
    assert ran_eagerly == [True] * 3
    assert (model.get_weights()[0] != before).all()
    model.compile("sgd", "mse")
    model.fit(*data, verbose=0)
    assert len(model.optimized_step.plans) == 1  # planned again
