import json

import keras
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.costs.check import GUARDED, parse_count
from graphwright.errors import ArgumentError, FileFormatError

pytestmark = pytest.mark.tensorflow

weight = tf.Variable(tf.ones((64, 64)), name="weight")
once = tf.function(lambda x: tf.nn.relu(x @ weight))
twice = tf.function(lambda x: tf.nn.relu(x @ weight) @ weight)
FEEDS = {"x": (32, 64)}
FLOPS = 2 * 32 * 64 * 64


class Offset(keras.layers.Layer):
    """Adds a table of integers that nothing writes."""

    def build(self, shape):
        self.table = self.add_weight(shape=(shape[-1],), dtype="int32", initializer="ones", trainable=False)

    def call(self, x):
        return x + tf.cast(self.table, x.dtype)


@pytest.fixture
def baseline(tmp_path):
    """A baseline of `once`."""
    return gw.check(once, FEEDS, write_baseline=tmp_path / "costs.json").written


class TestLimits:
    def test_each_limit(self):
        costs = gw.step_costs(once, FEEDS)
        for argument, name in (
            ("max_peak", "peak_bytes"),
            ("max_flops", "total_flops"),
            ("max_parameters", "parameters"),
            ("max_nodes", "nodes"),
        ):
            amount = int(costs.peak_high_bytes if name == "peak_bytes" else costs.figures[name])
            assert gw.check(once, FEEDS, **{argument: amount})
            failed = gw.check(once, FEEDS, **{argument: amount - 1})
            assert not failed
            assert [finding.figure for finding in failed.findings if not finding.passed] == [name]
            assert "Check failed" in str(failed)

    def test_the_upper_end_of_the_range_decides(self, tmp_path):
        peak = gw.predict_peak(once, FEEDS)
        assert peak.peak_bytes < peak.high_bytes
        failed = gw.check(once, FEEDS, max_peak=peak.high_bytes - 1, write_baseline=tmp_path / "costs.json")
        assert not failed
        assert "peak (upper end)" in " ".join(str(failed).split())
        (finding,) = failed.findings
        assert (finding.figure, finding.amount, finding.is_upper_end) == ("peak_bytes", peak.high_bytes, True)
        assert not gw.check(failed.written, max_peak=peak.high_bytes - 1)
        traced = gw.check(once, FEEDS, max_peak=peak.high_bytes - 1, order="traced")
        assert traced.passed
        assert "upper end" not in str(traced)

    @pytest.mark.parametrize("metrics", [[], ["mae", "mse"]], ids=["loss", "metrics"])
    def test_parameters_are_those_of_keras_and_of_params(self, metrics):
        """Metrics, counters and random states are none; moving statistics and a table of indices that is only read are."""
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), Offset()]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile("adam", "mse", metrics=metrics)
        assert gw.count_parameters(model, batch=4).total == model.count_params() == 8 * 4 + 4 + 4 * 4 + 4
        for mode in ("train", "infer"):
            assert gw.check(model, batch=4, mode=mode, max_nodes=10_000).costs.figures["parameters"] == model.count_params()
        assert gw.check(model, batch=4, max_parameters=model.count_params())

    @pytest.mark.parametrize("value", ["", "G", "20X", "20 GiB", "-3", -3, float("nan"), float("inf"), True, None, "1e3G", [1]])
    def test_counts_that_are_refused(self, value):
        with pytest.raises(ArgumentError, match="is not a limit"):
            parse_count(value, "max_flops")

    @pytest.mark.parametrize("value", ["20", 0, "0.5", 0.5, "60%", "lots", "3 GiBs"])
    def test_a_peak_is_bytes(self, value):
        if value == "20":
            assert not gw.check(once, FEEDS, max_peak=value)
            return
        with pytest.raises(ArgumentError, match="is not a limit"):
            gw.check(once, FEEDS, max_peak=value)


