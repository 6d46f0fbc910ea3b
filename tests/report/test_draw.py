"""Values and what draws them."""

from __future__ import annotations

import html
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

import graphwright
from graphwright.plain import Result
from graphwright.report import draw
from graphwright.report.shape_report import ShapeReport
from tests.report.samples import full_inspection, sample_plan


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


def test_a_result_without_a_card_is_shown_as_its_text_in_notebooks() -> None:
    report = ShapeReport("<b>", {}, {}, (), (), (), {"shapes": "given"})
    assert report._repr_html_() == f"<pre>{html.escape(str(report))}</pre>"
