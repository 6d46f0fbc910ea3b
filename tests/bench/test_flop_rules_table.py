"""The documented rules are the rules."""

from __future__ import annotations

from pathlib import Path

from bench.flop_rules_table import BEGIN, END, rules_as_markdown, write_into
from graphwright.analyze.flops import built_in_rules

DOCUMENT = Path(__file__).parents[2] / "docs" / "costs-flops.md"


def test_the_documented_table_is_that_of_the_registry():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == rules_as_markdown().strip()


def test_every_op_type_is_listed_once():
    table = rules_as_markdown()
    assert all(table.count(f"`{op_type}`") == 1 for op_type in built_in_rules())


def test_the_table_is_written_between_its_marks(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{BEGIN}OLD TABLE\n{END}after\n", encoding="utf-8")
    write_into(path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "OLD TABLE" not in text
    assert "`Softmax`" in text
