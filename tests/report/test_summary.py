from __future__ import annotations

import math
from dataclasses import replace

import pytest

from graphwright.analyze.measurement import Measurement
from graphwright.report.results import ROLES, Timeline
from graphwright.report.summary import (
    chart_top_bytes,
    inspection_facts,
    inspection_verdict,
    live_groups,
    origins,
    phase_spans,
    plan_facts,
    plan_tone,
    plan_verdict,
    timeline_summary,
)
from graphwright.report.units import format_bytes
from tests.report.samples import sample_inspection, sample_plan

INSPECTION = sample_inspection()
PLAN = sample_plan()
EMPTY = Timeline((), dict.fromkeys(ROLES, ()), (), (), (), 0, 0, ())


def test_the_samples_agree_with_themselves() -> None:
    assert INSPECTION.parameters.trainable == 31_030_658
    for timeline in (PLAN.timeline_before, PLAN.timeline_after):
        assert tuple(map(sum, zip(*timeline.bytes_by_role.values(), strict=True))) == timeline.total_bytes
        assert max(timeline.total_bytes) == timeline.total_bytes[timeline.peak_step] == timeline.peak_bytes
        assert sum(buffer.nbytes for buffer in timeline.live_at_peak) == timeline.peak_bytes
    assert PLAN.peak_bytes < PLAN.budget_bytes < PLAN.original_peak_bytes


def test_an_inspection_says_what_it_needs_and_how_that_is_known() -> None:
    peak = format_bytes(INSPECTION.peak_bytes)
    assert INSPECTION.verdict == inspection_verdict(INSPECTION) == f"train_step: peak {peak}, predicted for one order of its operations."
    measured = sample_inspection(measured=True)
    assert measured.measured is not None
    assert measured.verdict.endswith(f"; measured {format_bytes(measured.measured.peak_bytes)}.")


def test_a_plan_that_fits() -> None:
    verdict = plan_verdict(PLAN)
    assert verdict.startswith("Fits: ")
    assert PLAN.measured_after is not None
    for nbytes in (PLAN.peak_bytes, PLAN.budget_bytes, PLAN.original_peak_bytes, PLAN.measured_after.peak_bytes):
        assert format_bytes(nbytes) in verdict
    assert plan_tone(PLAN) == "good"
    assert plan_verdict(replace(PLAN, measured_after=None)).endswith("(predicted, not measured).")


def test_a_measured_plan_says_what_it_took_in_time():
    assert PLAN.measured_before is not None
    assert PLAN.measured_after is not None
    for time_s, words in ((1.25, "and 25.0 % more time."), (0.9, "and 10.0 % less time."), (math.nan, "iB.")):
        before, after = replace(PLAN.measured_before, time_s=1.0), replace(PLAN.measured_after, time_s=time_s)
        assert plan_verdict(replace(PLAN, measured_before=before, measured_after=after)).endswith(words)


def test_a_plan_over_its_budget_is_never_said_to_fit() -> None:
    over = replace(PLAN, budget_bytes=PLAN.peak_bytes - 1, status="feasible", measured_after=None)
    assert plan_verdict(over).startswith("Does not fit")
    assert plan_tone(over) == "bad"


def test_sizes_that_round_alike_are_told_apart() -> None:
    over = replace(PLAN, budget_bytes=PLAN.peak_bytes - 4096, status="infeasible", measured_after=None)
    first, second = format_bytes(over.budget_bytes), format_bytes(over.peak_bytes)
    assert first == second, "the case would say nothing"
    assert f"cannot be brought into {first} " not in plan_verdict(over)


def test_a_measured_peak_over_the_budget_is_said_first() -> None:
    measured = Measurement(PLAN.budget_bytes + 2**20, PLAN.resident_bytes, 1.0, "")
    over = replace(PLAN, measured_after=measured)
    assert plan_verdict(over).startswith("Over budget when measured")
    assert plan_tone(over) == "bad"


