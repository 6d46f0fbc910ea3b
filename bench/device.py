"""Steps compiled by XLA for absent GPUs: unmodified, with XLA's own rematerialization, and with our plans.

    python -m bench.device                                        # every model; long
    python -m bench.device --models unet --devices h100 l4 --budgets 0.5
    python -m bench.device --allow all                            # plans that may run the batch in parts
    python -m bench.device --json FILE                            # store the rows; stored rows are not computed again
    python -m bench.device --models unet --write FOLDER           # the programs too, for a machine with a GPU
    python -m bench.device --run FOLDER                           # there, with jax and CUDA, without TensorFlow: runs them

Nothing runs without `--run`: peaks come from the compiler, times are estimated by a roofline over its instructions. XLA's own
rematerialization is requested by a device with less memory; XLA's scheduler takes 0.76 of it for the program. Models are those of
`bench.zoo` with their training step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

MIB = 2**20
MODELS: dict[str, tuple[Any, int]] = {  # sizes that XLA compiles in less than half a minute, and batch sizes
    "unet": ("full", 2),
    "resnet50": ("full", 32),
    "densenet121": ("small", 16),
    "transformer": ("small", 16),
    "transformer_bfloat16": ("small", 16),
    "mlp1000": ("small", 64),
    "lstm": ("small", 32),
}
_SCHEDULED = 0.76  # share of a device's memory that XLA's scheduler takes for arguments, results and temporaries
_USABLE = 0.8  # of a GPU's memory, of which XLA's flag takes percents
_WHOLE = 64  # up to this many elements, values are written instead of their distribution


def run_model(
    name: str, size: str, batch: int, device: str, budgets: list[float], folder: Path | None, *, all_verbs: bool
) -> dict[str, Any]:
    """One row."""
    import graphwright as gw
    from bench import zoo
    from graphwright.analyze.device_models import find_device
    from graphwright.run.xla_memory import xla_memory
    from graphwright.step.example_inputs import example_inputs
    from graphwright.step.targets import trace

    model, data = zoo.keras_model(name, size=size, batch=batch, batches=1)
    data = [array[:batch] for array in data]
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
        usable = _USABLE * target.memory_bytes
        slop = sorted({max(1, round(100 * share * plain.peak_bytes / usable)) for share in budgets})
        about = {"model": f"{name} ({size}), batch {batch}", "device": device, "slop": slop}
        written = about | {"program": "plain", "peak_bytes": plain.peak_bytes, "time": 1.0}
        write_program(traced.function, traced.shapes, folder / f"{name}-{size}-{device}-plain.json", written, data)
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
            written = about | {"program": f"plan at {budget:.0%}", "peak_bytes": plan.peak_bytes, "time": 1 + plan.overhead}
            write_program(function, traced.shapes, folder / f"{name}-{size}-{device}-{budget}.json", written, data)
    return row


def write_program(function: Any, shapes: Any, path: Path, about: dict[str, Any], data: list[Any]) -> None:
    """Write the program, and the distribution of its arguments, for `bench.device_run`."""
    import tensorflow as tf

    from graphwright.source.private_tensorflow import compiled_by_xla

    specs = [tf.TensorSpec(shape, tensor.dtype) for shape, tensor in zip(shapes, function.inputs, strict=False)]
    values = {id(variable.handle): variable for variable in function.variables}
    arguments = [*data, *(values.get(id(captured), captured).numpy() for captured in function.captured_inputs)]
    path.parent.mkdir(parents=True, exist_ok=True)
    module = compiled_by_xla(function, specs, "stablehlo")
    path.write_text(json.dumps(about | {"arguments": [_distribution(value) for value in arguments], "module": module}))


def _distribution(value: Any) -> dict[str, Any]:
    if value.size <= _WHOLE:
        return {"values": value.astype("float64" if value.dtype.kind not in "iub" else "int64").tolist()}
    if value.dtype.kind in "iub":
        return {"least": int(value.min()), "most": int(value.max())}
    value = value.astype("float64")
    return {"mean": value.mean(), "deviation": value.std()}


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


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--devices", nargs="+", default=["h100", "a100", "l4"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.5, 0.35, 0.25], help="shares of the peak of the unmodified step")
    parser.add_argument("--allow", choices=("all",), default=None, help="what plans may do besides recomputing")
    parser.add_argument("--size", choices=("small", "full"), default=None, help="of the models; with --batch")
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--write", type=Path, default=None)
    parser.add_argument("--run", type=Path, default=None)
    parser.add_argument("--seconds", type=float, default=3600.0, help="what --run may take; half of it for compiling")
    arguments = parser.parse_args()
    if arguments.run is not None:
        from bench.device_run import run_programs

        print(run_programs(arguments.run, arguments.json, seconds=arguments.seconds))
        return
    rows: list[dict[str, Any]] = []
    if arguments.json is not None and arguments.json.exists():
        rows = json.loads(arguments.json.read_text())
    all_verbs = arguments.allow is not None
    done = {(row["model"], row["size"], row["batch"], row["device"], row.get("all", False)) for row in rows}
    for device in arguments.devices:
        for name in arguments.models:
            size, batch = arguments.size or MODELS[name][0], arguments.batch or MODELS[name][1]
            if (name, size, batch, device, all_verbs) in done:
                continue
            rows.append(run_model(name, size, batch, device, arguments.budgets, arguments.write, all_verbs=all_verbs))
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(rows, indent=1))
    print(as_markdown(rows))


if __name__ == "__main__":
    main()
