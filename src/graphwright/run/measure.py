"""Measure the peak memory and the time of a step in a fresh process, which gets copies of its variables (`graphwright.source.step_file`).

Peak memory is `resident_bytes` plus the growth of the process during a step (`graphwright.run.meter`), the median of several steps after
warm-up. For small tensors, pages of the heap mislead. So a second process counts each allocation (`graphwright.run.allocations`), and the
growth is limited to lie between the tensors and all requested bytes. Resident are variables, constants, values that the runtime computes of
them at the first call, and arguments, each buffer once. On a GPU the growth is `get_memory_info`, which sees all but cuDNN's own workspace.
Time is measured in another process, without the malloc settings.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphwright.analyze.measurement import Measurement
from graphwright.bound_process import bound
from graphwright.errors import ArgumentError, ErrorCode, MeasurementError
from graphwright.ops.machine import onednn_enabled
from graphwright.run.meter import COUNTING_ENVIRONMENT, MEMORY_ENVIRONMENT
from graphwright.run.traced_step import TracedStep, first_batch, resolve
from graphwright.source.rebuild import is_jit_compiled, variable_behind
from graphwright.source.step_file import write_steps

tf: Any = importlib.import_module("tensorflow")

_SOURCE_ROOT = Path(__file__).parents[2]
_STDERR_LINES = 25


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one of several steps that took turns.

    Attributes:
        time_s: median wall time in seconds.
        ratio: median over the rounds of its time divided by the time of the first step in the same round.
        times_s: all measured times, by round.
        how: how they were measured, in words.
    """

    time_s: float
    ratio: float
    times_s: tuple[float, ...]
    how: str


def measure(
    function: Any,
    inputs: Any,
    *,
    steps: int = 3,
    warmup: int = 1,
    time: bool = True,
    inter_op_threads: int | None = None,
    grappler: bool = True,
    executor: str = "",
    timeout_s: float | None = None,
    graphs: list[bytes] | None = None,
) -> Measurement:
    """Measure peak memory and time of a step; see `graphwright.measure` for the options and errors.

    Args:
        function: a `tf.function`, a `ConcreteFunction`, a `TracedStep`, or an object whose method `concrete_function(*inputs)` returns a
            concrete function (and whose attribute `grappler_disabled` says that it runs without Grappler).
        inputs: the arguments of one call, or data whose first batch has them; None for those of a `TracedStep`.
    """
    check_counts(steps, warmup)
    step = resolve(function, first_batch(inputs))
    options = step_options(step, grappler=grappler, executor=executor)
    request = request_of({step.name: options}, steps, warmup, inter_op_threads) | {"graphs": graphs is not None}
    with tempfile.TemporaryDirectory(prefix="graphwright_") as directory:
        write_steps({step.name: (step.function, step.arguments)}, directory)
        memory = run_worker(Path(directory), request | {"kind": "memory"}, MEMORY_ENVIRONMENT, timeout_s)
        on_cpu = memory["device"] != "GPU:0"
        counted = run_worker(Path(directory), request | {"kind": "count"}, COUNTING_ENVIRONMENT, timeout_s) if on_cpu else None
        timing = run_worker(Path(directory), request | {"kind": "time"}, {}, timeout_s) if time else None
        records = {kind: [path.read_bytes() for path in sorted(Path(directory).glob(f"{kind}*.pb"))] for kind in ("memory", "count")}
    growths = [int(growth) for growth in memory["growths"]]
    resident = resident_bytes(step)
    if counted is not None:  # TensorFlow's runtime computes what hangs on constants alone, once, and keeps it
        resident += max(0, int(counted["kept"]) - _constants_bytes(step))
    growth = round(statistics.median(growths))
    allocator = (
        f"high-water mark of the process{', oneDNN through malloc' * bool(memory['onednn'])}" if on_cpu else "TensorFlow's allocator"
    )
    spread = f"{min(growths) / 2**20:.1f} to {max(growths) / 2**20:.1f} MiB above resident"
    decisive = "memory"
    how = f"{conditions(memory, options)}; peak by {allocator}, median of {steps} steps after {warmup} ({spread})"
    if counted is not None:
        least, most = (round(statistics.median(counted[key])) for key in ("tensors", "all"))
        most += min(counted["outside"])
        how += (
            f"; counted by TensorFlow's allocator, above resident too: tensors {least / 2**20:.1f} MiB, with all that kernels ask for "
            f"at most {most / 2**20:.1f} MiB"
        )
        if not least <= growth <= most:
            decisive, growth = "count", min(max(growth, least), most)
    if graphs is not None:
        graphs += records[decisive]
    time_s = math.nan
    if timing is not None:
        times = timing["times"][step.name]
        time_s = statistics.median(times)
        how += f"; time: median of {len(times)} steps in a process of its own ({min(times):.3g} to {max(times):.3g} s)"
    changes: list[tuple[float, int]] = [] if counted is None else counted["changes"]
    return Measurement(
        peak_bytes=resident + growth,
        resident_bytes=resident,
        time_s=time_s,
        how=how,
        times_s=tuple(when for when, _ in changes),
        bytes_in_use=tuple(resident + nbytes for _, nbytes in changes),
    )


