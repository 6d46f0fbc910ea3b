"""Steps that XLA compiles in a budget: XLA's own figure keeps it, results are equal, Keras trains on."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.run.xla_memory import xla_memory
from tests.memory.xla.chain import chain


def _peak(step: Any, x: Any) -> int:
    return xla_memory(step.get_concrete_function(x) if hasattr(step, "get_concrete_function") else step, [tuple(x.shape)]).peak_bytes


def test_the_budget_is_kept_by_the_figure_of_xla() -> None:
    step, x, weights = chain()
    before = [w.numpy() for w in weights]
    fast = gw.optimize_memory(step, 0.65, inputs=(x,), time_limit_s=0.5, verify="run")
    plan = fast.plan
    assert plan.original_peak_bytes == _peak(step, x)
    assert plan.peak_bytes == _peak(fast.concrete_function(x), x) <= 0.65 * plan.original_peak_bytes
    assert plan.budget_bytes == int(0.65 * plan.original_peak_bytes)
    assert plan.resident_bytes <= plan.lower_bound_bytes <= plan.peak_bytes
    assert plan.recomputed_count > 0
    assert "XLA's buffer assignment" in plan.how["peak"]
    assert "made by XLA" in plan.how["order"]
    assert "total order" not in str(plan)
    assert re.match("by TensorFlow's kernels equal bit for bit.*compiled by XLA equal.*equal by structure", plan.verification)
    for one, other in zip(before, weights, strict=True):
        np.testing.assert_array_equal(one, other.numpy())
    expected = [float(step(x)) for _ in range(2)]
    for w, value in zip(weights, before, strict=True):
        w.assign(value)
    np.testing.assert_allclose([float(fast(x)) for _ in range(2)], expected, rtol=1e-5)


@pytest.mark.slow
def test_a_kept_plan_is_compiled_once_and_does_not_mix_with_the_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphwright.memory.xla.planning.Original", None)  # nothing is numbered where nothing is proved
    step, x, _ = chain()
    first = gw.optimize_memory(step, 0.7, inputs=(x,), cache_dir=tmp_path, verify=False, time_limit_s=0.5).plan
    gw.optimize_memory(chain(compiled=False)[0], first.budget_bytes, inputs=(x,), cache_dir=tmp_path, verify=False, time_limit_s=0.5)
    names = sorted(file.name for file in tmp_path.glob("*.json"))
    assert [name.startswith("xla-") for name in names] == [False, True]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("planned anew")

    monkeypatch.setattr("graphwright.memory.xla.planning.solve", refuse)
    second = gw.optimize_memory(step, 0.7, inputs=(x,), cache_dir=tmp_path, verify=False, time_limit_s=0.5).plan
    assert "plan cache" in second.how["plan"]
    assert second.peak_bytes == first.peak_bytes


@pytest.mark.slow
def test_a_budget_that_cannot_be_kept_says_what_can() -> None:
    step, x, _ = chain()
    with pytest.raises(gw.InfeasibleError, match="as XLA compiles it") as caught:
        gw.optimize_memory(step, 0.05, inputs=(x,), cache_dir=None, time_limit_s=0.5)
    smallest = caught.value.smallest_budget_bytes
    assert smallest is not None
    plan = gw.optimize_memory(step, smallest, inputs=(x,), cache_dir=None, verify=False, time_limit_s=0.5).plan
    assert plan.peak_bytes <= smallest < 0.7 * plan.original_peak_bytes


def test_a_step_that_fits_is_left_alone() -> None:
    step, x, _ = chain(3)
    fast = gw.optimize_memory(step, "100%", inputs=(x,), cache_dir=None, time_limit_s=0.5)
    assert fast.plan.status == "unchanged"
    assert fast.plan.peak_bytes == fast.plan.original_peak_bytes
    assert float(fast(x)) > 0


@pytest.mark.slow
def test_other_shapes_follow_the_plan_and_a_wrong_rewrite_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    step, x, _ = chain()
    fast = gw.optimize_memory(step, 0.7, inputs=(x,), cache_dir=None, time_limit_s=0.5)
    fast(x[:448])
    assert len(fast.plans) == 2
    assert "taken over" in fast.plans[1].how["plan"] or fast.plans[1].status == "unchanged"
    wrong, _, _ = chain()
    monkeypatch.setattr("graphwright.memory.optimized_step.verify_compiled", lambda *_, **__: ("", "output differs"))
    with pytest.warns(gw.VerificationWarning, match="output differs"):
        again = gw.optimize_memory(wrong, 0.7, inputs=(x,), cache_dir=None, time_limit_s=0.5, verify="run", on_failure="original")
    assert float(again(x)) > 0


def test_what_xla_cannot_compile_is_said() -> None:
    x = tf.ones((64, 64))

    @tf.function(jit_compile=True)
    def calls_back(x: Any) -> Any:
        return tf.numpy_function(np.sin, [x], tf.float32)

    with pytest.raises(gw.UnsupportedError, match="calls back into Python"):
        gw.optimize_memory(calls_back, 0.5, inputs=(x,), cache_dir=None, time_limit_s=0.5)

    @tf.function(jit_compile=True)
    def reads_text(x: Any) -> Any:
        return tf.strings.as_string(x)

    with pytest.raises(gw.UnsupportedError, match="XLA cannot compile"):
        gw.optimize_memory(reads_text, 0.5, inputs=(x,), cache_dir=None, time_limit_s=0.5)


def _model(**options: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    hidden = given = keras.Input((16,))
    for _ in range(3):
        branch = layers.Dropout(0.2)(layers.BatchNormalization()(layers.Dense(32, activation="relu")(hidden)))
        hidden = branch if hidden is given else layers.Add()([hidden, branch])
    model = keras.Model(given, layers.Dense(3)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], **({"jit_compile": True} | options))
    return model


@pytest.mark.slow
def test_a_keras_model_trains_saves_and_is_compiled_anew(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 16)).astype("float32"), rng.integers(0, 3, 600)
    plain, model = _model(), gw.optimize_memory(_model(), budget=0.75, verify="run")
    histories: list[Any] = []
    for each in (plain, model):
        keras.utils.set_random_seed(1)
        histories.append(each.fit(x, y, batch_size=256, epochs=2, shuffle=False, verbose=0, validation_data=(x, y)).history)
    for name in histories[0]:
        np.testing.assert_allclose(histories[1][name], histories[0][name], rtol=5e-3, err_msg=name)
    plan = model.memory_plan()
    assert plan.peak_bytes <= 0.75 * plan.original_peak_bytes
    assert plan.verification.startswith("by TensorFlow's kernels equal bit for bit")
    assert model.jit_compile is True
    assert len(model.optimized_step.plans) == 2  # the last batch of an epoch has 88 samples
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.fit(x[:256], y[:256], batch_size=256, verbose=0)
    assert "total order" in model.memory_plan().how["peak"]


def test_a_keras_model_of_several_replicas_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphwright.step.keras_step.strategy_of", lambda _: SimpleNamespace(num_replicas_in_sync=2))
    with pytest.raises(gw.UnsupportedError, match="2 replicas"):
        gw.optimize_memory(_model(), 0.5)


@pytest.mark.slow
def test_steps_that_draw_by_state_are_proved_by_kernels() -> None:
    w = tf.Variable(np.random.default_rng(0).normal(size=(32, 32)) / 6, dtype="float32")

    @tf.function(jit_compile=True)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for _ in range(6):
                y = tf.nn.dropout(tf.tanh(y @ w), 0.3)
            loss = tf.reduce_mean(y * y)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast = gw.optimize_memory(step, 0.75, inputs=(tf.ones((512, 32)),), cache_dir=None, time_limit_s=0.5, verify="run")
    assert "state of its own" in fast.plan.verification
    assert fast.plan.verification.startswith("by TensorFlow's kernels equal bit for bit")
