"""Memory-saving gradients against `tf.gradients`: peak, time and equality of whole training steps.

    python -m bench.train gradients                       # U-Net at batches 1 to 8, full size, and deep ResNets; takes an hour on two cores
    python -m bench.train gradients --size small          # the same with small images; minutes
    python -m bench.train gradients --models resnet --batches 64

A step computes the loss, takes the gradients and applies them (SGD). Every peak is measured in a fresh process; times in one process
in which all steps take turns, the forward pass alone among them; gradients are compared with those of `tf.gradients` in float32 on the
same weights and the same random state.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

RESULTS = Path(__file__).parent / "results" / "train_gradients.json"
MODES = ("plain", "memory", "speed")
MIB = 1 << 20


@dataclass
class Row:
    """One step of one model.

    Attributes:
        extra_forwards: time beyond the plain step, in forward passes.
        difference: largest difference of a gradient, relative to the largest entry of all gradients.
    """

    mode: str
    peak_bytes: int | None = None
    planned_bytes: int | None = None
    time_s: float | None = None
    time_ratio: float | None = None
    extra_forwards: float | None = None
    difference: float | None = None
    planning_s: float | None = None
    note: str = ""


@dataclass
class Case:
    """A model at a batch size, with its rows."""

    model: str
    batch: int
    size: str
    description: str = ""
    rows: list[Row] = field(default_factory=list)


def _unet(size: str, batch: int) -> tuple[Any, Any, Any, str]:
    from bench import zoo

    reference = zoo.make("unet", size=size, batch=batch)  # type: ignore[arg-type]
    return reference.model, reference.loss, reference.inputs, reference.description


def _resnet(blocks: int) -> Callable[[str, int], tuple[Any, Any, Any, str]]:
    def make(size: str, batch: int) -> tuple[Any, Any, Any, str]:
        """Pre-activation residual blocks of He et al. (arXiv:1603.05027) at one resolution."""
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(0)
        layers = keras.layers
        pixels = 32 if size == "full" else 16
        image = keras.Input((pixels, pixels, 3))
        hidden = layers.Conv2D(16, 3, padding="same")(image)
        for _ in range(blocks):
            branch = hidden
            for _ in range(2):
                branch = layers.ReLU()(layers.BatchNormalization()(branch))
                branch = layers.Conv2D(16, 3, padding="same")(branch)
            hidden = layers.Add()([hidden, branch])
        model = keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(hidden)))
        x = tf.random.stateless_normal((batch, pixels, pixels, 3), (1, 2))
        y = tf.random.stateless_uniform((batch,), (3, 4), 0, 10, tf.int32)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return model, loss, (x, y), f"{blocks} residual blocks, 16 channels, {pixels}x{pixels} pixels"

    return make


MODELS: dict[str, tuple[Callable[[str, int], tuple[Any, Any, Any, str]], tuple[int, ...]]] = {
    "unet": (_unet, (1, 2, 4, 8)),
    "resnet11": (_resnet(11), (64,)),
    "resnet31": (_resnet(31), (64,)),
    "resnet61": (_resnet(61), (64,)),
}


def _run_case(name: str, batch: int, size: str, rounds: int, *, peaks_only: bool) -> Case:
    """All rows of a model at a batch size, in this process and those that the meter starts."""
    import keras
    import numpy as np
    import tensorflow as tf

    import graphwright as gw
    from graphwright.run.measure import measure_many
    from graphwright.train.gradients.gradients import PLANS

    model, loss_of, inputs, description = MODELS[name][0](size, batch)
    case = Case(name, batch, size, description)
    variables = model.trainable_variables
    states = [layer.seed_generator.state for layer in model.layers if getattr(layer, "seed_generator", None) is not None]
    states += [v for v in model.variables if all(v is not w for w in variables)]
    start = [state.numpy() for state in states]
    optimizer = keras.optimizers.SGD(1e-3)
    optimizer.build(variables)

    def take(mode: str, loss: Any) -> Any:
        if mode == "plain":
            return tf.gradients(loss, variables)
        return gw.gradients(loss, variables, checkpoints=mode, time_limit_s=20)

    def step(mode: str) -> Any:
        def train(x: Any, y: Any) -> Any:
            loss = loss_of(y, model(x, training=True))
            optimizer.apply_gradients(zip(take(mode, loss), variables, strict=True))
            return loss

        return tf.function(train, autograph=False)

    def only_gradients(mode: str) -> list[Any]:
        for state, value in zip(states, start, strict=True):
            state.assign(value)
        found = tf.function(lambda x, y: take(mode, loss_of(y, model(x, training=True))), autograph=False)(*inputs)
        return [np.asarray(g) for g in found]

    steps: dict[str, Any] = {}
    plain = [] if peaks_only else only_gradients("plain")
    top = max(float(np.abs(g).max()) for g in plain) if plain else 1.0
    for mode in MODES:
        row = Row(mode)
        case.rows.append(row)
        try:
            traced = step(mode).get_concrete_function(*inputs)
            plans = traced.graph.get_collection(PLANS)
            row.planned_bytes = plans[0].peak_bytes if plans else None
            row.planning_s = plans[0].planning_time_s if plans else None
            row.peak_bytes = gw.measure(traced, inputs, steps=1 if peaks_only else 2, warmup=1, time=False).peak_bytes
            if mode != "plain" and not peaks_only:
                row.difference = max(float(np.abs(a - b).max()) for a, b in zip(plain, only_gradients(mode), strict=True)) / top
            steps[mode] = traced
        except gw.GraphwrightError as error:
            row.note = error.what
    del plain
    if peaks_only:
        return case
    steps["forward"] = tf.function(lambda x, y: loss_of(y, model(x, training=True)), autograph=False).get_concrete_function(*inputs)
    times = measure_many(steps, inputs, steps=rounds)
    for row in case.rows:
        if row.mode in times:
            row.time_s, row.time_ratio = times[row.mode].time_s, times[row.mode].ratio
            row.extra_forwards = (times[row.mode].ratio - 1) / times["forward"].ratio
    return case


def _read() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"about": {}, "cases": []}


def _keep(case: Case) -> None:
    """Put a case into the file, in place of an older one."""
    import tensorflow as tf

    known = _read()
    cases = [c for c in known["cases"] if (c["model"], c["batch"], c["size"]) != (case.model, case.batch, case.size)]
    cases.append(asdict(case))
    order = list(MODELS)
    cases.sort(key=lambda c: (c["size"], order.index(c["model"]), c["batch"]))
    about = {"TensorFlow": tf.__version__, "cores": os.cpu_count(), "processor": platform.processor() or platform.machine()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"about": about, "cases": cases}, indent=1) + "\n")


def as_markdown(cases: Sequence[dict[str, Any]]) -> str:
    """The table for the documentation."""
    lines = [
        "| model | batch | gradients | peak, MiB | of plain | planned, MiB | time | extra, in forward passes | largest difference |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        base = case["rows"][0]["peak_bytes"]
        for row in case["rows"]:
            cells = [
                case["model"] + ("" if case["size"] == "full" else f" ({case['size']})"),
                str(case["batch"]),
                "tf.gradients" if row["mode"] == "plain" else f'"{row["mode"]}"',
                "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / MIB:,.0f}",
                "" if row["peak_bytes"] is None or base is None else f"{100 * row['peak_bytes'] / base:.0f} %",
                "" if row["planned_bytes"] is None else f"{row['planned_bytes'] / MIB:,.0f}",
                row["note"] or ("" if row["time_ratio"] is None else f"{row['time_ratio']:.2f}x"),
                "" if row["extra_forwards"] is None or row["mode"] == "plain" else f"{row['extra_forwards']:.2f}",
                "" if row["difference"] is None else f"{row['difference']:.0e}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.train gradients", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=None)
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--rounds", type=int, default=3, help="how often each step is timed")
    parser.add_argument("--peaks-only", action="store_true", help="measure memory, and nothing else")
    parser.add_argument("--table", action="store_true", help="print the table of the file as Markdown and stop")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.table:
        print(as_markdown(_read()["cases"]))
        return 0
    if options.child:
        _keep(_run_case(options.models[0], options.batches[0], options.size, options.rounds, peaks_only=options.peaks_only))
        return 0
    died = 0
    for name in options.models:
        for batch in options.batches or MODELS[name][1]:
            command = [sys.executable, "-m", "bench.train_gradients", "--child", "--models", name, "--batches", str(batch)]
            command += ["--size", options.size, "--rounds", str(options.rounds)]
            command += ["--peaks-only"] if options.peaks_only else []
            died += subprocess.run(command, check=False).returncode != 0
    print(as_markdown([c for c in _read()["cases"] if c["size"] == options.size]))
    return 1 if died else 0


if __name__ == "__main__":
    sys.exit(main())
