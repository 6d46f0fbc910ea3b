"""The size of the project, held to the numbers in docs/architecture.md. The numbers may fall; they never rise."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def docstring_lines(source: str) -> set[int]:
    """Return the numbers of the lines that docstrings occupy."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node, clean=False):
            docstring = node.body[0]
            lines |= set(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return lines


@cache
def size_of_file(path: Path) -> tuple[int, int]:
    """Return the lines of code (no blank lines, comments, docstrings) and of docstrings of a file."""
    source = path.read_text(encoding="utf-8")
    in_docstrings = docstring_lines(source)
    in_tokens: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            in_tokens |= set(range(token.start[0], token.end[0] + 1))
    return len(in_tokens - in_docstrings), len(in_docstrings)


def size(folder: str) -> tuple[int, int]:
    """Return the lines of code and of docstrings below a folder."""
    sizes = [size_of_file(path) for path in (ROOT / folder).rglob("*.py")]
    return sum(code for code, _ in sizes), sum(docstrings for _, docstrings in sizes)


def limits() -> dict[str, int]:
    """Return the limits that the table of sizes states, by their first column."""
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Size\n")[1].split("\n## ")[0]
    return {name: int(number.replace(",", "")) for name, number in re.findall(r"(?m)^\| ([^|]+?) \| ([\d,]+) \|", table)}


def test_the_source_stays_within_its_limits():
    code, docstrings = size("src")
    assert code <= limits()["code lines of `src`"]
    assert docstrings <= limits()["docstring lines of `src`"]


def test_no_room_grows():
    rooms = {name.removeprefix("room ").strip("`"): limit for name, limit in limits().items() if name.startswith("room ")}
    assert {path.name for path in (ROOT / "src" / "graphwright").iterdir() if (path / "__init__.py").exists()} == set(rooms)
    sizes = {room: size(f"src/graphwright/{room}")[0] for room in rooms}
    assert {room: code for room, code in sizes.items() if code > rooms[room]} == {}


def test_tests_and_docs_stay_within_their_limits():
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    pages = sum(path.stat().st_size for path in (ROOT / "docs").rglob("*.md"))
    assert lines <= limits()["lines of `tests`"]
    assert pages <= limits()["bytes of pages in `docs`"]


def test_a_docstring_and_a_comment_are_no_code():
    assert docstring_lines('"""Module.\n\nMore."""\n\nx = """text"""\n\n\ndef f():\n    "One."\n    return 1\n') == {1, 2, 3, 9}
