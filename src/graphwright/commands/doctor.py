"""What this installation can do: `graphwright doctor`. Works without TensorFlow, and where importing it ends the process."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import graphwright
from graphwright.bound_process import bound
from graphwright.errors import GraphwrightError
from graphwright.files import cache_directory
from graphwright.plain import Result, fields_json
from graphwright.report.progress import tell
from graphwright.report.sheet import Fact, Facts, Sheet, Tab, pairs
from graphwright.report.units import counted, format_bytes
from graphwright.run.meter import COUNTING_ENVIRONMENT, MEMORY_ENVIRONMENT

Status = Literal["ok", "limited", "broken"]
LEAST_TENSORFLOW = (2, 21)
_INSTALL = 'pip install "graphwright[cpu]", or pip install "graphwright[gpu]" for an NVIDIA GPU'
_MARKS = {"ok": "", "limited": "limited: ", "broken": "broken: "}
_TIMEOUT_S = 120.0

VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "which GPUs TensorFlow sees",
    "GRAPHWRIGHT_CACHE_DIR": "where plans are kept, and what XLA laid out for GPUs",
    "GRAPHWRIGHT_TARGET_PYTHON": "whose jax compiles for GPUs that are not there",
    "KERAS_BACKEND": "what Keras computes with; graphwright needs tensorflow",
    "KERAS_HOME": "whose keras.json names the backend and the default dtype",
    "LD_PRELOAD": "may replace malloc, and with it what a measured peak is",
    "MALLOC_ARENA_MAX": "how fragmented the heap is, and so measured peaks",
    "OMP_NUM_THREADS": "threads of some kernels, and so times",
    "NVIDIA_TF32_OVERRIDE": "the rounding of matrix products on a GPU",
    "TF_CPU_ALLOCATOR_USE_BFC": "how the CPU's memory is given out, and so measured peaks",
    "TF_DETERMINISTIC_OPS": "which kernels run, and so time and memory",
    "TF_ENABLE_ONEDNN_OPTS": "which CPU kernels run: their scratch memory, time and rounding",
    "TF_FORCE_GPU_ALLOW_GROWTH": "how much of a GPU's memory TensorFlow takes at its start",
    "TF_GPU_ALLOCATOR": "how a GPU's memory is given out, and so measured peaks",
    "TF_NUM_INTEROP_THREADS": "how many operations run at once, and so peaks and times",
    "TF_NUM_INTRAOP_THREADS": "threads within an operation, and so times",
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "where oneDNN's scratch memory comes from",
    "TF_USE_LEGACY_KERAS": "tf.keras is Keras 2, which graphwright does not read",
    "TF_XLA_FLAGS": "what XLA compiles, and so peaks and times",
    "XLA_FLAGS": "how XLA compiles, and so peaks and times",
}
"""Environment variables that change results, and what each changes."""


@dataclass(frozen=True, slots=True)
class Finding(Result):
    """One thing that was looked at.

    Attributes:
        status: "limited" where something optional is missing, "broken" where something needed is.
        found: the version, path or answer.
        note: what it is for, or what follows from it.
        remedy: what to do; "" where there is nothing to do.
    """

    name: str
    status: Status
    found: str
    note: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Installation(Result):
    """The findings of `graphwright doctor`, and the variables of `VARIABLES` that are set."""

    findings: tuple[Finding, ...]
    environment: Mapping[str, str]

    @property
    def is_healthy(self) -> bool:
        return all(finding.status != "broken" for finding in self.findings)

    @property
    def verdict(self) -> str:
        if not self.is_healthy:
            return f"This installation is not complete: {', '.join(f.name for f in self.findings if f.status == 'broken')}."
        limited = ", ".join(f.name for f in self.findings if f.status == "limited")
        return f"All is well; optional and not there: {limited}." if limited else "All is well."

    def to_json(self) -> dict[str, object]:
        """As `schemas/doctor.schema.json` of the package has it."""
        environment = {name: {"value": value, "changes": VARIABLES[name]} for name, value in self.environment.items()}
        own = fields_json(self, "environment")
        return {"schema": "graphwright.doctor/2", "healthy": self.is_healthy, "verdict": self.verdict, **own, "environment": environment}

    def __str__(self) -> str:
        remedies = [(f.name, f.remedy) for f in self.findings if f.remedy]
        variables = [(name, f"{value!r}: changes {VARIABLES[name]}") for name, value in self.environment.items()]
        blocks = [
            Facts([Fact(f.name, f"{_MARKS[f.status]}{f.found}", f.note) for f in self.findings], part="always"),
            Facts(pairs(remedies), title="What to do", part="always"),
            Facts(pairs(variables), title="Set in the environment", part="always"),
        ]
        return Sheet(self.verdict, (), [Tab("overview", "Overview", blocks)]).text()


def diagnose() -> Installation:
    """Look at what is installed, and try what TensorFlow and the kernel offer, each in a separate process."""
    tell("starting TensorFlow")
    tensorflow = _tensorflow()
    tell("measuring a known amount of memory")
    return Installation(
        (
            Finding("Python", "ok", platform.python_version(), sys.executable),
            Finding("graphwright", "ok", graphwright.__version__, str(Path(graphwright.__file__).parent)),
            Finding("NumPy", "ok", metadata.version("numpy")),
            *tensorflow,
            _meter(),
            _kept_plans(),
        ),
        {name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def _tensorflow() -> list[Finding]:
    if importlib.util.find_spec("tensorflow") is None:
        note = "the planner and graphwright plan work without it, nothing else"
        return [Finding("TensorFlow", "broken", "not installed", note, _INSTALL)]
    answer, reason = _asked("ask_tensorflow", COUNTING_ENVIRONMENT | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    if answer is None:
        remedy = f"install it again into an empty environment: {_INSTALL}"
        return [Finding("TensorFlow", "broken", "cannot be imported", reason, remedy)]
    tensorflow = Finding("TensorFlow", "ok", answer["tensorflow"], answer["built"])
    if _numbers(answer["tensorflow"]) < LEAST_TENSORFLOW:
        least = ".".join(map(str, LEAST_TENSORFLOW))
        tensorflow = Finding("TensorFlow", "broken", answer["tensorflow"], f"older than {least}", f"upgrade it: {_INSTALL}")
    counting = Finding("counting allocations", "ok", "yes", "TensorFlow's allocator tells what it gives out")
    if answer["counting"]:
        counting = Finding("counting allocations", "limited", "no", answer["counting"], "report this with the version of TensorFlow")
    return [tensorflow, _keras(answer), Finding("devices", "ok", ", ".join(answer["devices"]), answer["threads"]), counting]


def _keras(answer: Mapping[str, Any]) -> Finding:
    if answer["backend"] != "tensorflow":
        note = answer["keras_error"] or f"computes with {answer['backend']}, not with TensorFlow"
        return Finding("Keras", "broken", answer["keras"] or "cannot be imported", note, "set KERAS_BACKEND=tensorflow")
    if _numbers(answer["keras"]) < (3,) or answer["legacy"]:
        return Finding(
            "Keras", "broken", answer["keras"], "Keras 2 models are not read", "unset TF_USE_LEGACY_KERAS; pip install 'keras>=3'"
        )
    return Finding("Keras", "ok", answer["keras"])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _meter() -> Finding:
    answer, reason = _asked("ask_meter", MEMORY_ENVIRONMENT)
    trouble = reason if answer is None else answer["error"]
    if trouble:
        note = f"peaks are predicted, and cannot be measured: {trouble}"
        return Finding("measuring peaks", "limited", "no", note, "measure on Linux, where /proc/self/clear_refs may be written")
    return Finding("measuring peaks", "ok", "yes", "/proc/self/clear_refs, malloc's settings and processes of one's own work")


def _kept_plans() -> Finding:
    directory = cache_directory()
    sizes = [path.stat().st_size for path in directory.glob("*.json")]
    held = f"{counted(len(sizes), 'plan')}, {format_bytes(sum(sizes))}"
    nearest = next(parent for parent in (directory, *directory.parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        remedy = "name another folder: GRAPHWRIGHT_CACHE_DIR"
        return Finding("kept plans", "limited", held, f"{directory} cannot be written: each run plans again", remedy)
    return Finding("kept plans", "ok", held, f"{directory}; may be deleted")


def _asked(function: str, environment: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    """Return the result of a function of this file in a separate process; None and the reason where that fails."""
    code = f"import json, sys; sys.path[:] = {sys.path!r}; from graphwright.commands import doctor; print(json.dumps(doctor.{function}()))"
    command = bound([sys.executable, "-P", "-c", code])
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return None, f"the process was killed by signal {-done.returncode}" if done.returncode < 0 else last
    return json.loads(done.stdout.splitlines()[-1]), ""


def ask_tensorflow() -> dict[str, Any]:
    from graphwright.run.allocations import check_counting
    from graphwright.run.measure import surroundings
    from graphwright.source.tensorflow_import import import_keras, import_tensorflow

    tf: Any = import_tensorflow()
    around = surroundings()
    keras, keras_error = None, ""
    try:
        keras = import_keras()
    except ImportError as error:  # its backend is another, which is not installed
        keras_error = str(error)
    return {
        "tensorflow": tf.__version__,
        "keras": keras and keras.__version__,
        "backend": keras and keras.backend.backend(),
        "keras_error": keras_error,
        "legacy": os.environ.get("TF_USE_LEGACY_KERAS", "") in ("1", "true", "True"),
        "devices": [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices()],
        "built": f"built {'with' if tf.test.is_built_with_cuda() else 'without'} CUDA; oneDNN {'on' if around['onednn'] else 'off'}",
        "threads": f"{around['inter_op_threads']} inter-op and {around['intra_op_threads']} intra-op threads",
        "counting": _error_of(check_counting),
    }


def ask_meter() -> dict[str, str]:
    from graphwright.run import meter

    return {"error": _error_of(meter.check)}


def _error_of(check: Callable[[], None]) -> str:
    try:
        check()
    except GraphwrightError as error:
        return error.what
    return ""
