"""Every example runs as its user would run it: as a script, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

LONG = {"cost_how_large_a_batch", "custom_training_step", "train_contrastive", "train_many_devices", "train_reversible_network"}
EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} > LONG


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=pytest.mark.thorough if path.stem in LONG else []) for path in EXAMPLES],
)
def test_example_runs(path, tmp_path):
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