def measure_many(
    functions: Mapping[str, Any],
    inputs: Any,
    *,
    steps: int = 5,
    warmup: int = 1,
    inter_op_threads: int | None = None,
    grappler: bool = True,
    timeout_s: float | None = None,
) -> dict[str, Timing]:
    """Measure the times of several steps side by side, by name; see `graphwright.measure_many`."""
    check_counts(steps, warmup)
    if not functions:
        raise ArgumentError("no functions were given", argument="functions", remedy="give at least one, by name")
    inputs = first_batch(inputs)
    resolved = {name: resolve(function, inputs) for name, function in functions.items()}
    options = {name: step_options(step, grappler=grappler, executor="") for name, step in resolved.items()}
    request = request_of(options, steps, warmup, inter_op_threads)
    with tempfile.TemporaryDirectory(prefix="graphwright_") as directory:
        write_steps({name: (step.function, step.arguments) for name, step in resolved.items()}, directory)
        result = run_worker(Path(directory), request | {"kind": "time"}, {}, timeout_s)
    first = result["times"][next(iter(resolved))]
    timings: dict[str, Timing] = {}
    for name in resolved:
        times = [float(value) for value in result["times"][name]]
        ratios = [mine / base for mine, base in zip(times, first, strict=True)]
        how = f"{conditions(result, options[name])}; median of {steps} rounds in which {len(resolved)} steps took turns, after {warmup}"
        timings[name] = Timing(statistics.median(times), statistics.median(ratios), tuple(times), how)
    return timings


def resident_bytes(step: TracedStep) -> int:
    """Return the bytes that the step holds throughout: variables, captured constants, constants in the graph, arguments.

    Each buffer counts once, also behind several placeholders.
    """
    total = 0
    seen = set[int]()
    for tensor in [*step.arguments, *(external for external, _ in step.captures)]:
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        variable = variable_behind(tensor)
        if variable is not None:
            value_shape = tf.raw_ops.VariableShape(input=tensor, out_type=tf.int64).numpy()
            total += int(value_shape.prod()) * int(variable[1].size)
        elif tensor.dtype not in (tf.resource, tf.variant):
            total += int(tf.size(tensor, tf.int64)) * max(int(tensor.dtype.size or 0), 1)
    return total + _constants_bytes(step)


def _constants_bytes(step: TracedStep) -> int:
    captured = {internal.op.name for _, internal in step.captures}
    graph_def = step.function.graph.as_graph_def()
    total = sum(_constant_bytes(node) for node in graph_def.node if node.name not in captured)
    return total + sum(_constant_bytes(node) for function in graph_def.library.function for node in function.node_def)


def _constant_bytes(node: Any) -> int:
    """Return the bytes of a constant, from shape and dtype, since the node may hold one value for all elements."""
    if node.op != "Const":
        return 0
    value = node.attr["value"].tensor
    return math.prod(dim.size for dim in value.tensor_shape.dim) * int(tf.dtypes.as_dtype(value.dtype).size or 0)


def check_counts(steps: int, warmup: int) -> None:
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0)):
        if value < least:
            raise ArgumentError(f"{name}={value} was given", argument=name, remedy=f"give {least} or more")


