"""The first call of a plan is as small as every other, and what the proof needs comes on top of nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphwright.run.meter import MALLOC_ENVIRONMENT

pytestmark = pytest.mark.slow


def _run(mode: str) -> subprocess.CompletedProcess[str]:
    # One arena: glibc reserves 64 MiB of address space for each further one, whether or not anything is in it. And each tensor is given
    # back at once, as where peaks are measured: what malloc keeps of it, and how it fits the next one, is chance.
    environment = {**os.environ, **MALLOC_ENVIRONMENT, "MALLOC_ARENA_MAX": "1"}
    program = Path(__file__).with_name("limited.py")
    return subprocess.run([sys.executable, program, mode], capture_output=True, text=True, env=environment, timeout=600, check=False)


@pytest.mark.parametrize(("mode", "calls"), [("call", 3), ("iterator", 3), ("threads", 24)])
def test_a_process_with_the_plan_and_a_tenth_trains_from_the_first_call_on(mode: str, calls: int) -> None:
    done = _run(mode)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["peak"] <= 0.4 * answer["original"]
    assert answer["verification"].startswith("equal by structure")
    assert answer["count"] == calls
    if mode == "iterator":  # x[0, 0] is a part of the loss: no batch was skipped
        assert [int(loss) for loss in answer["losses"]] == [1, 2, 3]


def test_the_step_without_a_plan_does_not_fit_there() -> None:
    done = _run("original")
    assert done.returncode != 0
    assert "OOM when allocating" in done.stderr
