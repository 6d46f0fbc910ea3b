"""Values and what draws them."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

import graphwright
from graphwright.plain import Result
from graphwright.report import draw
from graphwright.report.shape_report import ShapeReport
from graphwright.report.sweep import SweepResult
from tests.report.samples import full_inspection, sample_inspection, sample_plan


class _Named(ShapeReport):
    """As a user may extend a result."""


@pytest.mark.parametrize(("form", "drawers"), draw.DRAWERS.items())
def test_every_drawer_is_there(form: str, drawers: dict[str, str]) -> None:
    for path in drawers.values():
        module, _, function = path.partition(".")
        assert callable(getattr(import_module(f"graphwright.report.{module}"), function)), form


def test_what_extends_a_value_is_drawn_as_that_value() -> None:
    fields: dict[str, Any] = {"inputs": {}, "free": {}, "outputs": (), "values": (), "causes": (), "how": {"shapes": "given"}}
    plain, extended = ShapeReport("step", **fields), _Named("step", **fields)
    assert str(extended) == str(plain)


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
    drawn = {name for drawers in draw.DRAWERS.values() for name in drawers}
    results = [getattr(graphwright, name) for name in sorted(drawn & set(dir(graphwright)))]
    assert len(results) >= 11
    for result in results:
        assert result.__repr__ is Result.__repr__, result
        assert hasattr(result, "to_json"), result
        assert hasattr(result, "_repr_html_"), result


@pytest.mark.parametrize(
    "make",
    [
        lambda: ShapeReport("<b>", {}, {}, (), (), (), {"shapes": "given"}),
        sample_plan,
        lambda: replace(sample_inspection(), name="<script>run()</script>"),
        lambda: SweepResult((), 0, None, ""),
    ],
)
def test_a_notebook_shows_the_text_of_a_result(make: Callable[[], Any]) -> None:
    result = make()
    shown = result._repr_html_()
    assert shown == f"<pre>{html.escape(str(result))}</pre>"
    assert "<script" not in shown


def test_in_a_notebook_the_text_is_text_and_not_shown_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "Memory over the step" in sample_plan().text("all")
