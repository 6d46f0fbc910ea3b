"""Programs that tests start: skipped where one is missing; not in CI, where a run that skipped them would say nothing of what they show."""

from __future__ import annotations

import os
import shutil

import pytest


def _first(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


def _needs(path: str | None, program: str) -> pytest.MarkDecorator:
    if path is None and os.environ.get("GRAPHWRIGHT_TEST_PROGRAMS") == "required":
        raise FileNotFoundError(f"{program} is missing, and GRAPHWRIGHT_TEST_PROGRAMS=required wants the tests that start it to run")
    return pytest.mark.skipif(path is None, reason=f"{program} is not installed")


CHROMIUM = _first("chromium", "chromium-browser", "google-chrome")
needs_chromium = _needs(CHROMIUM, "Chromium")
