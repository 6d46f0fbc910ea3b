"""What can be done about memory: what is suggested, in which order, that it leaves the model alone, and what is likely a mistake."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.advice.keras_variants import mixed_precision
from graphwright.advice.lint import lint
from graphwright.errors import ArgumentError
from graphwright.report.advice import Suggestion, ranked
from graphwright.step.flatten import flat_step
from graphwright.step.targets import trace


@pytest.fixture(scope="module")
def model() -> keras.Model:
    layers = [keras.layers.Input((256,)), keras.layers.Dense(512, activation="relu"), keras.layers.Dense(512, activation="relu")]
    built = keras.Sequential([*layers, keras.layers.Dense(8)], name="wide")
    built.compile("adam", "mse")
    return built


@pytest.fixture(scope="module")
def advice(model: keras.Model) -> gw.Advice:
    return gw.advise(model, 0.8, batch=64, time_limit_s=0.2, cache_dir=None)


def test_each_thing_is_a_call_away_and_says_its_price(advice: gw.Advice) -> None:
    kinds = {s.kind for s in advice.suggestions} | set(advice.left_out)
    assert {"bfloat16", "optimizer"} <= kinds
    assert kinds & {"batch", "batch size"}
    by_call = {s.call: s for s in advice.suggestions}
    leaner = by_call["model.compile(keras.optimizers.SGD(momentum=0.9), loss=...)"]
    assert leaner.peak_bytes < advice.high_bytes  # Adam keeps two numbers of each weight, momentum one
    assert all(s.fits == (s.peak_bytes <= advice.memory_bytes) for s in advice.suggestions)
    assert [s.fits for s in advice.suggestions] == sorted((s.fits for s in advice.suggestions), reverse=True)
    assert json.loads(json.dumps(advice.to_json()))["verdict"] == advice.verdict
    assert "wide (training step)" in advice.text("all")
    assert leaner.call in advice.text("all")


def test_the_upper_end_of_the_range_decides() -> None:
    weight = tf.Variable(tf.ones((64, 64)))
    step, feeds = tf.function(lambda x: tf.reduce_sum(tf.tanh(x @ weight))), {"x": (512, 64)}
    peak = gw.predict_peak(step, feeds)
    tight, wide = (gw.advise(step, nbytes, feeds, time_limit_s=0.2, cache_dir=None) for nbytes in (peak.high_bytes - 1, peak.high_bytes))
    assert (tight.peak_bytes, tight.high_bytes) == (peak.peak_bytes, peak.high_bytes)
    assert (tight.fits, wide.fits) == (False, True)
    assert "(upper end of the predicted range)" in tight.verdict
    inspection = gw.inspect(step, feeds)
    assert "Fits as it is" not in str(inspection.with_advice(tight))
    assert "Fits as it is" in str(inspection.with_advice(wide))


def test_the_model_stays_as_it_was(model: keras.Model, advice: gw.Advice) -> None:
    assert advice.suggestions
    assert type(model.optimizer) is keras.optimizers.Adam
    assert {layer.dtype_policy.name for layer in model.layers} == {"float32"}


def test_what_is_suggested_can_be_run(advice: gw.Advice) -> None:
    leaner = next(s for s in advice.suggestions if s.kind == "optimizer")
    assert leaner.make is not None
    function, inputs = leaner.make()
    assert gw.predict_peak(function, inputs=inputs, order="executor").high_bytes == pytest.approx(leaner.peak_bytes, rel=0.1)


def test_commands_name_the_target(advice: gw.Advice) -> None:
    made = dataclasses.replace(advice.suggestions[0], command="graphwright optimize TARGET --batch 8 --budget 0.5")
    named = dataclasses.replace(advice, suggestions=(made,)).for_command("app:model")
    assert named.suggestions[0].command == "graphwright optimize app:model --batch 8 --budget 0.5"


def test_a_plan_is_suggested_and_keeps_the_memory_when_it_is_followed(tmp_path: Path) -> None:
    weight = tf.Variable(tf.ones((64, 64)))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for _ in range(8):
                y = tf.tanh(y @ weight)
            loss = tf.reduce_mean(y)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    advice = gw.advise(step, 0.7, {"x": (128, 64)}, time_limit_s=0.5, cache_dir=tmp_path)
    plan = next(s for s in advice.suggestions if s.kind == "plan")
    assert plan.command == "graphwright optimize TARGET --feed x=128,64 --budget 0.7"
    assert plan.make is not None
    fast, _ = plan.make()
    assert fast.plan.peak_bytes <= advice.memory_bytes
    assert fast.plan.peak_bytes == plan.peak_bytes  # it is not searched again
    batch = next(s for s in advice.suggestions if s.kind == "batch")
    assert batch.what.startswith("a batch of ")
    assert batch.fits


def test_what_fits_comes_first_then_what_takes_less_time_then_what_changes_less() -> None:
    def one(kind: str, time: float, fits: bool = True) -> Suggestion:
        return Suggestion(kind, kind, 100, time, fits, "", "")  # pyright: ignore[reportArgumentType]

    given = [one("optimizer", 1.0), one("plan", 1.3), one("batch", 1.02), one("plan, all verbs", 1.0), one("plan", 1.0, fits=False)]
    assert [(s.kind, s.fits) for s in ranked(given)] == [
        ("plan, all verbs", True),
        ("batch", True),
        ("optimizer", True),
        ("plan", True),
        ("plan", False),
    ]


class TestLikelyMistakes:
    def test_an_input_that_nothing_reads(self) -> None:
        step = tf.function(lambda x, mask: tf.reduce_sum(x))
        traced = trace(step, feeds={"x": (8, 4), "mask": (8, 4)})
        found = lint(traced, flat_step(traced))
        assert [(f.kind, f.names) for f in found] == [("unused input", ("mask",))]

    def test_frozen_layers_whose_statistics_move(self) -> None:
        norm, head = keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(2, name="head")
        norm.build((8, 4))
        head.build((8, 4))

        @tf.function
        def step(x: tf.Tensor, training: bool) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(head(norm(x, training=training)) ** 2)
            for variable, gradient in zip(head.trainable_variables, tape.gradient(loss, head.trainable_variables), strict=True):
                variable.value.assign_sub(gradient)
            return loss

        kinds = {}
        for training in (True, False):
            traced = trace(step, inputs=(tf.ones((8, 4)), training))
            kinds[training] = {f.kind for f in lint(traced, flat_step(traced))}
        assert "frozen, statistics move" in kinds[True]
        assert "frozen, statistics move" not in kinds[False]

    def test_sizes_that_keep_xla_from_compiling(self) -> None:
        step = tf.function(
            lambda x: tf.reduce_sum(tf.gather(x, tf.where(x[:, 0] > 0)[:, 0])), input_signature=[tf.TensorSpec((None, None))]
        )
        traced = trace(step, feeds={"x": (8, 4)})
        found = [f for f in lint(traced, flat_step(traced)) if f.kind == "open dimension"]
        assert "leaves dimension 1 of x open" in found[0].message  # an open batch is no mistake
        assert "as many rows as elements are true" in found[1].message


def test_a_budget_that_cannot_be_read_is_an_error_before_anything_is_traced() -> None:
    with pytest.raises(ArgumentError, match="plenty"):
        gw.advise(tf.function(lambda x: x), "plenty", {"x": (1,)})


def test_data_of_several_inputs_serve_every_suggestion() -> None:
    tokens, mask = keras.Input((None,), dtype="int32", name="tokens"), keras.Input((None,), name="mask")
    embedded = keras.layers.Embedding(500, 64)(tokens) * mask[:, :, None]
    model = keras.Model({"tokens": tokens, "mask": mask}, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(embedded)))
    model.compile("adam", "mse", jit_compile=False)
    x = {"tokens": tf.zeros((8, 128), tf.int32), "mask": tf.ones((8, 128))}
    advice = gw.advise(model, 0.7, inputs=(x, tf.zeros((8, 2)), tf.ones(8)), time_limit_s=0.2, cache_dir=None)
    assert not any("no input" in why or "has the shape" in why for why in advice.left_out.values())
    found = next(s for s in advice.suggestions if s.command.startswith("graphwright optimize"))
    assert "--feed mask=8,128 --feed tokens=8,128:int32 --feed y=8,2 --feed sample_weight=8 " in found.command


def test_a_model_that_computes_in_16_bits_is_left_so() -> None:
    with pytest.raises(gw.UnsupportedError, match="compute in bfloat16 already"), mixed_precision(_dense("mixed_bfloat16")):
        pass
    with mixed_precision(model := _dense("float32")):
        assert model.layers[0].compute_dtype == "bfloat16"
    assert model.layers[0].compute_dtype == "float32"


def _dense(dtype: str) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype=dtype)])


def test_nothing_is_said_of_a_learning_rate_where_nothing_is_trained() -> None:
    weight = tf.Variable(tf.ones((64, 64)))
    step = tf.function(lambda x: tf.reduce_sum(tf.nn.relu(tf.tanh(x @ weight) @ weight)))
    advice = gw.advise(step, 0.5, {"x": (512, 64)}, cache_dir=None)
    (batch,) = [suggestion for suggestion in advice.suggestions if suggestion.kind == "batch"]
    assert "results are the same" in str(batch)
    assert "learning rate" not in advice.text("all")
