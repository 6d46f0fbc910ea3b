"""The documentation as a path that is walked: a page's shell blocks are run in order, what they print is compared with what is shown.

A `console` block holds commands, each behind `$ `, and their output; a `bash` or `sh` block holds commands that must succeed. Python blocks
of a walked page, and the files `docs/given/NAME.txt` of its comments `<!-- given NAME -->`, run too, in one process;
`tests/test_snippets.py` compares their output.

What varies is matched by these patterns, and no others:
- `[...]`, or a bracket that begins with three dots, stands for anything, also across lines;
- spaces and ends of lines count as one space, and lines that draw a chart are left out;
- a time (`5.2 s`, `318 ms`) matches any time;
- how many operations a plan is equal by structure in matches any count, since a search that ends by the clock may copy others;
- bytes match within 3 %, shares of a hundred (`5.9 %`) within 2 points; all other figures match exactly.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.walk.installed import ROOT, Environment

SHELL = ("console", "bash", "sh")
_BLOCK = re.compile(
    r"^(?:<!-- given (?P<given>\w+) -->|```[ ]*(?P<language>[^\s`]*)[^\n]*\n(?P<text>.*?)^```[ ]*)$", re.MULTILINE | re.DOTALL
)
_CHART = re.compile(r"[┤└▁▂▃▄▅▆▇█]|^\s*steps: ─|^\s*(▲ )?peak [0-9.]+ [KMG]iB( ▲)?$|^\s*│")
_COPIED = re.compile(r"(?<=equal by structure: )[0-9,]+(?= operations)")
_BYTES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_TIMES = ("ns", "µs", "ms", "s", "min", "h")
_FIGURE = re.compile(rf"([+-]?[0-9][0-9,]*(?:\.[0-9]+)?) ({'|'.join(map(re.escape, (*_BYTES, *_TIMES, '%')))})(?![\w/])")
_DRIVER = """
import contextlib, io, json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(json.loads(line), "page", "exec"), names)
        said = [True, printed.getvalue()]
    except BaseException:
        import traceback
        said = [False, printed.getvalue() + traceback.format_exc()]
    print("\\n" + json.dumps(said), flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first(self) -> str:
        """Its first line, by which it is listed where it is not walked."""
        return self.text.splitlines()[0].strip() if self.text.strip() else ""


@dataclass(frozen=True)
class Call:
    """A command and what is shown of its output; None where nothing is, and it must succeed."""

    command: str
    shown: str | None


class Page:
    """A page by its path from the root of the project."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def blocks(self) -> list[Block]:
        text = (ROOT / self.name).read_text(encoding="utf-8")
        return [self._block(text.count("\n", 0, match.start()) + 1, match) for match in _BLOCK.finditer(text)]

    def _block(self, line: int, match: re.Match[str]) -> Block:
        if name := match["given"]:
            return Block(self.name, line, "python", (ROOT / "docs" / "given" / f"{name}.txt").read_text(encoding="utf-8"))
        return Block(self.name, line, match["language"], match["text"])


def pages() -> list[Page]:
    """All pages that users read, in a fixed order."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [Page(path.relative_to(ROOT).as_posix()) for path in found]


def calls(block: Block) -> Iterator[Call]:
    """The commands of a shell block."""
    if block.language != "console":
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield Call(line, None)
        return
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.replace("\\\n", " ").partition("\n")
        yield Call(command, shown)


def walk(page: Page, environment: Environment, folder: Path, skipped: set[str]) -> int:
    """Run what a page shows, in a folder, and return how many blocks were run.

    Args:
        skipped: first lines of blocks that are not run.

    Raises:
        AssertionError: something is not printed as it is shown; the message names page and line.
    """
    python, walked = None, 0
    try:
        for block in page.blocks:
            if block.first in skipped:
                continue
            if block.language == "python":
                python = python or _python(environment, folder)
                assert python.stdin is not None
                assert python.stdout is not None
                python.stdin.write(json.dumps(block.text) + "\n")
                python.stdin.flush()
                said = next((line for line in python.stdout if line.startswith(("[true", "[false"))), '[false, "it ended"]')
                is_done, printed = json.loads(said)
                assert is_done, f"{block} failed:\n{printed}"
                walked += 1
            elif block.language in SHELL:
                for call in calls(block):
                    code = 0 if call.shown is None else None
                    output = environment.run(["/bin/bash", "-c", call.command], folder, code=code)
                    difference = differs(call.shown or "", output) if call.shown is not None else ""
                    assert not difference, f"{block}: $ {call.command}\nis not what is printed: {difference}\n{output}"
                walked += 1
    finally:
        if python is not None:
            python.kill()
            python.communicate()
    return walked


def _python(environment: Environment, folder: Path) -> subprocess.Popen[str]:
    command = [str(environment.bin / "python"), "-c", _DRIVER]
    return subprocess.Popen(
        command, cwd=folder, env=environment.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def differs(shown: str, printed: str) -> str:
    """How what is printed differs from what is shown; "" where it does not."""
    segments = [_tokens(part) for part in re.split(r"\[\.\.\.[^\]]*\]", shown)]
    found, place = _tokens(printed), 0
    for number, segment in enumerate(segments):
        first, last = number == 0, number == len(segments) - 1
        if not segment:
            place = len(found) if last and not first else place
            continue
        starts = [place] if first else [len(found) - len(segment)] if last else range(place, len(found) - len(segment) + 1)
        best, reached = None, 0
        for start in starts:
            alike = _alike(segment, found[max(start, 0) :]) if start >= place else 0
            if alike == len(segment):
                best = start
                break
            reached = max(reached, alike)
        if best is None:
            nearest = next((s for s in starts if s >= 0 and _alike(segment, found[s:]) == reached), 0)
            words = [" ".join(tokens[max(0, reached - 6) : reached + 1]) for tokens in (segment, found[nearest:])]
            return f"shown is ...{words[0]!r}, printed is ...{words[1]!r}"
        place = best + len(segment)
    return "" if place == len(found) else f"more is printed than shown: {' '.join(found[place : place + 12])!r}"


def _tokens(text: str) -> list[str]:
    lines = [line for line in text.replace("\u00a0", " ").splitlines() if not _CHART.search(line)]
    whole = " ".join(" ".join(lines).split())
    return _FIGURE.sub(lambda m: f"{m[1]}\u00a0{m[2]}", _COPIED.sub("N", whole)).split(" ") if whole else []


def _alike(shown: list[str], printed: list[str]) -> int:
    """How many tokens from the start are alike."""
    count = 0
    for a, b in zip(shown, printed, strict=False):
        if a != b and not _close(a, b):
            break
        count += 1
    return count


def _close(a: str, b: str) -> bool:
    first, second = (_FIGURE.match(text.replace("\u00a0", " ")) for text in (a.lstrip("("), b.lstrip("(")))
    if first is None or second is None:
        return False
    tails = [text.replace("\u00a0", " ").lstrip("(")[m.end() :] for text, m in ((a, first), (b, second))]
    if tails[0] != tails[1]:
        return False
    x, y = (float(m[1].replace(",", "")) for m in (first, second))
    if first[2] in _TIMES and second[2] in _TIMES:
        return True
    if first[2] in _BYTES and second[2] in _BYTES:
        x, y = x * _BYTES[first[2]], y * _BYTES[second[2]]
        return abs(x - y) <= 0.03 * max(abs(x), abs(y))
    return first[2] == second[2] == "%" and abs(x - y) <= 2.0
