"""What this installation can do: `graphwright doctor`. Works without TensorFlow, and where importing it ends the process."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import graphwright
from graphwright.bound_process import bound
from graphwright.errors import GraphwrightError
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
        name: of what was looked at.
        status: "ok"; "limited", where something cannot be done and the rest can; "broken", where something is needed.
        found: what was found.
        note: what it is for, or what follows from it.
        remedy: what to do; "" where there is nothing to do.
    """

    name: str
    status: Status
    found: str
    note: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that graphwright writes to by itself."""

    name: str
    path: str
    files: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Installation(Result):
    """What `graphwright doctor` found."""

    findings: tuple[Finding, ...]
    versions: Mapping[str, str | None]
    devices: tuple[str, ...]
    folders: tuple[Folder, ...]
    environment: Mapping[str, str]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing that is needed is broken."""
        return all(finding.status != "broken" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        bad = {status: [f.name for f in self.findings if f.status == status] for status in ("broken", "limited")}
        if bad["broken"]:
            return f"This installation is not complete: {', '.join(bad['broken'])}."
        return "All is well" + (f"; optional and not there: {', '.join(bad['limited'])}." if bad["limited"] else ".")

    def to_json(self) -> dict[str, object]:
        """As `schemas/doctor.schema.json` of the package has it."""
        environment = {name: {"value": value, "changes": VARIABLES[name]} for name, value in self.environment.items()}
        own = fields_json(self, "environment")
        return {"schema": "graphwright.doctor/1", "healthy": self.is_healthy, "verdict": self.verdict, **own, "environment": environment}

    def __str__(self) -> str:
        remedies = [(f.name, f.remedy) for f in self.findings if f.remedy]
        variables = [(n, f"{value!r}: changes {VARIABLES[n]}") for n, value in self.environment.items()]
        blocks = [
            Facts([Fact(f.name, f"{_MARKS[f.status]}{f.found}", f.note) for f in self.findings], part="always"),
            Facts(pairs(remedies), title="What to do", part="always"),
            Facts(pairs(variables), title="Set in the environment", part="always"),
        ]
        return Sheet(self.verdict, (), [Tab("overview", "Overview", blocks)]).text()


def diagnose() -> Installation:
    """Look at what is installed, and try what TensorFlow and the kernel offer, each in a process of its own.

    >>> diagnose.__module__
    'graphwright.commands.doctor'
    """
    versions = {name: _version(name) for name in ("graphwright", "tensorflow", "keras", "numpy")}
    versions = {"python": platform.python_version(), **versions, "graphwright": graphwright.__version__}
    tell("starting TensorFlow")
    findings, started = _tensorflow()
    if started:
        versions |= {name: started[name] for name in ("tensorflow", "keras") if started[name]}
    tell("measuring a known amount of memory")
    folder, cache = _plans()
    return Installation(
        (
            Finding("Python", "ok", versions["python"] or "", sys.executable),
            Finding("graphwright", "ok", graphwright.__version__, str(Path(graphwright.__file__).parent)),
            Finding("NumPy", "ok", versions["numpy"] or ""),
            *findings,
            _meter(),
            _program("Graphviz", "dot", "pictures by Graph.visualize of graphwright.editor", "install Graphviz: apt-get install graphviz"),
            _package("scikit-image", "skimage", "the photographs of graphwright demo", 'pip install "graphwright[demo]"'),
            cache,
            _temporary(),
        ),
        versions,
        tuple(started.get("devices", ())),
        (folder,),
        {name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def _version(name: str) -> str | None:
    builds = (name, "tensorflow-cpu", "tensorflow-intel", "tf-nightly") if name == "tensorflow" else (name,)
    for build in builds:
        try:
            return metadata.version(build)
        except metadata.PackageNotFoundError:
            continue
    return None


def _tensorflow() -> tuple[list[Finding], dict[str, Any]]:
    """What TensorFlow is and sees, and what it said of itself; nothing where it is missing."""
    if importlib.util.find_spec("tensorflow") is None:
        note = "the planner and graphwright plan work without it, nothing else"
        return [Finding("TensorFlow", "broken", "not installed", note, _INSTALL)], {}
    told, said = _asked("_show_tensorflow", COUNTING_ENVIRONMENT | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    if told is None:
        found = f"{_version('tensorflow') or ''} cannot be imported".lstrip()
        return [Finding("TensorFlow", "broken", found, said, f"install it anew into an empty environment: {_INSTALL}")], {}
    findings = [Finding("TensorFlow", "ok", told["tensorflow"], told["built"])]
    if _numbers(told["tensorflow"]) < LEAST_TENSORFLOW:
        least = ".".join(map(str, LEAST_TENSORFLOW))
        findings = [Finding("TensorFlow", "broken", told["tensorflow"], f"older than {least}", f"upgrade it: {_INSTALL}")]
    findings.append(_keras(told))
    findings.append(Finding("devices", "ok", ", ".join(told["devices"]), told["threads"]))
    if told["counting"]:
        findings.append(Finding("counting allocations", "limited", "no", told["counting"], "report this with the version of TensorFlow"))
    else:
        findings.append(Finding("counting allocations", "ok", "yes", "TensorFlow's allocator tells what it gives out"))
    return findings, told


def _keras(told: Mapping[str, Any]) -> Finding:
    if told["backend"] != "tensorflow":
        found = told["keras"] or f"{_version('keras') or ''} cannot be imported".lstrip()
        note = told["keras_error"] or f"computes with {told['backend']}, not with TensorFlow"
        return Finding("Keras", "broken", found, note, "set KERAS_BACKEND=tensorflow")
    if _numbers(told["keras"]) < (3,) or told["legacy"]:
        return Finding("Keras", "broken", told["keras"], "Keras 2 models are not read", "unset TF_USE_LEGACY_KERAS; pip install 'keras>=3'")
    return Finding("Keras", "ok", told["keras"])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _meter() -> Finding:
    told, said = _asked("_show_meter", MEMORY_ENVIRONMENT)
    if told is None or told["error"]:
        reason = said if told is None else told["error"]
        note = f"peaks are predicted, and cannot be measured: {reason}"
        return Finding("measuring peaks", "limited", "no", note, "measure on Linux, where /proc/self/clear_refs may be written")
    return Finding("measuring peaks", "ok", "yes", "/proc/self/clear_refs, malloc's settings and processes of one's own work")


def _program(name: str, program: str, note: str, remedy: str) -> Finding:
    path = shutil.which(program)
    return Finding(name, "limited", "not found", note, remedy) if path is None else Finding(name, "ok", path, note)


def _package(name: str, module: str, note: str, remedy: str) -> Finding:
    there = importlib.util.find_spec(module) is not None
    return Finding(name, "ok", _version(name) or "", note) if there else Finding(name, "limited", "not installed", note, remedy)


def _plans() -> tuple[Folder, Finding]:
    from graphwright.files import cache_directory

    directory = cache_directory()
    sizes = [path.stat().st_size for path in directory.glob("*.json")]
    folder = Folder("plans", str(directory), len(sizes), sum(sizes))
    held = f"{counted(folder.files, 'plan')}, {format_bytes(folder.nbytes)}"
    there = next(parent for parent in (directory, *directory.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        remedy = "name another folder: GRAPHWRIGHT_CACHE_DIR"
        return folder, Finding("kept plans", "limited", held, f"{directory} cannot be written: each run plans again", remedy)
    return folder, Finding("kept plans", "ok", held, f"{directory}; may be deleted")


def _temporary() -> Finding:
    try:
        folder = Path(tempfile.gettempdir())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("temporary files", "broken", "no folder", str(error), "name one that can be written: TMPDIR")
    return Finding("temporary files", "ok", f"{format_bytes(free)} free", str(folder))


def _asked(function: str, environment: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    """What a function of this file prints as JSON in a process of its own; None and the reason where that ends otherwise."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from graphwright.commands import doctor; doctor.{function}()"
    try:
        done = subprocess.run(
            bound([sys.executable, "-P", "-c", code]),
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return None, f"the process was killed by signal {-done.returncode}" if done.returncode < 0 else last
    return json.loads(done.stdout.splitlines()[-1]), ""


def _show_tensorflow() -> None:  # pyright: ignore[reportUnusedFunction] - called in a process of its own
    from graphwright.run.allocations import check_counting
    from graphwright.run.measure import surroundings
    from graphwright.source.tensorflow_import import import_keras, import_tensorflow

    tf: Any = import_tensorflow()
    known = surroundings()
    counting, keras, unread = "", None, ""
    try:
        keras = import_keras()
    except ImportError as error:  # its backend is another, which is not installed
        unread = str(error)
    try:
        check_counting()
    except GraphwrightError as error:
        counting = error.what
    told = {
        "tensorflow": tf.__version__,
        "keras": keras and keras.__version__,
        "backend": keras and keras.backend.backend(),
        "keras_error": unread,
        "legacy": os.environ.get("TF_USE_LEGACY_KERAS", "") in ("1", "true", "True"),
        "devices": [_device(tf, device) for device in tf.config.list_physical_devices()],
        "built": f"built {'with' if tf.test.is_built_with_cuda() else 'without'} CUDA; oneDNN {'on' if known['onednn'] else 'off'}",
        "threads": f"{known['inter_op_threads']} inter-op and {known['intra_op_threads']} intra-op threads",
        "counting": counting,
    }
    _say(told)


def _device(tf: Any, device: Any) -> str:
    name = device.name.removeprefix("/physical_device:")
    model = tf.config.experimental.get_device_details(device).get("device_name") if device.device_type == "GPU" else None
    return f"{name} ({model})" if model else name


def _show_meter() -> None:  # pyright: ignore[reportUnusedFunction] - called in a process of its own
    from graphwright.run import meter

    try:
        meter.check()
    except GraphwrightError as error:
        _say({"error": error.what})
    else:
        _say({"error": ""})


def _say(told: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
