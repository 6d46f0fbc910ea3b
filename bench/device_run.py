"""Run the programs of `bench.device --write` on the machine with the GPU, with jax and CUDA, without TensorFlow.

    python -m bench.device --run FOLDER [--json FILE]

Each program is compiled in its own process, several at once, and run in another process, because XLA tries kernels while it compiles for a
present GPU, and they take memory of the device. The peak of the device's allocator after two runs therefore belongs to the program. Times
are medians of later synchronized runs from equal arguments. Arguments are random with the mean and the deviation of the real ones, equal
for all programs of a model, and stay on the device.

Results are compared twice: of the programs as compiled, in which XLA may use TF32 products and other kernels, and at the highest precision
of each product. Each result array is compared by norm(difference) / norm; the table has the median, the rows have more. An array that is
zero except for rounding (the gradient of a bias before a normalization) differs by its own size. The row of the unmodified step compares
its two precisions; a small step also runs on the machine's processor.

XLA's own rematerialization is requested by its flag for the program's share of the device's memory, in whole percents.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MIB = 2**20
_ROUNDS = 12
_AT_ONCE = 2  # compiling processes; the kernels that they try take device memory, and 80 GB were not enough for six
_COMPILING = 0.5  # share of the time
_ALSO_HERE = 256 * MIB  # peak of a step that the processor runs too
_SLOP = "--xla_gpu_memory_limit_slop_factor"  # percent of 0.8 of the device's memory, without arguments and results


def run_programs(folder: Path, json_path: Path | None = None, *, seconds: float) -> str:
    """Compile all programs, run each, compare the results, return the table; store rows at once and skip programs after `seconds`."""
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        jobs = [job for path in sorted(folder.glob("*.json"), key=_largest_first) for job in _jobs(path)]
        # Programs that are not timed run at once, during other compilations.
        first = [job | {"task": "both" if job["exact"] else "compile"} for job in jobs]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = list(pool.map(lambda job: _child(job, scratch, started + _COMPILING * seconds), first))
        for job, told in zip(jobs, answers, strict=True):
            ran = told if "error" in told or job["exact"] else told | _child(job | {"task": "run"}, scratch, started + seconds)
            rows.append({key: job[key] for key in ("model", "program", "exact", "slop", "platform")} | ran)
            if json_path is not None:
                json_path.write_text(json.dumps(rows, indent=1))
        for row in rows:
            row |= _differences(Path(scratch), row)
        if json_path is not None:
            json_path.write_text(json.dumps(rows, indent=1))
    return as_markdown(rows)


def _largest_first(path: Path) -> int:
    return -path.stat().st_size


def _jobs(path: Path) -> list[dict[str, Any]]:
    stored = json.loads(path.read_text())
    one = {"path": str(path), "model": stored["model"], "program": stored["program"]}
    one |= {"exact": False, "slop": 0, "platform": ""}
    jobs = [one, one | {"exact": True}]
    if stored["program"] == "plain" and stored["peak_bytes"] > _ALSO_HERE:  # a percent is several hundred MiB
        jobs += [one | {"program": f"remat, {percent} %", "slop": percent} for percent in stored["slop"]]
    if stored["program"] == "plain" and stored["peak_bytes"] <= _ALSO_HERE:
        jobs.append(one | {"program": "plain, processor", "exact": True, "platform": "cpu"})
    return jobs


def _key(job: dict[str, Any]) -> str:
    return f"{job['model']}-{job['program']}{'-exact' * job['exact']}".replace(" ", "").replace(",", "-").replace("%", "")


def _child(job: dict[str, Any], scratch: str, end: float) -> dict[str, Any]:
    """Return a process's answer, or its last line of output."""
    environment = os.environ | {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": str(Path(scratch) / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if job["platform"]:
        environment["JAX_PLATFORMS"] = job["platform"]
    if job["slop"]:
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_SLOP}={job['slop']}".strip()
    request = json.dumps(job | {"results": str(Path(scratch) / f"{_key(job)}.npz")})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.device_run"],
            input=request,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(1.0, end - time.monotonic()),
        )
    except subprocess.TimeoutExpired:
        return {"error": "no time was left"}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    told = [line for line in done.stderr.splitlines() if line.strip()]
    return {"error": told[-1][:300] if told else f"status {done.returncode}"}


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    """In the child."""
    import jax

    from graphwright.run.device_worker import read_module

    stored = json.loads(Path(job["path"]).read_text())
    device = jax.devices()[0]
    module = stored["module"]
    if job["exact"]:
        module = module.replace("precision = [DEFAULT, DEFAULT]", "precision = [HIGHEST, HIGHEST]")
        module = module.replace("#stablehlo<precision DEFAULT>", "#stablehlo<precision HIGHEST>")
    call, given, donated = read_module(module, "cuda" if device.platform == "gpu" else device.platform)
    started = time.perf_counter()
    step = jax.jit(call, donate_argnums=donated).lower(*given).compile()
    seconds = time.perf_counter() - started
    memory = step.memory_analysis()
    kinds = (memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes, -memory.alias_size_in_bytes)
    told = {"compiled_bytes": sum(kinds), "compile_s": seconds, "device": device.device_kind}
    told |= {"predicted_bytes": stored["peak_bytes"], "predicted_time": stored["time"]}
    if job["task"] == "compile":
        return told
    ran = _measured(step, given, stored["arguments"], job)
    return told | ran if job["task"] == "both" else ran | {"load_s": seconds}


