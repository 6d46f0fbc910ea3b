"""XLA's memory assignment for an absent GPU: a separate process compiles, and its answers are kept on disk.

The process needs jax with its CUDA plugin (`pip install 'graphwright[gpu-target]'`), but no GPU and no driver. It is run by this Python, or
by the one that `GRAPHWRIGHT_TARGET_PYTHON` names.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from graphwright.analyze.device_models import DeviceModel
from graphwright.analyze.xla_program import Program, XlaBuffer, XlaMemory
from graphwright.bound_process import bound
from graphwright.errors import MissingDependencyError, UnsupportedError
from graphwright.files import cache_directory, replaced_file
from graphwright.plain import from_plain, plain
from graphwright.run import device_worker

PYTHON = "GRAPHWRIGHT_TARGET_PYTHON"
_FORMAT = 1  # raise it when an answer is made of the program in another way
_EXTRA = "graphwright[gpu-target]"
_LIVE = 200  # largest values that are kept of those that are live at the peak


def compile_for(module: str, device: DeviceModel, *, memory_bytes: int | None = None) -> XlaMemory:
    """Compile a module (StableHLO, as TensorFlow writes it) for a GPU; `memory_bytes` as in `DeviceModel.description`."""
    python = os.environ.get(PYTHON) or sys.executable
    versions = installed(python)
    target = device.description(memory_bytes)
    same = re.sub(r"^module @\S+", "module @step", module, flags=re.MULTILINE)  # a trace has a number
    key = hashlib.sha256(json.dumps([_FORMAT, same, target, device.rates.how, versions]).encode()).hexdigest()[:48]
    path = cache_directory() / f"compiled-{key}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return from_plain(XlaMemory, json.loads(path.read_text(encoding="utf-8")), "answer")
    found = _read(_ask(python, {"module": module, "target": target}, f"for {device.full_name}"), device, versions)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as stream:
            json.dump(plain(found, whole=True), stream)
    return found


def _read(answer: Mapping[str, Any], device: DeviceModel, versions: Mapping[str, str]) -> XlaMemory:
    program = Program(answer["program"])
    at, live = program.live_at_peak()
    values = [XlaBuffer(one.op_name, one.opcode, nbytes) for one, nbytes in live]
    values.sort(key=lambda value: (-value.nbytes, value.name))
    return XlaMemory(
        argument_bytes=answer["argument_bytes"],
        output_bytes=answer["output_bytes"],
        temporary_bytes=answer["temporary_bytes"],
        constant_bytes=0,  # are part of the code
        peak_op=at.op_name,
        live=tuple(values[:_LIVE]),
        time_s=program.time_s(device.rates),
        compiler=f"XLA of jaxlib {versions['jaxlib']}",
    )


@cache
def installed(python: str) -> Mapping[str, str]:
    try:
        versions: dict[str, str] = _ask(python, {}, "which versions are installed")["versions"]
        missing = ", ".join(name for name in device_worker.PACKAGES if not versions.get(name))
    except UnsupportedError as error:
        versions, missing = {}, f"a Python that runs ({error.what})"
    if missing:
        raise MissingDependencyError(
            f"compiling for a GPU needs {missing}",
            where=python,
            remedy=f"pip install '{_EXTRA}'; or let {PYTHON} name a Python that has it. Neither a GPU nor its driver is needed",
        )
    return versions


def _ask(python: str, request: Mapping[str, Any], what: str) -> dict[str, Any]:
    command = bound([python, str(Path(device_worker.__file__))])
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "XLA_FLAGS")}  # which are of this process
    done = subprocess.run(
        command, input=json.dumps(request), env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    with contextlib.suppress(ValueError):
        if done.returncode == 0:
            return json.loads(done.stdout)
    told = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    raise UnsupportedError(
        f"XLA's compiler gave no answer ({what}): {told[-1] if told else 'it said nothing'}",
        where=f"{python}, status {done.returncode}",
        cause="the process was killed, by a lack of memory for example"
        if done.returncode < 0
        else "XLA cannot compile this step for this GPU",
        remedy="see that tf.function(step, jit_compile=True) compiles; with less memory, compile a smaller batch",
    )
