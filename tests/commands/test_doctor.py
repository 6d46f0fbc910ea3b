"""`graphwright doctor`: what it finds, what it makes of it, and what it says where TensorFlow is not as it should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from graphwright.commands import doctor
from graphwright.commands.cli import app
from tests.report.test_json_form import json_schema

TOLD = {
    "tensorflow": "2.21.0",
    "keras": "3.15.1",
    "backend": "tensorflow",
    "keras_error": "",
    "legacy": False,
    "devices": ["CPU:0"],
    "built": "built without CUDA; oneDNN on",
    "threads": "2 inter-op and 2 intra-op threads",
    "counting": "",
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What TensorFlow says of itself, to be changed."""
    answers: dict[str, Any] = {"ask_tensorflow": TOLD.copy(), "ask_meter": {"error": ""}}
    monkeypatch.setattr(doctor, "_asked", lambda function, environment: (answers[function], "it died"))
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    return answers


def finding(name: str) -> doctor.Finding:
    return next(f for f in doctor.diagnose().findings if f.name == name)


def test_an_installation_that_is_well(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in doctor.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    found = doctor.diagnose()
    assert (found.is_healthy, found.verdict, found.environment) == (True, "All is well.", {})
    assert [f.found for f in found.findings if f.name in ("TensorFlow", "devices")] == ["2.21.0", "CPU:0"]
    assert "What to do" not in str(found)


@pytest.mark.parametrize(
    ("changed", "name", "said"),
    [
        ({"tensorflow": "2.20.1"}, "TensorFlow", "older than 2.21"),
        ({"keras": "2.15.0"}, "Keras", "Keras 2 models are not read"),
        ({"legacy": True}, "Keras", "Keras 2 models are not read"),
        ({"backend": "jax"}, "Keras", "computes with jax"),
        ({"backend": None, "keras": None, "keras_error": "No module named 'jax'"}, "Keras", "No module named 'jax'"),
    ],
)
def test_what_is_needed_and_broken(told: dict[str, Any], changed: dict[str, Any], name: str, said: str) -> None:
    told["ask_tensorflow"] |= changed
    found = doctor.diagnose()
    assert not found.is_healthy
    assert f"not complete: {name}." in found.verdict
    assert said in finding(name).note
    assert finding(name).remedy in " ".join(str(found).split())


def test_peaks_that_cannot_be_measured_are_a_limit_and_no_fault(told: dict[str, Any]) -> None:
    told["ask_meter"] = {"error": "the high-water mark cannot be set back: Permission denied"}
    found = doctor.diagnose()
    assert found.is_healthy
    assert found.verdict == "All is well; optional and not there: measuring peaks."
    assert "Permission denied" in finding("measuring peaks").note


def test_a_process_that_dies_is_told_of(told: dict[str, Any]) -> None:
    told["ask_tensorflow"] = None
    assert (finding("TensorFlow").status, finding("TensorFlow").note) == ("broken", "it died")


def test_plans_are_counted_and_a_folder_that_is_none_is_named(
    told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text("{}  ")
    monkeypatch.setenv("GRAPHWRIGHT_CACHE_DIR", str(tmp_path))
    found = doctor.diagnose()
    assert finding("kept plans").found == "1 plan, 4 B"
    assert found.environment["GRAPHWRIGHT_CACHE_DIR"] == str(tmp_path)
    monkeypatch.setenv("GRAPHWRIGHT_CACHE_DIR", str(tmp_path / "a.json"))
    assert "cannot be written" in finding("kept plans").note


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    command = [sys.executable, "-m", "graphwright", "doctor", *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "libcudart.so.12"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "killed by signal 4"),
    ],
    ids=["raises", "is killed"],
)
def test_a_tensorflow_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, said: str) -> None:
    (tmp_path / "tensorflow.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "_meter", lambda: doctor.Finding("measuring peaks", "ok", "yes"))
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 4, done.stderr
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, json_schema("doctor"))
    assert answer["healthy"] is False
    (broken,) = [f for f in answer["findings"] if f["status"] == "broken"]
    assert broken["name"] == "TensorFlow"
    assert said in broken["note"]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_this_installation(tmp_path: Path) -> None:
    done = run(tmp_path, "--json", TF_ENABLE_ONEDNN_OPTS="0")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, json_schema("doctor"))
    assert set(answer) == set(json_schema("doctor")["properties"])
    assert answer["environment"]["TF_ENABLE_ONEDNN_OPTS"]["value"] == "0"
    status = {f["name"]: f["status"] for f in answer["findings"]}
    assert status["TensorFlow"] == status["Keras"] == status["counting allocations"] == "ok"
    assert "oneDNN off" in next(f["note"] for f in answer["findings"] if f["name"] == "TensorFlow")
    assert "CPU:0" in next(f["found"] for f in answer["findings"] if f["name"] == "devices")
    assert "KERAS_BACKEND" in run(tmp_path, KERAS_BACKEND="jax").stdout


def test_the_least_tensorflow_is_what_the_package_requires() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    least = ".".join(map(str, doctor.LEAST_TENSORFLOW))
    assert all(f">={least}" in requirement for requirement in project["optional-dependencies"]["cpu"])
