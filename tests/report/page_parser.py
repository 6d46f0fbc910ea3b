"""Pages as the tests read them."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from graphwright.report.page import page_of
from tests.report.samples import EMPTY, named_plan, sample_inspection, sample_plan

EVIL = "</script><script>window.pwned = true</script><img src=x onerror='window.pwned = true'>\"&amp;\u2028"
_VOID = {"wbr", "meta", "input", "br", "img", "link", "hr", "col"}


def page(result: Any) -> str:
    """The page of a result."""
    return page_of(result._sheet())


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
        if tag not in _VOID:
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


def data_of(page: str) -> dict[str, Any]:
    """What the scripts of a page draw from."""
    data = re.search(r'<script type="(application/json|text/plain)" id="report-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert data
    return json.loads(data[2] if data[1] == "application/json" else gzip.decompress(base64.b64decode(data[2])))


PAGES: dict[str, Callable[[], str]] = {
    "inspection": lambda: page(sample_inspection()),
    "inspection, measured": lambda: page(sample_inspection(measured=True)),
    "inspection, empty": lambda: page(replace(sample_inspection(), timeline=EMPTY, layers=(), peak_bytes=0, how={}, feeds={})),
    "plan": lambda: page(sample_plan()),
    "plan, not measured, no curve": lambda: page(sample_plan(measured=False, curve=False)),
    "plan, infeasible": lambda: page(sample_plan(budget_share=0.3)),
    "plan, unchanged": lambda: page(replace(sample_plan(), status="unchanged", budget_bytes=2**40)),
    "plan, evil names": lambda: page(named_plan(EVIL)),
}
