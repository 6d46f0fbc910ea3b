"""Reversible networks: peak against depth, time against plain backpropagation and against recomputation.

    python -m bench.train reversible                 # everything; an hour on two cores
    python -m bench.train reversible --quick         # small images, few steps
    python -m bench.train reversible --parts memory  # or: time, drift
    python -m bench.train reversible --from-json     # the tables again, as Markdown

All rows of a model train the same variables with the same blocks; they differ in the gradient alone:

- `plain`: TensorFlow's own gradient, which keeps every intermediate value;
- `reversible`: as the model builders make it; `kept 0` with nothing kept of the last blocks;
- `tf.recompute_grad`: around each block; `optimize_memory`: of the plain step, at the peak that the reversible one was measured at.

Peaks are measured by `graphwright.measure`, each in a process of its own. For times all steps of a model take turns in one process;
the ratio is the median over the rounds of a step's time over the plain one's in the same round. `cpu` is the same ratio of the
processor time of the process, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

RESULTS = Path(__file__).parent / "results" / "train_reversible.json"
PARTS = ("memory", "time", "drift")
MIB = 2**20

DEPTHS = {38: 2, 110: 6, 164: 9}
"""Layers of a bottleneck RevNet -> units of each of its three stages: 6 convolutions a unit, and the first and last layer."""


class Subject:
    """A model with its steps."""

    def __init__(self, model: Any, batch: int) -> None:
        import keras
        import tensorflow as tf

        self.model, self.trunk = model, model.get_layer("trunk")
        self.default_kept = self.trunk.kept_blocks
        self.optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        self.optimizer.build(model.trainable_variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        shape = model.input_shape[1:]
        self.inputs = (tf.random.stateless_normal((batch, *shape), (0, 0)), tf.range(batch) % model.output_shape[-1])

    def step(self, *, reversible: bool, kept: int | None = None, recompute: bool = False, jit_compile: bool = False) -> Any:
        """A training step, traced, since the settings hold while it is traced."""
        import tensorflow as tf

        from graphwright.train.reversible import engine

        @tf.function(jit_compile=jit_compile)
        def train_step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss(y, self.model(x, training=True))
            variables = self.model.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, [v.value for v in variables]), variables, strict=True))
            return loss

        self.trunk.reconstructs = reversible
        self.trunk.kept_blocks = self.default_kept if kept is None else kept
        with patch.object(engine, "run_plain", _recomputed(engine.run_plain) if recompute else engine.run_plain):
            return train_step.get_concrete_function(*self.inputs)


def _recomputed(plain: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    def run(parts: Sequence[Any], x: Any, training: Any, mask: Any) -> Any:
        for part in parts:
            x = tf.recompute_grad(lambda x1, x2, part=part: plain([part], (x1, x2), training, mask)[0])(*x)
        return x, []

    return run


def deep(units: int, *, quick: bool, downsampling: str = "residual") -> Any:
    from graphwright.train.reversible.revnet import revnet

    side = 16 if quick else 32
    return revnet([units] * 3, [64, 128, 256], bottleneck=True, input_shape=(side, side, 3), downsampling=downsampling)


def named(name: str, *, quick: bool) -> Any:
    from graphwright import train

    side = 16 if quick else 32
    return getattr(train, name)((side, side, 3))


def memory(results: dict[str, Any], *, quick: bool, batch: int) -> None:
    import graphwright as gw

    rows = results["memory"] = []
    subjects: list[tuple[str, Callable[[], Any]]] = [
        (f"bottleneck, {layers} layers", lambda units=units: deep(units, quick=quick)) for layers, units in DEPTHS.items()
    ]
    subjects += [
        (f"bottleneck, {layers} layers, invertible", lambda units=units: deep(units, quick=quick, downsampling="invertible"))
        for layers, units in list(DEPTHS.items())[::2]
    ]
    subjects += [(name, lambda name=name: named(name, quick=quick)) for name in ("revnet38", "revnet110", "revnet164")]
    for title, make in subjects:
        subject = Subject(make(), batch)
        row: dict[str, Any] = {"model": title, "batch": batch}
        steps = (("plain", {"reversible": False}), ("reversible", {"reversible": True}), ("kept0", {"reversible": True, "kept": 0}))
        for key, options in steps:
            measured = gw.measure(subject.step(**options), subject.inputs, time=False, steps=1 if quick else 2)
            row[key], row["resident"] = measured.peak_bytes - measured.resident_bytes, measured.resident_bytes
        print(row, flush=True)
        rows.append(row)
        _write(results)


def times(results: dict[str, Any], *, quick: bool, batch: int, names: Sequence[str], planned: bool) -> None:
    import graphwright as gw

    rows = results.setdefault("time", {})
    for name in names:
        subject = Subject(named(name, quick=quick), batch)
        steps = {
            "plain": subject.step(reversible=False),
            "reversible": subject.step(reversible=True),
            "reversible, kept 0": subject.step(reversible=True, kept=0),
            "tf.recompute_grad": subject.step(reversible=False, recompute=True),
        }
        peaks = {key: gw.measure(step, subject.inputs, time=False, steps=1 if quick else 2) for key, step in steps.items()}
        found = {key: {"peak": m.peak_bytes - m.resident_bytes, "resident": m.resident_bytes} for key, m in peaks.items()}
        if planned:
            try:
                fast = gw.optimize_memory(
                    steps["plain"], budget=peaks["reversible"].peak_bytes, inputs=subject.inputs, verify=False, cache_dir=None
                )
                m = gw.measure(fast, subject.inputs, time=False, steps=1 if quick else 2)
                found["optimize_memory"] = {"peak": m.peak_bytes - m.resident_bytes, "resident": m.resident_bytes}
                steps["optimize_memory"] = fast
            except gw.InfeasibleError as error:
                found["optimize_memory"] = {"infeasible": error.smallest_budget_bytes}
        walls = gw.measure_many(steps, subject.inputs, steps=3 if quick else 9)
        cpu = cpu_ratios(steps, subject.inputs, rounds=3 if quick else 7)
        for key, timing in walls.items():
            found[key] |= {"ratio": timing.ratio, "best": min(timing.times_s) / min(walls["plain"].times_s), "cpu": cpu[key]}
        print(name, found, flush=True)
        rows[name] = {"batch": batch, "load": os.getloadavg()[0], "steps": found}
        _write(results)


def cpu_ratios(steps: Mapping[str, Any], inputs: Sequence[Any], *, rounds: int) -> dict[str, float]:
    """Processor time of a step over that of the first in the same round, the median of the rounds."""
    spent: dict[str, list[float]] = {key: [] for key in steps}
    for _ in range(rounds + 1):
        for key, step in steps.items():
            start = time.process_time()
            step(*inputs)
            spent[key].append(time.process_time() - start)
    first = next(iter(spent.values()))[1:]
    return {key: statistics.median(mine / base for mine, base in zip(all_of[1:], first, strict=True)) for key, all_of in spent.items()}


def drift(results: dict[str, Any], *, quick: bool, batch: int) -> None:
    import graphwright as gw

    subject = Subject(named("revnet110", quick=quick), batch)
    check = gw.check_inverse(subject.model, subject.inputs[0], training=True)
    print(check)
    results["drift"] = [{"depth": row.depth, "dtype": row.dtype, "relative": row.relative_error} for row in check.rows]
    _write(results)


def as_markdown(results: Mapping[str, Any]) -> str:
    lines: list[str] = []
    if "memory" in results:
        lines += ["| model | batch | plain MiB | reversible MiB | nothing kept MiB | resident MiB |", "|---|---:|---:|---:|---:|---:|"]
        for row in results["memory"]:
            figures = " | ".join(f"{row[key] / MIB:,.1f}" for key in ("plain", "reversible", "kept0", "resident"))
            lines.append(f"| {row['model']} | {row['batch']} | {figures} |")
        lines.append("")
    if "time" in results:
        lines += ["| model | step | peak above resident, MiB | time | best of rounds | cpu |", "|---|---|---:|---:|---:|---:|"]
        for name, row in results["time"].items():
            for key, found in row["steps"].items():
                if "infeasible" in found:
                    lines.append(f"| {name} | {key} | infeasible | | | |")
                    continue
                lines.append(
                    f"| {name} | {key} | {found['peak'] / MIB:,.1f} | {found['ratio']:.2f} | {found['best']:.2f} | {found['cpu']:.2f} |"
                )
        lines.append("")
    if "drift" in results:
        dtypes = list(dict.fromkeys(row["dtype"] for row in results["drift"]))
        lines += [f"| blocks back | {' | '.join(dtypes)} |", f"|---:|{'---:|' * len(dtypes)}"]
        for depth in dict.fromkeys(row["depth"] for row in results["drift"]):
            cells = [f"{row['relative']:.1e}" for row in results["drift"] if row["depth"] == depth]
            lines.append(f"| {depth} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--models", nargs="+", default=("revnet38", "revnet110", "revnet164"))
    parser.add_argument("--no-plan", action="store_true", help="leave optimize_memory out, which plans for minutes")
    parser.add_argument("--from-json", action="store_true")
    options = parser.parse_args(argv)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not options.from_json:
        import tensorflow as tf

        results["about"] = {"tensorflow": tf.__version__, "cores": os.cpu_count(), "quick": options.quick}
        if "memory" in options.parts:
            memory(results, quick=options.quick, batch=options.batch)
        if "time" in options.parts:
            times(results, quick=options.quick, batch=options.batch, names=options.models, planned=not options.no_plan)
        if "drift" in options.parts:
            drift(results, quick=options.quick, batch=options.batch)
    print(as_markdown(results))


if __name__ == "__main__":
    main()
