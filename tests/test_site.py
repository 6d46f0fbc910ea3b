"""The documentation site: what `make site` cannot tell by itself. It builds with warnings as errors in continuous integration."""

from __future__ import annotations

import importlib.util
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

DOCS = Path(__file__).parents[1] / "docs"
SPEC = importlib.util.spec_from_file_location("site_pages", DOCS / "site_pages.py")
SITE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SITE)
WRITTEN = [path.read_text(encoding="utf-8") for path in sorted((DOCS / "api").glob("*.md"))]
REFERENCE = "\n".join([*WRITTEN, SITE._editor_reference()])


@pytest.mark.tensorflow
@pytest.mark.parametrize("package", ["graphwright", "graphwright.train", "graphwright.editor"])
def test_every_public_name_is_in_the_reference_once(package):
    module = import_module(package)
    if package == "graphwright.editor":
        aliases = {"matcher", "ph", "sgv", "sgv_scope"}  # the text names them
        names = {n for n in dir(module) if n[0] != "_" and getattr(getattr(module, n), "__module__", "").startswith(package)} - aliases
        names -= {"open_doors"}
    else:
        names = set(dir(module)) - {"__version__", "train"}
    again = set(dir(import_module("graphwright"))) if package == "graphwright.train" else set()
    listed = re.findall(rf"(?m)^::: {re.escape(package)}\.(\w+)$", REFERENCE)
    assert len(listed) == len(set(listed))
    assert set(listed) == names - again


def test_every_page_is_in_the_navigation():
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    pages += [page for page in SITE.pages() if "/" not in page]  # pages in folders are listed by the page of their folder
    assert not [page for page in pages if f" {page}\n" not in navigation]


def test_links_out_of_the_docs_lead_to_pages_that_are_made_of_the_files():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="concepts/page.md"))
    text = "[a](../../SECURITY.md) [b](../../examples/fit_my_model.py#top) [c](../../examples) [d](../limits.md)"
    assert SITE.on_page_markdown(text, page) == (
        "[a](../security.md) [b](../examples/fit_my_model.md#top) [c](../examples/index.md) [d](../limits.md)"
    )


def test_examples_in_prose_become_blocks_and_a_list_may_follow_its_sentence():
    text = "Ask:\n- so\n\n>>> 1 + 1\n2\n\nThe end.\n\n```python\n>>> 3\n3\n```\n"
    blocks = "Ask:\n\n- so\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThe end.\n\n```python\n>>> 3\n3\n```\n"
    assert SITE.fenced(text) == blocks


def test_every_command_and_example_has_its_place():
    pages = SITE.pages()
    assert {f"examples/{path.stem}.md" for path in (DOCS.parent / "examples").glob("*.py")} <= set(pages)
    for line in ("## `graphwright inspect`", "## `graphwright edit fold-batch-norms`", "`--budget`"):
        assert line in pages["commands.md"]
    assert "](docs/" not in pages["contributing.md"]


def test_a_notebook_becomes_text_code_and_what_it_printed():
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": "print(1)", "outputs": [{"output_type": "stream", "text": ["1\n"]}]},
        {"cell_type": "code", "source": "card", "outputs": [{"data": {"text/html": ["<b>card</b>"], "text/plain": "card"}}]},
    ]
    text = "\n".join(SITE._notebook({"cells": cells}))
    assert text.split() == (
        '# Title text ```python print(1) ``` ```text 1 ``` ```python card ``` <div class="notebook-output"> <b>card</b> </div>'.split()
    )
