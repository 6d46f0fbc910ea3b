"""Wrong usages of the command line: an error in a frame that names the option and the remedy, before TensorFlow is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

USAGES = {
    "optimize net.keras --budget 150%": ("option --budget", "give at most 100%"),
    "optimize net.keras --budget 50": ("option --budget", "write 50%"),
    "optimize net.keras --budget 1XB": ("option --budget", "unknown unit 'XB'"),
    "optimize net.keras --budget -1": ("option --budget", "not a positive amount"),
    "optimize steps:step --budget 50% --allow nothing": ("option --allow", "'nothing' is no verb", "recompute"),
    "optimize net.keras": ("neither --budget nor --plan was given",),
    "optimize net.keras --budget 50% --plan plan.json": ("give one of them",),
    "optimize missing.keras --budget 50%": ("no file or folder 'missing.keras'", "argument TARGET"),
    "max-batch net.keras --budget 50%": ("option --budget", 'text such as "2.5GiB"'),
    "max-batch net.keras --budget much": ("option --budget", "cannot be read"),
    "advise net.keras --memory nan": ("option --memory", "not a finite amount"),
    "check net.keras --max-peak 10QB": ("option --max-peak", "unknown unit"),
    "check net.keras": ("nothing to check against",),
    "sweep net.keras --batch 4..1": ("option --batch",),
    "sweep net.keras --optimized 2.0": ("option --optimized", "not below 1"),
    "inspect net.keras --feed x": ("option --feed", "NAME=8,572,572,1"),
    "inspect net.keras --feed x=8,-1": ("option --feed", "write whole numbers"),
    "inspect net.keras --columns speed": ("there is no column 'speed'",),
    "inspect net.keras --html /nowhere/report.html": ("option --html",),
    "edit freeze net.keras": ("the job 'freeze' comes before the model", "graphwright edit MODEL OUT freeze"),
    "edit net.keras out": ("no job was given", "fold-batch-norms"),
    "edit net.keras out frese": ("'frese' is no job", "freeze"),
    "edit net.keras out freeze batch-size many": ("argument SIZE", "job batch-size, 2 of 2"),
    "edit net.keras out freeze rename-inputs a": ("'a' is not a pair", "job rename-inputs, 2 of 2", "OLD=NEW"),
    "edit net.keras nowhere/out freeze": ("no folder", "make it first"),
    "edit net.keras net.keras freeze": ("something at 'net.keras'", "add --overwrite"),
    "profile net.keras --min time": ("option --min", "COLUMN=NUMBER"),
    "inspect steps.py": ("argument TARGET", "steps.py:NAME with one of step, build"),
    "inspect broken.py": ("the file is not Python", "broken.py, line 1: def f(:"),
    "inspect broken.py:f": ("the file is not Python", "broken.py, line 1: def f(:"),
    "inspect net.keras --html net.keras": ("is a model or a program, and would be overwritten", "option --html"),
    "inspect net.keras": ("it is no .keras archive",),
    "inspect empty.pb": ("the file is empty", "where: empty.pb"),
    "inspect .": ("there is no saved_model.pb in the folder",),
    "inspect gs://bucket/model": ("is not a file of this machine", "copy it first"),
    "compare steps:step missing.keras": ("no file or folder 'missing.keras'",),
    "verify steps.py:step other.pb": ("no file or folder 'other.pb'",),
    "sweep steps:step --beside missing": ("no file or folder 'missing'",),
    "peak steps:step --device tpu": ("option --device", "there are cpu, h100"),
    "check steps:step --baseline missing.json": ("missing.json", "--write-baseline"),
    "check steps:step --baseline steps.py": ("the file is not JSON", "steps.py, line 1"),
    "optimize steps:step --budget 50% --save nowhere/plan.json": ("option --save", "nowhere"),
    "flops json:nothing:x": ("json:nothing:x",),
    "optimize steps:step --plan missing.json": ("cannot be read", "missing.json"),
    "optimize steps:step --budget smallest --max-overhead -1": ("--max-overhead",),
}
RUN = """
import io, json, sys
from typer.testing import CliRunner
from graphwright.commands.cli import app
answers = {}
for usage in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, usage.split())
    answers[usage] = [done.exit_code, done.output, "tensorflow" in sys.modules, repr(done.exception)]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """By usage: exit code, output, whether TensorFlow was loaded by then, and what was raised."""
    folder = tmp_path_factory.mktemp("wrong")
    for name in ("net.keras", "empty.pb"):
        (folder / name).write_bytes(b"")
    (folder / "broken.py").write_text("def f(:\n", encoding="utf-8")
    (folder / "steps.py").write_text("step = 1\n_hidden = 2\ndef build(): pass\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps(list(USAGES))], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("usage", USAGES)
def test_a_wrong_usage_ends_in_an_error_that_says_the_remedy(answers, usage):
    code, output, loaded, raised = answers[usage]
    flat = " ".join(output.replace("│", " ").split())
    assert code == 2, raised
    assert all(words in flat for words in USAGES[usage]), output
    assert "Traceback" not in output
    assert not loaded, "TensorFlow takes seconds to load, and this error does not need it"
