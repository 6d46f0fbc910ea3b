"""Pages: well formed, complete without a network, and safe whatever names are in a graph."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.analyze.step_profile import OpRun, StepProfile
from graphwright.analyze.time_model import Roofs
from graphwright.ir.graph import DTYPES, Graph
from graphwright.report.comparison import FIGURES, Comparison, LayerFigures, LayerPair, StepCosts
from graphwright.report.cost_rows import LayerCost, NodeCost
from graphwright.report.inspection import Inspection
from graphwright.report.page import ROW_LIMIT, page_of
from graphwright.report.profile_report import RUN_LIMIT, profile_sheet
from graphwright.report.roofline import make_roofline
from graphwright.report.units import format_bytes, format_percent
from tests.report.page_parser import EVIL, PAGES, Page, data_of, page
from tests.report.profiles import MIB, small_profile
from tests.report.samples import full_inspection, long_timeline, sample_advice, sample_inspection, sample_plan


@pytest.mark.parametrize("case", PAGES)
def test_a_page_is_well_formed_and_refers_to_nothing(case: str) -> None:
    text = PAGES[case]()
    parsed = Page(text)
    assert text.startswith("<!doctype html>")
    assert len(parsed.ids) == len(set(parsed.ids))
    loading = [
        (tag, name, value) for tag, name, value in parsed.attributes if name in {"src", "srcset", "data", "action", "poster", "background"}
    ]
    assert loading == []
    places = {value.partition("/")[0] for _, name, value in parsed.attributes if name == "href"}
    assert "#content" in places
    assert {place[1:] for place in places} <= set(parsed.ids), "a link leads to a place on the page"
    assert {tag for tag, _, _ in parsed.attributes} & {"link", "iframe", "object", "embed", "base", "img"} == set()
    style = " ".join(parsed.all("style"))
    assert "url(" not in style
    assert "@import" not in style
    policy = next(value for tag, name, value in parsed.attributes if tag == "meta" and name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    references = [value for _, name, value in parsed.attributes if name in {"aria-labelledby", "aria-controls", "for"}]
    assert set(references) <= set(parsed.ids)
    assert len(text) < 300_000


def test_the_verdict_comes_first_and_the_sections_follow() -> None:
    plan = sample_plan()
    visible = Page(page(plan)).visible.replace("\xa0", " ")
    places = [
        visible.index(text)
        for text in (
            plan.verdict, "Memory over the step", "How each figure was obtained",
            "Live at the planned peak", "Live at the original peak", "Memory and extra time", "Per layer",
            "Decisions about the residuals",
        )
    ]  # fmt: skip
    assert places == sorted(places)
    assert plan.measured_after is not None
    for figure in (plan.budget_bytes, plan.peak_bytes, plan.original_peak_bytes, plan.resident_bytes, plan.measured_after.peak_bytes):
        assert format_bytes(figure) in visible
    assert format_percent(plan.recomputed_flops) in visible
    for text in (plan.lower_bound_reason, plan.verification, *plan.how.values()):
        assert text in visible


def test_what_was_not_measured_is_said() -> None:
    visible = Page(page(sample_plan(measured=False))).visible
    assert "measured peak" not in visible
    assert "Memory and extra time" in visible
    assert "Memory and extra time" not in Page(page(sample_plan(curve=False))).visible


def test_the_data_is_that_of_the_timeline() -> None:
    plan = sample_plan()
    data = data_of(page(plan))
    assert data["budgetBytes"] == plan.budget_bytes
    before, after = data["timelines"]
    assert before["total"] == list(plan.timeline_before.total_bytes)
    assert after["peakStep"] == plan.timeline_after.peak_step
    assert [sum(row[step] for row in after["byRole"].values() if row) for step in range(len(after["total"]))] == after["total"]
    assert [phase == 2 for phase in after["phase"]] == list(plan.timeline_after.is_recomputation)
    assert [phase == 1 for phase in before["phase"]] == list(plan.timeline_before.is_backward)


def test_a_long_timeline_is_thinned_and_keeps_its_peak() -> None:
    timeline = long_timeline(100_000)
    text = page(replace(sample_inspection(), timeline=timeline, peak_bytes=timeline.peak_bytes))
    (drawn,) = data_of(text)["timelines"]
    assert drawn["stepCount"] == 100_000
    assert len(drawn["steps"]) <= 2002
    assert timeline.peak_step in drawn["steps"]
    assert max(drawn["total"]) == timeline.peak_bytes
    assert len(drawn["recomputation"]) + len(drawn["spans"]) <= 2000
    assert len(text) < len(page(sample_inspection())) + 500_000


def test_long_tables_say_what_they_leave_out() -> None:
    base = sample_plan()
    decisions = tuple(replace(base.decisions[0], name=f"value_{index}:0") for index in range(1234))
    text = page(replace(base, decisions=decisions)).replace("<wbr>", "")
    assert f"value_{ROW_LIMIT - 1}:0" in text
    assert f"value_{ROW_LIMIT}:0" not in text
    assert f"The first {ROW_LIMIT} of 1,234 rows." in text


def _chain(count: int, scopes: int = 50) -> Inspection:
    """An inspection of a chain of nodes in scopes, each node with 1 FLOP more than the one before."""
    graph = Graph("chain")
    float32 = [(DTYPES["float32"], (4,))]
    value = graph.add_node("Placeholder", "x", output_types=float32).outputs[0]
    for k in range(count - 1):
        value = graph.add_node("Relu", f"scope_{k % scopes}/part_{k % 7}/node_{k}", inputs=[value], output_types=float32).outputs[0]
    nodes = {node.name: NodeCost(node.name.partition("/")[0], float(k), 32.0, 1e-6) for k, node in enumerate(graph)}
    return replace(sample_inspection(), graph=graph, nodes=nodes)


def test_the_graph_opens_from_inputs_to_outputs():
    """Without gradients, updates, metrics and variables, in colors by kind of operation, also where a step returns metrics alone."""
    parts = [keras.layers.Conv2D(2, 3, name="convolution"), keras.layers.ReLU(name="activation"), keras.layers.Flatten(name="flat")]
    model = keras.Sequential([keras.Input((8, 8, 2), name="image"), *parts, keras.layers.Dense(2, name="scores")])
    model.compile("sgd", "mse", metrics=["mae"], jit_compile=False)
    served, view = data_of(page(gw.inspect(model, batch=16)))["graphs"]
    assert served["served"]
    assert len(served["layerOf"]) == len(served["nodes"]) < len(view["nodes"])
    assert {"convolution", "activation", "scores"} <= {served["layers"][k] for k in served["layerOf"]}
    hue = dict(zip(served["ops"], served["hues"], strict=True))
    assert (hue["Conv2D"], hue["MatMul"], hue["Relu"], hue["Reshape"]) == (0, 0, 2, 3)
    assert not any("Variable" in op_type or "Backprop" in op_type for op_type in hue)
    assert sum(served["costs"]["flops"]) < sum(view["costs"]["flops"])
    assert any("convolution/kernel" in weight for node in served["nodes"] for weight in node[7])


def test_an_inspection_is_pickled_without_its_graph():
    inspection = _chain(3000)
    again = pickle.loads(pickle.dumps(inspection))  # noqa: S301 - what was just written
    assert (repr(again.nodes), again.timeline) == (repr(inspection.nodes), inspection.timeline)
    assert again.graph is None
    assert copy.deepcopy(inspection).nodes.keys() == inspection.nodes.keys()


def test_the_page_of_a_large_graph_stays_small():
    inspection = _chain(30_000)
    text = page(inspection)
    assert data_of(text)["graphs"] == []
    assert "too many operations" in text
    assert len(text) < 2**20


def test_names_are_text_on_every_tab():
    graph = Graph(EVIL)
    graph.add_node(EVIL, EVIL, output_types=[(DTYPES["float32"], (4,))])
    base = full_inspection()
    profile = StepProfile(EVIL, (OpRun(EVIL, EVIL, EVIL, EVIL, 0, 1000),), (), 1e-6)
    text = page(
        replace(
            base,
            name=EVIL,
            graph=graph,
            nodes={EVIL: NodeCost(EVIL, 1.0, 1.0, 1.0)},
            layers=tuple(replace(row, layer=EVIL) for row in base.layers[:1]),
            op_types=tuple(replace(row, op_type=EVIL) for row in base.op_types),
            roofs=Roofs(1e9, 1e9, EVIL),
        ).with_profile(profile)
    )
    parsed = Page(text)
    assert len(parsed.all("script")) == 2
    assert not any("window.pwned" in script for script in parsed.all("script") if not script.startswith("{"))
    assert "<img" not in text


def test_a_roofline_stands_where_the_figures_put_it():
    roofs = Roofs(1e12, 1e10, "given")
    layer = LayerCost("dense", 1, 0, 4e9, 0.0, 0, 0, bytes_moved=1e6, estimated_time_s=0.01)
    copies = replace(layer, layer="copy", forward_flops=1e6, bytes_moved=1e7)
    nothing = replace(layer, layer="view", forward_flops=0.0)
    found = make_roofline(roofs, (layer, copies, nothing), (), None)
    assert found is not None
    assert not found.measured
    dense, copy = found.layers
    assert (dense.intensity, dense.flops_per_s, dense.limit) == (4000.0, 4e11, "arithmetic")
    assert dense.of_roof == pytest.approx(0.4)
    assert copy.limit == "memory"
    assert copy.of_roof == pytest.approx(1e8 / 1e9)
    assert "Nothing was measured" in found.summary
    assert make_roofline(roofs, (nothing,), (), None) is None


def test_measured_times_stand_beside_what_was_counted():
    base = replace(full_inspection(), layers=(LayerCost("net/dense", 2, 0, 1.0, 0.0, 0, 0), LayerCost("net/other", 1, 0, 0.0, 0.0, 0, 0)))
    runs = (
        OpRun("net/dense/MatMul", "MatMul", "CPU:0", "", 0, 2_000_000, flops=4e6, bytes_moved=1e3),
        OpRun("net/dense/Relu", "_Fused", "CPU:0", "", 0, 1_000_000),
    )
    measured = base.with_profile(StepProfile("net", runs, (), 3e-3), Roofs(1e12, 1e10, "given"))
    assert measured.layers[0].measured_time_s == pytest.approx(3e-3)
    assert math.isnan(measured.layers[1].measured_time_s)
    assert all(math.isnan(row.measured_time_s) for row in measured.op_types), "no op type of the graph ran under its name"
    assert measured.roofs is not None
    roofline = make_roofline(measured.roofs, measured.layers, measured.op_types, measured.profile)
    assert roofline is not None
    assert roofline.measured
    assert [point.name for point in roofline.op_types] == ["MatMul"]
    assert roofline.op_types[0].flops_per_s == pytest.approx(2e9)
    assert "Nothing was measured" not in roofline.summary


def test_a_long_profile_is_thinned_and_says_so():
    runs = tuple(OpRun(f"n{k}", "Relu", "CPU:0", f"thread {k % 3}", 10 * k, 10 * k + 1 + k % 9) for k in range(RUN_LIMIT + 500))
    profile = StepProfile("long", runs, (), 1e-3)
    text = page_of(profile_sheet(profile, {}, {}))
    data = data_of(text)["profile"]
    assert len(data["runs"]) == RUN_LIMIT
    assert data["lanes"] == ["CPU:0 thread 0", "CPU:0 thread 1", "CPU:0 thread 2"]
    assert min(run[2] for run in data["runs"]) >= 0.001
    assert "The shortest 500 are not drawn." in text


def test_a_comparison_page_shows_both_steps():
    def costs(name: str, factor: int) -> StepCosts:
        layers = tuple(LayerFigures(layer, 1, factor, 10.0 * factor, 0.0, 0.0, 0, 0) for layer in ("net/conv", EVIL))
        return StepCosts(name, {"x": (8, 4)}, dict.fromkeys(FIGURES, 100.0 * factor), layers, (), {"peak": "simulated"})

    a, b = costs("plain", 1), costs("normalized", 2)
    pairs = (LayerPair(a.layers[0], b.layers[0]), LayerPair(None, b.layers[1]), LayerPair(a.layers[1], None))
    timeline = sample_inspection().timeline
    for of_a, of_b in ((None, None), (None, timeline), (timeline, timeline)):
        text = page(Comparison(replace(a, timeline=of_a), replace(b, timeline=of_b), pairs))
        parsed = Page(text)
        assert len(parsed.ids) == len(set(parsed.ids))
        assert "normalized" in parsed.visible
        assert "1 added, 1 removed, 1 changed" in parsed.visible
        assert "+100.0 %" in parsed.visible.replace("\xa0", " ")
        assert ("timeline-a" in parsed.ids, "timeline-b" in parsed.ids) == (of_a is not None, of_b is not None)
        assert ("tab-memory" in parsed.ids) == (of_b is not None)
        assert ("A file of costs holds no memory" in parsed.visible) == (of_a is None)


def test_the_page_of_a_profile_shows_memory_over_time_and_its_phases():
    profile = replace(small_profile(), name=EVIL)
    text = page_of(profile_sheet(profile, {"x": (8, 4)}, {"run": "on <this> machine"}))
    parsed = Page(text)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert "3.00 MiB at most, 1.00 µs after the step began" in parsed.visible.replace("\xa0", " ")
    (track,) = data_of(text)["tracks"]
    assert (track["times"], track["bytes"], track["end"]) == ([1e-6, 9e-5], [3 * MIB, 2 * MIB], pytest.approx(1e-4))
    assert [phase for _, _, phase in track["spans"]] == [0, 1], "forward, then backward"
    assert track["spans"][0][1] == track["spans"][1][0] == pytest.approx(7e-5)
    assert {"table-layers", "table-op-types", "table-runs"} <= set(parsed.ids)


def test_what_was_measured_over_time_stands_beside_what_was_predicted():
    inspection = sample_inspection(measured=True)
    data = data_of(page(inspection))
    assert data["tracks"][0]["end"] == 1.7
    assert data["topBytes"] == max(data["tracks"][0]["bytes"]) > inspection.peak_bytes, "both charts have one scale"
    assert data_of(page(sample_inspection()))["tracks"] == []


def test_advice_comes_first_with_lint_beside_it():
    inspection = sample_inspection()
    parsed = Page(page(inspection.with_advice(sample_advice())))
    tabs = [value for tag, name, value in parsed.attributes if tag == "a" and name == "id"]
    assert tabs[0] == "tab-advice"
    text = parsed.visible.replace("\xa0", " ")
    assert "A batch of 4 instead of 8 2.00 GiB ; fits 2 % less time for each example" in text
    assert "4.00 GiB ; does not fit by itself Time not predicted; rounded." in text
    assert "conv/kernel gets no gradient" in text
    codes = ["model.fit(..., batch_size=4)", "gw.optimize_memory(step, 0.6)", "graphwright optimize t.keras", "set_dtype_policy"]
    places = [text.index(code) for code in codes]  # each of its words is an element, since browsers break a line behind `--`
    assert places == sorted(places)
    assert sum(tag == "pre" for tag, name, _ in parsed.attributes if name == "tabindex") == len(codes)
    assert "tab-advice" not in Page(page(inspection)).ids
    assert "advice" not in inspection.with_advice(sample_advice()).to_json()


_TINY: dict[str, Any] = {
    "no operation": lambda x: x,
    "one": lambda x: tf.exp(x),
    "a weight": lambda x: x @ _WEIGHT,
    "three": lambda x: tf.nn.relu(x @ _WEIGHT + 1.0),
    "a constant": lambda x: tf.constant(3.0),
    "a write": lambda x: _WEIGHT.assign(x),
    "no tensor that is counted": lambda x: tf.strings.as_string(x),
}
_WEIGHT = tf.Variable(tf.ones([3, 3]))


@pytest.mark.parametrize("name", _TINY)
def test_tiny_steps_without_a_backward_pass_have_every_page(name: str, tmp_path: Path) -> None:
    step, inputs = tf.function(_TINY[name], autograph=False), (tf.ones([3, 3]),)
    results: list[Any] = [gw.inspect(step, inputs=inputs), gw.compare(step, step, inputs=inputs)]
    results += [gw.predict_peak(step, inputs=inputs), gw.advise(step, "1KiB", inputs=inputs)]
    if name in ("one", "a weight", "three"):
        results.append(gw.optimize_memory(step, "1KiB", inputs=inputs, cache_dir=None).plan)
    results.append(saved_inspection(step, tmp_path))
    for result in results:
        assert str(result)
        if hasattr(result, "write_html"):
            assert "</html>" in result.write_html(tmp_path / "page.html").read_text()
    gw.draw(step.get_concrete_function(*inputs), tmp_path / "graph.html")


def saved_inspection(step: Any, folder: Path) -> Any:
    """The inspection of the same step, saved as a model."""
    module = tf.Module()
    module.weight = _WEIGHT
    tf.saved_model.save(module, str(folder / "model"), signatures=step.get_concrete_function(tf.TensorSpec([3, 3], name="x")))
    return gw.inspect(folder / "model")


def test_no_page_holds_marks_that_reorder_text() -> None:
    hostile = "conv\x1b[31m\u202ered\u2066\x9b"
    base = full_inspection()
    layers = tuple(replace(row, layer=hostile) for row in base.layers)
    timeline = replace(base.timeline, labels=(hostile,) * len(base.timeline.labels))
    text = page(replace(base, name=hostile, layers=layers, timeline=timeline))
    assert "\ufffd[31m\ufffdred" in text
    for mark in "\x1b\u202e\u2066\x9b":
        assert mark not in text
        assert f"\\u{ord(mark):04x}" not in text
