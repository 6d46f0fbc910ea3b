"""Each benchmark can be imported, and the table that one of them writes is the documented one."""

from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from bench.flop_rules_table import BEGIN, END, rules_as_markdown

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "bench").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_is_imported(name):
    assert import_module(f"bench.{name}").__doc__


def test_the_documented_table_of_rules_is_that_of_the_registry():
    text = (ROOT / "docs" / "costs-flops.md").read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == rules_as_markdown().strip()
