from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from graphwright.report.results import ROLES, Inspection, LiveBuffer, MemoryPlan, OpTypeCost, Timeline
from graphwright.report.summary import ROLE_WORDS, multiply_adds
from graphwright.report.terminal import print_inspection, print_plan
from graphwright.report.terminal_layout import Page, rendered
from graphwright.report.terminal_profile import print_profile
from graphwright.report.units import format_bytes, format_count, format_percent
from tests.report.profiles import small_profile
from tests.report.samples import long_timeline, sample_advice, sample_inspection, sample_plan

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
    "inspection": lambda: sample_inspection().text("all"),
    "inspection, measured": lambda: sample_inspection(measured=True).text("all"),
    "inspection, long names": lambda: _inspection(LONG_NAME).text("all"),
    "inspection, wide characters": lambda: _inspection("模型/卷积层" * 20).text("all"),
    "inspection, evil names": lambda: _inspection(EVIL).text("all"),
    "inspection, long timeline": lambda: replace(sample_inspection(), timeline=long_timeline(20_000)).text("all"),
    "inspection, short timeline": lambda: replace(sample_inspection(), timeline=long_timeline(5)).text("all"),
    "inspection, empty": lambda: replace(sample_inspection(), timeline=EMPTY, layers=(), how={}, feeds={}).text("all"),
    "plan": lambda: sample_plan().text("all"),
    "plan, not measured": lambda: sample_plan(measured=False).text("all"),
    "plan, infeasible": lambda: sample_plan(budget_share=0.3).text("all"),
    "plan, long names": lambda: _plan(LONG_NAME).text("all"),
    "plan, evil names": lambda: _plan(EVIL).text("all"),
    "plan, unchanged": lambda: replace(sample_plan(), status="unchanged", decisions=(), budget_bytes=2**33).text("all"),
    "plan, huge": lambda: replace(sample_plan(), budget_bytes=2**59, original_peak_bytes=2**60 - 1, recomputed_count=10**9).text("all"),
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
    text = inspection.text("all")
    assert text.startswith("train_step: peak")
    assert text == inspection.text("all")
    for figure in (inspection.peak_bytes, inspection.resident_bytes, inspection.lower_bound_bytes, inspection.parameters.trainable_bytes):
        assert format_bytes(figure) in text
    assert format_count(inspection.parameters.trainable) in text
    flat = " ".join(text.split())
    assert inspection.lower_bound_reason in flat
    assert all(how in flat for how in inspection.how.values())
    assert "not counted: SoftmaxCrossEntropyWithLogits" in flat


def test_long_names_in_a_table_stay_apart() -> None:
    base = sample_plan()
    names = [f"backbone/transformer_layer_{k}/feedforward_intermediate_dense" for k in range(4)]
    layers = tuple(replace(base.layers[0], layer=name, peak_share_bytes=base.peak_bytes) for name in names)
    text = replace(base, layers=layers).text("all")
    for k in range(4):
        assert sum(line.startswith(f"  …transformer_layer_{k}/") for line in text[text.index("Per layer") :].splitlines()) == 1


def test_the_plan_tells_its_figures() -> None:
    plan = sample_plan()
    text = plan.text("all")
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
    text = replace(inspection, timeline=replace(inspection.timeline, live_at_peak=live)).text("all")
    missing = inspection.peak_bytes - 2**30
    line = next(line for line in text.split("\n") if line.strip().startswith("not itemized"))
    assert format_bytes(missing) in line


def test_the_peak_of_the_chart_reaches_the_top_and_its_mark_points_at_it() -> None:
    timeline = long_timeline(50_000)
    lines = replace(sample_inspection(), timeline=timeline, peak_bytes=timeline.peak_bytes).text("all").split("\n")
    top = next(index for index, line in enumerate(lines) if "┤" in line)
    columns = [index for index, character in enumerate(lines[top]) if character == "█"]
    mark = next(line for line in lines if "▲" in line)
    assert columns == [mark.index("▲")]


def test_the_budget_is_drawn_between_what_fits_and_what_does_not() -> None:
    lines = sample_plan().text("all").split("\n")
    assert sum("budget" in line and "┤" in line and "┄" in line for line in lines) == 2
    assert any("≈" in line and "└" in line for line in lines)


def test_markup_in_names_is_text() -> None:
    text = _inspection("[bold]x[/bold]").text("all")
    assert "[bold]x[/bold]" in text
    assert "\x1b" not in _plan(EVIL).text("all")


def test_a_console_with_colors_gets_colors() -> None:
    file = io.StringIO()
    print_plan(sample_plan(), Page(Console(file=file, width=80, color_system="truecolor", force_terminal=True)))
    assert "\x1b[" in file.getvalue()


def test_plain_text_has_no_colors_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    text = sample_plan().text("all")
    assert "\x1b" not in text
    assert max(map(cell_len, text.split("\n"))) <= 80


FIRST_SCREENS = {
    **{name: text for name, text in TEXTS.items() if "names" not in name},
    "advice": lambda: sample_advice().text("all"),
    "profile": lambda: rendered(print_profile, SimpleNamespace(step=small_profile(), how={"time": "measured"}), parts=("all",)),
}


@pytest.mark.parametrize("case", FIRST_SCREENS)
def test_a_first_screen_has_at_most_14_lines(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`text()` in place of each `text("all")` above."""
    whole = FIRST_SCREENS[case]()
    monkeypatch.setattr(Page, "shows", lambda page, part: False)
    brief = FIRST_SCREENS[case]().splitlines()
    assert 1 <= len(brief) <= 14, "\n".join(brief)
    assert all(cell_len(line) <= 80 for line in brief)
    assert len(brief) < len(whole.splitlines())


def test_the_first_screen_says_whose_the_peak_is() -> None:
    inspection = sample_inspection()
    text = " ".join(str(inspection).split())
    assert f"train_step: peak {format_bytes(inspection.peak_bytes)}, predicted for one order of its operations." in text
    for role, row in inspection.timeline.bytes_by_role.items():
        if nbytes := row[inspection.timeline.peak_step]:
            assert f"{ROLE_WORDS[role]} {format_bytes(nbytes)}" in text
    assert f"{format_count(inspection.parameters.trainable)} parameters" in text
    assert "FLOPs not counted: SoftmaxCrossEntropyWithLogits." in text
    assert "How each figure" not in text


def test_multiply_adds_are_those_of_convolutions_and_products() -> None:
    rows = (OpTypeCost("Conv2D", 1, 200.0, 0.0, 0.0, 0.0, 0), OpTypeCost("Relu", 1, 50.0, 0.0, 0.0, 0.0, 0))
    assert multiply_adds(replace(sample_inspection(), op_types=rows)) == 100
