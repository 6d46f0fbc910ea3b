from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from graphwright.report.results import ROLES, Inspection, LiveBuffer, MemoryPlan, Timeline
from graphwright.report.terminal import print_inspection, print_plan
from graphwright.report.terminal_layout import Page
from graphwright.report.units import format_bytes, format_count, format_percent
from tests.report.samples import long_timeline, sample_inspection, sample_plan

EMPTY = Timeline((), dict.fromkeys(ROLES, ()), (), (), (), 0, 0, ())
LONG_NAME = "functional/" + "a_very_long_block_name/" * 12 + "conv2d_transpose_17"
EVIL = "[bold red]name[/] \x1b[31m :smile: \r\n next"


def _renamed(timeline: Timeline, name: str) -> Timeline:
    live = tuple(replace(buffer, name=name, layer=name, op_type=name) for buffer in timeline.live_at_peak)
    return replace(timeline, labels=(name,) * len(timeline.labels), live_at_peak=live)


def _inspection(name: str) -> Inspection:
    base = sample_inspection()
    layers = tuple(replace(layer, layer=name) for layer in base.layers)
    return replace(
        base, name=name, layers=layers, timeline=_renamed(base.timeline, name), lower_bound_reason=f"op {name} alone needs 83 %",
        how={name: name}, feeds={name: (1, 2)}, unknown_flop_ops=(name, name),
    )  # fmt: skip


def _plan(name: str) -> MemoryPlan:
    base = sample_plan()
    decisions = tuple(replace(row, name=name, layer=name, op_type=name) for row in base.decisions)
    return replace(
        base, name=name, layers=tuple(replace(layer, layer=name) for layer in base.layers), decisions=decisions, how={name: name},
        timeline_before=_renamed(base.timeline_before, name), timeline_after=_renamed(base.timeline_after, name),
        lower_bound_reason=f"op {name} alone needs 83 %", verification=f"{name} equal",
    )  # fmt: skip


TEXTS = {
    "inspection": lambda: str(sample_inspection()),
    "inspection, measured": lambda: str(sample_inspection(measured=True)),
    "inspection, long names": lambda: str(_inspection(LONG_NAME)),
    "inspection, wide characters": lambda: str(_inspection("模型/卷积层" * 20)),
    "inspection, evil names": lambda: str(_inspection(EVIL)),
    "inspection, long timeline": lambda: str(replace(sample_inspection(), timeline=long_timeline(20_000))),
    "inspection, short timeline": lambda: str(replace(sample_inspection(), timeline=long_timeline(5))),
    "inspection, empty": lambda: str(replace(sample_inspection(), timeline=EMPTY, layers=(), how={}, feeds={})),
    "plan": lambda: str(sample_plan()),
    "plan, not measured": lambda: str(sample_plan(measured=False)),
    "plan, infeasible": lambda: str(sample_plan(budget_share=0.3)),
    "plan, long names": lambda: str(_plan(LONG_NAME)),
    "plan, evil names": lambda: str(_plan(EVIL)),
    "plan, unchanged": lambda: str(replace(sample_plan(), status="unchanged", decisions=(), budget_bytes=2**33)),
    "plan, huge": lambda: str(replace(sample_plan(), budget_bytes=2**59, original_peak_bytes=2**60 - 1, recomputed_count=10**9)),
}


@pytest.mark.parametrize("case", TEXTS)
def test_no_line_is_wider_than_80_columns(case: str) -> None:
    text = TEXTS[case]()
    assert text
    assert [line for line in text.split("\n") if cell_len(line) > 80] == []
    assert not any(ord(character) < 32 for character in text.replace("\n", ""))


@pytest.mark.parametrize("width", [50, 64, 80, 100, 200])
def test_the_console_is_kept_to(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None)
    print_plan(sample_plan(), Page(console))
    print_inspection(sample_inspection(), Page(console))
    assert max(map(cell_len, file.getvalue().split("\n"))) <= min(width, 110)


def test_the_inspection_tells_its_figures() -> None:
    inspection = sample_inspection()
    text = str(inspection)
    assert text.startswith("train_step needs")
    assert text == str(inspection)
    for figure in (inspection.peak_bytes, inspection.resident_bytes, inspection.lower_bound_bytes, inspection.parameters.trainable_bytes):
        assert format_bytes(figure) in text
    assert format_count(inspection.parameters.trainable) in text
    flat = " ".join(text.split())
    assert inspection.lower_bound_reason in flat
    assert "nothing was measured" in flat
    assert all(how in flat for how in inspection.how.values())
    assert "not counted: SoftmaxCrossEntropyWithLogits" in flat


def test_long_names_in_a_table_stay_apart() -> None:
    base = sample_inspection()
    names = [f"backbone/transformer_layer_{k}/feedforward_intermediate_dense" for k in range(4)]
    layers = tuple(replace(base.layers[0], layer=name, peak_share_bytes=base.peak_bytes) for name in names)
    text = str(replace(base, layers=layers))
    for k in range(4):
        assert sum(line.startswith(f"  …transformer_layer_{k}/") for line in text[text.index("Per layer") :].splitlines()) == 1


def test_the_plan_tells_its_figures() -> None:
    plan = sample_plan()
    text = str(plan)
    assert text.startswith("Fits: train_step")
    for figure in (plan.peak_bytes, plan.budget_bytes, plan.original_peak_bytes, plan.resident_bytes, plan.lower_bound_bytes):
        assert format_bytes(figure) in text
    for share in (plan.overhead, plan.recomputed_flops):
        assert format_percent(share) in text
    flat = " ".join(text.split())
    assert plan.verification in flat
    assert plan.measured_after is not None
    assert format_bytes(plan.measured_after.peak_bytes) in flat


def test_live_at_the_peak_adds_up() -> None:
    """Rows that are cut off are summed, and what was not itemized is said."""
    inspection = sample_inspection()
    live = (LiveBuffer("a:0", "Relu", "layer", "residuals", 2**30),)
    text = str(replace(inspection, timeline=replace(inspection.timeline, live_at_peak=live)))
    missing = inspection.peak_bytes - 2**30
    line = next(line for line in text.split("\n") if line.strip().startswith("not itemized"))
    assert format_bytes(missing) in line


def test_the_peak_of_the_chart_reaches_the_top_and_its_mark_points_at_it() -> None:
    timeline = long_timeline(50_000)
    lines = str(replace(sample_inspection(), timeline=timeline, peak_bytes=timeline.peak_bytes)).split("\n")
    top = next(index for index, line in enumerate(lines) if "┤" in line)
    columns = [index for index, character in enumerate(lines[top]) if character == "█"]
    mark = next(line for line in lines if "▲" in line)
    assert columns == [mark.index("▲")]


def test_the_budget_is_drawn_between_what_fits_and_what_does_not() -> None:
    lines = str(sample_plan()).split("\n")
    assert sum("budget" in line and "┤" in line and "┄" in line for line in lines) == 2
    assert any("≈" in line and "└" in line for line in lines)


def test_markup_in_names_is_text() -> None:
    text = str(_inspection("[bold]x[/bold]"))
    assert "[bold]x[/bold]" in text
    assert "\x1b" not in str(_plan(EVIL))


def test_a_console_with_colors_gets_colors() -> None:
    file = io.StringIO()
    print_plan(sample_plan(), Page(Console(file=file, width=80, color_system="truecolor", force_terminal=True)))
    assert "\x1b[" in file.getvalue()


def test_plain_text_has_no_colors_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    text = str(sample_plan())
    assert "\x1b" not in text
    assert max(map(cell_len, text.split("\n"))) <= 80
