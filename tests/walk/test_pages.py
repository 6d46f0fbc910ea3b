"""That the walk of the documentation tells what is the same from what is not, and that it leaves nothing out."""

from __future__ import annotations

import re

import pytest

from tests.walk.installed import ROOT
from tests.walk.not_walked import NOT_WALKED
from tests.walk.pages import SHELL, Block, Page, calls, differs, pages

PRINTED = """Fits: net needs 207 MiB of 210 MiB, for 5.1 % more time.

  peak     207 MiB  at step 5 of 62
  plan    feasible  found in 3.21 s
Memory over the step
  207 MiB ┤  ▂▃▄
      0 B ┤▅▇███
          └─────
"""


@pytest.mark.parametrize(
    "shown",
    [
        PRINTED,
        "Fits: net needs 207 MiB of 210 MiB,\n for 5.1 % more time.\n[...]\n",
        "Fits: net needs 205 MiB of 211 MiB, for 6.4 % more time. peak 0.204 GiB at step 5 of 62 plan feasible found in 41 ms\n[...]",
        "[...]\n  plan  feasible  found in 1 s\n[... and the chart]",
        "Fits: net [...]\nMemory over the step\n  190 MiB ┤▂\n",
    ],
)
def test_what_is_alike(shown: str) -> None:
    assert differs(shown, PRINTED) == ""


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("Fits: net needs 190 MiB[...]", "190"),
        ("Fits: net needs 207 MiB of 210 MiB, for 9.1 % more time.[...]", "9.1"),
        ("[...]at step 6 of 62[...]", "6"),
        ("[...]found in 3.21 B[...]", "3.21"),
        ("Fits: net needs", "more is printed"),
        ("[...]feasible", "feasible"),
        (PRINTED + "and more", "and"),
        ("", "more is printed"),
    ],
)
def test_what_is_not(shown: str, said: str) -> None:
    assert said in differs(shown, PRINTED)


def test_how_many_operations_a_plan_is_proved_in_may_differ() -> None:
    shown = "equal by structure: 3,917 operations make the same {} outputs"
    assert differs(shown.format(2), shown.format(2).replace("3,917", "3,880")) == ""
    assert differs(shown.format(2), shown.format(3)) != ""
    assert differs("3,917 operations", "3,880 operations") != ""


def test_the_commands_of_a_block() -> None:
    console = Block("page", 1, "console", "$ first \\\n  --more\none\ntwo\n$ second\n")
    assert [(" ".join(call.command.split()), call.shown) for call in calls(console)] == [("first --more", "one\ntwo\n"), ("second", "")]
    bash = Block("page", 1, "bash", "# why\nfirst   # this\n\nsecond\n")
    assert [(call.command, call.shown) for call in calls(bash)] == [("first   # this", None), ("second", None)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_block_says_what_it_is_and_is_walked_or_listed(page: Page) -> None:
    bare = [str(block) for block in page.blocks if not block.language]
    assert bare == [], "write ```console for commands behind `$ ` with their output, ```bash for commands alone, ```text for all else"
    hidden = [str(block) for block in page.blocks if block.language not in SHELL and block.text.startswith("$ ")]
    assert hidden == []
    odd = [str(block) for block in page.blocks if block.language == "console" and not block.text.startswith("$ ")]
    assert odd == []


def test_what_is_listed_is_there_and_has_a_reason() -> None:
    there = {(page.name, block.first) for page in pages() for block in page.blocks}
    for name, listed in NOT_WALKED.items():
        if isinstance(listed, str):
            assert listed, name
            continue
        assert {(name, first) for first in listed} <= there
        assert all(listed.values())


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) <= 8000
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len([link for link in links if link.endswith((".png", ".svg"))]) == 2
    for link in links:
        name, _, anchor = link.partition("#")
        assert (ROOT / name).exists(), link
        titles = re.findall(r"^#+ (.*)$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, link
    assert all(path.stat().st_size < 200_000 for path in (ROOT / "docs" / "figures").iterdir())
