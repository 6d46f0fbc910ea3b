from __future__ import annotations

import re
import stat
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from graphwright.errors import ArgumentError, printable
from graphwright.report.inspection_page import inspection_page, plan_page
from graphwright.report.results import ROLES, BufferLifetime, LiveBuffer, MemoryPlan, Timeline
from graphwright.report.units import format_bytes, format_percent
from tests.programs import needs_chromium
from tests.report.browser import data_of, open_in_browser
from tests.report.samples import long_timeline, sample_inspection, sample_plan

EVIL = "</script><script>window.pwned = true</script><img src=x onerror='window.pwned = true'>\"&amp;\u2028"
EMPTY = Timeline((), dict.fromkeys(ROLES, ()), (), (), (), 0, 0, ())
VOID = {"wbr", "meta", "input", "br", "img", "link", "hr", "col"}
ROW_LIMIT = 200


class Page(HTMLParser):
    """Checks that elements are closed in order, and keeps what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.feed(text.replace("<wbr>", ""))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    @property
    def visible(self) -> str:
        return " ".join(" ".join(text for tag, text in self.texts if tag not in {"script", "style"}).split())

    def all(self, tag: str) -> list[str]:
        return [text for own, text in self.texts if own == tag]


def _evil_plan() -> MemoryPlan:
    base = sample_plan()

    def renamed(timeline: Timeline) -> Timeline:
        buffer = LiveBuffer(EVIL, EVIL, EVIL, "residuals", timeline.peak_bytes)
        lifetimes = (BufferLifetime(buffer, 0, len(timeline.labels) - 1),)
        return replace(timeline, labels=(EVIL,) * len(timeline.labels), live_at_peak=(buffer,), lifetimes=lifetimes)

    return replace(
        base,
        name=EVIL,
        layers=tuple(replace(layer, layer=EVIL) for layer in base.layers),
        decisions=tuple(replace(row, name=EVIL, layer=EVIL, op_type=EVIL) for row in base.decisions),
        how={EVIL: EVIL},
        feeds={EVIL: (1, 2)},
        lower_bound_reason=EVIL,
        verification=EVIL,
        timeline_before=renamed(base.timeline_before),
        timeline_after=renamed(base.timeline_after),
    )


PAGES = {
    "inspection": lambda: inspection_page(sample_inspection()),
    "inspection, measured": lambda: inspection_page(sample_inspection(measured=True)),
    "inspection, empty": lambda: inspection_page(replace(sample_inspection(), timeline=EMPTY, layers=(), peak_bytes=0, how={}, feeds={})),
    "plan": lambda: plan_page(sample_plan()),
    "plan, not measured, no curve": lambda: plan_page(sample_plan(measured=False, curve=False)),
    "plan, infeasible": lambda: plan_page(sample_plan(budget_share=0.3)),
    "plan, unchanged": lambda: plan_page(replace(sample_plan(), status="unchanged", budget_bytes=2**40)),
    "plan, evil names": lambda: plan_page(_evil_plan()),
}


@pytest.mark.parametrize("case", PAGES)
def test_a_page_is_well_formed_and_refers_to_nothing(case: str) -> None:
    text = PAGES[case]()
    page = Page(text)
    assert text.startswith("<!doctype html>")
    assert len(page.ids) == len(set(page.ids))
    loading = [
        (tag, name, value) for tag, name, value in page.attributes if name in {"src", "srcset", "data", "action", "poster", "background"}
    ]
    assert loading == []
    places = {value.partition("/")[0] for _, name, value in page.attributes if name == "href"}
    assert "#content" in places
    assert {place[1:] for place in places} <= set(page.ids), "a link leads to a place on the page"
    assert {tag for tag, _, _ in page.attributes} & {"link", "iframe", "object", "embed", "base", "img"} == set()
    style = " ".join(page.all("style"))
    assert "url(" not in style
    assert "@import" not in style
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    references = [value for _, name, value in page.attributes if name in {"aria-labelledby", "aria-controls", "for"}]
    assert set(references) <= set(page.ids)
    assert len(text) < 300_000


def test_names_are_text_wherever_they_are_shown() -> None:
    text = plan_page(_evil_plan())
    page = Page(text)
    assert "window.pwned" in page.visible
    assert not any("window.pwned" in script for script in page.all("script") if not script.startswith("{"))
    assert len(page.all("script")) == 2
    assert "<img" not in text.partition("<script>")[0]
    timelines = data_of(text)["timelines"]
    assert isinstance(timelines, list)
    assert data_of(text)["words"][timelines[0]["labels"][0]] == printable(EVIL)


def test_the_verdict_comes_first_and_the_sections_follow() -> None:
    plan = sample_plan()
    visible = Page(plan_page(plan)).visible.replace("\xa0", " ")
    places = [
        visible.index(text)
        for text in (
            plan.verdict, "Memory over the step", "How each figure was obtained",
            "Live at the planned peak", "Live at the original peak", "Memory and extra time", "Per layer",
            "What becomes of the residuals",
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
    visible = Page(plan_page(sample_plan(measured=False))).visible
    assert "measured peak" not in visible
    assert "Memory and extra time" in visible
    assert "Memory and extra time" not in Page(plan_page(sample_plan(curve=False))).visible


@pytest.mark.parametrize("measured", [True, False])
def test_the_chosen_plan_and_what_it_took_stand_among_the_points_of_the_curve(measured: bool) -> None:
    page = plan_page(sample_plan(measured=measured))
    assert [page.count(f"<td>{word}</td>") for word in ("chosen", "measured")] == [1, measured]


def test_every_table_has_a_caption_and_headings() -> None:
    text = plan_page(sample_plan())
    assert text.count("<table") == text.count("<caption>") == text.count("<thead>") == 6
    assert len(re.findall(r"<th(?: [^>]*)?>", text)) == len(re.findall(r'<th scope="(?:col|row)"', text))


def test_the_data_is_that_of_the_timeline() -> None:
    plan = sample_plan()
    data = data_of(plan_page(plan))
    assert data["budgetBytes"] == plan.budget_bytes
    before, after = data["timelines"]
    assert before["total"] == list(plan.timeline_before.total_bytes)
    assert after["peakStep"] == plan.timeline_after.peak_step
    assert [sum(row[step] for row in after["byRole"].values() if row) for step in range(len(after["total"]))] == after["total"]
    assert [phase == 2 for phase in after["phase"]] == list(plan.timeline_after.is_recomputation)
    assert [phase == 1 for phase in before["phase"]] == list(plan.timeline_before.is_backward)


def test_a_long_timeline_is_thinned_and_keeps_its_peak() -> None:
    timeline = long_timeline(100_000)
    text = inspection_page(replace(sample_inspection(), timeline=timeline, peak_bytes=timeline.peak_bytes))
    (drawn,) = data_of(text)["timelines"]
    assert drawn["stepCount"] == 100_000
    assert len(drawn["steps"]) <= 2002
    assert timeline.peak_step in drawn["steps"]
    assert max(drawn["total"]) == timeline.peak_bytes
    assert len(drawn["recomputation"]) + len(drawn["spans"]) <= 2000
    assert len(text) < len(inspection_page(sample_inspection())) + 500_000


def test_long_tables_say_what_they_leave_out() -> None:
    base = sample_plan()
    decisions = tuple(replace(base.decisions[0], name=f"value_{index}:0") for index in range(1234))
    text = plan_page(replace(base, decisions=decisions)).replace("<wbr>", "")
    assert f"value_{ROW_LIMIT - 1}:0" in text
    assert f"value_{ROW_LIMIT}:0" not in text
    assert f"The first {ROW_LIMIT} of 1,234 rows." in text


def test_writing_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    assert sample_inspection().write_html(target) == target
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sample_plan().write_html(str(target)) == target
    assert "memory plan" in target.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_writing_to_no_place_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is a folder"):
        sample_inspection().write_html(tmp_path)
    with pytest.raises(ArgumentError, match="there is no folder"):
        sample_inspection().write_html(tmp_path / "missing" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ArgumentError, match="No space left"):
        sample_inspection().write_html(target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.slow
@needs_chromium
def test_a_browser_draws_the_charts(tmp_path: Path) -> None:
    plan = sample_plan()
    dom, seen = open_in_browser(
        plan_page(plan),
        tmp_path,
        """
        for (const tab of ["price", "overview"]) document.querySelector(`#tab-${tab}`).click();
        const panel = document.querySelector("#after .at-step");
        const atPeak = panel.textContent;
        const slider = document.querySelector("#after input");
        slider.value = "5";
        slider.dispatchEvent(new Event("input"));
        const atFifth = panel.textContent;
        const area = document.querySelector("#after .chart").getBoundingClientRect();
        const where = {bubbles: true, clientX: area.left + area.width / 2, clientY: area.top + area.height / 2};
        document.querySelector("#after .chart").dispatchEvent(new PointerEvent("pointermove", where));
        const table = document.querySelector("#layers table.sortable");
        const column = () => [...table.tBodies[0].rows].map((row) => Number(row.cells[4].dataset.value));
        const button = table.tHead.rows[0].cells[4].querySelector("button");
        button.click();
        const falling = column();
        button.click();
        return {
          atPeak, atFifth, atMiddle: panel.textContent, falling, rising: column(),
          sort: table.tHead.rows[0].cells[4].getAttribute("aria-sort"),
          areas: document.querySelectorAll("#before .area").length,
          width: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        };
        """,
    )
    assert seen["errors"] == []
    assert seen["refused"] == []
    assert dom.count('class="chart"') == 3
    assert int(str(seen["areas"])) > 50, "an area per tensor"
    assert f"peak {format_bytes(plan.peak_bytes)}" in dom
    assert f"budget {format_bytes(plan.budget_bytes)}" in dom
    assert str(seen["atPeak"]).startswith(format_bytes(plan.peak_bytes))
    for buffer in plan.timeline_after.live_at_peak[:8]:
        assert f"{buffer.words} {buffer.op_type}" in str(seen["atPeak"])
    assert f"operation 6 of {len(plan.timeline_after.labels)}" in str(seen["atFifth"])
    assert plan.timeline_after.labels[5] in str(seen["atFifth"])
    assert seen["atMiddle"] != seen["atFifth"], "pointing at the chart moves the panel"
    falling, rising = seen["falling"], seen["rising"]
    assert isinstance(falling, list)
    assert falling == sorted(falling, reverse=True)
    assert rising == sorted(falling)
    assert seen["sort"] == "ascending"
    assert seen["width"] == 0, "the page scrolls sideways"


@pytest.mark.slow
@needs_chromium
def test_a_browser_shows_evil_names_as_text(tmp_path: Path) -> None:
    _, seen = open_in_browser(plan_page(_evil_plan()), tmp_path, "return {pwned: window.pwned === true, title: document.title};")
    assert seen["pwned"] is False
    assert seen["errors"] == []
    assert seen["refused"] == []
    assert str(seen["title"]).startswith("</script><script>")


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("case", ["inspection, empty", "plan, infeasible", "plan, unchanged", "plan, not measured, no curve"])
def test_a_browser_opens_every_kind_of_page_without_errors(case: str, tmp_path: Path) -> None:
    _, seen = open_in_browser(PAGES[case](), tmp_path, "return {drawn: document.documentElement.dataset.drawn};")
    assert seen == {"errors": [], "refused": [], "drawn": "true"}
