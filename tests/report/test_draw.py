"""Values and what draws them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from graphwright.report import draw
from graphwright.report.shape_report import ShapeReport


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