def test_below_the_lower_bound_the_reason_is_given() -> None:
    plan = replace(PLAN, status="infeasible", budget_bytes=PLAN.lower_bound_bytes // 2)
    verdict = plan_verdict(plan)
    assert PLAN.lower_bound_reason in verdict
    assert f"smallest budget known to work is {format_bytes(PLAN.peak_bytes)}" in verdict


def test_nothing_to_do() -> None:
    plan = replace(PLAN, status="unchanged", budget_bytes=2 * PLAN.peak_bytes, overhead=0.0)
    assert plan_verdict(plan).startswith("Fits as it is")


def test_what_was_not_measured_has_no_fact() -> None:
    bare = replace(PLAN, measured_before=None, measured_after=None)
    assert not [fact for fact in [*inspection_facts(INSPECTION), *plan_facts(bare)] if fact.label.startswith("measured")]
    assert not any(label.startswith("measured") for label, _ in origins(bare))


def test_a_measurement_without_time_is_no_time() -> None:
    measured = Measurement(PLAN.peak_bytes, PLAN.resident_bytes, math.nan, "")
    facts = {fact.label: fact for fact in plan_facts(replace(PLAN, measured_before=None, measured_after=measured))}
    assert facts["measured peak"].note == "+0.0 % against the prediction"
    assert "measured" not in facts["extra time"].note


@pytest.mark.parametrize(("factor", "text"), [(1.03, "+3.0 %"), (0.9, "-10.0 %"), (1.0, "+0.0 %"), (0.99999, "+0.0 %")])
def test_differences_are_of_the_measured_to_the_predicted(factor: float, text: str) -> None:
    measured = Measurement(round(factor * INSPECTION.peak_bytes), 0, 1.0, "")
    facts = {fact.label: fact for fact in inspection_facts(replace(INSPECTION, measured=measured))}
    assert facts["measured peak"].note == f"{text} against the prediction; 1.00 s a step"


def test_the_measured_extra_time_stands_beside_the_planned() -> None:
    first, second = Measurement(1, 1, 2.0, ""), Measurement(1, 1, 2.5, "")
    fact = next(f for f in plan_facts(replace(PLAN, overhead=0.2, measured_before=first, measured_after=second)) if f.label == "extra time")
    assert fact.value == "20.0 %"
    assert "; measured 25.0 %" in fact.note


def test_live_groups_keep_every_byte() -> None:
    buffers = INSPECTION.timeline.live_at_peak
    groups = live_groups(buffers)
    assert sum(group.nbytes for group in groups) == sum(buffer.nbytes for buffer in buffers)
    assert sum(group.count for group in groups) == len(buffers)
    assert [group.nbytes for group in groups] == sorted((group.nbytes for group in groups), reverse=True)


def test_a_timeline_in_words() -> None:
    words = timeline_summary(PLAN.timeline_after)
    assert f"peaks at {format_bytes(PLAN.peak_bytes)} in operation {PLAN.timeline_after.peak_step + 1}" in words
    assert f"{PLAN.recomputed_count} operations are recomputations" in words
    assert timeline_summary(EMPTY) == "The timeline has no operations."


def test_a_far_budget_does_not_flatten_the_chart() -> None:
    highest = PLAN.original_peak_bytes
    assert chart_top_bytes(PLAN) == highest
    assert chart_top_bytes(replace(PLAN, budget_bytes=highest + 1)) == highest + 1
    assert chart_top_bytes(replace(PLAN, budget_bytes=100 * highest)) == highest


def test_many_op_types_without_a_rule_are_counted() -> None:
    notes = " ".join(fact.note for fact in inspection_facts(replace(INSPECTION, unknown_flop_ops=tuple("ABCDEFG"))))
    assert "not counted: A, B, C, D, E and 2 op types more" in notes
    assert "every op type is counted" in " ".join(fact.note for fact in inspection_facts(replace(INSPECTION, unknown_flop_ops=())))


def test_an_operation_that_runs_early_makes_no_phase_of_its_own() -> None:
    """Shapes that gradients need run as soon as they can: the backward pass begins where most steps belong to it."""
    directions = [0] * 40 + [1] * 60 + [2] * 30
    directions[3], directions[20], directions[70], directions[128] = 1, 2, 0, 1
    directions[50:58] = [2] * 8  # weights are updated as soon as their gradients are there
    count = len(directions)
    made = Timeline(
        tuple(f"n{k}" for k in range(count)),
        {},
        (1,) * count,
        tuple(k == 90 for k in range(count)),
        tuple(d > 0 for d in directions),
        0,
        1,
        (),
        is_optimizer=tuple(d == 2 for d in directions),
    )
    assert phase_spans(made) == [(0, 39, "forward"), (40, 99, "backward"), (100, 129, "optimizer")]
    assert "The backward pass begins at operation 41." in timeline_summary(made)
