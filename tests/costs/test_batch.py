"""The largest batch and sweeps, against tracing at each size."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.costs.sized_step import SizedStep
from graphwright.errors import ArgumentError

FEEDS = {"x": (None, 64), "y": (None, 16)}


def perceptron():
    weights = [tf.Variable(tf.ones(shape) / 64) for shape in ((64, 512), (512, 16))]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(x @ weights[0])
            loss = tf.reduce_mean((hidden @ weights[1] - y) ** 2)
        for variable, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step


def traced_peak(step, size: int) -> int:
    return gw.predict_peak(step, {"x": (size, 64), "y": (size, 16)}, order="traced").peak_bytes


def test_a_function_with_an_open_signature_is_traced_once() -> None:
    step = tf.function(lambda x: tf.reduce_sum(tf.sin(x) * x), input_signature=[tf.TensorSpec([None, 2048])])
    assert gw.max_batch(step, 4 + 2**14 * 100, order="traced").batch == 100
    assert step.experimental_get_tracing_count() == 1


class TestRefusals:
    def test_nothing_is_open(self) -> None:
        concrete = tf.function(lambda x: x * 2).get_concrete_function(tf.TensorSpec([4, 3]))
        with pytest.raises(gw.ArgumentError, match="no dimension of the inputs"):
            gw.max_batch(concrete, "1MiB")

    def test_a_hard_coded_batch(self) -> None:
        with pytest.raises(gw.GraphwrightError, match="at batch size 8"):
            gw.max_batch(tf.function(lambda x: x + tf.ones([4, 3])), "1MiB", {"x": (None, 3)})

    @pytest.mark.parametrize("budget", [0.5, "50%", 0, "many"])
    def test_budgets(self, budget) -> None:
        with pytest.raises(gw.ArgumentError):
            gw.max_batch(perceptron(), budget, FEEDS)

    def test_a_feed_that_is_no_shape(self) -> None:
        with pytest.raises(gw.ArgumentError, match="x=64 was taken as a number, not as a shape"):
            gw.max_batch(perceptron(), "1MiB", {"x": 64, "y": (None, 16)})


class TestMaxBatch:
    @pytest.mark.parametrize("budget", [400_000, "1MiB", "20MiB"])
    def test_it_fits_and_one_more_does_not(self, budget) -> None:
        step = perceptron()
        answer = gw.max_batch(step, budget, FEEDS)
        assert answer.predicted_high[answer.batch] <= answer.budget_bytes < answer.predicted_high[answer.batch + 1]
        peak = gw.predict_peak(step, {"x": (answer.batch, 64), "y": (answer.batch, 16)})
        assert (peak.peak_bytes, peak.high_bytes) == (answer.peak_bytes, answer.predicted_high[answer.batch])
        assert "upper end of the predicted range" in " ".join(str(answer).split())
        answer = gw.max_batch(step, budget, FEEDS, order="traced")
        assert traced_peak(step, answer.batch) == answer.peak_bytes <= answer.budget_bytes
        assert traced_peak(step, answer.batch + 1) == answer.next_peak_bytes > answer.budget_bytes
        assert not answer.is_confirmed
        assert "not measured" in " ".join(str(answer).split())

    def test_nothing_fits(self) -> None:
        answer = gw.max_batch(perceptron(), "100KiB", FEEDS)
        assert (answer.batch, answer.peak_bytes) == (0, 0)
        assert answer.next_peak_bytes > answer.budget_bytes
        assert "no batch fits" in str(answer)

    def test_everything_fits(self) -> None:
        weight = tf.Variable(tf.ones([64, 64]))
        answer = gw.max_batch(tf.function(lambda x: tf.reduce_sum(weight) + tf.cast(tf.shape(x)[0], tf.float32)), "1MiB", {"x": (None, 0)})
        assert answer.batch is None
        assert "every batch size" in " ".join(str(answer).split())

    @pytest.mark.slow
    def test_measured(self) -> None:
        step = tf.function(lambda x: tf.reduce_sum(tf.exp(tf.sin(x)) * tf.cos(x)))
        answer = gw.max_batch(step, "50MiB", {"x": (None, 1024, 1024)}, measure=True, order="executor")
        assert answer.is_confirmed
        by_size = {m.batch: m for m in answer.measured}
        assert by_size[answer.batch].peak_bytes <= answer.budget_bytes < by_size[answer.batch + 1].peak_bytes
        text = " ".join(answer.text("all").split())
        assert "as measured" in text
        assert "executor" in text
        assert max(map(len, str(answer).splitlines())) <= 80

    def test_a_measurement_that_says_otherwise_corrects_the_answer(self, monkeypatch) -> None:
        """As if the step needed a third more than predicted, and at one size so much that the process is killed."""
        module = "graphwright.costs.max_batch.measure_step"
        step = perceptron()
        asked: list[int] = []

        def measure(traced, _, **__):
            size = traced.feeds["x"][0]
            asked.append(size)
            if size > 700:
                raise gw.MeasurementError("killed", cause="ran out of memory")
            return gw.Measurement(traced_peak(step, size) * 4 // 3, 0, 0.0, "made up")

        monkeypatch.setattr(module, measure)
        answer = gw.max_batch(step, "3MiB", FEEDS, measure=True)
        assert answer.is_corrected
        assert answer.is_confirmed
        assert traced_peak(step, answer.batch) * 4 // 3 <= 3 * 2**20 < traced_peak(step, answer.batch + 1) * 4 // 3
        assert len(asked) == len(set(asked))
        assert "predicted were" in " ".join(str(answer).split())
        assert answer.to_json()["is_corrected"] is True

    @pytest.mark.parametrize(
        ("make", "feeds"),
        [
            (perceptron, FEEDS),
            (lambda: tf.function(lambda a: tf.reduce_sum(tf.nn.softmax(a @ tf.transpose(a)))), {"a": (None, 64)}),  # a square
            (lambda: tf.function(lambda x: tf.reduce_sum(tf.exp(x[: tf.shape(x)[0] // 2 * 2]))), {"x": (None, 4096)}),
            (lambda: tf.function(lambda x: tf.reduce_sum(tf.exp(x[: tf.shape(x)[0] // 32 * 32]))), {"x": (None, 1024)}),
            (lambda: tf.function(lambda x: tf.reduce_sum(x * tf.fill([x.shape[0], 128], 2.0) + tf.sin(x))), {"x": (None, 128)}),
        ],
        ids=["pieces", "square", "pairs", "steps", "constant"],
    )
    @pytest.mark.parametrize("share", [0.02, 1.0, 40.0])
    def test_few_sizes_are_looked_at(self, make, feeds, share, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[int] = []
        peak = SizedStep.peak
        monkeypatch.setattr(SizedStep, "peak", lambda sized, size, order: asked.append(size) or peak(sized, size, order))
        step = make()
        at = {name: (200, *shape[1:]) for name, shape in feeds.items()}
        budget = int(share * gw.predict_peak(step, at, order="traced").peak_bytes)
        answer = gw.max_batch(step, budget, feeds, order="traced")
        for size, peak in answer.predicted.items():
            at = {name: (size, *shape[1:]) for name, shape in feeds.items()}
            assert gw.predict_peak(step, at, order="traced").peak_bytes == peak
            assert (peak <= budget) == (size <= answer.batch)
        assert {answer.batch, answer.batch + 1} - {0} <= set(answer.predicted)
        assert len(set(asked)) <= 16


class TestText:
    def test_a_sweep_is_drawn(self) -> None:
        rows = [line for line in str(gw.sweep(perceptron(), FEEDS, batches=(256, 512))).splitlines() if "█" in line]
        assert 1.5 < rows[1].count("█") / rows[0].count("█") < 2.5
        assert max(map(len, rows)) <= 80


class TestSweep:
    def test_peaks_are_those_of_each_size(self) -> None:
        step = perceptron()
        result = gw.sweep(step, FEEDS, batches=range(1, 21, 3), budget="600KiB", order="traced")
        assert [p.peak_bytes for p in result.points] == [traced_peak(step, p.batch) for p in result.points]
        assert result.largest_batch in (gw.max_batch(step, "600KiB", FEEDS, order="traced").batch, 19)

    def test_the_upper_end_of_the_range_decides(self) -> None:
        step = perceptron()
        peak = gw.predict_peak(step, {"x": (64, 64), "y": (64, 16)})
        for budget, largest_batch in ((peak.peak_bytes, None), (peak.high_bytes - 1, None), (peak.high_bytes, 64)):
            result = gw.sweep(step, FEEDS, batches=(64,), budget=budget)
            assert result.largest_batch == largest_batch
            assert [point.high_bytes for point in result.points] == [peak.high_bytes]
        assert "upper end of the predicted range" in " ".join(result.text("all").split())

    def test_with_plans(self) -> None:
        result = gw.sweep(perceptron(), FEEDS, batches=(256, 512), optimized=0.9, time_limit_s=1)
        (name, planned), *rest = result.others.items()
        assert not rest
        assert "90" in name
        assert [p.batch for p in planned.points] == [256, 512]
        assert all(a.peak_bytes <= b.peak_bytes for a, b in zip(planned.points, result.points, strict=True))


def test_example_inputs_say_all_but_the_batch_size() -> None:
    step = perceptron()
    inputs = (tf.zeros((4, 64)), np.zeros((4, 16), "float32"))
    answer = gw.max_batch(step, "1MiB", inputs=inputs)
    assert answer.feeds == {"x": (None, 64), "y": (None, 16)}
    assert answer.batch == gw.max_batch(step, "1MiB", FEEDS).batch
    data = tf.data.Dataset.from_tensor_slices(inputs).batch(2)
    assert [point.peak_bytes for point in gw.sweep(step, batches=(4, 8), inputs=data, order="traced").points] == [
        traced_peak(step, n) for n in (4, 8)
    ]
    with pytest.raises(ArgumentError, match="both feeds and inputs"):
        gw.sweep(step, FEEDS, inputs=inputs)


def test_a_model_and_its_inference_take_example_inputs() -> None:
    model = keras.Sequential([keras.Input((None, 8), name="rows"), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.zeros((2, 128, 8)), tf.zeros((2, 2))))
    assert gw.max_batch(model, "4MiB", inputs=data).feeds == {"rows": (None, 128, 8), "y": (None, 2)}
    assert gw.max_batch(model, "4MiB", inputs=data, mode="infer").feeds == {"rows": (None, 128, 8)}
