"""The report driven as a reader drives it: tabs, links, filters, sorting, keyboard, colors. One browser for all tests."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphwright.ir.graph import DTYPES, Graph
from graphwright.report.comparison import FIGURES, Comparison, LayerFigures, LayerPair, StepCosts
from graphwright.report.drawing import draw
from graphwright.report.page import page_of
from graphwright.report.profile_report import profile_sheet
from graphwright.report.sweep import SweepPoint, SweepResult
from tests.programs import CHROMIUM, needs_chromium
from tests.report.page_parser import PAGES
from tests.report.profiles import small_profile
from tests.report.samples import full_inspection, sample_advice, sample_inspection, sample_plan

playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")
pytestmark = needs_chromium
LAYER = "encoder2/conv1"
HREF = "#layers/encoder2%2Fconv1"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pages")
    full_inspection(profiled=True).write_html(made / "full.html")
    sample_inspection().write_html(made / "plain.html")
    sample_plan().write_html(made / "plan.html")
    compared().write_html(made / "compare.html")
    points = tuple(SweepPoint(b, 100 * b * 2**20, 50 * 2**20, 60 * 2**20, fits=b < 4) for b in (1, 2, 4))
    leaner = SweepResult(tuple(SweepPoint(p.batch, p.peak_bytes // 2, p.resident_bytes, 0, fits=True) for p in points), 0, None, "halved")
    sweep = SweepResult(points, 350 * 2**20, 2, "made up", "<b>step</b>").beside(planned=leaner)
    (made / "profile.html").write_text(page_of(profile_sheet(small_profile(), {}, {})), encoding="utf-8")
    sample_inspection(measured=True).with_advice(sample_advice()).write_html(made / "advice.html")
    sweep.write_html(made / "sweep.html")
    return made


def compared() -> Comparison:
    """Two steps with the same layers under other names; the second takes twice the memory."""

    def costs(name: str, batch: int, scope: str) -> StepCosts:
        found = sample_inspection(batch)
        renamed = replace(
            found.timeline,
            live_at_peak=tuple(replace(b, layer=scope + b.layer) for b in found.timeline.live_at_peak),
            lifetimes=tuple(replace(v, buffer=replace(v.buffer, layer=scope + v.buffer.layer)) for v in found.timeline.lifetimes),
        )
        layers = tuple(
            LayerFigures(scope + r.layer, r.op_count, r.parameter_count, r.forward_flops, 0.0, 0.0, r.residual_bytes, r.peak_share_bytes)
            for r in found.layers
        )
        figures = dict.fromkeys(FIGURES, 1.0) | {"peak_bytes": found.peak_bytes}
        return StepCosts(name, {"x": (batch, 4)}, figures, layers, (), {"peak": "simulated"}, renamed)

    a, b = costs("one", 4, "old/"), costs("two", 8, "")
    return Comparison(a, b, tuple(LayerPair(*pair) for pair in zip(a.layers, b.layers, strict=True)))


@pytest.fixture
def page(browser: Any, folder: Path) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(60_000)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("request", lambda request: problems.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None)
    show(opened, folder, "full")
    yield opened
    assert problems == []
    opened.close()


def show(page: Any, folder: Path, name: str, place: str = "") -> None:
    page.goto("about:blank")  # a change of the hash alone would not load the page anew
    page.goto(f"{(folder / f'{name}.html').as_uri()}{place}")
    page.wait_for_selector("[data-drawn]", state="attached")


def on_tab(page: Any, name: str) -> None:
    """Wait for a tab to be the chosen one: the page hears of a new address a moment after the click."""
    page.locator('[role="tab"][aria-selected="true"]', has_text=re.compile(f"^{name}$")).wait_for()


def column(page: Any, table: str, label: str) -> list[float]:
    """The figures of a column that are seen, from top to bottom."""
    return page.evaluate(
        """([id, label]) => {
          const table = document.getElementById(id), heads = [...table.tHead.rows[0].cells];
          const at = heads.findIndex((head) => head.textContent === label);
          return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => Number(row.cells[at].dataset.value));
        }""",
        [table, label],
    )


def test_tabs_by_keyboard_and_the_back_button(page: Any) -> None:
    page.locator("#tab-overview").focus()
    page.keyboard.press("ArrowRight")
    on_tab(page, "Layers")
    assert page.evaluate("document.activeElement.id") == "tab-layers"
    page.keyboard.press("End")
    on_tab(page, "Graph")
    page.keyboard.press("ArrowRight")
    on_tab(page, "Overview")
    page.locator("#tab-memory").click()
    assert page.evaluate("scrollY") == 0, "the heading stays in sight"
    page.locator("#tab-roofline").click()
    page.go_back()
    on_tab(page, "At the peak")
    assert page.locator("#roofline").is_hidden()


def test_a_layer_leads_to_its_row_its_tensors_and_its_box(page: Any) -> None:
    page.locator(f'#overview a[href="{HREF}"]').first.click()
    on_tab(page, "Layers")
    detail = page.locator("#layer-detail")
    assert detail.locator("h3").inner_text() == LAYER
    assert f"{LAYER}/Conv2D:0" in detail.inner_text()
    row = page.locator("#table-layers tr[aria-current]")
    assert row.get_attribute("data-key") == LAYER
    page.get_by_text("What it holds at the peak").click()
    on_tab(page, "At the peak")
    layers = page.locator("#table-live tbody tr:not([hidden])").evaluate_all("rows => rows.map((row) => row.dataset.key)")
    assert layers
    assert set(layers) == {LAYER}
    page.locator("#memory .table-tools button").last.click()
    assert len(page.locator("#table-live tbody tr:not([hidden])").all()) > len(layers)
    page.go_back()
    detail.wait_for(state="visible")
    page.get_by_text("Show it in the graph").click()
    on_tab(page, "Graph")
    assert LAYER in page.locator("#details").inner_text()
    page.locator("#details a").first.click()
    assert page.evaluate("location.hash") == HREF
    page.get_by_text("Close", exact=True).click()
    detail.wait_for(state="hidden")


def test_a_layer_of_a_comparison_shows_what_it_holds_in_both_steps(page: Any, folder: Path) -> None:
    show(page, folder, "compare")
    assert page.locator('[role="tab"]').all_inner_texts() == ["Overview", "At the peak", "Layers"]
    parts = page.locator("#overview .stacked span").evaluate_all("parts => parts.map((part) => part.title)")
    assert sum(title.startswith("residuals ") for title in parts) == 2
    page.locator("#tab-layers").click()
    page.locator(f'#table-layers a[href="{HREF}"]').first.click()
    page.wait_for_selector("#layer-detail:not([hidden])")
    lists = page.locator("#layer-detail .lists > div")
    assert lists.locator("h4").all_inner_texts() == ["Its largest tensors: A: one", "Its largest tensors: B: two"]
    assert all("conv1/Conv2D:0" in text for text in lists.all_inner_texts()), "A calls the layer otherwise"
    page.get_by_text("What it holds at the peak").click()
    on_tab(page, "At the peak")
    rows = page.locator("#table-live-groups tbody tr:not([hidden])")
    assert set(rows.evaluate_all("rows => rows.map((row) => row.dataset.key)")) == {LAYER}


def test_an_address_with_a_layer_opens_it(page: Any, folder: Path) -> None:
    show(page, folder, "full", HREF)
    assert page.locator("#layer-detail h3").inner_text() == LAYER
    show(page, folder, "full", "#layers/%E0%A4%A")
    on_tab(page, "Layers")
    show(page, folder, "full", "#nowhere")
    on_tab(page, "Overview")


def test_sorting_says_its_direction(page: Any) -> None:
    page.locator("#tab-layers").click()
    head = page.locator("#table-layers th", has_text="forward")
    head.locator("button").click()
    falling = column(page, "table-layers", "forward")
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) > 5
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert column(page, "table-layers", "forward") == falling[::-1] or column(page, "table-layers", "forward") == sorted(falling)
    assert head.get_attribute("aria-sort") == "ascending"


def test_a_filter_takes_words_and_regular_expressions(page: Any) -> None:
    page.locator("#tab-layers").click()
    field, count = page.get_by_label("Filter Per layer"), page.locator("#layers .table-tools .count")
    total = len(column(page, "table-layers", "forward"))
    field.fill("encoder CONV1")
    assert len(column(page, "table-layers", "forward")) == 5
    assert count.inner_text() == f"5 of {total} rows"
    field.fill("/^encoder[12]/conv/")
    assert len(column(page, "table-layers", "forward")) == 4
    field.fill("/(/")
    assert field.get_attribute("aria-invalid") == "true"
    assert count.inner_text() == "not a regular expression"
    field.fill("")
    assert field.get_attribute("aria-invalid") is None
    assert count.inner_text() == f"{total} rows"


def test_columns_are_chosen(page: Any) -> None:
    page.locator("#tab-layers").click()
    ops = page.locator("#table-layers th", has_text=re.compile("^ops"))
    assert ops.is_hidden()
    page.locator("#layers .table-tools summary").click()
    page.get_by_label("ops (operations)").check()
    assert ops.is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#layers .table-tools fieldset").is_hidden()


def test_arrow_keys_go_along_the_rows(page: Any) -> None:
    page.locator("#tab-layers").click()
    stops = page.locator("#table-layers tbody [tabindex='0']")
    assert stops.count() == 1, "one stop for the tab key, whatever the number of rows"
    stops.first.focus()
    key = "document.activeElement.closest('tr').dataset.key"
    first = page.evaluate(key)
    page.keyboard.press("ArrowDown")
    second = page.evaluate(key)
    assert first != second
    page.keyboard.press("Enter")
    assert page.locator("#layer-detail h3").inner_text() == second
    page.locator("#table-layers tr[aria-current] a").focus()
    page.keyboard.press("Home")
    assert page.evaluate(key) == first


def test_focus_is_seen(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the figures"
    for _ in range(8):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "(() => { const s = getComputedStyle(document.activeElement); return [s.outlineStyle, parseFloat(s.outlineWidth)]; })()"
        )
        assert style[0] != "none"
        assert style[1] >= 1


def test_the_roofline_shows_layers_and_leads_to_them(page: Any) -> None:
    page.locator("#tab-roofline").click()
    marks = page.locator("#roofline-chart .mark")
    assert marks.count() > 20
    mark = page.locator("#roofline-chart .mark[data-layer]").first
    layer = mark.get_attribute("data-layer")
    mark.dispatch_event("pointermove", {"clientX": 600})
    assert page.locator("#roofline-chart .said").inner_text().startswith(f"{layer}: ")
    assert "assumed" in page.locator("#roofline-chart-caption").inner_text()
    before = marks.count()
    page.get_by_label("op types", exact=True).uncheck()
    assert 0 < marks.count() < before
    mark.dispatch_event("click", {"clientX": 600})
    page.wait_for_selector("#layer-detail:not([hidden])")
    assert page.locator("#layer-detail h3").inner_text() == layer


def test_the_memory_chart_comes_first_and_follows_pointer_and_slider(page: Any) -> None:
    assert page.locator("#overview h2").first.inner_text() == "Memory over the step"
    panel = page.locator("#timeline .at-step")
    at_peak = panel.inner_text()
    assert "(the peak)" in at_peak
    area = page.locator("#timeline .chart").bounding_box()
    page.mouse.move(area["x"] + area["width"] * 0.2, area["y"] + area["height"] / 2)
    _until(page, "before => document.querySelector('#timeline .at-step').innerText !== before", at_peak)
    slider = page.get_by_label("Operation", exact=True)
    slider.focus()
    page.keyboard.press("Home")
    assert "operation 1 of" in panel.inner_text()
    assert "operation 1 of" in (slider.get_attribute("aria-valuetext") or "")


def test_a_band_says_what_it_is_and_what_keeps_it_alive(page: Any) -> None:
    bands = page.locator("#timeline .area")
    assert bands.count() > 50, "one band per tensor"
    name = page.evaluate(
        """() => {
          const areas = [...document.querySelectorAll("#timeline .area.edged")];
          const area = areas.find((area) => area.querySelector("title").textContent.includes("/Relu:0"));
          const box = area.getBoundingClientRect();
          area.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: box.left + box.width / 2, clientY: box.top }));
          return area.querySelector("title").textContent.split(":0: ")[0] + ":0";
        }"""
    )
    band = page.locator("#timeline .band")
    assert band.locator("h4").inner_text() == name
    said = dict(zip(band.locator("dt").all_inner_texts(), band.locator("dd").all_inner_texts(), strict=True))
    assert said["made by"].startswith("Relu")
    assert "forward" in said["made at"]
    assert re.search(r"backward\s+by .*, which reads it last", said["kept alive until"])
    assert said["source line"] == "net.py:7 call"
    assert page.locator("#timeline .area.chosen").count() == 1
    band.get_by_role("button").click()
    band.wait_for(state="hidden")
    page.locator("#timeline .at-step button").first.click()
    assert band.locator("h4").inner_text() == page.locator("#timeline .at-step button").first.inner_text(), "by keyboard too"


def test_bands_are_layers_or_roles_along_steps_or_measured_time(page: Any) -> None:
    bands = page.locator("#timeline .area")
    page.select_option("#bands", "roles")
    assert bands.count() == 6
    page.select_option("#bands", "layers")
    assert bands.count() == 13, "twelve layers and the others"
    groups = page.locator("#legend li").all_inner_texts()
    assert groups.index("strip below:") == 15, "a word for the group, what bands there are, and a break"
    assert "in the order of execution" in page.locator("#timeline .grid").text_content()
    page.select_option("#axis", "time")
    assert "measured time" in page.locator("#timeline .grid").text_content()
    area = page.locator("#timeline .chart").bounding_box()
    ticks = page.locator("#timeline .grid").text_content()
    page.mouse.move(area["x"] + 0.3 * area["width"], area["y"] + 50)
    page.mouse.down()
    page.mouse.move(area["x"] + 0.5 * area["width"], area["y"] + 50, steps=3)
    page.mouse.up()
    assert page.locator("#timeline .grid").text_content() != ticks, "a drag looks closer"
    page.locator("#timeline .chart").dblclick(position={"x": 300, "y": 100})
    assert page.locator("#timeline .grid").text_content() == ticks


def test_the_measured_step_is_gone_through_by_keyboard(page: Any) -> None:
    page.locator("#tab-step").click()
    canvas, panel = page.locator("#profile canvas"), page.locator("#profile .at-step")
    painted = """canvas => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return new Set(data.filter((_, k) => k % 4 === 0)).size;
    }"""
    assert canvas.evaluate(painted) > 3
    canvas.focus()
    seen = {panel.inner_text()}
    for key in ("Home", "ArrowRight", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
        seen.add(panel.inner_text())
    assert len(seen) == 5
    page.keyboard.press("+")
    assert panel.locator("a").get_attribute("href").startswith("#layers/")
    page.locator("#table-runs a").first.click()
    on_tab(page, "Layers")


def test_the_graph_opens_scopes_and_shows_costs(page: Any) -> None:
    page.locator("#tab-graph").click()
    boxes = page.locator("#picture .box")
    before = boxes.count()
    page.get_by_label("Boxes show").select_option("flops")
    assert "TFLOP · " in page.locator("#picture").text_content()
    scope = page.locator("#picture .box.scope").first
    scope.focus()
    page.keyboard.press("Enter")
    assert boxes.count() > before
    assert page.locator("#picture .box[aria-expanded='true']").count() == 1
    page.locator("#query").fill("unet/decoder1/conv2/Relu")
    page.keyboard.press("Enter")
    assert page.locator("#details h2").inner_text() == "unet/decoder1/conv2/Relu"
    assert "reads" in page.locator("#details").inner_text()


def test_colors_follow_the_system_and_the_reader(browser: Any, folder: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    show(page, folder, "full")
    page.select_option("#bands", "roles")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    text = "getComputedStyle(document.querySelectorAll('#timeline .area')[3]).fill"
    in_dark = page.evaluate(text)
    page.locator("#theme").select_option("light")
    assert page.evaluate(ground) == "rgb(255, 255, 255)" != dark
    assert page.evaluate(text) != in_dark, "charts are drawn anew"
    page.close()


def test_paper_shows_all_tabs_in_light(browser: Any, folder: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    show(page, folder, "full")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(panel.is_visible() for panel in page.locator('[role="tabpanel"]').all())
    assert page.locator("#theme").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert sum(panel.is_visible() for panel in page.locator('[role="tabpanel"]').all()) >= 1
    page.close()


def test_nothing_scrolls_sideways_on_a_narrow_screen(page: Any, folder: Path) -> None:
    for name in ("full", "compare", "plan"):
        show(page, folder, name)
        for tab in page.locator('[role="tab"]').all():
            tab.click()
            for width in (800, 400):
                page.set_viewport_size({"width": width, "height": 900})
                beyond = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                for _ in range(100):  # charts are drawn anew a moment after the width has changed
                    if page.evaluate(beyond) <= 0:
                        break
                    page.wait_for_timeout(100)
                assert page.evaluate(beyond) <= 0, f"pixels beyond the screen: {name}, {tab.inner_text()}, {width}"


def test_a_sweep_shows_both_lines_and_the_budget(page: Any, folder: Path) -> None:
    show(page, folder, "sweep")
    assert page.locator("#sweep .curve").count() == 4
    assert "budget 350 MiB" in page.locator("#sweep .plot").text_content()
    assert page.locator("h1").inner_text() == "<b>step</b>"
    assert "planned: 50.0 MiB at 1" in page.locator("#sweep-caption").inner_text().replace("\xa0", " ")


@pytest.mark.slow
def test_without_scripts_everything_is_there(browser: Any, folder: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto((folder / "full.html").as_uri())
    assert page.locator("#table-layers").is_visible()
    assert page.locator("#table-runs").is_visible()
    page.close()


def test_measured_memory_is_drawn_over_time(page: Any, folder: Path) -> None:
    show(page, folder, "profile")
    assert page.locator('[role="tab"]').all_inner_texts() == ["Overview", "Timeline", "Layers", "Op types"]
    chart = page.locator("#measured-0 .chart")
    assert chart.locator("text.note").text_content() == "peak 3.00 MiB"
    assert chart.locator("text.phase").all_text_contents() == ["forward", "backward"]
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    said = page.locator("#measured-0 .said").inner_text()
    assert said.startswith("3.00 MiB after ")
    assert "net/dense/MatMul" in said
    page.locator("#overview .tops a").first.click()
    on_tab(page, "Layers")
    assert "MatMul" in page.locator("#layer-detail").inner_text()


def test_advice_is_the_first_tab_and_its_bars_end_where_the_figures_say(page: Any, folder: Path) -> None:
    show(page, folder, "advice")
    assert page.locator('[role="tab"]').first.inner_text() == "What to do"
    shares = page.locator("#advice .bar").evaluate_all("bars => bars.map((bar) => bar.clientWidth / bar.parentElement.clientWidth)")
    assert shares == pytest.approx([1.0, 0.4, 0.6, 0.8], abs=0.01)
    page.locator("#tab-overview").click()
    assert page.locator("#measured .chart text.note").count() == 2, "the peak and the memory there is"


@pytest.mark.parametrize("case", PAGES)
def test_every_kind_of_page_opens_without_errors(page: Any, tmp_path: Path, case: str) -> None:
    (tmp_path / "page.html").write_text(PAGES[case](), encoding="utf-8")
    show(page, tmp_path, "page")
    assert page.evaluate("window.pwned === undefined")


def test_a_picture_opens_scopes_and_breaks_wide_layers(page: Any, tmp_path: Path) -> None:
    graph = Graph("wide")
    float32 = [(DTYPES["float32"], (None, 3))]
    for k in range(140):  # a scope of one node would be drawn as that node
        weight = graph.add_node("Const", f"layer_{k}/weight", output_types=float32).outputs[0]
        graph.add_node("Relu", f"layer_{k}/relu", inputs=[weight], output_types=float32)
    graph.add_node("AddN", "sum", inputs=[node.outputs[0] for node in graph.nodes if node.op_type == "Relu"], output_types=float32)
    page.goto(draw(graph, tmp_path / "graph.html").as_uri())
    boxes = page.locator(".box")
    assert boxes.count() == 141
    size = "(id) => document.getElementById(id).getBoundingClientRect().width"
    assert page.evaluate(size, "world") <= page.evaluate(size, "picture")
    page.locator(".box.scope").first.dispatch_event("dblclick")
    assert boxes.count() == 143
    page.locator("#query").fill("layer_7/weight")
    page.keyboard.press("Enter")
    assert page.locator("#details h2").inner_text() == "layer_7/weight"


def _until(page: Any, condition: str, argument: Any = None) -> None:
    """Asks again and again from here: Playwright's own `wait_for_function` evaluates text in the page, which the page's policy forbids."""
    end = time.monotonic() + 30
    while not page.evaluate(condition, argument):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)
