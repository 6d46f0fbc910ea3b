"""Cards for notebooks: well formed, small, without scripts, and with names as text."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from graphwright.analyze.parameters import KINDS, Parameter
from graphwright.analyze.step_profile import OpRun, StepProfile
from graphwright.analyze.update_checks import Finding
from graphwright.report.flop_count import FlopCount, FlopRow, UnknownOps
from graphwright.report.notebook import flop_count_html, profile_html
from graphwright.report.parameter_table import ParameterTable
from graphwright.report.sweep import SweepPoint, SweepResult
from tests.report.samples import full_inspection, sample_inspection, sample_plan
from tests.report.test_inspection_page import EVIL, Page


def _flops(name: str = "step") -> FlopCount:
    row = FlopRow(name, 3, 100.0, 200.0, 10.0, 50.0)
    return FlopCount(
        name, {"x": (1, 2)}, 3, 100.0, 200.0, 10.0, 50.0, {name: UnknownOps(1, "no rule", 0.1, math.nan)}, {name: row}, {name: row}, {}
    )


def _parameters(name: str = "step") -> ParameterTable:
    rows = tuple(Parameter(f"{name}/{k}", kind, "float32", (3, 4), 12, 48, name) for k, kind in enumerate(KINDS))
    return ParameterTable(name, rows, 2, {}, warnings=(Finding("updates left out", name, "run them", (name,)),))


def _profile(name: str = "step") -> StepProfile:
    return StepProfile(name, (OpRun(name, name, "CPU:0", "thread 1", 0, 1000),), (), 1e-6)


def _sweep(name: str = "step", budget_bytes: int = 0) -> SweepResult:
    points = tuple(SweepPoint(b, 1000 * b, 500, 600, fits=True) for b in (1, 2, 4))
    return SweepResult(points, budget_bytes, 4 if budget_bytes else None, name, name)


CARDS = {
    "inspection": lambda: sample_inspection()._repr_html_(),
    "inspection, all": lambda: full_inspection(profiled=True)._repr_html_(),
    "inspection, evil": lambda: replace(sample_inspection(), name=EVIL)._repr_html_(),
    "plan": lambda: sample_plan()._repr_html_(),
    "plan, unchanged": lambda: replace(sample_plan(), status="unchanged")._repr_html_(),
    "flops": lambda: flop_count_html(_flops()),
    "flops, evil": lambda: flop_count_html(_flops(EVIL)),
    "parameters": lambda: _parameters()._repr_html_(),
    "parameters, evil": lambda: _parameters(EVIL)._repr_html_(),
    "profile": lambda: profile_html(_profile()),
    "profile, evil": lambda: profile_html(_profile(EVIL)),
    "sweep": lambda: _sweep(budget_bytes=3000)._repr_html_(),
    "sweep, evil": lambda: _sweep(EVIL).beside(**{EVIL: _sweep()})._repr_html_(),
    "sweep, empty": lambda: SweepResult((), 0, None, "")._repr_html_(),
}


@pytest.mark.parametrize("case", CARDS)
def test_a_card_is_small_and_well_formed_and_runs_nothing(case: str) -> None:
    text = CARDS[case]()
    page = Page(text)
    assert len(text) < 120_000
    tags = {tag for tag, _, _ in page.attributes}
    assert not tags & {"script", "img", "iframe", "link", "object"}
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name in {"src", "href"}]
    if "evil" in case:
        assert "window.pwned" in page.visible
        assert "<script" not in text


def test_charts_have_words() -> None:
    texts = [value for tag, name, value in Page(sample_plan()._repr_html_()).attributes if tag == "svg" and name == "aria-label"]
    assert len(texts) == 2
    assert all("peaks at" in text for text in texts)


def test_a_sweep_tells_what_fits() -> None:
    sweep = _sweep(budget_bytes=2500).beside(leaner=SweepResult((SweepPoint(1, 10, 5, 5, fits=True),), 0, None, ""))
    table = sweep.table()
    assert [row[-1].text for row in table.rows] == ["both", "step", "none"]
    assert [column.label for column in table.columns][1:3] == ["peak, step", "peak, leaner"]
    assert sweep.to_json()["others"].keys() == {"leaner"}  # type: ignore[attr-defined]


def test_in_a_notebook_the_text_is_text_and_not_shown_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "Memory over the step" in str(sample_plan())