def _measured(step: Any, given: Any, made_up: list[dict[str, Any]], job: dict[str, Any]) -> dict[str, Any]:
    import jax
    import numpy as np

    device = jax.devices()[0]
    rng = np.random.default_rng(0)
    host = [_made_up(rng, one, aval) for one, aval in zip(made_up, given, strict=True)]
    before = (device.memory_stats() or {}).get("bytes_in_use", 0)
    for _ in range(2):
        arguments = jax.block_until_ready([jax.device_put(value) for value in host])
        results = jax.block_until_ready(step(*arguments))
        del arguments
        kept = [np.asarray(leaf) for leaf in jax.tree.leaves(results)]
        del results
    stats = device.memory_stats() or {}
    peak = stats["peak_bytes_in_use"] - before if "peak_bytes_in_use" in stats else None
    # bfloat16 is no dtype of NumPy's files.
    np.savez(job["results"], *[leaf.astype("float32") if leaf.dtype.kind == "V" or leaf.dtype.itemsize < 4 else leaf for leaf in kept])
    if job["exact"]:
        return {}
    master, times = [jax.device_put(value) for value in host], []
    for _ in range(_ROUNDS + 2):
        arguments = jax.block_until_ready([jax.numpy.copy(value) for value in master])
        started = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        times.append(time.perf_counter() - started)
    times = times[2:]
    return {"measured_bytes": peak, "step_s": statistics.median(times), "least_s": min(times), "most_s": max(times)}


def _made_up(rng: Any, one: dict[str, Any], aval: Any) -> Any:
    import numpy as np

    if "values" in one:
        return np.asarray(one["values"]).astype(aval.dtype).reshape(aval.shape)
    if "most" in one:
        return rng.integers(one["least"], one["most"], aval.shape, endpoint=True).astype(aval.dtype)
    if not one["deviation"]:
        return np.full(aval.shape, one["mean"], aval.dtype)
    return (one["mean"] + one["deviation"] * rng.standard_normal(aval.shape, "float32")).astype(aval.dtype)


def _differences(scratch: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Return the differences from the plain program of the same precision, or of the plain program between both precisions."""
    import numpy as np

    exact = row["exact"] != (row["program"] == "plain")
    files = [scratch / f"{_key(job)}.npz" for job in (row, row | {"program": "plain", "exact": exact})]
    if "error" in row or not all(path.exists() for path in files):
        return {}
    with np.load(files[0]) as ours, np.load(files[1]) as plain:
        found: list[float] = []
        distances = norms = 0.0
        for name in plain.files:
            a, b = ours[name].astype("float64"), plain[name].astype("float64")
            distance, norm = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
            found.append(distance / (norm or 1.0))
            distances, norms = math.hypot(distances, distance), math.hypot(norms, norm)
        finite = all(bool(np.isfinite(ours[name]).all()) for name in ours.files)
    return {
        "largest": max(found),
        "median": statistics.median(found),
        "equal_arrays": found.count(0.0),
        "arrays": len(found),
        "finite": finite,
    }


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """The table of the documentation."""
    lines = [f"on {next((row['device'] for row in rows if 'device' in row), 'no device')}"]
    head = ["program", "predicted, MiB", "compiled there", "measured (share)", "time predicted", "time measured", "differences"]
    head.append("at highest precision")
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    plains = {row["model"]: row for row in rows if row["program"] == "plain" and not row["exact"]}
    exacts = {(row["model"], row["program"]): row for row in rows if row["exact"]}
    for row in rows:
        if row["exact"] and not row["platform"]:
            continue
        name = f"{row['model']}, {row['program']}"
        if "error" in row:
            lines.append(f"| {name} | {row['error']} | | | | | | |")
            continue
        if row["platform"]:
            lines.append(f"| {name} | | | | | | | {_difference_words(row)} |")
            continue
        plain = plains[row["model"]]
        ratio = f"{row['step_s'] / plain['step_s']:.2f}" if "step_s" in plain else ""
        predicted = "" if row["slop"] else f"{row['predicted_bytes'] / MIB:,.1f}"
        measured = "not known"
        if row["measured_bytes"]:
            measured = f"{row['measured_bytes'] / MIB:,.1f} ({row['measured_bytes'] / (plain.get('measured_bytes') or math.nan):.2f})"
        cells = [name, predicted, f"{row['compiled_bytes'] / MIB:,.1f}", measured]
        cells += ["" if row["slop"] else f"{row['predicted_time']:.2f}", ratio]
        cells += [_difference_words(row), _difference_words(exacts.get((row["model"], row["program"]), {}))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _difference_words(row: dict[str, Any]) -> str:
    if "largest" not in row:
        return row.get("error", "")
    return f"{row['median']:.1e}{'' if row['finite'] else ', not finite'}"


def main() -> None:
    """One child's task."""
    answer = _answer(json.load(sys.stdin))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
