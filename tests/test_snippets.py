"""Every Python block of README.md and docs/ runs: as a doctest where it has prompts, here where it has none.

The blocks of a page run one after another in one namespace. A comment `<!-- given NAME -->` runs `docs/given/NAME.txt`, which defines the
reader's own model or data. A block of plain text directly after a block of code is its output: words must be equal and numbers close (the
executor's order is partly random), and `[...]` stands for anything.
"""

from __future__ import annotations

import ast
import doctest
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
BLOCK = re.compile(r"(?ms)^<!-- given (?P<given>\w+) -->$|^```python[^\n]*\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```$)?")
GIVEN = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "given").glob("*.txt")}
NOT_RUN = {
    "docs/devices.md": {
        "fast = gw.optimize_memory(step, 0.5": "needs the extra gpu-target; tests/memory/xla/test_targets.py runs the like",
    },
    "docs/distribution.md": {
        'os.environ["TF_CONFIG"]': "a process of several; tests/workers runs two",
    },
}
"""By page, how a block begins that does not run, and why."""


def blocks(name: str, text: str) -> list[tuple[str, int, str, str | None]]:
    """Return file, line, code and output of each block without prompts of a page; AutoGraph reads the source by file and line."""
    found: list[tuple[str, int, str, str | None]] = []
    for match in BLOCK.finditer(text):
        if match["given"]:
            found.append((f"docs/given/{match['given']}.txt", 1, GIVEN[match["given"]], None))
        elif ">>>" not in match["code"]:
            found.append((name, text.count("\n", 0, match.start()) + 2, match["code"], match["printed"]))
    return found


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
NEAR = 0.25


def agrees(want: str, got: str) -> bool:
    """Whether a text is the one that a page shows."""
    pattern = re.compile(rf"(?P<gap>\[\.\.\.\]\s*)|(?P<space>\s+)|(?P<number>{NUMBER.pattern})|(?P<other>.)")
    parts = {"gap": ".*?", "space": r"\s+", "number": f"({NUMBER.pattern})"}
    expected = "".join(parts.get(m.lastgroup or "") or re.escape(m[0]) for m in pattern.finditer(want.strip()))
    match = re.fullmatch(expected, got.strip(), re.DOTALL)
    if match is None:
        return False
    shown = [m["number"] for m in pattern.finditer(want) if m.lastgroup == "number"]
    pairs = [(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in zip(shown, match.groups(), strict=True)]
    return all(abs(a - b) <= NEAR * max(abs(a), abs(b)) for a, b in pairs)


BLOCKS = {name: blocks(name, path.read_text(encoding="utf-8")) for name, path in PAGES.items()}


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore:The structure of `inputs`", "ignore:`shuffle=True` was passed")
@pytest.mark.parametrize("name", [name for name, in_page in BLOCKS.items() if in_page])
def test_the_blocks_of_a_page_run_and_print_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("keras").utils.clear_session()  # names of layers begin anew, as in a fresh process
    namespace = {"__name__": "__main__"}
    for file, line, code, printed in BLOCKS[name]:
        if any(code.startswith(start) for start in NOT_RUN.get(name, ())):
            continue
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile("\n" * (line - 1) + code, file, "exec"), namespace)
        if printed is not None:
            assert agrees(printed, out.getvalue()), f"{name}:{line} printed\n{out.getvalue()}"


def test_every_block_is_python_that_some_test_runs():
    """A block is a doctest, or one without any prompt; pytest collects docs/ for the former, the test above runs the latter."""
    for name, path in PAGES.items():
        for code in re.findall(r"(?ms)^ *```(?:python|pycon|py)[^\n]*\n(.*?)^ *```$", path.read_text(encoding="utf-8")):
            if ">>>" in code:
                assert doctest.DocTestParser().get_examples(code), f"{name}: {code[:60]}"
                assert name != "README.md", "pytest does not collect README.md"
            else:
                ast.parse(code)
                assert any(code == run for _, _, run, _ in BLOCKS[name]), f"{name}: {code[:60]}"


def test_what_is_left_out_is_there():
    for name, starts in NOT_RUN.items():
        codes = [code for _, _, code, _ in BLOCKS[name]]
        assert all(any(code.startswith(start) for code in codes) for start in starts)


@pytest.mark.parametrize(
    ("got", "same"),
    [
        ("Fits: 43.1 MiB of\n50 MiB, sure\nmore", True),
        ("Fits: 33.1 MiB of 50 MiB, sure", False),
        ("Fits: 43.1 MiB of 50 MiB, unsure", False),
        ("Fits: 43.1 GiB of 50 MiB, sure", False),
    ],
)
def test_words_are_the_same_and_numbers_near(got, same):
    assert agrees("Fits: 43 MiB of 50 MiB, sure\n[...]\n", got) is same


def test_a_block_that_prints_something_else_is_found():
    (block,) = blocks("page", "text\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n")
    assert block == ("page", 4, "print(1)\n", "2\n")