def step_options(step: TracedStep, *, grappler: bool, executor: str) -> dict[str, Any]:
    enabled = grappler and not step.grappler_disabled
    if executor and enabled:
        raise ArgumentError(f"executor={executor!r} was given with Grappler on", argument="executor", remedy="give grappler=False too")
    return {"grappler": enabled, "executor": executor, "jit_compile": is_jit_compiled(step.function)}


def request_of(options: Mapping[str, Mapping[str, Any]], steps: int, warmup: int, inter_op_threads: int | None) -> dict[str, Any]:
    threading = tf.config.threading
    return {
        "steps": steps,
        "warmup": warmup,
        "options": options,
        "inter_op_threads": threading.get_inter_op_parallelism_threads() if inter_op_threads is None else inter_op_threads,
        "intra_op_threads": threading.get_intra_op_parallelism_threads(),
        "tensor_float_32": tf.config.experimental.tensor_float_32_execution_enabled(),
    }


def run_worker(directory: Path, request: Mapping[str, Any], settings: Mapping[str, str], timeout_s: float | None) -> dict[str, Any]:
    (directory / "request.json").write_text(json.dumps(request))
    (directory / "result.json").unlink(missing_ok=True)
    environment = os.environ | settings
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join([str(_SOURCE_ROOT), *filter(None, named)])  # an empty one would be the current folder
    if not tf.config.get_visible_devices("GPU"):
        environment["CUDA_VISIBLE_DEVICES"] = "-1"  # hidden here, hidden there
    environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # this process may hold a part of the GPU's memory
    command = bound([sys.executable, "-P", "-m", "graphwright.run.worker", str(directory)])
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(
            f"the measurement was stopped after {timeout_s} s",
            where=f"measuring {request['kind']}",
            remedy="raise timeout_s, or run fewer steps",
        ) from error
    if done.returncode != 0 or not (directory / "result.json").exists():
        raise _death(done.returncode, done.stderr, str(request["kind"]))
    return json.loads((directory / "result.json").read_text())


def _death(returncode: int, stderr: str, kind: str) -> MeasurementError:
    last = re.sub(r"\A(?:[ \t].*\n)*", "", stderr.rpartition("Traceback (most recent call last):\n")[2])  # without the frames
    last_lines = "\n".join(last.strip().splitlines()[-_STDERR_LINES:])
    cause, remedy, code = "", "run the step by itself to see the error", None
    if returncode < 0:
        name = signal.Signals(-returncode).name if -returncode in set(signal.Signals) else f"signal {-returncode}"
        what = f"the measuring process was killed by {name}"
        if name == "SIGKILL":
            cause, remedy, code = (
                "the machine or the container ran out of memory and its OOM killer ended it",
                "use a smaller batch or a smaller budget",
                ErrorCode.OUT_OF_MEMORY,
            )
    else:
        what = f"the measuring process ended with status {returncode}"
        if "ResourceExhausted" in stderr or "MemoryError" in stderr or "OOM when allocating" in stderr:
            code = ErrorCode.OUT_OF_MEMORY
            cause = "the step needs more memory than there is, or on a GPU this process holds most of it"
            remedy = "use a smaller batch or a smaller budget; on a GPU, set TF_FORCE_GPU_ALLOW_GROWTH=true before TensorFlow is imported"
    return MeasurementError(
        f"{what}; it said:\n{last_lines}" if last_lines else what, where=f"measuring {kind}", cause=cause, remedy=remedy, code=code
    )


def conditions(result: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    parts = [
        f"{result['device']}, TensorFlow {result['tensorflow']}",
        f"Grappler {'on' if options['grappler'] else 'off'}",
        f"{result['inter_op_threads']} inter-op and {result['intra_op_threads']} intra-op threads",
    ]
    if options["executor"]:
        parts.append(f"executor {options['executor']}")
    if options["jit_compile"]:
        parts.append("compiled by XLA")
    if result["device"] == "CPU:0":
        parts.append(f"oneDNN {'on' if result['onednn'] else 'off'}")
    return ", ".join(parts)


def surroundings() -> dict[str, Any]:
    return {
        "device": "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0",
        "onednn": onednn_enabled(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads() or os.cpu_count(),
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count(),
        "tensorflow": tf.__version__,
    }
