"""How the API reference reads docstrings: examples, which stand in them as `>>>`, become blocks of code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from griffe import Extension, Object

_SPEC = importlib.util.spec_from_file_location("site_pages", Path(__file__).with_name("site_pages.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
_PAGES = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_PAGES)


class FencedExamples(Extension):
    """Fences the examples of every docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each object once it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = _PAGES.fenced(obj.docstring.value)
