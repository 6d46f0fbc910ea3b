"""Results as text: first screens, whole texts, verdicts."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

import graphwright
from graphwright.analyze.measurement import Measurement
from graphwright.plain import Result
from graphwright.report.flop_count import FlopCount, FlopRow, Formula, UnknownOps
from graphwright.report.inspection import Inspection
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.profile_report import profile_sheet
from graphwright.report.shape_report import ShapeReport
from graphwright.report.sheet import Column, Printed, Table
from graphwright.report.sweep import SweepPoint, SweepResult
from graphwright.report.timeline import ROLE_WORDS, LiveBuffer, Timeline, live_groups, phase_spans, timeline_summary
from graphwright.report.units import format_bytes, format_count, format_percent
from tests.report.profiles import small_profile
from tests.report.samples import (
    EMPTY,
    full_inspection,
    long_timeline,
    named_plan,
    named_timeline,
    sample_advice,
    sample_inspection,
    sample_plan,
)

LONG_NAME = "functional/" + "a_very_long_block_name/" * 12 + "conv2d_transpose_17"
EVIL = "[bold red]name[/] \x1b[31m :smile: \r\n next"
INSPECTION = sample_inspection()
PLAN = sample_plan()


def _inspection(name: str) -> Inspection:
    layers = tuple(replace(layer, layer=name) for layer in INSPECTION.layers)
    return replace(
        INSPECTION, name=name, layers=layers, timeline=named_timeline(INSPECTION.timeline, name), lower_bound_reason=f"op {name} alone",
        how={name: name}, feeds={name: (1, 2)}, unknown_flop_ops=(name, name),
    )  # fmt: skip


def count(**changes: Any) -> FlopCount:
    fields: dict[str, Any] = {
        "name": "step",
        "feeds": {"x": (8, 4)},
        "node_count": 40,
        "forward": 1e9,
        "backward": 2e9,
        "optimizer": 5e6,
        "bytes_moved": 1e8,
        "unknown": {"MyOp": UnknownOps(3, "no rule", 0.075, 0.5)},
        "per_op_type": {f"Op{k}": FlopRow(f"Op{k}", k, 1e6 * k, 0, 0, 1e5) for k in range(1, 20)},
        "per_layer": {"": FlopRow("", 2, 1e6, 2e6, 0.0, 0.0), "block/" + "deep/" * 30: FlopRow("block/" + "deep/" * 30, 2, 1.0, 0, 0, 8)},
        "how": {"FLOPs": "counted " * 30},
        "loops": {"while": "10 iterations"},
        "branches": {"cond": (1e6, 3e6)},
    }
    return FlopCount(**(fields | changes))


RESULTS: dict[str, Callable[[], Any]] = {
    "inspection": sample_inspection,
    "inspection, measured": lambda: sample_inspection(measured=True),
    "inspection, long names": lambda: _inspection(LONG_NAME),
    "inspection, wide characters": lambda: _inspection("模型/卷积层" * 20),
    "inspection, evil names": lambda: _inspection(EVIL),
    "inspection, long timeline": lambda: replace(INSPECTION, timeline=long_timeline(20_000)),
    "inspection, short timeline": lambda: replace(INSPECTION, timeline=long_timeline(5)),
    "inspection, empty": lambda: replace(INSPECTION, timeline=EMPTY, layers=(), how={}, feeds={}),
    "plan": sample_plan,
    "plan, not measured": lambda: sample_plan(measured=False),
    "plan, infeasible": lambda: sample_plan(budget_share=0.3),
    "plan, long names": lambda: named_plan(LONG_NAME),
    "plan, evil names": lambda: named_plan(EVIL),
    "plan, unchanged": lambda: replace(PLAN, status="unchanged", decisions=(), budget_bytes=2**33),
    "plan, huge": lambda: replace(PLAN, budget_bytes=2**59, original_peak_bytes=2**60 - 1, recomputed_count=10**9),
    "advice": sample_advice,
    "profile": lambda: profile_sheet(small_profile(), {}, {"time": "measured"}),
    "flops": count,
}


@pytest.mark.parametrize("case", RESULTS)
def test_texts_fit_80_columns_and_first_screens_14_lines(case: str) -> None:
    result = RESULTS[case]()
    whole, first = result.text("all").split("\n"), result.text().split("\n")
    for text in (whole, first, result.text("layers").split("\n")):
        assert [line for line in text if cell_len(line) > 80] == []
        assert not any(ord(character) < 32 for line in text for character in line)
    assert len(first) < len(whole)
    if "names" not in case:
        assert 1 <= len(first) <= 14, "\n".join(first)


def test_the_inspection_tells_its_figures() -> None:
    text = INSPECTION.text("all")
    for figure in (INSPECTION.peak_bytes, INSPECTION.resident_bytes, INSPECTION.lower_bound_bytes, INSPECTION.parameters.trainable_bytes):
        assert format_bytes(figure) in text
    flat = " ".join(text.split())
    assert INSPECTION.lower_bound_reason in flat
    assert all(how in flat for how in INSPECTION.how.values())
    assert "not counted: SoftmaxCrossEntropyWithLogits" in flat
    assert "[bold]x[/bold]" in _inspection("[bold]x[/bold]").text("all"), "names are no markup"


def test_the_first_screen_says_whose_the_peak_is() -> None:
    text = " ".join(str(INSPECTION).split())
    assert text.startswith(f"train_step: peak {format_bytes(INSPECTION.peak_bytes)}, predicted for one order of its operations.")
    for role, nbytes in INSPECTION.timeline.at_peak().items():
        assert f"{ROLE_WORDS[role]} {format_bytes(nbytes)}" in text
    assert f"{format_count(INSPECTION.parameters.trainable)} parameters" in text
    assert "How each figure" not in text
    measured = sample_inspection(measured=True)
    assert measured.measured is not None
    assert measured.verdict.endswith(f"; measured {format_bytes(measured.measured.peak_bytes)}.")


def test_long_names_in_a_table_stay_apart() -> None:
    names = [f"backbone/transformer_layer_{k}/feedforward_intermediate_dense" for k in range(4)]
    layers = tuple(replace(PLAN.layers[0], layer=name, peak_share_bytes=PLAN.peak_bytes) for name in names)
    lines = replace(PLAN, layers=layers).text("layers").splitlines()
    for k in range(4):
        assert sum(line.startswith(f"  …layer_{k}/") for line in lines) == 1


def test_the_plan_tells_its_figures() -> None:
    text = PLAN.text("all")
    assert text.startswith("Fits: train_step")
    assert PLAN.measured_after is not None
    flat = " ".join(text.split())
    sizes = (PLAN.peak_bytes, PLAN.budget_bytes, PLAN.original_peak_bytes, PLAN.resident_bytes, PLAN.lower_bound_bytes)
    for words in (
        *map(format_bytes, sizes),
        format_percent(PLAN.overhead),
        PLAN.verification,
        format_bytes(PLAN.measured_after.peak_bytes),
    ):
        assert words in flat


def test_what_is_not_itemized_at_the_peak_has_a_row() -> None:
    live = (LiveBuffer("a:0", "Relu", "layer", "residuals", 2**30),)
    text = replace(INSPECTION, timeline=replace(INSPECTION.timeline, live_at_peak=live)).text("all")
    line = next(line for line in text.split("\n") if line.strip().startswith("not itemized"))
    assert format_bytes(INSPECTION.peak_bytes - 2**30) in line
    buffers = INSPECTION.timeline.live_at_peak
    groups = live_groups(buffers)
    assert (sum(group.nbytes for group in groups), sum(group.count for group in groups)) == (sum(b.nbytes for b in buffers), len(buffers))


def test_the_chart_marks_peak_budget_and_recomputation() -> None:
    timeline = long_timeline(50_000)
    lines = replace(INSPECTION, timeline=timeline, peak_bytes=timeline.peak_bytes).text("chart").split("\n")
    top = next(line for line in lines if "┤" in line)
    mark = next(line for line in lines if "▲" in line)
    assert [index for index, character in enumerate(top) if character == "█"] == [mark.index("▲")]
    lines = PLAN.text("chart").split("\n")
    assert sum("budget" in line and "┤" in line and "┄" in line for line in lines) == 2
    assert any("≈" in line and "└" in line for line in lines)


def test_a_plan_that_fits() -> None:
    assert PLAN.verdict.startswith("Fits: ")
    assert PLAN.measured_after is not None
    for nbytes in (PLAN.peak_bytes, PLAN.budget_bytes, PLAN.original_peak_bytes, PLAN.measured_after.peak_bytes):
        assert format_bytes(nbytes) in PLAN.verdict
    assert replace(PLAN, measured_after=None).verdict.endswith("(predicted, not measured).")
    unchanged = replace(PLAN, status="unchanged", budget_bytes=2 * PLAN.peak_bytes)
    assert unchanged.verdict.startswith("Fits as it is")
    executor = PeakPrediction("step", {}, "executor", 2, unchanged.budget_bytes, 1, unchanged.budget_bytes + 1, 1, "", (), {}, {})
    assert replace(unchanged, executor=executor).verdict.startswith("Fits: ")  # the plan holds the order


@pytest.mark.parametrize(("time_s", "words"), [(1.25, "and 25.0 % more time."), (0.9, "and 10.0 % less time."), (math.nan, "iB.")])
def test_a_measured_plan_says_what_it_took_in_time(time_s: float, words: str) -> None:
    before, after = Measurement(1, 1, 1.0, ""), Measurement(PLAN.peak_bytes, 1, time_s, "")
    plan = replace(PLAN, overhead=0.2, measured_before=before, measured_after=after)
    assert plan.verdict.endswith(words)
    note = next(line for line in plan.text("all").split("\n") if line.startswith("  extra time"))
    assert "20.0 %" in note
    assert "nan" not in plan.text("all")


def test_a_plan_over_its_budget_is_never_said_to_fit() -> None:
    over = replace(PLAN, budget_bytes=PLAN.peak_bytes - 4096, status="feasible", measured_after=None)
    assert over.verdict.startswith("Does not fit")
    assert format_bytes(over.budget_bytes) == format_bytes(over.peak_bytes), "the case would say nothing"
    assert f"cannot be brought into {format_bytes(over.budget_bytes)} " not in over.verdict, "sizes that round alike are told apart"
    measured = replace(PLAN, measured_after=Measurement(PLAN.budget_bytes + 2**20, PLAN.resident_bytes, 1.0, ""))
    assert measured.verdict.startswith("Over budget when measured")
    below = replace(PLAN, status="infeasible", budget_bytes=PLAN.lower_bound_bytes // 2)
    assert PLAN.lower_bound_reason in below.verdict
    assert f"smallest budget known to work is {format_bytes(PLAN.peak_bytes)}" in below.verdict


@pytest.mark.parametrize(("factor", "text"), [(1.03, "+3.0 %"), (0.9, "-10.0 %"), (1.0, "+0.0 %"), (0.99999, "+0.0 %")])
def test_differences_are_of_the_measured_to_the_predicted(factor: float, text: str) -> None:
    measured = Measurement(round(factor * INSPECTION.peak_bytes), 0, 1.0, "")
    assert f"{text} against the prediction; 1.00 s a step" in replace(INSPECTION, measured=measured).text("all")


def test_many_op_types_without_a_rule_are_counted() -> None:
    text = " ".join(replace(INSPECTION, unknown_flop_ops=tuple("ABCDEFG")).text("all").split())
    assert "not counted: A, B, C, D, E and 2 op types more" in text
    assert "every op type is counted" in replace(INSPECTION, unknown_flop_ops=()).text("all")


def test_a_timeline_in_words() -> None:
    words = timeline_summary(PLAN.timeline_after)
    assert f"peaks at {format_bytes(PLAN.peak_bytes)} in operation {PLAN.timeline_after.peak_step + 1}" in words
    assert f"{PLAN.recomputed_count} operations are recomputations" in words
    assert timeline_summary(EMPTY) == "The timeline has no operations."


def test_an_operation_that_runs_early_makes_no_phase_of_its_own() -> None:
    """Shapes that gradients need run as soon as they can: the backward pass begins where most steps belong to it."""
    directions = [0] * 40 + [1] * 60 + [2] * 30
    directions[3], directions[20], directions[70], directions[128] = 1, 2, 0, 1
    directions[50:58] = [2] * 8  # weights are updated as soon as their gradients are known
    steps = len(directions)
    timeline = Timeline(
        tuple(f"n{k}" for k in range(steps)), {}, (1,) * steps, tuple(k == 90 for k in range(steps)), tuple(d > 0 for d in directions),
        0, 1, (), is_optimizer=tuple(d == 2 for d in directions),
    )  # fmt: skip
    assert phase_spans(timeline) == [(0, 39, "forward"), (40, 99, "backward"), (100, 129, "optimizer")]
    assert "The backward pass begins at operation 41." in timeline_summary(timeline)


def test_flops_say_what_matters() -> None:
    text = count().text("all")
    assert text.splitlines()[0] == "step: 3.00 GFLOP per step; 3 of 40 ops could not be counted."
    for part in ("1.00 GFLOP", "2.00 GFLOP", "5.00 MFLOP", "MyOp", "no rule", "10 iterations", "1.00 MFLOP or 3.00 MFLOP", "7 more"):
        assert part in text
    data: Any = count(bytes_moved=math.nan).to_json()
    assert (data["total_flops"], data["bytes_moved"]) == (3_005_000_000, None)
    assert data["unknown"]["MyOp"] == {"count": 3, "reason": "no rule", "node_share": 0.075, "bytes_share": 0.5}
    assert data["per_op_type"]["Op2"]["forward_flops"] == 2_000_000
    assert math.isnan(count().per_layer[""].arithmetic_intensity)
    assert count().arithmetic_intensity == pytest.approx(30.05)


def test_an_open_batch_has_a_formula() -> None:
    text = count(feeds={"x": (None, 4)}, batch=8, formula=Formula(2_000_000.5, -3.0)).text("all")
    assert text.startswith("step: 2,000,000.5 * batch - 3 FLOP per step; 3 of 40 ops could not be counted;\nall other figures are for a")
    assert "x (batch, 4)" in text


def test_a_sweep_tells_what_fits() -> None:
    points = tuple(SweepPoint(b, 1000 * b, 500, 600, fits=True) for b in (1, 2, 4))
    leaner = SweepResult((SweepPoint(1, 10, 5, 5, fits=True),), 0, None, "")
    sweep = SweepResult(points, 2500, 4, "step", "step").beside(leaner=leaner)
    rows = [line.split()[-3] for line in sweep.text().splitlines() if line.startswith(("  1 ", "  2 ", "  4 "))]
    assert rows == ["both", "A", "none"]
    assert sweep.to_json()["others"].keys() == {"leaner"}  # type: ignore[attr-defined]


def test_a_table_leaves_out_empty_columns_and_columns_that_do_not_fit() -> None:
    columns = [Column("n", lambda n: n), Column("none", lambda _: ""), Column("nan", lambda _: math.nan), Column("square", lambda n: n * n)]
    assert Table([2, 3], columns).lines(80) == ["n  square", "2       4", "3       9"]
    assert Table([2, 3], columns, limit=1, more="others").lines(80)[-1] == "1 others"
    assert Table([], columns).is_empty
    assert Table([2], columns).lines(8) == ["n", "2"]
    assert Table([2], columns, fixed=True).lines(8) == ["n  square", "2       4"]


@pytest.mark.parametrize(
    "make", [sample_plan, full_inspection, lambda: sample_plan().timeline_after, lambda: full_inspection(profiled=True).profile]
)
def test_at_a_prompt_a_result_takes_a_few_lines(make: Callable[[], Any]) -> None:
    value = make()
    text = repr(value)
    assert text.startswith(f"<{type(value).__name__}: ")
    assert len(text.splitlines()) <= 5
    assert max(map(len, text.splitlines())) <= 110
    assert str(value).startswith(text.partition(": ")[2].rstrip(">").removesuffix(" ..."))


def test_every_public_result_has_a_short_repr_a_notebook_form_and_json() -> None:
    public = [getattr(graphwright, name) for name in dir(graphwright)]
    results = [value for value in public if isinstance(value, type) and issubclass(value, Printed)]
    assert len(results) >= 11
    for result in results:
        assert result.__repr__ is Result.__repr__, result
        assert hasattr(result, "to_json"), result
    for value in (ShapeReport("<b>", {}, {}, (), (), (), {}), replace(INSPECTION, name="<script>run()</script>")):
        assert value._repr_html_() == f"<pre>{html.escape(str(value))}</pre>"
        assert "<script" not in value._repr_html_()
