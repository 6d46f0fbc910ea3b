"""Memory-saving gradients against `tf.gradients`: peak, time and equality of whole training steps.

    python -m bench.train gradients                       # U-Net at batches 1 to 8, full size, and deep ResNets; takes an hour on two cores
    python -m bench.train gradients --size small          # the same with small images; minutes
    python -m bench.train gradients --models unet:8 --modes memory --what times      # one row, timed beside the plain step
    python -m bench.train gradients --xla                 # gradients compiled by XLA: see bench/gradients_xla.py; minutes

A step computes the loss, takes the gradients and applies them (SGD). Each peak is measured in a fresh process; times in one process
in which all steps and the forward pass take turns. Gradients are compared with `tf.gradients` in float32 on the same weights and the
same random state. Each result replaces the older one in the file at once; the rest of the file stays.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import gradients_xla
from bench.gradient_models import MODELS

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

RESULTS = Path(__file__).parent / "results" / "train_gradients.json"
MODES = ("plain", "memory", "speed")
WHAT = ("peaks", "times", "differences")
MIB = 1 << 20


@dataclass
class Row:
    """One step of one model.

    Attributes:
        planned_extra: estimated time of recomputation, in forward passes.
        extra_forwards: time beyond the plain step, in forward passes.
        difference: largest difference of a gradient, relative to the largest entry of all gradients.
    """

    mode: str
    peak_bytes: int | None = None
    planned_bytes: int | None = None
    planned_extra: float | None = None
    time_s: float | None = None
    time_ratio: float | None = None
    extra_forwards: float | None = None
    difference: float | None = None
    planning_s: float | None = None


@dataclass
class Case:
    """A model at a batch size, with its rows."""

    model: str
    batch: int
    size: str
    description: str = ""
    rows: list[Row] = field(default_factory=list)


class _Bench:
    """Measures a model at a batch size; results in the file stay unless they are measured again."""

    def __init__(self, name: str, batch: int, size: str) -> None:
        import keras

        self.model, self.loss_of, self.inputs, description = MODELS[name][0](size, batch)
        self.variables = self.model.trainable_variables
        self.optimizer = keras.optimizers.SGD(1e-3)
        self.optimizer.build(self.variables)
        known = next((c for c in _read()["cases"] if (c["model"], c["batch"], c["size"]) == (name, batch, size)), None)
        rows = [Row(**row) for row in known["rows"]] if known is not None else []
        self.case = Case(name, batch, size, description, [next((r for r in rows if r.mode == mode), Row(mode)) for mode in MODES])
        self._steps: dict[str, Any] = {}

    def row(self, mode: str) -> Row:
        return next(row for row in self.case.rows if row.mode == mode)

    def peaks(self, modes: Sequence[str]) -> None:
        """Measure each in its own process."""
        import graphwright as gw

        for mode in modes:
            peak_bytes = gw.measure(self.step(mode), self.inputs, steps=1, warmup=1, time=False).peak_bytes
            self.row(mode).peak_bytes = peak_bytes
            _keep(self.case)

    def times(self, modes: Sequence[str], rounds: int) -> None:
        """Time all steps in one process, in turns; the forward pass is the unit."""
        from graphwright.run.measure import measure_many

        steps = {mode: self.step(mode) for mode in modes}
        times = measure_many({**steps, "forward": self.step("forward")}, self.inputs, steps=rounds)
        forward = times["forward"].times_s
        for mode in modes:
            row, timing = self.row(mode), times[mode]
            row.time_s, row.time_ratio = timing.time_s, timing.ratio
            beyond = zip(timing.times_s, times["plain"].times_s, forward, strict=True)
            row.extra_forwards = statistics.median((mine - plain) / unit for mine, plain, unit in beyond)
        _keep(self.case)

    def differences(self, modes: Sequence[str]) -> None:
        """Compare gradients from the same weights and the same state, in this process."""
        import numpy as np

        plain = self._gradients("plain")
        top = max(float(np.abs(g).max()) for g in plain)
        for mode in modes[1:]:
            found = self._gradients(mode)
            self.row(mode).difference = max(float(np.abs(a - b).max()) for a, b in zip(plain, found, strict=True)) / top
            _keep(self.case)

    def step(self, mode: str) -> Any:
        """Return a traced training step, or the traced forward pass."""
        import tensorflow as tf

        from graphwright.gradient.gradients import PLANS

        def train(x: Any, y: Any) -> Any:
            loss = self.loss_of(y, self.model(x, training=True))
            if mode != "forward":
                self.optimizer.apply_gradients(zip(self._take(mode, loss), self.variables, strict=True))
            return loss

        if mode not in self._steps:
            self._steps[mode] = tf.function(train, autograph=False).get_concrete_function(*self.inputs)
            plans = self._steps[mode].graph.get_collection(PLANS)
            if plans:
                self._note_plan(mode, plans[0])
        return self._steps[mode]

    def _note_plan(self, mode: str, plan: Any) -> None:
        """Discard measurements of another plan; planning is limited by time, so two plans are seldom equal."""
        known = self.row(mode)
        alike = abs((known.planned_bytes or 0) - plan.peak_bytes) < 0.01 * plan.peak_bytes
        alike = alike and (known.planned_extra is None or abs(known.planned_extra - plan.extra_time) < 0.05)
        row = replace(known if alike else Row(mode), planned_bytes=plan.peak_bytes)
        row.planned_extra, row.planning_s = plan.extra_time, plan.planning_time_s
        self.case.rows[self.case.rows.index(known)] = row

    def _take(self, mode: str, loss: Any) -> Any:
        import tensorflow as tf

        import graphwright as gw

        return tf.gradients(loss, self.variables) if mode == "plain" else gw.gradients(loss, self.variables, checkpoints=mode)

    def _gradients(self, mode: str) -> list[Any]:
        import numpy as np
        import tensorflow as tf

        states = [layer.seed_generator.state for layer in self.model.layers if getattr(layer, "seed_generator", None) is not None]
        states += [v for v in self.model.variables if all(v is not w for w in self.variables)]
        start = [state.numpy() for state in states]
        function = tf.function(lambda x, y: self._take(mode, self.loss_of(y, self.model(x, training=True))), autograph=False)
        found = [np.asarray(g) for g in function(*self.inputs)]
        for state, value in zip(states, start, strict=True):
            state.assign(value)
        return found


def _read() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"about": {}, "cases": []}


def _keep(case: Case) -> None:
    """Add a case to the file, or replace it."""
    known = _read()
    cases = [c for c in known["cases"] if (c["model"], c["batch"], c["size"]) != (case.model, case.batch, case.size)]
    cases.append(asdict(case))
    order = list(MODELS)
    cases.sort(key=lambda c: (c["size"], order.index(c["model"]), c["batch"]))
    _write(known | {"cases": cases})


def _keep_xla(case: dict[str, Any]) -> None:
    known = _read()
    cases = [*(c for c in known.get("xla", []) if c["model"] != case["model"]), case]
    cases.sort(key=lambda c: list(gradients_xla.MODELS).index(c["model"]))
    _write(known | {"xla": cases})


def _write(results: dict[str, Any]) -> None:
    import tensorflow as tf

    about = {"TensorFlow": tf.__version__, "cores": os.cpu_count(), "processor": platform.processor() or platform.machine()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results | {"about": about}, indent=1) + "\n")


def as_markdown(cases: Sequence[dict[str, Any]]) -> str:
    """The table for the documentation."""
    titles = ["model", "batch", "gradients", "peak, MiB", "of plain", "planned, MiB", "time", "extra, in forward passes", "as estimated"]
    lines = ["| " + " | ".join([*titles, "largest difference"]) + " |", "|---|---:|---|" + "---:|" * 7]
    for case in cases:
        base = case["rows"][0]["peak_bytes"]
        for row in case["rows"]:
            cells = [
                ", ".join(case["description"].split(", ")[:2]),
                str(case["batch"]),
                "tf.gradients" if row["mode"] == "plain" else f'"{row["mode"]}"',
                "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / MIB:,.0f}",
                "" if row["peak_bytes"] is None or base is None else f"{100 * row['peak_bytes'] / base:.0f} %",
                "" if row["planned_bytes"] is None else f"{row['planned_bytes'] / MIB:,.0f}",
                "" if row["time_ratio"] is None else f"{row['time_ratio']:.2f}x",
                "" if row["extra_forwards"] is None or row["mode"] == "plain" else f"{row['extra_forwards']:.2f}",
                "" if row.get("planned_extra") is None else f"{row['planned_extra']:.2f}",
                "" if row["difference"] is None else f"{row['difference']:.0e}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _chosen(text: str) -> tuple[str, tuple[int, ...]]:
    """A model and its batch sizes: `unet` or `unet:8`."""
    name, _, batch = text.partition(":")
    if name not in MODELS or (batch and not batch.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(MODELS)}")
    return name, (int(batch),) if batch else MODELS[name][1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.train gradients", description=(__doc__ or "").splitlines()[0])
    names = f"{', '.join(MODELS)}, or one at a batch size (unet:8)"
    parser.add_argument("--models", nargs="+", type=_chosen, default=[_chosen(name) for name in MODELS], metavar="MODEL", help=names)
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), metavar="MODE", help=", ".join(MODES))
    parser.add_argument("--what", nargs="+", choices=WHAT, default=list(WHAT), metavar="WHAT", help=", ".join(WHAT))
    parser.add_argument("--rounds", type=int, default=3, help="how often each step is timed")
    parser.add_argument("--xla", action="store_true", help="compile gradients by XLA, and read the memory that it lays out, instead")
    parser.add_argument("--table", action="store_true", help="print the table of the file as Markdown and stop")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.table:
        print(as_markdown(_read()["cases"]) + "\n\n" + gradients_xla.as_markdown(_read().get("xla", [])))
        return 0
    if options.xla:
        for name in gradients_xla.MODELS:
            _keep_xla(gradients_xla.measure_xla(name, options.rounds))
        print(gradients_xla.as_markdown(_read()["xla"]))
        return 0
    modes = [mode for mode in MODES if mode in options.modes or mode == "plain"]
    if options.child:
        ((name, (batch,)),) = options.models
        bench = _Bench(name, batch, options.size)
        if "peaks" in options.what:
            bench.peaks(modes)
        if "times" in options.what:
            bench.times(modes, options.rounds)
        if "differences" in options.what:
            bench.differences(modes)
        return 0
    died = 0
    for name, batches in options.models:
        for batch in batches:
            command = [sys.executable, "-m", "bench.train_gradients", "--child", "--models", f"{name}:{batch}"]
            command += ["--size", options.size, "--rounds", str(options.rounds)]
            command += ["--what", *options.what, "--modes", *modes]
            died += subprocess.run(command, check=False).returncode != 0
    print(as_markdown([c for c in _read()["cases"] if c["size"] == options.size]))
    return 1 if died else 0


if __name__ == "__main__":
    sys.exit(main())