class TestBaseline:
    def test_nothing_changed(self, baseline):
        result = gw.check(once, FEEDS, baseline=baseline)
        assert result.passed
        assert [finding.figure for finding in result.findings] == list(GUARDED)
        assert {pair.change for pair in result.comparison.layers} == {"same"}

    def test_what_was_written_is_what_is_read(self, baseline):
        assert gw.read_costs(baseline) == gw.step_costs(once, FEEDS)

    def test_growth_fails_and_says_where(self, baseline):
        result = gw.check(twice, FEEDS, baseline=baseline)
        assert not result
        failed = {finding.figure for finding in result.findings if not finding.passed}
        assert {"total_flops", "nodes"} <= failed
        assert "parameters" not in failed
        assert result.comparison.with_change("changed")
        text = str(result)
        assert "over the baseline" in text
        assert max(map(len, text.splitlines())) <= 80

    def test_less_passes(self, tmp_path):
        path = gw.check(twice, FEEDS, write_baseline=tmp_path / "costs.json").written
        assert gw.check(once, FEEDS, baseline=path)

    def test_tolerance(self, baseline):
        assert not gw.check(twice, FEEDS, baseline=baseline, tolerance="90%")
        assert gw.check(twice, FEEDS, baseline=baseline, tolerance=9.0)
        result = gw.check(twice, FEEDS, baseline=baseline, tolerance={"flops": "110%", "nodes": 1.0})
        assert "total_flops" not in {finding.figure for finding in result.findings if not finding.passed}

    @pytest.mark.parametrize("tolerance", ["much", -0.1, "-1%", float("nan"), {"speed": 0.1}, {"peak": "x"}])
    def test_tolerances_that_are_refused(self, baseline, tolerance):
        with pytest.raises(ArgumentError, match=r"tolerance|no figure"):
            gw.check(once, FEEDS, baseline=baseline, tolerance=tolerance)

    def test_other_shapes_are_no_comparison(self, baseline):
        with pytest.raises(ArgumentError, match=r"input 'x' has the shape \(8, 64\)"):
            gw.check(once, {"x": (8, 64)}, baseline=baseline)

    def test_annotations(self, baseline):
        result = gw.check(twice, FEEDS, baseline=baseline, max_flops="1k")
        lines = result.annotations()
        assert len(lines) == sum(not finding.passed for finding in result.findings) + len(result.warnings)
        assert all(line.startswith(("::error title=", "::warning title=")) and "\n" not in line for line in lines)
        assert "%25" in "".join(lines)
        assert not gw.check(once, FEEDS, max_peak="1GiB").annotations()

    def test_as_json(self, baseline):
        plain = json.loads(json.dumps(gw.check(twice, FEEDS, baseline=baseline).to_json(), allow_nan=False))
        assert plain["passed"] is False
        assert plain["baseline"] == str(baseline)
        assert {row["figure"] for row in plain["findings"]} == set(GUARDED)


class TestFiles:
    def change(self, path, change):
        data = json.loads(path.read_text(encoding="utf-8"))
        change(data)
        path.write_text(json.dumps(data), encoding="utf-8")
        return path

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            (lambda d: d.pop("format"), "format"),
            (lambda d: d.update(format="coverage"), "format"),
            (lambda d: d.update(version=0), "version"),
            (lambda d: d.pop("figures"), "figures"),
            (lambda d: d["figures"].update(peak_bytes=None), "figures.peak_bytes"),
            (lambda d: d["figures"].pop("nodes"), "figures.nodes"),
            (lambda d: d["figures"].update(peak_bytes="4GiB"), "figures.peak_bytes"),
            (lambda d: d["figures"].update(peak_bytes=-1), "figures.peak_bytes"),
            (lambda d: d["figures"].update(peak_bytes=True), "figures.peak_bytes"),
            (lambda d: d.update(layers={}), "layers"),
            (lambda d: d["layers"].append(3), "layers["),
            (lambda d: d["layers"][0].pop("nodes"), "'nodes'"),
            (lambda d: d["layers"][0].update(parameters=1.5), "layers[0].parameters"),
            (lambda d: d.update(feeds={"x": [1, "a"]}), "feeds.x[1]"),
            (lambda d: d.update(how=[]), "how"),
            (lambda d: d.pop("name"), "name"),
        ],
    )
    def test_damage_names_file_and_field(self, baseline, change, field):
        with pytest.raises(FileFormatError) as caught:
            gw.read_costs(self.change(baseline, change))
        assert field in str(caught.value)
        assert "costs.json" in str(caught.value)

    @pytest.mark.parametrize("text", ["", "{", "[]", "3", "\x00"])
    def test_no_json_object(self, tmp_path, text):
        path = tmp_path / "costs.json"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(FileFormatError, match=r"costs\.json"):
            gw.check(once, FEEDS, baseline=path)

    def test_no_file(self, tmp_path):
        with pytest.raises(FileFormatError, match=r"no such file(.|\n)*--write-baseline costs.json"):
            gw.check(once, FEEDS, baseline=tmp_path / "costs.json")

    def test_where_it_cannot_be_written(self, tmp_path):
        costs = gw.step_costs(once, FEEDS)
        with pytest.raises(ArgumentError, match=r"\.json"):
            gw.write_costs(costs, tmp_path / "costs.txt")
        with pytest.raises(ArgumentError, match="no folder"):
            gw.write_costs(costs, tmp_path / "nowhere" / "costs.json")
