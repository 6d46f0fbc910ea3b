"""The tests are the same ones, in the same order, in every process: workers that collect different lists run none of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COLLECT = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", "slow or not slow"]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_order_does_not_depend_on_how_strings_are_hashed():
    # The order of a set of strings is another one in each process, and so are parameters that are made from one.
    root = Path(__file__).parents[1]
    runs = [
        subprocess.Popen(COLLECT, cwd=root, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True)
        for seed in ("1", "3", "5")
    ]
    collected = [[line for line in run.communicate()[0].splitlines() if "::" in line] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len(collected[0]) > 1_000
    assert collected[0] == collected[1] == collected[2]
