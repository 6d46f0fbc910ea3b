"""Steps on GPUs that are not there, as XLA compiles them: as they are, with XLA's own rematerialization, and with our plans.

    python -m bench.device                                        # every model; long
    python -m bench.device --models unet --devices h100 l4 --budgets 0.5
    python -m bench.device --allow all                            # plans that may run the batch in parts
    python -m bench.device --json FILE                            # the rows too; what is there already is not computed again
    python -m bench.device --models unet --write FOLDER           # the programs too, for a machine with a GPU
    python -m bench.device --run FOLDER                           # there, with jax and CUDA, without TensorFlow: runs them

Nothing runs, but with `--run`: peaks are the compiler's, times are estimated by a roofline over its instructions. XLA's own
rematerialization is asked for by a device with less memory, of which XLA's scheduler takes 0.76 for the program. Models are those of
`bench.zoo` with their training step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

MIB = 2**20
MODELS: dict[str, tuple[Any, int]] = {  # in the sizes that XLA compiles in less than half a minute, with their batch sizes
    "unet": ("full", 2),
    "resnet50": ("full", 32),
    "densenet121": ("small", 16),
    "transformer": ("small", 16),
    "transformer_bfloat16": ("small", 16),
    "mlp1000": ("small", 64),
    "lstm": ("small", 32),
}
_SCHEDULED = 0.76  # of a device's memory: what XLA's scheduler takes for arguments, results and temporaries
_ROUNDS = 10


def run_model(name: str, device: str, budgets: list[float], folder: Path | None, *, all_verbs: bool) -> dict[str, Any]:
    """One row."""
    import graphwright as gw
    from bench import zoo
    from graphwright.analyze.device_models import find_device
    from graphwright.run.xla_memory import xla_memory
    from graphwright.step.example_inputs import example_inputs
    from graphwright.step.targets import trace

    size, batch = MODELS[name]
    model, _ = zoo.keras_model(name, size=size, batch=batch, batches=1)
    traced = trace(model, mode="train", batch=batch)
    target = find_device(device)
    row: dict[str, Any] = {"model": name, "device": device, "size": size, "batch": batch, "all": all_verbs, "plans": {}}
    allow: dict[str, Any] = {"allow": "all"} if all_verbs else {}
    try:
        plain = xla_memory(traced.function, traced.shapes, target)
    except gw.UnsupportedError as error:
        return row | {"error": str(error).splitlines()[0]}
    row |= {"plain": plain.peak_bytes, "time_s": plain.time_s, "compiler": plain.compiler}
    row["cpu"] = xla_memory(traced.function, traced.shapes).peak_bytes
    limits = [int(share * plain.peak_bytes / _SCHEDULED) for share in budgets]
    remat = min((xla_memory(traced.function, traced.shapes, target, memory_bytes=n) for n in limits), key=lambda found: found.peak_bytes)
    row["remat"], row["remat_time"] = remat.peak_bytes, remat.time_s / plain.time_s
    if folder is not None:
        _write(traced.function, traced.shapes, folder / f"{name}-{device}-plain", plain.peak_bytes)
    for budget in budgets:
        try:
            fast = gw.optimize_memory(traced.function, budget, inputs=example_inputs(traced), device=device, **allow)
        except gw.InfeasibleError as error:
            row["plans"][str(budget)] = {"smallest": error.smallest_budget_bytes}
            continue
        plan = fast.plan
        found = {"peak": plan.peak_bytes, "time": 1 + plan.overhead, "how": plan.rewritten, "verification": plan.verification}
        row["plans"][str(budget)] = found
        if folder is not None:
            positional, keyword = (inputs, {}) if isinstance(inputs := example_inputs(traced), tuple) else ((), inputs)
            function = fast.concrete_function(*positional, **keyword)
            _write(function, traced.shapes, folder / f"{name}-{device}-{budget}", plan.peak_bytes)
    return row


def _write(function: Any, shapes: Any, path: Path, peak_bytes: int) -> None:
    import tensorflow as tf

    from graphwright.source.private_tensorflow import compiled_by_xla

    specs = [tf.TensorSpec(shape, tensor.dtype) for shape, tensor in zip(shapes, function.inputs, strict=False)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps({"peak_bytes": peak_bytes, "module": compiled_by_xla(function, specs, "stablehlo")}))


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """The table of the documentation."""
    budgets = sorted({budget for row in rows for budget in row["plans"]}, reverse=True)
    head = ["step", "device", "as it is", "CPU's XLA", "XLA's own remat", *(f"plan at {float(b):.0%}" for b in budgets)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['model']} | {row['device']} | {row['error']} |{' |' * (len(head) - 3)}")
            continue
        plain = row["plain"]
        verbs = ", all verbs" * row.get("all", False)
        cells = [
            f"{row['model']} ({row['size']}), batch {row['batch']}{verbs}",
            row["device"],
            f"{plain / MIB:,.1f}",
            f"{row['cpu'] / MIB:,.1f}",
        ]
        cells.append(f"{row['remat'] / plain:.2f}, time {row['remat_time']:.2f}")
        for budget in budgets:
            plan = row["plans"].get(budget)
            if plan is None:
                cells.append("")
            elif "peak" in plan:
                parts = re.search(r"in (\d+ parts)", plan["how"])
                cells.append(f"{plan['peak'] / plain:.2f}, time {plan['time']:.2f}{f', {parts[1]}' if parts else ''}")
            else:
                cells.append(f"none; {plan['smallest'] / plain:.2f} is the least")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def run_programs(folder: Path) -> str:
    """Run what `--write` wrote on the first device that jax has: peak, time, and whether a plan's results are those of the step."""
    import jax
    import numpy as np

    from graphwright.run.device_worker import read_module

    device = jax.devices()[0]
    platform = "cuda" if device.platform == "gpu" else device.platform
    results: dict[str, list[Any]] = {}
    rows: list[tuple[str, list[str]]] = []
    # The peak that a device tells is that since the process began: what takes more comes later.
    for path, stored in sorted(((p, json.loads(p.read_text())) for p in folder.glob("*.json")), key=lambda item: item[1]["peak_bytes"]):
        call, given, donated = read_module(stored["module"], platform)
        step = jax.jit(call, donate_argnums=donated)
        results[path.stem] = [np.asarray(leaf) for leaf in jax.tree.leaves(step(*_made_up(given)))]
        times: list[float] = []
        for _ in range(_ROUNDS):
            arguments = jax.block_until_ready(_made_up(given))
            started = time.perf_counter()
            jax.block_until_ready(step(*arguments))
            times.append(time.perf_counter() - started)
        peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
        measured = f"{peak / MIB:,.1f}" if peak else "not known"
        rows.append((path.stem, [f"{stored['peak_bytes'] / MIB:,.1f}", measured, f"{1e3 * statistics.median(times):.2f}"]))
    lines = [f"on {device.device_kind}", "| program | compiled for | peak | time, ms | largest difference |", "|---|---|---|---|---|"]
    for name, cells in rows:
        plain = results.get(f"{name.rpartition('-')[0]}-plain", results[name])
        pairs = [(a.astype("float64"), b.astype("float64")) for a, b in zip(plain, results[name], strict=True)]
        difference = max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs)
        lines.append(f"| {name} | {' | '.join(cells)} | {difference:.3g} |")
    return "\n".join(lines)


def _made_up(given: Any) -> list[Any]:
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    values = [0.1 * rng.random(a.shape) if a.dtype.kind not in "iub" else np.zeros(a.shape) for a in given]
    return [jax.device_put(value.astype(a.dtype)) for value, a in zip(values, given, strict=True)]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--devices", nargs="+", default=["h100", "a100", "l4"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.5, 0.35, 0.25], help="shares of the peak of the unmodified step")
    parser.add_argument("--allow", choices=("all",), default=None, help="what plans may do besides recomputing")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--write", type=Path, default=None)
    parser.add_argument("--run", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.run is not None:
        print(run_programs(arguments.run))
        return
    rows: list[dict[str, Any]] = []
    if arguments.json is not None and arguments.json.exists():
        rows = json.loads(arguments.json.read_text())
    all_verbs = arguments.allow is not None
    done = {(row["model"], row["device"], row.get("all", False)) for row in rows}
    for device in arguments.devices:
        for name in arguments.models:
            if (name, device, all_verbs) in done:
                continue
            rows.append(run_model(name, device, arguments.budgets, arguments.write, all_verbs=all_verbs))
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(rows, indent=1))
    print(as_markdown(rows))


if __name__ == "__main__":
    main()
